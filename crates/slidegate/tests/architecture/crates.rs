//! The other crates: which of their modules may import which, and which crate may depend on which.

use std::collections::BTreeSet;
use std::fs;

use super::source_tree::{CRATES_FOLDER, SourceTree, Table};

/// The crates of the workspace, each with the ones it may depend on, and its modules with what they
/// may import. The modules of the library and of the service have tables of their own.
const CRATES: &[(&str, &[&str], Option<&Table>)] = &[
    ("lined-config", &[], Some(LINED)),
    ("redis-once", &[], None),
    ("slidegate", &[], None),
    ("slidegate-config", &["lined-config", "slidegate"], Some(CONFIG)),
    ("slidegate-http", &["slidegate"], Some(HTTP)),
    ("slidegate-module", &["slidegate", "slidegate-stored"], Some(MODULE)),
    ("slidegate-redis", &["slidegate", "redis-once", "slidegate-stored"], Some(REDIS)),
    ("slidegate-replay", &["slidegate", "slidegate-http", "slidegate-stored"], Some(REPLAY)),
    (
        "slidegate-server",
        &[
            "slidegate",
            "lined-config",
            "slidegate-config",
            "slidegate-http",
            "slidegate-redis",
            "slidegate-replay",
        ],
        None,
    ),
    ("slidegate-stored", &["slidegate"], Some(STORED)),
    // It tests the others from outside, so it knows none of them.
    ("slidegate-testkit", &[], Some(TESTKIT)),
];

/// Values know no schema, and nothing knows what a config is about.
const LINED: &Table = &[
    ("lib", &[]),
    ("form", &[]),
    ("text", &[]),
    ("yaml", &["text"]),
    ("errors", &["text", "yaml"]),
    ("words", &["text", "yaml"]),
    ("schema", &["form", "words"]),
    ("check", &["errors", "schema", "text", "words", "yaml"]),
    ("section", &["check", "errors", "schema", "words", "yaml"]),
    ("document", &["errors", "schema", "section", "yaml"]),
];

/// Parts of a policy know no policy, and policies know no file.
const CONFIG: &Table = &[
    ("lib", &[]),
    ("names", &[]),
    ("foreign", &[]),
    ("values", &[]),
    ("quota", &["foreign", "values"]),
    ("overrides", &["quota", "values"]),
    ("condition", &["overrides"]),
    ("unlikely", &["overrides"]),
    ("escalate", &["values"]),
    ("counts", &["values"]),
    (
        "policy",
        &["condition", "counts", "escalate", "foreign", "names", "overrides", "quota", "unlikely", "values"],
    ),
    ("added", &["policy"]),
    ("text", &["added", "values"]),
    ("policies", &["escalate", "foreign", "policy", "unlikely"]),
];

/// What describes a decision in header fields knows no layer.
const HTTP: &Table =
    &[("lib", &[]), ("client_addr", &[]), ("headers", &[]), ("layer", &["client_addr", "headers"])];

/// Arguments know no server.
const MODULE: &Table = &[
    ("lib", &[]),
    ("allocator", &[]),
    ("api", &["allocator", "arguments"]),
    ("arguments", &[]),
    ("value", &["api"]),
    ("commands", &["api", "arguments", "value"]),
];

/// Calls know no slot, and what calls over several slots knows no cache.
const REDIS: &Table = &[
    ("lib", &[]),
    ("names", &[]),
    ("native", &[]),
    ("scripts", &[]),
    ("held_keys", &[]),
    ("server_time", &[]),
    ("options", &["names", "native"]),
    ("call", &["names", "native", "scripts"]),
    ("reply", &["call"]),
    ("denial_cache", &["call"]),
    ("leases", &["call", "names", "reply"]),
    ("waiters", &[]),
    ("invalidation", &["denial_cache", "leases", "waiters"]),
    (
        "calls",
        &[
            "call",
            "held_keys",
            "invalidation",
            "leases",
            "names",
            "native",
            "reply",
            "scripts",
            "server_time",
        ],
    ),
    ("batch", &["call", "calls"]),
    ("spread", &["batch", "call"]),
    ("mixed", &["call", "spread"]),
    ("holds", &["call", "calls", "names", "native", "reply"]),
    ("ticket_secret", &["calls"]),
    ("admin", &["call", "calls", "names", "reply"]),
    ("last_quotas", &["admin", "call", "calls", "names"]),
    (
        "store",
        &[
            "admin",
            "batch",
            "call",
            "calls",
            "denial_cache",
            "held_keys",
            "holds",
            "invalidation",
            "last_quotas",
            "mixed",
            "names",
            "options",
            "server_time",
            "spread",
            "ticket_secret",
        ],
    ),
    ("service", &["admin", "calls", "last_quotas", "store"]),
];

