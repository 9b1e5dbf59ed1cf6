//! Calls of the module's commands for any number of keys, as bytes: one argument, before the keys.
//!
//! Little-endian numbers. A call begins with the version of this format, so that an instance and a
//! module of different releases never misread each other.

use slidegate::internal::{EndedHold, HoldChange, NewHold, Part, Setting};
use slidegate::reserve::Unsettled;
use slidegate::{
    Algorithm, Calendar, Excess, Quota,
    verb::{Role, Verb},
};
use smallvec::SmallVec;

use crate::quota_bytes::read_quota;
use crate::write::Reader;

mod bytes;

pub use bytes::{hold_bytes, mode_letters};

/// The version of the format.
const VERSION: u8 = 2;
/// Flags of a call: keys may have holds; the first reply is stored.
const HAS_HOLDS: u8 = 1;
const IS_ONCE: u8 = 2;
/// Maximum number of keys of a call.
pub const MAX_PARTS: usize = 1024;
/// Maximum number of requests of a call.
pub const MAX_REQUESTS: usize = 2048;
/// The own cost of a part that has none.
const NO_COST: u64 = (1 << 56) - 1;
/// Bytes of a hold that is made: id, time, and whether it is dropped at its end.
const HOLD: usize = 14;
/// Bytes of a change: the hold's id, the number of the change, the total cost, its time, the total
/// held, its end, whether it is dropped at its end, and its creation.
const CHANGE: usize = 8 + 1 + 7 + 5 + 7 + 7 + 1 + 7;
/// Numbers of changes.
const SETTLE: u8 = 1;
const SETTLE_PART: u8 = 2;
const CANCEL: u8 = 3;
const REFUND: u8 = 4;
const EXTEND: u8 = 5;
const EXTEND_TIME: u8 = 6;

/// How long the usage of a key with holds is kept beyond the time that it counts: the server's clock
/// may be set back a little, and charges count up to a step longer.
const LINGER_MS: u64 = 6000;
/// Maximum time that Redis is asked to keep it: 100 years.
const MOST_LINGER_MS: u64 = 3_155_760_000_000;

/// A call that decides requests, as `decide.lua` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecideCall {
    /// The latest time at which it may still charge, in microseconds of the server's clock.
    pub latest: u64,
    /// Whether its keys may have holds. Each then has a second key, of its usage beside holds.
    pub has_holds: bool,
    /// How long the first reply is stored, in milliseconds, if the call has an idempotency key.
    pub once_ms: Option<u64>,
    /// The cost of each request.
    pub costs: SmallVec<[u64; 4]>,
    /// Its keys.
    pub parts: SmallVec<[CallPart; 4]>,
}

/// One key's part of the requests of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPart {
    /// The index of its key in the call. A key of several parts is counted once.
    pub key: usize,
    /// The quota of the key.
    pub quota: Quota,
    /// How it takes part. Its cost is that of the request.
    pub part: Part,
    /// Its own cost, if that differs from the request's.
    pub own_cost: Option<u64>,
    /// The hold to make instead of a charge, or to cancel instead of a refund.
    pub hold: Option<NewHold>,
}

/// A call that changes holds, as `change_holds.lua` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeCall {
    /// The latest time at which it may still charge, in microseconds of the server's clock.
    pub latest: u64,
    /// For each key.
    pub changes: SmallVec<[KeyChange; 4]>,
}

/// The change of the hold on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChange {
    /// The quota of the key.
    pub quota: Quota,
    /// The reservation's id.
    pub id: u64,
    /// The change.
    pub change: HoldChange,
    /// Total held.
    pub amount: u64,
    /// When the hold ends.
    pub until: u64,
    /// Applies if the hold expires unsettled.
    pub unsettled: Unsettled,
    /// When it was made.
    pub made: u64,
}

/// How long a hold's final charge is kept after its end, in milliseconds.
pub fn linger_ms(quota: &Quota) -> u64 {
    // The module does not know how long the windows of a calendar are.
    if quota.window_code() >= Calendar::LEAST_CODE {
        return MOST_LINGER_MS;
    }
    // Usage lasts up to two windows; that of a bucket until its largest content has drained.
    let windows = match quota.algorithm().setting() {
        Setting::Burst => quota.max_used().div_ceil(quota.limit().max(1)).max(2),
        Setting::Lease => 0,
        Setting::Nothing | Setting::Slots | Setting::Calendar => 2,
    };
    (windows.saturating_mul(quota.window_us()) / 1000).saturating_add(LINGER_MS).min(MOST_LINGER_MS)
}

impl Reader<'_> {
    fn version(&mut self) -> Option<()> {
        (self.byte()? == VERSION).then_some(())
    }

    fn hold(&mut self) -> Option<NewHold> {
        let mut fields = Reader(self.bytes(HOLD)?);
        let (id, ttl_us) = (fields.number(8)?, fields.number(5)?);
        Some(NewHold { id, ttl_us, unsettled: unsettled(fields.byte()?)? })
    }
}

