//! Writes decisions as replies: of one policy, or of all that apply.

use slidegate::{Decision, Decisions, Error, PolicyDecision, PolicySet, Reason};
use slidegate_config::names;
use slidegate_http::headers::millis_ceil;

use super::reply::Reply;
use crate::engine::explanation;

/// Writes the decision of one policy.
pub(super) fn write_one_policy(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    match decisions.iter().next() {
        Some(one) if is_unavailable(&one) => unavailable(&one, reply),
        Some(one) => {
            reply.fields(7);
            decision_fields(decisions.is_allowed(), &one, reply);
        }
        None => undecided(decisions, reply),
    }
}

/// Whether the request is denied only because the store is unavailable.
pub(super) fn is_unavailable(one: &PolicyDecision<'_>) -> bool {
    one.policy().options().enforced && one.decision().reason() == Some(Reason::StoreUnavailable)
}

/// Writes an error instead of a decision: no limit was reached, so the client must not take it for
/// a denial.
pub(super) fn unavailable(one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    let wait_s = one.decision().retry_after().map_or(1, |wait| millis_ceil(wait).div_ceil(1000).max(1));
    let name = one.policy().name();
    let cause = one.store_failure().map_or_else(String::new, |failure| format!(": {failure}"));
    reply.error(format_args!(
        "UNAVAILABLE policy `{name}` denies while the store is unavailable; retry in {wait_s} s{cause}"
    ));
}

/// Writes why no policy decided: no policy counts this cost, or a reload removed the policy after
/// the command was parsed.
pub(super) fn undecided(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    match decisions.error().filter(Error::is_unknown_cost) {
        Some(error) => reply.error(format_args!("ERR {error}")),
        None => {
            reply.error("ERR the policy was removed before the command was decided; send the command again");
        }
    }
}

/// Writes the strictest decision, then the decision of each policy that applies.
pub(super) fn write_all_policies(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    if decisions.error().is_some() {
        return undecided(decisions, reply);
    }
    let strictest = decisions.strictest();
    if let Some(strictest) = strictest.filter(is_unavailable) {
        return unavailable(&strictest, reply);
    }
    reply.fields(9);
    if let Some(strictest) = &strictest {
        decision_fields(decisions.is_allowed(), strictest, reply);
    } else {
        reply.field("allowed").boolean(decisions.is_allowed());
        for name in ["limit", "remaining", "retry_after_ms", "reset_after_ms", "source", "reason"] {
            reply.field(name).null();
        }
    }
    reply.field("policy");
    match &strictest {
        Some(strictest) => reply.text(strictest.policy().name()),
        None => reply.null(),
    }
    reply.field("policies").array(decisions.iter().len());
    for one in decisions.iter() {
        reply.fields(9);
        decision_fields(one.decision().is_allowed(), &one, reply);
        reply.field("policy").text(one.policy().name());
        reply.field("enforced").boolean(one.policy().options().enforced);
    }
}

/// Four fields: the limit, what remains, and when more is available.
pub(super) fn capacity_fields(one: &Decision, reply: &mut Reply<'_>) {
    reply.field("limit").int(one.limit());
    reply.field("remaining").int(one.remaining());
    reply.field("retry_after_ms");
    match one.retry_after() {
        Some(wait) => reply.int(millis_ceil(wait)),
        None => reply.never(),
    }
    reply.field("reset_after_ms").int(millis_ceil(one.reset_after()));
}

/// The seven fields of a decision.
pub(super) fn decision_fields(allowed: bool, one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    reply.field("allowed").boolean(allowed);
    capacity_fields(one.decision(), reply);
    reply.field("source").simple(one.decision().source().name());
    reply.field("reason");
    match (one.decision().reason(), one.block()) {
        (None, _) => reply.null(),
        (Some(Reason::Blocked), Some(block)) => reply.text(&explanation::blocked(block)),
        (Some(reason), _) => reply.text(reason.name()),
    }
}

/// `RL.POLICIES`
pub(super) fn policies(policies: &PolicySet, reply: &mut Reply<'_>) {
    reply.array(names::listed(policies).count());
    for policy in names::listed(policies) {
        let quota = policy.quota();
        reply.fields(6);
        reply.field("policy").text(policy.name());
        reply.field("limit").int(quota.limit());
        reply.field("window_ms").int(millis_ceil(quota.window()));
        reply.field("algorithm").text(quota.algorithm().name());
        reply.field("scope").array(policy.scope().len());
        policy.scope().iter().for_each(|attribute| reply.text(attribute));
        reply.field("enforced").boolean(policy.options().enforced);
    }
}
