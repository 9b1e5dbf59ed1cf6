//! Texts of a config within errors and logs.

use std::fmt;

use serde_json::Value as Json;

/// A text within an error, shortened to a readable length.
#[derive(Debug)]
pub struct Excerpt<'t>(pub &'t str);

impl Excerpt<'_> {
    /// Maximum number of characters shown.
    const MAX_CHARS: usize = 60;
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(Self::MAX_CHARS) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// A text quoted for YAML.
#[must_use]
pub fn quoted(text: &str) -> String {
    // JSON's quoted text is YAML's.
    Json::from(text).to_string()
}

/// Puts a text on one line. Control characters and line separators are escaped, so that a config
/// cannot forge log lines or control a terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    line
}
