//! Errors of a configuration: one line per mistake, in the order of the file.

use std::cell::RefCell;
use std::fmt;

use super::yaml::one_line;

/// Most errors that are listed. More errors than this usually repeat one mistake.
pub(super) const MAX_ERRORS: usize = 20;

/// Every mistake of a configuration: one line each, in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigErrors(pub(super) Vec<String>);

impl ConfigErrors {
    pub(super) fn one(place: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self(vec![one_line(&format!("{place}: {message}"))])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// The mistakes found so far, each with its line.
#[derive(Debug, Default)]
pub(super) struct Findings(RefCell<Vec<(u64, String)>>);

impl Findings {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn add(&self, line: u64, message: impl fmt::Display) {
        self.0.borrow_mut().push((line, one_line(&message.to_string())));
    }

    /// The mistakes in the order in which they were found.
    pub(super) fn messages(self) -> Vec<String> {
        self.0.into_inner().into_iter().map(|(_, message)| message).collect()
    }

    /// # Errors
    /// The first [`MAX_ERRORS`] mistakes in the order of the file called `name`.
    pub(super) fn none_or_errors(self, name: &str) -> Result<(), ConfigErrors> {
        let mut found = self.0.into_inner();
        if found.is_empty() {
            return Ok(());
        }
        found.sort_by_key(|(line, _)| *line);
        let mut lines: Vec<_> =
            found.iter().map(|(line, message)| format!("{name}:{line}: {message}")).collect();
        let more = lines.len().saturating_sub(MAX_ERRORS);
        lines.truncate(MAX_ERRORS);
        if more > 0 {
            lines.push(format!("{name}: {more} more errors; correct these first"));
        }
        Err(ConfigErrors(lines.iter().map(|line| one_line(line)).collect()))
    }
}
