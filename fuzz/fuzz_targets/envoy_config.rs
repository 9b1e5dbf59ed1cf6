//! Config files of envoyproxy/ratelimit, one or two of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_envoy::{EnvoyConfig, ReadOptions};

fuzz_target!(|input: (bool, &str)| {
    let (merge_domains, text) = input;
    // A line of two signs separates files.
    let files: Vec<_> = text.splitn(2, "\n##\n").enumerate().collect();
    let files: Vec<_> = files.iter().map(|(at, text)| (format!("{at}.yaml"), (*text).to_owned())).collect();
    match EnvoyConfig::parse(&files, ReadOptions { merge_domains, ..ReadOptions::default() }) {
        Ok(config) => {
            let (_, _, _) = (config.summary(), config.dump(), config.example());
            let entries = [vec![("key", "value")], vec![]];
            let _ = config.explain("domain", &entries, None);
            assert!(config.policies().iter().all(|policy| policy.is_only_when_named()));
        }
        Err(errors) => {
            assert!(!errors.lines().is_empty());
            assert!(errors.lines().iter().all(|line| !line.contains('\n')), "{errors:?}");
        }
    }
});
