//! The self-test: whether the servers execute every call that decisions need.
//!
//! A server can answer every ping and refuse every decision: its user lacks a permission, or it
//! does not let scripts call a command. Limits are then not shared, and only a call reveals it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use slidegate::internal::{NewHold, Part, instant, micros, millis_ceil, new_id};
use slidegate::reserve::Unsettled;
use slidegate::{
    Excess, Quota,
    verb::{Role, Verb},
};
use smallvec::smallvec;
use tokio::time::Instant;

use super::PATIENCE;
use crate::call::{Subject, Subjects};
use crate::calls::Calls;
use crate::names::Names;
use crate::reply::items;

/// The window of the test keys, which are gone after two windows and five seconds. Longer than the
/// test, which must see its own charge.
const WINDOW: Duration = Duration::from_secs(10);
/// Keys tried to find one in a slot of each master. With this many, one of 256 masters is missed
/// once in a million tests.
const MAX_KEYS: usize = 5000;

/// Commands that scripts need where they may not call `TIME`; since Redis 7.0.
const INSTEAD_OF_TIME: [&str; 2] = ["pttl", "pexpiretime"];

/// At least as late as that of a decision: the server may be slow.
fn deadline(calls: &Calls) -> Instant {
    calls.deadline().max(instant() + PATIENCE)
}

/// Makes the calls of a check, of a reservation and of a reset on every master.
pub(crate) async fn test_masters(calls: &Calls) -> Result<(), Failure> {
    let client = &calls.client;
    let names = client.master_names(deadline(calls)).await?;
    let mut untested: BTreeSet<_> = names.into_iter().collect();
    // A server that refuses to delete keeps the keys of earlier tests for a while.
    let run = new_id();
    let mut reads_expiry = false;
    for number in 0..MAX_KEYS {
        let key = Names::self_test(run, number);
        if untested.remove(&client.holder_name(client.slot(&key))) {
            let tested = test_key(calls, &key, reads_expiry).await;
            // Anything left expires.
            let _ = calls.delete(&key, instant() + PATIENCE).await;
            reads_expiry = tested?;
        }
        if untested.is_empty() {
            break;
        }
    }
    calls.reads_expiry.store(reads_expiry, Ordering::Relaxed);
    Ok(())
}

/// Returns whether scripts have to read the clock by the expiry of a key, as those on another
/// master have `already`.
async fn test_key(calls: &Calls, key: &[u8], already: bool) -> Result<bool, Failure> {
    let deadline = deadline(calls);
    let called = test_calls(calls, key, deadline).await;
    // Not every server reports which command it refuses. The first calls have met any other error,
    // and may have used up the time.
    let tested = test_commands(calls, key, deadline).await;
    if called.is_err() && tested.as_ref().is_err_and(|failure| failure.kind != FailureKind::NoPermission) {
        return called.map(|()| already);
    }
    let reads_expiry = tested? || already;
    let had_read = calls.reads_expiry.fetch_or(reads_expiry, Ordering::Relaxed);
    match (had_read, reads_expiry) {
        (false, true) => test_calls(calls, key, deadline).await?,
        // Where all masters let scripts call it again, they will.
        (true, false) => {}
        _ => called?,
    }
    Ok(reads_expiry)
}

/// Makes the calls of a check and of a reservation.
async fn test_calls(calls: &Calls, key: &[u8], deadline: Instant) -> Result<(), Failure> {
    let quota = Quota::new(2, WINDOW).expect("a window in range");
    let part = Part {
        verb: Verb::Check,
        role: Role::Deciding,
        cost: 0,
        enforced: true,
        excess: Excess::Refuse,
        over_limit: false,
    };
    let hold = NewHold { id: new_id(), ttl_us: micros(WINDOW), unsettled: Unsettled::Charge };
    let last_failure = LastFailure::default();
    // The limit is two: one is charged and one is reserved, so nothing is left.
    for (hold, is_allowed) in [(None, true), (Some(hold), true), (None, false)] {
        let subject = Subject { name: key.to_vec(), quota, part, own_cost: None, key: 0, hold, lease_us: 0 };
        let subjects = Subjects(smallvec![subject]);
        let answers = Box::pin(calls.call(&subjects, &[1], None, deadline, &last_failure)).await?;
        let decisions = answers.first().and_then(|answer| answer.first());
        if decisions.is_none_or(|decision| decision.is_allowed() != is_allowed) {
            let detail = "does not keep what is charged; give slidegate a Redis that does";
            return Err(failed(calls, key, FailureKind::Other, detail));
        }
    }
    Ok(())
}

/// Calls each command that scripts call. Returns whether all but `TIME` are allowed, and those
/// that take its place.
async fn test_commands(calls: &Calls, key: &[u8], deadline: Instant) -> Result<bool, Failure> {
    let (keys, args) = ([key.to_vec(), Names::usage(key)], [millis_ceil(WINDOW).to_string().into_bytes()]);
    let call = Call { script: &calls.scripts().self_test, keys: &keys, args: &args, native: None };
    let last_failure = LastFailure::default();
    let reply = calls.reply(calls.client.run(call, ReplyBound::SMALL, deadline, &last_failure).await)?;
    let refused = items(reply).map_err(|unreadable| {
        failed(calls, key, FailureKind::Malformed, &format!("replied {} to the self-test", unreadable.0))
    })?;
    let texts: Vec<_> = refused.iter().map(text).collect();
    let [first, error, ..] = texts.as_slice() else { return Ok(false) };
    if first == "time" && texts.len() == 2 {
        return Ok(true);
    }
    let names = texts.iter().step_by(2).filter(|command| !INSTEAD_OF_TIME.contains(&command.as_str()));
    let commands: Vec<_> = names.clone().map(|command| format!("`{command}`")).collect();
    let rights: Vec<_> = names.map(|command| format!("+{command}")).collect();
    let detail = format!(
        "refuses {} in scripts (if its user lacks the right, give it `{}`): {}",
        commands.join(", "),
        rights.join(" "),
        redis_once::without_user(error)
    );
    Err(failed(calls, key, FailureKind::NoPermission, &detail))
}

fn failed(calls: &Calls, key: &[u8], kind: FailureKind, detail: &str) -> Failure {
    calls.failed(calls.client.slot(key), Executed::No, kind, detail)
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        other => format!("{other:?}"),
    }
}
