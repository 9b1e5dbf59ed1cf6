//! Reads an access log from a file or a pipe, plain or gzip, and returns its entries in order of
//! time.
//!
//! Gzip is recognised by its first bytes, never by the file name. A damaged end is reported after
//! everything before it has been returned. Memory is bounded for any log: one line, and the lines
//! buffered in [`Reorder`]. Errors do not name the log; the caller does.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;

use crate::entry::{Entry, MAX_LINE_BYTES, Malformed, Parser};
use crate::reorder::{BufferLimits, PendingLine, Reorder};

/// How late a line may come and still be sorted in. Apache logs a request when it ends under the
/// time it began, and few take two minutes.
const DEFAULT_SLACK: Duration = Duration::from_secs(120);
/// What may wait to be sorted: two minutes at 8,000 requests a second.
const MAX_PENDING: BufferLimits = BufferLimits { lines: 1_048_576, bytes: 256 * 1024 * 1024 };
/// Malformed lines kept as examples: enough to see what is wrong with a log.
const MAX_MALFORMED_KEPT: usize = 5;
/// Length of such an example. It has the columns up to the request.
const MAX_EXCERPT_CHARS: usize = 120;
/// Bytes asked of the file at once, and inflated at once: fewer system calls than the default 8
/// KiB.
const BUFFER_BYTES: usize = 64 * 1024;

/// First bytes of gzip data: the magic number and the only method there is.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b, 0x08];
/// Other compressions, to report them: their first bytes, and the program that decompresses them.
const FOREIGN_MAGICS: [(&[u8], &str); 3] =
    [(&[0x28, 0xb5, 0x2f, 0xfd], "zstdcat"), (&[0xfd, b'7', b'z', b'X', b'Z'], "xzcat"), (b"BZh", "bzcat")];
const LONGEST_MAGIC: u64 = 5;

/// An access log that is being read.
#[allow(missing_debug_implementations)] // a boxed stream has none
pub struct LogReader {
    source: Box<dyn BufRead + Send>,
    /// Bytes taken from the file so far, before decompression.
    bytes_read: Arc<AtomicU64>,
    /// The file's length. `None` for a pipe.
    total_bytes: Option<u64>,
    is_gzip: bool,
    /// Set when the source has ended or failed; the failure waits until all pending lines are out.
    end: Option<io::Result<()>>,
    reorder: Reorder,
    /// The line just read; kept for its memory.
    line: Vec<u8>,
    /// The line handed out last, which its `Entry` borrows.
    released: Box<[u8]>,
    /// Lines are parsed coming in for their time and going out for their fields: a parser each,
    /// because each caches the last time, and the two differ by the slack.
    parser_in: Parser,
    parser_out: Parser,
    stats: LogStats,
}

/// What a log pending, as far as it has been read. `lines` is always `entries + malformed`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Lines of any kind, blank ones included.
    pub lines: u64,
    /// Lines that are requests.
    pub entries: u64,
    /// Lines that could not be parsed and are skipped.
    pub malformed: u64,
    /// Entries that came too late to be sorted, and are returned after younger ones.
    pub late: u64,
    /// The least time of all entries, in microseconds since the Unix epoch. `None` before the
    /// first.
    pub first_us: Option<u64>,
    /// The greatest time of all entries.
    pub last_us: Option<u64>,
    /// The first few malformed lines.
    pub malformed_lines: Vec<MalformedLine>,
}

/// An example of a line that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    /// Line number, from 1.
    pub number: u64,
    /// Why it could not be parsed.
    pub reason: Malformed,
    /// The start of the line in printable ASCII, other bytes escaped. `…` marks a cut.
    pub excerpt: String,
}

/// How far a log has been read, in bytes of the file on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far, including read-ahead.
    pub bytes_read: u64,
    /// The length of the file. `None` for a pipe. A log that is still written can grow past it.
    pub total_bytes: Option<u64>,
}

