//! Live heap: what was asked of the allocator and not yet given back.
//!
//! Counts what was asked for, not what the allocator adds: contenders with an allocation for each key cost a program
//! up to 16 bytes a key more than is said here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counting.
pub(crate) struct Counting;

thread_local! {
    // Of this thread alone: a shared counter would slow down whoever allocates on two threads.
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Bytes that this thread has asked for less what it has given back.
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
