//! Messages of rate-limit calls are read, or rejected, as prost does.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_envoy::fuzzing::compare_message;

fuzz_target!(|message: &[u8]| compare_message(message));
