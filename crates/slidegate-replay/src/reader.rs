//! Reads access logs and returns their entries in order of time.
//!
//! Several logs are merged by time, and equal times by the order of the logs and lines, so the result does
//! not depend on the number of cores. Logs are ordered by first time, then name, whatever order they were
//! given in, and opened when the merge reaches them. A damaged end is reported after everything else has been
//! returned.
//!
//! Memory is bounded for any log: blocks of lines, and the lines that [`Reorder`] holds back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::entry::Entry;
use crate::format::field::{FieldCounts, SourceSet};
use crate::format::fold::FoldOrder;
use crate::format::name::ParserOptions;
use crate::input::blocks::{BlockReader, LineCounts, MAX_EXAMPLES};
use crate::input::pool::{Feed, Pool};
use crate::input::stream::LogStream;
use crate::reorder::Reorder;
use crate::stats::{LogStats, MalformedLine, TimeJump};

mod log;
mod open_log;
mod opening;
mod options;
mod progress;
mod unreadable;

use log::{Log, Source};
use open_log::{Head, LiveBlock, OpenLog};
pub use options::LogOptions;
pub use progress::Progress;
use unreadable::unreadable;

/// Maximum open logs: below the usual limit of file descriptors.
const MAX_OPEN_LOGS: usize = 512;
/// Bytes of a block: a few milliseconds of work.
const BLOCK_BYTES: usize = 1024 * 1024;
/// Bytes of a block if many logs are open. Larger than the longest line.
const SMALL_BLOCK_BYTES: usize = 128 * 1024;
/// Number of logs above which blocks are small.
const MANY_LOGS: usize = 16;
/// Pause between two requests that is worth a note.
const GAP_US: u64 = 24 * 3600 * 1_000_000;

/// Reads access logs.
#[allow(missing_debug_implementations)] // streams have none
pub struct LogReader {
    options: LogOptions,
    parser_options: ParserOptions,
    /// Sorted by first time.
    logs: Vec<Log>,
    /// Index of the first unopened log.
    next_log: usize,
    /// By slot; `None` if free.
    open: Vec<Option<OpenLog>>,
    /// The next entry of each open log, except that of the current entry.
    heads: BinaryHeap<Reverse<Head>>,
    /// The entry being returned; its log must advance next.
    current: Option<Head>,
    pool: Option<Pool>,
    /// Inputs by name, and whether any line was readable.
    inputs: Vec<(String, bool)>,
    /// Which user-mapped fields have had a value.
    sources: SourceSet,
    newest_us: u64,
    /// Errors reported after the last entry.
    failures: VecDeque<io::Error>,
    is_finished: bool,
    bytes_read: Arc<AtomicU64>,
    total_bytes: Option<u64>,
    stats: LogStats,
}

impl LogReader {
    fn block_reader(&self, log: &Log, stream: LogStream) -> io::Result<BlockReader> {
        let mut parser = log.detected.format.parser(&self.parser_options).map_err(io::Error::other)?;
        if log.is_start_known {
            parser.fields.fold = FoldOrder::new(self.parser_options.time.slack_us, Some(log.first_us));
        }
        let block_bytes = if self.logs.len() > MANY_LOGS { SMALL_BLOCK_BYTES } else { BLOCK_BYTES };
        Ok(BlockReader::new(stream, parser, log.detected.wrapper, block_bytes))
    }

