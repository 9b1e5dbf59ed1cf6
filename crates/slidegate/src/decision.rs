//! Decisions: the full answer of a quota to a request.
//!
//! A decision is plain numbers. [`Decisions`](crate::Decisions) holds one per policy of a request,
//! with the policy and the key.

use std::time::Duration;

use crate::amount::{Amount, MILLION};
use crate::time::Timestamp;

/// Whether a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The request is allowed and its cost was charged.
    Allow,
    /// The request is denied and nothing was charged, except with
    /// [`Excess::Count`](crate::Excess::Count).
    Deny,
}

/// The decision of one quota about one request, with everything that can be reported to a client.
///
/// ```
/// use slidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(100));
/// let decision = limiter.check("alice");
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit(), decision.used(), decision.remaining()), (100, 1, 99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    #[doc(hidden)]
    pub verdict: Verdict,
    #[doc(hidden)]
    pub limit: u64,
    #[doc(hidden)]
    pub used: u64,
    #[doc(hidden)]
    pub held: u64,
    #[doc(hidden)]
    pub remaining: u64,
    #[doc(hidden)]
    pub cost: u64,
    #[doc(hidden)]
    pub at: Timestamp,
    #[doc(hidden)]
    pub source: DecisionSource,
    #[doc(hidden)]
    pub is_blocked: bool,
    /// The bound on holds or waiters that denies it.
    #[doc(hidden)]
    pub hold_bound: Option<HoldBound>,
    #[doc(hidden)]
    pub waits: Waits,
    /// Whether the counts above are millionths of a unit. Set where a decision leaves the gate.
    #[doc(hidden)]
    pub in_millionths: bool,
}

/// The numbers of a [`Decision`], exact to a millionth of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Amounts {
    /// See [`Decision::limit`].
    pub limit: Amount,
    /// See [`Decision::used`].
    pub used: Amount,
    /// See [`Decision::held`].
    pub held: Amount,
    /// See [`Decision::remaining`].
    pub remaining: Amount,
    /// See [`Decision::cost`].
    pub cost: Amount,
}

/// Why a decision denies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The cost exceeds what remains of the limit.
    OverLimit,
    /// The key is blocked; [`PolicyDecision::block`](crate::PolicyDecision::block) has the end of
    /// the block.
    Blocked,
    /// The cost fits, but the key has its maximum number of open holds.
    TooManyHolds,
    /// The cost fits, but the store has no room for another hold of the policy: neither the key nor
    /// its client is the cause.
    StoreFull,
    /// The request was to wait for its turn, and as many wait as may. See [`MaxWaiting`](crate::acquire::MaxWaiting).
    QueueFull,
    /// The shared store could not decide, and the policy [denies](crate::OnStoreError::Deny) in
    /// that case. The key's usage is unknown.
    StoreUnavailable,
}

impl Reason {
    /// The name in responses, logs and metrics: `over_limit`, `blocked`, `too_many_holds`,
    /// `store_full`, `queue_full`, `store_unavailable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OverLimit => "over_limit",
            Self::Blocked => "blocked",
            Self::TooManyHolds => "too_many_holds",
            Self::StoreFull => "store_full",
            Self::QueueFull => "queue_full",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

/// Where a decision comes from. Every variant except [`DecisionSource::Store`] did without the
/// shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store that holds the key.
    #[default]
    Store,
    /// A denial by the store, cached in this process and still valid.
    CachedDenial,
    /// A slice of the limit that this process leases from the store, where it counts as used. What remains is what the
    /// store had left at the grant, less what this process used since.
    Leased,
    /// The store did not reply in time; this process decided in memory, with its share of the
    /// limit.
    Local,
    /// The store did not reply in time, and the policy allows in that case.
    Allow,
    /// The store did not reply in time, and the policy denies in that case.
    Deny,
}

impl DecisionSource {
    /// The name in responses, logs and metrics: `store`, `cached`, `leased`, `local`, `allow`, `deny`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::CachedDenial => "cached",
            Self::Leased => "leased",
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    /// Whether the policy's [fallback](crate::OnStoreError) decided, because the store did not.
    #[must_use]
    pub fn is_fallback(self) -> bool {
        matches!(self, Self::Local | Self::Allow | Self::Deny)
    }
}

/// A bound on open holds, or on those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldBound {
    Key,
    Store,
    Queue,
}

/// Waits until cost is freed, in microseconds.
///
/// Integers, because every decision computes them and few are read: [`Duration`]s would make a
/// decision a tenth slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Until the requested cost fits; 0 if it did, [`NEVER`](Self::NEVER) if it never will.
    pub retry_us: u64,
    /// Until nothing is used.
    pub reset_us: u64,
    /// Until some used cost is freed; meaningless if nothing is used.
    pub frees_us: u64,
}

