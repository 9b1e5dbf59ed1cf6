//! `RL.*`: decisions under one policy, whose key the client tells, or under all that apply to attributes.
//!
//! How many keys a policy takes is known from its scope, so a key may be any bytes: `COST` and `PEEK` among them.

use slidegate::{Decisions, Policy, PolicyDecision, PolicySet, Reason, Request, Verb, millis_ceil};

use super::command::{Asking, Form, Step, Wrong, whole};
use super::reply::{Reply, Shown};
use crate::app::App;
use crate::app::explanation;
use crate::limits::MAX_COST;
use crate::policy_names;

/// `RL.CHECK policy key [key ...] [COST n] [PEEK]`
pub(super) fn check<'b>(
    given: &[&'b [u8]],
    policies: &'b PolicySet,
    asking: &mut Asking<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, Wrong> {
    let Named { policy, keys, rest } = one_policy(given, policies)?;
    refuse_told(policy)?;
    let Options { cost, verb } = Options::read(rest, true)?;
    let request = under(policy, keys, cost, asking.app)?;
    asking.decide(verb, request, Form::One, reply);
    Ok(Step::Asked)
}

/// `RL.REFUND policy key [key ...] [COST n]`
pub(super) fn refund<'b>(
    given: &[&'b [u8]],
    policies: &'b PolicySet,
    asking: &mut Asking<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, Wrong> {
    let Named { policy, keys, rest } = one_policy(given, policies)?;
    refuse_told(policy)?;
    let cost = Options::read(rest, false)?.cost;
    let request = under(policy, keys, cost, asking.app)?;
    asking.decide(Verb::Refund, request, Form::One, reply);
    Ok(Step::Asked)
}

/// `RL.RESET policy key [key ...]`
pub(super) fn reset<'b>(given: &[&'b [u8]], policies: &'b PolicySet, app: &App) -> Result<Step<'b>, Wrong> {
    let Named { policy, keys, rest } = one_policy(given, policies)?;
    match rest.first() {
        None => under(policy, keys, 0, app).map(|request| Step::Reset(Box::new(request))),
        Some(more) => Err(Wrong::new(format!("`{}` is one argument too many; leave it out", Shown(more)))),
    }
}

/// `RL.REQUEST attribute value [attribute value ...] [COST n] [PEEK]`
pub(super) fn request<'b>(
    given: &[&'b [u8]],
    asking: &mut Asking<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, Wrong> {
    let (pairs, last) = given.as_chunks::<2>();
    let verb = match last {
        [] => Verb::Check,
        [peek] if peek.eq_ignore_ascii_case(b"PEEK") => Verb::Peek,
        [name, ..] => return Err(Wrong::new(format!("attribute `{}` has no value; give one", Shown(name)))),
    };
    let mut cost = None;
    for [name, value] in pairs {
        if name.eq_ignore_ascii_case(b"COST") && cost.replace(whole("COST", value, 0, MAX_COST)?).is_some() {
            return Err(Wrong::new("COST stands twice; give it once".to_owned()));
        }
        if std::str::from_utf8(name).is_err() {
            return Err(Wrong::new(format!(
                "the name of attribute `{}` is not UTF-8; give text",
                Shown(name)
            )));
        }
    }
    let attributes = pairs.iter().filter(|[name, _]| !name.eq_ignore_ascii_case(b"COST"));
    // The names were looked at above.
    let attributes = attributes.map(|[name, value]| (std::str::from_utf8(name).unwrap_or_default(), *value));
    let mut request = Request::new().cost(cost.unwrap_or(1));
    asking.app.attributes.add_to(&mut request, attributes).map_err(|bad| Wrong::new(bad.detail))?;
    asking.decide(verb, request, Form::All, reply);
    Ok(Step::Asked)
}

/// The policy that a command names.
struct Named<'a, 'b> {
    policy: &'b Policy,
    /// As many as its scope has attributes.
    keys: &'a [&'b [u8]],
    /// What follows them.
    rest: &'a [&'b [u8]],
}

/// The policy that is named first, and its keys.
fn one_policy<'a, 'b>(given: &'a [&'b [u8]], policies: &'b PolicySet) -> Result<Named<'a, 'b>, Wrong> {
    let policy =
        std::str::from_utf8(given[0]).ok().and_then(|name| policies.by_name(name)).ok_or_else(|| {
            Wrong::new(format!("policy `{}` is unknown; RL.POLICIES says which there are", Shown(given[0])))
        })?;
    let scope = policy.scope_attributes();
    let (keys, rest) = given[1..].split_at_checked(scope.len()).ok_or_else(|| {
        let usage: String = scope.iter().map(|attribute| format!(" <{attribute}>")).collect();
        let name = policy.name();
        Wrong::new(format!("policy `{name}` counts by {}; write `{name}{usage}`", scope.join(" and ")))
    })?;
    Ok(Named { policy, keys, rest })
}

/// Commands of other limiters bring their quota; without one there is nothing to decide by.
fn refuse_told(policy: &Policy) -> Result<(), Wrong> {
    if policy_names::is_inline(policy.name()) {
        let name = policy.name();
        return Err(Wrong::new(format!(
            "policy `{name}` has no quota of its own; send {name} with one instead"
        )));
    }
    Ok(())
}

