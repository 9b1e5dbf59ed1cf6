//! Scripts: what the store runs in Redis. `lua/assembled/` has their texts; hashes are computed.
//!
//! A script is sent without its comments, which are two fifths of its text. Line breaks stay, so a
//! line number in an error of the server is that of the file in `lua/`, plus one for the `#!lua`
//! header: `user_script:124` is line 123. Servers before Redis 7 get no header.
//!
//! A script is one straight line, because functions and tables cost more than the rest of a
//! decision. Scripts share pieces, which are in the files of `lua/`; a test below assembles them.

use crate::quota::Algorithm;
use crate::store::redis::transport::Script;

macro_rules! assembled {
    ($name:literal) => {
        include_str!(concat!("../../../lua/assembled/", $name, ".lua"))
    };
}

/// Every script that checks one key, by algorithm as in [`Algorithm::ALL`].
const CHECKS: [&str; 4] = [
    assembled!("check_sliding_log"),
    assembled!("check_sliding_window"),
    assembled!("check_fixed_window"),
    assembled!("check_token_bucket"),
];
/// Every script that decides calls on keys of one algorithm, by algorithm.
const DECIDES: [&str; 4] = [
    assembled!("decide_sliding_log"),
    assembled!("decide_sliding_window"),
    assembled!("decide_fixed_window"),
    assembled!("decide_token_bucket"),
];
/// The script that decides calls on keys of several algorithms.
const DECIDE_ALL: &str = assembled!("decide_all");
/// Every script that decides a request on one key that has holds or gets one, by algorithm; last
/// that of limits on what is in flight.
const CHECKS_HELD: [&str; 5] = [
    assembled!("check_held_sliding_log"),
    assembled!("check_held_sliding_window"),
    assembled!("check_held_fixed_window"),
    assembled!("check_held_token_bucket"),
    assembled!("check_held_in_flight"),
];
/// Every script that changes the hold of one key, in the same order.
const CHANGES: [&str; 5] = [
    assembled!("change_hold_sliding_log"),
    assembled!("change_hold_sliding_window"),
    assembled!("change_hold_fixed_window"),
    assembled!("change_hold_token_bucket"),
    assembled!("change_hold_in_flight"),
];
/// The script that decides calls on any keys that have holds or get some.
const DECIDE_WITH_HOLDS: &str = assembled!("decide_with_holds");
/// The script that settles, extends and cancels holds of any keys.
const CHANGE_HOLDS: &str = assembled!("change_holds");
/// The script that replaces the control document.
const CONTROL_DOCUMENT: &str = include_str!("../../../lua/control_document.lua");
/// The script that counts instances.
const INSTANCES: &str = include_str!("../../../lua/instances.lua");
/// The script that tells which commands scripts may not call.
const SELF_TEST: &str = include_str!("../../../lua/self_test.lua");

/// The script that tells the server's time.
const SERVER_TIME: &str = include_str!("../../../lua/server_time.lua");
/// How scripts read the clock, and what stands there where they may not call `TIME`.
const CLOCK: &str = "local time = call('TIME')\n";
const CLOCK_BY_EXPIRY: &str = include_str!("../../../lua/clock.lua");

/// Every script the store may call.
#[derive(Debug)]
pub(crate) struct Scripts {
    check: [Script; 4],
    decide: [Script; 4],
    decide_all: Script,
    check_held: [Script; 5],
    change_hold: [Script; 5],
    decide_with_holds: Script,
    change_holds: Script,
    control_document: Script,
    instances: Script,
    self_test: Script,
    server_time: Script,
}

/// The position of an algorithm in [`Algorithm::ALL`]; behind them that of limits on what is in
/// flight.
fn position(algorithm: Algorithm) -> usize {
    Algorithm::ALL.iter().position(|one| *one == algorithm).unwrap_or(Algorithm::ALL.len())
}

