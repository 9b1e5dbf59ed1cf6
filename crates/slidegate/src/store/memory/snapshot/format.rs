//! The contents of a snapshot, encoded with `postcard`: a [`Header`], then [`Record`]s.

use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::algorithm::SavedHold;
use crate::key::KeyId;
use crate::quota::{Algorithm, QuotaFields};

/// The first bytes of every snapshot.
pub(super) const MAGIC: [u8; 8] = *b"slidgate";
/// The version of the format that this release writes, and the only one that it reads.
pub(super) const VERSION: u32 = 4;
/// Bytes before the first block: the magic and the version.
pub(super) const PREAMBLE_BYTES: u64 = 12;
/// Bytes after the last block: how long writing took, and the checksum.
pub(super) const TRAILER_BYTES: u64 = 12;
pub(super) const CHECKSUM_BYTES: u64 = 4;

/// The first block.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// When writing began, by the wall clock, in microseconds since the epoch.
    pub(super) wall_us: u64,
    /// The time since the machine was started, and the id of that start.
    pub(super) boot_us: u64,
    pub(super) boot_id: [u8; 16],
    pub(super) identity_seed: [u8; 16],
    pub(super) attachments: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store::memory) enum Record {
    /// The policies of the records that follow.
    Policies(Vec<SavedPolicy>),
    /// The usage of a key. Its state follows.
    Usage {
        key: SavedKey,
        algorithm: Algorithm,
        /// Whether it was used more than once, and is evicted late.
        is_repeated: bool,
    },
    /// The holds of a key, after all usage.
    Holds(SavedKey, Vec<SavedHold>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store::memory) struct SavedKey {
    /// The number of its policy.
    pub(in crate::store::memory) policy: u32,
    pub(in crate::store::memory) id: [u8; 16],
    /// The quota that came with a request.
    pub(in crate::store::memory) inline: Option<QuotaFields>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedPolicy {
    /// The number that its keys are stored under.
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) scope: Vec<String>,
    /// Whether its usage and quotas are in millionths of a unit.
    pub(crate) in_millionths: bool,
    pub(crate) quota: QuotaFields,
    /// By identity of the key.
    pub(crate) overrides: Vec<([u8; 16], QuotaFields)>,
}

/// Appends a value to others.
pub(in crate::store::memory) fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    postcard::to_io(value, out).expect("memory takes all of it");
}

/// Takes the next value; `None` if there is none of this type.
pub(super) fn take<T: DeserializeOwned>(input: &mut &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(input).ok()?;
    *input = rest;
    Some(value)
}

impl KeyId {
    pub(crate) fn to_saved(self) -> [u8; 16] {
        let [low, high] = self.0;
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }

    #[allow(clippy::cast_possible_truncation)] // the two halves
    pub(super) fn of_saved(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        Self([bits as u64, (bits >> 64) as u64])
    }
}

/// Counts and sums up what passes through.
#[derive(Debug)]
pub(super) struct Summed<W> {
    out: W,
    pub(super) bytes: u64,
    checksum: crc32fast::Hasher,
}

impl<W> Summed<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, bytes: 0, checksum: crc32fast::Hasher::new() }
    }

    /// The checksum of everything so far.
    pub(super) fn checksum(&self) -> [u8; 4] {
        self.checksum.clone().finalize().to_le_bytes()
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
