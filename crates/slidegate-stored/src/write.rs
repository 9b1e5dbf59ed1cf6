//! Writes after a decision, and numbers in stored bytes.

use std::ops::Deref;

use slidegate::Quota;
use smallvec::SmallVec;

/// Bytes of a stored value. Those of counters and of a log's header need no allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(SmallVec<[u8; 64]>);

/// A change of a stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// A whole value. It may be longer or shorter than the stored one.
    Value {
        /// The value.
        bytes: Bytes,
        /// When it expires, in milliseconds since the Unix epoch.
        expire_at_ms: u64,
    },
    /// Parts of the stored value, whose length and expiry stay.
    Patch {
        /// The first bytes.
        head: Bytes,
        /// The bytes of a log's new entry, and where they begin.
        entry: Option<(usize, Bytes)>,
        /// The new expiry in milliseconds since the Unix epoch, if it changes.
        expire_at_ms: Option<u64>,
    },
}

impl Write {
    /// The write with a later expiry.
    pub(super) fn later(self, by_ms: u64) -> Self {
        match self {
            Self::Value { bytes, expire_at_ms } => {
                Self::Value { bytes, expire_at_ms: expire_at_ms.saturating_add(by_ms) }
            }
            Self::Patch { head, entry, expire_at_ms } => {
                let expire_at_ms = expire_at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
                Self::Patch { head, entry, expire_at_ms }
            }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Bytes {
    /// Appends a number, little-endian, with this width in bytes.
    pub(super) fn with(mut self, number: u64, width: usize) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes()[..width]);
        self
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn fill_up_to(&mut self, length: usize) {
        self.0.resize(length, 0);
    }
}

/// A little-endian number of at most eight bytes.
#[inline]
pub(super) fn number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

/// Reads little-endian numbers one after the other. The bytes must be long enough.
pub(super) struct Fields<'v>(pub(super) &'v [u8]);

impl Fields<'_> {
    #[inline]
    pub(super) fn next(&mut self, width: usize) -> u64 {
        let (field, rest) = self.0.split_at(width);
        self.0 = rest;
        number(field)
    }

    /// A number of one byte.
    #[inline]
    pub(super) fn byte(&mut self) -> u8 {
        self.next(1).to_le_bytes()[0]
    }

    /// A number of two bytes.
    #[inline]
    pub(super) fn small(&mut self) -> u16 {
        let [low, high, ..] = self.next(2).to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

/// Reads the fields of a call, one after the other: `None` past the end.
#[derive(Debug)]
pub struct Reader<'c>(pub(super) &'c [u8]);

impl<'c> Reader<'c> {
    pub(super) fn bytes(&mut self, length: usize) -> Option<&'c [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn number(&mut self, width: usize) -> Option<u64> {
        self.bytes(width).map(number)
    }

    /// A number that scripts can count to.
    pub(super) fn count(&mut self) -> Option<u64> {
        self.number(7).filter(|count| *count <= Quota::MAX_COUNT)
    }

    pub(super) fn small(&mut self) -> Option<usize> {
        self.number(2).and_then(|number| usize::try_from(number).ok())
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }
}
