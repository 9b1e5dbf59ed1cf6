//! Recent peeks: what the store last said of blocked keys, for a moment.
//!
//! Blocking an abusive client must not make its requests more expensive: denials of the store are
//! cached and batched, and a block is decided without the store's verdict. So the
//! store is asked about the same blocked keys at most once per [`FRESH`] and process.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::charge::{Charge, PerCharge};
use crate::decision::{Decision, DecisionSource};
use crate::key::KeyId;
use crate::quota::Quota;
use crate::store::memory::MemoryStore;

/// How long an answer is given again. The usage and the waits of a blocked key are out of date by
/// this much at most.
const FRESH: Duration = Duration::from_millis(100);
/// Sets of keys that are cached, some 600 bytes each. Two that fall on the same slot replace
/// each other.
const SLOTS: usize = 1024;

/// The last peeks at requests that a block denies.
#[derive(Debug)]
pub(super) struct RecentPeeks {
    slots: Box<[Mutex<Option<Recent>>]>,
    hasher: RandomState,
    /// How often all were forgotten.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct Recent {
    subject: Subject,
    asked_at: Instant,
    forgotten: u64,
    decisions: PerCharge<Decision>,
}

/// What a peek was about: for each charge its policy's number, its key, its quota and its cost.
type Subject = SmallVec<[(u32, KeyId, Quota, u64); 2]>;

/// A peek that is about to be made.
#[derive(Debug)]
pub(super) struct Pending {
    subject: Subject,
    asked_at: Instant,
    forgotten: u64,
}

impl Default for RecentPeeks {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            forgotten: AtomicU64::new(0),
        }
    }
}

impl RecentPeeks {
    /// The decisions of the last peek at these charges.
    ///
    /// # Errors
    /// There is none, or it is too old: the peek that has to be made, to be [kept](Self::keep).
    pub(super) fn find(
        &self,
        charges: &[Charge<'_>],
        memory: &MemoryStore,
        now: Instant,
    ) -> Result<PerCharge<Decision>, Box<Pending>> {
        let id = |charge: &Charge<'_>| charge.key.id(memory.secret());
        let subject: Subject = charges
            .iter()
            .map(|charge| (charge.number, id(charge), *charge.quota, charge.part.cost))
            .collect();
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        if let Some(recent) = &*self.slot(&subject)
            && recent.subject == subject
            && recent.forgotten == forgotten
            && now.saturating_duration_since(recent.asked_at) < FRESH
        {
            let again = |one: &Decision| Decision { source: DecisionSource::CachedDenial, ..*one };
            return Ok(recent.decisions.iter().map(again).collect());
        }
        Err(Box::new(Pending { subject, asked_at: now, forgotten }))
    }

    /// Keeps what the store said.
    pub(super) fn keep(&self, pending: Box<Pending>, decisions: &[Decision]) {
        let Pending { subject, asked_at, forgotten } = *pending;
        let mut slot = self.slot(&subject);
        *slot = Some(Recent { subject, asked_at, forgotten, decisions: decisions.iter().copied().collect() });
    }

    /// Usage has changed: what was said of it before is not given again, nor what is being asked
    /// now.
    pub(super) fn forget_all(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    #[allow(clippy::cast_possible_truncation)] // the remainder is what counts
    fn slot(&self, subject: &Subject) -> MutexGuard<'_, Option<Recent>> {
        let mut hasher = self.hasher.build_hasher();
        subject.iter().for_each(|(number, key, _, cost)| (number, key, cost).hash(&mut hasher));
        let at = hasher.finish() as usize % self.slots.len();
        self.slots[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
