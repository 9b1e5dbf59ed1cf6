//! Holds in Redis: keys in tickets, and the calls that settle, extend and cancel.
//!
//! [`apply`](slidegate::store::SharedStore::apply) makes holds, in the script that decides. Changes
//! of holds are safe to repeat, so on a lost connection they are retried until their deadline.

use std::collections::BTreeMap;

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, Native, ReplyBound};
use slidegate::internal::{HoldChange, MetQuota, QuotaFields, TicketPart, VerbEffect};
use slidegate::reserve::{HoldStatus, Unsettled};
use slidegate::store::{HeldCharge, HoldAnswer, HoldCall, TicketKeyBytes};
use slidegate::{Algorithm, Quota, clock::Timestamp};
use slidegate_stored::call::{ChangeCall, KeyChange, MAX_PARTS};
use slidegate_stored::{algorithm_of, letter};
use tokio::time::Instant;

use crate::call::{MOST, packed_with_holds};
use crate::calls::Calls;
use crate::names::Names;
use crate::native::NativeCommand;
use crate::reply::{KeyReply, Unreadable, number};

/// A key as a ticket carries it: the quota if it is not the policy's, and the key's name.
struct HeldKey<'t> {
    quota: MetQuota,
    name: &'t [u8],
}

/// Bytes of a quota: algorithm, limit, window, burst, slots.
const QUOTA: usize = 1 + 7 + 7 + 8 + 2;
/// Marks a fixed window by a calendar, whose length and text follow the quota.
const CALENDAR: u8 = b'C';
/// Before an inline quota. Earlier releases, which did not mark them, cannot read such a ticket.
const INLINE: u8 = b'Q';
/// The burst of a quota without one.
const NO_BURST: u64 = u64::MAX;

/// Encodes the key of a charge for its ticket.
pub(super) fn key_for_ticket(held: &HeldCharge<'_>, names: &Names) -> Vec<u8> {
    let mut bytes = Vec::new();
    if held.has_other_quota {
        if held.charge.key.request.inline_quota().is_some() {
            bytes.push(INLINE);
        }
        let QuotaFields { limit, window_us, burst, algorithm, slots, calendar } = held.charge.quota.fields();
        bytes.push(calendar.map_or(letter(algorithm).as_bytes()[0], |_| CALENDAR));
        bytes.extend_from_slice(&limit.to_le_bytes()[..7]);
        bytes.extend_from_slice(&window_us.to_le_bytes()[..7]);
        bytes.extend_from_slice(&burst.unwrap_or(NO_BURST).to_le_bytes());
        bytes.extend_from_slice(&slots.to_le_bytes());
        if let Some(text) = calendar.map(|calendar| calendar.to_string()) {
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(text.as_bytes());
        }
    } else {
        bytes.push(0);
    }
    bytes.extend_from_slice(&names.name(&held.charge.key));
    bytes
}

impl<'t> HeldKey<'t> {
    /// Reads a key of a ticket that is sealed.
    fn read(bytes: &'t [u8]) -> Option<Self> {
        if bytes.first() == Some(&0) {
            return Some(Self { quota: MetQuota::OfPolicy, name: &bytes[1..] });
        }
        let is_inline = bytes.first() == Some(&INLINE);
        let bytes = if is_inline { &bytes[1..] } else { bytes };
        let (quota, mut name) = bytes.split_at_checked(QUOTA)?;
        let mut calendar = None;
        if quota[0] == CALENDAR {
            let (length, rest) = name.split_first()?;
            let (text, rest) = rest.split_at_checked(usize::from(*length))?;
            (calendar, name) = (Some(std::str::from_utf8(text).ok()?.parse().ok()?), rest);
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let algorithm = if calendar.is_some() { Algorithm::FixedWindow } else { algorithm_of(quota[0])? };
        let fields = QuotaFields {
            limit: number(&quota[1..8]),
            window_us: number(&quota[8..15]),
            burst: Some(number(&quota[15..23])).filter(|burst| *burst != NO_BURST),
            algorithm,
            slots: u16::from_le_bytes([quota[23], quota[24]]),
            calendar,
        };
        let quota = fields.quota()?;
        Some(Self { quota: if is_inline { MetQuota::Inline(quota) } else { MetQuota::Other(quota) }, name })
    }
}

/// The identity of a key: its name without the additions from other attributes of its requests.
pub(super) fn id_in_ticket(key: &[u8]) -> TicketKeyBytes {
    HeldKey::read(key).map_or_else(TicketKeyBytes::new, |key| Names::untagged(key.name).into())
}

/// The name of the key of a change.
pub(super) fn name(change: &HoldCall<'_>) -> Option<Vec<u8>> {
    HeldKey::read(change.key).map(|key| key.name.to_vec())
}

/// A change of the hold on one key, by its name.
#[derive(Clone)]
struct NamedChange {
    name: Vec<u8>,
    change: KeyChange,
}

/// The outcome of a change of one key.
struct KeyAnswer {
    /// The position of the change.
    at: usize,
    answer: HoldAnswer,
    /// The former total of a hold that was extended to a cost.
    before: Option<u64>,
}

impl NamedChange {
    fn new(change: &HoldCall<'_>) -> Option<Self> {
        let key = HeldKey::read(change.key)?;
        let (until, unsettled) = match change.part {
            TicketPart::Held { until, unsettled, .. } => (until.as_micros(), unsettled),
            TicketPart::Charged => (MOST, Unsettled::Charge),
        };
        let quota = change.quota(key.quota);
        let HoldCall { id, change, amount, made, .. } = *change;
        let made = made.as_micros();
        let change = KeyChange { quota, id, change, amount, until, unsettled, made };
        Some(Self { name: key.name.to_vec(), change })
    }

