//! Replies of Redis: our framing and the parser agree on where each reply ends, so that nothing
//! reaches the parser unbounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis::Value;
use slidegate_redis::fuzzing::{ReplyFraming, read_topology, scan_step};

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let mut framing = ReplyFraming::default();
    let mut accepted = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if framing.read(std::slice::from_ref(byte)).is_err() {
            break;
        }
        accepted = at + 1;
        if !framing.is_between_replies() {
            continue;
        }
        // One reply is complete: the parser takes exactly as many bytes for one value.
        let start = accepted - reply_length(bytes, accepted);
        let mut rest = &bytes[start..accepted];
        match redis::Parser::new().parse_value(&mut rest) {
            Ok(value) => {
                assert!(rest.is_empty(), "{} bytes are left of {:?}", rest.len(), &bytes[start..accepted]);
                decode(&value);
            }
            // It is stricter about what a line says, never about where it ends.
            Err(error) => assert!(error.kind() == redis::ErrorKind::Parse, "{error:?}"),
        }
    }
    // Chunks of any size are the same as single bytes.
    let mut chunks = ReplyFraming::default();
    let whole = bytes.chunks(usize::from(size).max(1)).try_for_each(|chunk| chunks.read(chunk));
    assert_eq!(whole.is_ok(), accepted == bytes.len());
});

/// Bytes of the last complete reply before `end`.
fn reply_length(bytes: &[u8], end: usize) -> usize {
    let mut framing = ReplyFraming::default();
    let mut start = 0;
    for (at, byte) in bytes[..end].iter().enumerate() {
        if framing.is_between_replies() {
            start = at;
        }
        framing.read(std::slice::from_ref(byte)).expect("these bytes were accepted before");
    }
    end - start
}

fn decode(value: &Value) {
    read_topology(value);
    scan_step(value);
}
