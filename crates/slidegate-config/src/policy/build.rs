//! Builds a policy from its keys, and checks across keys.
//!
//! Mistakes are reported and replaced by defaults, so that the rest is validated too.

use std::time::Duration;

use lined_config::Section;
use slidegate::network::Ipv6Prefix;
use slidegate::{
    Algorithm, Amount, CostUnit, Counts, Excess, Fold, LeaseLength, Policy, PolicySet, Quota,
    clock::format_window,
};

use super::values::{KeysShown, Mode, Notice, OnMissingValue, UnsettledValue};
use super::{Anchor, Candidate, LeaseValue, Limit, PolicySpec};
use crate::condition;
use crate::counts::{CountsValue, Unit};
use crate::escalate::Escalation;
use crate::names::{CANDIDATE, candidate_of, is_inline};
use crate::overrides::{self, Scope};
use crate::quota::QuotaSpec;
use crate::unlikely;
use crate::values::{Parsed, Span};

/// A policy, with its candidate and how its keys are shown.
#[derive(Debug, Clone)]
pub struct Added {
    /// The policy.
    pub policy: Policy,
    /// The candidate: a quota evaluated on the same requests.
    pub candidate: Option<Quota>,
    /// How its keys are shown.
    pub keys_shown: KeysShown,
    /// When the service blocks keys.
    pub escalation: Option<Escalation>,
}

/// The keys of a policy, and the section that reports mistakes.
struct Builder<'a> {
    spec: &'a PolicySpec,
    scope: Scope<'a>,
    section: &'a Section<'a>,
    /// The keys of the quota, with `limit` and `anchor` if they are numbers.
    quota_spec: QuotaSpec,
    /// `None` if it is invalid.
    quota: Option<Quota>,
}

impl PolicySpec {
    /// Builds the policy. `addresses` are the attributes that are addresses. Returns warnings about
    /// names and values that probably never match.
    pub(crate) fn build(&self, section: &Section<'_>, addresses: &[String]) -> (Added, Vec<String>) {
        let mut quota_spec = self.quota;
        match &self.limit {
            Some(Limit::Number(limit)) => quota_spec.limit = Some(*limit),
            Some(Limit::ByAttribute(tiers)) => quota_spec.limit = Some(tiers.default),
            None => {}
        }
        if let Some(Anchor::Day(day)) = self.anchor {
            quota_spec.anchor = Some(day);
        }
        if let (Some(LeaseValue::Length(lease)), Some(_)) = (self.lease, quota_spec.in_flight) {
            quota_spec.lease = Some(Span(lease.0));
        }
        let quota = quota_spec.build(section);
        let scope = Scope { attributes: &self.scope.0, addresses };
        let builder = Builder { spec: self, scope, section, quota_spec, quota };
        let policy = Policy::new(&*self.name, quota.unwrap_or(Quota::per_minute(1)));
        let policy = policy.expect("the name was checked");
        let policy = builder.with_conditions(policy);
        let policy = builder.with_limits(policy);
        let policy = builder.with_costs(policy);
        let policy = policy.with_lease(builder.lease()).with_wait(builder.wait());
        builder.check_costs(&policy);
        let policy = builder.with_overrides(policy);
        let candidate = builder.candidate();
        builder.check_name();
        let escalation = builder.escalation(&policy);
        let warnings = unlikely::of_policy(section, &builder.scope, &policy);
        let keys_shown = self.keys_shown.unwrap_or_default();
        (Added { policy, candidate, keys_shown, escalation }, warnings)
    }
}

