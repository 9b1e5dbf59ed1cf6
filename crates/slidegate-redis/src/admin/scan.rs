//! Scans: find all keys of a policy, node by node, a bounded number of keys at a time.

use std::collections::BTreeMap;
use std::hash::Hasher;

use redis::Value;
use redis_once::{Executed, Failure, FailureKind, ReplyBound};
use siphasher::sip::SipHasher24;
use slidegate::internal::{Place, ResetCounts, instant};
use slidegate::store::{PolicyKeys, PolicyReset, ResetCursor};

use super::PATIENCE;
use crate::calls::Calls;
use crate::names::Names;
use crate::reply::number;

/// The maximum number of keys that a server scans in one step. The step blocks it for a few
/// milliseconds.
const MAX_SCANNED: u64 = 10_000;
/// Keys that are deleted with one command.
const DELETED: usize = 128;

/// Deletes the keys of a policy that one step of a scan finds, and adds to the progress.
/// Returns the position of the next step, or `None` after the last node.
pub(crate) async fn step(
    calls: &Calls,
    policy: &str,
    from: Option<Place>,
    keys: u64,
    done: &mut ResetCounts,
) -> Result<Option<Place>, Failure> {
    let (found, next) = find(calls, policy, from, keys, done).await?;
    done.forgotten = done.forgotten.saturating_add(forget(calls, found).await?);
    Ok(next)
}

/// The keys of a policy that one step of a scan finds.
pub(crate) async fn list(
    calls: &Calls,
    policy: &str,
    from: Option<&ResetCursor>,
    keys: u64,
) -> Result<PolicyKeys, Failure> {
    let (place, mut done) = from.map_or((None, ResetCounts::default()), |from| (Some(from.place), from.done));
    let (found, next) = find(calls, policy, place, keys, &mut done).await?;
    let keys: Vec<_> = found.iter().filter_map(|name| Names::text(policy, name)).collect();
    let unnamed = (found.len() - keys.len()) as u64;
    let PolicyReset { scanned, next, .. } = PolicyReset::after(done, next);
    Ok(PolicyKeys { keys, unnamed, scanned, next })
}

/// The names of the keys of a policy that one step of a scan finds, and the position of the next step.
pub(super) async fn find(
    calls: &Calls,
    policy: &str,
    from: Option<Place>,
    keys: u64,
    done: &mut ResetCounts,
) -> Result<(Vec<Vec<u8>>, Option<Place>), Failure> {
    let names = calls.client.master_names(instant() + PATIENCE).await?;
    let nodes = fingerprint(&names);
    let (at, cursor) = match from {
        Some(Place::Node { nodes: before, at, cursor }) if before == nodes => (at, cursor),
        from => {
            if from.is_none() {
                done.keys = count_keys(calls).await;
            }
            done.scanned = 0;
            (0, 0)
        }
    };
    let Some(node) = usize::try_from(at).ok().and_then(|at| names.get(at)) else {
        return Ok((Vec::new(), None));
    };
    let keys = keys.clamp(1, MAX_SCANNED);
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(Names::pattern(policy)).arg("COUNT").arg(keys);
    let command = |name: &str| (name == node).then(|| scan.clone());
    let scanned = calls.client.on_each_master(command, ReplyBound::LISTING, instant() + PATIENCE).await;
    let Some((node, answer)) = scanned.into_iter().next() else {
        // Another node replaced it between two calls; the next step starts with that one.
        return Ok((Vec::new(), Some(Place::Node { nodes, at, cursor })));
    };
    let answer = answer.inspect_err(|failure| calls.client.count(failure))?;
    let (cursor, found) = scan_answer(&node, &answer)?;
    let found = found.into_iter().filter(|key| Names::is_of(policy, key)).collect();
    done.scanned = done.scanned.saturating_add(keys);
    if let Some(keys) = done.keys {
        done.scanned = done.scanned.min(keys);
    }
    let next = match cursor {
        0 if at + 1 == names.len() as u64 => None,
        0 => Some(Place::Node { nodes, at: at + 1, cursor: 0 }),
        cursor => Some(Place::Node { nodes, at, cursor }),
    };
    Ok((found, next))
}

/// Deletes keys, grouped by slot, and invalidates cached denials in every instance. Returns how
/// many keys existed.
async fn forget(calls: &Calls, keys: Vec<Vec<u8>>) -> Result<u64, Failure> {
    if keys.is_empty() {
        return Ok(0);
    }
    let mut by_slot: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for key in keys {
        by_slot.entry(calls.client.slot(&key)).or_default().push(key);
    }
    let mut deleted = Ok(0);
    for keys in by_slot.values().flat_map(|keys| keys.chunks(DELETED)) {
        let mut command = redis::cmd("DEL");
        command.arg(keys);
        // Usage beside holds is in the slot of its key.
        let mut usage = redis::cmd("DEL");
        usage.arg(keys.iter().map(|key| Names::usage(key)).collect::<Vec<_>>());
        let first = keys.first().map(Vec::as_slice);
        match (&mut deleted, calls.client.command(first, &command, instant() + PATIENCE).await) {
            (Ok(deleted), Ok(answer)) => {
                *deleted += number(&answer).unwrap_or(0);
                let _ = calls.client.command(first, &usage, instant() + PATIENCE).await;
            }
            (deleted, Err(failure)) => {
                *deleted = Err(failure);
                break;
            }
            (Err(_), Ok(_)) => {}
        }
    }
    // Also after a failure: some may have been deleted.
    calls.denials.invalidate(None, calls.deadline()).await;
    deleted
}

/// The number of keys on all nodes; `None` if the user lacks the permission.
async fn count_keys(calls: &Calls) -> Option<u64> {
    let dbsize = |_: &str| Some(redis::cmd("DBSIZE"));
    let answers = calls.client.on_each_master(dbsize, ReplyBound::SMALL, instant() + PATIENCE).await;
    answers.into_iter().map(|(_, answer)| number(&answer.ok()?)).sum()
}

/// A hash of the names that is the same in every instance.
fn fingerprint(names: &[String]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0, 0);
    for name in names {
        hasher.write(name.as_bytes());
        hasher.write_u8(0);
    }
    hasher.finish()
}

/// The next cursor and the keys of one step of a scan.
pub(crate) fn scan_answer(node: &str, answer: &Value) -> Result<(u64, Vec<Vec<u8>>), Failure> {
    let wrong = |answer: &Value| Failure {
        executed: Executed::Maybe,
        kind: FailureKind::Malformed,
        node: node.to_owned(),
        detail: format!("answered SCAN with {answer:?}"),
    };
    let Value::Array(parts) = answer else { return Err(wrong(answer)) };
    let [cursor, Value::Array(keys)] = parts.as_slice() else { return Err(wrong(answer)) };
    let keys = keys.iter().filter_map(|key| match key {
        Value::BulkString(key) => Some(key.clone()),
        _ => None,
    });
    Ok((number(cursor).ok_or_else(|| wrong(answer))?, keys.collect()))
}
