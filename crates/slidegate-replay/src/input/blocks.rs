//! Reads a log in parsed blocks of whole lines.
//!
//! Memory is bounded for any log: one block and its parse result. An endless line is skipped
//! without being stored.

use std::io::{self, ErrorKind, Read};

use memchr::{memchr, memrchr};

use crate::block::{Block, RecordWriter};
use crate::format::LineKind;
use crate::format::field::FieldCounts;
use crate::format::fold::FoldOrder;
use crate::format::parser::LineParser;
use crate::format::wrapper::Wrapper;
use crate::input::stream::{Compression, LogStream};
use crate::malformed::{MAX_LINE_BYTES, Malformed};

/// Maximum malformed lines kept as examples.
pub(crate) const MAX_EXAMPLES: usize = 5;
/// Length of such an example: enough for the columns up to the request.
const MAX_EXCERPT_CHARS: usize = 120;
/// Maximum bytes per read of a file.
const READ_BYTES: usize = 256 * 1024;

/// Reads a log in blocks.
pub(crate) struct BlockReader {
    bytes: Box<dyn Read + Send>,
    compression: Compression,
    parser: LineParser,
    wrapper: Option<Wrapper>,
    /// The beginning of the next line.
    carry: Vec<u8>,
    /// Whether the current line is too long and skipped to its end.
    is_skipping: bool,
    /// Number of lines so far.
    lines: u64,
    block_bytes: usize,
}

/// A parsed block and its counts.
#[derive(Debug, Default)]
pub(crate) struct ReadBlock {
    pub(crate) block: Block,
    pub(crate) tally: LineCounts,
    /// The log has ended or cannot be read further.
    pub(crate) end: Option<io::Result<()>>,
}

/// Counts of a block's lines.
#[derive(Debug, Default)]
pub(crate) struct LineCounts {
    pub(crate) lines: u64,
    pub(crate) malformed: u64,
    pub(crate) other: u64,
    pub(crate) first_us: Option<u64>,
    pub(crate) last_us: Option<u64>,
    /// Number, reason and start of the first malformed lines.
    pub(crate) examples: Vec<(u64, Malformed, String)>,
    /// Counts since the first line of the log.
    pub(crate) counts: FieldCounts,
    pub(crate) missing_columns: Vec<String>,
}

impl BlockReader {
    pub(crate) fn new(
        LogStream { bytes, compression }: LogStream,
        parser: LineParser,
        wrapper: Option<Wrapper>,
        block_bytes: usize,
    ) -> Self {
        Self {
            bytes,
            compression,
            parser,
            wrapper,
            carry: Vec::new(),
            is_skipping: false,
            lines: 0,
            block_bytes,
        }
    }

    /// The next block; `spare` is one to reuse.
    pub(crate) fn next_block(&mut self, spare: Block) -> ReadBlock {
        let mut read = ReadBlock { block: spare, ..ReadBlock::default() };
        self.fill(&mut read);
        self.parse(&mut read);
        read.tally.counts = self.parser.fields.counts;
        read.tally.missing_columns = self.parser.missing_columns().into_iter().map(str::to_owned).collect();
        read.end = read.end.map(|end| end.map_err(|error| self.explained(error)));
        read
    }

    /// Evidence from the lines so far about repeated clock times.
    pub(crate) fn fold(&self) -> &FoldOrder {
        &self.parser.fields.fold
    }

    /// Fills a block with whole lines and keeps the start of the line after them.
    fn fill(&mut self, read: &mut ReadBlock) {
        let block = &mut read.block;
        block.truncate(0);
        block.append(&self.carry);
        self.carry.clear();
        while block.lines().len() < self.block_bytes {
            let start = block.lines().len();
            let room = block.room(READ_BYTES.min(self.block_bytes - start));
            match self.bytes.read(room) {
                // Text after the last line end is a line too, unless already counted.
                Ok(0) => {
                    read.end = Some(Ok(()));
                    return;
                }
                Ok(length) => block.grow(length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    read.end = Some(Err(error));
                    break;
                }
            }
            if self.is_skipping {
                match memchr(b'\n', block.lines()) {
                    Some(end) => {
                        block.drain_start(end + 1);
                        self.is_skipping = false;
                    }
                    None => block.truncate(0),
                }
            }
        }
        let end = memrchr(b'\n', block.lines()).map_or(0, |end| end + 1);
        if read.end.is_none() {
            self.carry.extend_from_slice(&block.lines()[end..]);
        }
        // A line cut off by an error does not count.
        block.truncate(end);
        if self.carry.len() > MAX_LINE_BYTES {
            // Counted as a line of this block: its end has not arrived.
            let lines = memchr::memchr_iter(b'\n', block.lines()).count() as u64;
            read.tally.lines += 1;
            read.tally.malformed(self.lines + lines + 1, &self.carry, Malformed::TooLong);
            self.carry = Vec::new();
            self.is_skipping = true;
        }
    }

