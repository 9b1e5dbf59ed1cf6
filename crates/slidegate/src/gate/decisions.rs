//! The decisions of all matching policies on a call, and the verdict.

use std::fmt;
use std::sync::Arc;

use arc_swap::Guard;

use crate::amount::{Amount, MILLION};
use crate::block::Block;
use crate::charge::{Charge, Part, PerCharge, Plan};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::gate::blocks::blocked;
use crate::key::Key;
use crate::policy::{Policy, PolicySet};
use crate::quota::Quota;
use crate::request::Request;
use crate::store::failure::StoreFailure;
use crate::time::Timestamp;
use crate::usage::{KeyInspection, KeyUse};
use crate::verb::{Role, Verb};
use crate::waiting::Cause;

/// The decisions of all matching policies on one or more requests, and the verdict.
pub struct Decisions<'r> {
    /// Kept until the answer is written, even if other policies are configured meanwhile.
    pub(super) policies: Guard<Arc<PolicySet>>,
    requests: &'r [Request<'r>],
    /// The verb of all requests; `None` if each request has its own.
    verb: Option<Verb>,
    /// In the order of the requests, then the policies.
    pub(super) placed: PerCharge<PlacedDecision>,
    /// Why a fallback made some of the decisions.
    pub(super) failure: Option<Arc<StoreFailure>>,
}

/// A decision with its place in the call.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedDecision {
    decision: Decision,
    /// The index of its request.
    request: u32,
    /// The position of its policy in the set.
    policy: u32,
    role: Role,
    enforced: bool,
}

impl PlacedDecision {
    fn is_denied(&self) -> bool {
        self.enforced && self.decision.is_denied()
    }
}

impl Plan<'_> {
    pub(crate) fn uses(&self, found: Vec<KeyInspection>) -> Vec<KeyUse> {
        let charges = self.charges.iter().zip(found);
        let named = |(charge, mut found): (&Charge<'_>, KeyInspection)| {
            if charge.in_millionths {
                found.decision.in_millionths = true;
                found.quota = found.quota.divided(MILLION);
            }
            found.of(charge.policy_name(), &charge.key)
        };
        charges.map(named).collect()
    }

    /// Marks the blocked keys among those found.
    pub(crate) fn lay_blocks_over(&self, found: &mut [KeyInspection], now: Timestamp) {
        for (charge, found) in self.charges.iter().zip(found) {
            if let Some(rest_us) = charge.block.and_then(|block| block.rest_us(now)) {
                found.decision = blocked(found.decision, rest_us, charge.part.cost > 0);
            }
        }
    }

    /// Adds the decisions on the plan's charges, in the order of the requests, then the policies.
    pub(super) fn place(&self, decided: &[Decision], placed: &mut PerCharge<PlacedDecision>) {
        placed.reserve_exact(decided.len() + self.met.len());
        let mut add = |charge: &Charge<'_>, decision: &Decision, request: u32| {
            let Part { role, enforced, .. } = charge.part;
            if role != Role::Refusals {
                let decision = Decision { in_millionths: charge.in_millionths, ..*decision };
                placed.push(PlacedDecision { decision, request, policy: charge.policy, role, enforced });
            }
        };
        self.charges.iter().zip(decided).for_each(|(charge, one)| add(charge, one, charge.request));
        if !self.met.is_empty() {
            self.met.iter().for_each(|(request, at)| add(&self.charges[*at], &decided[*at], *request));
            placed.sort_by_key(|one| (one.request, one.policy));
        }
    }
}

/// One policy's decision, with its policy, request and key.
#[derive(Clone, Copy)]
pub struct PolicyDecision<'d> {
    all: &'d Decisions<'d>,
    placed: &'d PlacedDecision,
}

impl<'r> Decisions<'r> {
    #[inline]
    pub(super) fn new(
        policies: Guard<Arc<PolicySet>>,
        requests: &'r [Request<'r>],
        verb: Option<Verb>,
    ) -> Self {
        Self { policies, requests, verb, placed: PerCharge::new(), failure: None }
    }
}