impl Waits {
    /// Longer than any finite wait.
    pub const NEVER: u64 = u64::MAX;
}

impl Decision {
    /// The decision of a store that allows a cost of 0 on an unused key. Other decisions are built
    /// from it.
    #[inline(always)] // as `algorithm::decision`
    pub fn unused(limit: u64, at: Timestamp) -> Self {
        Self {
            verdict: Verdict::Allow,
            limit,
            used: 0,
            held: 0,
            remaining: limit,
            cost: 0,
            at,
            source: DecisionSource::Store,
            is_blocked: false,
            hold_bound: None,
            waits: Waits { retry_us: 0, reset_us: 0, frees_us: 0 },
            in_millionths: false,
        }
    }

    /// Adds the usage of another key under the same quota. Keeps the verdict.
    pub fn add_usage(&mut self, other: &Self) {
        if !self.is_blocked {
            let frees =
                [&*self, other].into_iter().filter(|one| one.used > 0).map(|one| one.waits.frees_us).min();
            self.waits.frees_us = frees.unwrap_or(0);
        }
        self.waits.reset_us = self.waits.reset_us.max(other.waits.reset_us);
        self.used = self.used.saturating_add(other.used);
        self.held = self.held.saturating_add(other.held);
        let left = self.limit.saturating_sub(self.used).saturating_sub(self.held);
        self.remaining = if self.is_blocked { 0 } else { left };
    }

    /// Denies it if usage exceeds the limit, or has reached it where the first unit of a cost must
    /// fit. The wait lasts until nothing is used, because added usage does not tell how much of it
    /// frees earlier.
    pub fn deny_over_limit(&mut self, is_full_over: bool) {
        let is_over = self.used > self.limit || is_full_over && self.used >= self.limit;
        if is_over && self.is_allowed() {
            self.verdict = Verdict::Deny;
            self.waits.retry_us = self.waits.reset_us;
        }
    }

    /// Makes of a peek the denial of a request that got no turn while it waited behind others.
    pub(crate) fn deny_behind(&mut self, retry_after: Option<Duration>, is_queue_full: bool) {
        let own = if self.is_denied() { self.waits.retry_us } else { 0 };
        let behind = retry_after.or(self.frees_after()).unwrap_or_default();
        self.verdict = Verdict::Deny;
        self.waits.retry_us = own.max(u64::try_from(behind.as_micros()).unwrap_or(Waits::NEVER - 1));
        if is_queue_full {
            self.hold_bound = Some(HoldBound::Queue);
        }
    }

    /// Allow or deny.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The exact numbers. The methods below round under policies that
    /// [weight](crate::Counts::Weighted) costs: used, held and charged cost up, and remaining cost
    /// down.
    #[must_use]
    #[inline]
    pub fn amounts(&self) -> Amounts {
        let amount = |count| Amount::counted(count, self.in_millionths);
        Amounts {
            limit: amount(self.limit),
            used: amount(self.used),
            held: amount(self.held),
            remaining: amount(self.remaining),
            cost: amount(self.cost),
        }
    }

    /// Whole units of a count, rounded down.
    #[inline]
    fn floor(&self, count: u64) -> u64 {
        if self.in_millionths { count / MILLION } else { count }
    }

    /// Whole units of a count, rounded up.
    #[inline]
    fn ceil(&self, count: u64) -> u64 {
        if self.in_millionths { count.div_ceil(MILLION) } else { count }
    }

    /// Maximum cost that a fresh key admits: the quota's limit, or the burst of a token bucket.
    #[must_use]
    #[inline]
    pub fn limit(&self) -> u64 {
        self.floor(self.limit)
    }

    /// Cost that counts now, including this request's if it was charged. Above `limit` after a
    /// penalty or a lowered limit.
    #[must_use]
    #[inline]
    pub fn used(&self) -> u64 {
        self.ceil(self.used)
    }

    /// Cost that open holds set aside, including this request's if it reserved. 0 for a key without
    /// holds. Under an in-flight quota this is what is in flight.
    #[must_use]
    #[inline]
    pub fn held(&self) -> u64 {
        self.ceil(self.held)
    }

