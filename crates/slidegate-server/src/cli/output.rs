//! Output of commands to standard output and standard error.
//!
//! `println!` panics on a closed pipe, as in `slidegate policy list | head -1`. Here a closed pipe is not an
//! error: the command keeps its exit code.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::iter::once;
use std::path::Path;

use slidegate::clock::Timestamp;

use super::failure::{Failure, fail};

/// Prints a line on standard output.
///
/// # Errors
/// Standard output cannot be written, for example on a full disk. A closed pipe is not an error.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    accept_closed(write_line(&mut io::stdout().lock(), line))
}

/// Prints a line on standard error. Failures are ignored.
pub(crate) fn print_error(line: impl Display) {
    // There is nowhere to report the failure.
    let _ = write_line(&mut io::stderr().lock(), line);
}

/// Converts a write error of standard output, ignoring a closed pipe.
///
/// # Errors
/// Any error except a closed pipe.
pub(crate) fn accept_closed(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            fail(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// A file to write, or standard output if its name is `-`.
pub(super) struct Target {
    name: String,
    pub(super) out: Box<dyn Write>,
    pub(super) is_output: bool,
}

impl Target {
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let is_output = path.as_os_str() == "-";
        let out: Box<dyn Write> = if is_output {
            Box::new(BufWriter::new(io::stdout().lock()))
        } else {
            let file = File::create(path).map_err(|error| format!("cannot write {name}: {error}"))?;
            Box::new(BufWriter::new(file))
        };
        Ok(Self { name, out, is_output })
    }

    /// Converts the result of a write: on standard output, an error means that the reader is gone.
    pub(super) fn written(&self, written: io::Result<()>) -> Result<(), Failure> {
        if self.is_output {
            return accept_closed(written);
        }
        Ok(written.map_err(|error| format!("cannot write {}: {error}", self.name))?)
    }
}

fn write_line(out: &mut impl Write, line: impl Display) -> io::Result<()> {
    writeln!(out, "{}", printable(&line.to_string()))?;
    out.flush()
}

/// The indent of wrapped lines.
pub(super) const INDENT: usize = 2;

/// The width of the terminal on standard output, or else `COLUMNS`, or else 80.
pub(super) fn width() -> usize {
    let terminal = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(variable).unwrap_or(80).max(20)
}

/// Breaks lines at spaces, and longer words anywhere, so that none is wider than `width`. The rest of a line is
/// indented by `indent`, or as the line is if that is more.
pub(super) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let own = line.len() - line.trim_start_matches(' ').len();
        let (mut rest, mut start, pad) = (line.to_owned(), own, own.max(indent).min(width / 2));
        while let Some((end, next)) = rest.char_indices().nth(width) {
            let space = if next == ' ' { Some(end) } else { rest[..end].rfind(' ') };
            let at = space.filter(|at| *at > start).unwrap_or(end);
            lines.push(rest[..at].trim_end().to_owned());
            (rest, start) = (" ".repeat(pad) + rest[at..].trim_start(), pad);
        }
        lines.push(rest);
    }
    lines.join("\n")
}

/// A column of a table.
pub(super) struct Column {
    pub(super) head: &'static str,
    pub(super) cells: Vec<String>,
    pub(super) fit: Fit,
}

/// How a column fits into a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// Always there, on the right.
    Number,
    /// Left out of a table that is too wide; the columns of the highest number first.
    Optional(u8),
    /// Always there, and cut where it is too wide.
    Cut,
}

impl Column {
    fn width(&self) -> usize {
        /// The least that is left of a column that is cut.
        const LEAST: usize = 16;
        let width =
            self.cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(self.head.len());
        if self.fit == Fit::Cut { width.min(LEAST) } else { width }
    }
}