impl Decisions<'_> {
    /// The policies that were active at the decision.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// Allowed if no enforced policy denies any of the requests and there is no
    /// [error](Self::error).
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let denies = |one: &PlacedDecision| one.role == Role::Deciding && one.is_denied();
        if self.placed.iter().any(denies) || self.denies_together() || self.cannot_decide() {
            Verdict::Deny
        } else {
            Verdict::Allow
        }
    }

    /// Whether requests with [`Role::Together`] deny.
    fn denies_together(&self) -> bool {
        let mut together = self.placed.iter().filter(|one| one.role == Role::Together).peekable();
        together.peek().is_some() && together.all(PlacedDecision::is_denied)
    }

    /// Keeps only the decisions that `keep` selects, for answers about a part of a call. From then
    /// on, the [verdict](Self::verdict) is that of the remaining ones.
    pub fn retain(&mut self, mut keep: impl FnMut(&PolicyDecision<'_>) -> bool) {
        let kept: PerCharge<bool> = self.iter().map(|one| keep(&one)).collect();
        let mut kept = kept.into_iter();
        self.placed.retain(|_| kept.next().unwrap_or(true));
    }

    /// Makes of a peek the denial of requests that waited behind others for the key of this decision.
    pub(super) fn deny_behind(&mut self, verb: Option<Verb>, at: Option<usize>, cause: &Cause) {
        self.verb = verb;
        if let Some(placed) = at.and_then(|at| self.placed.get_mut(at)) {
            placed.decision.deny_behind(cause.retry_after(), cause.is_full());
        }
    }

    /// Why nothing was decided: a request is [`under`](Request::under) a policy that the gate
    /// lacks, has no value for an attribute in the policy's scope, or has a named cost that no
    /// policy counts, without the one that a policy [counts](crate::Counts::Named). The verdict is
    /// then to deny, there are no decisions, and nothing was charged.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if !self.placed.is_empty() {
            return None;
        }
        self.requests.iter().find_map(|request| self.policies.error_of(request))
    }

    /// Why the shared store did not decide every policy; `None` if no fallback decided.
    #[must_use]
    pub fn store_failure(&self) -> Option<&StoreFailure> {
        self.failure.as_deref()
    }

    /// Whether there is an [error](Self::error). A plan with an error has no charges; that check is
    /// cheaper, so it comes first.
    fn cannot_decide(&self) -> bool {
        self.placed.is_empty() && self.requests.iter().any(|request| self.policies.cannot_decide(request))
    }

    /// Whether the request may pass.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.verdict() == Verdict::Allow
    }

    /// Whether the request may not pass.
    #[must_use]
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.verdict() == Verdict::Deny
    }

    /// Whether no policy applied: the request was allowed and counted nowhere. If you do not expect
    /// that, an attribute is probably misspelt; see [`PolicySet::require`].
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// Every decision, in policy order, including shadow policies.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.placed.iter().map(|placed| PolicyDecision { all: self, placed })
    }

    /// The policies that [do not apply](crate::OnMissing::Skip) to a request of the call because it
    /// lacks an attribute of their scope, each with its position in the set.
    pub fn skipped(&self) -> impl Iterator<Item = (usize, &Policy)> {
        let places = self.requests.iter().flat_map(|request| self.policies.skipped_places(request));
        places.map(|at| (at, self.policies.policy(at)))
    }

    /// The decision that binds: the [strictest](Decision::is_stricter_than) of the enforced
    /// policies, or the first of equals. A denial without effect, see [`Role`], does not bind.
    /// `None` if no enforced policy applies.
    #[must_use]
    #[inline]
    pub fn strictest(&self) -> Option<PolicyDecision<'_>> {
        let denies_together = self.denies_together();
        let binds = |one: &PolicyDecision<'_>| {
            let PlacedDecision { decision, role, enforced, .. } = *one.placed;
            let may_deny = role == Role::Deciding || role == Role::Together && denies_together;
            enforced && (decision.is_allowed() || may_deny)
        };
        self.iter().filter(binds).reduce(|strictest, one| {
            if one.decision().is_stricter_than(strictest.decision()) { one } else { strictest }
        })
    }
}

impl fmt::Debug for Decisions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for PolicyDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PolicyDecision");
        out.field("policy", &self.policy().name()).field("key", &format_args!("{}", self.key()));
        out.field("decision", self.decision()).finish()
    }
}

impl<'d> PolicyDecision<'d> {
    fn asking(&self) -> &'d Request<'d> {
        &self.all.requests[self.request()]
    }

