//! Live heap: bytes requested from the allocator and not yet freed.
//!
//! Counts requested bytes without the allocator's overhead: contenders with one allocation per key
//! cost a program up to 16 bytes more per key than reported.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counters.
pub(crate) struct Counting;

thread_local! {
    // Per thread: a shared counter would slow down contenders that allocate on two threads.
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated minus those that it has freed.
pub(crate) fn live() -> i64 {
    LIVE.get()
}

#[allow(clippy::cast_possible_wrap)] // no allocation is longer than `isize::MAX`
fn count(bytes: usize, sign: i64) {
    LIVE.set(LIVE.get() + sign * bytes as i64);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, 1);
        count(layout.size(), -1);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
