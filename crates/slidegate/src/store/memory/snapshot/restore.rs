//! Reads a snapshot, verifies all of it before using any, and restores its keys.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::time::Duration;

use super::format::{
    CHECKSUM_BYTES, Header, MAGIC, PREAMBLE_BYTES, Record, SavedKey, SavedPolicy, Summed, TRAILER_BYTES,
    VERSION, take,
};
use super::{RestoredSnapshot, SnapshotError, SnapshotErrorKind, SnapshotFile};
use crate::algorithm::{Ages, SavedHold, SavedState, for_algorithm};
use crate::hold::Holds;
use crate::key::KeyId;
use crate::quota::{Algorithm, Quota, QuotaFields};
use crate::store::memory::shard::{Call, Restored, Shard, Stored};
use crate::store::memory::{MemoryStore, ShardData};
use crate::time::{Boot, Moment, Timestamp, micros};

/// Difference of two clocks up to which both are taken for right: they are read one after the
/// other.
const CLOCK_NOISE: Duration = Duration::from_millis(1);

/// A verified snapshot.
#[derive(Debug)]
pub(super) struct VerifiedSnapshot {
    file: BufReader<File>,
    pub(super) header: Header,
    /// How long it took to write.
    took_us: u64,
    /// Where the blocks of records begin and end.
    records: [u64; 2],
}

impl VerifiedSnapshot {
    /// Reads the whole file and verifies it.
    pub(super) fn read(file: File) -> Result<Self, SnapshotError> {
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut file = BufReader::with_capacity(1 << 18, file);
        if bytes < PREAMBLE_BYTES || read(&mut file)? != MAGIC {
            return Err(SnapshotError::damaged("the file is not a snapshot of slidegate"));
        }
        let version = u32::from_le_bytes(read(&mut file)?);
        if version != VERSION {
            let message = format!("the snapshot has format {version}, and this release reads {VERSION}");
            return Err(SnapshotError::damaged(message));
        }
        let whole = || SnapshotError::damaged("the snapshot is cut off or damaged: its checksum is wrong");
        let end = bytes.checked_sub(TRAILER_BYTES).filter(|end| *end >= PREAMBLE_BYTES).ok_or_else(whole)?;
        let mut sum = Summed::new(io::sink());
        file.rewind().map_err(unreadable)?;
        io::copy(&mut (&mut file).take(bytes - CHECKSUM_BYTES), &mut sum).map_err(unreadable)?;
        if read(&mut file)? != sum.checksum() {
            return Err(whole());
        }
        file.seek(SeekFrom::Start(end)).map_err(unreadable)?;
        let took_us = u64::from_le_bytes(read(&mut file)?);
        file.seek(SeekFrom::Start(PREAMBLE_BYTES)).map_err(unreadable)?;
        let header = take(&mut read_block(&mut file)?.as_slice()).ok_or_else(malformed)?;
        let begin = file.stream_position().map_err(unreadable)?;
        Ok(Self { file, header, took_us, records: [begin, end] })
    }
}