impl LogReader {
    /// Opens a file, or standard input for `-`.
    ///
    /// # Errors
    /// The file cannot be opened or read, or it is compressed with something other than gzip.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::from_reader(io::stdin());
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let total_bytes = metadata.is_file().then_some(metadata.len());
        Ok(Self { total_bytes, ..Self::from_reader(file)? })
    }

    /// Reads any stream. Its first bytes are read here, to see whether it is compressed.
    ///
    /// # Errors
    /// The stream cannot be read, or it is compressed with something other than gzip.
    pub fn from_reader(stream: impl Read + Send + 'static) -> io::Result<Self> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let counted = CountedStream { stream, bytes_read: Arc::clone(&bytes_read) };
        let mut plain = BufReader::with_capacity(BUFFER_BYTES, counted);
        let mut magic = Vec::new();
        plain.by_ref().take(LONGEST_MAGIC).read_to_end(&mut magic)?;
        if let Some((_, program)) = FOREIGN_MAGICS.iter().find(|(foreign, _)| magic.starts_with(foreign)) {
            let way_out = format!(
                "log is compressed, and not with gzip; pipe it in: `{program} LOG | slidegate replay -`"
            );
            return Err(io::Error::new(ErrorKind::InvalidData, way_out));
        }
        let is_gzip = magic.starts_with(GZIP_MAGIC);
        let whole = Cursor::new(magic).chain(plain);
        let source: Box<dyn BufRead + Send> = if is_gzip {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            source,
            bytes_read,
            total_bytes: None,
            is_gzip,
            end: None,
            reorder: reorder_within(DEFAULT_SLACK),
            line: Vec::new(),
            released: Box::default(),
            parser_in: Parser::default(),
            parser_out: Parser::default(),
            stats: LogStats::default(),
        })
    }

    /// Sorts lines that are out of order by up to `slack` instead of two minutes. Zero keeps the
    /// order of the log.
    ///
    /// Call it before the first [`next_entry`](Self::next_entry).
    #[must_use]
    pub fn with_slack(self, slack: Duration) -> Self {
        debug_assert_eq!(self.stats.lines, 0, "the slack changed while lines were waiting");
        Self { reorder: reorder_within(slack), ..self }
    }

    /// The next entry in order of time; equal times in the order of the log. It is valid until the
    /// next call.
    ///
    /// Late entries keep their own time, so a clock that follows the log must take the maximum of
    /// both.
    ///
    /// # Errors
    /// The log cannot be read further. The error is returned once, after the last entry; then
    /// `None` follows.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry<'_>>> {
        let Some(pending) = self.next_pending()? else { return Ok(None) };
        self.released = pending.line;
        let entry = self.parser_out.parse(&self.released);
        Ok(Some(entry.expect("a line that parsed coming in parses going out")))
    }

    /// What has been read so far, including buffered lines.
    pub fn stats(&self) -> &LogStats {
        &self.stats
    }

    /// How far the log has been read.
    pub fn progress(&self) -> Progress {
        Progress { bytes_read: self.bytes_read.load(Ordering::Relaxed), total_bytes: self.total_bytes }
    }

    fn next_pending(&mut self) -> io::Result<Option<PendingLine>> {
        loop {
            if let Some(pending) = self.reorder.release_due() {
                return Ok(Some(pending));
            }
            if self.end.is_none() {
                self.read_line();
            } else if let Some(pending) = self.reorder.release() {
                return Ok(Some(pending));
            } else {
                return self.end.replace(Ok(())).transpose().map(|_| None);
            }
        }
    }

    /// Reads one line into the reorder buffer or the statistics, or sets `end`.
    fn read_line(&mut self) {
        self.line.clear();
        // One byte more than a line may have: its newline, or the proof that it is too long.
        let mut bounded = self.source.by_ref().take(MAX_LINE_BYTES as u64 + 1);
        match bounded.read_until(b'\n', &mut self.line) {
            // A line cut off by the error does not count.
            Err(error) => self.end = Some(Err(self.explained(error))),
            Ok(0) => self.end = Some(Ok(())),
            Ok(_) => self.take_line(),
        }
    }

    fn take_line(&mut self) {
        self.stats.lines += 1;
        let line = match self.line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => &self.line,
        };
        if line.len() > MAX_LINE_BYTES {
            self.stats.malformed(line, Malformed::TooLong);
            if let Err(error) = self.source.skip_until(b'\n') {
                self.end = Some(Err(self.explained(error)));
            }
            return;
        }
        match self.parser_in.time_of(line) {
            Ok(time_us) => {
                self.stats.entry(time_us);
                self.stats.late += u64::from(self.reorder.is_late(time_us));
                self.reorder.hold(PendingLine { time_us, number: self.stats.lines, line: line.into() });
            }
            Err(reason) => self.stats.malformed(line, reason),
        }
    }

    /// Adds where the gzip data is damaged.
    fn explained(&self, error: io::Error) -> io::Error {
        let what = match error.kind() {
            ErrorKind::UnexpectedEof if self.is_gzip => "ends in the middle".to_owned(),
            ErrorKind::InvalidInput | ErrorKind::InvalidData if self.is_gzip => {
                format!("is damaged ({error})")
            }
            _ => return error,
        };
        let (lines, bytes) = (self.stats.lines, self.progress().bytes_read);
        let message = format!(
            "gzip data {what} after line {lines}, {bytes} bytes into the file; `gzip -t` checks a copy"
        );
        io::Error::new(error.kind(), message)
    }
}

