//! `RL.*` commands: check one policy by key, or all policies that apply to attributes.
//!
//! A policy takes as many keys as its scope has attributes, so a key may be any bytes, including
//! `COST` and `PEEK`.

use slidegate::{Decisions, Policy, PolicyDecision, PolicySet, Reason, Request, Verb, millis_ceil};

use super::command::{Batch, CommandError, ReplyFormat, Step, parse_integer};
use super::reply::{Escaped, Reply};
use crate::app::App;
use crate::app::explanation;
use crate::limits::MAX_COST;
use crate::policy_names;

/// `RL.CHECK policy key [key ...] [COST n] [PEEK]`
pub(super) fn check<'b>(
    args: &[&'b [u8]],
    policies: &'b PolicySet,
    batch: &mut Batch<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = policy_arguments(args, policies)?;
    reject_inline_policy(policy)?;
    let Options { cost, verb } = Options::parse(rest, true)?;
    let request = policy_request(policy, keys, cost, batch.app)?;
    batch.decide(verb, request, ReplyFormat::OnePolicy, reply);
    Ok(Step::Submitted)
}

/// `RL.REFUND policy key [key ...] [COST n]`
pub(super) fn refund<'b>(
    args: &[&'b [u8]],
    policies: &'b PolicySet,
    batch: &mut Batch<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = policy_arguments(args, policies)?;
    reject_inline_policy(policy)?;
    let cost = Options::parse(rest, false)?.cost;
    let request = policy_request(policy, keys, cost, batch.app)?;
    batch.decide(Verb::Refund, request, ReplyFormat::OnePolicy, reply);
    Ok(Step::Submitted)
}

/// `RL.RESET policy key [key ...]`
pub(super) fn reset<'b>(
    args: &[&'b [u8]],
    policies: &'b PolicySet,
    app: &App,
) -> Result<Step<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = policy_arguments(args, policies)?;
    match rest.first() {
        None => policy_request(policy, keys, 0, app).map(|request| Step::Reset(Box::new(request))),
        Some(more) => {
            Err(CommandError::new(format!("unexpected argument `{}`; leave it out", Escaped(more))))
        }
    }
}

/// `RL.REQUEST attribute value [attribute value ...] [COST n] [PEEK]`
pub(super) fn request<'b>(
    args: &[&'b [u8]],
    batch: &mut Batch<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, CommandError> {
    let (pairs, last) = args.as_chunks::<2>();
    let verb = match last {
        [] => Verb::Check,
        [peek] if peek.eq_ignore_ascii_case(b"PEEK") => Verb::Peek,
        [name, ..] => {
            return Err(CommandError::new(format!("attribute `{}` has no value; give one", Escaped(name))));
        }
    };
    let mut cost = None;
    for [name, value] in pairs {
        if name.eq_ignore_ascii_case(b"COST")
            && cost.replace(parse_integer("COST", value, 0, MAX_COST)?).is_some()
        {
            return Err(CommandError::new("COST is given twice; give it once".to_owned()));
        }
        if std::str::from_utf8(name).is_err() {
            return Err(CommandError::new(format!(
                "attribute name `{}` is not UTF-8; send UTF-8 text",
                Escaped(name)
            )));
        }
    }
    let attributes = pairs.iter().filter(|[name, _]| !name.eq_ignore_ascii_case(b"COST"));
    // The names were validated above.
    let attributes = attributes.map(|[name, value]| (std::str::from_utf8(name).unwrap_or_default(), *value));
    let mut request = Request::new().cost(cost.unwrap_or(1));
    batch.app.attributes.add_to(&mut request, attributes).map_err(|error| CommandError::new(error.detail))?;
    batch.decide(verb, request, ReplyFormat::AllPolicies, reply);
    Ok(Step::Submitted)
}

/// The arguments of a command that names a policy.
struct PolicyArguments<'a, 'b> {
    policy: &'b Policy,
    /// One per attribute of the policy's scope.
    keys: &'a [&'b [u8]],
    /// The arguments after the keys.
    rest: &'a [&'b [u8]],
}

/// Splits arguments into the policy, its keys, and the rest.
fn policy_arguments<'a, 'b>(
    args: &'a [&'b [u8]],
    policies: &'b PolicySet,
) -> Result<PolicyArguments<'a, 'b>, CommandError> {
    let policy =
        std::str::from_utf8(args[0]).ok().and_then(|name| policies.by_name(name)).ok_or_else(|| {
            CommandError::new(format!(
                "unknown policy `{}`; RL.POLICIES lists the policies",
                Escaped(args[0])
            ))
        })?;
    let scope = policy.scope_attributes();
    let (keys, rest) = args[1..].split_at_checked(scope.len()).ok_or_else(|| {
        let usage: String = scope.iter().map(|attribute| format!(" <{attribute}>")).collect();
        let name = policy.name();
        CommandError::new(format!("policy `{name}` counts by {}; write `{name}{usage}`", scope.join(" and ")))
    })?;
    Ok(PolicyArguments { policy, keys, rest })
}

