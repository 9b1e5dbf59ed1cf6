//! Rate limits for client-caused log lines: per call site and client, and per call site in total.
//!
//! Such lines use [`log_limited!`], so no client can fill a disk. Suppressed lines are counted, and
//! the call site's next line reports their number in the field `suppressed`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::network::{self, Ipv6Prefix};

use slidegate::{Limiter, MemoryStore, Quota, store::MemoryStoreBuilder};

/// Minimum interval between lines of one call site about one client: short enough to show that a
/// problem continues.
const ONE_LINE_EVERY: Duration = Duration::from_secs(60);
/// Maximum lines per minute of one call site about all clients: about 10 KB, still readable.
const MAX_LINES_A_MINUTE: u64 = 60;
/// Maximum clients tracked per call site, in about 100 KB. Above it, a client may get a second line
/// within a minute.
const MAX_CLIENTS: usize = 1024;

/// The rate limit of one call site.
#[derive(Debug)]
pub(crate) struct LogLimit {
    by_client: Limiter,
    all: Limiter,
    /// Lines suppressed since the last written one.
    suppressed: AtomicU64,
}

/// The rates of a [`LogLimit`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRates {
    /// Lines per client or other subject.
    pub(crate) each: Quota,
    /// Lines about all clients.
    pub(crate) all: Quota,
    /// Maximum clients tracked.
    pub(crate) max_clients: usize,
}

impl Default for LogRates {
    fn default() -> Self {
        let each = Quota::new(1, ONE_LINE_EVERY).expect("a minute is a window");
        Self { each, all: Quota::per_minute(MAX_LINES_A_MINUTE), max_clients: MAX_CLIENTS }
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(LogRates::default(), &MemoryStore::builder())
    }
}

impl LogLimit {
    pub(crate) fn new(rates: LogRates, store: &MemoryStoreBuilder) -> Self {
        let limiter = |quota, max_keys| Limiter::with_store(quota, store.clone().max_keys(max_keys).build());
        Self {
            by_client: limiter(rates.each, rates.max_clients),
            all: limiter(rates.all, 1),
            suppressed: AtomicU64::new(0),
        }
    }

    /// For lines about the service as a whole: one per `span`.
    pub(crate) fn every(span: Duration) -> Self {
        let quota = Quota::new(1, span).expect("a positive span is a window");
        Self::new(LogRates { each: quota, all: quota, max_clients: 1 }, &MemoryStore::builder())
    }

    /// Whether to write a line about a client, or about no particular client.
    ///
    /// Returns the number of lines suppressed since the last one, or `None` to suppress this one.
    pub(crate) fn admit(&self, client: Option<IpAddr>) -> Option<u64> {
        match client {
            Some(client) => self.admit_key(&group_key(client)),
            None => self.admit_key(b""),
        }
    }

    /// [`Self::admit`] for a subject that is not an address.
    pub(crate) fn admit_key(&self, key: &[u8]) -> Option<u64> {
        // The client first: a client over its limit must not use up the total.
        let admitted = self.by_client.check(key).is_allowed() && {
            let has_room = self.all.check("").is_allowed();
            if !has_room {
                // Not charged, because nothing was written about this client.
                self.by_client.refund(key, 1);
            }
            has_room
        };
        if admitted {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// The key that limits a client address: the IPv4 address, or the IPv6 network of one household or
/// server, which can use a new address for every connection.
pub(crate) fn group_key(client: IpAddr) -> [u8; 16] {
    match network::group(client, Ipv6Prefix::default()) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Writes a rate-limited log line: `log_limited!(WARN, Some(peer.ip()), %error, "what happened")`.
///
/// Arguments: the level, the client's address if known, then fields and message as in `tracing`.
/// Each use is a call site with its own limit. A line whose level is disabled is neither written
/// nor counted.
macro_rules! log_limited {
    ($level:ident, $client:expr, $($line:tt)+) => {{
        static LIMIT: std::sync::LazyLock<$crate::log_limit::LogLimit> =
            std::sync::LazyLock::new(Default::default);
        if tracing::enabled!(tracing::Level::$level)
            && let Some(suppressed) = LIMIT.admit($client)
        {
            // `tracing` omits a field that is `None`.
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::event!(tracing::Level::$level, suppressed, $($line)+);
        }
    }};
}
pub(crate) use log_limited;

#[cfg(test)]
mod tests {
    use slidegate::clock::ManualClock;

    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn limit(clock: &ManualClock) -> LogLimit {
        LogLimit::new(LogRates::default(), &MemoryStore::builder().clock(clock.clone()))
    }

    /// Without a limit, two million wrong passwords wrote 281 MB of log.
    #[test]
    fn a_client_gets_one_line_a_minute_and_the_next_has_the_suppressed_count() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        assert_eq!(limit.admit(ip("192.0.2.1")), Some(0));
        for _ in 0..100_000 {
            assert_eq!(limit.admit(ip("192.0.2.1")), None);
        }
        clock.advance(ONE_LINE_EVERY - Duration::from_micros(1));
        assert_eq!(limit.admit(ip("192.0.2.1")), None);
        clock.advance(Duration::from_micros(1));
        assert_eq!(limit.admit(ip("192.0.2.1")), Some(100_001));
        clock.advance(ONE_LINE_EVERY);
        assert_eq!(limit.admit(ip("192.0.2.1")), Some(0), "what was reported is not reported again");
    }

    /// An attacker must not suppress lines about other clients.
    #[test]
    fn a_flood_of_one_client_leaves_the_lines_of_others() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        for _ in 0..1000 {
            limit.admit(ip("192.0.2.1"));
        }
        assert_eq!(limit.admit(ip("192.0.2.2")), Some(999));
        assert_eq!(limit.admit(None), Some(0));
        assert_eq!(limit.admit(None), None);
    }

    /// An attacker with many addresses must not flood the log.
    #[test]
    fn a_call_site_is_bounded_in_total_and_suppressed_clients_are_not_charged() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        let written = |from: u16, to: u16| {
            let admit = |at: &u16| limit.admit(ip(&format!("198.18.{}.{}", at >> 8, at & 255)));
            (from..to).filter(|at| admit(at).is_some()).count() as u64
        };
        assert_eq!(written(0, 500), MAX_LINES_A_MINUTE);
        assert_eq!(written(0, 500), 0);
        clock.advance(Duration::from_secs(60));
        // Clients without a line so far get one now.
        assert_eq!(written(400, 430), 30);
    }

    /// A client with an IPv6 network can use unlimited addresses.
    #[test]
    fn addresses_of_one_network_are_one_client() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        assert_eq!(limit.admit(ip("2001:db8::1")), Some(0));
        for host in 2..1000 {
            assert_eq!(limit.admit(ip(&format!("2001:db8:0:{:x}::{host:x}", host % 256))), None);
        }
        assert_eq!(limit.admit(ip("2001:db8:1::1")), Some(998));
        // One host in two notations.
        assert_eq!(limit.admit(ip("192.0.2.7")), Some(0));
        assert_eq!(limit.admit(ip("::ffff:192.0.2.7")), None);
    }

    /// The memory of a call site must not grow with the number of clients.
    #[test]
    fn more_clients_than_tracked_are_still_bounded() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        let mut written = 0;
        for at in 0..50_000u32 {
            written += u64::from(limit.admit(Some(IpAddr::V4((0x0a00_0000 + at).into()))).is_some());
        }
        assert_eq!(written, MAX_LINES_A_MINUTE);
        let stats = limit.by_client.stats();
        assert!(stats.keys <= MAX_CLIENTS, "{stats:?}");
    }
}
