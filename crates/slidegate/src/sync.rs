//! Locks and atomics of the memory store, or their replacements from the loom model checker.
//!
//! Shards are locked for less than a microsecond, so the lock spins and yields to other threads
//! meanwhile. It is released by a plain store and never makes a system call.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::{
    MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

/// A lock for short critical sections. It has no poisoning: counters stay valid if a thread panics.
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
