//! Saving the usage of a gate in memory, and restoring it in the next process.

use std::io::{self, Write};
use std::sync::{Arc, PoisonError};

use super::Gate;
use super::numbers::Numbers;
use crate::key::KeyId;
use crate::policy::{PolicySet, Quotas};
use crate::quota::Quota;
use crate::store::memory::snapshot::{
    Cursor, InMemory, RestoredSnapshot, SavedPolicy, SavedQuotas, SavedSnapshot, Snapshot, SnapshotError,
    SnapshotWriter,
};

impl<S: InMemory> Gate<S> {
    /// Writes the usage of all keys, and named texts of the program, to `out`. Decisions go on
    /// meanwhile: some 32 KiB of keys are copied at a time while their shard is locked, and nothing
    /// is locked while `out` is written. What is charged to a key after it was copied is not in the
    /// snapshot. [`SnapshotFile::save`](crate::SnapshotFile::save) makes `out` a file that is
    /// replaced as a whole.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota, Request, SnapshotFile};
    ///
    /// # let dir = std::env::temp_dir().join(format!("slidegate-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir)?;
    /// # let path = dir.join("usage.snapshot");
    /// let policies = || PolicySet::new([Policy::new("per-user", Quota::per_hour(1))?.scope(["user"])]);
    /// let alice = Request::new().with("user", "alice");
    /// let file = SnapshotFile::open(&path)?;
    /// let gate = Gate::new(policies()?);
    /// assert!(gate.check(&alice).is_allowed());
    /// file.save(|out| gate.save(&[], out))?;
    /// drop((gate, file));
    ///
    /// // The next process:
    /// let file = SnapshotFile::open(&path)?;
    /// let mut snapshot = file.read()?.expect("it was saved");
    /// let store = MemoryStore::builder().for_snapshot(&snapshot).build();
    /// let gate = Gate::with_memory(policies()?, store);
    /// assert_eq!(gate.restore(&mut snapshot)?.keys, 1);
    /// assert!(gate.check(&alice).is_denied());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `out`.
    pub fn save(&self, attachments: &[(&str, &[u8])], out: impl Write) -> io::Result<SavedSnapshot> {
        let memory = self.store.in_memory();
        let mut writer = SnapshotWriter::new(out, memory)?;
        for (name, content) in attachments {
            writer.attachment(name, content)?;
        }
        let (mut cursor, mut written) = (Cursor::default(), None::<Arc<PolicySet>>);
        loop {
            // `configure` holds this lock while it converts keys to other quotas, so the keys that are
            // copied here are all under the policies that were written before them.
            let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let policies = self.policies.load_full();
            if !written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &policies)) {
                drop(numbers);
                let all = policies.numbered(memory.secret());
                writer.policies(all.map(|(number, policy, overrides)| SavedPolicy {
                    number,
                    name: policy.name(),
                    scope: policy.scope_attributes(),
                    quota: policy.quota(),
                    overrides,
                }))?;
                written = Some(policies);
                continue;
            }
            let has_more = writer.copy(memory, &mut cursor);
            drop(numbers);
            if !has_more {
                return writer.end(memory);
            }
            writer.write_if_full()?;
        }
    }

    /// Restores usage, older by the time since the snapshot was written. The store must be
    /// [built for the snapshot](crate::MemoryStoreBuilder::for_snapshot).
    ///
    /// Keys belong to a policy by its name and scope. A changed limit or window applies to them as
    /// after [`configure`](Self::configure), and under another algorithm they start afresh. Keys that
    /// were used already are left as they are: restore before the first decision. Policies cannot be
    /// configured meanwhile.
    ///
    /// # Errors
    /// If the store was not built for the snapshot, the file cannot be read any more, or it is malformed
    /// although its checksums are right.
    pub fn restore(&self, snapshot: &mut Snapshot) -> Result<RestoredSnapshot, SnapshotError> {
        let memory = self.store.in_memory();
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let policies = self.policies.load_full();
        snapshot.restore(memory, &Active { numbers: &numbers, quotas: policies.quotas(memory.secret()) })
    }
}

/// The active policies.
struct Active<'a> {
    numbers: &'a Numbers,
    quotas: Quotas<'a>,
}

impl SavedQuotas for Active<'_> {
    fn number_of(&self, name: &str, scope: &[String]) -> Option<u32> {
        self.numbers.get(name, scope)
    }

    fn quota_of(&self, policy: u32, key: KeyId) -> Option<Quota> {
        self.quotas.of(policy, key)
    }
}
