//! Errors of a configuration: one line per mistake, in the order of the file.

use std::cell::RefCell;
use std::fmt;

use crate::yaml::{Position, one_line};

/// Most errors that are listed. More errors than this usually repeat one mistake.
const MAX_ERRORS: usize = 20;

/// Every mistake of a configuration: one line each, in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Mistake>);

/// One mistake. Its text is one line, which begins with its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// A file with or without the line, an argument or a variable. Empty if the message names it.
    place: String,
    /// Where it is in the file; `None` if it is not at one place of a file.
    pub position: Option<Position>,
    /// What is invalid and how to fix it, without the place.
    pub message: String,
}

impl Mistake {
    fn new(place: impl fmt::Display, position: Option<Position>, message: impl fmt::Display) -> Self {
        Self { place: one_line(&place.to_string()), position, message: one_line(&message.to_string()) }
    }

    /// Whether it is about the file called `name` as a whole.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.place == one_line(name)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, message, .. } = self;
        if place.is_empty() { f.write_str(message) } else { write!(f, "{place}: {message}") }
    }
}

impl ConfigErrors {
    /// These mistakes, each made one line.
    #[must_use]
    pub fn new(mistakes: &[String]) -> Self {
        Self(mistakes.iter().map(|mistake| Mistake::new("", None, mistake)).collect())
    }

    /// One mistake at a place: a file, an argument or a variable.
    pub fn one(place: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self(vec![Mistake::new(place, None, message)])
    }

    /// One mistake in a line of the file called `name`.
    pub fn at(name: &str, position: Position, message: impl fmt::Display) -> Self {
        Self(vec![Mistake::new(format_args!("{name}:{}", position.line), Some(position), message)])
    }

    /// One mistake at a character of the file called `name`.
    pub fn at_character(name: &str, position: Position, message: impl fmt::Display) -> Self {
        let Position { line, column } = position;
        Self(vec![Mistake::new(format_args!("{name}:{line}:{column}"), Some(position), message)])
    }

    /// The mistakes, at least one.
    #[must_use]
    pub fn mistakes(&self) -> &[Mistake] {
        &self.0
    }

    /// The mistakes in one line each, at least one.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// The first [`MAX_ERRORS`] of these mistakes. `name` begins the line that counts the others.
    fn first(mut mistakes: Vec<Mistake>, name: &str) -> Result<(), Self> {
        if mistakes.is_empty() {
            return Ok(());
        }
        let more = mistakes.len().saturating_sub(MAX_ERRORS);
        mistakes.truncate(MAX_ERRORS);
        if more > 0 {
            mistakes.push(Mistake::new(name, None, format_args!("{more} more errors; correct these first")));
        }
        Err(Self(mistakes))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// The mistakes found so far, each with its position.
#[derive(Debug, Default)]
pub struct Findings(RefCell<Vec<(Position, String)>>);

impl Findings {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(crate) fn add(&self, position: Position, message: impl fmt::Display) {
        self.0.borrow_mut().push((position, one_line(&message.to_string())));
    }

    /// The mistakes in the order in which they were found.
    pub(crate) fn messages(self) -> Vec<String> {
        self.0.into_inner().into_iter().map(|(_, message)| message).collect()
    }

    /// Whether a value without lines has no mistake.
    ///
    /// # Errors
    /// The first 20 mistakes, in the order in which they were found.
    pub(crate) fn none_or_messages(self) -> Result<(), ConfigErrors> {
        let mistakes = self.messages().iter().map(|message| Mistake::new("", None, message)).collect();
        ConfigErrors::first(mistakes, "")
    }

    /// Whether the file called `name` has no mistake.
    ///
    /// # Errors
    /// The first 20 mistakes in the order of the file.
    pub fn none_or_errors(self, name: &str) -> Result<(), ConfigErrors> {
        let mut found = self.0.into_inner();
        found.sort_by_key(|(position, _)| position.line);
        let mistake = |(position, message): &(Position, String)| {
            Mistake::new(format_args!("{name}:{}", position.line), Some(*position), message)
        };
        ConfigErrors::first(found.iter().map(mistake).collect(), name)
    }
}
