//! Per-thread counters: each thread updates its own copy, so threads do not contend for cache
//! lines.
//!
//! Readers sum the copies. If threads outnumber copies, some share one: slower, still exact.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum copies: more would not justify the memory per policy.
const MAX_COPIES: usize = 16;

/// The copies, each on its own cache lines.
#[derive(Debug)]
pub(crate) struct PerThread<T>(Box<[Padded<T>]>);

/// Two cache lines, because processors prefetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// This thread's number, which selects its copy.
#[inline]
pub(super) fn thread() -> usize {
    THREAD.with(|number| *number)
}

/// Copies for this machine's processors: a power of two.
pub(super) fn copies_wanted() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.next_power_of_two().min(MAX_COPIES)
}

impl<T: Default> PerThread<T> {
    /// `count` must be a power of two.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count.is_power_of_two(), "a thread's number selects its copy by the lower bits");
        Self((0..count).map(|_| Padded::default()).collect())
    }
}

impl<T> PerThread<T> {
    #[inline]
    pub(crate) fn of(&self, thread: usize) -> &T {
        &self.0[thread & (self.0.len() - 1)].0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|copy| &copy.0)
    }

    /// The sum of a value over all copies.
    pub(crate) fn sum(&self, read: impl Fn(&T) -> u64) -> u64 {
        self.iter().map(read).fold(0, u64::wrapping_add)
    }
}
