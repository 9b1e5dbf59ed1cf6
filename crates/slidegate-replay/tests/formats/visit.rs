//! The requests of `tests/fixtures/shop.log`: three quarters of an hour of a shop, with browsers, a
//! crawler, scripts and bursts. Addresses and names are of the ranges for documentation.
//!
//! It is a log of nginx with a `log_format` that has all that any other format has, and it is read
//! here without the parsers that are tested.

use std::sync::OnceLock;

/// The log.
pub(crate) const FIXTURE: &str = include_str!("../fixtures/shop.log");
/// The `log_format` of it.
pub(crate) const FIXTURE_FORMAT: &str = "$remote_addr $remote_port - $remote_user [$time_local] \"$request\" $status \
     $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $msec $request_time";

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

impl Visit {
    fn of(line: &'static str) -> Self {
        let quoted: Vec<&'static str> = line.split('"').collect();
        let [before, request, status, referer, _, agent, times] = quoted[..] else { panic!("{line}") };
        let words = |text: &'static str| text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>();
        let (before, request) = (words(before), words(request));
        let (status, times) = (words(status), words(times));
        let (path, query) = request[1].split_once('?').unwrap_or((request[1], ""));
        let duration_ms = millis(times[1]);
        Self {
            ip: before[0].to_owned(),
            port: before[1].parse().unwrap(),
            user: (before[3] != "-").then_some(before[3]),
            start_ms: millis(times[0]) - duration_ms,
            duration_ms,
            method: request[0],
            path,
            query,
            status: status[0].parse().unwrap(),
            bytes: status[1].parse().unwrap(),
            agent: unescaped(agent),
            referer: unescaped(referer),
        }
    }

    pub(crate) fn end_ms(&self) -> u64 {
        self.start_ms + self.duration_ms
    }

    pub(crate) fn target(&self) -> String {
        if self.query.is_empty() { self.path.to_owned() } else { format!("{}?{}", self.path, self.query) }
    }
}

/// The requests, in the order in which they ended: that of most logs.
pub(crate) fn visits() -> Vec<Visit> {
    static VISITS: OnceLock<Vec<Visit>> = OnceLock::new();
    VISITS.get_or_init(|| FIXTURE.lines().map(Visit::of).collect()).clone()
}

/// Milliseconds of seconds with three decimals.
fn millis(text: &str) -> u64 {
    text.replace('.', "").parse().unwrap()
}

/// A text as it was before nginx escaped it; `-` is an absent one.
fn unescaped(text: &'static str) -> &'static str {
    match text {
        "-" => "",
        text if text.contains('\\') => {
            let plain = text.replace("\\x22", "\"").replace("\\x09", "\t").replace("\\x5C", "\\");
            Box::leak(plain.into_boxed_str())
        }
        text => text,
    }
}
