//! Sections of a snapshot: a kind, a number, a length, the content, and a checksum of all of them.

use std::io::{self, Read, Write};

use super::SnapshotError;

/// The first bytes of every snapshot.
pub(super) const MAGIC: [u8; 8] = *b"slidgate";
/// The version of the format that this release writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;
/// Bytes before the first section.
pub(super) const PREAMBLE_BYTES: usize = 12;
/// Largest content of a section: that of the most policies with many overrides takes a tenth.
const MAX_CONTENT_BYTES: u32 = 64 << 20;

/// What a section contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Where and when the snapshot was written; the first section.
    Header = 1,
    /// A named text of the program.
    Attachment = 2,
    /// Policies with their quotas, for the keys that follow.
    Policies = 3,
    /// Keys with their usage.
    Keys = 4,
    /// The totals; the last section.
    End = 5,
    /// What is held on keys, after all keys.
    Holds = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Header, Self::Attachment, Self::Policies, Self::Keys, Self::End, Self::Holds]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Bytes of a section before its content: kind, number and length.
const HEAD_BYTES: usize = 9;

/// Writes a section. Returns its bytes.
pub(super) fn write(out: &mut impl Write, kind: Kind, number: u32, content: &[u8]) -> io::Result<u64> {
    let too_large = || io::Error::other("a section of the snapshot would be too large");
    let len = u32::try_from(content.len()).ok().filter(|len| *len <= MAX_CONTENT_BYTES);
    let mut head = [kind as u8; HEAD_BYTES];
    head[1..5].copy_from_slice(&number.to_le_bytes());
    head[5..].copy_from_slice(&len.ok_or_else(too_large)?.to_le_bytes());
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&head);
    checksum.update(content);
    out.write_all(&head)?;
    out.write_all(content)?;
    out.write_all(&checksum.finalize().to_le_bytes())?;
    Ok((HEAD_BYTES + content.len() + 4) as u64)
}

/// Reads the section of this number into `content`. `left` are the bytes of the file that are left,
/// so that a damaged length allocates no more.
pub(super) fn read(
    input: &mut impl Read,
    number: u32,
    left: &mut u64,
    content: &mut Vec<u8>,
) -> Result<Kind, SnapshotError> {
    let damaged = |what: &str| SnapshotError::damaged(format!("section {number} {what}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("is cut off"),
        _ => SnapshotError::io("cannot read the snapshot", &error),
    };
    let mut head = [0; HEAD_BYTES];
    input.read_exact(&mut head).map_err(unreadable)?;
    let [kind, number_and_len @ ..] = head;
    let half = |from: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&number_and_len[from..from + 4]);
        u32::from_le_bytes(bytes)
    };
    let (found, len) = (half(0), half(4));
    *left = left.saturating_sub(HEAD_BYTES as u64);
    if len > MAX_CONTENT_BYTES || u64::from(len) + 4 > *left {
        return Err(damaged("is cut off, or its length is damaged"));
    }
    content.resize(len as usize, 0);
    input.read_exact(content).map_err(unreadable)?;
    let mut stored = [0; 4];
    input.read_exact(&mut stored).map_err(unreadable)?;
    *left -= u64::from(len) + 4;
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&head);
    checksum.update(content);
    if checksum.finalize() != u32::from_le_bytes(stored) {
        return Err(damaged("has a wrong checksum"));
    }
    if found != number {
        return Err(damaged(&format!("has the number {found}")));
    }
    Kind::from_byte(kind).ok_or_else(|| damaged(&format!("is of the unknown kind {kind}")))
}