impl LogStats {
    fn entry(&mut self, time_us: u64) {
        self.entries += 1;
        self.first_us = Some(self.first_us.map_or(time_us, |first_us| first_us.min(time_us)));
        self.last_us = self.last_us.max(Some(time_us));
    }

    fn malformed(&mut self, line: &[u8], reason: Malformed) {
        self.malformed += 1;
        if self.malformed_lines.len() < MAX_MALFORMED_KEPT {
            self.malformed_lines.push(MalformedLine { number: self.lines, reason, excerpt: excerpt(line) });
        }
    }
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, reason, excerpt } = self;
        write!(f, "line {number}: {reason}: {excerpt}")
    }
}

/// Counts what passes, for the progress.
struct CountedStream<R> {
    stream: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn reorder_within(slack: Duration) -> Reorder {
    Reorder::new(u64::try_from(slack.as_micros()).unwrap_or(u64::MAX), MAX_PENDING)
}

/// ASCII only: a log is hostile text, and even printable Unicode can turn a terminal's line around.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A good line at this second of 10:00 to 10:59, its number in the path.
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

    /// The paths in the order they come out, up to the end or an error.
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

    /// Hands out one byte at a time, as a slow pipe may.
    struct Trickle(Cursor<Vec<u8>>);

    impl Read for Trickle {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let some = buffer.len().min(1);
            self.0.read(&mut buffer[..some])
        }
    }

    /// Requests charged out of order would be decided as they never happened.
    #[test]
    fn entries_come_sorted_and_equal_times_in_log_order() {
        let mut reader = reader(log(&[50, 10, 50, 0, 10]));
        let (paths, end) = paths(&mut reader);
        assert_eq!(paths, ["/3", "/1", "/4", "/0", "/2"]);
        assert!(end.is_ok());
        assert_eq!((reader.stats().late, reader.stats().entries), (0, 5));
    }

    /// The default is two minutes; with a smaller slack more lines are late.
    #[test]
    fn slack_says_how_late_is_late() {
        let bytes = log(&[1, 121, 0, 122, 2]);
        let mut two_minutes = reader(&bytes[..]);
        assert_eq!(paths(&mut two_minutes).0, ["/0", "/2", "/4", "/1", "/3"]);
        assert_eq!(two_minutes.stats().late, 1);
        let mut none = reader(&bytes[..]).with_slack(Duration::ZERO);
        assert_eq!(paths(&mut none).0, ["/0", "/1", "/2", "/3", "/4"]);
        assert_eq!(none.stats().late, 2);
    }

    /// The counts in the report must add up.
    #[test]
    fn stats_count_lines_entries_and_malformed() {
        let mut bytes = log(&[9, 3, 7]);
        bytes.extend_from_slice(b"hello\n\n");
        let mut reader = reader(bytes);
        assert_eq!(*reader.stats(), LogStats::default());
        paths(&mut reader).1.unwrap();
        let stats = reader.stats();
        assert_eq!((stats.lines, stats.entries, stats.malformed), (5, 3, 2));
        let ten_oclock = 1_431_856_800_000_000;
        assert_eq!(stats.first_us, Some(ten_oclock + 3_000_000));
        assert_eq!(stats.last_us, Some(ten_oclock + 9_000_000));
    }

    /// Whoever gives the wrong file should see at a glance that, and why, it is wrong.
    #[test]
    fn first_malformed_lines_are_kept_and_printable() {
        let mut bytes = format!("{}\x1b[31m\u{e9}\n{}\n", line(0, 0), "x".repeat(121)).into_bytes();
        bytes.extend_from_slice(&b"more\n".repeat(9));
        let mut reader = reader(bytes);
        paths(&mut reader).1.unwrap();
        let stats = reader.stats();
        assert_eq!((stats.malformed, stats.malformed_lines.len()), (11, MAX_MALFORMED_KEPT));
        assert_eq!(
            stats.malformed_lines[0].to_string(),
            r"line 2: no identity (or `-`) after the client: \x1b[31m\xc3\xa9"
        );
        assert_eq!(stats.malformed_lines[1].excerpt, format!("{}…", "x".repeat(119)));
        assert_eq!(stats.malformed_lines[4].number, 6);
    }

    /// Logs from Windows, and logs cut by `head -c`, end their lines in their own way.
    #[test]
    fn crlf_and_a_missing_last_newline_are_read() {
        let text = String::from_utf8(log(&[0, 1])).unwrap();
        let mut reader = reader(text.trim_end().replace('\n', "\r\n"));
        assert_eq!(paths(&mut reader).0, ["/0", "/1"]);
        assert_eq!(reader.stats().malformed, 0);
    }

    /// One endless line, as a crash can leave behind, must cost neither the memory nor the rest of
    /// the log.
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
        assert!(reader.line.capacity() <= 2 * (MAX_LINE_BYTES + 1));
    }

    /// Rotated logs are gzip under any name, and `cat a.gz b.gz` is one file to every other tool.
    #[test]
    fn gzip_of_several_members_is_read_as_one_log() {
        let mut bytes = gzip(&log(&[0, 1]));
        bytes.extend(gzip(line(2, 2).as_bytes()));
        let mut at_once = reader(bytes.clone());
        assert_eq!(paths(&mut at_once).0, ["/0", "/1", "/2"]);
        let mut trickled = LogReader::from_reader(Trickle(Cursor::new(bytes))).unwrap();
        assert_eq!(paths(&mut trickled).0, ["/0", "/1", "/2"]);
    }

    /// A half-copied log must not pass for a whole one, nor lose the half that is there.
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
            format!(
                "gzip data ends in the middle after line {}, {} bytes into the file; `gzip -t` checks a copy",
                good.len(),
                whole.len() / 2
            )
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
        assert!(end.unwrap_err().to_string().starts_with("gzip data is damaged ("));
    }

    /// A thousand malformed lines are a poor way to say "this is zstd".
    #[test]
    fn other_compression_is_refused_with_the_way_out() {
        let error = LogReader::from_reader(Cursor::new([0x28, 0xb5, 0x2f, 0xfd, 0, 0])).err().unwrap();
        assert_eq!(
            error.to_string(),
            "log is compressed, and not with gzip; pipe it in: `zstdcat LOG | slidegate replay -`"
        );
    }

    /// A progress bar over inflated bytes would run past its end.
    #[test]
    fn progress_counts_compressed_bytes_up_to_the_file_length() {
        let bytes = gzip(&log(&[0; 5_000]));
        let path = std::env::temp_dir().join(format!("slidegate-log-{}.gz", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = LogReader::open(&path).unwrap();
        paths(&mut reader).1.unwrap();
        std::fs::remove_file(&path).unwrap();
        let total = bytes.len() as u64;
        assert_eq!(reader.progress(), Progress { bytes_read: total, total_bytes: Some(total) });
        assert_eq!(reader.stats().entries, 5_000);
    }

    /// An empty log is a quiet day, not a failure.
    #[test]
    fn empty_log_has_no_entries() {
        let mut reader = reader([]);
        assert!(reader.next_entry().unwrap().is_none());
        assert_eq!(*reader.stats(), LogStats::default());
    }

    /// Files nobody made up hold what nobody thinks of: here a user agent cut off without its
    /// quote.
    #[test]
    fn real_log_is_read_whole_and_sorted() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/access-combined.log");
        let Ok(mut reader) = LogReader::open(Path::new(path)) else { return };
        let mut times = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            times.push(entry.time_us);
        }
        assert!(times.is_sorted());
        let stats = reader.stats();
        assert_eq!((stats.entries, stats.malformed, stats.late), (10_000, 0, 0));
        assert_eq!((stats.first_us, stats.last_us), (times.first().copied(), times.last().copied()));
    }
}
