//! Arguments of `RL.ACQUIRE`, `RL.RESERVE`, `RL.SETTLE`, `RL.EXTEND` and `RL.CANCEL`.

use std::time::Duration;

use slidegate::{
    Cost, Error, PolicySet, Request,
    reserve::{Extension, Ticket},
};

use super::batch::Step;
use super::commands::Name;
use super::cost::parse_cost;
use super::decide::{PolicyArguments, add_keys, policy_arguments, reject_inline_policy};
use super::error::{CommandError, parse_integer};
use super::holds::HoldCommand;
use super::reply::Escaped;
use crate::engine::App;
use crate::engine::ticket_change::TicketChange;
use crate::limits::{MAX_ID, MAX_WAIT};
use crate::listener::Connection;

/// Maximum time of a reservation, in milliseconds: the library's.
const MAX_TTL_MS: u64 = 3_600_000;

/// The wait of `RL.ACQUIRE` without one, in milliseconds.
const DEFAULT_WAIT_MS: u64 = 10_000;

/// A command that may wait for its turn, by its name.
pub(super) fn waiting<'b>(
    name: Name,
    args: &[&'b [u8]],
    policies: &'b PolicySet,
    app: &App,
    connection: Connection,
) -> Result<HoldCommand<'b>, CommandError> {
    let of_policy = policy_arguments(args, policies)?;
    reject_inline_policy(of_policy.policy)?;
    let (wait, rest) = split_wait(of_policy.rest)?;
    let of_policy = PolicyArguments { rest: &rest, ..of_policy };
    match name {
        Name::Reserve => reserve(&of_policy, wait, app, connection),
        _ => acquire(&of_policy, wait.unwrap_or(Duration::from_millis(DEFAULT_WAIT_MS)), app),
    }
}

/// `RL.ACQUIRE policy key [key ...] [COST n] [TIMEOUT ms]`
fn acquire<'b>(
    of_policy: &PolicyArguments<'_, 'b>,
    wait: Duration,
    app: &App,
) -> Result<HoldCommand<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = *of_policy;
    let (cost, _) = options(rest, "COST", None)?;
    let mut request = Request::new().with_cost(cost.unwrap_or(1.into())).under(policy.name());
    add_keys(&mut request, policy, keys, app)?;
    Ok(HoldCommand::Acquire { request, wait })
}

/// Separates the longest wait from the other arguments.
fn split_wait<'b>(args: &[&'b [u8]]) -> Result<(Option<Duration>, Vec<&'b [u8]>), CommandError> {
    let mut rest = args.to_vec();
    let Some(at) = args.iter().step_by(2).position(|word| word.eq_ignore_ascii_case(b"TIMEOUT")) else {
        return Ok((None, rest));
    };
    let Some(value) = args.get(2 * at + 1) else {
        return Err(CommandError::new("TIMEOUT has no value; write for example `TIMEOUT 5000`".to_owned()));
    };
    let wait_ms = parse_integer("TIMEOUT", value, 0, MAX_WAIT.as_secs() * 1000)?;
    rest.drain(2 * at..2 * at + 2);
    Ok((Some(Duration::from_millis(wait_ms)), rest))
}

/// `RL.RESERVE policy key [key ...] [COST n] [TTL ms] [ID id] [TIMEOUT ms]`
fn reserve<'b>(
    of_policy: &PolicyArguments<'_, 'b>,
    wait: Option<Duration>,
    app: &App,
    connection: Connection,
) -> Result<HoldCommand<'b>, CommandError> {
    let PolicyArguments { policy, keys, rest } = *of_policy;
    let (id, rest) = split_id(rest)?;
    // Bound to its caller as over HTTP, so that guessing the key does not yield a ticket.
    let id = id.map(|id| format!("{}\n{id}", connection.caller()));
    let (cost, ttl) = options(&rest, "COST", Some("TTL"))?;
    // Without a cost, the policy's estimate is held.
    let mut request = Request::new().under(policy.name());
    if let Some(cost) = cost {
        request = request.with_cost(cost);
    }
    add_keys(&mut request, policy, keys, app)?;
    Ok(HoldCommand::Reserve { request, ttl: ttl.map(Duration::from_millis), id, wait })
}

