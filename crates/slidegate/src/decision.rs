//! Decisions: the full answer of one quota to one request.
//!
//! A decision is plain numbers. Which policy and key it is about is known to [`Decisions`](crate::Decisions), which
//! holds one for each policy of a request.

use std::time::Duration;

use crate::time::Timestamp;

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may pass, and its cost has been charged.
    Allow,
    /// It may not pass, and nothing has been charged, except under [`Excess::Count`](crate::Excess::Count).
    Deny,
}

/// What a quota says about one request, with everything a client can be told.
///
/// ```
/// use slidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(100));
/// let decision = limiter.check("alice");
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit, decision.used, decision.remaining), (100, 1, 99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Allow or deny.
    pub verdict: Verdict,
    /// Most cost that a fresh key admits: the quota's limit, or the burst of a token bucket.
    pub limit: u64,
    /// Cost that counts now, with this request's if it was charged. Past `limit` after a penalty or a lowered limit.
    pub used: u64,
    /// Cost still available after this request. A denial leaves it unchanged. At most `limit`; 0 while the key is blocked.
    pub remaining: u64,
    /// Cost that this call moved: charged by a check or a penalty, given back by a refund. Zero for a peek, and for a
    /// denial unless the policy counts what it denies ([`Excess::Count`](crate::Excess::Count)).
    pub cost: u64,
    /// When it was decided. The waits count from here. In this process it is the date by the machine's wall clock as it was
    /// set then, see [`Clock::wall_time`](crate::Clock::wall_time); under a shared store, the server's time.
    pub at: Timestamp,
    /// Where the answer comes from.
    pub source: Source,
    /// Whether the key is blocked, which denies every cost but 0.
    pub(crate) is_blocked: bool,
    pub(crate) waits: Waits,
}

/// Why a decision denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The cost is more than what remains of the limit.
    OverLimit,
    /// The key is blocked; [`PolicyDecision::block`](crate::PolicyDecision::block) says until when.
    Blocked,
    /// The shared store could not decide, and the policy [denies](crate::OnStoreError::Deny) everything then. How much the key
    /// has used is unknown.
    StoreUnavailable,
}

impl Reason {
    /// The name in answers, logs and metrics: `over_limit`, `blocked`, `store_unavailable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over_limit",
            Self::Blocked => "blocked",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

/// Where a decision comes from: never hidden, since all but the first are answers without the shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Source {
    /// The store that holds the key.
    #[default]
    Store,
    /// A denial of the store, remembered in this process and still true.
    Remembered,
    /// The store did not answer in time: the memory of this process decided, under its share of the limit.
    Local,
    /// The store did not answer in time, and the policy lets everything through then.
    Allow,
    /// The store did not answer in time, and the policy denies everything then.
    Deny,
}

impl Source {
    /// The name in answers, logs and metrics: `store`, `remembered`, `local`, `allow`, `deny`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Remembered => "remembered",
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// How long until the key has room again, in microseconds.
///
/// As numbers, since a decision makes them and most are never read: a [`Duration`] of each would cost it a tenth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Until the cost asked for fits; 0 if it did, [`NEVER`](Self::NEVER) if it never will.
    pub(crate) retry_us: u64,
    /// Until nothing counts.
    pub(crate) reset_us: u64,
    /// Until something is free; meaningless while nothing counts.
    pub(crate) frees_us: u64,
}

impl Waits {
    /// Longer than any wait that ends.
    pub(crate) const NEVER: u64 = u64::MAX;
}

impl Decision {
    /// Takes usage of the same quota under another key into account. The verdict stays.
    pub(crate) fn add_usage(&mut self, other: &Self) {
        if !self.is_blocked {
            let frees =
                [&*self, other].into_iter().filter(|one| one.used > 0).map(|one| one.waits.frees_us).min();
            self.waits.frees_us = frees.unwrap_or(0);
        }
        self.waits.reset_us = self.waits.reset_us.max(other.waits.reset_us);
        self.used = self.used.saturating_add(other.used);
        self.remaining = if self.is_blocked { 0 } else { self.limit.saturating_sub(self.used) };
    }

