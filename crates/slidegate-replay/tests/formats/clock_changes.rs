//! Local times that the clock repeats or skips: a log without offsets is the same traffic as one in UTC.

use std::io::Cursor;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use slidegate::{PolicySet, Quota};
use slidegate_replay::{ClockChanges, LogFormat, LogOptions, LogReader};

use crate::decisions_of;
use crate::inputs::{Folder, gzip};

/// Zones as POSIX writes them, the moment their clock was set back, and by how many minutes.
const ZONES: [(&str, &str, i64); 5] = [
    ("CET-1CEST,M3.5.0,M10.5.0/3", "2024-10-27T01:00:00Z", 60),
    ("EST5EDT,M3.2.0,M11.1.0", "2024-11-03T06:00:00Z", 60),
    ("AEST-10AEDT,M10.1.0,M4.1.0/3", "2024-04-06T16:00:00Z", 60),
    ("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "2024-04-06T15:00:00Z", 30),
    ("<+00>0<+02>-2,M3.5.0/1,M10.5.0/3", "2024-10-27T01:00:00Z", 120),
];
/// With the start and the duration, with the start alone, and with the end and the duration.
const FORMATS: [&str; 3] = [
    "haproxy",
    "envoy:[%START_TIME%] \"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
     %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "json",
];
const SECOND_MS: i64 = 1000;
const HOUR_MS: i64 = 3_600_000;

/// When a request began, and how long it took, in milliseconds.
type Visit = (i64, i64);

fn zone(posix: &str) -> TimeZone {
    TimeZone::posix(posix).unwrap()
}

fn moment_ms(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn line(format: &str, zone: &TimeZone, (start_ms, duration_ms): Visit) -> String {
    let time =
        |ms, form| Timestamp::from_millisecond(ms).unwrap().to_zoned(zone.clone()).strftime(form).to_string();
    match format {
        "haproxy" => format!(
            "192.0.2.1:9 [{}] fe be/s1 0/0/0/9/{duration_ms} 200 7 - - ---- 1/1/1/1/0 0/0 \"GET /{start_ms} HTTP/1.1\"\n",
            time(start_ms, "%d/%b/%Y:%H:%M:%S%.3f")
        ),
        "json" => format!(
            "{{\"time\":\"{}\",\"request_time\":{}.{:03},\"client_ip\":\"192.0.2.1\",\"method\":\"GET\",\
             \"path\":\"/{start_ms}\",\"status\":200}}\n",
            time(start_ms + duration_ms, "%Y-%m-%dT%H:%M:%S%.3f"),
            duration_ms / 1000,
            duration_ms % 1000
        ),
        _ => format!(
            "[{}] \"GET /{start_ms} HTTP/1.1\" 200 192.0.2.1\n",
            time(start_ms, "%Y-%m-%dT%H:%M:%S%.3f")
        ),
    }
}

fn text(format: &str, zone: &TimeZone, visits: &[Visit]) -> String {
    visits.iter().map(|visit| line(format, zone, *visit)).collect()
}

fn options(format: &str, zone: &TimeZone, threads: usize) -> LogOptions {
    let format = Some(LogFormat::parse(format).unwrap());
    LogOptions { format, zone: zone.clone(), threads, ..LogOptions::default() }
}

/// Times and paths in the order of decision, how many of them were late, and what was said.
fn read(mut reader: LogReader) -> (Vec<(u64, String)>, u64, ClockChanges) {
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let path = String::from_utf8(entry.request.unwrap().path().to_vec()).unwrap();
        entries.push((entry.time_us, path));
    }
    let stats = reader.stats();
    assert_eq!(stats.malformed, 0, "{:?}", stats.malformed_lines);
    let times = entries.iter().map(|(time_us, _)| *time_us);
    assert_eq!((stats.first_us, stats.last_us), (times.clone().min(), times.max()));
    (entries, stats.late, stats.clock_changes)
}

/// A request every so often from before the repeated time to after it, in the order of their ends.
fn steady(back_ms: i64, shift_ms: i64, every_ms: i64) -> Vec<Visit> {
    let from_ms = back_ms - shift_ms - HOUR_MS;
    let count = (2 * shift_ms + 2 * HOUR_MS) / every_ms;
    let mut visits: Vec<_> = (0..count).map(|at| (from_ms + at * every_ms, at * 7919 % 50 * 100)).collect();
    visits.sort_by_key(|(start_ms, duration_ms)| start_ms + duration_ms);
    visits
}

/// Logs of several servers, and rotated ones, are read however many threads parse them.
#[test]
fn a_log_without_offsets_is_read_as_the_same_log_in_utc() {
    let folder = Folder::new("clock-changes");
    for (posix, back, shift_minutes) in ZONES {
        let (local, back_ms, shift_ms) = (zone(posix), moment_ms(back), shift_minutes * 60_000);
        let steady = steady(back_ms, shift_ms, 60 * SECOND_MS);
        let (first, second) = (back_ms - shift_ms / 3, back_ms + shift_ms / 3);
        let at = |ms| steady.iter().position(|(start_ms, _)| *start_ms >= ms).unwrap();
        let with = |ms, visit| {
            let mut visits = steady.clone();
            visits.insert(at(ms), visit);
            visits
        };
        let mut swapped = steady.clone();
        swapped.chunks_exact_mut(2).for_each(<[Visit]>::reverse);
        let split = |ms| vec![steady[..at(ms)].to_vec(), steady[at(ms)..].to_vec()];
        let orders: Vec<(&str, Vec<Vec<Visit>>)> = vec![
            ("in order", vec![steady.clone()]),
            ("60 s late", vec![swapped]),
            ("begins in the first", vec![steady[at(first)..].to_vec()]),
            ("begins in the second", vec![steady[at(second)..].to_vec()]),
            ("begins with the second", vec![steady[at(back_ms)..].to_vec()]),
            ("pause before", vec![[&steady[..2], &steady[at(first)..]].concat()]),
            ("ends in the first", vec![steady[..at(first)].to_vec()]),
            ("ends in the second", vec![steady[..at(second)].to_vec()]),
            ("rotated in the first", split(first)),
            ("rotated between", split(back_ms)),
            ("rotated in the second", split(second)),
            (
                "two servers",
                vec![steady.clone(), steady.iter().map(|(start, took)| (start + 7, *took)).collect()],
            ),
            ("began hours ago", vec![with(second, (back_ms - shift_ms - 3 * HOUR_MS, 0))]),
            ("broken clock before", vec![with(first, (back_ms + 24 * HOUR_MS, 0))]),
            ("broken clock between", vec![with(second, (back_ms + 24 * HOUR_MS, 0))]),
        ];
        for (order, logs) in orders {
            for format in FORMATS {
                let paths = |name: &str, zone: &TimeZone| -> Vec<PathBuf> {
                    let write = |(number, visits): (usize, &Vec<Visit>)| {
                        let bytes = text(format, zone, visits).into_bytes();
                        let bytes = if number == 0 && logs.len() > 1 { gzip(&bytes) } else { bytes };
                        folder.file(&format!("{name}.{number}"), bytes)
                    };
                    logs.iter().enumerate().map(write).collect()
                };
                let in_utc =
                    LogReader::open_all(&paths("utc", &TimeZone::UTC), options(format, &TimeZone::UTC, 1));
                let expected = read(in_utc.unwrap());
                let context = format!("{posix} {order} {format}");
                assert_eq!(expected.2, ClockChanges::default(), "{context}");
                let files = paths("local", &local);
                for threads in [1, 2, 4] {
                    let (entries, late, changes) =
                        read(LogReader::open_all(&files, options(format, &local, threads)).unwrap());
                    let wrong = entries.iter().zip(&expected.0).find(|(entry, expected)| entry != expected);
                    assert_eq!(wrong, None, "{context} {changes:?}");
                    assert_eq!((entries.len(), late), (expected.0.len(), expected.1), "{context}");
                    let repeated = |(start_ms, _): &&Visit| (start_ms - back_ms).abs() < shift_ms;
                    assert!(
                        changes.first + changes.second > 0 && changes.skipped == 0,
                        "{context} {changes:?}"
                    );
                    if order == "in order" && format != "json" {
                        let second = steady.iter().filter(repeated).filter(|(ms, _)| *ms >= back_ms).count();
                        assert_eq!((changes.second, changes.assumed_first), (second as u64, 0), "{context}");
                    }
                }
            }
        }
    }
}

/// Blocks are parsed ahead; each goes on where the one before it ended.
#[test]
fn the_repeated_hour_may_span_blocks() {
    let (local, back_ms) = (zone(ZONES[0].0), moment_ms(ZONES[0].1));
    let visits = steady(back_ms, HOUR_MS, 500);
    let read = |zone: &TimeZone, threads, slack_hours: u64| {
        let bytes = text("haproxy", zone, &visits).into_bytes();
        assert!(bytes.len() > 3 * 1024 * 1024, "fewer than three blocks");
        let slack = Duration::from_secs(slack_hours * 3600).max(LogOptions::default().slack);
        let options = LogOptions { slack, ..options("haproxy", zone, threads) };
        read(LogReader::from_reader_with(Cursor::new(bytes), options).unwrap()).0
    };
    let expected = read(&TimeZone::UTC, 1, 0);
    for (threads, slack_hours) in [(1, 0), (2, 0), (4, 0), (2, 24)] {
        assert!(read(&local, threads, slack_hours) == expected, "{threads} threads, slack {slack_hours} h");
    }
}

/// Two requests an hour apart must not be decided as two at once.
#[test]
fn the_repeated_hour_invents_no_denials_and_hides_none() {
    let (local, back_ms) = (zone(ZONES[0].0), moment_ms(ZONES[0].1));
    let steady = steady(back_ms, HOUR_MS, 30 * SECOND_MS);
    let denied = |visits: &[Visit]| {
        let mut visits = visits.to_vec();
        visits.sort_by_key(|(start_ms, duration_ms)| start_ms + duration_ms);
        let bytes = text("haproxy", &local, &visits).into_bytes();
        let mut reader =
            LogReader::from_reader_with(Cursor::new(bytes), options("haproxy", &local, 1)).unwrap();
        let policy = slidegate::Policy::new("p", Quota::per_minute(3)).unwrap().with_scope(["ip"]);
        let decisions = decisions_of(PolicySet::new([policy]).unwrap(), &mut reader);
        assert_eq!(decisions.len(), visits.len());
        decisions.iter().filter(|allowed| !**allowed).count()
    };
    assert_eq!(denied(&steady), 0);
    // Two more in a minute of one occurrence make four; one is too many.
    for burst_ms in [back_ms - 1800 * SECOND_MS, back_ms + 1800 * SECOND_MS] {
        let mut visits = steady.clone();
        visits.extend([(burst_ms + 10_000, 0), (burst_ms + 20_000, 0)]);
        assert_eq!(denied(&visits), 1, "{burst_ms}");
    }
}

/// Who reads figures that rest on an assumption must know it.
#[test]
fn notes_say_what_was_told_by_order_assumed_and_skipped() {
    let (local, back_ms) = (zone(ZONES[0].0), moment_ms(ZONES[0].1));
    let notes = |bytes: String| {
        let mut reader =
            LogReader::from_reader_with(Cursor::new(bytes.into_bytes()), options("haproxy", &local, 1))
                .unwrap();
        while reader.next_entry().unwrap().is_some() {}
        reader.stats().notes().split_off(1).join("\n")
    };
    let steady = steady(back_ms, HOUR_MS, 600 * SECOND_MS);
    assert_eq!(
        notes(text("haproxy", &local, &steady)),
        "12 requests have local times that the clock repeated: 6 the first time, 6 the second, by the order of the lines"
    );
    assert_eq!(
        notes(text("haproxy", &local, &steady[14..17])),
        "3 requests have local times that the clock repeated, without lines before that tell which time: the first is \
         assumed; pipe rotated logs in their order, `cat OLD NEW | slidegate replay -`"
    );
    let skipped = line("haproxy", &TimeZone::UTC, (moment_ms("2024-03-31T02:30:00Z"), 0));
    assert_eq!(
        notes(skipped.clone()),
        "1 request has a local time that the clock skipped, and is read as if it had not been set yet: \
         check `--time-zone`"
    );
    let reader =
        LogReader::from_reader_with(Cursor::new(skipped.into_bytes()), options("haproxy", &local, 1));
    let half_past_one_us = 1_711_848_600_000_000;
    assert_eq!(reader.unwrap().next_entry().unwrap().unwrap().time_us, half_past_one_us);
}
