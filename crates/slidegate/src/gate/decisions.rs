//! The decisions of all matching policies on a call, and its verdict.

use std::fmt;
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;

use crate::block::Block;
use crate::charge::{Charge, PerCharge, Plan};
#[cfg(feature = "redis")]
use crate::decision::DecisionSource;
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::gate::blocks::blocked;
use crate::key::Key;
use crate::policy::{Policy, PolicySet};
use crate::quota::Quota;
use crate::request::Request;
use crate::store::StoreDecisions;
#[cfg(feature = "redis")]
use crate::store::redis::StoreFailure;
use crate::time::Timestamp;
use crate::usage::{KeyInspection, KeyUse};
use crate::verb::{Role, Verb};

/// The decisions of all matching policies on a request, or on several, and the verdict.
pub struct Decisions<'r> {
    /// Kept in force until the answer is written, whatever is configured meanwhile.
    pub(super) policies: Guard<Arc<PolicySet>>,
    requests: &'r [Request<'r>],
    /// What was done with all of them; each of them says it where this does not.
    verb: Option<Verb>,
    pub(super) answers: PlacedAnswers,
    /// Why a fallback made some of them, if one did.
    #[cfg(feature = "redis")]
    pub(super) failure: Option<Arc<StoreFailure>>,
}

/// Decisions, each with what it is on.
pub(super) type PlacedAnswers = PerCharge<Answer>;

/// A decision, the request that it is on, and the place of its policy in the set.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    // In few bytes, because lists of them are copied.
    request: u32,
    policy: u32,
    role: Role,
    decision: Decision,
}

impl Answer {
    #[inline]
    fn of(charge: &Charge<'_>, decision: Decision) -> Self {
        Self { request: charge.request, policy: charge.policy, role: charge.part.role, decision }
    }
}

impl Plan<'_> {
    /// What was found on the charges' keys.
    pub(crate) fn uses(&self, found: Vec<KeyInspection>) -> Vec<KeyUse> {
        let charges = self.charges.iter().zip(found);
        charges.map(|(charge, found)| found.of(charge.policy_name(), &charge.key)).collect()
    }

    /// Shows the blocked keys among those that were found.
    pub(crate) fn lay_blocks_over(&self, found: &mut [KeyInspection], now: Timestamp) {
        for (charge, found) in self.charges.iter().zip(found) {
            if let Some(rest_us) = charge.block.and_then(|block| block.rest_us(now)) {
                found.decision = blocked(found.decision, rest_us, charge.part.cost > 0);
            }
        }
    }

    /// The decisions on the charges as answers to the requests, in the requests' order and that of
    /// the policies.
    pub(super) fn answers(&self, decided: &StoreDecisions, answers: &mut PlacedAnswers) {
        answers.reserve_exact(self.charges.len());
        for (charge, decision) in self.charges.iter().zip(&decided.decisions) {
            answers.push(Answer::of(charge, *decision));
        }
        if !self.met.is_empty() {
            for (request, position) in &self.met {
                answers.push(Answer { request: *request, ..answers[*position].clone() });
            }
            answers.sort_by_key(|answer| (answer.request, answer.policy));
        }
        answers.retain(|answer| answer.role != Role::Refusals);
    }
}

/// One policy's decision; derefs to [`Decision`].
#[derive(Debug, Clone, Copy)]
pub struct PolicyDecision<'d> {
    policies: &'d PolicySet,
    requests: &'d [Request<'d>],
    verb: Option<Verb>,
    answer: &'d Answer,
    #[cfg(feature = "redis")]
    failure: Option<&'d StoreFailure>,
}

impl<'r> Decisions<'r> {
    /// No answers yet.
    #[inline]
    pub(super) fn new(
        policies: Guard<Arc<PolicySet>>,
        requests: &'r [Request<'r>],
        verb: Option<Verb>,
    ) -> Self {
        Self {
            policies,
            requests,
            verb,
            answers: SmallVec::new(),
            #[cfg(feature = "redis")]
            failure: None,
        }
    }
}

