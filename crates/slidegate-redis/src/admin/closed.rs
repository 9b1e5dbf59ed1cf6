//! Totals of calendar windows that have ended: kept in the values of keys, listed and acknowledged.

use std::collections::BTreeMap;

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use slidegate::clock::Timestamp;
use slidegate::internal::{ResetCounts, TAG, instant};
use slidegate::store::{ClosedTotal, ClosedTotals, PolicyReset, ResetCursor};
use slidegate_stored::closed_totals;

use super::{PATIENCE, scan};
use crate::calls::Calls;
use crate::names::Names;
use crate::reply::items;

/// How long after its end a window is closed. A step back of the server's clock by less than this charges no
/// total that was listed.
const SLACK_US: u64 = 5_000_000;
/// Keys that are read or acknowledged with one call.
const AT_ONCE: usize = 128;
/// Bytes of a wide counter that keeps a total. They include the header of a table of holds.
const READ: usize = 35;

/// The totals of the keys that one step of a scan finds.
pub(crate) async fn list(
    calls: &Calls,
    policy: &str,
    from: Option<&ResetCursor>,
    keys: u64,
) -> Result<ClosedTotals, Failure> {
    let (place, mut done) = from.map_or((None, ResetCounts::default()), |from| (Some(from.place), from.done));
    let (found, next) = scan::find(calls, policy, place, keys, &mut done).await?;
    let any = found.first().cloned().unwrap_or_else(Names::instances);
    let now = calls.server_time(&any, instant() + PATIENCE).await?;
    let until = now.saturating_sub(SLACK_US);
    let next = PolicyReset::after(done, next).next;
    let mut listed = ClosedTotals { until: Timestamp::from_micros(until), next, ..ClosedTotals::default() };
    for names in by_slot(calls, found, |name| name.as_slice()) {
        for (name, [value, usage]) in names.iter().zip(read(calls, &names).await?) {
            let Some((key, in_millionths)) = Names::shown(policy, name) else { continue };
            let is_table = value.first() == Some(&TAG);
            // No hold ends before.
            let earliest = value.get(8..15).filter(|_| is_table);
            let earliest =
                earliest.map(|end| end.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
            if earliest.is_some_and(|end| end <= now) && !key.starts_with('#') {
                listed.unsettled.push(key);
                continue;
            }
            let Some((calendar, totals)) = closed_totals(if is_table { &usage } else { &value }, until)
            else {
                continue;
            };
            listed.totals.extend(totals.map(|(ended, used)| {
                let (name, key, ended) = (name.clone(), key.clone(), Timestamp::from_micros(ended));
                ClosedTotal { name, key, in_millionths, calendar, ended, used }
            }));
        }
    }
    Ok(listed)
}

/// Acknowledges totals.
pub(crate) async fn acknowledge(calls: &Calls, totals: &[ClosedTotal]) -> Result<(), Failure> {
    for totals in by_slot(calls, totals.iter().collect(), |total| &total.name) {
        let args: Vec<_> =
            totals.iter().map(|total| total.ended.as_micros().to_string().into_bytes()).collect();
        let names: Vec<_> = totals.into_iter().map(|total| total.name.clone()).collect();
        let call = Call { script: &calls.scripts().closed, keys: &pairs(&names), args: &args, native: None };
        calls.reply(
            calls.client.run(call, ReplyBound::SMALL, instant() + PATIENCE, &LastFailure::default()).await,
        )?;
    }
    Ok(())
}

/// The first bytes of the values of these keys, and of their usage while they have holds.
async fn read(calls: &Calls, names: &[Vec<u8>]) -> Result<Vec<[Vec<u8>; 2]>, Failure> {
    let (keys, args) = (pairs(names), [READ.to_string().into_bytes()]);
    let call = Call { script: &calls.scripts().instance_records, keys: &keys, args: &args, native: None };
    let bound = ReplyBound::of(keys.len() * (READ + 32));
    let replied = calls.client.run(call, bound, instant() + PATIENCE, &LastFailure::default()).await;
    let slot = calls.client.slot(&keys[0]);
    let malformed = |detail: &str| calls.failed(slot, Executed::No, FailureKind::Malformed, detail);
    let replied = items(calls.reply(replied)?).map_err(|unreadable| malformed(&unreadable.0))?;
    let bytes = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    let (values, usages) = replied.split_at(names.len().min(replied.len()));
    Ok(values.iter().zip(usages).map(|(value, usage)| [bytes(value), bytes(usage)]).collect())
}

/// The keys, then those of their usage.
fn pairs(names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    names.iter().cloned().chain(names.iter().map(|name| Names::usage(name))).collect()
}

/// Groups what one call can contain.
fn by_slot<T>(calls: &Calls, all: Vec<T>, name: impl Fn(&T) -> &[u8]) -> Vec<Vec<T>> {
    let mut slots: BTreeMap<u16, Vec<Vec<T>>> = BTreeMap::new();
    for one in all {
        let groups = slots.entry(calls.client.slot(name(&one))).or_default();
        match groups.last_mut().filter(|group| group.len() < AT_ONCE) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    slots.into_values().flatten().collect()
}
