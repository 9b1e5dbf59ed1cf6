//! Inspection: reads the stored value of one key in full, for operators.
//!
//! Reads the bytes documented in docs/redis-layout.md, without a script. A malformed value is an
//! error that names the key.

use redis::Value;
use redis_once::{Executed, Failure, FailureKind, ReplyBound};
use slidegate::internal::{
    FixedWindow, Hold, Holds, InFlight, LogReply, SECOND_US, SlidingLog, SlidingWindow, State, TokenBucket,
    inspect_with_holds, instant,
};
use slidegate::store::{Charge, KeyInspection, OpenHold};
use slidegate::{Algorithm, Quota, clock::Timestamp};
use slidegate_stored::compact;

use super::PATIENCE;
use crate::calls::{Calls, explain};
use crate::names::Names;

/// Bytes of a log's header.
const HEADER: usize = 48;
/// Bytes of the largest value: a log with the maximum number of runs, each of the maximum width.
const LARGEST: usize = HEADER + 65_535 * 13;

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
        let client = &calls.client;
        let get = async |name: &[u8]| {
            let mut get = redis::cmd("GETRANGE");
            get.arg(name).arg(0).arg(LARGEST);
            let bound = ReplyBound::of(LARGEST + 1);
            client.bounded_command(Some(name), &get, bound, deadline).await.map_err(explain)
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
            calls.failed(client.slot(name.as_bytes()), Executed::No, FailureKind::Malformed, &detail)
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
    // The rest is left over from ended holds.
    let list = list.get(..count * Holds::HOLD_BYTES).ok_or_else(damaged)?;
    Holds::read(header, list).ok_or_else(damaged)
}

