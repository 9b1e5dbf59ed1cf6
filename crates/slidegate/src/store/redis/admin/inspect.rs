//! Inspection: reads the stored value of one key in full, for operators.
//!
//! It reads the bytes that docs/redis-layout.md documents, without a script. A value that is not of
//! that layout is an error that names the key.

use redis::Value;

use super::PATIENCE;
use crate::algorithm::{self, InFlight, LogReply, SlidingLog, State};
use crate::charge::Charge;
use crate::hold::{Hold, Holds};
use crate::quota::{Algorithm, Quota, QuotaFields};
use crate::store::redis::calls::{Calls, explain};
use crate::store::redis::names::Names;
use crate::store::redis::reply::{KeyReply, StateReply};
use crate::store::redis::transport::{Executed, Failure, FailureKind, ReplyBound};
use crate::stored::{self, Requests};
use crate::time::{Timestamp, instant};
use crate::usage::{KeyInspection, OpenHold};

/// Bytes of the largest value: a log with the maximum number of runs, each of the maximum width.
const LARGEST: usize = 48 + 65_535 * 13;

/// The usage of these keys in full, in order.
pub(crate) async fn inspect(
    calls: &Calls,
    names: &Names,
    charges: &[Charge<'_>],
) -> Result<Vec<KeyInspection>, Failure> {
    let mut found = Vec::with_capacity(charges.len());
    for charge in charges {
        let name = names.name(&charge.key);
        let deadline = instant() + PATIENCE;
        let transport = &calls.transport;
        let get = async |name: &[u8]| {
            let mut get = redis::cmd("GETRANGE");
            get.arg(name).arg(0).arg(LARGEST);
            let bound = ReplyBound::of(LARGEST + 1);
            transport.bounded_command(Some(name), &get, bound, deadline).await.map_err(explain)
        };
        let mut value = get(&name).await?;
        let table = match &value {
            Value::BulkString(bytes) if bytes.first() == Some(&Holds::TAG) => Some(bytes.clone()),
            _ => None,
        };
        if table.is_some() {
            value = get(&Names::usage(&name)).await?;
        }
        let now = calls.server_time(&name, deadline).await.map_err(explain)?;
        let failed = |detail: String| {
            let name = String::from_utf8_lossy(&name).into_owned();
            let detail = format!("`{}` {detail}", name.escape_debug());
            calls.failed(transport.slot(name.as_bytes()), Executed::No, FailureKind::Malformed, &detail)
        };
        let Value::BulkString(bytes) = value else { return Err(failed(format!("reads as {value:?}"))) };
        let now = Timestamp::from_micros(now);
        let holds = match table {
            Some(table) => held(&table).map_err(failed)?,
            None => Holds::default(),
        };
        found.push(read(&bytes, holds, charge.quota, now, charge.part.cost).map_err(failed)?);
    }
    Ok(found)
}

/// Reads a table of holds.
pub(crate) fn held(table: &[u8]) -> Result<Holds, String> {
    let damaged = || format!("is damaged: its table of holds has {} bytes; reset the key", table.len());
    let (header, list) = table.split_at_checked(Holds::HEADER_BYTES).ok_or_else(damaged)?;
    let count = usize::from(u16::from_le_bytes([header[29], header[30]]));
    // What follows is left from holds that have ended.
    let list = list.get(..count * Holds::HOLD_BYTES).ok_or_else(damaged)?;
    Holds::read(header, list).ok_or_else(damaged)
}

/// The inspection of a state beside holds. Redis has one clock.
fn inspected<S: State>(state: S, holds: Holds, quota: &Quota, now: Timestamp, cost: u64) -> KeyInspection {
    let (mut found, holds) = algorithm::inspect_with_holds(state, holds, quota, (now, now), cost);
    let open = |hold: Hold| OpenHold {
        id: hold.id,
        held: hold.held,
        settled: hold.settled,
        until: Timestamp::from_micros(hold.until),
        unsettled: hold.unsettled,
    };
    found.holds = holds.iter().filter(|hold| !hold.has_ended).map(open).collect();
    found.holds.sort_by_key(|hold| hold.until);
    found
}

/// A log that later charges can be added to.
fn replayed(reply: &LogReply, quota: &Quota) -> SlidingLog {
    let mut log = SlidingLog::default();
    for charge in reply.charges(quota) {
        let settled = log.settle(quota, charge.at.as_micros());
        log.charge(quota, settled, charge.cost);
    }
    log
}

/// Reads a value as decisions do: one of another algorithm counts as no usage.
pub(crate) fn read(
    bytes: &[u8],
    holds: Holds,
    quota: &Quota,
    now: Timestamp,
    cost: u64,
) -> Result<KeyInspection, String> {
    let (counted, asked) = match quota.algorithm() {
        Algorithm::InFlight => return Ok(inspected(InFlight, holds, quota, now, cost)),
        // A denial under this limit replies all entries.
        Algorithm::SlidingLog => {
            let least = QuotaFields { limit: 1, burst: None, ..quota.fields() }.quota();
            (least.unwrap_or(*quota), Some(Requests { cost: 1, count: 1 }))
        }
        _ => (*quota, None),
    };
    let value = Some(bytes).filter(|bytes| !bytes.is_empty());
    let checked = stored::check(value, &counted, now.as_micros(), asked.as_slice()).map_err(|unusable| {
        let is_damaged = unusable.message.starts_with("damaged");
        let how =
            if is_damaged { "reset the key" } else { "another program writes it, or a newer slidegate does" };
        format!("is {}; {how}", unusable.message)
    })?;
    let reply = KeyReply::of_checked(quota, &checked)
        .map_err(|unreadable| format!("is damaged: it reads as {}; reset the key", unreadable.0))?;
    Ok(match reply.state {
        StateReply::Log(log) if holds.is_empty() => inspected(log, holds, quota, now, cost),
        StateReply::Log(log) => inspected(replayed(&log, quota), holds, quota, now, cost),
        StateReply::Window(state) => inspected(state, holds, quota, now, cost),
        StateReply::Fixed(state) => inspected(state, holds, quota, now, cost),
        StateReply::Bucket(state) => inspected(state, holds, quota, now, cost),
        StateReply::InFlight(state) => inspected(state, holds, quota, now, cost),
    })
}
