//! Failed authentications: limited per client address, counted and logged, for all protocols with
//! passwords or tokens.
//!
//! Passwords may be weak, so an address over its limit is rejected without comparing the password.
//! Tokens are 256 random bits and cannot be guessed, so a correct token is always accepted: an
//! attacker behind the same proxy or NAT cannot lock others out.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{Decision, Limiter, MemoryStore, Quota, store::MemoryStoreBuilder};
use slidegate_http::headers::secs_ceil;
use smallvec::SmallVec;

use crate::caller::Protocol;
use crate::log_limit::{group_key, log_limited};

/// Wrong passwords and tokens of one address per [`WINDOW`]. A client library with an old password
/// fails about a dozen times before it gives up (redis-py retries ten times) and must not use up
/// its neighbours' limit. This rate allows 16 million guesses a year.
const MAX_FAILURES: u64 = 30;
/// See [`MAX_FAILURES`]. Also the longest wait of a client that then sends the correct password.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum addresses tracked, in at most 20 MB. Above it, addresses with the fewest failures are
/// dropped.
const MAX_CLIENTS: usize = 65_536;

/// Failures are counted per guesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guesser {
    /// A network address.
    Address(IpAddr),
    /// A user of this machine, on a Unix socket: its uid. `None` if the system does not report it.
    User(Option<u32>),
}

impl From<IpAddr> for Guesser {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl Guesser {
    /// Keys of addresses and of users differ in length.
    fn key(self) -> SmallVec<[u8; 16]> {
        match self {
            Self::Address(address) => group_key(address).into(),
            Self::User(Some(user)) => user.to_ne_bytes().as_slice().into(),
            Self::User(None) => SmallVec::new(),
        }
    }

    fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::User(_) => None,
        }
    }
}

impl fmt::Display for Guesser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(Some(user)) => write!(f, "user {user}"),
            Self::User(None) => f.write_str("unix socket"),
        }
    }
}

/// Failed authentications of all clients, over all protocols.
#[derive(Debug)]
pub(crate) struct AuthAttempts {
    failures: Limiter,
    /// Per protocol: wrong attempts, and attempts rejected over the limit.
    failed: [[AtomicU64; 2]; Protocol::ALL.len()],
}

/// Why a client is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthFailure {
    /// The password or token is wrong.
    Wrong,
    /// The address is over the limit.
    TooMany {
        /// Time until the next attempt is accepted.
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
                secs_ceil(*retry_after)
            ),
        }
    }
}

impl Default for AuthAttempts {
    fn default() -> Self {
        Self::new(MemoryStore::builder())
    }
}

impl AuthAttempts {
    fn new(store: MemoryStoreBuilder) -> Self {
        let quota = Quota::new(MAX_FAILURES, WINDOW).expect("a minute is a window");
        let failures = Limiter::with_store(quota, store.max_keys(MAX_CLIENTS).build());
        Self { failures, failed: Default::default() }
    }

    /// Checks a password. Only failures are charged.
    ///
    /// # Errors
    /// The password is wrong, or the address is over the limit; then it is not compared.
    pub(crate) fn password(
        &self,
        protocol: Protocol,
        client: impl Into<Guesser>,
        is_right: impl FnOnce() -> bool,
    ) -> Result<(), AuthFailure> {
        let client = client.into();
        let key = client.key();
        if let Some(too_many) = too_many(&self.failures.peek(&key)) {
            return Err(self.failed(protocol, client, too_many));
        }
        if !is_right() {
            return Err(self.wrong(protocol, client));
        }
        // Peek again: concurrent guesses on other connections may have used up the limit meanwhile.
        match too_many(&self.failures.peek(&key)) {
            Some(too_many) => Err(self.failed(protocol, client, too_many)),
            None => Ok(()),
        }
    }

    /// Charges a wrong password or token and returns the failure to report.
    pub(crate) fn wrong(&self, protocol: Protocol, client: impl Into<Guesser>) -> AuthFailure {
        let client = client.into();
        let charged = self.failures.check(client.key());
        self.failed(protocol, client, too_many(&charged).unwrap_or(AuthFailure::Wrong))
    }