impl SnapshotFile {
    /// Restores what was read, if anything was, to a store in which policies are known by the number
    /// that `number_of` returns for their name, their scope, and whether they count millionths. `quota_of` returns the quota of a key, if its
    /// policy is active.
    pub(crate) fn restore(
        &mut self,
        memory: &MemoryStore,
        number_of: impl Fn(&str, &[String], bool) -> Option<u32>,
        quota_of: impl Fn(u32, KeyId) -> Option<Quota>,
    ) -> Result<Option<RestoredSnapshot>, SnapshotError> {
        let Some(VerifiedSnapshot { file, header, took_us, records }) = &mut self.found else {
            return Ok(None);
        };
        if header.identity_seed != memory.secret.identity_seed() {
            let message =
                "the store hashes keys in another way: build it with `MemoryStoreBuilder::for_snapshot`";
            return Err(SnapshotError { kind: SnapshotErrorKind::OtherStore, message: message.to_owned() });
        }
        let now = memory.clock.moment(memory.clock.now());
        let downtime = header.age(now, memory.clock.boot(), Duration::from_micros(*took_us));
        let before =
            |now: Timestamp| Timestamp::from_micros(now.as_micros().saturating_sub(micros(downtime)));
        let begin = Moment { at: before(now.at), wall: before(now.wall) };
        let written_at = Timestamp::from_micros(header.wall_us);
        let restored = RestoredSnapshot { downtime, written_at, ..RestoredSnapshot::default() };
        let mut restorer =
            Restorer { memory, number_of, quota_of, begin, policies: HashMap::new(), restored };
        let [mut at, end] = *records;
        file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
        while at < end {
            let block = read_block(file)?;
            let mut input = block.as_slice();
            while !input.is_empty() {
                restorer.record(&mut input).ok_or_else(malformed)?;
            }
            at = file.stream_position().map_err(unreadable)?;
        }
        Ok(Some(restorer.restored))
    }
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` passes it
fn unreadable(error: io::Error) -> SnapshotError {
    SnapshotError::io("cannot read the snapshot", &error)
}

fn malformed() -> SnapshotError {
    SnapshotError::damaged("the snapshot is malformed, although its checksum is right")
}

fn read<const N: usize>(file: &mut BufReader<File>) -> Result<[u8; N], SnapshotError> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The block at this place.
fn read_block(file: &mut BufReader<File>) -> Result<Vec<u8>, SnapshotError> {
    let (len, mut block) = (u64::from_le_bytes(read(file)?), Vec::new());
    file.take(len).read_to_end(&mut block).map_err(unreadable)?;
    if block.len() as u64 == len { Ok(block) } else { Err(malformed()) }
}

impl Header {
    /// Time between the begin of the snapshot and now.
    ///
    /// If the machine was not restarted, the clock that counts since it was decides, so that a
    /// corrected wall clock does not matter. Otherwise the difference of the wall clocks: one that
    /// was set back is taken for no time at all. It is at least the time that writing took.
    fn age(&self, now: Moment, boot: Option<Boot>, took: Duration) -> Duration {
        let by_wall = now.wall - Timestamp::from_micros(self.wall_us);
        let same_boot = boot.filter(|boot| boot.id == self.boot_id && boot.id != [0; 16]);
        let by_boot = same_boot.map(|boot| boot.elapsed_us.saturating_sub(self.boot_us));
        let age = match by_boot.map(Duration::from_micros) {
            // The wall clock is exact to the microsecond if it was not corrected.
            Some(by_boot) if by_boot.abs_diff(by_wall) > CLOCK_NOISE => by_boot,
            _ => by_wall,
        };
        age.max(took)
    }
}

/// Restores records.
struct Restorer<'m, N, Q> {
    memory: &'m MemoryStore,
    number_of: N,
    quota_of: Q,
    /// The begin of the snapshot by the clocks of now.
    begin: Moment,
    /// By their number in the snapshot.
    policies: HashMap<u32, Former>,
    restored: RestoredSnapshot,
}

/// A policy of the process that saved.
struct Former {
    /// The number that its keys are stored under here.
    number: Option<u32>,
    quota: Quota,
    overrides: HashMap<[u8; 16], Quota>,
}

/// A key of the process that saved, under a policy that is active here.
struct FormerKey {
    id: KeyId,
    policy: u32,
    old: Quota,
    quota: Quota,
    has_inline: bool,
}

impl<N: Fn(&str, &[String], bool) -> Option<u32>, Q: Fn(u32, KeyId) -> Option<Quota>> Restorer<'_, N, Q> {
    /// Restores the next record. `None` if it is malformed.
    fn record(&mut self, input: &mut &[u8]) -> Option<()> {
        match take(input)? {
            Record::Policies(policies) => {
                let former = policies.into_iter().map(|policy| self.policy(policy));
                self.policies = former.collect::<Option<_>>()?;
                Some(())
            }
            Record::Holds(key, holds) => self.holds(&key, holds),
            Record::Usage { key, algorithm, is_repeated } => {
                for_algorithm!(algorithm, S => {
                    self.usage::<S>(&key, algorithm, (take(input)?, is_repeated))
                })
            }
        }
    }

    fn policy(&self, saved: SavedPolicy) -> Option<(u32, Former)> {
        let overrides = saved.overrides.into_iter().map(|(key, quota)| Some((key, quota.quota()?)));
        let number = (self.number_of)(&saved.name, &saved.scope, saved.in_millionths);
        let former =
            Former { number, quota: saved.quota.quota()?, overrides: overrides.collect::<Option<_>>()? };
        Some((saved.number, former))
    }

    /// `Some(None)` if its policy is not active.
    fn key(&self, saved: &SavedKey) -> Option<Option<FormerKey>> {
        let (former, id) = (self.policies.get(&saved.policy)?, KeyId::of_saved(saved.id));
        let inline = match saved.inline.map(QuotaFields::quota) {
            Some(None) => return None,
            inline => inline.flatten(),
        };
        let Some(policy) = former.number else { return Some(None) };
        let old = inline.unwrap_or_else(|| *former.overrides.get(&saved.id).unwrap_or(&former.quota));
        let quota = (self.quota_of)(policy, id).map(|quota| inline.unwrap_or(quota));
        Some(quota.map(|quota| FormerKey { id, policy, old, quota, has_inline: inline.is_some() }))
    }

    fn usage<S: Stored + SavedState>(
        &mut self,
        key: &SavedKey,
        algorithm: Algorithm,
        saved: (S::Saved, bool),
    ) -> Option<()> {
        let Some(key) = self.key(key)? else {
            self.restored.unknown_policy += 1;
            return Some(());
        };
        if [key.old, key.quota].iter().any(|quota| quota.algorithm() != algorithm) {
            self.restored.other_algorithm += 1;
            return Some(());
        }
        let restored = self.on_shard(&key, |shard, call| {
            let restored = shard.restore::<S>(call, saved, &key.old, self.begin);
            (restored, restored == Some(Restored::Counts))
        });
        *match restored? {
            Restored::Counts => &mut self.restored.keys,
            Restored::Expired => &mut self.restored.expired,
            Restored::AlreadyUsed => &mut self.restored.already_used,
        } += 1;
        Some(())
    }

    fn holds(&mut self, key: &SavedKey, holds: Vec<SavedHold>) -> Option<()> {
        let ages = Ages { at_us: self.begin.at.as_micros() };
        let holds = Holds::load(holds, ages, self.memory.clock.now().as_micros())?;
        if let Some(key) = self.key(key)? {
            self.restored.holds += self.on_shard(&key, |shard, call| {
                let restored = shard.restore_holds(call, holds);
                (restored, restored > 0)
            });
        }
        Some(())
    }

    /// Runs what restores a part of a key, and returns its result and whether that was stored.
    fn on_shard<T>(&self, key: &FormerKey, restore: impl FnOnce(&mut Shard, &Call<'_>) -> (T, bool)) -> T {
        let memory = self.memory;
        let address = memory.address(key.id, key.policy);
        let ShardData { shard, inline_quotas, .. } = &mut *memory.lock(memory.shard_of(address.place));
        let now = shard.arrive(memory.clock.now(), &memory.clock);
        let call = Call::peek(address, &key.quota, now, &memory.accounting, &memory.secret);
        let (restored, is_stored) = restore(shard, &call);
        if is_stored {
            inline_quotas.after(&call, key.has_inline, shard);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A wall clock that is corrected during a restart must neither free nor lock a key.
    #[test]
    fn the_downtime_is_counted_by_the_clock_that_was_not_corrected() {
        let at = |secs: u64| Timestamp::from_secs(1_000_000 + secs);
        let boot = |id: u8, secs: u64| Boot { id: [id; 16], elapsed_us: (5000 + secs) * 1_000_000 };
        let Boot { id, elapsed_us } = boot(1, 0);
        let header = Header {
            wall_us: at(0).as_micros(),
            boot_us: elapsed_us,
            boot_id: id,
            identity_seed: [0; 16],
            attachments: Vec::new(),
        };
        let slow = |wall: Timestamp, boot, took| header.age(Moment { at: wall, wall }, boot, took).as_secs();
        let age = |wall: Timestamp, boot| slow(wall, boot, Duration::ZERO);
        assert_eq!(age(at(60), Some(boot(1, 60))), 60);
        assert_eq!(age(at(60) + DAY, Some(boot(1, 60))), 60, "set forward by a day");
        assert_eq!(age(Timestamp::from_secs(0), Some(boot(1, 60))), 60, "set back");
        assert_eq!(age(at(60), Some(boot(2, 1))), 60, "the machine was restarted");
        assert_eq!(age(at(60), None), 60);
        assert_eq!(age(Timestamp::from_secs(0), Some(boot(2, 1))), 0, "never negative");
        assert_eq!(slow(at(1), None, Duration::from_secs(9)), 9, "never less than writing took");
    }
}
