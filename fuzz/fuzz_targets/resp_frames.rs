//! Commands of Redis clients: however the bytes arrive, the commands are the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_server::fuzzing::commands;

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (sizes, bytes) = input;
    let whole = commands([bytes]);
    // An empty command has no name to look up, and a connection bounds what it buffers.
    assert!(whole.0.iter().all(|arguments| (1..=80).contains(&arguments.len())), "{whole:?}");
    // The sizes are taken in turn; without any, every byte arrives alone.
    let mut sizes = sizes.iter().map(|size| usize::from(*size).max(1)).cycle();
    let mut chunks = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        chunks.push(chunk);
        rest = after;
    }
    assert_eq!(commands(chunks), whole);
});
