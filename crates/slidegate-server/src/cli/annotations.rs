//! Findings of `validate` for programs: as JSON or as GitHub Actions workflow commands.

use std::fmt;

use lined_config::{ConfigErrors, Mistake};
use serde::Serialize;

/// One error or warning.
#[derive(Debug, Serialize)]
pub(super) struct Annotation {
    severity: Severity,
    /// The config file. `None`: elsewhere; the message says where.
    file: Option<String>,
    /// From 1. `None` for the whole file.
    line: Option<u64>,
    /// In characters, from 1.
    column: Option<u64>,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Error,
    Warning,
}

impl Annotation {
    /// An annotation without a place in the file.
    pub(super) fn whole_file(severity: Severity, file: Option<&str>, message: &str) -> Self {
        let message = message.to_owned();
        Self { severity, file: file.map(str::to_owned), line: None, column: None, message }
    }

    /// The errors of a configuration whose file is `file`.
    pub(super) fn of_errors(errors: &ConfigErrors, file: Option<&str>) -> Vec<Self> {
        errors.mistakes().iter().map(|mistake| Self::of_mistake(mistake, file)).collect()
    }

    fn of_mistake(mistake: &Mistake, file: Option<&str>) -> Self {
        // Errors outside the file name their place in the text.
        let is_in_file = mistake.position.is_some() || file.is_some_and(|file| mistake.is_of(file));
        Self {
            severity: Severity::Error,
            file: file.filter(|_| is_in_file).map(str::to_owned),
            line: mistake.position.map(|position| position.line),
            column: mistake.position.map(|position| position.column),
            message: if is_in_file { mistake.message.clone() } else { mistake.to_string() },
        }
    }

    /// The format that GitHub Actions reads from a step's output: `::error file=...,line=...,col=...::...`.
    pub(super) fn workflow_command(&self) -> String {
        let Self { severity, file, line, column, message } = self;
        let name = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let property = |name: &str, value: Option<&dyn fmt::Display>| {
            value.map(|value| format!("{name}={}", escaped_property(&value.to_string())))
        };
        let properties = [
            property("file", file.as_ref().map(|file| file as _)),
            property("line", line.as_ref().map(|line| line as _)),
            property("col", column.as_ref().map(|column| column as _)),
        ];
        let properties = properties.into_iter().flatten().collect::<Vec<_>>().join(",");
        let separator = if properties.is_empty() { "" } else { " " };
        format!("::{name}{separator}{properties}::{}", escaped(message))
    }
}

/// Escapes a message: a workflow command ends at the end of the line.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property: it ends at a colon or comma.
fn escaped_property(text: &str) -> String {
    escaped(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A truncated message hides the rest, and its second line would be another command.
    #[test]
    fn a_workflow_command_is_one_line_whatever_the_file_and_the_message_are() {
        let annotation = Annotation {
            severity: Severity::Warning,
            file: Some("a,b:c\n100%.yaml".to_owned()),
            line: Some(3),
            column: Some(5),
            message: "100%: one,\r\n::error::two".to_owned(),
        };
        assert_eq!(
            annotation.workflow_command(),
            "::warning file=a%2Cb%3Ac%0A100%25.yaml,line=3,col=5::100%25: one,%0D%0A::error::two"
        );
        let everywhere = Annotation::whole_file(Severity::Error, None, "nothing");
        assert_eq!(everywhere.workflow_command(), "::error::nothing");
    }
}
