//! PerThread: counters that every thread has a copy of, or nearly, so that threads do not wait for each other's cache lines.
//!
//! Readers add the copies up. More threads than lanes share some, which is slower and counts just as exactly.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most lanes: what more processors gain is less than the memory for each policy.
const MAX_COPIES: usize = 16;

/// A copy for each lane, each on cache lines of its own.
#[derive(Debug)]
pub(super) struct PerThread<T>(Box<[Padded<T>]>);

/// Two lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// The number of this thread, which chooses its lane.
#[inline]
pub(super) fn thread() -> usize {
    THREAD.with(|number| *number)
}

/// How many lanes this machine's processors want: a power of two.
pub(super) fn copies_wanted() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.next_power_of_two().min(MAX_COPIES)
}

impl<T: Default> PerThread<T> {
    /// `count` is a power of two.
    pub(super) fn new(count: usize) -> Self {
        assert!(count.is_power_of_two(), "a thread's lane is its number's lower bits");
        Self((0..count).map(|_| Padded::default()).collect())
    }
}

impl<T> PerThread<T> {
    /// The copy of the thread of this number.
    #[inline]
    pub(super) fn of(&self, thread: usize) -> &T {
        &self.0[thread & (self.0.len() - 1)].0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lane| &lane.0)
    }

    /// What a reading of each copy adds up to.
    pub(super) fn sum(&self, read: impl Fn(&T) -> u64) -> u64 {
        self.iter().map(read).fold(0, u64::wrapping_add)
    }
}
