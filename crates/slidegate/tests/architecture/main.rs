//! Module boundaries: which module may import which, and which crate may depend on which.
//!
//! A new module or a new import needs a line in these tables. Imports are read from the source:
//! every `crate::` path outside comments and tests.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod crates;
mod documented_tests;
mod fault_matrix;
mod imports;
mod service;
mod source_tree;
mod threat_model;

use imports::Imports;
use source_tree::SourceTree;

/// The modules of the library, each with the modules it may import. A module includes the files in
/// its folder: `quota` includes `quota/text.rs`.
///
/// Algorithms know no store, key, policy or clock. Stores know no policy, gate or header.
const MODULES: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("error", &[]),
    ("sync", &[]),
    ("secret", &[]),
    ("shares", &[]),
    ("time", &[]),
    ("quota", &["error", "time"]),
    ("amount", &["error"]),
    ("decision", &["amount", "time"]),
    ("verb", &[]),
    ("hold", &["time"]),
    ("lease", &["quota", "time"]),
    ("ticket", &["error", "hold", "secret", "time"]),
    ("block", &["decision", "time"]),
    ("usage", &["amount", "decision", "hold", "quota", "time"]),
    ("algorithm", &["decision", "hold", "quota", "time", "usage", "verb"]),
    ("all_or_nothing", &["charge", "decision", "verb"]),
    ("cost", &["amount", "quota"]),
    ("request", &["amount", "cost", "quota", "verb"]),
    ("request_path", &[]),
    ("network", &["error"]),
    ("fold", &["request", "request_path"]),
    ("key", &["fold", "lease", "network", "request"]),
    ("charge", &["block", "hold", "key", "quota", "verb"]),
    ("policy_reset", &["error"]),
    (
        "policy",
        &[
            "amount", "block", "charge", "cost", "error", "fold", "hold", "key", "lease", "network", "quota",
            "request", "verb",
        ],
    ),
    (
        "store",
        &[
            "algorithm",
            "all_or_nothing",
            "charge",
            "decision",
            "error",
            "hold",
            "key",
            "policy_reset",
            "quota",
            "shares",
            "ticket",
            "time",
            "usage",
            "verb",
            "waiting",
        ],
    ),
    (
        "store/memory",
        &[
            "algorithm",
            "charge",
            "decision",
            "error",
            "hold",
            "key",
            "policy_reset",
            "quota",
            "secret",
            "shares",
            "store",
            "sync",
            "ticket",
            "time",
            "usage",
            "verb",
        ],
    ),
    (
        "store/fallback",
        &[
            "charge",
            "decision",
            "error",
            "key",
            "policy_reset",
            "quota",
            "store",
            "store/memory",
            "ticket",
            "time",
            "usage",
            "verb",
        ],
    ),
    ("waiting", &["key", "time"]),
    ("limiter", &["decision", "key", "quota", "store/memory", "verb", "waiting"]),
    (
        "gate",
        &[
            "amount",
            "block",
            "charge",
            "cost",
            "decision",
            "error",
            "hold",
            "key",
            "policy",
            "policy_reset",
            "quota",
            "request",
            "shares",
            "store",
            "store/fallback",
            "store/memory",
            "ticket",
            "time",
            "usage",
            "verb",
            "waiting",
        ],
    ),
];

/// Files that import each other: the crate, the modules that they all belong to, and the reason.
const CYCLES: &[(&str, &[&str], &str)] = &[
    ("slidegate", &["store/memory"], "the store, its shards and their tables are one structure"),
    (
        "slidegate-server",
        &["listener/budget", "listener/counters", "listener/table", "listener/unfinished"],
        "a connection is closed for what it holds, which is counted with those of its protocol",
    ),
];

fn library() -> SourceTree {
    SourceTree::read("slidegate", MODULES)
}

/// A store that knows policies, or an algorithm that knows stores, cannot be tested or replaced
/// alone.
#[test]
fn modules_of_the_library_import_what_the_table_allows() {
    assert_eq!(library().violations(), [""; 0]);
}

/// Tests can move only one clock, and a decision must have one time.
#[test]
fn only_time_reads_a_clock() {
    assert_eq!(library().mentions(&["Instant::now", "SystemTime::now"]), ["time.rs"]);
}

/// Files that import each other can only be read, tested and moved together.
#[test]
fn files_import_each_other_only_within_small_modules_that_are_listed_with_the_reason() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let (mut unlisted, mut used) = (Vec::new(), Vec::new());
    for folder in std::fs::read_dir(crates).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        let src = folder.path().join("src");
        if !src.is_dir() {
            continue;
        }
        for cycle in Imports::read(src.to_str().unwrap()).cycles() {
            let is_in = |file: &str, module: &&str| {
                file.strip_prefix(*module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let within =
                |modules: &[&str]| cycle.iter().all(|file| modules.iter().any(|module| is_in(file, module)));
            match CYCLES.iter().find(|(of, modules, _)| *of == name && within(modules)) {
                Some(listed) => used.push(listed),
                None => unlisted.push(format!("{name}: {cycle:?}")),
            }
        }
    }
    assert_eq!(unlisted, [""; 0], "move what both need to a file below them");
    let unused: Vec<_> = CYCLES.iter().filter(|listed| !used.contains(listed)).collect();
    assert!(unused.is_empty(), "{unused:?} have no cycle any more; delete their lines");
}

/// The other tests rely on this reader: if it missed imports, they would pass.
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
    assert_eq!(source_tree::uses(source), ["charge", "key", "quota", "store::memory", "sync", "time"]);
}