/// The request with these values of the policy's scope, under this policy alone.
// A request is some 400 bytes, which a call would copy.
#[inline(always)]
fn under<'b>(policy: &'b Policy, keys: &[&'b [u8]], cost: u64, app: &App) -> Result<Request<'b>, Wrong> {
    let names = policy.scope_attributes().iter().map(String::as_str);
    let request = app
        .attributes
        .request(names.zip(keys.iter().copied()), cost)
        .map_err(|bad| Wrong::new(bad.detail))?;
    Ok(request.under(policy.name()))
}

/// What may stand behind the keys, in any order.
struct Options {
    cost: u64,
    verb: Verb,
}

impl Options {
    fn read(mut rest: &[&[u8]], may_peek: bool) -> Result<Self, Wrong> {
        let (mut cost, mut verb) = (None, Verb::Check);
        loop {
            rest = match rest {
                [] => return Ok(Self { cost: cost.unwrap_or(1), verb }),
                [word, number, more @ ..] if word.eq_ignore_ascii_case(b"COST") => {
                    if cost.replace(whole("COST", number, 0, MAX_COST)?).is_some() {
                        return Err(Wrong::new("COST stands twice; give it once".to_owned()));
                    }
                    more
                }
                [word] if word.eq_ignore_ascii_case(b"COST") => {
                    return Err(Wrong::new("COST has no number; write for example `COST 5`".to_owned()));
                }
                [word, more @ ..] if may_peek && word.eq_ignore_ascii_case(b"PEEK") => {
                    verb = Verb::Peek;
                    more
                }
                [other, ..] => {
                    let known = if may_peek { "`COST n` or `PEEK`" } else { "`COST n`" };
                    return Err(Wrong::new(format!(
                        "`{}` is not {known}, which may stand here",
                        Shown(other)
                    )));
                }
            };
        }
    }
}

/// Tells the decision of the one policy that was named.
pub(super) fn answer_one(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    match decisions.iter().next() {
        Some(one) if is_unavailable(&one) => unavailable(&one, reply),
        Some(one) => {
            reply.fields(7);
            numbers(decisions.is_allowed(), &one, reply);
        }
        None => gone(reply),
    }
}

/// Whether the request is denied for no other reason than that the store is unavailable.
fn is_unavailable(one: &PolicyDecision<'_>) -> bool {
    one.policy().is_enforced() && one.reason() == Some(Reason::StoreUnavailable)
}

/// An error, as no limit was reached: a client must not take it for a denial, nor for an answer of this policy.
fn unavailable(one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    let wait_s = one.retry_after().map_or(1, |wait| millis_ceil(wait).div_ceil(1000).max(1));
    let name = one.policy().name();
    let cause = one.store_failure().map_or_else(String::new, |failure| format!(": {failure}"));
    reply.error(format_args!(
        "UNAVAILABLE policy `{name}` denies while the store is unavailable; retry in {wait_s} s{cause}"
    ));
}

/// Policies may be configured anew between a command's reading and its decision.
pub(super) fn gone(reply: &mut Reply<'_>) {
    reply.error("ERR the policy has gone since the command came; send it again");
}

/// Tells the decision that binds, and those of all policies that applied.
pub(super) fn answer_all(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    let binding = decisions.strictest();
    if let Some(binding) = binding.filter(is_unavailable) {
        return unavailable(&binding, reply);
    }
    reply.fields(9);
    if let Some(binding) = &binding {
        numbers(decisions.is_allowed(), binding, reply);
    } else {
        reply.field("allowed");
        reply.flag(decisions.is_allowed());
        for name in ["limit", "remaining", "retry_after_ms", "reset_after_ms", "source", "reason"] {
            reply.field(name);
            reply.null();
        }
    }
    reply.field("policy");
    match &binding {
        Some(binding) => reply.text(binding.policy().name()),
        None => reply.null(),
    }
    reply.field("policies");
    reply.array(decisions.iter().len());
    for one in decisions.iter() {
        reply.fields(9);
        numbers(one.is_allowed(), &one, reply);
        reply.field("policy");
        reply.text(one.policy().name());
        reply.field("enforced");
        reply.flag(one.policy().is_enforced());
    }
}

/// The seven fields of a decision.
fn numbers(allowed: bool, one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    reply.field("allowed");
    reply.flag(allowed);
    reply.field("limit");
    reply.int(one.limit);
    reply.field("remaining");
    reply.int(one.remaining);
    reply.field("retry_after_ms");
    match one.retry_after() {
        Some(wait) => reply.int(millis_ceil(wait)),
        None => reply.never(),
    }
    reply.field("reset_after_ms");
    reply.int(millis_ceil(one.reset_after()));
    reply.field("source");
    reply.simple(one.source.name());
    reply.field("reason");
    match (one.reason(), one.block()) {
        (None, _) => reply.null(),
        (Some(Reason::Blocked), Some(block)) => reply.text(&explanation::blocked(block)),
        (Some(reason), _) => reply.text(reason.name()),
    }
}

/// `RL.POLICIES`
pub(super) fn policies(policies: &PolicySet, reply: &mut Reply<'_>) {
    reply.array(policy_names::listed(policies).count());
    for policy in policy_names::listed(policies) {
        let quota = policy.quota();
        reply.fields(6);
        reply.field("policy");
        reply.text(policy.name());
        reply.field("limit");
        reply.int(quota.limit());
        reply.field("window_ms");
        reply.int(millis_ceil(quota.window()));
        reply.field("algorithm");
        reply.text(quota.algorithm().name());
        reply.field("scope");
        reply.array(policy.scope_attributes().len());
        policy.scope_attributes().iter().for_each(|attribute| reply.text(attribute));
        reply.field("enforced");
        reply.flag(policy.is_enforced());
    }
}