/// The script without comments and indentation, with every line break.
///
/// Sound without a lexer: a line of Lua stands alone unless a long bracket opens, a line ends in a
/// backslash, or a carriage return breaks it. A text with any of these is returned unchanged.
/// Otherwise a line that begins with `--` is a comment. Other comments stay.
fn without_comments(text: &str) -> String {
    let mut opens = text.match_indices('[').map(|(at, _)| text[at + 1..].trim_start_matches('='));
    if text.contains('\r') || text.contains("\\\n") || opens.any(|rest| rest.starts_with('[')) {
        return text.to_owned();
    }
    let code = text.lines().map(|line| match line.trim_matches([' ', '\t']) {
        comment if comment.starts_with("--") => "",
        code => code,
    });
    code.collect::<Vec<_>>().join("\n")
}

impl Scripts {
    /// Scripts that read the clock by `TIME`, or by the expiry of a key.
    pub(crate) fn new(by_expiry: bool) -> Self {
        // One line, as line numbers in errors are those of the files.
        let clock = without_comments(CLOCK_BY_EXPIRY).split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
        let clock = if by_expiry { &clock } else { CLOCK };
        let script = |text: &str| Script::new(without_comments(text).replace(CLOCK, clock));
        Self {
            check: CHECKS.map(script),
            decide: DECIDES.map(script),
            decide_all: script(DECIDE_ALL),
            check_held: CHECKS_HELD.map(script),
            change_hold: CHANGES.map(script),
            decide_with_holds: script(DECIDE_WITH_HOLDS),
            change_holds: script(CHANGE_HOLDS),
            control_document: script(CONTROL_DOCUMENT),
            instances: script(INSTANCES),
            self_test: script(SELF_TEST),
            server_time: script(SERVER_TIME),
        }
    }

    /// The script that replaces the control document.
    pub(crate) fn control_document(&self) -> &Script {
        &self.control_document
    }

    /// The script that counts instances.
    pub(crate) fn instances(&self) -> &Script {
        &self.instances
    }

    /// The script that tells which commands scripts may not call.
    pub(crate) fn self_test(&self) -> &Script {
        &self.self_test
    }

    /// The script that tells the server's time.
    pub(crate) fn server_time(&self) -> &Script {
        &self.server_time
    }

    /// The script that carries out any call on keys that may have holds.
    pub(crate) fn decide_with_holds(&self) -> &Script {
        &self.decide_with_holds
    }

    /// The script that decides a request on one key under this algorithm, which may have holds.
    pub(crate) fn check_held(&self, algorithm: Algorithm) -> &Script {
        &self.check_held[position(algorithm)]
    }

    /// The script that changes a hold of one key under this algorithm.
    pub(crate) fn change_hold(&self, algorithm: Algorithm) -> &Script {
        &self.change_hold[position(algorithm)]
    }

    /// The script that changes holds of any keys.
    pub(crate) fn change_holds(&self) -> &Script {
        &self.change_holds
    }

