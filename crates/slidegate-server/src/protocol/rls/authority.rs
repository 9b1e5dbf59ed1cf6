//! `:authority` of calls over a socket file, made one that the HTTP/2 library takes.
//!
//! A socket file has no host and port, so clients differ in what they write: `localhost`, the file's path, or the path
//! percent-encoded as gRPC's C core does. The library resets every call whose authority is no host and port before anybody
//! here sees it, and nobody here reads it. So its value is replaced while the bytes come in.
//!
//! The header block stays as compressed as it was. Its other fields are copied, and the new value is never longer than the
//! old one: then the server forgets no field of the compression's table earlier than the client believes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::MAX_FRAME_BYTES;

/// What a connection begins with (RFC 9113, 3.4), in bytes.
const PREFACE_BYTES: usize = 24;
/// The head of a frame (RFC 9113, 4.1), in bytes.
const HEAD_BYTES: usize = 9;
/// The type of frames that begin a header block, and their flags.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The field in the static table of RFC 7541, its name, and its name in Huffman's code.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// What stands in for the value: its length and its one byte.
const VALUE: [u8; 2] = [1, b'-'];
/// How much is read at once.
const READ_BYTES: usize = 8 * 1024;

/// A connection whose calls all have the same authority.
#[derive(Debug)]
pub(super) struct OneAuthority<I> {
    inner: I,
    /// Bytes that have come in and are not looked at yet: at most a head, a frame and one read.
    incoming: Vec<u8>,
    /// Bytes to be read.
    outgoing: Vec<u8>,
    /// How many of the incoming bytes to pass on as they are.
    passing: usize,
}

impl<I> OneAuthority<I> {
    pub(super) fn new(inner: I) -> Self {
        Self { inner, incoming: Vec::new(), outgoing: Vec::new(), passing: PREFACE_BYTES }
    }

    /// Takes as much of what has come in as can be understood.
    fn advance(&mut self) {
        loop {
            let now = self.passing.min(self.incoming.len());
            self.outgoing.extend(self.incoming.drain(..now));
            self.passing -= now;
            if self.passing > 0 || self.incoming.len() < HEAD_BYTES {
                return;
            }
            let [a, b, c, kind, flags, ..] = self.incoming[..] else { return };
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            // A block that goes on in another frame is larger than any that this service takes.
            let is_whole = kind == HEADERS && flags & END_HEADERS != 0 && length <= MAX_FRAME_BYTES as usize;
            if !is_whole {
                self.passing = HEAD_BYTES + length;
                continue;
            }
            if self.incoming.len() < HEAD_BYTES + length {
                return;
            }
            let payload = &self.incoming[HEAD_BYTES..HEAD_BYTES + length];
            // What cannot be read, the library refuses in its own words.
            let Some(payload) = with_one_authority(payload, flags) else {
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

/// The payload of a frame with another authority. `None` if it cannot be read.
fn with_one_authority(payload: &[u8], flags: u8) -> Option<Vec<u8>> {
    let padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().checked_sub(padding).filter(|end| *end >= start)?;
    let mut out = Vec::with_capacity(payload.len() + 1);
    out.extend_from_slice(&payload[..start]);
    let mut rest = &payload[start..end];
    while let Some(first) = rest.first() {
        // An indexed field, a literal that joins the table, a new size of the table, a literal that does not join it.
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

/// A string literal (RFC 7541, 5.2): its bytes, coded or not, and how many bytes it has with its length.
fn string(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, taken) = integer(bytes, 7)?;
    let end = taken.checked_add(length)?;
    Some((bytes.get(taken..end)?, end))
}

/// An integer in the lowest bits of the first byte, or in bytes after it (RFC 7541, 5.1), and how many bytes it has.
fn integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
    let most = (1 << prefix_bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    // Four bytes are more than any length that fits into a frame.
    for (at, byte) in bytes.iter().enumerate().skip(1).take(4) {
        value += usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

impl<I: AsyncRead + Unpin> AsyncRead for OneAuthority<I> {
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
                // The end. What is left is no whole frame.
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

impl<I: AsyncWrite + Unpin> AsyncWrite for OneAuthority<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// What comes out when these bytes come in, so many at a time.
    async fn through(bytes: &[u8], at_once: usize) -> Vec<u8> {
        let source = Source { bytes: bytes.to_vec(), at_once };
        let mut out = Vec::new();
        OneAuthority::new(source).read_to_end(&mut out).await.unwrap();
        out
    }

    /// A source that gives so many bytes at a time.
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

    /// A client that cannot be reached over a socket file because of how it spells the file has no limits.
    #[tokio::test]
    async fn the_authority_is_replaced_however_it_is_written_and_all_else_is_kept() {
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

    /// Bytes of an attacker must be refused by the library, and bring nothing down here.
    #[tokio::test]
    async fn what_cannot_be_read_is_passed_on_as_it_is() {
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
        // Padding that is longer than the frame, a block that goes on, and a frame that does not end.
        for rest in
            [frame(1, END_HEADERS | PADDED, &[9, 0x83]), frame(1, 0, b"\x41\x01x"), vec![0, 0, 9, 1, 4]]
        {
            let bytes = [PREFACE, &rest].concat();
            assert_eq!(through(&bytes, 10_000).await, bytes, "{rest:?}");
        }
    }
}
