//! The server's allocator as that of this library. Some servers align to 8 bytes only, which is less
//! than Rust's types may need.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The alignment that the server's allocator gives to every allocation: Redis 8.2 builds jemalloc with
/// a quantum of 8.
const ALIGNMENT: usize = 8;

/// The server's allocator, so that `used_memory` and `maxmemory` count what the module uses.
struct ServerAllocator;

// So that tests, which no server loads, allocate as other programs do.
#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, allow(dead_code))]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The server's functions, once the module is loaded.
pub(crate) static ALLOC: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static REALLOC: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static FREE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

impl ServerAllocator {
    /// Memory of the server's allocator.
    fn allocate(size: usize) -> *mut u8 {
        let function = ALLOC.load(Ordering::Relaxed);
        if function.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: a pointer that is not null was stored from a function of this type.
        let alloc: unsafe extern "C" fn(usize) -> *mut c_void = unsafe { std::mem::transmute(function) };
        // SAFETY: any size may be asked for.
        unsafe { alloc(size) }.cast()
    }

    /// Frees what `allocate` has returned.
    ///
    /// # Safety
    /// As `free`.
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

// SAFETY: the server's functions are an allocator like `malloc`, aligned to 8 bytes. They are there
// before anything is allocated, because nothing runs before the module is loaded. For a larger
// alignment, more is allocated; the address of the whole stands before the part that is used.
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
        // SAFETY: the shift is at most `align`, and `layout.size()` bytes are left behind it. Those
        // before it are enough for an address, for which 8 bytes are alignment enough.
        unsafe {
            let part = whole.add(shift);
            part.cast::<*mut u8>().sub(1).write(whole);
            part
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.align() <= ALIGNMENT {
            // SAFETY: `alloc` has returned what `allocate` did.
            unsafe { Self::release(memory) };
        } else {
            // SAFETY: `alloc` has written the address of the whole there.
            unsafe { Self::release(memory.cast::<*mut u8>().sub(1).read()) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() > ALIGNMENT {
            // SAFETY: the caller promises that the size is one of a layout.
            let moved = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
            // SAFETY: both are of this allocator and hold as many bytes; the old one is freed once.
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

    /// Where an allocation of the system stands before the memory that is handed out: its size.
    const HEAD: usize = 24;

    /// As jemalloc with a quantum of 8: aligned to 8 bytes and never to 16.
    unsafe extern "C" fn alloc(size: usize) -> *mut c_void {
        let layout = Layout::from_size_align(size + HEAD, 16).unwrap();
        // SAFETY: the layout is not empty, and has room for the head.
        unsafe {
            let memory = System.alloc(layout);
            memory.cast::<usize>().write(size);
            memory.add(HEAD).cast()
        }
    }

    unsafe extern "C" fn free(memory: *mut c_void) {
        // SAFETY: it is from `alloc`, which has written the size.
        unsafe {
            let memory = memory.cast::<u8>().sub(HEAD);
            let size = memory.cast::<usize>().read();
            System.dealloc(memory, Layout::from_size_align(size + HEAD, 16).unwrap());
        }
    }

    unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: as above; both have as many bytes as are copied.
        unsafe {
            let old = memory.cast::<u8>().sub(HEAD).cast::<usize>().read();
            let to = alloc(size);
            ptr::copy_nonoverlapping(memory.cast::<u8>(), to.cast::<u8>(), old.min(size));
            free(memory);
            to
        }
    }

    /// Hash tables and 128-bit numbers are aligned to 16 bytes. Memory that is not crashes the server
    /// that holds everybody's data.
    #[test]
    fn memory_has_the_alignment_that_is_asked_for() {
        ALLOC.store(alloc as *mut c_void, Ordering::Relaxed);
        REALLOC.store(realloc as *mut c_void, Ordering::Relaxed);
        FREE.store(free as *mut c_void, Ordering::Relaxed);
        for align in [1, 8, 16, 32, 4096] {
            for size in [1, 7, 24, 1000, 100_000] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: each piece of memory has so many bytes, and is freed by its own layout.
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
