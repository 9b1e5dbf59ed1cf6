//! Failures of commands.

use std::fmt::Display;

/// Why a command failed: one or more lines. Every error becomes one by `?`, so it has no `Display` itself.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Fails with a message.
pub(crate) fn fail<T>(message: impl Display) -> Result<T, Failure> {
    Err(message.into())
}
