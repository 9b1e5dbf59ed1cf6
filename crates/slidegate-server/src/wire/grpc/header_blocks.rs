//! Bounded header blocks: long values and names are cut, excess fields are dropped.
//!
//! A proxy sends its clients' calls over one connection and copies fields from clients into calls, such as
//! `tracestate`. The h2 crate rejects a call whose header list is too long and ends the connection if it is
//! four times too long, so one client could lift the limits of all. Nothing here reads long fields, so blocks
//! are rewritten before h2 sees them; h2 sees only whole blocks.
//!
//! Blocks stay compressed. An HPACK table entry is never dropped and never longer than the original, so the
//! server evicts no entry earlier than the client expects. Nearly all blocks are short and pass unread and
//! uncopied.
//!
//! Over a Unix socket, `:authority` is replaced too: there is no host and port, clients send different values
//! such as the socket's path, and h2 resets calls whose authority is not a host and port.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::frame::{END_HEADERS, HEAD_BYTES, HEADERS, PREFACE, payload_bytes};

mod block;

pub(super) use block::Authority;
use block::{BEGIN_BYTES, Block};

/// Bytes per read.
const READ_BYTES: usize = 8 * 1024;
/// Maximum bytes of a block that passes unchanged.
const SHORT_BLOCK_BYTES: usize = 256;
/// A client's input with bounded header blocks.
#[derive(Debug)]
pub(super) struct HeaderBlocks<I> {
    inner: I,
    authority: Authority,
    /// Bytes received but not parsed: less than a frame header, or one read.
    incoming: Vec<u8>,
    /// Bytes ready to be read.
    outgoing: Vec<u8>,
    /// Number of next bytes to forward unchanged.
    passing: usize,
    /// The block being rewritten.
    block: Option<Block>,
}

impl<I> HeaderBlocks<I> {
    pub(super) fn new(inner: I, authority: Authority) -> Self {
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Self { inner, authority, incoming, outgoing, passing: PREFACE.len(), block: None }
    }

