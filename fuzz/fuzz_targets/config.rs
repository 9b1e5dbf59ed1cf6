//! Config files: each is taken whole, or rejected with errors of one line that name the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_server::fuzzing::config;

fuzz_target!(|text: &str| {
    match config(text) {
        Ok(described) => assert!(!described.is_empty(), "a config without policies"),
        Err(errors) => {
            assert!(!errors.is_empty());
            for line in errors.lines() {
                assert!(line.starts_with("fuzz.yaml"), "{line:?}");
                assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
            }
        }
    }
});
