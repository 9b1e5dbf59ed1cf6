//! Saves the usage of a gate in memory, and restores it in the next process.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::Gate;
use crate::policy::PolicySet;
use crate::store::memory::MemoryStore;
use crate::store::memory::snapshot::{
    InMemory, RestoredSnapshot, SavedPolicy, SavedSnapshot, SnapshotError, SnapshotFile, SnapshotWriter,
};

impl Gate {
    /// A gate with the usage [saved](Self::save) to this file, aged by the time since then. Starts
    /// without usage if the file does not exist. The file stays locked against other processes
    /// until the gate is dropped.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// # let dir = std::env::temp_dir().join(format!("slidegate-gate-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir)?;
    /// # let path = dir.join("usage.snapshot");
    /// let policies = || PolicySet::new([Policy::new("per-user", Quota::per_hour(1))?.with_scope(["user"])]);
    /// let alice = Request::new().with("user", "alice");
    /// let gate = Gate::open(policies()?, &path)?;
    /// assert!(gate.check(&alice).is_allowed());
    /// gate.save(&path)?;
    /// drop(gate);
    ///
    /// // The next process:
    /// let gate = Gate::open(policies()?, &path)?;
    /// assert!(gate.check(&alice).is_denied());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the directory does not exist or is not writable, another process uses the file, or the file
    /// cannot be read or [is damaged](SnapshotError::is_damaged).
    pub fn open(policies: PolicySet, path: impl Into<PathBuf>) -> Result<Self, SnapshotError> {
        let mut file = SnapshotFile::open(path)?;
        file.read()?;
        let gate = Self::with_memory(policies, MemoryStore::builder().for_snapshot(&file).build());
        gate.restore(&mut file)?;
        *gate.store.saved_to() = Some(file);
        Ok(gate)
    }
}

impl<S: InMemory> Gate<S> {
    /// Replaces the file with a snapshot of the usage of all keys. On failure, the former snapshot
    /// stays. The file stays locked against other processes until the gate is dropped or saved to
    /// another file.
    ///
    /// # Errors
    /// If the file cannot be written, or another process uses it.
    pub fn save(&self, path: impl Into<PathBuf>) -> Result<SavedSnapshot, SnapshotError> {
        let (path, mut saved_to) = (path.into(), self.store.in_memory().saved_to());
        match &mut *saved_to {
            Some(file) if file.path() == path => self.save_to(file, &[]),
            other => self.save_to(other.insert(SnapshotFile::open(path)?), &[]),
        }
    }

    /// Like [`save`](Self::save), with the program's named attachments, to a file that stays open.
    ///
    /// Decisions continue meanwhile: about 32 KiB of keys are copied at a time under their shard's
    /// lock, and nothing is locked while the file is written. Charges to a key after it was copied
    /// are not in the snapshot.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_to(
        &self,
        file: &mut SnapshotFile,
        attachments: &[(&str, &[u8])],
    ) -> Result<SavedSnapshot, SnapshotError> {
        let memory = self.store.in_memory();
        file.save(|out| {
            let mut writer = SnapshotWriter::new(out, memory, attachments)?;
            let mut written = None::<Arc<PolicySet>>;
            loop {
                // `configure` holds this lock while it converts keys to other quotas, so all keys
                // copied here are under the policies that were written before them.
                let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
                let policies = self.policies.load_full();
                if !written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &policies)) {
                    drop(numbers);
                    let saved = policies.numbered(memory.secret()).map(|(number, policy, overrides)| {
                        let overrides = overrides.into_iter();
                        SavedPolicy {
                            number,
                            name: policy.name().to_owned(),
                            scope: policy.scope().to_vec(),
                            in_millionths: policy.options().counts.is_weighted(),
                            quota: policy.quota().fields(),
                            overrides: overrides.map(|(id, quota)| (id.to_saved(), quota.fields())).collect(),
                        }
                    });
                    writer.policies(saved.collect());
                    written = Some(policies);
                    continue;
                }
                let has_more = writer.copy(memory);
                drop(numbers);
                if !has_more {
                    return writer.end(memory);
                }
                writer.write_if_full()?;
            }
        })
    }

    /// Restores the usage from a snapshot that was [read](SnapshotFile::read), aged by the time
    /// since it was written. The store must be [built for
    /// it](crate::store::MemoryStoreBuilder::for_snapshot). `None` if there is no snapshot.
    ///
    /// Keys belong to a policy by its name, its scope, and whether it weights costs. A changed
    /// limit or window applies as after [`configure`](Self::configure); under another algorithm,
    /// keys start afresh. Keys already in use stay as they are, so restore before the first
    /// decision. Policies cannot be configured meanwhile.
    ///
    /// # Errors
    /// If the store was not built for the snapshot, or the file can no longer be read or is
    /// malformed despite a valid checksum.
    pub fn restore(&self, file: &mut SnapshotFile) -> Result<Option<RestoredSnapshot>, SnapshotError> {
        let memory = self.store.in_memory();
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let policies = self.policies.load_full();
        let quotas = policies.quotas(memory.secret());
        file.restore(
            memory,
            |name, scope, in_millionths| numbers.get(name, scope, in_millionths),
            |policy, key| quotas.of(policy, key),
        )
    }
}
