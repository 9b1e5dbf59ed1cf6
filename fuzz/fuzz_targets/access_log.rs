//! Access logs, plain or gzip: every line is an entry or counted as malformed.

#![no_main]

use std::io::Cursor;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use slidegate_replay::LogReader;

fuzz_target!(|bytes: &[u8]| {
    let read = |slack| {
        let mut reader = LogReader::from_reader(Cursor::new(bytes.to_vec())).ok()?.with_slack(slack);
        let mut times = Vec::new();
        let mut failed = false;
        loop {
            match reader.next_entry() {
                Ok(Some(entry)) => {
                    assert!(entry.status <= 999 && !entry.host.is_empty());
                    assert!(entry.request.as_ref().is_none_or(|line| !line.target.is_empty()));
                    times.push(entry.time_us);
                }
                Ok(None) => break,
                // Reported once; a stream that is cut off keeps what came before.
                Err(_) => assert!(!std::mem::replace(&mut failed, true)),
            }
        }
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
