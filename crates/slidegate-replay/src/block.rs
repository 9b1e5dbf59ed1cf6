//! A block of whole lines, and the requests parsed from them.
//!
//! A request is a [`Record`]: numbers, and texts as offsets into its block, so a line costs no
//! allocation. Decoded texts are in a second buffer of the block.

use std::borrow::Cow;

use crate::column::unescape;
use crate::malformed::Malformed;

/// The position of a record's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset into the block or, with [`DECODED`] added, into its decoded texts.
    start: u32,
    len: u32,
}

/// Added to offsets into the decoded texts.
const DECODED: u32 = 1 << 31;

impl Span {
    /// A text missing from the line.
    pub(crate) const ABSENT: Self = Self { start: u32::MAX, len: 0 };

    pub(crate) fn is_absent(self) -> bool {
        self == Self::ABSENT
    }

    /// The text, from a block's lines or decoded texts. `None` if absent.
    #[inline]
    fn of<'t>(self, lines: &'t [u8], decoded: &'t [u8]) -> Option<&'t [u8]> {
        if self.is_absent() {
            return None;
        }
        let (texts, start) = match self.start & DECODED {
            0 => (lines, self.start),
            _ => (decoded, self.start & !DECODED),
        };
        Some(&texts[start as usize..start as usize + self.len as usize])
    }

    /// A text in the block itself. `start` is below a block's length, so it fits.
    #[allow(clippy::cast_possible_truncation)] // blocks are far below 2 GiB
    pub(crate) fn of_block(start: usize, len: usize) -> Self {
        debug_assert!(start + len < DECODED as usize);
        Self { start: start as u32, len: len as u32 }
    }
}

/// The texts of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Client,
    User,
    Method,
    Target,
    Host,
    Referer,
    UserAgent,
}

pub(crate) const TEXTS: usize = 7;

/// One request, as numbers and offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Microseconds since the Unix epoch.
    pub(crate) time_us: u64,
    pub(crate) cost: u64,
    pub(crate) bytes: u64,
    /// The line's number in its log, from 1.
    pub(crate) line: u64,
    pub(crate) texts: [Span; TEXTS],
    /// Index of its further attributes in [`Parsed::extras`].
    extras: u32,
    extras_len: u16,
    /// 0 if the log has none.
    pub(crate) status: u16,
}

impl Record {
    pub(crate) const EMPTY: Self = Self {
        time_us: 0,
        cost: 1,
        bytes: 0,
        line: 0,
        texts: [Span::ABSENT; TEXTS],
        extras: 0,
        extras_len: 0,
        status: 0,
    };
}

/// The parse result of a block's lines.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) records: Vec<Record>,
    /// Name and value of further attributes.
    extras: Vec<(Span, Span)>,
    /// Texts that differ from the lines: decoded escapes, and attribute names.
    decoded: Vec<u8>,
    /// Positions of the format's attribute names, in its order.
    names: Vec<Span>,
}

/// Lines and their parse result.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The lines, and unused space that need not be initialized again.
    bytes: Vec<u8>,
    /// Bytes of the lines.
    len: usize,
    pub(crate) parsed: Parsed,
}

impl Block {
    /// The lines, with their ends.
    pub(crate) fn lines(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The lines and their parse result.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Parsed) {
        (&self.bytes[..self.len], &mut self.parsed)
    }

    /// Space for this many bytes after the lines; report the bytes written with
    /// [`grow`](Self::grow).
    pub(crate) fn room(&mut self, length: usize) -> &mut [u8] {
        let end = self.len + length;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..end]
    }

    pub(crate) fn grow(&mut self, length: usize) {
        self.len += length;
        debug_assert!(self.len <= self.bytes.len());
    }

    /// Drops everything after this many bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.len = self.len.min(length);
    }

    /// Drops this many bytes at the beginning.
    pub(crate) fn drain_start(&mut self, length: usize) {
        self.bytes.copy_within(length..self.len, 0);
        self.len -= length;
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.grow(bytes.len());
    }

    pub(crate) fn text(&self, span: Span) -> Option<&[u8]> {
        span.of(&self.bytes, &self.parsed.decoded)
    }

    /// The further attributes of a record.
    pub(crate) fn extras(&self, record: &Record) -> &[(Span, Span)] {
        let start = record.extras as usize;
        &self.parsed.extras[start..start + usize::from(record.extras_len)]
    }

    /// Memory used by the lines and their parse result.
    pub(crate) fn held_bytes(&self) -> usize {
        self.len
            + self.parsed.decoded.len()
            + self.parsed.records.len() * size_of::<Record>()
            + self.parsed.extras.len() * size_of::<(Span, Span)>()
    }
}

