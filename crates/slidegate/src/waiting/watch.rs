//! Watching the keys of a shared store for cost that other processes free.

use std::sync::Arc;

/// Called when another process has freed cost of a key.
pub type OnFreed = Arc<dyn Fn() + Send + Sync>;

/// A key that callers of this process wait for, in a store that other processes share. Dropping it ends the watch.
pub trait Watch: Send + Sync {
    /// How many other processes have callers that wait for the key.
    fn others(&self) -> usize;
}
