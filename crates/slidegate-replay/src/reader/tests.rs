//! Tests of reading one log: order, compression, damage, and lines that cannot be read.

use std::io::{Cursor, ErrorKind, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::malformed::{MAX_LINE_BYTES, Malformed};

/// A good line at this second of 10:00 to 10:59, its number in the path.
fn line(second: u64, number: usize) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("a - - [17/May/2015:10:{minute:02}:{second:02} +0000] \"GET /{number} HTTP/1.1\" 200 1\n")
}

/// A log with lines at these seconds, numbered from 0.
fn log(seconds: &[u64]) -> Vec<u8> {
    seconds.iter().enumerate().map(|(number, &second)| line(second, number)).collect::<String>().into_bytes()
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
    assert_eq!(reader.stats().lines, 0);
    paths(&mut reader).1.unwrap();
    let stats = reader.stats();
    assert_eq!((stats.lines, stats.entries, stats.malformed), (5, 3, 2));
    let ten_oclock = 1_431_856_800_000_000;
    assert_eq!(stats.first_us, Some(ten_oclock + 3_000_000));
    assert_eq!(stats.last_us, Some(ten_oclock + 9_000_000));
}

/// Who gives the wrong file should see at a glance that, and why, it is wrong.
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
    let path = std::env::temp_dir().join(format!("slidegate-log-{}.gz", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = LogReader::open(&path).unwrap();
    paths(&mut reader).1.unwrap();
    std::fs::remove_file(&path).unwrap();
    let total = bytes.len() as u64;
    assert_eq!(reader.progress(), Progress { bytes_read: total, total_bytes: Some(total) });
    assert_eq!(reader.stats().entries, 5_000);
}

/// "0 denied" of an empty file would look like success.
#[test]
fn empty_log_is_an_error() {
    let mut reader = reader([]);
    let error = reader.next_entry().err().unwrap();
    assert_eq!(error.to_string(), "-: the log is empty: nothing to replay");
    assert!(reader.next_entry().unwrap().is_none());
}
