//! Bounded resources that clients fill, shared between owners.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slidegate::shares::Shares;

/// A bounded number of places, shared between owners by the rule of [`slidegate::shares`].
#[derive(Debug)]
pub(crate) struct Bound<K>(Arc<ShareState<K>>);

#[derive(Debug)]
struct ShareState<K> {
    shares: Mutex<Shares<K>>,
    refused: AtomicU64,
}

/// A place taken by an owner. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Share<K: Ord + Clone> {
    owner: K,
    of: Arc<ShareState<K>>,
}

impl<K> Clone for Bound<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Ord + Clone> Bound<K> {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(ShareState { shares: Mutex::new(Shares::new(max)), refused: AtomicU64::new(0) }))
    }

    /// Takes a place for this owner. `None` if the owner already has as many places as are free, which counts
    /// as refused.
    pub(crate) fn take(&self, owner: &K) -> Option<Share<K>> {
        let has_room = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner).take(owner, 1);
        if !has_room {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Share { owner: owner.clone(), of: Arc::clone(&self.0) })
    }

    /// Number of refused places.
    pub(crate) fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

impl<K: Ord + Clone> Drop for Share<K> {
    fn drop(&mut self) {
        self.of.shares.lock().unwrap_or_else(PoisonError::into_inner).give_back(&self.owner, 1);
    }
}
