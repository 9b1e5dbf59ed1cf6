//! Access logs in every format, plain or compressed: every line is an entry, counted as malformed,
//! or meant to be something else, and no entry is lost or made up by sorting.
//!
//! The first byte selects the format if it is below 32; otherwise the format is detected.

#![no_main]

use std::io::Cursor;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use slidegate_replay::{LogFormat, LogOptions, LogReader};

const FORMATS: [&str; 16] = [
    "combined",
    "nginx:$remote_addr - $remote_user [$time_local] \"$request\" $status $http_x_tenant",
    "nginx:$msec|$request_time|${request_method} $uri|$http_host",
    "ingress-nginx",
    "caddy",
    "traefik",
    "traefik-json",
    "envoy",
    "envoy:%START_TIME(%s.%3f)% %DOWNSTREAM_REMOTE_ADDRESS% %REQ(:METHOD)%",
    "envoy-json",
    "istio",
    "haproxy",
    "gcp",
    "json",
    "csv",
    "common",
];

fuzz_target!(|bytes: &[u8]| {
    let (format, bytes) = match bytes.split_first() {
        Some((&number, rest)) if number < 32 => {
            let name = FORMATS[usize::from(number) % FORMATS.len()];
            (Some(LogFormat::parse(name).expect("the formats are valid")), rest)
        }
        _ => (None, bytes),
    };
    let read = |slack| {
        let options = LogOptions {
            format: format.clone(),
            cost_field: Some("bytes".to_owned()),
            slack,
            threads: 1,
            ..LogOptions::default()
        };
        let mut reader = LogReader::from_reader_with(Cursor::new(bytes.to_vec()), options).ok()?;
        let mut times = Vec::new();
        let mut failures = 0;
        loop {
            match reader.next_entry() {
                Ok(Some(entry)) => {
                    assert!(entry.status <= 999);
                    assert!(entry.extra.iter().count() <= 64);
                    times.push(entry.time_us);
                }
                Ok(None) => break,
                // Each is reported once; a stream that is cut off keeps what came before.
                Err(_) => {
                    failures += 1;
                    assert!(failures <= 2);
                }
            }
        }
        let stats = reader.stats();
        assert_eq!(stats.entries, times.len() as u64);
        assert_eq!(stats.lines, stats.entries + stats.malformed + stats.other);
        let _ = stats.notes();
        Some(times)
    };
    let Some(unsorted) = read(Duration::ZERO) else { return };
    // Whatever the slack, no entry is lost or made up.
    let mut sorted = read(Duration::from_secs(1 << 40)).unwrap_or_default();
    assert!(sorted.is_sorted(), "{sorted:?}");
    let mut expected = unsorted;
    expected.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
});
