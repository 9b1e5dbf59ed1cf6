//! The charges of a request under the policies of a set.
//!
//! Planning a request is a pure look-up. Decisions, shadow policies, replay and tests all use it.

use super::index::Places;
use super::rule::Rule;
use super::set::PolicySet;
use crate::charge::{Charge, Excess, HoldTerms, Part, Plan, Reserve, place};
use crate::cost::Counts;
use crate::error::Error;
use crate::quota::Algorithm;
use crate::request::Request;
use crate::verb::Verb;

impl PolicySet {
    /// The charges of these requests; none if one [cannot be decided](Self::error_of). `verb`, if
    /// given, replaces the requests' own verbs. Pure: touches no state.
    pub(crate) fn plan<'a>(&'a self, requests: &'a [Request<'a>], verb: Option<Verb>) -> Plan<'a> {
        let mut plan = Plan::new(false);
        self.plan_into(&mut plan, requests, verb);
        plan
    }

    /// Adds the charges of these requests to an empty plan. Moving one takes as long as a part of a decision.
    pub(crate) fn plan_into<'a>(
        &'a self,
        plan: &mut Plan<'a>,
        requests: &'a [Request<'a>],
        verb: Option<Verb>,
    ) {
        self.plan_under(plan, requests, verb, None, Rule::binds);
    }

    /// The plan of a reservation: checks whose costs are held unless they are known at once.
    pub(crate) fn plan_of_reservation<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        terms: &'a HoldTerms,
    ) -> Plan<'a> {
        let mut plan = Plan::new(true);
        self.plan_under(&mut plan, requests, Some(Verb::Check), Some(terms), Rule::binds);
        plan
    }

    fn plan_under<'a>(
        &'a self,
        plan: &mut Plan<'a>,
        requests: &'a [Request<'a>],
        verb: Option<Verb>,
        terms: Option<&'a HoldTerms>,
        binds: impl Fn(&Rule, &Request<'_>) -> bool,
    ) {
        // Most have one charge each; growing copies them all.
        plan.charges.reserve_exact(requests.len());
        for (number, request) in requests.iter().enumerate() {
            let before = plan.charges.len() + plan.met.len();
            let mut found = Places::new();
            let places = self.rules_for(request, &mut found).iter().copied();
            for at in places.filter(|at| binds(&self.rules[*at], request)) {
                plan.add(self.charge(at, number, request, verb, terms));
            }
            let is_under_none = plan.charges.len() + plan.met.len() == before;
            let has_own_quota = self.weighs && request.inline_quota().is_some();
            let is_doubtful =
                is_under_none || request.names_costs() || has_own_quota || !self.required.is_empty();
            if is_doubtful && self.cannot_decide(request) {
                plan.charges.clear();
                plan.met.clear();
                return;
            }
        }
    }

    /// The plan for inspecting one request's keys, including unlimited ones.
    ///
    /// # Errors
    /// If the request cannot be decided.
    pub(crate) fn plan_of_one<'a>(&'a self, request: &'a Request<'a>) -> Result<Plan<'a>, Error> {
        let requests = std::slice::from_ref(request);
        if let Some(error) = self.error_of(request) {
            return Err(error);
        }
        let mut plan = Plan::new(false);
        self.plan_under(&mut plan, requests, Some(Verb::Peek), None, Rule::applies_to);
        Ok(plan)
    }

    #[inline]
    fn charge<'a>(
        &'a self,
        at: usize,
        number: usize,
        request: &'a Request<'a>,
        verb: Option<Verb>,
        terms: Option<&'a HoldTerms>,
    ) -> Charge<'a> {
        let rule = self.rules[at].counted();
        let key = rule.policy.key(request);
        let own = rule.own(&key);
        let own_quota = own.quota.unwrap_or(&rule.policy.quota);
        let quota = rule.quota_met(request, &own);
        let mut part = Part {
            verb: verb.unwrap_or(request.verb()),
            role: request.role(),
            over_limit: request.is_denied_over_limit(),
            cost: request.cost_of(&rule.policy.options.counts),
            enforced: rule.policy.options.enforced,
            excess: rule.policy.options.excess,
        };
        let reserve = terms
            .filter(|_| {
                rule.policy.options.counts != Counts::Requests || quota.algorithm() == Algorithm::InFlight
            })
            .map(|terms| Reserve { terms, unsettled: rule.policy.unsettled() });
        if reserve.is_some() {
            // A check that may exceed the limit does so when it is settled.
            part.excess = Excess::Refuse;
            if let Some(estimate) = rule.policy.counted_estimate().filter(|_| !request.says_cost()) {
                part.cost = estimate.min(quota.capacity());
            }
        } else if quota.algorithm() == Algorithm::InFlight {
            part = ask_only(part);
        }
        let instead_of = (!std::ptr::eq(quota, own_quota) && quota != own_quota).then_some(own_quota);
        Charge {
            number: rule.number,
            is_waiting: terms.is_some_and(|terms| terms.is_waiting),
            on_store_error: rule.policy.options.on_store_error,
            quota,
            instead_of,
            keeps_quota: instead_of.is_some() || rule.has_plans(),
            key,
            block: own.block,
            part,
            reserve,
            policy: place(at),
            request: place(number),
            in_millionths: rule.policy.options.counts.is_weighted(),
        }
    }
}

/// The part of a call that cannot return a permit: a check only asks whether one is free; penalties
/// and refunds do nothing.
fn ask_only(part: Part) -> Part {
    let cost = if part.verb.is_question() { part.cost } else { 0 };
    Part { verb: Verb::Peek, cost, excess: Excess::Refuse, ..part }
}
