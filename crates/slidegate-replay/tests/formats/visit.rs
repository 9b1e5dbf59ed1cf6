//! An hour of a shop: browsers, a crawler, a feed reader, monitoring and scanners, from a fixed
//! seed. Addresses and names are of the ranges for documentation.

/// One request, as it happened.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) ip: String,
    pub(crate) port: u16,
    pub(crate) user: Option<&'static str>,
    /// Milliseconds since the Unix epoch.
    pub(crate) start_ms: u64,
    pub(crate) duration_ms: u64,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) query: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) agent: &'static str,
    pub(crate) referer: &'static str,
}

/// 2026-11-20T00:00:00Z.
const MIDNIGHT_MS: u64 = 1_795_132_800_000;

const PAGES: [(&str, &str); 8] = [
    ("/", ""),
    ("/search", "q=red+shoes&page=2"),
    ("/items/1017", ""),
    ("/static/app.js", "v=3"),
    ("/caf%C3%A9/men%C3%BC", ""),
    ("/login", ""),
    ("/api/cart", "id=7"),
    ("/feed.xml", ""),
];
const AGENTS: [&str; 5] = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "ExampleBot/2.1 (+http://crawler.example/bot.html)",
    "curl/8.5.0",
    "Agent \"quoted\" \\ with, comma; and\ttab",
    "",
];

impl Visit {
    pub(crate) fn end_ms(&self) -> u64 {
        self.start_ms + self.duration_ms
    }

    pub(crate) fn target(&self) -> String {
        if self.query.is_empty() { self.path.to_owned() } else { format!("{}?{}", self.path, self.query) }
    }
}

/// The requests, in the order in which they ended: that of most logs.
pub(crate) fn visits() -> Vec<Visit> {
    let mut seed = 20_261_120u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut visits = Vec::new();
    let mut second = 10;
    while second < 3600 {
        let ip = match random(10) {
            0..3 => "198.51.100.7".to_owned(),
            3 => format!("2001:db8:{:x}:1::{:x}", random(4), random(3) + 1),
            4 => format!("203.0.113.{}", random(250)),
            _ => format!("192.0.2.{}", random(16) * random(16) / 8),
        };
        let agent = AGENTS[index(random(5))];
        for _ in 0..=random(12) {
            let (path, query) = PAGES[index(random(8) * random(8) / 8)];
            let (method, path, query) = match random(40) {
                0 => ("POST", "/login", ""),
                1 => ("HEAD", "/", ""),
                _ => ("GET", path, query),
            };
            visits.push(Visit {
                ip: ip.clone(),
                port: u16::try_from(20_000 + random(40_000)).unwrap(),
                user: (random(9) == 0).then_some("alice"),
                start_ms: MIDNIGHT_MS + second * 1000 + random(3000),
                // Some downloads are slow.
                duration_ms: random(60) * random(60) * (1 + random(4)),
                method,
                path,
                query,
                status: [200, 304, 404, 500][index(random(4))],
                bytes: [5120, 0, 196, 1_048_576][index(random(4))],
                agent,
                referer: ["", "https://shop.example/"][index(random(2))],
            });
        }
        second += random(44);
    }
    visits.sort_by_key(Visit::end_ms);
    visits
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}