/// What is written knows no call.
const STORED: &Table = &[
    ("lib", &[]),
    ("compact", &[]),
    ("reply", &[]),
    ("write", &[]),
    ("quota_bytes", &["write"]),
    ("state", &["quota_bytes", "write"]),
    ("call", &["quota_bytes", "write"]),
    ("counters", &["compact", "quota_bytes", "state", "write"]),
    ("entries", &["quota_bytes", "state", "write"]),
    ("key", &["entries", "state", "write"]),
    ("pair", &["call", "key", "state", "write"]),
    ("inspect", &["key", "pair", "state"]),
    ("call_key", &["key", "pair", "reply", "state", "write"]),
    ("decide", &["call", "call_key", "pair", "reply", "state", "write"]),
];

/// Parsing knows no policy; what decides knows no form of report.
const REPLAY: &Table = &[
    ("lib", &[]),
    ("column", &[]),
    ("malformed", &[]),
    ("clock_changes", &["wording"]),
    ("block", &["column", "malformed"]),
    ("entry", &["block"]),
    ("attributes", &["entry"]),
    ("client", &["attributes", "block"]),
    ("format", &["attributes", "block", "client", "clock_changes", "column", "malformed"]),
    ("input", &["block", "format", "malformed"]),
    ("reorder", &[]),
    ("stats", &["clock_changes", "malformed", "wording"]),
    ("reader", &["block", "entry", "format", "input", "malformed", "reorder", "stats", "wording"]),
    ("batch", &["attributes", "entry"]),
    ("evidence", &["attributes", "batch", "entry", "wording"]),
    ("pass", &["batch", "entry", "evidence"]),
    ("share", &[]),
    ("wording", &[]),
    ("timeline", &[]),
    ("each", &["wording"]),
    ("decider", &[]),
    ("key_size", &[]),
    ("live_keys", &["key_size"]),
    ("keys", &["live_keys", "timeline", "wording"]),
    ("scenario", &["batch", "decider", "each", "keys", "live_keys", "timeline", "wording"]),
    ("sweep", &["batch", "decider", "keys", "share", "wording"]),
    ("outcome", &["each", "evidence", "key_size", "keys", "scenario", "stats", "sweep", "timeline"]),
    ("report", &["each", "evidence", "outcome", "share", "wording"]),
    (
        "diff",
        &["batch", "decider", "entry", "evidence", "keys", "outcome", "pass", "report", "stats", "wording"],
    ),
    (
        "replay",
        &[
            "batch", "decider", "entry", "evidence", "outcome", "pass", "scenario", "stats", "sweep",
            "wording",
        ],
    ),
];

/// Helpers know no server.
const TESTKIT: &Table = &[
    ("lib", &[]),
    ("background", &[]),
    ("http", &[]),
    ("poll", &[]),
    ("ports", &[]),
    ("temp_dir", &[]),
    ("window_checker", &[]),
    ("certificates", &["temp_dir"]),
    ("process", &["poll"]),
    ("clock", &["process"]),
    ("proxy", &["background", "poll", "ports"]),
    ("redis", &["background", "clock", "poll", "ports", "process", "temp_dir"]),
    ("service", &["http", "poll", "process"]),
];

/// Anyone who reads or replaces a part of these crates must know what it relies on.
#[test]
fn modules_of_the_other_crates_import_what_the_tables_allow() {
    for (name, _, table) in CRATES {
        let violations = table.map(|table| SourceTree::read(name, table).violations());
        assert_eq!(violations.unwrap_or_default(), [""; 0], "{name}");
    }
}

/// Users want one crate without the others.
#[test]
fn crates_depend_on_the_crates_that_the_table_allows() {
    let folders = fs::read_dir(CRATES_FOLDER).unwrap().map(|folder| folder.unwrap());
    let found: BTreeSet<_> = folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    assert_eq!(found, CRATES.iter().map(|(name, _, _)| (*name).to_owned()).collect());
    for (name, allowed, _) in CRATES {
        let manifest = fs::read_to_string(format!("{CRATES_FOLDER}/{name}/Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap().lines();
        let own = dependencies.filter(|line| line.contains("path = \"../"));
        let used: Vec<_> = own.filter_map(|line| line.split_once(" = ").map(|(name, _)| name)).collect();
        assert_eq!(used, *allowed, "{name}");
    }
}