/// Rejects the policies of redis-cell and throttlecrab commands: their quota is given inline.
fn reject_inline_policy(policy: &Policy) -> Result<(), CommandError> {
    if policy_names::is_inline(policy.name()) {
        let name = policy.name();
        return Err(CommandError::new(format!(
            "policy `{name}` has no configured quota; send the command {name} with an inline quota"
        )));
    }
    Ok(())
}

/// A request under this policy alone, with these values of its scope.
// Inlined: a call would copy the request, about 400 bytes.
#[inline(always)]
fn policy_request<'b>(
    policy: &'b Policy,
    keys: &[&'b [u8]],
    cost: u64,
    app: &App,
) -> Result<Request<'b>, CommandError> {
    let names = policy.scope_attributes().iter().map(String::as_str);
    let request = app
        .attributes
        .request(names.zip(keys.iter().copied()), cost)
        .map_err(|error| CommandError::new(error.detail))?;
    Ok(request.under(policy.name()))
}

/// Options after the keys, in any order.
struct Options {
    cost: u64,
    verb: Verb,
}

impl Options {
    fn parse(mut rest: &[&[u8]], may_peek: bool) -> Result<Self, CommandError> {
        let (mut cost, mut verb) = (None, Verb::Check);
        loop {
            rest = match rest {
                [] => return Ok(Self { cost: cost.unwrap_or(1), verb }),
                [word, number, more @ ..] if word.eq_ignore_ascii_case(b"COST") => {
                    if cost.replace(parse_integer("COST", number, 0, MAX_COST)?).is_some() {
                        return Err(CommandError::new("COST is given twice; give it once".to_owned()));
                    }
                    more
                }
                [word] if word.eq_ignore_ascii_case(b"COST") => {
                    return Err(CommandError::new(
                        "COST has no value; write for example `COST 5`".to_owned(),
                    ));
                }
                [word, more @ ..] if may_peek && word.eq_ignore_ascii_case(b"PEEK") => {
                    verb = Verb::Peek;
                    more
                }
                [other, ..] => {
                    let expected = if may_peek { "`COST n` or `PEEK`" } else { "`COST n`" };
                    return Err(CommandError::new(format!(
                        "unexpected argument `{}`; expected {expected}",
                        Escaped(other)
                    )));
                }
            };
        }
    }
}

/// Writes the decision of one policy.
pub(super) fn write_one_policy(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    match decisions.iter().next() {
        Some(one) if is_unavailable(&one) => unavailable(&one, reply),
        Some(one) => {
            reply.fields(7);
            decision_fields(decisions.is_allowed(), &one, reply);
        }
        None => policy_removed(reply),
    }
}

/// Whether the request is denied only because the store is unavailable.
fn is_unavailable(one: &PolicyDecision<'_>) -> bool {
    one.policy().is_enforced() && one.reason() == Some(Reason::StoreUnavailable)
}

/// Writes an error instead of a decision: no limit was reached, so the client must not take it for
/// a denial.
fn unavailable(one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    let wait_s = one.retry_after().map_or(1, |wait| millis_ceil(wait).div_ceil(1000).max(1));
    let name = one.policy().name();
    let cause = one.store_failure().map_or_else(String::new, |failure| format!(": {failure}"));
    reply.error(format_args!(
        "UNAVAILABLE policy `{name}` denies while the store is unavailable; retry in {wait_s} s{cause}"
    ));
}

/// A reload may remove a policy after the command was parsed and before it was decided.
pub(super) fn policy_removed(reply: &mut Reply<'_>) {
    reply.error("ERR the policy was removed before the command was decided; send the command again");
}

/// Writes the strictest decision, then those of all policies that apply.
pub(super) fn write_all_policies(decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
    let strictest = decisions.strictest();
    if let Some(strictest) = strictest.filter(is_unavailable) {
        return unavailable(&strictest, reply);
    }
    reply.fields(9);
    if let Some(strictest) = &strictest {
        decision_fields(decisions.is_allowed(), strictest, reply);
    } else {
        reply.field("allowed");
        reply.boolean(decisions.is_allowed());
        for name in ["limit", "remaining", "retry_after_ms", "reset_after_ms", "source", "reason"] {
            reply.field(name);
            reply.null();
        }
    }
    reply.field("policy");
    match &strictest {
        Some(strictest) => reply.text(strictest.policy().name()),
        None => reply.null(),
    }
    reply.field("policies");
    reply.array(decisions.iter().len());
    for one in decisions.iter() {
        reply.fields(9);
        decision_fields(one.is_allowed(), &one, reply);
        reply.field("policy");
        reply.text(one.policy().name());
        reply.field("enforced");
        reply.boolean(one.policy().is_enforced());
    }
}

/// The seven fields of a decision.
fn decision_fields(allowed: bool, one: &PolicyDecision<'_>, reply: &mut Reply<'_>) {
    reply.field("allowed");
    reply.boolean(allowed);
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
        reply.boolean(policy.is_enforced());
    }
}
