//! Errors: one line per mistake, in the order of the file.

use std::cell::RefCell;
use std::fmt;

use crate::text::one_line;
use crate::yaml::Position;

/// Most errors that are listed. More errors than this usually repeat one mistake.
const MAX_ERRORS: usize = 20;

/// Every mistake in a config: one line each, in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Mistake>);

/// One mistake, displayed as one line that begins with its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistake {
    /// A file, with or without a line, an argument or a variable. Empty if the message names it.
    place: String,
    /// The position in the file, if it is about one.
    pub position: Option<Position>,
    /// What is invalid and how to fix it, without the place.
    pub message: String,
}

impl Mistake {
    fn new(place: impl fmt::Display, position: Option<Position>, message: impl fmt::Display) -> Self {
        Self { place: one_line(&place.to_string()), position, message: one_line(&message.to_string()) }
    }

    /// Whether it is about the whole file called `name`.
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
    /// These mistakes, without a place.
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

    /// The mistakes. There is at least one.
    #[must_use]
    pub fn mistakes(&self) -> &[Mistake] {
        &self.0
    }

    /// The mistakes, in one line each. There is at least one.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// The first [`MAX_ERRORS`] mistakes. A last line, which begins with `name`, counts the others.
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

    /// The mistakes without positions, in the order in which they were found.
    #[must_use]
    pub fn messages(self) -> Vec<String> {
        self.0.into_inner().into_iter().map(|(_, message)| message).collect()
    }

    /// Checks that there is no mistake. `name` is that of the file; `None` if values have no lines.
    ///
    /// # Errors
    /// The first 20 mistakes in the order of the file.
    pub(crate) fn none_or_errors(self, name: Option<&str>) -> Result<(), ConfigErrors> {
        let mut found = self.0.into_inner();
        found.sort_by_key(|(position, _)| position.line);
        let mistake = |(position, message): &(Position, String)| match name {
            Some(name) => Mistake::new(format_args!("{name}:{}", position.line), Some(*position), message),
            None => Mistake::new("", None, message),
        };
        ConfigErrors::first(found.iter().map(mistake).collect(), name.unwrap_or_default())
    }
}