    /// Its arguments for the script: letter, quota and change.
    fn args(&self, latest: u64) -> [Vec<u8>; 3] {
        let quota = &self.change.quota.sent_at(latest);
        let algorithm = letter(quota.algorithm()).as_bytes().to_vec();
        [algorithm, packed_with_holds(quota, None, None), self.change.bytes()]
    }

    /// The change that undoes an extension to a cost.
    fn undo(mut self, before: u64) -> Self {
        if let HoldChange::Extend { total: Some(total), .. } = &mut self.change.change {
            *total = before;
        }
        self
    }

    /// Whether it may free cost, held or charged. A partial settlement turns held cost into used
    /// cost.
    fn frees(&self) -> bool {
        matches!(
            self.change.change,
            HoldChange::Settle { ttl_us: None, .. }
                | HoldChange::Cancel
                | HoldChange::Refund { .. }
                | HoldChange::Extend { total: Some(_), .. }
        )
    }

    /// Reads the answer of the script about this key.
    fn read(&self, at: usize, now: Timestamp, reply: Value) -> Result<KeyAnswer, Unreadable> {
        let wrong =
            |what: &Value| Unreadable(format!("{what:?} instead of the answer to a change of a hold"));
        let Value::Array(mut parts) = reply else { return Err(wrong(&reply)) };
        let before = if parts.len() == 4 { parts.pop() } else { None };
        let before = match before.as_ref().map(|before| number(before).ok_or_else(|| wrong(before))) {
            Some(before) => Some(before?),
            None => None,
        };
        let Ok([status, cost, numbers]) = <[Value; 3]>::try_from(parts) else {
            return Err(Unreadable("a wrong number of parts for a change of a hold".to_owned()));
        };
        let Some(cost) = number(&cost) else { return Err(wrong(&cost)) };
        let status = match status {
            Value::Int(1) => HoldStatus::Changed,
            Value::Int(2) => HoldStatus::AlreadySettled,
            Value::Int(3) => HoldStatus::Expired,
            Value::Int(4) => HoldStatus::Denied,
            other => return Err(wrong(&other)),
        };
        let done = match status {
            HoldStatus::Denied if cost > 0 => VerbEffect::Refused(cost),
            _ => VerbEffect::Moved(cost),
        };
        let mut after = KeyReply::read_with_holds(&self.change.quota, false, numbers)?;
        let answer = HoldAnswer { status, decision: after.after(&self.change.quota, now, done) };
        Ok(KeyAnswer { at, answer, before })
    }
}

/// Applies changes of holds: all or none if their keys are in one slot.
pub(super) async fn change(calls: &Calls, changes: &[HoldCall<'_>]) -> Result<Vec<HoldAnswer>, Failure> {
    let deadline = calls.deadline();
    let mut by_slot = BTreeMap::<u16, Vec<(usize, NamedChange)>>::new();
    for (at, change) in changes.iter().enumerate() {
        let Some(mut change) = NamedChange::new(change) else {
            let detail = "a ticket of this store has a key that this release cannot read";
            return Err(Failure::without_node(Executed::No, FailureKind::Malformed, detail));
        };
        change.change.quota = calls.counted(change.change.quota);
        by_slot.entry(calls.client.slot(&change.name)).or_default().push((at, change));
    }
    let mut answers: Vec<Option<HoldAnswer>> = vec![None; changes.len()];
    let (is_spread, mut extended) = (by_slot.len() > 1, Vec::new());
    for (slot, changes) in by_slot {
        for KeyAnswer { at, answer, before } in change_in_slot(calls, slot, &changes, deadline).await? {
            answers[at] = Some(answer);
            let change = changes.iter().find(|(of, _)| *of == at).filter(|_| is_spread);
            extended
                .extend(change.zip(before).map(|((_, one), before)| (slot, at, one.clone().undo(before))));
        }
    }
    if answers.iter().flatten().any(|one| one.status == HoldStatus::Denied) {
        // Undoes these extensions, because another slot denied its own.
        for (slot, at, undo) in extended {
            for KeyAnswer { mut answer, .. } in change_in_slot(calls, slot, &[(at, undo)], deadline).await? {
                if answer.status == HoldStatus::Changed {
                    answer.status = HoldStatus::Denied;
                }
                answers[at] = Some(answer);
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Changes holds on keys of one slot, in one step.
async fn change_in_slot(
    calls: &Calls,
    slot: u16,
    changes: &[(usize, NamedChange)],
    deadline: Instant,
) -> Result<Vec<KeyAnswer>, Failure> {
    let mut keys: Vec<_> = changes.iter().map(|(_, change)| change.name.clone()).collect();
    keys.extend(changes.iter().map(|(_, change)| Names::usage(&change.name)));
    let bound = ReplyBound::of(changes.iter().map(|(_, one)| KeyReply::most_bytes(&one.change.quota)).sum());
    let _released = Released::by(calls, changes);
    let is_countable = |quota: &Quota| quota.limit().max(quota.burst()) <= MOST;
    let is_native =
        changes.len() <= MAX_PARTS && changes.iter().all(|(_, one)| is_countable(&one.change.quota));
    loop {
        let latest = calls.latest(slot, &keys, deadline).await?;
        let mut args = vec![latest.to_string().into_bytes()];
        args.extend(changes.iter().flat_map(|(_, change)| change.args(latest)));
        let script = &calls.scripts().change_holds;
        let (sent, unread) = (calls.now(), LastFailure::default());
        let build = || {
            let sent = |one: &KeyChange| KeyChange { quota: one.quota.sent_at(latest), ..*one };
            let changes = changes.iter().map(|(_, one)| sent(&one.change)).collect();
            NativeCommand::Change.call(&keys, &args, ChangeCall { latest, changes }.bytes())
        };
        let native = is_native.then_some(Native { command: NativeCommand::Change as usize, build: &build });
        let call = Call { script, keys: &keys, args: &args, native };
        match calls.reply(calls.client.run(call, bound, deadline, &unread).await) {
            Ok(value) => {
                let replied = read(changes, value);
                let (now, reply) = replied.map_err(|unreadable| calls.misread(slot, &unreadable))?;
                calls.observe_time(slot, now, sent, calls.now());
                if let Some(answers) = reply {
                    return Ok(answers);
                }
                // Late: nothing was changed.
                calls.pause(slot, deadline).await?;
            }
            Err(failure) if failure.kind == FailureKind::ConnectionLost => {
                calls.pause(slot, deadline).await?;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Ends cached denials of the keys whose holds are changed, when the change is over: also if it
/// failed or its caller is gone, because the server may have made it.
struct Released<'a> {
    calls: &'a Calls,
    changes: &'a [(usize, NamedChange)],
}

impl<'a> Released<'a> {
    fn by(calls: &'a Calls, changes: &'a [(usize, NamedChange)]) -> Self {
        let released = Self { calls, changes };
        released.end_denials();
        released
    }

    fn end_denials(&self) {
        let now = self.calls.now();
        for (_, change) in self.changes.iter().filter(|(_, change)| change.frees()) {
            self.calls.denials.cache.release(&change.name, now);
        }
    }
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.end_denials();
    }
}

/// The server's time, and the outcomes of the changes: `None` if the call came too late and has changed nothing.
fn read(changes: &[(usize, NamedChange)], reply: Value) -> Result<(u64, Option<Vec<KeyAnswer>>), Unreadable> {
    let wrong = || Unreadable("no answers to changes of holds".to_owned());
    let Value::Array(mut parts) = reply else { return Err(wrong()) };
    let answers = (parts.len() == 3).then(|| parts.pop()).flatten();
    let now = parts.get(1).and_then(number).ok_or_else(wrong)?;
    let Some(Value::Array(answers)) = answers else { return Ok((now, None)) };
    if answers.len() != changes.len() {
        return Err(wrong());
    }
    let at = Timestamp::from_micros(now);
    let read =
        |((position, change), answer): (&(usize, NamedChange), Value)| change.read(*position, at, answer);
    let answers = changes.iter().zip(answers).map(read).collect::<Result<_, Unreadable>>()?;
    Ok((now, Some(answers)))
}
