//! `RL.*` commands: check one policy by key, or all policies that apply to attributes.
//!
//! A policy takes as many keys as its scope has attributes, so a key may be any bytes, including
//! `COST` and `PEEK`.

use slidegate::{Cost, Policy, PolicySet, Request, verb::Verb};
use slidegate_config::names;

use super::batch::{Batch, ReplyFormat, Step};
use super::cost::parse_cost;
use super::error::CommandError;
use super::reply::{Escaped, Reply};
use super::throttle::{Dialect, QuotaCache, ThrottleArguments};
use crate::engine::App;

/// `RL.CHECK policy key [key ...] [COST n] [PEEK]`, and `RL.REFUND` with the same arguments except
/// `PEEK`.
pub(super) fn by_key<'b>(
    verb: Verb,
    args: &[&'b [u8]],
    policies: &'b PolicySet,
    batch: &mut Batch<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = policy_arguments(args, policies)?;
    reject_inline_policy(policy)?;
    let Options { cost, verb } = Options::parse(rest, verb)?;
    let mut request = Request::new().with_cost(cost).under(policy.name());
    add_keys(&mut request, policy, keys, batch.app)?;
    batch.decide(verb, &mut request, ReplyFormat::OnePolicy, reply);
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
        None => {
            let mut request = Box::new(Request::new().with_cost(0).under(policy.name()));
            add_keys(&mut request, policy, keys, app)?;
            Ok(Step::Reset(request))
        }
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
        if name.eq_ignore_ascii_case(b"COST") && cost.replace(parse_cost("COST", value)?).is_some() {
            return Err(CommandError::new("COST is given twice; give it once".to_owned()));
        }
        if std::str::from_utf8(name).is_err() {
            return Err(CommandError::new(format!(
                "invalid attribute name `{}`: must be UTF-8",
                Escaped(name)
            )));
        }
    }
    let attributes = pairs.iter().filter(|[name, _]| !name.eq_ignore_ascii_case(b"COST"));
    // The names were validated above.
    let attributes = attributes.map(|[name, value]| (std::str::from_utf8(name).unwrap_or_default(), *value));
    let mut request = Request::new().with_cost(cost.unwrap_or(1.into()));
    batch.app.attributes.add_to(&mut request, attributes).map_err(|error| CommandError::new(error.detail))?;
    batch.decide(verb, &mut request, ReplyFormat::AllPolicies, reply);
    Ok(Step::Submitted)
}

/// The arguments of a command that names a policy.
pub(super) struct PolicyArguments<'a, 'b> {
    pub(super) policy: &'b Policy,
    /// One per attribute of the policy's scope.
    pub(super) keys: &'a [&'b [u8]],
    /// The arguments after the keys.
    pub(super) rest: &'a [&'b [u8]],
}

/// Splits arguments into the policy, its keys, and the rest.
pub(super) fn policy_arguments<'a, 'b>(
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
    let scope = policy.scope();
    let (keys, rest) = args[1..].split_at_checked(scope.len()).ok_or_else(|| {
        let usage: String = scope.iter().map(|attribute| format!(" <{attribute}>")).collect();
        let name = policy.name();
        CommandError::new(format!("policy `{name}` counts by {}; write `{name}{usage}`", scope.join(" and ")))
    })?;
    Ok(PolicyArguments { policy, keys, rest })
}

/// Rejects the policies of redis-cell and throttlecrab commands: their quota is given inline.
pub(super) fn reject_inline_policy(policy: &Policy) -> Result<(), CommandError> {
    if names::is_inline(policy.name()) {
        let name = policy.name();
        return Err(CommandError::new(format!(
            "policy `{name}` has no configured quota; send the command {name} with an inline quota"
        )));
    }
    Ok(())
}

/// Adds the values of the policy's scope to a request. In place, because a request has 400 bytes.
pub(super) fn add_keys<'b>(
    request: &mut Request<'b>,
    policy: &'b Policy,
    keys: &[&'b [u8]],
    app: &App,
) -> Result<(), CommandError> {
    let names = policy.scope().iter().map(String::as_str);
    let pairs = names.zip(keys.iter().copied());
    app.attributes.add_to(request, pairs).map_err(|error| CommandError::new(error.detail))
}

/// Options after the keys, in any order.
struct Options<'b> {
    cost: Cost<'b>,
    verb: Verb,
}

impl<'b> Options<'b> {
    /// `PEEK` is only valid with a check.
    fn parse(mut rest: &[&'b [u8]], mut verb: Verb) -> Result<Self, CommandError> {
        let (mut cost, may_peek) = (None, verb == Verb::Check);
        loop {
            rest = match rest {
                [] => return Ok(Self { cost: cost.unwrap_or(1.into()), verb }),
                [word, number, more @ ..] if word.eq_ignore_ascii_case(b"COST") => {
                    if cost.replace(parse_cost("COST", number)?).is_some() {
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

/// `CL.THROTTLE key max_burst count period [quantity]`, and `THROTTLE` with the same arguments.
pub(super) fn throttle<'b>(
    dialect: Dialect,
    args: &[&'b [u8]],
    cache: &mut QuotaCache,
    batch: &mut Batch<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, CommandError> {
    let arguments = ThrottleArguments::parse(dialect, args)?;
    let (policy, attribute) = arguments.policy();
    let mut request =
        Request::new().under(policy).with_quota(cache.quota(arguments)?).with_cost(arguments.quantity);
    let key = std::iter::once((attribute, args[0]));
    batch.app.attributes.add_to(&mut request, key).map_err(|error| CommandError::new(error.detail))?;
    batch.decide(Verb::Check, &mut request, ReplyFormat::Throttle(arguments), reply);
    Ok(Step::Submitted)
}
