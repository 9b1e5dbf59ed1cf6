//! Checks that need no plan: under the one policy of a gate in memory, which asks nothing of a
//! request but an attribute.
//!
//! A check by a request takes several times as long, most of which is building and moving the
//! request, the plan and the decisions.

use std::sync::Arc;

use super::active::UsedPolicies;
use crate::decision::Decision;
use crate::gate::{Decisions, Gate};
use crate::key::KeyId;
use crate::policy::{PlainPolicy, Policy, PolicySet};
use crate::request::{Request, Value};
use crate::store::memory::MemoryStore;
use crate::verb::Verb;

/// The store of a gate in memory, and the policies that are active now.
#[derive(Debug)]
pub(crate) struct PlainGate<'g> {
    store: &'g MemoryStore,
    policies: UsedPolicies,
}

/// A key under a policy that needs no plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainKey {
    /// The place of the policy in the set.
    place: usize,
    /// What its usage is stored under.
    number: u32,
    id: KeyId,
}

/// What a check without a plan decided. Borrowed, because moving a decision takes as long as a tenth
/// of the check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainDecision<'d> {
    policies: &'d UsedPolicies,
    /// The place of the policy in the set.
    place: usize,
    decision: &'d Decision,
}

impl Gate<MemoryStore> {
    /// What checks without a plan need.
    #[inline]
    pub(crate) fn plain(&self) -> PlainGate<'_> {
        PlainGate { store: &self.store, policies: self.policies.used() }
    }
}

impl PlainGate<'_> {
    /// The policy of a request that names none; `None` if a plan is needed.
    #[inline]
    pub(crate) fn policy(&self) -> Option<PlainPolicy<'_>> {
        self.policies.plain()
    }

    /// The key of requests with this value of the policy's attribute, if it has one.
    #[inline(always)] // as `HashSeed::id_of_value`
    pub(crate) fn key(&self, plain: &PlainPolicy<'_>, value: Option<Value<'_>>) -> PlainKey {
        let seed = self.store.secret();
        let id = match value {
            None => seed.id_of_everyone(),
            Some(value) => seed.id_of_value(value, plain.policy.grouping_prefix()),
        };
        PlainKey { place: plain.place, number: plain.number, id }
    }

    /// Whether a cost is charged.
    #[inline]
    pub(crate) fn admits(&self, key: PlainKey, cost: u64) -> bool {
        self.store.admits_key(key.number, key.id, self.policies.policy(key.place).quota(), cost)
    }

    /// The decision on a cost, which is charged if it is allowed.
    #[inline]
    pub(crate) fn decide(&self, key: PlainKey, cost: u64) -> Decision {
        self.store.check_key(key.number, key.id, self.policies.policy(key.place).quota(), cost)
    }

    /// The same with its policy.
    #[inline]
    pub(crate) fn decided<'d>(&'d self, key: PlainKey, decision: &'d Decision) -> PlainDecision<'d> {
        PlainDecision { policies: &self.policies, place: key.place, decision }
    }
}

impl<'d> PlainDecision<'d> {
    #[inline]
    pub(crate) fn policy(self) -> &'d Policy {
        self.policies.policy(self.place)
    }

    #[inline]
    pub(crate) fn decision(self) -> &'d Decision {
        self.decision
    }

    /// The policies, the place of the one that decided, and the decision.
    pub(crate) fn to_parts(self) -> (Arc<PolicySet>, usize, Decision) {
        (Arc::clone(self.policies.as_arc()), self.place, *self.decision)
    }

    /// The same as the decisions on a request.
    pub(crate) fn on<'r>(self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        let (policies, place, decision) = self.to_parts();
        Decisions::of_one(policies.into(), requests, Verb::Check, place, decision)
    }
}