    /// How many of these bytes pass unchanged: up to a block to rewrite, or an incomplete frame header.
    fn scan(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let now = self.passing.min(bytes.len() - at);
            self.passing -= now;
            at += now;
            let Some(&[a, b, c, kind, flags, ..]) = bytes[at..].first_chunk::<HEAD_BYTES>() else {
                return at;
            };
            let length = payload_bytes([a, b, c]);
            let is_short = flags & END_HEADERS != 0 && length <= SHORT_BLOCK_BYTES;
            if kind == HEADERS && !(is_short && self.authority == Authority::Kept) {
                return at;
            }
            self.passing = HEAD_BYTES + length;
        }
    }

    /// Parses as many of the incoming bytes as possible.
    ///
    /// # Errors
    /// A block that stays too long.
    fn advance(&mut self) -> io::Result<()> {
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        while !rest.is_empty() {
            let Some(block) = &mut self.block else {
                let (unchanged, after) = rest.split_at(self.scan(rest));
                self.outgoing.extend_from_slice(unchanged);
                rest = after;
                let Some((block, taken)) = Block::begin(rest, self.authority) else {
                    // More is needed; h2 rejects what cannot be parsed.
                    match rest.first_chunk::<HEAD_BYTES>() {
                        Some(&[a, b, c, ..])
                            if rest.len() >= HEAD_BYTES + payload_bytes([a, b, c]).min(BEGIN_BYTES) =>
                        {
                            self.passing = HEAD_BYTES + payload_bytes([a, b, c]);
                            continue;
                        }
                        _ => break,
                    }
                };
                self.block = Some(block);
                rest = &rest[taken..];
                continue;
            };
            if let Some(taken) = block.take(rest)? {
                rest = &rest[taken..];
            } else if block.ends {
                self.end_block(END_HEADERS);
            } else {
                let Some(head) = rest.first_chunk::<HEAD_BYTES>() else { break };
                if block.continues(*head) {
                    rest = &rest[HEAD_BYTES..];
                } else {
                    // h2 rejects what follows.
                    self.end_block(0);
                }
            }
        }
        self.incoming = rest.to_vec();
        if self.block.as_ref().is_some_and(Block::is_complete) {
            self.end_block(END_HEADERS);
        }
        Ok(())
    }

    fn end_block(&mut self, end: u8) {
        if let Some(block) = self.block.take() {
            block.write_to(&mut self.outgoing, end);
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for HeaderBlocks<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.outgoing.is_empty() {
            if this.incoming.is_empty() && this.block.is_none() {
                let before = buffer.filled().len();
                ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
                let bytes = &buffer.filled()[before..];
                let unchanged = this.scan(bytes);
                this.incoming.extend_from_slice(&bytes[unchanged..]);
                let is_end = bytes.is_empty();
                buffer.set_filled(before + unchanged);
                // Whole blocks among them must not wait for more bytes.
                this.advance()?;
                if unchanged > 0 || is_end {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut bytes = [0; READ_BYTES];
                let mut read = ReadBuf::new(&mut bytes);
                ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
                if read.filled().is_empty() {
                    // End of the stream. The rest is not a whole frame.
                    this.outgoing = std::mem::take(&mut this.incoming);
                    this.block = None;
                    break;
                }
                this.incoming.extend_from_slice(read.filled());
                this.advance()?;
            }
        }
        let now = buffer.remaining().min(this.outgoing.len());
        buffer.put_slice(&this.outgoing[..now]);
        this.outgoing.drain(..now);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::block::*;
    use super::*;
    use crate::wire::grpc::frame::{CONTINUATION, PADDED, PRIORITY};

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [&[0, length[0], length[1], kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Output for this input, read `at_once` bytes at a time.
    async fn through(bytes: &[u8], at_once: usize, authority: Authority) -> Vec<u8> {
        let source = Source { bytes: bytes.to_vec(), at_once };
        let mut out = Vec::new();
        HeaderBlocks::new(source, authority).read_to_end(&mut out).await.unwrap();
        out
    }

    /// A source with this many bytes per read.
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
            let expected = [b"\x83", name, AUTHORITY, tail].concat();
            for flags in [0, PADDED, PRIORITY, PADDED | PRIORITY] {
                let around = |block: &[u8], flags: u8| {
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
                        through(&around(&block, flags), at_once, Authority::Replaced).await,
                        around(&expected, 0),
                        "{name:?} {flags}"
                    );
                }
            }
        }
    }

    /// A literal that becomes a table entry (`0x40`), or not.
    fn literal(prefix: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        let string = |text: &[u8]| {
            let mut rest = text.len();
            let mut head = vec![u8::try_from(rest.min(127)).unwrap()];
            if rest >= 127 {
                rest -= 127;
                while rest >= 128 {
                    head.push(u8::try_from(rest % 128).unwrap() | 0x80);
                    rest /= 128;
                }
                head.push(u8::try_from(rest).unwrap());
            }
            [&head[..], text].concat()
        };
        [&[prefix][..], &string(name), &string(value)].concat()
    }

    /// Frames of a block split into pieces of this many bytes.
    fn frames(block: &[u8], piece: usize) -> Vec<u8> {
        let pieces: Vec<_> = block.chunks(piece).collect();
        let each = pieces.iter().enumerate().map(|(at, piece)| {
            let end = if at + 1 == pieces.len() { END_HEADERS } else { 0 };
            frame(if at == 0 { HEADERS } else { CONTINUATION }, end, piece)
        });
        [PREFACE.to_vec(), each.collect::<Vec<_>>().concat(), frame(0, 1, b"data")].concat()
    }

    /// One client of a proxy must not end the connection that carries everyone's calls.
    #[tokio::test]
    async fn long_values_and_names_are_cut_and_entries_of_the_table_stay() {
        let long = vec![b'v'; 60_000];
        let before = [b"\x83", &literal(0x40, b"a", b"b")[..]].concat();
        let after = literal(0, b"grpc-encoding", b"gzip");
        for (field, cut) in [
            (literal(0x40, b"tracestate", &long), literal(0x40, b"tracestate", b"")),
            (literal(0x10, b"tracestate", &long), Vec::new()),
            (literal(0x40, &long, b"v"), literal(0x40, b"x", b"v")),
            (literal(0x00, &long, &long), Vec::new()),
            (
                literal(0x40, b"kept", &long[..MAX_VALUE_BYTES]),
                literal(0x40, b"kept", &long[..MAX_VALUE_BYTES]),
            ),
        ] {
            let (block, expected) = (
                [&before, &field, &after].map(|part| &part[..]).concat(),
                [&before, &cut, &after].map(|part| &part[..]).concat(),
            );
            let expected = frames(&expected, 16_000);
            for (piece, at_once) in [(16_000, 10_000), (16_000, 777), (1000, 1), (60, 4096)] {
                let out = through(&frames(&block, piece), at_once, Authority::Kept).await;
                assert!(out == expected, "{} {piece} {at_once}: {} bytes", field.len(), out.len());
            }
        }
    }

    /// A connection's memory must not grow with its input.
    #[tokio::test]
    async fn further_fields_are_left_out_and_too_many_entries_end_the_connection() {
        let fields = |prefix, count: usize| {
            (0..count)
                .flat_map(|at| literal(prefix, format!("n{at}").as_bytes(), b"value"))
                .collect::<Vec<_>>()
        };
        let out = through(&frames(&fields(0, 5000), 16_000), 4096, Authority::Kept).await;
        assert!(out == frames(&fields(0, MAX_FIELDS), 16_000));
        let references = [vec![0x82; 5000], vec![0x20]].concat();
        let out = through(&frames(&references, 16_000), 4096, Authority::Kept).await;
        assert!(out == frames(&[vec![0x82; MAX_FIELDS], vec![0x20]].concat(), 16_000));
        let entries = [fields(0x40, MAX_FIELDS), literal(0x40, b"x", b"").repeat(400)].concat();
        let out = through(&frames(&fields(0x40, MAX_FIELDS + 400), 16_000), 4096, Authority::Kept).await;
        assert!(out == frames(&entries, 16_000));
        let source = Source { bytes: frames(&fields(0x40, 100_000), 16_000), at_once: 4096 };
        let mut blocks = HeaderBlocks::new(source, Authority::Kept);
        assert!(blocks.read_to_end(&mut Vec::new()).await.is_err());
    }

    /// Nearly all calls are short and must cost nothing.
    #[tokio::test]
    async fn short_blocks_and_other_frames_pass_unchanged() {
        let block = literal(0x40, b"tracestate", &[b'v'; 200]);
        let bytes =
            [frames(&block, 256), frame(HEADERS, END_HEADERS | PADDED, &[1, 0x83, 0]), frame(6, 0, &[7; 8])]
                .concat();
        for at_once in [1, 100, 10_000] {
            assert_eq!(through(&bytes, at_once, Authority::Kept).await, bytes);
        }
    }

    /// Malformed bytes must reach h2, which rejects them, and must not cause a panic.
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
            assert_eq!(through(&bytes, 10_000, Authority::Replaced).await, bytes, "{block:?}");
        }
        // Padding longer than the frame, and an incomplete frame.
        for rest in [frame(1, END_HEADERS | PADDED, &[9, 0x83]), vec![0, 0, 9, 1, 4]] {
            let bytes = [PREFACE, &rest].concat();
            assert_eq!(through(&bytes, 10_000, Authority::Replaced).await, bytes, "{rest:?}");
        }
    }
}
