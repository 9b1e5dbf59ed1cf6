//! Uses the server's allocator for this library. Some servers align only to 8 bytes, which is less than some
//! Rust types need.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Alignment of every allocation of the server: Redis 8.2 builds jemalloc with a quantum of 8.
const ALIGNMENT: usize = 8;

/// The server's allocator, so that `used_memory` and `maxmemory` count the module's memory.
struct ServerAllocator;

// Not in tests, which no server loads.
#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, allow(dead_code))]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The server's functions, once the module is loaded.
pub(crate) static ALLOC: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static REALLOC: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static FREE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

impl ServerAllocator {
    /// Allocates from the server.
    fn allocate(size: usize) -> *mut u8 {
        let function = ALLOC.load(Ordering::Relaxed);
        if function.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: a non-null pointer was stored from a function of this type.
        let alloc: unsafe extern "C" fn(usize) -> *mut c_void = unsafe { std::mem::transmute(function) };
        // SAFETY: any size is allowed.
        unsafe { alloc(size) }.cast()
    }

    /// Frees memory returned by `allocate`.
    ///
    /// # Safety
    /// As for `free`.
    unsafe fn release(memory: *mut u8) {
        let function = FREE.load(Ordering::Relaxed);
        if !function.is_null() {
            // SAFETY: as in `allocate`.
            let free: unsafe extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(function) };
            // SAFETY: the memory is from `allocate` or `realloc`.
            unsafe { free(memory.cast()) };
        }
    }
}

// SAFETY: the server's functions are an allocator like `malloc`, aligned to 8 bytes. They are set before any
// allocation, because nothing runs before the module is loaded. For a larger alignment, more is allocated,
// and the address of the whole allocation precedes the part that is used.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let align = layout.align();
        if align <= ALIGNMENT {
            return Self::allocate(layout.size());
        }
        let Some(size) = layout.size().checked_add(align) else { return ptr::null_mut() };
        let whole = Self::allocate(size);
        if whole.is_null() {
            return whole;
        }
        // At least 8 bytes further, because the address is a multiple of 8 and `align` is of 16.
        let shift = align - whole.addr() % align;
        // SAFETY: the shift is at most `align`, so `layout.size()` bytes are left after it. The bytes before
        // it fit an address, which needs an alignment of only 8 bytes.
        unsafe {
            let part = whole.add(shift);
            part.cast::<*mut u8>().sub(1).write(whole);
            part
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.align() <= ALIGNMENT {
            // SAFETY: `alloc` returned the result of `allocate`.
            unsafe { Self::release(memory) };
        } else {
            // SAFETY: `alloc` stored the address of the whole allocation there.
            unsafe { Self::release(memory.cast::<*mut u8>().sub(1).read()) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() > ALIGNMENT {
            // SAFETY: the caller promises that the size is valid for a layout.
            let moved = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
            // SAFETY: both are from this allocator and hold that many bytes; the old one is freed once.
            unsafe {
                let to = self.alloc(moved);
                if !to.is_null() {
                    ptr::copy_nonoverlapping(memory, to, layout.size().min(size));
                    self.dealloc(memory, layout);
                }
                return to;
            }
        }
        let function = REALLOC.load(Ordering::Relaxed);
        if function.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: as in `allocate`.
        let realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void =
            unsafe { std::mem::transmute(function) };
        // SAFETY: the memory is from `allocate` or `realloc`.
        unsafe { realloc(memory.cast(), size) }.cast()
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::slice;

    use super::*;

    /// Bytes before the returned memory, where the size of the system's allocation is stored.
    const HEAD: usize = 24;

    /// Like jemalloc with a quantum of 8: aligned to 8 bytes and never to 16.
    unsafe extern "C" fn alloc(size: usize) -> *mut c_void {
        let layout = Layout::from_size_align(size + HEAD, 16).unwrap();
        // SAFETY: the layout is not empty and has room for the head.
        unsafe {
            let memory = System.alloc(layout);
            memory.cast::<usize>().write(size);
            memory.add(HEAD).cast()
        }
    }

    unsafe extern "C" fn free(memory: *mut c_void) {
        // SAFETY: it is from `alloc`, which stored the size.
        unsafe {
            let memory = memory.cast::<u8>().sub(HEAD);
            let size = memory.cast::<usize>().read();
            System.dealloc(memory, Layout::from_size_align(size + HEAD, 16).unwrap());
        }
    }

    unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: as above; both have at least the copied bytes.
        unsafe {
            let old = memory.cast::<u8>().sub(HEAD).cast::<usize>().read();
            let to = alloc(size);
            ptr::copy_nonoverlapping(memory.cast::<u8>(), to.cast::<u8>(), old.min(size));
            free(memory);
            to
        }
    }

    /// Hash tables and 128-bit numbers need 16-byte alignment. Misaligned memory crashes the server that
    /// holds everyone's data.
    #[test]
    fn memory_has_the_alignment_that_is_asked_for() {
        ALLOC.store(alloc as *mut c_void, Ordering::Relaxed);
        REALLOC.store(realloc as *mut c_void, Ordering::Relaxed);
        FREE.store(free as *mut c_void, Ordering::Relaxed);
        for align in [1, 8, 16, 32, 4096] {
            for size in [1, 7, 24, 1000, 100_000] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: each allocation has this many bytes and is freed with its own layout.
                unsafe {
                    let memory = ServerAllocator.alloc(layout);
                    assert!(
                        !memory.is_null() && memory.addr().is_multiple_of(align),
                        "{layout:?}: {memory:?}"
                    );
                    memory.write_bytes(7, size);
                    let grown = ServerAllocator.realloc(memory, layout, 2 * size);
                    assert!(!grown.is_null() && grown.addr().is_multiple_of(align), "{layout:?}: {grown:?}");
                    assert!(slice::from_raw_parts(grown, size).iter().all(|byte| *byte == 7));
                    grown.write_bytes(9, 2 * size);
                    ServerAllocator.dealloc(grown, Layout::from_size_align(2 * size, align).unwrap());
                }
            }
        }
    }
}
