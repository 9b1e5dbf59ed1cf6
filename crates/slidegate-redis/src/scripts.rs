//! Scripts: what the store runs in Redis, assembled from the pieces in `lua/`.
//!
//! A script is one straight line, because functions and tables would cost more than the rest of a
//! decision. It is sent without comments, so a line number in a server's error counts code lines,
//! plus one for the `#!lua` header, which servers before Redis 7 do not get. To print the lines:
//! `cargo test --package slidegate-redis show_scripts -- --ignored --nocapture`.

mod assemble;

use std::sync::LazyLock;

use redis_once::Script;
use slidegate::Algorithm;

use self::assemble::{Assembled, RATES, code};

/// The script that counts a canary up.
const CANARY: &str = include_str!("../lua/canary.lua");
/// The script that replaces the control document.
const CONTROL_DOCUMENT: &str = include_str!("../lua/control_document.lua");
/// The script that acknowledges totals of ended windows.
const CLOSED: &str = include_str!("../lua/closed.lua");
/// The script that counts instances.
const INSTANCES: &str = include_str!("../lua/instances.lua");
/// The script that reads the records of instances.
const INSTANCE_RECORDS: &str = include_str!("../lua/instance_records.lua");
/// The script that tells which commands scripts may not call.
const SELF_TEST: &str = include_str!("../lua/self_test.lua");
/// The script that tells the server's time.
const SERVER_TIME: &str = include_str!("../lua/server_time.lua");
/// How scripts read the clock.
const CLOCK: &str = "local time = call('TIME')\n";
/// Replaces [`CLOCK`] where scripts may not call `TIME`.
const CLOCK_BY_EXPIRY: &str = include_str!("../lua/clock.lua");

/// Every script the store may call.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Check one key, by the [position] of its algorithm.
    pub(crate) check: [Script; RATES],
    decide: [Script; RATES],
    decide_all: Script,
    /// Decides any call on keys that may have holds.
    pub(crate) decide_with_holds: Script,
    /// Changes holds of any keys.
    pub(crate) change_holds: Script,
    /// Counts a canary up.
    pub(crate) canary: Script,
    /// Replaces the control document.
    pub(crate) control_document: Script,
    /// Acknowledges totals of ended windows.
    pub(crate) closed: Script,
    /// Counts instances.
    pub(crate) instances: Script,
    /// Reads the first bytes of values: of the records of instances, and of keys.
    pub(crate) instance_records: Script,
    /// Tells which commands scripts may not call.
    pub(crate) self_test: Script,
    /// Tells the server's time.
    pub(crate) server_time: Script,
}

/// The position of an algorithm in [`Algorithm::ALL`]; after them, that of limits on requests in
/// flight, which have no scripts.
pub(super) fn position(algorithm: Algorithm) -> usize {
    Algorithm::ALL.iter().position(|one| *one == algorithm).unwrap_or(Algorithm::ALL.len())
}

impl Scripts {
    /// Scripts that read the clock by `TIME`, or by the expiry of a key.
    pub(crate) fn of(reads_expiry: bool) -> &'static Self {
        static SCRIPTS: LazyLock<[Scripts; 2]> =
            LazyLock::new(|| [Scripts::with_clock(CLOCK), Scripts::with_clock(&code(CLOCK_BY_EXPIRY))]);
        &SCRIPTS[usize::from(reads_expiry)]
    }

    fn with_clock(clock: &str) -> Self {
        let script = |text: String| Script::new(text.replace(CLOCK, clock));
        let Assembled { check, decide, decide_all, decide_with_holds, change_holds } = Assembled::new();
        Self {
            check: check.map(script),
            decide: decide.map(script),
            decide_all: script(decide_all),
            decide_with_holds: script(decide_with_holds),
            change_holds: script(change_holds),
            canary: script(code(CANARY)),
            control_document: script(code(CONTROL_DOCUMENT)),
            closed: script(code(CLOSED)),
            instances: script(code(INSTANCES)),
            instance_records: script(code(INSTANCE_RECORDS)),
            self_test: script(code(SELF_TEST)),
            server_time: script(code(SERVER_TIME)),
        }
    }

    /// The script for calls on keys under these algorithms.
    pub(crate) fn decide(&self, mut algorithms: impl Iterator<Item = Algorithm>) -> &Script {
        let first = algorithms.next().unwrap_or_default();
        if algorithms.all(|one| one == first) { &self.decide[position(first)] } else { &self.decide_all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every script with a name, by the clock that it reads.
    fn all(reads_expiry: bool) -> Vec<(String, &'static str)> {
        let Scripts { check, decide, .. } = Scripts::of(reads_expiry);
        let lists = [("check", check.as_slice()), ("decide", decide)];
        let listed = lists.into_iter().flat_map(|(name, scripts)| {
            scripts.iter().zip(Algorithm::ALL).map(move |(script, of)| (format!("{name} {of:?}"), script))
        });
        let Scripts { decide_all, decide_with_holds, change_holds, .. } = Scripts::of(reads_expiry);
        let Scripts {
            canary,
            closed,
            control_document,
            instances,
            instance_records,
            self_test,
            server_time,
            ..
        } = Scripts::of(reads_expiry);
        let others = [
            ("decide_all", decide_all),
            ("decide_with_holds", decide_with_holds),
            ("change_holds", change_holds),
            ("canary", canary),
            ("closed", closed),
            ("instances", instances),
            ("instance_records", instance_records),
            ("server_time", server_time),
            ("control_document", control_document),
            ("self_test", self_test),
        ];
        let others = others.map(|(name, script)| (name.to_owned(), script));
        listed.chain(others).map(|(name, script)| (name, script.text())).collect()
    }

    #[test]
    #[ignore = "prints the scripts as they are sent"]
    fn show_scripts() {
        for (name, text) in all(false) {
            println!("\n== {name}");
            text.lines().zip(1..).for_each(|(line, number)| println!("{number:4} {line}"));
        }
    }

    /// Lines are left out as comments without reading Lua, and pieces are found by their lines.
    #[test]
    fn no_script_has_what_its_assembly_cannot_read() {
        for (name, text) in all(false).into_iter().chain(all(true)) {
            let long = ["[[", "[=", "\\\n", "\r", "--[", "--@"];
            assert!(!long.iter().any(|one| text.contains(one)), "{name}: {text}");
            assert!(text.lines().all(|line| !line.is_empty() && !line.starts_with("--")), "{name}: {text}");
        }
    }

    /// A script that reads its clock in other words would fail where `TIME` is refused.
    #[test]
    fn every_script_with_a_clock_can_read_it_by_expiry() {
        for ((name, by_time), (_, by_expiry)) in all(false).into_iter().zip(all(true)) {
            let reads = usize::from(
                !["canary", "closed", "control_document", "instance_records", "self_test"]
                    .contains(&name.as_str()),
            );
            assert_eq!(by_time.matches("'TIME'").count(), reads, "{name}: {by_time}");
            assert_eq!(by_expiry.matches("'PEXPIRETIME'").count(), reads, "{name}: {by_expiry}");
            assert!(!by_expiry.contains("'TIME'"), "{name}: {by_expiry}");
        }
    }
}
