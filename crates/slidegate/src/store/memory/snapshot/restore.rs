//! Restoring the keys of a snapshot.

use std::collections::HashMap;

use super::read::{before, take_text};
use super::save::{count_of, put_text};
use super::section::Kind;
use super::{Kind as ErrorKind, RestoredSnapshot, Snapshot, SnapshotError};
use crate::algorithm::{Ages, Input};
use crate::hold::Holds;
use crate::key::KeyId;
use crate::quota::{Algorithm, Quota, QuotaFields};
use crate::store::memory::shard::{Call, Restored, Saved};
use crate::store::memory::{MemoryStore, ShardData};
use crate::time::{Moment, Timestamp};
use crate::verb::Verb;

/// A policy as it is saved.
#[derive(Debug)]
pub(crate) struct SavedPolicy<'p> {
    /// What its keys are stored under in this process.
    pub(crate) number: u32,
    pub(crate) name: &'p str,
    pub(crate) scope: &'p [String],
    pub(crate) quota: &'p Quota,
    pub(crate) overrides: Vec<(KeyId, &'p Quota)>,
}

impl SavedPolicy<'_> {
    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_le_bytes());
        put_text(out, self.name);
        out.extend_from_slice(&count_of(self.scope.len()).to_le_bytes());
        self.scope.iter().for_each(|attribute| put_text(out, attribute));
        self.quota.fields().save(out);
        out.extend_from_slice(&count_of(self.overrides.len()).to_le_bytes());
        for (key, quota) in &self.overrides {
            key.save(out);
            quota.fields().save(out);
        }
    }
}

/// The policies of the process that restores.
pub(crate) trait SavedQuotas {
    /// The number of the policy with this name and scope, if it is known.
    fn number_of(&self, name: &str, scope: &[String]) -> Option<u32>;
    /// The quota of a key, if its policy is active.
    fn quota_of(&self, policy: u32, key: KeyId) -> Option<Quota>;
}

/// A policy of the process that saved.
struct Former {
    /// What its keys are stored under here.
    number: Option<u32>,
    quota: Quota,
    overrides: HashMap<KeyId, Quota>,
}

impl Former {
    /// A policy with the number that it had.
    fn read(input: &mut Input<'_>, active: &impl SavedQuotas) -> Option<(u32, Self)> {
        let was = input.u32()?;
        let name = take_text(input)?;
        let scope: Option<Vec<_>> = (0..input.u32()?).map(|_| take_text(input).map(str::to_owned)).collect();
        let quota = QuotaFields::read(input)?.quota()?;
        let overrides: Option<_> = (0..input.u32()?)
            .map(|_| Some((KeyId::read(input)?, QuotaFields::read(input)?.quota()?)))
            .collect();
        let number = active.number_of(name, &scope?);
        Some((was, Self { number, quota, overrides: overrides? }))
    }
}

impl Snapshot {
    pub(crate) fn restore(
        &mut self,
        memory: &MemoryStore,
        active: &impl SavedQuotas,
    ) -> Result<RestoredSnapshot, SnapshotError> {
        if self.written.identity_seed != memory.secret.identity_seed() {
            let message =
                "the store hashes keys in another way: build it with `MemoryStoreBuilder::for_snapshot`";
            return Err(SnapshotError { kind: ErrorKind::OtherStore, message: message.to_owned() });
        }
        let now = memory.clock.moment(memory.clock.now());
        let downtime = self.written.until(now, memory.clock.boot());
        let begin = Moment {
            at: Timestamp::from_micros(before(now.at, downtime)),
            wall: Timestamp::from_micros(before(now.wall, downtime)),
        };
        let written_at = self.written_at();
        let mut restored = RestoredSnapshot { downtime, written_at, ..RestoredSnapshot::default() };
        let mut policies = HashMap::new();
        let mut sections = self.sections()?;
        while let Some((kind, content)) = sections.next()? {
            let mut input = Input(content);
            let damaged = || SnapshotError::damaged(format!("a section of kind {kind:?} is malformed"));
            match kind {
                Kind::Header | Kind::Attachment | Kind::End => {}
                Kind::Policies => {
                    let count = input.u32().ok_or_else(damaged)?;
                    let read = (0..count).map(|_| Former::read(&mut input, active));
                    policies = read.collect::<Option<_>>().ok_or_else(damaged)?;
                }
                Kind::Holds => {
                    while !input.0.is_empty() {
                        let held = restore_holds(&mut input, &policies, memory, active, begin);
                        restored.holds += held.ok_or_else(damaged)?;
                    }
                }
                Kind::Keys => {
                    while !input.0.is_empty() {
                        let one = restore_key(&mut input, &policies, memory, active, begin);
                        *restored.count_of(one.ok_or_else(damaged)?) += 1;
                    }
                }
            }
        }
        Ok(restored)
    }
}

