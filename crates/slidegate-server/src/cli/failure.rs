//! Failures of commands.

use std::fmt::Display;

/// Why a command failed: one or more lines. `?` converts every error to it, so it has no `Display`.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn fail<T>(message: impl Display) -> Result<T, Failure> {
    Err(message.into())
}
