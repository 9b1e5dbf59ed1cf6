//! Files of envoyproxy/ratelimit: what they say about a descriptor, how they are refused, and how
//! they are reloaded.
//!
//! The cases are those of the reference's own tests, on files of our own.

mod changes;
mod files;
mod matching;

const LEVELS: &str = include_str!("../fixtures/envoy/levels.yaml");
const SHADOW: &str = include_str!("../fixtures/envoy/shadow.yaml");
const WILDCARDS: &str = include_str!("../fixtures/envoy/wildcards.yaml");

/// A file with one limit.
fn one_limit(limit: u32) -> String {
    format!(
        "domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    )
}
