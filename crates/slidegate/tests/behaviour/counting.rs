//! The allocator of this test binary: the system's, with counters of what each thread takes and
//! holds.
//!
//! Counters are per thread, so that tests running beside each other do not show.
// A global allocator cannot be had without: both methods pass on to the system's what they were
// given.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    // Plain cells, so that counting neither allocates nor has to be dropped.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// How many allocations this thread has made.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated, less those it has freed.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is ending has no counters any more and needs none.
    let _ = ALLOCATIONS.try_with(|total| total.set(total.get() + allocations));
    let _ = LIVE_BYTES.try_with(|total| total.set(total.get() + bytes));
}

fn bytes(layout: Layout) -> i64 {
    i64::try_from(layout.size()).unwrap_or(i64::MAX)
}

// SAFETY: the system's allocator does the work, with the same arguments. Counting touches two
// integers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, bytes(layout));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -bytes(layout));
        // SAFETY: the caller's promises are passed on; `pointer` came from `System`, as all of this
        // allocator's do.
        unsafe { System.dealloc(pointer, layout) }
    }
}