/// The inspection of a state beside holds. Redis has one clock.
fn inspected<S: State>(state: S, holds: Holds, quota: &Quota, now: Timestamp, cost: u64) -> KeyInspection {
    let (mut found, holds) = inspect_with_holds(state, holds, quota, (now, now), cost);
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

/// Reads a value. A value of another algorithm counts as no usage, as in a decision.
pub(crate) fn read(
    bytes: &[u8],
    holds: Holds,
    quota: &Quota,
    now: Timestamp,
    cost: u64,
) -> Result<KeyInspection, String> {
    let algorithm = match bytes.first() {
        None => None,
        Some(0x11 | 0x21) => Some(Algorithm::FixedWindow),
        Some(0x12 | 0x22) => Some(Algorithm::SlidingWindow),
        Some(0x13) => Some(Algorithm::TokenBucket),
        Some(0x14) => Some(Algorithm::SlidingLog),
        Some(0x1f) => return Err("is damaged: its ring was cut off; reset the key".to_owned()),
        Some(other) => {
            return Err(format!(
                "is not of layout 1 or 2: its first byte is {other}; another program writes it, or a newer slidegate does"
            ));
        }
    };
    let is_ours = algorithm == Some(quota.algorithm());
    let mut fields = Fields { bytes, at: 1 };
    let is_compact = bytes.first().copied() == compact::tag(quota.algorithm());
    let expect = |wide: usize| {
        let damaged = || format!("is damaged: it has {} bytes; reset the key", bytes.len());
        let length = if is_compact { compact::BYTES } else { wide };
        if bytes.len() == length { Ok(()) } else { Err(damaged()) }
    };
    match quota.algorithm() {
        Algorithm::SlidingLog => {
            let log = if is_ours { log(bytes, quota, now)? } else { LogReply::default() };
            if holds.is_empty() {
                return Ok(inspected(log, holds, quota, now, cost));
            }
            Ok(inspected(replayed(&log, quota), holds, quota, now, cost))
        }
        Algorithm::InFlight => Ok(inspected(InFlight, holds, quota, now, cost)),
        _ if !is_ours => Ok(match quota.algorithm() {
            Algorithm::SlidingWindow => inspected(SlidingWindow::default(), holds, quota, now, cost),
            Algorithm::FixedWindow => inspected(FixedWindow::default(), holds, quota, now, cost),
            _ => inspected(TokenBucket::default(), holds, quota, now, cost),
        }),
        Algorithm::SlidingWindow => {
            expect(28)?;
            let (window, end, previous, current) = if is_compact {
                let (window, end, counts) = fields.compact();
                (window, end, counts >> 20, counts & ((1 << 20) - 1))
            } else {
                (fields.number(6), fields.number(7), fields.number(7), fields.number(7))
            };
            under_window(
                SlidingWindow::from_parts(end, previous, current),
                (window, end),
                holds,
                quota,
                now,
                cost,
            )
        }
        Algorithm::FixedWindow => {
            expect(21)?;
            let (window, end, used) = if is_compact {
                fields.compact()
            } else {
                (fields.number(6), fields.number(7), fields.number(7))
            };
            let mut state = FixedWindow::from_parts(end, used);
            if window == quota.window_code() {
                state.align(quota);
            }
            under_window(state, (window, end), holds, quota, now, cost)
        }
        Algorithm::TokenBucket => {
            expect(27)?;
            let (window, at, level, fraction) =
                (fields.number(6), fields.number(7), fields.number(7), fields.number(6));
            under_window(TokenBucket::from_parts(at, level, fraction), (window, at), holds, quota, now, cost)
        }
    }
}

/// Reads counters whose window may differ from the quota's.
fn under_window<S: State>(
    mut state: S,
    (window, end): (u64, u64),
    holds: Holds,
    quota: &Quota,
    now: Timestamp,
    cost: u64,
) -> Result<KeyInspection, String> {
    if window != quota.window_code() {
        let damaged = || format!("is damaged: its window is {window} us; reset the key");
        let counted = quota.counted_in(window, end).ok_or_else(damaged)?;
        let settled = state.settle(&counted, now.as_micros());
        state.adopt(&counted, quota, settled);
    }
    Ok(inspected(state, holds, quota, now, cost))
}

/// Reads the runs of a log that still count.
fn log(bytes: &[u8], quota: &Quota, now: Timestamp) -> Result<LogReply, String> {
    let damaged = |what: &str| format!("is damaged: {what}; reset the key");
    if bytes.len() < HEADER {
        return Err(damaged(&format!("it has {} bytes", bytes.len())));
    }
    let mut fields = Fields { bytes, at: 2 };
    let (used, newest, _oldest) = (fields.number(7), fields.number(7), fields.number(7));
    let widths = fields.size(1);
    let (stamp_bytes, cost_bytes) = (widths / 16, widths % 16);
    let (head, len, room) = (fields.size(2), fields.size(2), fields.size(2));
    let (newest_cost, shift) = (fields.number(7), fields.number(6));
    let run_bytes = stamp_bytes + cost_bytes;
    if !matches!(stamp_bytes, 4 | 6) || cost_bytes > 7 {
        return Err(damaged(&format!("its widths are {stamp_bytes} and {cost_bytes}")));
    }
    if bytes.len() != HEADER + room * run_bytes || len > room || head >= room.max(1) {
        return Err(damaged("its ring is cut off"));
    }
    let span = 1u64 << (8 * stamp_bytes);
    let mut runs = Vec::with_capacity(len + 1);
    for place in 0..len {
        fields.at = HEADER + (head + place) % room * run_bytes;
        let low = fields.number(stamp_bytes);
        let cost = if cost_bytes == 0 { 1 } else { fields.number(cost_bytes) };
        let back = (newest + shift).wrapping_sub(low) % span;
        runs.push((newest.saturating_sub(back), cost));
    }
    runs.push((newest, newest_cost));
    // In `u128`, because costs of 7 bytes that another program wrote may overflow.
    if runs.iter().map(|(_, cost)| u128::from(*cost)).sum::<u128>() != u128::from(used) && used > 0 {
        return Err(damaged("the sum of its runs is not its usage"));
    }
    runs.retain(|(stamp, cost)| *cost > 0 && used > 0 && stamp + quota.window_us() > now.as_micros());
    let (Some((oldest, _)), Some((newest, _))) = (runs.first().copied(), runs.last().copied()) else {
        return Ok(LogReply::default());
    };
    let used = runs.iter().map(|(_, cost)| cost).sum();
    Ok(LogReply::new(used, newest, oldest, runs))
}

/// Reads little-endian numbers one after the other. The bytes must be long enough.
struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Fields<'_> {
    fn number(&mut self, width: usize) -> u64 {
        let bytes = &self.bytes[self.at..self.at + width];
        self.at += width;
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The window, the end and the counts of a compact value, after its first byte.
    fn compact(&mut self) -> (u64, u64, u64) {
        let (code, end_s) = (self.number(2), self.number(4));
        (compact::window_us(code), end_s * SECOND_US, self.number(5))
    }

    /// A number of at most 2 bytes.
    fn size(&mut self, width: usize) -> usize {
        usize::try_from(self.number(width)).unwrap_or(usize::MAX)
    }
}
