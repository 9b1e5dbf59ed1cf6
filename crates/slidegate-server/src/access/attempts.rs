//! Failed authentications: limited by client address, counted and logged, for every protocol that takes a password or a
//! token.
//!
//! Passwords may be weak, so an address that used up its failures is refused without a comparison, right or wrong. Tokens
//! are 256 random bits, which nobody guesses, so a right one is always accepted: an attacker who shares an address with
//! others, behind a proxy or a NAT, cannot lock them out.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(test)]
use slidegate::ManualClock;
use slidegate::{Decision, Limiter, MemoryStore, MemoryStoreBuilder, Quota};

use crate::caller::Protocol;
use crate::log_limit::{group_key, log_limited};

/// Wrong passwords and tokens of one address in [`WINDOW`]. A client library with an old password fails a dozen times before
/// it gives up (redis-py retries ten times), which must leave room for its neighbours. At this rate a year of guessing is
/// 16 million passwords.
const MAX_FAILURES: u64 = 30;
/// See [`MAX_FAILURES`]. Also how long a client waits at most once it has the right password.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses whose failures are remembered, in at most 20 MB. When there are more, those that failed least are forgotten.
const MAX_CLIENTS: usize = 65_536;

/// Failures of all clients, over all protocols.
#[derive(Debug)]
pub(crate) struct AuthAttempts {
    failures: Limiter,
    /// By door: wrong ones, and those refused because there were too many.
    failed: [[AtomicU64; 2]; Protocol::ALL.len()],
}

/// Why a client is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthFailure {
    /// The password or token is wrong.
    Wrong,
    /// There were too many wrong ones from this address.
    TooMany {
        /// Until the next attempt is looked at.
        retry_after: Duration,
    },
}

impl fmt::Display for AuthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong => f.write_str("wrong password or token"),
            Self::TooMany { retry_after } => write!(
                f,
                "too many failed authentications from your address: {MAX_FAILURES} in {} s is the limit; wait {} s, then \
                 send the right password or token",
                WINDOW.as_secs(),
                retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0)
            ),
        }
    }
}

impl Default for AuthAttempts {
    fn default() -> Self {
        Self::build(MemoryStore::builder())
    }
}

impl AuthAttempts {
    /// One on a clock that tests move.
    #[cfg(test)]
    pub(crate) fn on_clock(clock: &ManualClock) -> Self {
        Self::build(MemoryStore::builder().clock(clock.clone()))
    }

    fn build(store: MemoryStoreBuilder) -> Self {
        let quota = Quota::new(MAX_FAILURES, WINDOW).expect("a minute is a window");
        let failures = Limiter::with_store(quota, store.max_keys(MAX_CLIENTS).build());
        Self { failures, failed: Default::default() }
    }

    /// An attempt with a password. Only failures are charged: a right one is free.
    ///
    /// # Errors
    /// The password is wrong, or its address has failed too often; then it is not compared.
    pub(crate) fn password(
        &self,
        door: Protocol,
        client: IpAddr,
        is_right: impl FnOnce() -> bool,
    ) -> Result<(), AuthFailure> {
        let key = group_key(client);
        if let Some(too_many) = too_many(&self.failures.peek(key)) {
            return Err(self.failed(door, client, too_many));
        }
        if !is_right() {
            return Err(self.wrong(door, client));
        }
        // Again, as attempts on other connections may have failed meanwhile: of guesses made at once, too, only as many
        // count as the limit allows.
        match too_many(&self.failures.peek(key)) {
            Some(too_many) => Err(self.failed(door, client, too_many)),
            None => Ok(()),
        }
    }

    /// Charges a wrong password or token. Gives what to answer.
    pub(crate) fn wrong(&self, door: Protocol, client: IpAddr) -> AuthFailure {
        let charged = self.failures.check(group_key(client));
        self.failed(door, client, too_many(&charged).unwrap_or(AuthFailure::Wrong))
    }

    fn failed(&self, door: Protocol, client: IpAddr, failure: AuthFailure) -> AuthFailure {
        let reason = usize::from(failure != AuthFailure::Wrong);
        self.failed[door as usize][reason].fetch_add(1, Ordering::Relaxed);
        log_limited!(
            WARN,
            Some(client),
            peer = %client,
            door = door.name(),
            "a client failed to authenticate; if it is yours, give it the right password or token"
        );
        failure
    }