    /// Cost still available after this request, neither used nor held; unchanged by a denial. At most `limit`; 0 while the
    /// key is blocked.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.floor(self.remaining)
    }

    /// Cost that this call charged (check, penalize) or returned (refund). 0 for a peek, and for a
    /// denial unless the policy counts denied requests ([`Excess::Count`](crate::Excess::Count)).
    #[must_use]
    #[inline]
    pub fn cost(&self) -> u64 {
        self.ceil(self.cost)
    }

    /// Time of the decision, from which the waits count. In process it is the date by the machine's
    /// wall clock as it was set then, see [`Clock::wall_time`](crate::clock::Clock::wall_time); with a
    /// shared store it is the server's time.
    #[must_use]
    #[inline]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Where the decision comes from.
    #[must_use]
    #[inline]
    pub fn source(&self) -> DecisionSource {
        self.source
    }

    /// Wait until the same cost fits: zero if it was allowed, `None` if it never fits.
    ///
    /// Exact to the microsecond if nothing else is charged meanwhile: at this time the request is
    /// allowed, one microsecond earlier it is denied. For a blocked key this is the rest of the
    /// block, or `None` if the block does not end. If the store is unavailable the wait is unknown;
    /// this is then 1 to 3 seconds at random, so that clients that were denied together do not
    /// retry together.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        let wait_us = self.waits.retry_us;
        (wait_us != Waits::NEVER).then(|| Duration::from_micros(wait_us))
    }

    /// Wait until the key is unused, if nothing more is charged. Zero if nothing is used.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.waits.reset_us)
    }

    /// Wait until more cost is available than now; `None` if nothing is used. For a blocked key,
    /// wait until the block has ended and cost is available; `None` if the block does not end.
    #[must_use]
    #[inline]
    pub fn frees_after(&self) -> Option<Duration> {
        let frees_us = self.waits.frees_us;
        let ends = if self.is_blocked { frees_us != Waits::NEVER } else { self.used > 0 };
        ends.then(|| Duration::from_micros(frees_us))
    }

    /// Why the request is denied; `None` if it is allowed.
    #[must_use]
    #[inline]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self { verdict: Verdict::Allow, .. } => None,
            Self { is_blocked: true, .. } => Some(Reason::Blocked),
            Self { source: DecisionSource::Deny, .. } => Some(Reason::StoreUnavailable),
            Self { hold_bound: Some(HoldBound::Key), .. } => Some(Reason::TooManyHolds),
            Self { hold_bound: Some(HoldBound::Store), .. } => Some(Reason::StoreFull),
            Self { hold_bound: Some(HoldBound::Queue), .. } => Some(Reason::QueueFull),
            _ => Some(Reason::OverLimit),
        }
    }

    /// Whether the key is blocked. A request of cost 0 is still allowed.
    #[must_use]
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether the key's usage is known. It is not if a fallback decided without counting.
    #[must_use]
    #[inline]
    pub fn is_counted(&self) -> bool {
        !matches!(self.source, DecisionSource::Allow | DecisionSource::Deny)
    }

    /// Whether the request is allowed.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// Whether the request is denied.
    #[must_use]
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.verdict == Verdict::Deny
    }

    /// Time at which the key is unused, if nothing more is charged: a date by the same clock as
    /// [`at`](Self::at).
    #[must_use]
    #[inline]
    pub fn reset_at(&self) -> Timestamp {
        self.at + self.reset_after()
    }

    /// Whether this decision takes precedence over `other`: a denial over an allowance, among
    /// denials the longer wait (never is longest), among allowances the smaller remaining cost.
    ///
    /// Any denial by the store takes precedence over one made because the store is
    /// [unavailable](Reason::StoreUnavailable).
    ///
    /// If both are equal, neither is stricter.
    #[must_use]
    #[inline]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        match (self.verdict, other.verdict) {
            (Verdict::Deny, Verdict::Allow) => true,
            (Verdict::Allow, Verdict::Deny) => false,
            (Verdict::Deny, Verdict::Deny) => {
                let rank = |one: &Self| (one.reason() != Some(Reason::StoreUnavailable), one.waits.retry_us);
                rank(self) > rank(other)
            }
            (Verdict::Allow, Verdict::Allow) => self.amounts().remaining < other.amounts().remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(verdict: Verdict, remaining: u64, retry_us: u64) -> Decision {
        let waits = Waits { retry_us, reset_us: 0, frees_us: 0 };
        let used = 10 - remaining;
        Decision { verdict, used, remaining, waits, ..Decision::unused(10, Timestamp::EPOCH) }
    }

    /// The client must get the wait that ends its denial, not the first one found.
    #[test]
    fn a_denial_binds_first_then_the_longest_wait_then_the_least_remaining() {
        let order = [
            decision(Verdict::Deny, 5, Waits::NEVER),
            decision(Verdict::Deny, 9, 60),
            decision(Verdict::Deny, 0, 1),
            Decision { source: DecisionSource::Deny, ..decision(Verdict::Deny, 0, 3_000_000) },
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
