//! Memory of responses that a thread uses again.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

/// Maximum bytes of a copy whose memory is used again.
pub const MAX_REUSED: usize = 4 * 1024;

/// A copy in a block of this thread, which is used again once the copies in it are dropped: a response takes no memory
/// of the allocator.
#[must_use]
pub fn reused_copy(bytes: &[u8]) -> Bytes {
    thread_local! {
        static BLOCK: RefCell<BytesMut> = RefCell::default();
    }
    if bytes.len() > MAX_REUSED {
        return Bytes::copy_from_slice(bytes);
    }
    BLOCK.with_borrow_mut(|block| {
        if !block.try_reclaim(MAX_REUSED) && block.capacity() < bytes.len() {
            *block = BytesMut::with_capacity(MAX_REUSED);
        }
        block.extend_from_slice(bytes);
        block.split().freeze()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies that are held must keep their bytes, and what is dropped must be used again.
    #[test]
    fn memory_is_used_again_once_it_is_free() {
        let held: Vec<_> = (0..200_u8).map(|number| reused_copy(&[number; 100])).collect();
        assert!((0..200_u8).zip(&held).all(|(number, copy)| **copy == [number; 100]));
        drop(held);
        let place = reused_copy(&[1; 700]).as_ptr();
        for _ in 0..100 {
            let (body, fields) = (reused_copy(&[2; 700]), reused_copy(&[3; 120]));
            assert_eq!((body.as_ptr(), fields.as_ptr()), (place, place.wrapping_add(700)));
            assert_eq!((&*body, &*fields), (&[2; 700][..], &[3; 120][..]));
        }
        assert_eq!(reused_copy(&[4; MAX_REUSED + 1]), [4; MAX_REUSED + 1][..]);
    }
}