    fn parse(&mut self, read: &mut ReadBlock) {
        let ReadBlock { block, tally, .. } = read;
        self.parser.begin_block(&mut block.parsed);
        // The overlong line comes after those of the block.
        let too_long = tally.lines;
        let after = std::mem::take(&mut tally.examples);
        if let Some(wrapper) = self.wrapper {
            self.parse_wrapped(wrapper, block, tally);
        } else {
            let (lines, parsed) = block.parts();
            let mut out = RecordWriter::new(lines, parsed);
            for line in (Lines { bytes: lines, at: 0 }) {
                self.lines += 1;
                tally.lines += 1;
                parse_line(&mut self.parser, line, self.lines, &mut out, tally);
            }
        }
        self.lines += too_long;
        tally.examples.extend(after);
        tally.examples.truncate(MAX_EXAMPLES);
        for record in &block.parsed.records {
            tally.first_us =
                Some(tally.first_us.map_or(record.time_us, |first_us| first_us.min(record.time_us)));
            tally.last_us = tally.last_us.max(Some(record.time_us));
        }
    }

    /// First removes the wrapper from every line; the inner lines become the block.
    fn parse_wrapped(&mut self, wrapper: Wrapper, block: &mut Block, tally: &mut LineCounts) {
        let mut inner = Vec::with_capacity(block.lines().len());
        let mut lines: Vec<(u64, usize)> = Vec::new();
        for line in (Lines { bytes: block.lines(), at: 0 }) {
            self.lines += 1;
            tally.lines += 1;
            match wrapper.unwrap(line) {
                Some(text) => {
                    lines.push((self.lines, inner.len()));
                    inner.extend_from_slice(&text);
                }
                None => tally.malformed(self.lines, line, Malformed::Wrapper(wrapper.name())),
            }
        }
        block.truncate(0);
        block.append(&inner);
        let (text, parsed) = block.parts();
        let mut out = RecordWriter::new(text, parsed);
        for (at, (number, start)) in lines.iter().enumerate() {
            let end = lines.get(at + 1).map_or(text.len(), |(_, start)| *start);
            parse_line(&mut self.parser, &text[*start..end], *number, &mut out, tally);
        }
    }

    /// Adds where compressed data is damaged.
    fn explained(&self, error: io::Error) -> io::Error {
        let name = self.compression.name();
        let what = match error.kind() {
            _ if self.compression == Compression::Plain => return error,
            ErrorKind::UnexpectedEof => "ends in the middle".to_owned(),
            ErrorKind::InvalidInput | ErrorKind::InvalidData => format!("is damaged ({error})"),
            _ => return error,
        };
        let message = format!("{name} data {what} after line {}; `{name} -t` checks a copy", self.lines);
        io::Error::new(error.kind(), message)
    }
}

fn parse_line(
    parser: &mut LineParser,
    line: &[u8],
    number: u64,
    out: &mut RecordWriter<'_>,
    tally: &mut LineCounts,
) {
    if line.len() > MAX_LINE_BYTES {
        tally.malformed(number, line, Malformed::TooLong);
        return;
    }
    out.begin(number);
    match parser.parse(line, out) {
        Ok(LineKind::Request) => out.commit(),
        Ok(LineKind::Other) => tally.other += 1,
        Err(reason) => tally.malformed(number, line, reason),
    }
}

impl LineCounts {
    fn malformed(&mut self, number: u64, line: &[u8], reason: Malformed) {
        self.malformed += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push((number, reason, excerpt(line)));
        }
    }
}

/// The lines of a block, without their ends.
struct Lines<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Iterator for Lines<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return None;
        }
        let line = match memchr(b'\n', rest) {
            Some(end) => {
                self.at += end + 1;
                let line = &rest[..end];
                line.strip_suffix(b"\r").unwrap_or(line)
            }
            None => {
                self.at = self.bytes.len();
                rest
            }
        };
        Some(line)
    }
}

/// ASCII only: a log is hostile text, and even printable Unicode can reverse a terminal's line.
fn excerpt(line: &[u8]) -> String {
    let mut text = String::new();
    for &byte in line.iter().take(MAX_EXCERPT_CHARS + 1) {
        match byte {
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    if text.len() > MAX_EXCERPT_CHARS {
        text.truncate(MAX_EXCERPT_CHARS - 1);
        text.push('…');
    }
    text
}