/// `RL.SETTLE ticket COST n [MORE]`
pub(super) fn settle<'b>(args: &[&'b [u8]]) -> Result<Step<'b>, CommandError> {
    let ticket = ticket(args[0])?;
    let (rest, is_final) = match &args[1..] {
        [rest @ .., more] if more.eq_ignore_ascii_case(b"MORE") => (rest, false),
        rest => (rest, true),
    };
    let (cost, _) = options(rest, "COST", None)?;
    let cost = cost.ok_or_else(|| CommandError::new("COST is missing; write for example `COST 512`"))?;
    let change = TicketChange::Settle { cost, is_final };
    Ok(step(HoldCommand::Change { ticket, change }))
}

/// `RL.EXTEND ticket [HOLD n] [TTL ms]`
pub(super) fn extend<'b>(args: &[&'b [u8]]) -> Result<Step<'b>, CommandError> {
    let ticket = ticket(args[0])?;
    let (hold, ttl) = options(&args[1..], "HOLD", Some("TTL"))?;
    let mut extension = Extension::new();
    if let Some(hold) = hold {
        extension = extension.with_total(hold);
    }
    if let Some(ttl_ms) = ttl {
        let in_range = extension.with_ttl(Duration::from_millis(ttl_ms));
        extension = in_range.map_err(|error| CommandError::new(error.to_string()))?;
    }
    Ok(step(HoldCommand::Change { ticket, change: TicketChange::Extend(extension) }))
}

/// `RL.CANCEL ticket`
pub(super) fn cancel<'b>(args: &[&[u8]]) -> Result<Step<'b>, CommandError> {
    Ok(step(HoldCommand::Change { ticket: ticket(args[0])?, change: TicketChange::Cancel }))
}

fn ticket(text: &[u8]) -> Result<Ticket, CommandError> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|error: Error| CommandError::new(error.to_string()))
}

/// Separates the idempotency key from the other arguments.
fn split_id<'b>(args: &[&'b [u8]]) -> Result<(Option<&'b str>, Vec<&'b [u8]>), CommandError> {
    let mut rest = args.to_vec();
    let Some(at) = args.iter().step_by(2).position(|word| word.eq_ignore_ascii_case(b"ID")) else {
        return Ok((None, rest));
    };
    let Some(id) = args.get(2 * at + 1) else {
        return Err(CommandError::new("ID has no value; give for example a UUID".to_owned()));
    };
    rest.drain(2 * at..2 * at + 2);
    let is_visible = (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic);
    let id = std::str::from_utf8(id).ok().filter(|_| is_visible).ok_or_else(|| {
        CommandError::new(format!(
            "invalid ID `{}`: must be 1 to {MAX_ID} visible ASCII characters, for example a UUID",
            Escaped(id)
        ))
    })?;
    Ok((Some(id), rest))
}

/// Parses the cost (named `cost_word`) and the time, each at most once, in any order.
fn options<'b>(
    mut rest: &[&'b [u8]],
    cost_word: &str,
    ttl_word: Option<&str>,
) -> Result<(Option<Cost<'b>>, Option<u64>), CommandError> {
    let (mut cost, mut ttl) = (None, None);
    while let [word, more @ ..] = rest {
        let known = [Some(cost_word), ttl_word].into_iter().flatten();
        let Some(name) = known.clone().find(|name| word.eq_ignore_ascii_case(name.as_bytes())) else {
            let expected: Vec<_> = known.map(|name| format!("`{name} n`")).collect();
            let expected = expected.join(" or ");
            let word = Escaped(word);
            return Err(CommandError::new(format!("unexpected argument `{word}`; expected {expected}")));
        };
        let [value, after @ ..] = more else {
            return Err(CommandError::new(format!("{name} has no value; write for example `{name} 5`")));
        };
        let was_given = if name == cost_word {
            cost.replace(parse_cost(name, value)?).is_some()
        } else {
            ttl.replace(parse_integer(name, value, 1, MAX_TTL_MS)?).is_some()
        };
        if was_given {
            return Err(CommandError::new(format!("{name} is given twice; give it once")));
        }
        rest = after;
    }
    Ok((cost, ttl))
}

fn step(command: HoldCommand<'_>) -> Step<'_> {
    Step::Hold(Box::new(command))
}
