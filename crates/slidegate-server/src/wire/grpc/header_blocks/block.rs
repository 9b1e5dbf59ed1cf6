//! One header block that is rewritten: its fields are decoded as HPACK (RFC 7541) and bounded.

use std::io;

use crate::wire::grpc::frame::{
    CONTINUATION, END_HEADERS, HEAD_BYTES, MAX_FRAME_BYTES, PADDED, PRIORITY, payload_bytes,
};

/// The field's index in the static table of RFC 7541, its name, and its Huffman-coded name.
pub(super) const INDEX: usize = 1;
pub(super) const NAME: &[u8] = b":authority";
pub(super) const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The new authority: its length and its single byte.
pub(super) const AUTHORITY: &[u8] = &[1, b'-'];
/// An empty value, and the name that replaces a long one.
const EMPTY: &[u8] = &[0];
const OTHER_NAME: &[u8] = &[1, b'x'];
/// Maximum encoded bytes of a value or name: longer than a token or propagated trace state.
pub(super) const MAX_VALUE_BYTES: usize = 1024;
pub(super) const MAX_NAME_BYTES: usize = 256;
/// Maximum fields kept of a block. An Envoy call has about ten.
pub(super) const MAX_FIELDS: usize = 100;
/// Maximum bytes of a block: twice the largest head that Envoy can be configured to accept.
pub(super) const MAX_BLOCK_BYTES: usize = 16 * 1024 * 1024;
/// Maximum bytes of an encoded integer: enough for any string length.
const MAX_INTEGER_BYTES: usize = 5;

/// How calls' authorities are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wire::grpc) enum Authority {
    Kept,
    Replaced,
}

/// Payload bytes needed to begin a block: the padding length, and a priority.
pub(super) const BEGIN_BYTES: usize = 6;

/// A header block that is being rewritten.
#[derive(Debug)]
pub(super) struct Block {
    authority: Authority,
    /// The header of its first frame.
    head: [u8; HEAD_BYTES],
    /// The new block.
    out: Vec<u8>,
    /// An incomplete field.
    rest: Vec<u8>,
    /// Bytes of a long name or value still to skip.
    skipping: usize,
    part: BlockPart,
    fields: usize,
    /// Bytes that have arrived.
    arrived: usize,
    /// Bytes left of the current frame: of the block, and padding.
    left: usize,
    padding: usize,
    /// Whether this frame is the last.
    pub(super) ends: bool,
}

/// The next part of a block.
#[derive(Debug, Clone, Copy)]
enum BlockPart {
    Field,
    /// The value of a field that begins here in the new block.
    Value {
        begins: usize,
        is_entry: bool,
        is_authority: bool,
    },
    /// Cannot be parsed; h2 rejects it.
    Unparsed,
}

impl Block {
    /// The block that this frame begins, and the number of bytes before its first field. `None` if more is
    /// needed, or if the padding is longer than the frame.
    pub(super) fn begin(bytes: &[u8], authority: Authority) -> Option<(Self, usize)> {
        let head = *bytes.first_chunk::<HEAD_BYTES>()?;
        let [a, b, c, _, flags, ..] = head;
        let (length, payload) = (payload_bytes([a, b, c]), &bytes[HEAD_BYTES..]);
        if payload.len() < length.min(BEGIN_BYTES) {
            return None;
        }
        let padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
        let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
        let left = length.checked_sub(start + padding)?;
        let ends = flags & END_HEADERS != 0;
        let (out, rest, part) = (Vec::new(), Vec::new(), BlockPart::Field);
        let block = Self {
            authority,
            head,
            out,
            rest,
            skipping: 0,
            part,
            fields: 0,
            arrived: 0,
            left,
            padding,
            ends,
        };
        Some((block, HEAD_BYTES + start))
    }

    /// Whether the frame with this header continues the block.
    pub(super) fn continues(&mut self, [a, b, c, kind, flags, stream @ ..]: [u8; HEAD_BYTES]) -> bool {
        let continues = kind == CONTINUATION && self.head[5..] == stream;
        if continues {
            self.left = payload_bytes([a, b, c]);
            self.ends = flags & END_HEADERS != 0;
        }
        continues
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ends && self.left == 0 && self.padding == 0
    }

