//! Rewrites the `:authority` of calls over a Unix socket to a value that the HTTP/2 library
//! accepts.
//!
//! A Unix socket has no host and port, so clients send different values: `localhost`, the path of
//! the socket, or the path percent-encoded as gRPC's C core does. The h2 crate resets calls whose
//! authority is not a host and port, although nothing here reads it. So its value is replaced in
//! the incoming bytes.
//!
//! The header block stays compressed. Other fields are copied, and the new value is never longer
//! than the old one, so that the server evicts no entry of the HPACK table earlier than the client
//! expects.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Largest frame: the smallest maximum that HTTP/2 allows (RFC 9113, 4.2). Messages are smaller.
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// The connection preface (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header (RFC 9113, 4.1).
pub(super) const HEAD_BYTES: usize = 9;
/// Length of the payload of a frame, by the first three bytes of its header.
pub(super) fn payload_bytes([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

/// The type of HEADERS frames, and their flags.
pub(super) const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The index of the field in the static table of RFC 7541, its name, and its name in Huffman code.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The new value: its length and its one byte.
const VALUE: [u8; 2] = [1, b'-'];
/// Bytes per read.
const READ_BYTES: usize = 8 * 1024;

/// What a client sends, with the same authority for all calls.
#[derive(Debug)]
pub(super) struct RewriteAuthority<I> {
    inner: I,
    /// Bytes received but not parsed: at most a frame header, a frame and one read.
    incoming: Vec<u8>,
    /// Bytes ready to be read.
    outgoing: Vec<u8>,
    /// How many of the incoming bytes to forward unchanged.
    passing: usize,
}

impl<I> RewriteAuthority<I> {
    pub(super) fn new(inner: I) -> Self {
        Self { inner, incoming: Vec::new(), outgoing: Vec::new(), passing: PREFACE.len() }
    }

    /// Parses as many of the incoming bytes as possible.
    fn advance(&mut self) {
        loop {
            let now = self.passing.min(self.incoming.len());
            self.outgoing.extend(self.incoming.drain(..now));
            self.passing -= now;
            if self.passing > 0 || self.incoming.len() < HEAD_BYTES {
                return;
            }
            let [a, b, c, kind, flags, ..] = self.incoming[..] else { return };
            let length = payload_bytes([a, b, c]);
            // A header block of several frames is larger than the limit.
            let is_whole = kind == HEADERS && flags & END_HEADERS != 0 && length <= MAX_FRAME_BYTES as usize;
            if !is_whole {
                self.passing = HEAD_BYTES + length;
                continue;
            }
            if self.incoming.len() < HEAD_BYTES + length {
                return;
            }
            let payload = &self.incoming[HEAD_BYTES..HEAD_BYTES + length];
            // The library rejects what cannot be parsed.
            let Some(payload) = rewritten(payload, flags) else {
                self.passing = HEAD_BYTES + length;
                continue;
            };
            let length_now = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
            self.outgoing.extend_from_slice(&length_now[1..]);
            self.outgoing.extend_from_slice(&self.incoming[3..HEAD_BYTES]);
            self.outgoing.extend_from_slice(&payload);
            self.incoming.drain(..HEAD_BYTES + length);
        }
    }
}

/// The payload of a frame with the new authority. `None` if it cannot be parsed.
fn rewritten(payload: &[u8], flags: u8) -> Option<Vec<u8>> {
    let padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().checked_sub(padding).filter(|end| *end >= start)?;
    let mut out = Vec::with_capacity(payload.len() + 1);
    out.extend_from_slice(&payload[..start]);
    let mut rest = &payload[start..end];
    while let Some(first) = rest.first() {
        // An indexed field, a literal with indexing, a table size update, a literal without
        // indexing.
        let (prefix_bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, mut taken) = integer(rest, prefix_bits)?;
        let mut is_authority = index == INDEX;
        if is_literal && index == 0 {
            let (name, length) = string(&rest[taken..])?;
            is_authority = name == NAME || rest[taken] & 0x80 != 0 && name == NAME_CODED;
            taken += length;
        }
        out.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
        if is_literal {
            let (_, length) = string(rest)?;
            out.extend_from_slice(if is_authority { &VALUE } else { &rest[..length] });
            rest = &rest[length..];
        }
    }
    out.extend_from_slice(&payload[end..]);
    Some(out)
}

/// A string literal (RFC 7541, 5.2): its bytes, encoded or not, and its total length.
fn string(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, taken) = integer(bytes, 7)?;
    let end = taken.checked_add(length)?;
    Some((bytes.get(taken..end)?, end))
}

/// An integer with this prefix (RFC 7541, 5.1), and its length in bytes.
fn integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
    let most = (1 << prefix_bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    // Four bytes suffice for any length within a frame.
    for (at, byte) in bytes.iter().enumerate().skip(1).take(4) {
        value += usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

impl<I: AsyncRead + Unpin> AsyncRead for RewriteAuthority<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.outgoing.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // The end of the stream. The rest is not a whole frame.
                self.outgoing = std::mem::take(&mut self.incoming);
                break;
            }
            self.incoming.extend_from_slice(read.filled());
            self.advance();
        }
        let now = buffer.remaining().min(self.outgoing.len());
        buffer.put_slice(&self.outgoing[..now]);
        self.outgoing.drain(..now);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The bytes that come out if these come in, so many at a time.
    async fn through(bytes: &[u8], at_once: usize) -> Vec<u8> {
        let source = Source { bytes: bytes.to_vec(), at_once };
        let mut out = Vec::new();
        RewriteAuthority::new(source).read_to_end(&mut out).await.unwrap();
        out
    }

    /// A source of so many bytes per read.
    struct Source {
        bytes: Vec<u8>,
        at_once: usize,
    }

    impl AsyncRead for Source {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let now = self.at_once.min(self.bytes.len()).min(buffer.remaining());
            buffer.put_slice(&self.bytes.drain(..now).collect::<Vec<_>>());
            Poll::Ready(Ok(()))
        }
    }

    /// Clients must work with any authority.
    #[tokio::test]
    async fn the_authority_is_replaced_in_every_encoding_and_everything_else_is_kept() {
        let path = b"\x0c%2Frun%2Fx.s";
        // A method, the authority, and a field whose value looks like one.
        for name in [&[0x41][..], &[0x01], b"\x40\x0a:authority", b"\x00\x0a:authority", &{
            [&[0x40, 0x88], NAME_CODED].concat()
        }] {
            let tail = b"\x3f\xe1\x1f\x40\x01a\x0a:authority\xc1";
            let block = [b"\x83", name, path, tail].concat();
            let expected = [b"\x83", name, &VALUE, tail].concat();
            for flags in [0, PADDED, PRIORITY, PADDED | PRIORITY] {
                let around = |block: &[u8]| {
                    let padded: &[u8] = if flags & PADDED != 0 { &[3] } else { &[] };
                    let priority: &[u8] = if flags & PRIORITY != 0 { &[0, 0, 0, 0, 16] } else { &[] };
                    let padding: &[u8] = if flags & PADDED != 0 { &[0; 3] } else { &[] };
                    let payload = [padded, priority, block, padding].concat();
                    [
                        PREFACE,
                        &frame(4, 0, b""),
                        &frame(1, flags | END_HEADERS, &payload),
                        &frame(0, 1, b"\x41\x01x"),
                    ]
                    .concat()
                };
                for at_once in [1, 7, 10_000] {
                    assert_eq!(
                        through(&around(&block), at_once).await,
                        around(&expected),
                        "{name:?} {flags}"
                    );
                }
            }
        }
    }

    /// Malformed bytes must reach the library, which rejects them, and must not cause a panic.
    #[tokio::test]
    async fn malformed_bytes_are_forwarded_unchanged() {
        for block in [
            &b"\x41\x7f"[..],
            b"\x41\xff\xff\xff\xff\xff\xff",
            b"\x40\x05a",
            b"\x7f\xff\xff\xff\xff\x0f",
            b"\x41",
        ] {
            let bytes = [PREFACE, &frame(1, END_HEADERS, block)].concat();
            assert_eq!(through(&bytes, 10_000).await, bytes, "{block:?}");
        }
        // Padding longer than the frame, a header block of several frames, and an incomplete frame.
        for rest in
            [frame(1, END_HEADERS | PADDED, &[9, 0x83]), frame(1, 0, b"\x41\x01x"), vec![0, 0, 9, 1, 4]]
        {
            let bytes = [PREFACE, &rest].concat();
            assert_eq!(through(&bytes, 10_000).await, bytes, "{rest:?}");
        }
    }
}