/// Formats a table of at most this width, if its least columns fit.
pub(super) fn table(mut columns: Vec<Column>, width: usize) -> String {
    let taken = |columns: &[Column]| columns.iter().map(|column| column.width() + 2).sum::<usize>() - 2;
    while taken(&columns) > width {
        let rank = |column: &Column| if let Fit::Optional(rank) = column.fit { Some(rank) } else { None };
        let Some(least) = columns.iter().filter_map(rank).max() else { break };
        columns.retain(|column| rank(column) != Some(least));
    }
    let free = width.saturating_sub(taken(&columns));
    let mut lines = vec![String::new(); columns.first().map_or(0, |column| column.cells.len()) + 1];
    for (at, column) in columns.iter().enumerate() {
        let width = column.width() + if column.fit == Fit::Cut { free } else { 0 };
        let cells: Vec<_> = once(column.head)
            .chain(column.cells.iter().map(String::as_str))
            .map(|cell| cut(cell, width))
            .collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        for (line, cell) in lines.iter_mut().zip(cells) {
            let gap = if at == 0 { "" } else { "  " };
            *line += &match column.fit {
                Fit::Number => format!("{gap}{cell:>width$}"),
                _ => format!("{gap}{cell:<width$}"),
            };
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// A text, or the start of it.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect::<String>().into()
}

/// A time of the server in whole seconds, rounded up.
pub(super) fn to_seconds(time: &str) -> String {
    let us = time.parse::<jiff::Timestamp>().ok().and_then(|time| u64::try_from(time.as_microsecond()).ok());
    us.map_or_else(|| time.to_owned(), |us| Timestamp::from_micros(us).to_rfc3339())
}

/// Escapes control characters, except line ends and tabs, as JSON does: text from servers and files must not
/// control the terminal.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) {
            escaped += &format!("\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped.into()
}

/// Quotes a word for a shell.
pub(super) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Explanations are read in terminals of any width, and looked for again in tickets.
    #[test]
    fn lines_are_wrapped_at_spaces_and_words_where_they_must_be() {
        for (text, width, wrapped) in [
            ("short", 20, "short"),
            ("p: applies to key `a`", 20, "p: applies to key\n  `a`"),
            ("exactly twenty chars and more", 20, "exactly twenty chars\n  and more"),
            ("  p  one two three four", 20, "  p  one two three\n  four"),
            ("0123456789012345678901234567890", 20, "01234567890123456789\n  01234567890"),
            (
                "key \u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb} two\nnext",
                16,
                "key \u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\u{eb}\n  two\nnext",
            ),
        ] {
            assert_eq!(wrap(text, width, 2), wrapped);
        }
    }

    /// Half of a table on the next line is unreadable; the first columns are those that matter.
    #[test]
    fn tables_lose_columns_before_keys_and_numbers() {
        let column =
            |head, cells: [&str; 2], fit| Column { head, cells: cells.map(str::to_owned).to_vec(), fit };
        let columns = || {
            vec![
                column("cost", ["7", "41"], Fit::Number),
                column("used", ["7 of 10", "41 of 100"], Fit::Optional(1)),
                column("key", ["a", "0123456789012345678901234567890"], Fit::Cut),
                column("last", ["12:00:00", "12:00:01"], Fit::Optional(2)),
            ]
        };
        for (width, expected) in [
            (
                80,
                "cost  used       key                              last\n   \
                 7  7 of 10    a                                12:00:00\n  \
                 41  41 of 100  0123456789012345678901234567890  12:00:01",
            ),
            (
                43,
                "cost  used       key               last\n   7  7 of 10    a                 12:00:00\n  41  41 of 100  0123456789012...  12:00:01",
            ),
            (40, "cost  used       key\n   7  7 of 10    a\n  41  41 of 100  01234567890123456789..."),
            (24, "cost  key\n   7  a\n  41  012345678901234..."),
        ] {
            assert_eq!(table(columns(), width), expected, "{width}");
        }
    }

    /// Text from a server must not clear, colour or rewrite an operator's terminal.
    #[test]
    fn control_characters_are_escaped_and_lines_stay() {
        assert_eq!(printable("a\n\tb \u{e9}"), "a\n\tb \u{e9}");
        assert_eq!(printable("a\u{1b}[2J\u{9b}1m\r\u{7}\u{202e}"), r"a\u001b[2J\u009b1m\u000d\u0007\u202e");
    }
}