    /// The script that checks one key under this algorithm.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        &self.check[position(algorithm)]
    }

    /// The script that carries out any call on keys under these algorithms.
    pub(crate) fn decide(&self, mut algorithms: impl Iterator<Item = Algorithm>) -> &Script {
        let first = algorithms.next().unwrap_or_default();
        if algorithms.all(|one| one == first) { &self.decide[position(first)] } else { &self.decide_all }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fmt::Write as _;
    use std::path::Path;
    use std::{env, fs};

    use super::*;
    use crate::stored::letter;

    /// Set, the test writes the assembled scripts instead of comparing them.
    const REWRITE: &str = "SLIDEGATE_ASSEMBLE_LUA";

    /// A file of `lua/`: what stands before its pieces, and the pieces by name.
    #[derive(Default)]
    struct Pieces {
        contract: String,
        pieces: HashMap<String, String>,
    }

    impl Pieces {
        /// The pieces of these files; a later file's piece replaces an earlier one's.
        fn of(files: &[&str]) -> Self {
            let optional = ["needed", "list", "opens_with_holds", "parts", "verbs", "full", "reserve"];
            let empty = optional.map(|name| (name.to_owned(), String::new()));
            let mut all = Self { pieces: HashMap::from(empty), ..Self::default() };
            for file in files {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(file);
                let text = fs::read_to_string(path).expect("a file of pieces");
                let mut current: Option<String> = None;
                let mut contract = String::new();
                for line in text.lines() {
                    if let Some(name) = line.strip_prefix("--[").and_then(|line| line.strip_suffix(']')) {
                        all.pieces.insert(name.to_owned(), String::new());
                        current = Some(name.to_owned());
                    } else if let Some(name) = &current {
                        writeln!(all.pieces.get_mut(name).expect("it was added"), "{line}")
                            .expect("a string");
                    } else {
                        writeln!(contract, "{line}").expect("a string");
                    }
                }
                writeln!(all.contract, "{}\n", contract.trim_end()).expect("a string");
            }
            all
        }

        /// A piece with the pieces that it asks for, each indented as the line that asks for it.
        fn text(&self, name: &str) -> String {
            let piece = self.pieces.get(name).unwrap_or_else(|| panic!("no file has the piece `{name}`"));
            let mut text = String::new();
            for line in piece.trim_end().lines() {
                let trimmed = line.trim_start();
                let indent = &line[..line.len() - trimmed.len()];
                match trimmed.strip_prefix("--@") {
                    Some(asked) => {
                        let is_empty = self.text(asked).is_empty();
                        if !is_empty {
                            writeln!(text, "{indent}-- [{asked}]").expect("a string");
                        }
                        for line in self.text(asked).lines() {
                            let indent = if line.is_empty() { "" } else { indent };
                            writeln!(text, "{indent}{line}").expect("a string");
                        }
                    }
                    None => writeln!(text, "{line}").expect("a string"),
                }
            }
            text
        }
    }

    fn file(algorithm: Algorithm) -> String {
        format!("{}.lua", algorithm.name().replace('-', "_"))
    }

    fn opens(algorithm: Algorithm) -> String {
        let pieces = Pieces::of(&["shared.lua", &file(algorithm), "decide.lua"]);
        pieces.text("open").replace("ALGORITHM", letter(algorithm))
    }

    /// The script that ends in this piece, with the contracts of all files that it is made of.
    fn script(name: &str, files: &[&str], main: &Pieces) -> String {
        let mut text =
            "-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run\n\
                        -- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled\n\
                        -- Sent without comments; line NN here is line NN + 1 in an error of the server.\n\n"
                .to_owned();
        for file in files {
            let contract = Pieces::of(&[file]).contract;
            write!(text, "-- {file}\n--\n{contract}").expect("a string");
        }
        text + &main.text(name)
    }

    fn assembled() -> Vec<(String, String)> {
        let mut all = Vec::new();
        for algorithm in Algorithm::ALL {
            let (own, name) = (file(algorithm), algorithm.name().replace('-', "_"));
            let checks = Pieces::of(&["shared.lua", &own, "check.lua"]);
            let check = script("check", &["check.lua", &own, "shared.lua"], &checks);
            all.push((format!("check_{name}"), check));
            let mut decides = Pieces::of(&["decide.lua"]);
            decides.pieces.insert("opens".to_owned(), opens(algorithm));
            let decide = script("decide", &["decide.lua", &own, "shared.lua"], &decides);
            all.push((format!("decide_{name}"), decide));
        }
        let files = Algorithm::ALL.map(file);
        let mut names = vec!["decide.lua"];
        names.extend(files.iter().map(String::as_str));
        names.push("shared.lua");
        let mut decides = Pieces::of(&["decide.lua"]);
        decides.pieces.insert("opens".to_owned(), Algorithm::ALL.map(opens).join("\n"));
        all.push(("decide_all".to_owned(), script("decide", &names, &decides)));
        let holds = Pieces::of(&["holds.lua"]);
        let all_opens =
            [Algorithm::ALL.map(opens).join("\n"), holds.text("in_flight"), holds.text("tables")].join("\n");
        for algorithm in Algorithm::ALL.into_iter().chain([Algorithm::InFlight]) {
            let (own, name) = (file(algorithm), algorithm.name().replace('-', "_"));
            for main in ["check_held", "change_hold"] {
                let files = [&format!("{main}.lua"), "held_key.lua", &own, "shared.lua"];
                let pieces = Pieces::of(&["shared.lua", &own, "held_key.lua", files[0]]);
                all.push((format!("{main}_{name}"), script(main, &files, &pieces)));
            }
        }
        for (name, main) in [("decide_with_holds", "decide.lua"), ("change_holds", "change_holds.lua")] {
            let mut pieces = Pieces::of(&["shared.lua", main, "holds.lua"]);
            pieces.pieces.insert("opens".to_owned(), all_opens.clone());
            let mut names = vec![main, "holds.lua"];
            names.extend(files.iter().map(String::as_str));
            names.push("shared.lua");
            let piece = if main == "decide.lua" { "decide" } else { name };
            all.push((name.to_owned(), script(piece, &names, &pieces)));
        }
        all
    }

    /// A character that is lost changes what is charged. A line that moves makes error messages
    /// lie.
    #[test]
    fn only_comments_and_indentation_are_left_out() {
        let text = "-- a\n\n  local a = '--' -- b\n\t--c\nlocal b = \"[--\" .. a[b[1]]  \n--[b]\nreturn a";
        let sent = "\n\nlocal a = '--' -- b\n\nlocal b = \"[--\" .. a[b[1]]\n\nreturn a";
        assert_eq!(without_comments(text), sent);
        for unchanged in [
            "--[[ a\n-- b\n]] return 1",
            "--[==[ a\n-- b\n]==] return 1",
            "local a = [[\n-- b\n]]",
            "local a = [=[\n-- b\n]=]",
            "local a = 'a\\\n-- b'",
            "-- a\rreturn 1",
        ] {
            assert_eq!(without_comments(unchanged), unchanged);
        }
        assert_eq!(without_comments(""), "");
    }

    /// A script with a construct that must not be shortened would be sent whole, unnoticed.
    #[test]
    fn every_script_is_sent_without_comments() {
        for text in CHECKS.iter().chain(&DECIDES).chain(&CHECKS_HELD).chain(&CHANGES).chain([
            &DECIDE_ALL,
            &DECIDE_WITH_HOLDS,
            &CHANGE_HOLDS,
            &CONTROL_DOCUMENT,
        ]) {
            let sent = without_comments(text);
            assert_eq!(sent.lines().count(), text.lines().count());
            for (sent, line) in sent.lines().zip(text.lines()) {
                let code = if line.trim_start().starts_with("--") { "" } else { line.trim() };
                assert_eq!(sent, code);
            }
        }
    }

    /// A script that reads its clock in other words would fail where `TIME` is refused.
    #[test]
    fn every_script_with_a_clock_can_read_it_by_expiry() {
        let (by_time, by_expiry) = (Scripts::new(false), Scripts::new(true));
        let texts = |scripts: &Scripts| {
            let Scripts { check, decide, decide_all, check_held, change_hold, .. } = scripts;
            let Scripts { decide_with_holds, change_holds, instances, server_time, .. } = scripts;
            let alone = [decide_all, decide_with_holds, change_holds, instances, server_time];
            let many = check.iter().chain(decide).chain(check_held).chain(change_hold);
            many.chain(alone).map(|script| script.source(false).text.clone()).collect::<Vec<_>>()
        };
        for (one, other) in texts(&by_time).iter().zip(texts(&by_expiry)) {
            assert_eq!(one.matches("'TIME'").count(), 1, "{one}");
            assert!(!other.contains("'TIME'") && other.contains("'PEXPIRETIME'"), "{other}");
            assert_eq!(one.lines().count(), other.lines().count());
        }
    }

    /// Anyone who reads a script must read what runs.
    #[test]
    fn assembled_scripts_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/assembled");
        for (name, text) in assembled() {
            let path = folder.join(format!("{name}.lua"));
            if env::var_os(REWRITE).is_some() {
                fs::write(&path, &text).expect("the folder can be written to");
            }
            let stored = fs::read_to_string(&path).expect("an assembled script");
            assert!(stored == text, "{name}.lua is not current; run the test with {REWRITE}=1");
        }
    }
}
