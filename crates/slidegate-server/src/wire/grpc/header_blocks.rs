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

/// Maximum frame: the smallest maximum that HTTP/2 allows (RFC 9113, 4.2).
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// The connection preface (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header (RFC 9113, 4.1).
pub(super) const HEAD_BYTES: usize = 9;
/// Payload length of a frame, from the first three bytes of its header.
pub(super) fn payload_bytes([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

/// The types of frames with header blocks, and their flags.
pub(super) const HEADERS: u8 = 1;
pub(super) const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The field's index in the static table of RFC 7541, its name, and its Huffman-coded name.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The new authority: its length and its single byte.
const AUTHORITY: &[u8] = &[1, b'-'];
/// An empty value, and the name that replaces a long one.
const EMPTY: &[u8] = &[0];
const OTHER_NAME: &[u8] = &[1, b'x'];
/// Bytes per read.
const READ_BYTES: usize = 8 * 1024;
/// Maximum bytes of a block that passes unchanged.
const SHORT_BLOCK_BYTES: usize = 256;
/// Maximum encoded bytes of a value or name: longer than a token or propagated trace state.
const MAX_VALUE_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 256;
/// Maximum fields kept of a block. An Envoy call has about ten.
const MAX_FIELDS: usize = 100;
/// Maximum bytes of a block: twice the largest head that Envoy can be configured to accept.
const MAX_BLOCK_BYTES: usize = 16 * 1024 * 1024;
/// Maximum bytes of an encoded integer: enough for any string length.
const MAX_INTEGER_BYTES: usize = 5;

/// How calls' authorities are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Authority {
    Kept,
    Replaced,
}

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
        let Some(block) = self.block.take() else { return };
        let length = u32::try_from(block.out.len() + block.rest.len()).unwrap_or_default().to_be_bytes();
        let [_, _, _, kind, flags, stream @ ..] = block.head;
        self.outgoing.extend_from_slice(&length[1..]);
        self.outgoing.extend_from_slice(&[kind, flags & !(PADDED | PRIORITY | END_HEADERS) | end]);
        self.outgoing.extend_from_slice(&stream);
        self.outgoing.extend_from_slice(&block.out);
        // h2 rejects a block that ends within a field.
        self.outgoing.extend_from_slice(&block.rest);
    }
}

/// Payload bytes needed to begin a block: the padding length, and a priority.
const BEGIN_BYTES: usize = 6;

/// A header block that is being rewritten.
#[derive(Debug)]
struct Block {
    authority: Authority,
    /// The header of its first frame.
    head: [u8; HEAD_BYTES],
    /// The new block.
    out: Vec<u8>,
    /// An incomplete field.
    rest: Vec<u8>,
    /// Bytes of a long name or value still to skip.
    skipping: usize,
    part: Part,
    fields: usize,
    /// Bytes that have arrived.
    arrived: usize,
    /// Bytes left of the current frame: of the block, and padding.
    left: usize,
    padding: usize,
    /// Whether this frame is the last.
    ends: bool,
}

/// The next part of a block.
#[derive(Debug, Clone, Copy)]
enum Part {
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
    fn begin(bytes: &[u8], authority: Authority) -> Option<(Self, usize)> {
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
        let (out, rest, part) = (Vec::new(), Vec::new(), Part::Field);
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
    fn continues(&mut self, [a, b, c, kind, flags, stream @ ..]: [u8; HEAD_BYTES]) -> bool {
        let continues = kind == CONTINUATION && self.head[5..] == stream;
        if continues {
            self.left = payload_bytes([a, b, c]);
            self.ends = flags & END_HEADERS != 0;
        }
        continues
    }

    fn is_complete(&self) -> bool {
        self.ends && self.left == 0 && self.padding == 0
    }

    /// Takes bytes of the current frame. `None` if that is complete.
    fn take(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
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
                Part::Field => self.field(rest),
                Part::Value { begins, is_entry, is_authority } => {
                    self.value(rest, begins, is_entry, is_authority)
                }
                Part::Unparsed => None,
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
        self.part = Part::Value { begins, is_entry, is_authority };
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
        self.part = Part::Field;
        Some(taken)
    }

    /// Parses an integer. `None` if more is needed or it is malformed; after that nothing can be parsed.
    fn integer(&mut self, bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
        let integer = integer(bytes, prefix_bits);
        if integer.is_none() && bytes.len() >= MAX_INTEGER_BYTES {
            self.part = Part::Unparsed;
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

    use super::*;

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
