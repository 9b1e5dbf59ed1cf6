//! The key of a gate's queue: a key under a policy.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::key::Key;

/// A key that is waited for: the number of its policy, and a hash of it. Keys that share a hash
/// share a queue, which costs them time only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueKey {
    pub(crate) policy: u32,
    pub(crate) key: u64,
}

impl QueueKey {
    pub(crate) fn new(policy: u32, key: &Key<'_>) -> Self {
        Self { policy, key: Self::hash(key) }
    }

    /// The hash of a key, which is the same in all gates of this process.
    pub(crate) fn hash(key: &Key<'_>) -> u64 {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        SEED.hash_one(key)
    }
}