fn unsettled(is_dropped: u8) -> Option<Unsettled> {
    match is_dropped {
        0 => Some(Unsettled::Charge),
        1 => Some(Unsettled::Forget),
        _ => None,
    }
}

impl DecideCall {
    /// Reads a call. `None` if it has another version or is out of bounds: 1024 keys, 2048
    /// requests, counts up to 2^53 - 1.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader(bytes);
        fields.version()?;
        let flags = fields.byte()?;
        let has_holds = flags & HAS_HOLDS != 0;
        let latest = fields.count()?;
        let once_ms = if flags & IS_ONCE == 0 { None } else { Some(fields.count()?) };
        let requests = fields.small().filter(|requests| (1..=MAX_REQUESTS).contains(requests))?;
        let costs = (0..requests).map(|_| fields.count()).collect::<Option<SmallVec<_>>>()?;
        let (mut parts, mut quotas) = (SmallVec::<[CallPart; 4]>::new(), SmallVec::<[Quota; 4]>::new());
        while !fields.0.is_empty() {
            if parts.len() == MAX_PARTS {
                return None;
            }
            parts.push(CallPart::read(&mut fields, has_holds, &mut quotas)?);
        }
        let has_refunds = parts.iter().any(|one| one.part.verb == Verb::Refund);
        let is_valid = flags <= HAS_HOLDS | IS_ONCE
            // A part with this role needs a part before it.
            && parts.first().is_some_and(|one| one.part.role != Role::Refusals)
            // A call with refunds is one request, and so is one with an idempotency key.
            && (requests == 1 || !has_refunds && once_ms.is_none());
        is_valid.then_some(Self { latest, has_holds, once_ms, costs, parts })
    }

    /// The number of its keys. As many keys of usage follow if [they may have
    /// holds](Self::has_holds), and then one for the first reply.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|one| one.key + 1).max().unwrap_or(0)
    }

    /// Whether its keys may have holds.
    #[must_use]
    pub fn has_holds(&self) -> bool {
        self.has_holds
    }

    /// Whether its first reply is stored.
    #[must_use]
    pub fn is_once(&self) -> bool {
        self.once_ms.is_some()
    }

    /// The latest time at which it may still charge, in microseconds since the Unix epoch.
    #[must_use]
    pub fn latest_us(&self) -> u64 {
        self.latest
    }
}

impl CallPart {
    /// Reads a part. `quotas` has those of the keys so far.
    fn read(fields: &mut Reader<'_>, has_holds: bool, quotas: &mut SmallVec<[Quota; 4]>) -> Option<Self> {
        let key = fields.small()?;
        let mode = fields.bytes(5)?;
        let own_cost = match fields.number(7)? {
            NO_COST => None,
            cost => Some(cost).filter(|cost| *cost <= Quota::MAX_COUNT).map(Some)?,
        };
        if key == quotas.len() {
            quotas.push(read_quota(fields)?);
        }
        let quota = *quotas.get(key)?;
        let (verb, is_held) = match mode[0] {
            b'c' => (Verb::Check, false),
            b'h' => (Verb::Check, true),
            b'p' => (Verb::Peek, false),
            b'r' => (Verb::Refund, false),
            b'x' => (Verb::Refund, true),
            b'n' => (Verb::Penalize, false),
            _ => return None,
        };
        let enforced = one_of(mode[1], &[(b'e', true), (b's', false)])?;
        let excess =
            one_of(mode[2], &[(b'-', Excess::Refuse), (b'+', Excess::Charge), (b'!', Excess::Count)])?;
        let role =
            one_of(mode[3], &[(b'd', Role::Deciding), (b't', Role::Together), (b'k', Role::Refusals)])?;
        let over_limit = one_of(mode[4], &[(b'o', true), (b'-', false)])?;
        let hold = if is_held { Some(fields.hold()?) } else { None };
        let needs_holds = is_held || quota.algorithm() == Algorithm::InFlight;
        let part = Part { verb, role, cost: 0, enforced, excess, over_limit };
        (has_holds || !needs_holds).then_some(Self { key, quota, part, own_cost, hold })
    }

    /// How it takes part in a request of this cost.
    pub(super) fn part(&self, cost: u64) -> Part {
        Part { cost: self.own_cost.unwrap_or(cost), ..self.part }
    }
}

fn one_of<T: Copy>(letter: u8, all: &[(u8, T)]) -> Option<T> {
    all.iter().find(|(one, _)| *one == letter).map(|(_, meaning)| *meaning)
}