impl Builder<'_> {
    fn is_in_flight(&self) -> bool {
        self.quota.is_some_and(|quota| quota.algorithm() == Algorithm::InFlight)
    }

    /// Whether the policy has no scope. An invalid scope counts as one.
    fn has_no_scope(&self) -> bool {
        self.scope.attributes.is_empty() && !self.section.has_rejected(&["scope"])
    }

    /// Adds the conditions, the scope and the mode.
    fn with_conditions(&self, policy: Policy) -> Policy {
        let Self { spec, scope, section, .. } = self;
        let mut policy = policy.with_scope(scope.attributes);
        for (attribute, folds) in &spec.fold {
            if scope.is_address(attribute) {
                let why = "is an address, which has one spelling already; leave it out";
                section.child("fold").invalid(attribute, why);
            }
            policy = policy.with_fold(attribute, folds.0.iter().fold(Fold::NONE, |all, one| all.and(one.0)));
        }
        if let Some(OnMissingValue(then)) = spec.on_missing {
            if self.has_no_scope() {
                let why = "the policy has no scope, so nothing is missing; leave it out, or write for example \
                           `scope: [user]`";
                section.invalid("on_missing", why);
            }
            policy = policy.with_on_missing(then);
        }
        for (attribute, condition) in condition::matches(&spec.when, scope, section) {
            policy = policy.with_condition(attribute, condition);
        }
        if let Some(bits) = spec.ipv6_prefix {
            if scope.attributes.iter().any(|attribute| scope.is_address(attribute)) {
                policy = policy.with_ipv6_prefix(Ipv6Prefix::new(bits).expect("the range was checked"));
            } else if !section.has_rejected(&["scope"]) {
                let why = "the scope has no address; leave it out, or write for example `scope: [ip]`";
                section.invalid("ipv6_prefix", why);
            }
        }
        if spec.mode == Mode::Shadow { policy.with_enforced(false) } else { policy }
    }

    /// Adds limits and anchors that depend on an attribute.
    fn with_limits(&self, mut policy: Policy) -> Policy {
        let Self { spec, scope, section, .. } = self;
        if let Some(Limit::ByAttribute(tiers)) = &spec.limit {
            if scope.is_address(&tiers.by) {
                let why = "is an address, and limits are for words; write for example `by: plan`";
                section.child("limit").invalid("by", why);
            }
            let tier = |(value, limit): (&String, &u64)| {
                let spec = QuotaSpec { limit: Some(*limit), ..self.quota_spec };
                Some((value.clone(), spec.quota().ok()?))
            };
            policy = policy.with_tiers(&tiers.by, tiers.values.iter().filter_map(tier));
        }
        if let Some(Anchor::Attribute(anchor)) = &spec.anchor {
            let has_anchor = |quota: Quota| quota.calendar_window()?.anchor();
            if self.quota.is_some_and(|quota| has_anchor(quota).is_none()) {
                let why = "only windows of months have an anchor; write for example `window: month`, or leave it out";
                section.invalid("anchor", why);
            }
            policy = policy.with_anchor_attribute(&anchor.attribute);
        }
        policy
    }

    /// Adds what a request costs, and what happens to excess and unsettled cost.
    fn with_costs(&self, policy: Policy) -> Policy {
        let Self { spec, section, .. } = self;
        let notices = || spec.notify.iter().flat_map(|list| &list.0).map(|notice| notice.0);
        let percents =
            notices().filter_map(|one| if let Notice::Share(percent) = one { Some(percent) } else { None });
        let is_calendar = self.quota.is_none_or(|quota| quota.calendar_window().is_some());
        let tells_closed = notices().any(|one| one == Notice::Closed);
        if tells_closed && !is_calendar {
            let why = "`closed` reports the total of a calendar window, and this policy has no such window; write for example \
                       `window: month`, or leave `closed` out";
            section.invalid("notify", why);
        }
        let counts = match &spec.counts {
            None if self.is_in_flight() => Counts::Requests,
            None => Counts::Cost,
            Some(CountsValue::What(counts)) => counts.0.clone(),
            Some(CountsValue::Weights(weights)) => weights.read(section),
        };
        let mut policy = policy
            .with_excess(spec.excess)
            .with_on_store_error(spec.on_store_error)
            .with_notify(percents)
            .with_notify_closed(tells_closed && self.quota.is_some() && is_calendar)
            .with_counts(counts);
        if let Some(UnsettledValue(unsettled)) = spec.unsettled {
            policy = policy.with_unsettled(unsettled);
        }
        if let Some(Parsed(Unit(name))) = &spec.unit {
            policy = policy.with_unit(name);
        }
        match spec.estimate {
            Some(Parsed(cost)) if spec.learn_estimate => policy.with_estimate(cost).with_learned_estimate(),
            Some(Parsed(cost)) => policy.with_estimate(cost),
            None => policy,
        }
    }

    /// How long instances lease a rate. Reports a lease that the policy cannot have.
    fn lease(&self) -> Option<LeaseLength> {
        let section = self.section;
        let lease = match self.spec.lease? {
            LeaseValue::Choice(choice) if self.spec.quota.in_flight.is_some() => {
                let message = format!(
                    "invalid lease `{choice}`: with in_flight it is how long a reservation lasts; must be 1s to 1h, for \
                     example `lease: 30s`"
                );
                section.report("lease", message);
                return None;
            }
            LeaseValue::Length(_) if self.spec.quota.in_flight.is_some() => return None,
            LeaseValue::Choice(choice) => choice.then_some(LeaseLength::OfWindow)?,
            LeaseValue::Length(Span(length)) if length > LeaseLength::RANGE.1 => {
                let message = format!(
                    "invalid lease `{}`: must be `true`, `false` or 10ms to 1s with a rate, and longer only with `in_flight`; \
                     write for example `lease: true`",
                    format_window(length)
                );
                section.report("lease", message);
                return None;
            }
            LeaseValue::Length(Span(length)) => LeaseLength::Fixed(length),
        };
        if self.spec.excess != Excess::Refuse {
            let why =
                "conflicts with excess, whose costs may be above what a lease holds; leave one of both out";
            section.invalid("lease", why);
            return None;
        }
        Some(lease)
    }

    /// How long requests wait. Reports a wait that the policy cannot have.
    fn wait(&self) -> Option<Duration> {
        let wait = self.spec.on_excess.as_ref()?.0.0?;
        if self.spec.excess == Excess::Count {
            let why = "conflicts with `excess: count`, which charges a request each time it asks; leave one of both out";
            self.section.invalid("on_excess", why);
            return None;
        }
        Some(wait)
    }

    fn check_costs(&self, policy: &Policy) {
        let Self { spec, section, .. } = self;
        let counts_requests = policy.options().counts == Counts::Requests;
        let is_weighted = matches!(policy.options().counts, Counts::Weighted(_));
        let conflicts = |key: &str| self.is_in_flight() && section.has(key) && !section.has_rejected(&[key]);
        let is_other = |unit: &Parsed<Unit>| unit.0.0 != CostUnit::Requests.name();
        let estimate = spec.estimate.map(|estimate| estimate.0);
        for (is_wrong, key, why) in [
            (
                conflicts("excess"),
                "excess",
                "conflicts with in_flight; what exceeds `in_flight` is denied, so leave it out",
            ),
            (
                conflicts("unsettled"),
                "unsettled",
                "conflicts with in_flight; what is in flight is released when its lease ends, so leave it out",
            ),
            (
                counts_requests && spec.unit.as_ref().is_some_and(is_other),
                "unit",
                "each request counts as 1, which is not a number of tokens; write `unit: requests`, or for example \
                 `counts: cost`",
            ),
            (
                estimate.is_some_and(|estimate| estimate != estimate.floor().into()) && !is_weighted,
                "estimate",
                "has decimals, which only weights count; write a whole number, or for example \
                 `counts: {output: 0.01}`",
            ),
            (
                estimate == Some(Amount::default()),
                "estimate",
                "`0` is nothing to hold; write for example `estimate: 2000`",
            ),
            (
                counts_requests && estimate.is_some(),
                "estimate",
                "each request counts as 1, which is known; leave it out, or write for example `counts: cost`",
            ),
            (
                spec.learn_estimate && estimate.is_none(),
                "learn_estimate",
                "`estimate` is missing, which is held until enough costs are known; write for example \
                 `estimate: 2000`",
            ),
        ] {
            if is_wrong {
                section.invalid(key, why);
            }
        }
    }

    fn with_overrides(&self, mut policy: Policy) -> Policy {
        // Without a valid quota, only the keys of overrides are validated.
        let base = self.quota.map(|_| &self.quota_spec);
        let all = self.spec.overrides.iter();
        for (key, quota) in all.flat_map(|all| overrides::overrides(all, base, &self.scope, self.section)) {
            policy = match quota {
                Some(quota) => policy.with_override(key, quota),
                None => policy.with_unlimited(key),
            };
        }
        if let Err(error) = PolicySet::new([policy.clone()]) {
            self.section.report("overrides", error);
        }
        policy
    }

    fn candidate(&self) -> Option<Quota> {
        let (spec, section) = match self.spec.candidate.as_ref()? {
            Candidate::Scalar(quota) => (QuotaSpec::text(quota.0), self.section.clone()),
            Candidate::Map(spec) => (*spec, self.section.child("candidate")),
        };
        self.quota?;
        let candidate = spec.over(&self.quota_spec).build(&section)?;
        if (candidate.algorithm() == Algorithm::InFlight) != self.is_in_flight() {
            let why = "a limit on what is in flight and a rate cannot be compared; write a policy of its own with \
                       `mode: shadow`";
            section.invalid("in_flight", why);
        }
        Some(candidate)
    }

    /// Reports a name that is reserved for RESP commands or for candidates.
    fn check_name(&self) {
        const MAX_NAME: usize = Policy::MAX_NAME - CANDIDATE.len();
        let name = &self.spec.name;
        let invalid = |why: String| self.section.report("name", format_args!("invalid name `{name}`: {why}"));
        if is_inline(name) {
            invalid("is the name of a RESP command, whose keys are kept under it; choose another".to_owned());
        }
        if candidate_of(name).is_some() {
            invalid(format!("must not end in `{CANDIDATE}`, which is for candidates; choose another"));
        }
        if self.spec.candidate.is_some() && name.len() > MAX_NAME {
            invalid(format!("must have at most {MAX_NAME} characters with a candidate, not {}", name.len()));
        }
    }

    fn escalation(&self, policy: &Policy) -> Option<Escalation> {
        let must_not = if !policy.options().enforced {
            Some(
                "a policy in shadow denies nobody, so it blocks nobody; leave it out, or write `mode: enforce`",
            )
        } else if self.has_no_scope() {
            Some(
                "all requests share one key, so one client would block everybody; write for example `scope: [ip]`",
            )
        } else {
            None
        };
        Some(self.spec.escalate.as_ref()?.build(self.section, must_not))
    }
}
