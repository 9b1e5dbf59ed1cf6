//! Log lines that clients can cause: bounded for each call site and client, and for each call site as a whole.
//!
//! Every such line is written with [`log_limited!`], so that no client can fill a disk. Lines that are left out are
//! counted, and the call site's next line says how many there were, in the field `suppressed`.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(test)]
use slidegate::ManualClock;
use slidegate::client_addr::{self, Ipv6Prefix};
use slidegate::{Limiter, MemoryStore, MemoryStoreBuilder, Quota};

/// How often one call site may write a line about the same client: often enough to see that it goes on.
const ONE_LINE_EVERY: Duration = Duration::from_secs(60);
/// Most lines a minute of one call site about all clients together: some 10 KB, a log that people still read.
const MAX_LINES_A_MINUTE: u64 = 60;
/// Clients that one call site remembers, in some 100 KB. Beyond that, a client may get a second line within its minute.
const MAX_CLIENTS: usize = 1024;

/// Which lines of one call site are written.
#[derive(Debug)]
pub(crate) struct LogLimit {
    by_client: Limiter,
    all: Limiter,
    /// Lines left out since the last one that was written.
    suppressed: AtomicU64,
}

/// How many lines a [`LogLimit`] lets through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRates {
    /// Of one client, or of whatever else a line is about.
    pub(crate) each: Quota,
    /// Of all of them together.
    pub(crate) all: Quota,
    /// How many of them are remembered.
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
        Self::new(LogRates::default())
    }
}

impl LogLimit {
    pub(crate) fn new(rates: LogRates) -> Self {
        Self::build(rates, &MemoryStore::builder())
    }

    /// For a line that is about the service as a whole: one in each of these spans.
    pub(crate) fn every(span: Duration) -> Self {
        let quota = Quota::new(1, span).expect("a positive span is a window");
        Self::new(LogRates { each: quota, all: quota, max_clients: 1 })
    }

    /// One on a clock that tests move.
    #[cfg(test)]
    pub(crate) fn on_clock(rates: LogRates, clock: &ManualClock) -> Self {
        Self::build(rates, &MemoryStore::builder().clock(clock.clone()))
    }

    fn build(rates: LogRates, store: &MemoryStoreBuilder) -> Self {
        let limiter = |quota, max_keys| Limiter::with_store(quota, store.clone().max_keys(max_keys).build());
        Self {
            by_client: limiter(rates.each, rates.max_clients),
            all: limiter(rates.all, 1),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Asks to write a line about a client, or about none in particular.
    ///
    /// Returns how many lines were left out since the last one. `None`: leave this one out as well.
    pub(crate) fn admit(&self, client: Option<IpAddr>) -> Option<u64> {
        match client {
            Some(client) => self.admit_key(&group_key(client)),
            None => self.admit_key(b""),
        }
    }

    /// The same for a line that is about something else than an address.
    pub(crate) fn admit_key(&self, key: &[u8]) -> Option<u64> {
        // The client first: one that floods must not use up what others may write.
        let admitted = self.by_client.check(key).is_allowed() && {
            let has_room = self.all.check("").is_allowed();
            if !has_room {
                // Nothing was written about this client, so it may be as soon as there is room.
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

/// The key that a client address is limited by: an IPv4 address whole, an IPv6 address by the network that one household
/// or server has to itself, in which it can take another address for each connection.
pub(crate) fn group_key(client: IpAddr) -> [u8; 16] {
    match client_addr::group(client, Ipv6Prefix::default()) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Writes a log line that a client can cause: `log_limited!(WARN, Some(peer.ip()), %error, "what happened")`.
///
/// The level, the client's address if one is known, then fields and message as `tracing` takes them. Each use is a call
/// site with a limit of its own. A line whose level is off is neither written nor counted.
macro_rules! log_limited {
    ($level:ident, $client:expr, $($line:tt)+) => {{
        static LIMIT: std::sync::LazyLock<$crate::log_limit::LogLimit> =
            std::sync::LazyLock::new(Default::default);
        if tracing::enabled!(tracing::Level::$level)
            && let Some(suppressed) = LIMIT.admit($client)
        {
            // An absent field is not printed.
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::event!(tracing::Level::$level, suppressed, $($line)+);
        }
    }};
}
pub(crate) use log_limited;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn limit(clock: &ManualClock) -> LogLimit {
        LogLimit::on_clock(LogRates::default(), clock)
    }

    /// Two million wrong passwords were 281 MB of log.
    #[test]
    fn a_client_gets_one_line_a_minute_and_the_next_says_how_many_were_left_out() {
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

    /// An attacker must not hide what other clients do.
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

    /// A network of many addresses writes no more than a log that people can read.
    #[test]
    fn a_call_site_is_bounded_over_all_clients_and_uses_up_nobodys_turn() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        let written = |from: u16, to: u16| {
            let admit = |at: &u16| limit.admit(ip(&format!("198.18.{}.{}", at >> 8, at & 255)));
            (from..to).filter(|at| admit(at).is_some()).count() as u64
        };
        assert_eq!(written(0, 500), MAX_LINES_A_MINUTE);
        assert_eq!(written(0, 500), 0);
        clock.advance(Duration::from_secs(60));
        // Those without a line so far have theirs now.
        assert_eq!(written(400, 430), 30);
    }

    /// A client with an IPv6 network has more addresses than lines fit on any disk.
    #[test]
    fn addresses_of_one_network_are_one_client() {
        let clock = ManualClock::new();
        let limit = limit(&clock);
        assert_eq!(limit.admit(ip("2001:db8::1")), Some(0));
        for host in 2..1000 {
            assert_eq!(limit.admit(ip(&format!("2001:db8:0:{:x}::{host:x}", host % 256))), None);
        }
        assert_eq!(limit.admit(ip("2001:db8:1::1")), Some(998));
        // One host, written in two ways.
        assert_eq!(limit.admit(ip("192.0.2.7")), Some(0));
        assert_eq!(limit.admit(ip("::ffff:192.0.2.7")), None);
    }

    /// What a call site remembers of clients must not grow with them.
    #[test]
    fn more_clients_than_are_remembered_are_still_bounded() {
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
