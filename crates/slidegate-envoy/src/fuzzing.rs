//! Entry points of the fuzz targets into what is not public. They exist in fuzzed builds only.

use crate::config::plain::{Flags, Plain, compare};
use crate::message;

/// A descriptor of a config.
#[derive(Debug)]
pub struct Descriptor {
    /// Its key and its value, which may be empty or have a `*`.
    pub name: (String, String),
    /// Whether it has a limit, shares a threshold, and has its value or all of it in the metric.
    pub flags: [bool; 4],
    /// The descriptors below it.
    pub below: Vec<Descriptor>,
}

/// Compares the matcher with a naive model of it.
///
/// # Panics
/// They differ.
pub fn compare_matcher(top: Vec<Descriptor>, requests: &[Vec<(&str, &str)>]) {
    let top: Vec<_> = top.into_iter().map(plain).collect();
    compare(&top, requests);
}

fn plain(of: Descriptor) -> Plain {
    let Descriptor { name: (key, value), flags: [has_limit, shares, value_to_metric, detailed], below } = of;
    let flags = Flags { shares, value_to_metric, detailed };
    Plain { key, value, has_limit, flags, below: below.into_iter().map(plain).collect() }
}

/// Compares what is read of the message of a rate-limit call with what prost reads.
///
/// # Panics
/// They differ.
pub fn compare_message(message: &[u8]) {
    message::compare(message);
}
