//! Locks and atomics of the store, or those of the model checker that tries every interleaving of them.
//!
//! A shard is locked for moments. The lock spins, and yields to other threads while it does: it is released by a plain
//! store, and makes no system call to wait so little.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::{
    MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

/// A lock for moments. It cannot be poisoned: what a panic leaves behind are counters as good as before.
#[derive(Debug)]
#[cfg(not(loom))]
pub(crate) struct Mutex<T>(spin::mutex::SpinMutex<T, spin::Yield>);
#[derive(Debug)]
#[cfg(loom)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(not(loom))]
        return Self(spin::mutex::SpinMutex::new(value));
        #[cfg(loom)]
        return Self(loom::sync::Mutex::new(value));
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(not(loom))]
        return self.0.lock();
        #[cfg(loom)]
        return self.0.lock().expect("no model panics under the lock");
    }
}
