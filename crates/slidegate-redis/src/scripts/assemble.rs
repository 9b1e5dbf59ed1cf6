//! Assembles scripts from the pieces in `lua/`.
//!
//! In `lua/`, a line `--[name]` starts a piece, and a line `--@name` includes it. Text before a
//! file's first piece is its contract, for readers. The native module's tests include this file, to
//! compare the module with scripts, so it uses only `std`.

use std::collections::HashMap;

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../lua/", $name, ".lua")))),*]
    };
}

/// The files that have pieces.
const FILES: [(&str, &str); 9] = files![
    "shared",
    "sliding_log",
    "sliding_window",
    "fixed_window",
    "token_bucket",
    "check",
    "decide",
    "holds",
    "change_holds"
];
/// The algorithms with their letters in calls; last, limits on requests in flight.
pub(crate) const ALGORITHMS: [(&str, &str); 5] = [
    ("sliding_log", "L"),
    ("sliding_window", "W"),
    ("fixed_window", "F"),
    ("token_bucket", "B"),
    ("in_flight", "P"),
];
/// Pieces that not every script has.
const OPTIONAL: [&str; 8] =
    ["needed", "list", "refund_kept", "opens_with_holds", "parts", "verbs", "full", "reserve"];

/// Every script that is assembled. Lists are by algorithm, in the order of the other stores.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// Checks one key.
    pub(crate) check: [String; 4],
    /// Decides calls on keys of one algorithm.
    pub(crate) decide: [String; 4],
    /// Decides calls on keys of several algorithms.
    pub(crate) decide_all: String,
    /// Decides calls on any keys that have holds or get some.
    pub(crate) decide_with_holds: String,
    /// Settles, extends and cancels holds of any keys.
    pub(crate) change_holds: String,
}

impl Assembled {
    pub(crate) fn new() -> Self {
        let counted = [ALGORITHMS[0], ALGORITHMS[1], ALGORITHMS[2], ALGORITHMS[3]];
        let opens = counted.map(|(name, letter)| {
            Pieces::of(&["shared", name, "decide"]).text("open").replace("ALGORITHM", letter)
        });
        let decide = |opens: &str| Pieces::of(&["decide"]).with("opens", opens).text("decide");
        let holds = Pieces::of(&["holds"]);
        let all_opens = opens.concat();
        let opens_with_holds = [all_opens.clone(), holds.text("in_flight"), holds.text("tables")].concat();
        let with_holds = |file: &str, piece: &str| {
            Pieces::of(&["shared", file, "holds"]).with("opens", &opens_with_holds).text(piece)
        };
        Self {
            check: counted.map(|(name, _)| Pieces::of(&["shared", name, "check"]).text("check")),
            decide_all: decide(&all_opens),
            decide: opens.map(|opens| decide(&opens)),
            decide_with_holds: with_holds("decide", "decide"),
            change_holds: with_holds("change_holds", "change_holds"),
        }
    }
}

/// Pieces by name, without comments.
struct Pieces(HashMap<&'static str, String>);

impl Pieces {
    /// The pieces of these files; a later file's piece replaces an earlier one's.
    fn of(files: &[&str]) -> Self {
        let mut pieces: HashMap<_, _> = OPTIONAL.map(|name| (name, String::new())).into();
        for file in files {
            let (_, text) = FILES.iter().find(|(name, _)| name == file).expect("one of the files");
            // The contract has no name.
            let mut current = String::new();
            for line in text.lines() {
                if let Some(name) = line.strip_prefix("--[").and_then(|line| line.strip_suffix(']')) {
                    pieces.insert(name, String::new());
                    name.clone_into(&mut current);
                } else if let Some(piece) = pieces.get_mut(current.as_str()).filter(|_| is_code(line)) {
                    piece.push_str(line);
                    piece.push('\n');
                }
            }
        }
        Self(pieces)
    }

    fn with(mut self, name: &'static str, text: &str) -> Self {
        self.0.insert(name, text.to_owned());
        self
    }

    /// A piece with the pieces that it includes.
    fn text(&self, name: &str) -> String {
        let piece = self.0.get(name).unwrap_or_else(|| panic!("no file has the piece `{name}`"));
        let mut text = String::new();
        for line in piece.lines() {
            match line.trim_start().strip_prefix("--@") {
                Some(included) => text += &self.text(included),
                None => {
                    text += line.trim();
                    text.push('\n');
                }
            }
        }
        text
    }
}

/// Whether a line is neither empty nor a comment. No string and no comment goes over several lines.
fn is_code(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("--@") || !line.is_empty() && !line.starts_with("--")
}

/// The code of a script, which has no pieces, in one text without comments.
pub(crate) fn code(text: &str) -> String {
    let code = text.lines().map(str::trim).filter(|line| is_code(line));
    code.flat_map(|line| [line, "\n"]).collect()
}
