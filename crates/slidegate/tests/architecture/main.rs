//! The plan of the house: which module may use which. A new module, or a new use, is a decision, and is made here.
//!
//! What a module uses is read from its source: every `crate::` path outside comments and tests.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod house;

use house::House;

/// A module of the library and the modules it may use. Those below it, `quota/text.rs` below `quota.rs`, go with it.
///
/// Algorithms know no store, key, policy or clock. Stores know no policy, gate or header.
const MODULES: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("error", &[]),
    ("sync", &[]),
    ("secret", &[]),
    ("time", &[]),
    ("quota", &["error", "time"]),
    ("decision", &["time"]),
    ("verb", &[]),
    ("block", &["charge", "decision", "time", "verb"]),
    ("usage", &["decision", "quota", "time"]),
    ("algorithm", &["decision", "quota", "time", "usage", "verb"]),
    ("request", &["quota"]),
    ("client_addr", &["error"]),
    ("key", &["client_addr", "request"]),
    ("charge", &["block", "key", "quota"]),
    ("policy_reset", &["error"]),
    ("policy", &["block", "charge", "client_addr", "error", "key", "quota", "request"]),
    ("store", &["charge", "decision", "verb"]),
    (
        "store/memory",
        &["algorithm", "charge", "decision", "key", "quota", "store", "sync", "time", "usage", "verb"],
    ),
    ("store/redis/transport", &["error", "secret", "time"]),
    (
        "store/redis",
        &[
            "algorithm",
            "charge",
            "decision",
            "error",
            "key",
            "policy_reset",
            "quota",
            "request",
            "secret",
            "store",
            "store/redis/transport",
            "time",
            "usage",
            "verb",
        ],
    ),
    ("store/fallback", &["charge", "decision", "quota", "store/memory", "store/redis", "time", "verb"]),
    ("limiter", &["decision", "key", "quota", "store/memory", "verb", "waiting"]),
    ("waiting", &["decision", "key", "limiter", "time"]),
    ("once", &["charge", "decision", "key", "store/memory", "time", "verb"]),
    (
        "gate",
        &[
            "block",
            "charge",
            "decision",
            "error",
            "key",
            "once",
            "policy",
            "policy_reset",
            "quota",
            "request",
            "store/memory",
            "store/redis",
            "time",
            "usage",
            "verb",
        ],
    ),
    (
        "shared_gate",
        &[
            "block",
            "charge",
            "decision",
            "error",
            "gate",
            "key",
            "policy",
            "policy_reset",
            "quota",
            "request",
            "store/fallback",
            "store/memory",
            "store/redis",
            "time",
            "usage",
            "verb",
        ],
    ),
    ("headers", &["block", "decision", "error", "gate", "quota", "time"]),
    (
        "layer",
        &["client_addr", "decision", "error", "gate", "headers", "policy", "request", "shared_gate", "verb"],
    ),
];

fn library() -> House {
    House::read(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), MODULES)
}

/// A store that knows policies, or an algorithm that knows stores, is one that nobody can test or replace alone.
#[test]
fn modules_use_what_the_plan_allows_and_nothing_else() {
    assert_eq!(library().forbidden_uses(), [""; 0]);
}

/// A plan that allows more than is needed says nothing.
#[test]
fn the_plan_allows_nothing_that_is_not_used() {
    assert_eq!(library().unused_permissions(), [""; 0]);
}

/// A clock read in two places is a decision made at two times, and one that no test can move.
#[test]
fn only_time_reads_a_clock() {
    assert_eq!(library().mentions(&["Instant::now", "SystemTime::now"]), ["time.rs"]);
}

/// A file that has grown past what one reads in a sitting wants to be two.
#[test]
fn no_file_is_longer_than_600_lines_before_its_tests() {
    assert_eq!(library().longer_than(600), [""; 0]);
}

/// Who opens a file must read first what it is.
#[test]
fn every_file_opens_by_saying_what_it_is() {
    assert_eq!(library().without_opening(), [""; 0]);
}

/// What the checks above rest on: a reader that sees nothing forbids nothing.
#[test]
fn the_reader_sees_uses_of_every_form_and_no_comment_or_test() {
    let source = "\
//! See [`Gate`](crate::gate::Gate).
use crate::time::Timestamp;
use crate::{key::Key, quota::{Quota, text}, store::memory::MemoryStore};
pub(crate) use crate::sync;
const MOST: usize = crate::charge::MOST; // as crate::layer does
#[cfg(test)]
mod tests {
    use crate::limiter::Limiter;
}
";
    assert_eq!(house::uses(source), ["charge", "key", "quota", "store::memory", "sync", "time"]);
}
