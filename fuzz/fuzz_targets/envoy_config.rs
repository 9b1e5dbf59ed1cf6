//! Config files of envoyproxy/ratelimit, one or two of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_server::fuzzing::envoy_files;

fuzz_target!(|input: (bool, &str)| {
    let (merge_domains, text) = input;
    // A line of two signs separates files.
    let files: Vec<_> = text.splitn(2, "\n##\n").enumerate().collect();
    let files: Vec<_> = files.iter().map(|(at, text)| (format!("{at}.yaml"), (*text).to_owned())).collect();
    envoy_files(&files, merge_domains);
});