impl Decisions<'_> {
    /// The policies that were active at the decision.
    #[cfg(any(feature = "tower", feature = "wait"))]
    pub(crate) fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// Whether the request may pass, or all of several: no enforced policy denies, and there is no
    /// [error](Self::error).
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let denies = |one: PolicyDecision<'_>| {
            one.is_denied() && one.policy().is_enforced() && one.role() == Role::Deciding
        };
        if self.iter().any(denies) || self.denies_together() || self.cannot_decide() {
            Verdict::Deny
        } else {
            Verdict::Allow
        }
    }

    /// Whether the requests that deny only [together](Role::Together) do.
    fn denies_together(&self) -> bool {
        let mut together = self.iter().filter(|one| one.role() == Role::Together).peekable();
        together.peek().is_some() && together.all(|one| one.is_denied() && one.policy().is_enforced())
    }

    /// Keeps the decisions that `keep` selects: for answers that describe a part of a call only.
    /// The [verdict](Self::verdict) is that of the rest from then on.
    pub fn retain(&mut self, mut keep: impl FnMut(&PolicyDecision<'_>) -> bool) {
        let kept: PerCharge<bool> = self.iter().map(|one| keep(&one)).collect();
        let mut kept = kept.into_iter();
        self.answers.retain(|_| kept.next().unwrap_or(true));
    }

    /// Why nothing was decided: a request is [`under`](Request::under) a policy that the gate does
    /// not have, lacks an attribute that the policy counts by, or has a cost by a name that no policy
    /// counts, and not the one that a policy [counts](crate::Counts::Named). The verdict is to deny
    /// then, no policy has a decision, and nothing was charged.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if !self.answers.is_empty() {
            return None;
        }
        self.requests.iter().find_map(|request| self.policies.error_of(request))
    }

    /// Why the shared store did not decide every policy, if a fallback decided one.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn store_failure(&self) -> Option<&StoreFailure> {
        self.failure.as_deref()
    }

    /// Whether there is an [error](Self::error). A plan with an error has no charges, which is
    /// checked first because it is cheaper.
    fn cannot_decide(&self) -> bool {
        self.answers.is_empty() && self.requests.iter().any(|request| self.policies.cannot_decide(request))
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict() == Verdict::Allow
    }

    /// Whether the request may not pass.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.verdict() == Verdict::Deny
    }

    /// Every decision, in the order of the policies, shadow ones included.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.answers.iter().map(|answer| PolicyDecision {
            policies: &self.policies,
            requests: self.requests,
            verb: self.verb,
            answer,
            #[cfg(feature = "redis")]
            failure: self.failure.as_deref(),
        })
    }

    /// The decision that binds: the [strictest](Decision::is_stricter_than) of the enforced
    /// policies, the first of those that are even. A denial that denies nothing, see [`Role`], does
    /// not bind. `None` when no enforced policy applies.
    #[must_use]
    pub fn strictest(&self) -> Option<PolicyDecision<'_>> {
        let denies_together = self.denies_together();
        let binds = |one: &PolicyDecision<'_>| {
            let role = one.role();
            let may_deny = role == Role::Deciding || role == Role::Together && denies_together;
            one.policy().is_enforced() && (one.is_allowed() || may_deny)
        };
        self.iter()
            .filter(binds)
            .reduce(|strictest, one| if one.is_stricter_than(&strictest) { one } else { strictest })
    }
}

impl fmt::Debug for Decisions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'d> PolicyDecision<'d> {
    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> &'d Policy {
        self.policies.policy(self.position())
    }

    /// Where the policy stands in its set, from 0.
    #[must_use]
    pub fn position(&self) -> usize {
        self.answer.policy as usize
    }

    /// Which of the requests it is on, from 0.
    #[must_use]
    pub fn request(&self) -> usize {
        self.answer.request as usize
    }

    /// What was to be done with its request's cost.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb.unwrap_or(self.requests[self.request()].own_verb())
    }

    /// How it takes part in the call: the role of its request, or of another one that it met on its
    /// key.
    #[must_use]
    pub fn role(&self) -> Role {
        self.answer.role
    }

    /// What its request asked for under this policy, charged or not.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.requests[self.request()].cost_of(self.policy().counted())
    }

    /// The key that it decided on.
    #[must_use]
    pub fn key(&self) -> Key<'d> {
        self.policy().key(&self.requests[self.request()])
    }

    /// The quota that it decided by: the inline quota, the key's override, or the policy's own.
    #[must_use]
    pub fn quota(&self) -> &'d Quota {
        let inline = self.requests[self.request()].inline_quota();
        inline.unwrap_or_else(|| self.policies.quota_of(self.position(), &self.key()))
    }

    /// The block of its key, if the key [is blocked](Decision::is_blocked).
    #[must_use]
    pub fn block(&self) -> Option<&'d Block> {
        let block = || self.policies.block_of(self.position(), &self.key());
        self.answer.decision.is_blocked().then(block).flatten()
    }

    /// Why the shared store did not decide, if the policy's fallback did.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn store_failure(&self) -> Option<&'d StoreFailure> {
        let is_fallback =
            !matches!(self.answer.decision.source, DecisionSource::Store | DecisionSource::CachedDenial);
        self.failure.filter(|_| is_fallback)
    }

    /// The decision itself.
    #[must_use]
    pub fn decision(&self) -> &'d Decision {
        &self.answer.decision
    }
}

impl std::ops::Deref for PolicyDecision<'_> {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.answer.decision
    }
}
