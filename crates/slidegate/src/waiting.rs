//! Waiting for capacity instead of being denied: its bounds and errors, and in [`queues`] the queues of
//! all waiters. What waits for a limiter is in `limiter/acquire.rs`, and for a gate in `gate/acquire.rs`.

use std::fmt;
use std::time::Duration;

use crate::time::millis_ceil;

pub(crate) mod queue_key;
pub(crate) mod queues;
pub(crate) mod watch;

/// Bounds on the number of waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWaiting {
    /// Maximum number of waiters for one key, including the head of its queue. Default: 1024.
    pub per_key: usize,
    /// Maximum number of waiters for all keys of a limiter or gate. Default: 65,536. Each holds a
    /// task and a copy of its key.
    pub in_all: usize,
}

impl Default for MaxWaiting {
    fn default() -> Self {
        Self { per_key: 1024, in_all: 65_536 }
    }
}

/// How long is waited by default.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Why nothing was charged or held. Its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAcquired(pub(crate) Cause);

/// The kinds of [`NotAcquired`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotAcquiredKind {
    /// The cost exceeds the quota's [capacity](crate::Quota::capacity), or the key is blocked
    /// without end, or the request names a policy that cannot decide it. Reported without waiting.
    Never,
    /// A bound of [`MaxWaiting`] is reached. Reported without waiting.
    Full,
    /// The cost did not fit in time. Reported as soon as that is certain, which may be before the
    /// time is over.
    Late,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    Never {
        cost: u64,
        most: u64,
    },
    /// The same for a gate, with the reason as an unfinished sentence.
    NeverOfGate(String),
    /// `retry_after`: the earliest turn of who comes now, if known.
    Full {
        most: usize,
        of: &'static str,
        retry_after: Option<Duration>,
    },
    /// `is_held`: the wait is an upper bound, as open reservations may end earlier.
    Late {
        within: Duration,
        retry_after: Option<Duration>,
        is_held: bool,
    },
}

impl NotAcquired {
    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> NotAcquiredKind {
        match self.0 {
            Cause::Never { .. } | Cause::NeverOfGate(_) => NotAcquiredKind::Never,
            Cause::Full { .. } => NotAcquiredKind::Full,
            Cause::Late { .. } => NotAcquiredKind::Late,
        }
    }

    /// The wait that would have been necessary, if known: behind other callers, the earliest that is possible. An
    /// upper bound if reservations hold what is left of the limit.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl Cause {
    /// Whether as many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Late { retry_after, .. } | Self::Full { retry_after, .. } => *retry_after,
            Self::Never { .. } | Self::NeverOfGate(_) => None,
        }
    }
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Never { cost, most } => {
                write!(
                    f,
                    "invalid cost {cost}: must be at most {most}, the capacity of the quota; ask for less at once"
                )
            }
            Cause::NeverOfGate(why) => f.write_str(why),
            Cause::Full { most, of, .. } => {
                write!(
                    f,
                    "too many waiters {of}: at most {most} may wait; retry later, or raise `max_waiting`"
                )
            }
            Cause::Late { within, retry_after, is_held } => {
                write!(f, "the cost did not fit within {} ms: ", millis_ceil(*within))?;
                match retry_after.map(millis_ceil) {
                    Some(millis) if *is_held => {
                        write!(f, "open reservations hold what is left, for up to {millis} ms; ")?;
                    }
                    Some(millis) => write!(f, "it fits in {millis} ms at the earliest; ")?,
                    None => f.write_str("other callers wait for the same key; ")?,
                }
                f.write_str("wait longer or ask for less")
            }
        }
    }
}

impl std::error::Error for NotAcquired {}