/// `None` if the input is malformed.
fn restore_key(
    input: &mut Input<'_>,
    policies: &HashMap<u32, Former>,
    memory: &MemoryStore,
    active: &impl SavedQuotas,
    begin: Moment,
) -> Option<Restored> {
    let (algorithm, flags) = (Algorithm::from_byte(input.u8()?)?, input.u8()?);
    let former = policies.get(&input.u32()?)?;
    let id = KeyId::read(input)?;
    let inline = if flags & KeyId::HAS_QUOTA != 0 { Some(QuotaFields::read(input)?.quota()?) } else { None };
    let old = inline.unwrap_or_else(|| *former.overrides.get(&id).unwrap_or(&former.quota));
    let number = former.number.unwrap_or(0);
    let is_active = former.number.and_then(|number| active.quota_of(number, id));
    let quota = is_active.map(|active| inline.unwrap_or(active));
    let address = memory.address(id, number);
    let ShardData { shard, inline_quotas, .. } = &mut *memory.lock(memory.shard_of(address.place));
    let call = Call {
        reserve: None,
        verb: Verb::Peek,
        address,
        quota: quota.as_ref().unwrap_or(&old),
        cost: 0,
        now: shard.arrive(memory.clock.now(), &memory.clock),
        accounting: &memory.accounting,
        secret: &memory.secret,
    };
    let saved = Saved {
        algorithm,
        quota: &old,
        ages: [Ages { at_us: begin.at.as_micros() }, Ages { at_us: begin.wall.as_micros() }],
        is_repeated: flags & KeyId::IS_REPEATED != 0,
        is_wanted: quota.is_some(),
    };
    let restored = shard.restore(&call, &saved, input)?;
    if restored == Restored::Counts {
        inline_quotas.after(&call, inline.is_some(), shard);
    }
    Some(restored)
}

/// Restores the holds of a key. Returns how many, or `None` if the input is malformed.
fn restore_holds(
    input: &mut Input<'_>,
    policies: &HashMap<u32, Former>,
    memory: &MemoryStore,
    active: &impl SavedQuotas,
    begin: Moment,
) -> Option<u64> {
    let (flags, former) = (input.u8()?, policies.get(&input.u32()?)?);
    let id = KeyId::read(input)?;
    let inline = if flags & KeyId::HAS_QUOTA != 0 { Some(QuotaFields::read(input)?.quota()?) } else { None };
    let now = memory.clock.now();
    let holds = Holds::load(input, Ages { at_us: begin.at.as_micros() }, now.as_micros())?;
    let number = former.number.unwrap_or(0);
    let Some(quota) = former.number.and_then(|number| active.quota_of(number, id)) else { return Some(0) };
    let quota = inline.unwrap_or(quota);
    let address = memory.address(id, number);
    let ShardData { shard, inline_quotas, .. } = &mut *memory.lock(memory.shard_of(address.place));
    let call = Call {
        reserve: None,
        verb: Verb::Peek,
        address,
        quota: &quota,
        cost: 0,
        now: shard.arrive(now, &memory.clock),
        accounting: &memory.accounting,
        secret: &memory.secret,
    };
    let restored = shard.restore_holds(&call, holds);
    inline_quotas.after(&call, inline.is_some(), shard);
    Some(restored)
}

impl RestoredSnapshot {
    fn count_of(&mut self, restored: Restored) -> &mut u64 {
        match restored {
            Restored::Counts => &mut self.keys,
            Restored::Expired => &mut self.expired,
            Restored::UnknownPolicy => &mut self.unknown_policy,
            Restored::OtherAlgorithm => &mut self.other_algorithm,
            Restored::AlreadyUsed => &mut self.already_used,
        }
    }
}

impl KeyId {
    /// Flag of a key with a quota of its own that came with a request.
    pub(in crate::store::memory) const HAS_QUOTA: u8 = 1;
    /// Flag of a key that was used more than once.
    pub(in crate::store::memory) const IS_REPEATED: u8 = 2;

    pub(in crate::store::memory) fn save(self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|half| out.extend_from_slice(&half.to_le_bytes()));
    }

    fn read(input: &mut Input<'_>) -> Option<Self> {
        Some(Self([input.u64()?, input.u64()?]))
    }
}

impl QuotaFields {
    pub(in crate::store::memory) fn save(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.limit.to_le_bytes());
        out.extend_from_slice(&self.window_us.to_le_bytes());
        out.push(u8::from(self.burst.is_some()));
        out.extend_from_slice(&self.burst.unwrap_or(0).to_le_bytes());
        out.push(self.algorithm.to_byte());
        out.extend_from_slice(&self.slots.to_le_bytes());
    }

    fn read(input: &mut Input<'_>) -> Option<Self> {
        let (limit, window_us, has_burst, burst) = (input.u64()?, input.u64()?, input.u8()?, input.u64()?);
        let (algorithm, slots) = (Algorithm::from_byte(input.u8()?)?, input.u16()?);
        Some(Self { limit, window_us, burst: (has_burst == 1).then_some(burst), algorithm, slots })
    }
}

impl Algorithm {
    /// The number of an algorithm in a snapshot.
    pub(in crate::store::memory) fn to_byte(self) -> u8 {
        match self {
            Self::SlidingLog => 1,
            Self::SlidingWindow => 2,
            Self::FixedWindow => 3,
            Self::TokenBucket => 4,
            Self::InFlight => 5,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::InFlight]).find(|algorithm| algorithm.to_byte() == byte)
    }
}
