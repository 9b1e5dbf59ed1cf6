//! Output of commands to standard output and standard error.
//!
//! `println!` panics on a closed pipe, as in `slidegate policy list | head -1`. Here a closed pipe is not an
//! error: the command keeps its exit code.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

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
    use super::printable;

    /// Text from a server must not clear, colour or rewrite an operator's terminal.
    #[test]
    fn control_characters_are_escaped_and_lines_stay() {
        assert_eq!(printable("a\n\tb \u{e9}"), "a\n\tb \u{e9}");
        assert_eq!(printable("a\u{1b}[2J\u{9b}1m\r\u{7}\u{202e}"), r"a\u001b[2J\u009b1m\u000d\u0007\u202e");
    }
}
