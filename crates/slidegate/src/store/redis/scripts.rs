//! Scripts: the pieces in `lua/`, put together for what is asked.
//!
//! A script is one straight line: pieces stand for what functions would be, since a decision would spend most of its time
//! on making those. Hashes are computed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use crate::quota::Algorithm;
use crate::store::redis::transport::Script;

const SHARED: &str = include_str!("../../../lua/shared.lua");
const CHECK: &str = include_str!("../../../lua/check.lua");
const DECIDE: &str = include_str!("../../../lua/decide.lua");

/// Every script the store may call.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Checks one key, by algorithm.
    check: [Script; 4],
    /// Does everything to any number of keys, by the set of their algorithms. Put together when first asked for.
    decide: [OnceLock<Script>; 16],
    /// Replaces the note that instances share.
    note: Script,
}

/// The algorithm's letter in scripts.
pub(crate) fn letter(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog => "L",
        Algorithm::SlidingWindow => "W",
        Algorithm::FixedWindow => "F",
        Algorithm::TokenBucket => "B",
    }
}

fn file(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog => include_str!("../../../lua/sliding_log.lua"),
        Algorithm::SlidingWindow => include_str!("../../../lua/sliding_window.lua"),
        Algorithm::FixedWindow => include_str!("../../../lua/fixed_window.lua"),
        Algorithm::TokenBucket => include_str!("../../../lua/token_bucket.lua"),
    }
}

/// Where an algorithm stands in [`Algorithm::ALL`].
fn place(algorithm: Algorithm) -> usize {
    Algorithm::ALL.iter().position(|one| *one == algorithm).expect("all algorithms are in ALL")
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let check = Algorithm::ALL
            .map(|algorithm| Script::new(Pieces::of(&[SHARED, file(algorithm), CHECK]).text("check")));
        let note = Script::new(include_str!("../../../lua/note.lua").to_owned());
        Self { check, decide: Default::default(), note }
    }

    /// The script that replaces the note.
    pub(crate) fn note(&self) -> &Script {
        &self.note
    }

    /// The script that checks one key under this algorithm.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        &self.check[place(algorithm)]
    }

    /// The script that does anything to keys under these algorithms.
    pub(crate) fn decide(&self, algorithms: impl Iterator<Item = Algorithm>) -> &Script {
        let set = algorithms.fold(0, |set, algorithm| set | 1 << place(algorithm));
        self.decide[set].get_or_init(|| {
            let mut opens = String::new();
            for algorithm in Algorithm::ALL.into_iter().filter(|one| set & 1 << place(*one) != 0) {
                let pieces = Pieces::of(&[SHARED, file(algorithm), DECIDE]);
                let _ = writeln!(opens, "{}", pieces.text("open").replace("ALGORITHM", letter(algorithm)));
            }
            let mut pieces = Pieces::of(&[DECIDE]);
            pieces.0.insert("opens", opens);
            Script::new(pieces.text("decide"))
        })
    }
}

/// Pieces by name; a later file's piece takes the place of an earlier one's.
struct Pieces(HashMap<&'static str, String>);

impl Pieces {
    fn of(files: &[&'static str]) -> Self {
        // Only the log tells more than its told numbers, and only to `check.lua` otherwise than in one list.
        let mut pieces = HashMap::from([("needed", String::new()), ("list", String::new())]);
        for file in files {
            let mut current = None;
            for line in file.lines() {
                if let Some(name) = line.strip_prefix("--[").and_then(|line| line.strip_suffix(']')) {
                    pieces.insert(name, String::new());
                    current = Some(name);
                } else if let Some(name) = current
                    && let Some(text) = pieces.get_mut(name)
                {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        Self(pieces)
    }

    /// The text of a piece with the pieces it asks for, without comments.
    fn text(&self, name: &str) -> String {
        let piece = self.0.get(name).unwrap_or_else(|| panic!("no file has the piece `{name}`"));
        let mut text = String::new();
        for line in piece.lines() {
            let trimmed = line.trim_start();
            if let Some(asked) = trimmed.strip_prefix("--@") {
                text.push_str(&self.text(asked));
            } else if !trimmed.is_empty() && !trimmed.starts_with("-- ") {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }
}