impl ChangeCall {
    /// Reads a call. `None` if it has another version or is out of bounds: 1024 keys, counts up to
    /// 2^53 - 1.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader(bytes);
        fields.version()?;
        let latest = fields.count()?;
        let mut changes = SmallVec::<[KeyChange; 4]>::new();
        while !fields.0.is_empty() {
            if changes.len() == MAX_PARTS {
                return None;
            }
            let quota = read_quota(&mut fields)?;
            changes.push(KeyChange::read(quota, fields.bytes(CHANGE)?)?);
        }
        (!changes.is_empty()).then_some(Self { latest, changes })
    }

    /// The number of its keys. As many keys of usage follow.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.changes.len()
    }

    /// The latest time at which it may still charge, in microseconds since the Unix epoch.
    #[must_use]
    pub fn latest_us(&self) -> u64 {
        self.latest
    }
}

impl KeyChange {
    fn read(quota: Quota, bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader(bytes);
        let (id, kind) = (fields.number(8)?, fields.byte()?);
        let (total, ttl_us) = (fields.count()?, fields.number(5)?);
        let change = match kind {
            SETTLE => HoldChange::Settle { total, ttl_us: None },
            SETTLE_PART => HoldChange::Settle { total, ttl_us: Some(ttl_us) },
            CANCEL => HoldChange::Cancel,
            REFUND => HoldChange::Refund { cost: total },
            EXTEND => HoldChange::Extend { total: Some(total), ttl_us },
            EXTEND_TIME => HoldChange::Extend { total: None, ttl_us },
            _ => return None,
        };
        let (amount, until) = (fields.count()?, fields.count()?);
        let unsettled = unsettled(fields.byte()?)?;
        Some(Self { quota, id, change, amount, until, unsettled, made: fields.count()? })
    }

    /// The outcome of the hold if it is no longer open at this time.
    pub(super) fn ended(&self, now: u64) -> EndedHold {
        EndedHold { amount: self.amount, is_over: now >= self.until, unsettled: self.unsettled }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn part(key: usize, quota: Quota, verb: Verb, hold: Option<NewHold>) -> CallPart {
        let (role, excess) = (Role::Deciding, Excess::Refuse);
        let part = Part { verb, role, cost: 0, enforced: true, excess, over_limit: false };
        CallPart { key, quota, part, own_cost: None, hold }
    }

    fn call() -> DecideCall {
        let log = Quota::per_minute(100);
        let bucket = Quota::per_hour(7).with_algorithm(Algorithm::TokenBucket).with_burst(9);
        let permits = Quota::in_flight(20, Duration::from_secs(30)).unwrap();
        let hold = NewHold { id: u64::MAX, ttl_us: 3_600_000_000, unsettled: Unsettled::Forget };
        let mut parts: SmallVec<[CallPart; 4]> = SmallVec::new();
        parts.push(part(0, log, Verb::Check, Some(hold)));
        parts.push(part(1, bucket, Verb::Penalize, None));
        parts.push(part(0, log, Verb::Refund, Some(hold)));
        parts.push(part(2, permits, Verb::Peek, None));
        parts[1].part = Part { role: Role::Refusals, excess: Excess::Count, ..parts[1].part };
        parts[3].part = Part { role: Role::Together, over_limit: true, ..parts[3].part };
        parts[3].part.enforced = false;
        parts[3].own_cost = Some(Quota::MAX_COUNT);
        let costs = [3].as_slice().into();
        DecideCall { latest: 1 << 50, has_holds: true, once_ms: Some(60_000), costs, parts }
    }

    /// Anybody who may call the command may send anything.
    #[test]
    fn what_is_no_call_is_refused() {
        let valid = call();
        assert_eq!(DecideCall::read(&valid.bytes()), Some(valid.clone()));
        let refused = |call: DecideCall| assert_eq!(DecideCall::read(&call.bytes()), None, "{call:?}");
        refused(DecideCall { has_holds: false, ..valid.clone() });
        refused(DecideCall { costs: SmallVec::new(), ..valid.clone() });
        refused(DecideCall { parts: SmallVec::new(), ..valid.clone() });
        refused(DecideCall { costs: vec![1, 1].into(), ..valid.clone() });
        refused(DecideCall { costs: vec![Quota::MAX_COUNT + 1].into(), ..valid.clone() });
        refused(DecideCall { latest: Quota::MAX_COUNT + 1, ..valid.clone() });
        let mut without_base = valid.clone();
        without_base.parts[0].part.role = Role::Refusals;
        refused(without_base);
        let mut unknown = valid.clone();
        unknown.parts[3].key = 4;
        refused(unknown);
        let bytes = valid.bytes();
        for length in 0..bytes.len() {
            // Cut between its parts, it is a call for fewer keys.
            let read = DecideCall::read(&bytes[..length]);
            assert!(read.is_none_or(|read| read.keys() < valid.keys()), "{length} bytes");
        }
        for (at, wrong) in [(0, 1), (1, 4), (20 + 7, b'q')] {
            let mut other = bytes.clone();
            other[at] = wrong;
            assert_eq!(DecideCall::read(&other), None, "{wrong} at {at}");
        }
    }
}