    /// Wait until this very cost fits: zero when allowed, `None` when it never will.
    ///
    /// Tight to the microsecond if nothing else is charged meanwhile: at exactly this time it is admitted, one
    /// microsecond earlier it is not. For a blocked key this is the rest of the block, `None` if it does not end. Where the
    /// store is unavailable nobody knows the wait: it is 1 to 3 seconds, at random, so that clients which were denied
    /// together do not come back together.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let wait_us = self.waits.retry_us;
        (wait_us != Waits::NEVER).then(|| Duration::from_micros(wait_us))
    }

    /// How long until the key is as good as new, if nothing more is charged. Zero when nothing counts.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.waits.reset_us)
    }

    /// How long until more cost is available than now, `None` when nothing is used. For a blocked key, how long until it is
    /// blocked no more and has room, `None` if the block does not end.
    #[must_use]
    pub fn frees_after(&self) -> Option<Duration> {
        let frees_us = self.waits.frees_us;
        let ends = if self.is_blocked { frees_us != Waits::NEVER } else { self.used > 0 };
        ends.then(|| Duration::from_micros(frees_us))
    }

    /// Why the request may not pass; `None` if it may.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self { verdict: Verdict::Allow, .. } => None,
            Self { is_blocked: true, .. } => Some(Reason::Blocked),
            Self { source: Source::Deny, .. } => Some(Reason::StoreUnavailable),
            _ => Some(Reason::OverLimit),
        }
    }

    /// Whether the key is blocked. A request of cost 0 passes all the same.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether anybody knows how much the key has used: not where a fallback answers without counting.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !matches!(self.source, Source::Allow | Source::Deny)
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// Whether the request may not pass.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.verdict == Verdict::Deny
    }

    /// When the key is as good as new, if nothing more is charged: a date by the same clock as [`at`](Self::at).
    #[must_use]
    pub fn reset_at(&self) -> Timestamp {
        self.at + self.reset_after()
    }

    /// Whether this decision binds rather than `other`: a denial before an allowance, the longer wait among denials
    /// (never is longest), else the less remaining.
    ///
    /// A denial that is known to be right comes before one that was made because the store is
    /// [unavailable](Reason::StoreUnavailable), whatever their waits.
    ///
    /// Where the two are even, neither is stricter.
    #[must_use]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        match (self.verdict, other.verdict) {
            (Verdict::Deny, Verdict::Allow) => true,
            (Verdict::Allow, Verdict::Deny) => false,
            (Verdict::Deny, Verdict::Deny) => {
                let rank = |one: &Self| (one.reason() != Some(Reason::StoreUnavailable), one.waits.retry_us);
                rank(self) > rank(other)
            }
            (Verdict::Allow, Verdict::Allow) => self.remaining < other.remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(verdict: Verdict, remaining: u64, retry_us: u64) -> Decision {
        Decision {
            verdict,
            limit: 10,
            used: 10 - remaining,
            remaining,
            cost: 0,
            at: Timestamp::EPOCH,
            source: Source::Store,
            is_blocked: false,
            waits: Waits { retry_us, reset_us: 0, frees_us: 0 },
        }
    }

    /// The client must be told the wait that really ends its denial, not the first one found.
    #[test]
    fn a_denial_binds_first_then_the_longest_wait_then_the_least_remaining() {
        let order = [
            decision(Verdict::Deny, 5, Waits::NEVER),
            decision(Verdict::Deny, 9, 60),
            decision(Verdict::Deny, 0, 1),
            Decision { source: Source::Deny, ..decision(Verdict::Deny, 0, 3_000_000) },
            decision(Verdict::Allow, 0, 0),
            decision(Verdict::Allow, 3, 0),
        ];
        for (rank, strict) in order.iter().enumerate() {
            for (other_rank, other) in order.iter().enumerate() {
                assert_eq!(strict.is_stricter_than(other), rank < other_rank, "{rank} against {other_rank}");
            }
        }
    }
}