    /// The next entry in order of time; equal times in the order of the logs and lines. Valid until the next
    /// call.
    ///
    /// Late entries keep their own time, so a clock that follows the log must take the maximum of both.
    ///
    /// # Errors
    /// A log cannot be read further, or an input has no readable line. Each error names the log,
    /// and is returned once, after the last entry; then `None` follows. With
    /// [`strict`](LogOptions::strict) the first malformed or late line is an error that ends the
    /// reading at once.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry<'_>>> {
        if let Some(handed_out) = self.current.take() {
            self.release(handed_out);
            self.advance(handed_out.slot)?;
        }
        let Some(head) = self.next_head()? else {
            self.finish();
            return self.failures.pop_front().map_or(Ok(None), Err);
        };
        self.note_time(head)?;
        self.current = Some(head);
        let open = self.open[head.slot].as_ref().expect("the log of a head is open");
        let block = &open.blocks[head.line.block].as_ref().expect("the block of a head is live").block;
        Ok(Some(Entry::of(block, &block.parsed.records[head.line.record])))
    }

    /// Statistics so far, including buffered lines.
    pub fn stats(&self) -> &LogStats {
        &self.stats
    }

    /// The earliest head of all logs, after opening those that may have an earlier one.
    fn next_head(&mut self) -> io::Result<Option<Head>> {
        if self.is_finished {
            return Ok(None);
        }
        while let Some(log) = self.logs.get(self.next_log) {
            let from_us = log.first_us.saturating_sub(self.slack_us());
            if self.heads.peek().is_some_and(|Reverse(least)| least.time_us < from_us) {
                break;
            }
            self.open_next()?;
        }
        Ok(self.heads.pop().map(|Reverse(least)| least))
    }

    fn slack_us(&self) -> u64 {
        self.parser_options.time.slack_us
    }

    fn open_next(&mut self) -> io::Result<()> {
        let at = self.next_log;
        self.next_log += 1;
        let name = Arc::clone(&self.stats.logs[at].name);
        let log = &mut self.logs[at];
        let opened = match &mut log.source {
            Source::File(path) => LogStream::open(path, &self.bytes_read).map(Some),
            Source::Stream(stream) => {
                Ok(stream.take().map(|(bytes, compression)| LogStream { bytes, compression }))
            }
        };
        let stream = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.failures.push_back(io::Error::new(error.kind(), format!("{name}: {error}")));
                return Ok(());
            }
        };
        let reader = self.block_reader(&self.logs[at], stream)?;
        let open = OpenLog {
            log: at,
            feed: Feed::new(reader, self.pool.as_ref()),
            reorder: Reorder::new(self.slack_us()),
            blocks: Vec::new(),
            held_bytes: 0,
            newest: None,
            spare: None,
            counts: FieldCounts::default(),
            has_ended: false,
        };
        let slot = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if slot == MAX_OPEN_LOGS {
            return Err(io::Error::other(format!(
                "{name}: more than {MAX_OPEN_LOGS} logs are of the same time: merge some, or replay fewer"
            )));
        }
        if slot == self.open.len() {
            self.open.push(None);
        }
        self.open[slot] = Some(open);
        self.advance(slot)
    }

    /// Finds the next head of a log, or closes it.
    fn advance(&mut self, slot: usize) -> io::Result<()> {
        loop {
            let logs_open = self.open.len();
            let Some(open) = &mut self.open[slot] else { return Ok(()) };
            if let Some(line) = open.next_pending(logs_open) {
                self.heads.push(Reverse(Head { time_us: line.time_us, log: open.log, line, slot }));
                return Ok(());
            }
            if open.has_ended {
                self.open[slot] = None;
                return Ok(());
            }
            self.take_block(slot)?;
        }
    }

    /// Accepts the next block of a log.
    fn take_block(&mut self, slot: usize) -> io::Result<()> {
        let Some(open) = &mut self.open[slot] else { return Ok(()) };
        let spare = open.spare.take().unwrap_or_default();
        let Some(read) = open.feed.next(spare) else {
            open.has_ended = true;
            return Ok(());
        };
        let log = open.log;
        let records = read.block.parsed.records.len();
        let counts = std::mem::replace(&mut open.counts, read.tally.counts);
        if records > 0 {
            open.held_bytes += read.block.held_bytes();
            let live = LiveBlock { block: read.block, remaining: records };
            let free = open.blocks.iter().position(Option::is_none).unwrap_or(open.blocks.len());
            if free == open.blocks.len() {
                open.blocks.push(None);
            }
            open.blocks[free] = Some(live);
            open.newest = Some((free, 0));
        } else {
            open.spare = Some(read.block);
        }
        match read.end {
            Some(Ok(())) => open.has_ended = true,
            Some(Err(error)) => {
                open.has_ended = true;
                let name = &self.stats.logs[log].name;
                self.failures.push_back(io::Error::new(error.kind(), format!("{name}: {error}")));
            }
            None => {}
        }
        self.count(log, &read.tally, records as u64, counts)
    }

    /// Adds a block's counts to the statistics.
    fn count(&mut self, log: usize, tally: &LineCounts, entries: u64, before: FieldCounts) -> io::Result<()> {
        let stats = &mut self.stats;
        stats.lines += tally.lines;
        stats.entries += entries;
        stats.malformed += tally.malformed;
        stats.other += tally.other;
        stats.derived_starts += tally.counts.derived - before.derived;
        stats.ends += tally.counts.ended - before.ended;
        stats.without_cost += tally.counts.without_cost - before.without_cost;
        stats.clock_changes.add_since(tally.counts.clock_changes, before.clock_changes);
        let sources = self.sources.union(tally.counts.sources);
        if std::mem::replace(&mut self.sources, sources) != sources || stats.lines == tally.lines {
            stats.missing_fields = self.options.missing_fields(sources);
        }
        if let (Some(first_us), Some(last_us)) = (tally.first_us, tally.last_us) {
            stats.first_us = Some(stats.first_us.map_or(first_us, |known_us| known_us.min(first_us)));
            stats.last_us = stats.last_us.max(Some(last_us));
        }
        let name = (stats.logs.len() > 1).then(|| Arc::clone(&stats.logs[log].name));
        for (number, reason, excerpt) in &tally.examples {
            if stats.malformed_lines.len() < MAX_EXAMPLES {
                stats.malformed_lines.push(MalformedLine {
                    log: name.clone(),
                    number: *number,
                    reason: reason.clone(),
                    excerpt: excerpt.clone(),
                });
            }
        }
        let summary = &mut stats.logs[log];
        summary.lines += tally.lines;
        summary.entries += entries;
        summary.malformed += tally.malformed;
        summary.missing_columns.clone_from(&tally.missing_columns);
        self.inputs[self.logs[log].input].1 |= entries > 0;
        let first = self.stats.malformed_lines.first().filter(|_| self.options.strict);
        match first.map(|line| format!("{}: {line}", self.stats.logs[log].name)) {
            Some(error) => Err(self.stop(error)),
            None => Ok(()),
        }
    }

    /// Counts an entry whose time is far from the previous entry's.
    fn note_time(&mut self, head: Head) -> io::Result<()> {
        let (time_us, after_us) = (head.time_us, self.newest_us);
        if time_us >= after_us {
            self.newest_us = time_us;
            if time_us - after_us <= GAP_US || after_us == 0 {
                return Ok(());
            }
        }
        let is_late = time_us < after_us;
        *(if is_late { &mut self.stats.late } else { &mut self.stats.gaps }) += 1;
        let log = (self.stats.logs.len() > 1).then(|| Arc::clone(&self.stats.logs[head.log].name));
        let jump = TimeJump { log, number: head.line.number, time_us, after_us };
        if is_late && self.options.strict {
            let error = format!("{}: {jump}", self.stats.logs[head.log].name);
            return Err(self.stop(error));
        }
        if self.stats.jumps.len() < MAX_EXAMPLES {
            self.stats.jumps.push(jump);
        }
        Ok(())
    }

    /// Stops reading at once.
    fn stop(&mut self, error: String) -> io::Error {
        self.is_finished = true;
        self.current = None;
        self.failures.clear();
        self.open.clear();
        self.heads.clear();
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    /// Releases the entry returned last.
    fn release(&mut self, Head { slot, line, .. }: Head) {
        let Some(open) = &mut self.open[slot] else { return };
        let Some(live) = &mut open.blocks[line.block] else { return };
        live.remaining -= 1;
        // The newest block may have unprocessed records.
        if live.remaining == 0
            && let Some(live) = open.blocks[line.block].take()
        {
            open.held_bytes -= live.block.held_bytes();
            open.spare = Some(live.block);
        }
    }

    /// After the last entry: an input without a readable line is an error.
    fn finish(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        // A log that could not be read has its own error.
        let has_failed = !self.failures.is_empty();
        for (input, (name, is_readable)) in self.inputs.iter().enumerate() {
            if *is_readable || has_failed {
                continue;
            }
            let logs = self.logs.iter().zip(&self.stats.logs).filter(|(log, _)| log.input == input);
            let (lines, count) = logs.fold((0, 0), |(lines, count), (_, log)| (lines + log.lines, count + 1));
            // Another input also matched its logs.
            if count == 0 {
                continue;
            }
            let text = unreadable(name, lines, &self.stats, self.options.format.is_some());
            self.failures.push_back(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use std::io::{Cursor, ErrorKind, Write};
    use std::time::Duration;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::malformed::{MAX_LINE_BYTES, Malformed};

    /// A valid line at this second of 10:00 to 10:59, with its number in the path.
    fn line(second: u64, number: usize) -> String {
        let (minute, second) = (second / 60, second % 60);
        format!("a - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET /{number} HTTP/1.1\" 200 1\n")
    }

    /// A log with lines at these seconds, numbered from 0.
    fn log(seconds: &[u64]) -> Vec<u8> {
        seconds
            .iter()
            .enumerate()
            .map(|(number, &second)| line(second, number))
            .collect::<String>()
            .into_bytes()
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn reader(bytes: impl Into<Vec<u8>>) -> LogReader {
        LogReader::from_reader(Cursor::new(bytes.into())).unwrap()
    }

    /// The paths in the order returned, up to the end or an error.
    fn paths(reader: &mut LogReader) -> (Vec<String>, io::Result<()>) {
        let mut paths = Vec::new();
        loop {
            match reader.next_entry() {
                Ok(Some(entry)) => {
                    paths.push(String::from_utf8(entry.request.unwrap().path().to_vec()).unwrap());
                }
                Ok(None) => return (paths, Ok(())),
                Err(error) => return (paths, Err(error)),
            }
        }
    }

    /// Returns one byte at a time, like a slow pipe.
    struct Trickle(Cursor<Vec<u8>>);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let some = buffer.len().min(1);
            self.0.read(&mut buffer[..some])
        }
    }

    /// Requests charged out of order would get verdicts that never happened.
    #[test]
    fn entries_come_sorted_and_equal_times_in_log_order() {
        let mut reader = reader(log(&[50, 10, 50, 0, 10]));
        let (paths, end) = paths(&mut reader);
        assert_eq!(paths, ["/3", "/1", "/4", "/0", "/2"]);
        assert!(end.is_ok());
        assert_eq!((reader.stats().late, reader.stats().entries), (0, 5));
    }

    /// The default is two minutes; with less slack more lines are late.
    #[test]
    fn slack_says_how_late_is_late() {
        let bytes = log(&[1, 121, 0, 122, 2]);
        let mut two_minutes = reader(&bytes[..]);
        assert_eq!(paths(&mut two_minutes).0, ["/0", "/2", "/4", "/1", "/3"]);
        assert_eq!(two_minutes.stats().late, 1);
        let options = LogOptions { slack: Duration::ZERO, ..LogOptions::default() };
        let mut none = LogReader::from_reader_with(Cursor::new(bytes), options).unwrap();
        assert_eq!(paths(&mut none).0, ["/0", "/1", "/2", "/3", "/4"]);
        assert_eq!(none.stats().late, 2);
    }

    /// The counts in the report must add up.
    #[test]
    fn stats_count_lines_entries_and_malformed() {
        let mut bytes = log(&[9, 3, 7]);
        bytes.extend_from_slice(b"hello\n\n");
        let mut reader = reader(bytes);
        assert_eq!(reader.stats().lines, 0);
        paths(&mut reader).1.unwrap();
        let stats = reader.stats();
        assert_eq!((stats.lines, stats.entries, stats.malformed), (5, 3, 2));
        let ten_oclock = 1_431_856_800_000_000;
        assert_eq!(stats.first_us, Some(ten_oclock + 3_000_000));
        assert_eq!(stats.last_us, Some(ten_oclock + 9_000_000));
    }

    /// A user with the wrong file should see at a glance that it is wrong and why.
    #[test]
    fn first_malformed_lines_are_kept_and_printable() {
        let mut bytes = format!("{}\x1b[31m\u{e9}\n{}\n", line(0, 0), "x".repeat(121)).into_bytes();
        bytes.extend_from_slice(&b"more\n".repeat(9));
        let mut reader = reader(bytes);
        paths(&mut reader).1.unwrap();
        let stats = reader.stats();
        assert_eq!((stats.malformed, stats.malformed_lines.len()), (11, MAX_EXAMPLES));
        assert_eq!(
            stats.malformed_lines[0].to_string(),
            r"line 2: no identity (or `-`) after the client: \x1b[31m\xc3\xa9"
        );
        assert_eq!(stats.malformed_lines[1].excerpt, format!("{}…", "x".repeat(119)));
        assert_eq!(stats.malformed_lines[4].number, 6);
    }

    /// Logs from Windows, and logs cut by `head -c`, end lines differently.
    #[test]
    fn crlf_and_a_missing_last_newline_are_read() {
        let text = String::from_utf8(log(&[0, 1])).unwrap();
        let mut reader = reader(text.trim_end().replace('\n', "\r\n"));
        assert_eq!(paths(&mut reader).0, ["/0", "/1"]);
        assert_eq!(reader.stats().malformed, 0);
    }

    /// One endless line, as left by a crash, must cost neither memory nor the rest of the log.
    #[test]
    fn too_long_line_is_skipped_and_counted() {
        let good = line(1, 1);
        let longest = format!("{}{}\n", good.trim_end(), " x".repeat(MAX_LINE_BYTES));
        let longest = format!("{}\n", &longest[..MAX_LINE_BYTES]);
        let too_long = format!("x{longest}");
        let endless = "\0".repeat(5 * MAX_LINE_BYTES);
        let mut reader = reader(format!("{longest}{too_long}{}\n{good}{endless}", &endless));
        assert_eq!(paths(&mut reader).0, ["/1", "/1"]);
        let stats = reader.stats();
        assert_eq!((stats.lines, stats.entries, stats.malformed), (5, 2, 3));
        assert!(stats.malformed_lines.iter().all(|line| line.reason == Malformed::TooLong));
    }

    /// Rotated logs are gzip under any name, and other tools treat `cat a.gz b.gz` as one file.
    #[test]
    fn gzip_of_several_members_is_read_as_one_log() {
        let mut bytes = gzip(&log(&[0, 1]));
        bytes.extend(gzip(line(2, 2).as_bytes()));
        let mut at_once = reader(bytes.clone());
        assert_eq!(paths(&mut at_once).0, ["/0", "/1", "/2"]);
        let mut trickled = LogReader::from_reader(Trickle(Cursor::new(bytes))).unwrap();
        assert_eq!(paths(&mut trickled).0, ["/0", "/1", "/2"]);
    }

    /// A half-copied log must not pass for a whole one, nor lose its good half.
    #[test]
    fn truncated_gzip_is_an_error_after_its_good_lines() {
        let whole = gzip(&log(&(0..1_000).collect::<Vec<_>>()));
        let mut reader = reader(&whole[..whole.len() / 2]);
        let (good, end) = paths(&mut reader);
        assert!(good.len() > 100 && good.len() < 1_000);
        assert_eq!(good.len() as u64, reader.stats().lines);
        let error = end.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            error.to_string(),
            format!("-: gzip data ends in the middle after line {}; `gzip -t` checks a copy", good.len())
        );
        assert!(reader.next_entry().unwrap().is_none());
    }

    /// With a wrong checksum, any line before it may be wrong.
    #[test]
    fn damaged_gzip_is_an_error() {
        let mut bytes = gzip(&log(&[0, 1]));
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 1;
        let mut reader = reader(bytes);
        let (good, end) = paths(&mut reader);
        assert_eq!(good, ["/0", "/1"]);
        assert!(end.unwrap_err().to_string().starts_with("-: gzip data is damaged ("));
    }

    /// A thousand malformed lines are a poor way to say "this is xz".
    #[test]
    fn other_compression_is_refused_with_the_way_out() {
        let error = LogReader::from_reader(Cursor::new([0xfd, b'7', b'z', b'X', b'Z', 0])).err().unwrap();
        assert_eq!(
            error.to_string(),
            "log is compressed, and not with gzip or zstd; pipe it in: `xzcat LOG | slidegate replay -`"
        );
    }

    /// A progress bar over inflated bytes would run past its end.
    #[test]
    fn progress_counts_compressed_bytes_up_to_the_file_length() {
        let bytes = gzip(&log(&[0; 5_000]));
        let folder = TempDir::new("log");
        let log = folder.file("access.log.gz", &bytes);
        let mut reader = LogReader::open_all(&[log.into()], LogOptions::default()).unwrap();
        paths(&mut reader).1.unwrap();
        let total = bytes.len() as u64;
        assert_eq!(reader.progress(), Progress { bytes_read: total, total_bytes: Some(total) });
        assert_eq!(reader.stats().entries, 5_000);
    }

    /// "0 denied" for an empty file would look like success.
    #[test]
    fn empty_log_is_an_error() {
        let mut reader = reader([]);
        let error = reader.next_entry().err().unwrap();
        assert_eq!(error.to_string(), "-: the log is empty: nothing to replay");
        assert!(reader.next_entry().unwrap().is_none());
    }
}