    fn failed(&self, protocol: Protocol, client: Guesser, failure: AuthFailure) -> AuthFailure {
        let reason = usize::from(failure != AuthFailure::Wrong);
        self.failed[protocol as usize][reason].fetch_add(1, Ordering::Relaxed);
        log_limited!(
            WARN,
            client.address(),
            peer = %client,
            protocol = protocol.name(),
            "authentication failed; if the client is yours, check its password or token"
        );
        failure
    }

    /// Failed attempts of this protocol, by reason.
    pub(crate) fn counts(&self, protocol: Protocol) -> [(&'static str, u64); 2] {
        let [wrong, limited] = &self.failed[protocol as usize];
        [("wrong", wrong.load(Ordering::Relaxed)), ("too_many", limited.load(Ordering::Relaxed))]
    }
}

/// The failure to report if the address is over the limit.
fn too_many(failures: &Decision) -> Option<AuthFailure> {
    let retry_after = failures.retry_after().unwrap_or(WINDOW);
    failures.is_denied().then_some(AuthFailure::TooMany { retry_after })
}

#[cfg(test)]
mod tests {
    use slidegate::clock::ManualClock;

    use super::*;

    const MALLORY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 66));
    const ALICE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn attempts() -> (AuthAttempts, ManualClock) {
        let clock = ManualClock::new();
        (AuthAttempts::new(MemoryStore::builder().clock(clock.clone())), clock)
    }

    /// Unlimited guessing, two million passwords in four seconds, finds most passwords that people
    /// choose.
    #[test]
    fn an_address_over_the_limit_is_rejected_even_with_the_right_password() {
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

    /// A connection pool that reconnects must not be locked out.
    #[test]
    fn right_passwords_are_not_charged() {
        let (attempts, _) = attempts();
        for _ in 0..1000 {
            assert_eq!(attempts.password(Protocol::Resp, ALICE, || true), Ok(()));
        }
        assert_eq!(attempts.failures.peek(Guesser::from(ALICE).key()).used(), 0);
    }

    /// An attacker must not get another budget per protocol, or per address of one network.
    #[test]
    fn protocols_and_addresses_of_one_network_share_a_budget() {
        let (attempts, _) = attempts();
        let hosts = (1..=MAX_FAILURES).map(|host| format!("2001:db8::{host}").parse::<IpAddr>().unwrap());
        for (at, host) in hosts.enumerate() {
            let failure = if at % 2 == 0 {
                attempts.password(Protocol::Resp, host, || false).unwrap_err()
            } else {
                attempts.wrong(Protocol::Http, host)
            };
            assert_eq!(failure, AuthFailure::Wrong);
        }
        let next = "2001:db8:0:ff::1".parse::<IpAddr>().unwrap();
        assert!(matches!(attempts.wrong(Protocol::Http, next), AuthFailure::TooMany { .. }));
        assert!(attempts.password(Protocol::Resp, next, || true).is_err());
    }

    /// One program that guesses on a Unix socket must not lock out the programs of other users.
    #[test]
    fn users_of_a_unix_socket_have_a_budget_each() {
        let (attempts, _) = attempts();
        let guess = |user, is_right: bool| attempts.password(Protocol::Resp, user, || is_right);
        for _ in 0..=MAX_FAILURES {
            let _ = guess(Guesser::User(Some(66)), false);
        }
        assert!(matches!(guess(Guesser::User(Some(66)), true), Err(AuthFailure::TooMany { .. })));
        for other in [Guesser::User(Some(1000)), Guesser::User(Some(0)), Guesser::User(None), ALICE.into()] {
            assert_eq!(guess(other, true), Ok(()), "{other}");
        }
    }

    /// Concurrent guesses must not each see the budget before the others.
    #[test]
    fn concurrent_guesses_are_limited_together() {
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
        // A correct guess is rejected if others used up the budget while it was compared.
        let (attempts, _) = self::attempts();
        let late = attempts.password(Protocol::Resp, MALLORY, || {
            for _ in 0..MAX_FAILURES {
                attempts.wrong(Protocol::Resp, MALLORY);
            }
            true
        });
        assert!(late.is_err());
    }

    /// Operators read this error in their client.
    #[test]
    fn the_error_contains_the_limit_and_the_wait() {
        let text = AuthFailure::TooMany { retry_after: Duration::from_millis(41_001) }.to_string();
        assert_eq!(
            text,
            "too many failed authentications from your address: 30 in 60 s is the limit; wait 42 s, then send the right \
             password or token"
        );
    }
}