    /// Takes bytes of the current frame. `None` if that is complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let now = self.left.min(bytes.len());
        self.left -= now;
        self.arrived += now;
        self.rest.extend_from_slice(&bytes[..now]);
        self.rewrite();
        if self.out.len() + self.rest.len() > MAX_FRAME_BYTES as usize || self.arrived > MAX_BLOCK_BYTES {
            return Err(io::Error::other("a header block has too many fields or bytes"));
        }
        let padding = self.padding.min(bytes.len() - now);
        self.padding -= padding;
        Ok((now + padding > 0).then_some(now + padding))
    }

    /// Writes the new block as one frame, with this flag.
    pub(super) fn write_to(self, outgoing: &mut Vec<u8>, end: u8) {
        let length = u32::try_from(self.out.len() + self.rest.len()).unwrap_or_default().to_be_bytes();
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        outgoing.extend_from_slice(&length[1..]);
        outgoing.extend_from_slice(&[kind, flags & !(PADDED | PRIORITY | END_HEADERS) | end]);
        outgoing.extend_from_slice(&stream);
        outgoing.extend_from_slice(&self.out);
        // h2 rejects a block that ends within a field.
        outgoing.extend_from_slice(&self.rest);
    }

    /// Rewrites the bytes that have arrived, up to an incomplete field.
    fn rewrite(&mut self) {
        let bytes = std::mem::take(&mut self.rest);
        let mut rest = &bytes[..];
        loop {
            let skipped = self.skipping.min(rest.len());
            self.skipping -= skipped;
            rest = &rest[skipped..];
            let taken = match self.part {
                _ if rest.is_empty() => break,
                BlockPart::Field => self.field(rest),
                BlockPart::Value { begins, is_entry, is_authority } => {
                    self.value(rest, begins, is_entry, is_authority)
                }
                BlockPart::Unparsed => None,
            };
            match taken {
                Some(taken) => rest = &rest[taken..],
                None => break,
            }
        }
        self.rest = rest.to_vec();
    }

    /// Rewrites an indexed field or a field's name. Returns its length, or `None` if more is needed.
    fn field(&mut self, bytes: &[u8]) -> Option<usize> {
        // Indexed field, literal that becomes an entry, table size update, other literal.
        let (prefix_bits, is_literal, is_entry) = match bytes[0] {
            0x80.. => (7, false, false),
            0x40.. => (6, true, true),
            0x20.. => {
                let (_, taken) = self.integer(bytes, 5)?;
                self.out.extend_from_slice(&bytes[..taken]);
                return Some(taken);
            }
            _ => (4, true, false),
        };
        let (index, index_bytes) = self.integer(bytes, prefix_bits)?;
        let is_kept = self.fields < MAX_FIELDS;
        let begins = self.out.len();
        if !is_literal {
            self.fields += 1;
            if is_kept {
                self.out.extend_from_slice(&bytes[..index_bytes]);
            }
            return Some(index_bytes);
        }
        let mut is_authority = index == INDEX;
        let (mut literal_name, mut taken, mut skipped) = (&[][..], index_bytes, 0);
        if index == 0 {
            let name = &bytes[index_bytes..];
            let (length, before) = self.integer(name, 7)?;
            taken += before;
            if length > MAX_NAME_BYTES || !is_kept {
                (literal_name, skipped) = (OTHER_NAME, length);
            } else {
                let text = name.get(before..before + length)?;
                is_authority = text == NAME || name[0] & 0x80 != 0 && text == NAME_CODED;
                (literal_name, taken) = (&name[..before + length], taken + length);
            }
        }
        self.fields += 1;
        self.out.extend_from_slice(&bytes[..index_bytes]);
        self.out.extend_from_slice(literal_name);
        self.skipping = skipped;
        self.part = BlockPart::Value { begins, is_entry, is_authority };
        Some(taken)
    }

    /// Rewrites a value. Returns its length without skipped bytes, or `None` if more is needed.
    fn value(&mut self, bytes: &[u8], begins: usize, is_entry: bool, is_authority: bool) -> Option<usize> {
        let (length, before) = self.integer(bytes, 7)?;
        let is_kept = self.fields <= MAX_FIELDS && self.out.len() + length <= MAX_FRAME_BYTES as usize / 2;
        let replaced = if is_authority && self.authority == Authority::Replaced {
            Some(AUTHORITY)
        } else if length > MAX_VALUE_BYTES || !is_kept {
            Some(EMPTY)
        } else {
            None
        };
        let taken = match replaced {
            Some(value) => {
                self.out.extend_from_slice(value);
                self.skipping = length;
                before
            }
            None => {
                self.out.extend_from_slice(bytes.get(..before + length)?);
                before + length
            }
        };
        if !is_kept && !is_entry {
            self.out.truncate(begins);
        }
        self.part = BlockPart::Field;
        Some(taken)
    }

    /// Parses an integer. `None` if more is needed or it is malformed; after that nothing can be parsed.
    fn integer(&mut self, bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
        let integer = integer(bytes, prefix_bits);
        if integer.is_none() && bytes.len() >= MAX_INTEGER_BYTES {
            self.part = BlockPart::Unparsed;
        }
        integer
    }
}

/// An integer with this prefix (RFC 7541, 5.1), and its length in bytes.
fn integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
    let most = (1 << prefix_bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    for (at, byte) in bytes.iter().enumerate().take(MAX_INTEGER_BYTES).skip(1) {
        value += usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}