    /// The policies that were active at the decision.
    pub(super) fn all_policies(&self) -> &'d PolicySet {
        &self.all.policies
    }

    /// The policy that decided.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &'d Policy {
        self.all.policies.policy(self.position())
    }

    /// The position of the policy in its set, from 0.
    #[must_use]
    #[inline]
    pub fn position(&self) -> usize {
        self.placed.policy as usize
    }

    /// The index of its request in the call, from 0.
    #[must_use]
    #[inline]
    pub fn request(&self) -> usize {
        self.placed.request as usize
    }

    /// The verb applied to its request's cost.
    #[must_use]
    #[inline]
    pub fn verb(&self) -> Verb {
        self.all.verb.unwrap_or(self.asking().verb())
    }

    /// The role in the call: that of its request, or of another one that shares its key.
    #[must_use]
    pub fn role(&self) -> Role {
        self.placed.role
    }

    /// The [shares](Policy::with_notify) of the limit, in percent, that this decision's charge or hold
    /// made the key cross, in ascending order. Usage was below them before. Empty for a refund, and
    /// for a denial that charged nothing.
    ///
    /// A key can cross a share several times in a window, because usage can drop below it in
    /// between.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let policy = Policy::new("per-user", Quota::per_minute(10))?.with_scope(["user"]).with_notify([80, 100]);
    /// let gate = Gate::new(PolicySet::new([policy])?);
    /// let request = Request::new().with("user", "alice").with_cost(9);
    /// let decisions = gate.check(&request);
    /// let crossed: Vec<u8> = decisions.iter().flat_map(|one| one.crossed().collect::<Vec<_>>()).collect();
    /// assert_eq!(crossed, [80]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn crossed(&self) -> impl Iterator<Item = u8> + use<'_> {
        let Decision { used, held, cost, limit, .. } = *self.decision();
        let now = used.saturating_add(held);
        let before = now.saturating_sub(cost);
        let charges = matches!(self.verb(), Verb::Check | Verb::Penalize) && cost > 0 && limit > 0;
        let reaches =
            move |used: u64, percent: u8| u128::from(used) * 100 >= u128::from(percent) * u128::from(limit);
        let percents = if charges { &*self.policy().options().notify } else { &[] };
        percents.iter().copied().filter(move |percent| reaches(now, *percent) && !reaches(before, *percent))
    }

    /// The cost that its request asked for under this policy, charged or not.
    #[must_use]
    #[inline]
    pub fn asked(&self) -> Amount {
        self.asking().counted_cost(&self.policy().options().counts)
    }

    /// The key.
    #[must_use]
    #[inline]
    pub fn key(&self) -> Key<'d> {
        self.policy().key(self.asking())
    }

    /// The quota in force: the inline quota, the key's override, the request's tier, or the
    /// policy's own.
    #[must_use]
    #[inline]
    pub fn quota(&self) -> &'d Quota {
        self.all.policies.quota_of(self.position(), &self.key(), self.asking())
    }

    /// The block of the key, if it [is blocked](Decision::is_blocked).
    #[must_use]
    #[inline]
    pub fn block(&self) -> Option<&'d Block> {
        let block = || self.all.policies.block_of(self.position(), &self.key());
        self.decision().is_blocked().then(block).flatten()
    }

    /// Why the shared store did not decide; `None` unless the policy's fallback did.
    #[must_use]
    pub fn store_failure(&self) -> Option<&'d StoreFailure> {
        self.all.failure.as_deref().filter(|_| self.decision().source.is_fallback())
    }

    /// The decision itself.
    #[must_use]
    #[inline]
    pub fn decision(&self) -> &'d Decision {
        &self.placed.decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreDecisions;

    /// A check fills these, and callers move some of them: a larger field costs every request.
    #[test]
    fn what_a_check_moves_is_small() {
        let sizes = [
            ("a decision: nine numbers and five flags", size_of::<Decision>(), 80),
            ("a decision with its place", size_of::<PlacedDecision>(), 96),
            ("decisions of a store on four charges", size_of::<StoreDecisions>(), 336),
            ("decisions of four policies, with their set and requests", size_of::<Decisions<'_>>(), 440),
            ("a charge: quotas, key, block and part", size_of::<Charge<'_>>(), 88),
            ("a plan of four charges", size_of::<Plan<'_>>(), 448),
            ("a request: six attributes in place", size_of::<Request<'_>>(), 336),
        ];
        for (what, size, most) in sizes {
            assert!(size <= most, "{what}: {size} bytes, at most {most}");
        }
    }
}
