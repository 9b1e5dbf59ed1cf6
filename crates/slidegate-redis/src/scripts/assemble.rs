//! Assembles scripts from the pieces in `lua/`.
//!
//! In `lua/`, a line `--[name]` starts a piece, and a line `--@name` includes it. Text before a
//! file's first piece is its contract, for readers. The native module's tests include this file, to
//! compare the module with scripts, so it uses nothing of its crate.

use std::collections::HashMap;

use slidegate::Algorithm;
use slidegate::internal::for_each_rate;
use slidegate_stored::{letter, tags};

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../lua/", $name, ".lua")))),*]
    };
}

macro_rules! files_of {
    ($($state:ident $file:ident),*) => {
        [$((stringify!($file), include_str!(concat!("../../lua/", stringify!($file), ".lua")))),*]
    };
}

/// The number of algorithms.
pub(crate) const RATES: usize = Algorithm::ALL.len();
/// The files of the algorithms, in the order of [`Algorithm::ALL`].
const ALGORITHMS: [(&str, &str); RATES] = for_each_rate!(files_of);
/// The other files that have pieces.
const FILES: [(&str, &str); 5] = files!["shared", "check", "decide", "holds", "change_holds"];
/// Pieces that not every script has.
const OPTIONAL: [&str; 10] = [
    "needed",
    "list",
    "refund_kept",
    "opens_with_holds",
    "parts",
    "verbs",
    "full",
    "reserve",
    "grant",
    "granted",
];

/// Every script that is assembled. Lists are by algorithm, in the order of the other stores.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// Checks one key.
    pub(crate) check: [String; RATES],
    /// Decides calls on keys of one algorithm.
    pub(crate) decide: [String; RATES],
    /// Decides calls on keys of several algorithms.
    pub(crate) decide_all: String,
    /// Decides calls on any keys that have holds or get some.
    pub(crate) decide_with_holds: String,
    /// Settles, extends and cancels holds of any keys.
    pub(crate) change_holds: String,
}

impl Assembled {
    pub(crate) fn new() -> Self {
        let of_each = |file: &str, piece: &str| {
            Algorithm::ALL.map(|algorithm| {
                let text = Pieces::of(&["shared", file_of(algorithm), file]).text(piece);
                text.replace("ALGORITHM", letter(algorithm))
            })
        };
        let opens = of_each("decide", "open");
        let all_counts_still = of_each("change_holds", "counts_still").concat();
        let decide = |opens: &str| Pieces::of(&["decide"]).with("opens", opens).text("decide");
        let holds = Pieces::of(&["holds"]);
        let all_opens = opens.concat();
        let opens_with_holds = [all_opens.clone(), holds.text("in_flight"), holds.text("tables")].concat();
        let with_holds = |file: &str, piece: &str| {
            let pieces = Pieces::of(&["shared", file, "holds"]).with("opens", &opens_with_holds);
            pieces.with("all_counts_still", &all_counts_still).text(piece)
        };
        Self {
            check: Algorithm::ALL.map(|one| Pieces::of(&["shared", file_of(one), "check"]).text("check")),
            decide_all: decide(&all_opens),
            decide: opens.map(|opens| decide(&opens)),
            decide_with_holds: with_holds("decide", "decide"),
            change_holds: with_holds("change_holds", "change_holds"),
        }
    }
}

fn file_of(algorithm: Algorithm) -> &'static str {
    let at = Algorithm::ALL.iter().position(|one| *one == algorithm).expect("one that counts a rate");
    ALGORITHMS[at].0
}

/// Pieces by name, without comments.
struct Pieces(HashMap<&'static str, String>);

impl Pieces {
    /// The pieces of these files; a later file's piece replaces an earlier one's.
    fn of(files: &[&str]) -> Self {
        let mut pieces: HashMap<_, _> = OPTIONAL.map(|name| (name, String::new())).into();
        for file in files {
            let mut all = FILES.iter().chain(&ALGORITHMS);
            let (_, text) = all.find(|(name, _)| name == file).expect("one of the files");
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
        let tags: String = tags().iter().map(|tag| format!("\\{tag:03}")).collect();
        pieces.entry("foreign").and_modify(|piece| *piece = piece.replace("TAGS", &tags));
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
