//! Formats of alternating literals and variables: nginx's `log_format` and those of Apache, Envoy and load
//! balancers.
//!
//! A variable ends at the first occurrence of the literal after it. One parser serves every such format;
//! parsing a format builds its table.

use std::sync::Arc;

use memchr::memmem;

use crate::block::{Escape, RecordWriter};
use crate::format::field::{FieldReader, Target};
use crate::malformed::Malformed;

/// A format, as the sequence to find in a line.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The literal before the first variable.
    start: Arc<str>,
    parts: Vec<Part>,
    escape: Escape,
}

/// A variable and the literal after it.
#[derive(Clone, Debug)]
struct Part {
    name: Arc<str>,
    targets: Vec<Target>,
    /// Empty for the last variable of a line, which extends to the end.
    until: Arc<str>,
    /// Finds `until` if it is longer than one byte.
    finder: memmem::Finder<'static>,
    /// Whether the variable is in double quotes, in which a backslash escapes a quote.
    is_quoted: bool,
    /// Whether it may hold several values, whose separators begin like the literal.
    is_list: bool,
}

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(String),
    Variable(String),
}

/// The pieces of a format.
#[derive(Default)]
pub(crate) struct Pieces(pub(crate) Vec<Piece>);

impl Pieces {
    pub(crate) fn literal(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Literal(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Literal(text.to_owned())),
        }
    }

    pub(crate) fn variable(&mut self, name: &str) {
        self.0.push(Piece::Variable(name.to_owned()));
    }
}

/// The format syntax of one program, and the meaning of its variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syntax {
    /// The escaping of its values, unless the format says otherwise.
    pub(crate) escape: Escape,
    /// Parses a format.
    pub(crate) pieces: fn(&str) -> Vec<Piece>,
    /// The target of a variable; `None` if it is irrelevant to decisions.
    pub(crate) target: fn(&str) -> Option<Target>,
    /// The attribute for a variable with a request header.
    pub(crate) header_attribute: fn(&str) -> Option<String>,
    /// Examples of time variables, for an error.
    pub(crate) time_examples: &'static str,
    /// Whether a variable may hold several values.
    pub(crate) is_list: fn(&str) -> bool,
}

impl Template {
    /// Builds the table. `targets_of` returns a variable's targets.
    ///
    /// # Errors
    /// The format has no variables, or two without a literal between them.
    pub(crate) fn new(
        pieces: &[Piece],
        escape: Escape,
        mut targets_of: impl FnMut(&str) -> Vec<Target>,
    ) -> Result<Self, String> {
        let mut start = String::new();
        let mut parts: Vec<(String, String)> = Vec::new();
        for piece in pieces {
            match (piece, parts.last_mut()) {
                (Piece::Literal(text), None) => start.push_str(text),
                (Piece::Literal(text), Some((_, until))) => until.push_str(text),
                (Piece::Variable(name), Some((before, until))) if until.is_empty() => {
                    return Err(format!(
                        "`{before}` and `{name}` are next to each other, and cannot be separated: expected a \
                         literal, such as a space, between them"
                    ));
                }
                (Piece::Variable(name), _) => parts.push((name.clone(), String::new())),
            }
        }
        if parts.is_empty() {
            return Err("no variables: expected some, such as `$remote_addr`".to_owned());
        }
        let mut before = start.clone();
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(name, until)| {
                let is_quoted =
                    before.ends_with('"') && until.starts_with('"') && escape == Escape::Backslash;
                before.clone_from(&until);
                Part {
                    targets: targets_of(&name),
                    name: name.into(),
                    finder: memmem::Finder::new(until.as_bytes()).into_owned(),
                    until: until.into(),
                    is_quoted,
                    is_list: false,
                }
            })
            .collect();
        Ok(Self { start: start.into(), parts, escape })
    }

    /// Allows lists in these variables, separated by `, `, `; ` or ` : `.
    ///
    /// # Errors
    /// The literal after one of them begins as a separator does.
    pub(crate) fn with_lists(mut self, is_list: fn(&str) -> bool) -> Result<Self, String> {
        for part in self.parts.iter_mut().filter(|part| !part.is_quoted && is_list(&part.name)) {
            let literal = part.until.trim_start_matches(' ');
            if literal.starts_with([',', ';', ':']) {
                return Err(format!(
                    "`{name}` may hold several values, separated by `, ` or ` : `, and cannot be told from what follows \
                     `{until}`: put it in double quotes, `\"${name}\"`, in the server's configuration and here",
                    name = part.name,
                    until = part.until
                ));
            }
            part.is_list = part.until.starts_with(' ');
        }
        Ok(self)
    }

    /// Whether any variable has such a target.
    pub(crate) fn has(&self, is_wanted: impl Fn(Target) -> bool) -> bool {
        self.parts.iter().flat_map(|part| &part.targets).any(|target| is_wanted(*target))
    }

    /// Parses one line.
    pub(crate) fn parse(
        &self,
        line: &[u8],
        fields: &mut FieldReader,
        out: &mut RecordWriter<'_>,
    ) -> Result<(), Malformed> {
        let mut rest = line.strip_prefix(self.start.as_bytes()).ok_or_else(|| self.missing(0))?;
        fields.begin();
        for (number, part) in self.parts.iter().enumerate() {
            let is_last = number + 1 == self.parts.len();
            let end = match part.end(rest) {
                Some(end) => end,
                // The text after the last column may be missing.
                None if is_last => rest.len(),
                None => return Err(self.missing(number + 1)),
            };
            let (text, after) = rest.split_at(end);
            for target in &part.targets {
                fields.set(*target, text, self.escape, out)?;
            }
            rest = after.get(part.until.len()..).unwrap_or_default();
        }
        fields.finish(out)
    }

    fn missing(&self, number: usize) -> Malformed {
        match number.checked_sub(1).map(|before| &self.parts[before]) {
            Some(part) => Malformed::Literal { expected: part.until.clone(), after: part.name.clone() },
            None => Malformed::Literal { expected: self.start.clone(), after: "".into() },
        }
    }
}

impl Part {
    /// The end of the variable.
    fn end(&self, text: &[u8]) -> Option<usize> {
        match self.until.as_bytes() {
            [] => Some(text.len()),
            _ if self.is_list => {
                let mut at = 0;
                loop {
                    at += self.finder.find(text.get(at..)?)?;
                    if text[..at].ends_with(b",") || text[..at].ends_with(b";") {
                        at += 1;
                    } else if text[at..].starts_with(b" : ") {
                        at += 3;
                    } else {
                        return Some(at);
                    }
                }
            }
            [byte] if !self.is_quoted => memchr::memchr(*byte, text),
            until if self.is_quoted => {
                let mut at = 0;
                loop {
                    at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
                    if text[at] == b'\\' {
                        at += 2;
                    } else if text[at..].starts_with(until) {
                        return Some(at);
                    } else {
                        at += 1;
                    }
                }
            }
            _ => self.finder.find(text),
        }
    }
}
