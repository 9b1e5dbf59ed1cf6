//! Every log line that a client can cause is bounded: this test lists the files that write lines
//! without a limit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files that write log lines without `log_limited!`, and why no client can make them write more.
///
/// A new file here is a decision: what bounds its lines? No file of a protocol belongs here that
/// reads what clients send.
const UNLIMITED: &[(&str, &str)] = &[
    (
        "audit.rs",
        "authorised changes of operators, all of which are wanted; those of clients, by a `LogLimit`",
    ),
    ("control/admin/keys.rs", "changes of operators that the store did not take"),
    ("cli/sources.rs", "the start"),
    ("cli/reload.rs", "a changed file or a signal"),
    ("cli/notify.rs", "the self-check of the watchdog, by a timer"),
    ("cli/snapshots.rs", "the start, and snapshots by a timer"),
    ("cli/serve.rs", "start and stop; a full memory store, by a timer and a `LogLimit`"),
    ("envoy/statistics.rs", "one line of each process"),
    ("envoy/watch.rs", "changed files"),
    ("control/changes/control.rs", "changes of operators, by a timer"),
    ("control/changes/escalate.rs", "keys that are blocked, by a `LogLimit`"),
    ("engine/snapshots.rs", "the start, and snapshots by a timer"),
    ("control/changes/active.rs", "changes of operators, by a timer"),
    ("config.rs", "the start and a changed file, a few lines each"),
    ("wire/malformed.rs", "input of clients, by a `LogLimit`"),
    ("record/observer.rs", "the first request that a policy skips, once for each policy"),
    ("log_limit.rs", "the helper itself"),
    ("record/events.rs", "denials, by a `LogLimit`; a thread that cannot be started"),
    ("record/traces.rs", "lost spans, by a timer and a `LogLimit`"),
    ("listener/certificates.rs", "changed files"),
    ("record/webhook.rs", "messages that are given up, by a `LogLimit`"),
    ("control/fleet.rs", "once when instances begin to differ for long, by a timer"),
    ("engine/store/shared.rs", "the state of the shared store, by timers; fallbacks, by a `LogLimit`"),
];

/// Two million wrong passwords wrote 281 MB: anyone who adds a line that a client can cause must
/// not write it unbounded.
#[test]
fn log_lines_that_clients_can_cause_are_limited() {
    let mut found = BTreeSet::new();
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), "", &mut found);
    let allowed: BTreeSet<_> = UNLIMITED.iter().map(|(file, _)| (*file).to_owned()).collect();
    let unlimited: Vec<_> = found.difference(&allowed).collect();
    assert!(
        unlimited.is_empty(),
        "{unlimited:?}: use `log_limited!`, or say in UNLIMITED what bounds the lines"
    );
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "{gone:?} write no lines and need no entry");
}

/// A reader of sources that sees nothing allows everything.
#[test]
fn the_reader_sees_lines_of_every_form() {
    assert_eq!(lines("// tracing::warn!(x)\nlet a = 1;\n"), 0);
    for line in ["tracing::warn!(\"x\")", "tracing::event!(Level::WARN, 1)", "Err(e) => tracing::debug!(e),"]
    {
        assert_eq!(lines(line), 1, "{line}");
    }
    for line in ["use tracing::warn;", "use tracing::{Level, info};"] {
        assert_eq!(lines(line), 1, "an import would hide what uses it: {line}");
    }
    assert_eq!(lines("log_limited!(WARN, None, \"x\");\n#[cfg(test)]\nmod tests {\ntracing::warn!(1)\n}"), 0);
}

/// How many log lines a source file writes directly, tests not included.
fn lines(source: &str) -> usize {
    let tests =
        source.find("\nmod tests {").map_or(source.len(), |at| source[..at].rfind("#[cfg(test)]").unwrap());
    let code = source[..tests].lines().map(|line| line.split("//").next().unwrap());
    let macros =
        ["error", "warn", "info", "debug", "trace", "event"].map(|name| format!("tracing::{name}!("));
    let direct = |line: &str| macros.iter().any(|name| line.contains(name)) || line.contains("use tracing::");
    code.filter(|line| direct(line)).count()
}

fn collect(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            collect(&path, &format!("{name}/"), found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && lines(&fs::read_to_string(&path).unwrap()) > 0
        {
            found.insert(name);
        }
    }
}