impl Parsed {
    /// Resets for a new block; `names` are the format's attributes.
    pub(crate) fn clear<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        self.records.clear();
        self.extras.clear();
        self.decoded.clear();
        self.names.clear();
        self.set_names(names);
    }

    /// Adds the names that the format gained since the block began: a header may come late.
    pub(crate) fn set_names<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        for name in names.skip(self.names.len()) {
            let span = self.decode(name.as_bytes());
            self.names.push(span);
        }
    }

    /// Copies a text that is not in the lines.
    #[allow(clippy::cast_possible_truncation)] // a block's texts are far below 2 GiB
    pub(crate) fn decode(&mut self, text: &[u8]) -> Span {
        let start = self.decoded.len();
        self.decoded.extend_from_slice(text);
        Span { start: start as u32 | DECODED, len: text.len() as u32 }
    }
}

/// Escaping of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Escape {
    None,
    /// `\x22`, `\"`: Apache and nginx.
    Backslash,
}

/// Writes the record of one line.
#[derive(Debug)]
pub(crate) struct RecordWriter<'b> {
    /// All lines of the block.
    lines: &'b [u8],
    pub(crate) parsed: &'b mut Parsed,
    pub(crate) record: Record,
}

impl<'b> RecordWriter<'b> {
    pub(crate) fn new(lines: &'b [u8], parsed: &'b mut Parsed) -> Self {
        Self { lines, parsed, record: Record::EMPTY }
    }

    /// Begins a line. Drops an uncommitted line before it.
    #[allow(clippy::cast_possible_truncation)] // fewer attributes than bytes in a block
    pub(crate) fn begin(&mut self, line: u64) {
        let committed = self.parsed.records.last();
        let extras = committed.map_or(0, |last| last.extras as usize + usize::from(last.extras_len));
        self.parsed.extras.truncate(extras);
        self.record = Record { line, extras: extras as u32, ..Record::EMPTY };
    }

    /// The span of a text: in place if it lies in the lines, otherwise copied.
    pub(crate) fn span(&mut self, text: &[u8]) -> Span {
        let start = (text.as_ptr() as usize).wrapping_sub(self.lines.as_ptr() as usize);
        if start < self.lines.len() && start + text.len() <= self.lines.len() {
            Span::of_block(start, text.len())
        } else {
            self.parsed.decode(text)
        }
    }

    /// Sets a text of the record.
    pub(crate) fn text(&mut self, which: Text, text: &[u8], escape: Escape) {
        self.record.texts[which as usize] = self.escaped(text, escape);
    }

    /// A text already set; `None` if absent.
    pub(crate) fn known(&self, span: Span) -> Option<&[u8]> {
        span.of(self.lines, &self.parsed.decoded)
    }

    /// Whether the record has further attributes.
    pub(crate) fn has_extras(&self) -> bool {
        self.record.extras_len > 0
    }

    /// Names and values of further attributes so far.
    pub(crate) fn extras(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let extras = &self.parsed.extras[self.record.extras as usize..];
        extras.iter().filter_map(|(name, value)| Some((self.known(*name)?, self.known(*value)?)))
    }

    fn escaped(&mut self, text: &[u8], escape: Escape) -> Span {
        match escape {
            Escape::None => self.span(text),
            Escape::Backslash => match unescape(text) {
                Cow::Borrowed(text) => self.span(text),
                Cow::Owned(decoded) => self.parsed.decode(&decoded),
            },
        }
    }

    /// Adds an attribute named by the format, by its number there.
    pub(crate) fn extra(&mut self, name: usize, value: &[u8], escape: Escape) -> Result<(), Malformed> {
        let name = self.parsed.names[name];
        let value = self.escaped(value, escape);
        self.push_extra(name, value)
    }

    /// Adds an attribute named only by this line.
    pub(crate) fn named_extra(&mut self, name: &str, value: &[u8]) -> Result<(), Malformed> {
        let (name, value) = (self.span(name.as_bytes()), self.span(value));
        self.push_extra(name, value)
    }

    fn push_extra(&mut self, name: Span, value: Span) -> Result<(), Malformed> {
        if self.record.extras_len >= MAX_EXTRAS {
            return Err(Malformed::Field("attributes", "at most 64"));
        }
        self.parsed.extras.push((name, value));
        self.record.extras_len += 1;
        Ok(())
    }

    /// Commits the record: its line is a request.
    pub(crate) fn commit(&mut self) {
        self.parsed.records.push(self.record);
    }
}

/// Maximum further attributes of a line: the service's own limit.
pub(crate) const MAX_EXTRAS: u16 = 64;