    /// Failures so far of clients of this door, each with the name of its reason.
    pub(crate) fn counts(&self, door: Protocol) -> [(&'static str, u64); 2] {
        let [wrong, limited] = &self.failed[door as usize];
        [("wrong", wrong.load(Ordering::Relaxed)), ("too_many", limited.load(Ordering::Relaxed))]
    }
}

/// The refusal of an address whose failures are used up.
fn too_many(failures: &Decision) -> Option<AuthFailure> {
    let retry_after = failures.retry_after().unwrap_or(WINDOW);
    failures.is_denied().then_some(AuthFailure::TooMany { retry_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MALLORY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 66));
    const ALICE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn attempts() -> (AuthAttempts, ManualClock) {
        let clock = ManualClock::new();
        (AuthAttempts::on_clock(&clock), clock)
    }

    /// Two million passwords in four seconds find most that people choose.
    #[test]
    fn an_address_has_so_many_wrong_passwords_in_a_minute_and_then_not_even_the_right_one_passes() {
        let (attempts, clock) = attempts();
        let guess = |client, is_right: bool| attempts.password(Protocol::Resp, client, || is_right);
        for _ in 0..MAX_FAILURES {
            assert_eq!(guess(MALLORY, false), Err(AuthFailure::Wrong));
            clock.advance(Duration::from_secs(1));
        }
        let wait = WINDOW - Duration::from_secs(MAX_FAILURES);
        let refused = attempts.password(Protocol::Resp, MALLORY, || panic!("it is not compared"));
        assert_eq!(refused, Err(AuthFailure::TooMany { retry_after: wait }));
        assert_eq!(guess(ALICE, true), Ok(()), "others are not affected");
        clock.advance(wait - Duration::from_micros(1));
        assert!(guess(MALLORY, true).is_err());
        clock.advance(Duration::from_micros(1));
        assert_eq!(guess(MALLORY, true), Ok(()));
        let failures = [("wrong", MAX_FAILURES), ("too_many", 2)];
        assert_eq!((attempts.counts(Protocol::Resp), attempts.counts(Protocol::Http)[0].1), (failures, 0));
    }

    /// A pool that reconnects must not be locked out by its own success.
    #[test]
    fn right_passwords_are_free() {
        let (attempts, _) = attempts();
        for _ in 0..1000 {
            assert_eq!(attempts.password(Protocol::Resp, ALICE, || true), Ok(()));
        }
        assert_eq!(attempts.failures.peek(group_key(ALICE)).used, 0);
    }

    /// Who guesses on one protocol must not have another budget on the next, nor on each address of his network.
    #[test]
    fn protocols_and_addresses_of_one_network_share_a_budget() {
        let (attempts, _) = attempts();
        let hosts = (1..=MAX_FAILURES).map(|host| format!("2001:db8::{host}").parse().unwrap());
        for (at, host) in hosts.enumerate() {
            let failure = if at % 2 == 0 {
                attempts.password(Protocol::Resp, host, || false).unwrap_err()
            } else {
                attempts.wrong(Protocol::Http, host)
            };
            assert_eq!(failure, AuthFailure::Wrong);
        }
        let next = "2001:db8:0:ff::1".parse().unwrap();
        assert!(matches!(attempts.wrong(Protocol::Http, next), AuthFailure::TooMany { .. }));
        assert!(attempts.password(Protocol::Resp, next, || true).is_err());
    }

    /// Guesses on many connections at once must not each see the budget as it was before the others.
    #[test]
    fn guesses_made_at_once_are_limited_together() {
        let (attempts, _) = attempts();
        let guesses = || {
            (0..1000)
                .filter(|_| attempts.password(Protocol::Resp, MALLORY, || false) == Err(AuthFailure::Wrong))
                .count()
        };
        let wrong: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(guesses)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(wrong as u64, MAX_FAILURES);
        // One that is found right after the others have used up the budget does not pass.
        let (attempts, _) = self::attempts();
        let late = attempts.password(Protocol::Resp, MALLORY, || {
            for _ in 0..MAX_FAILURES {
                attempts.wrong(Protocol::Resp, MALLORY);
            }
            true
        });
        assert!(late.is_err());
    }

    /// Operators read it in their client.
    #[test]
    fn the_refusal_says_the_limit_and_how_long_to_wait() {
        let told = AuthFailure::TooMany { retry_after: Duration::from_millis(41_001) }.to_string();
        assert_eq!(
            told,
            "too many failed authentications from your address: 30 in 60 s is the limit; wait 42 s, then send the right \
             password or token"
        );
    }
}
