//! Wording of results: the reporting program supplies the texts for policies, keys and reasons, and
//! decides which keys may be shown.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use slidegate::{Policy, PolicyDecision};

/// Texts for policies, keys and decisions.
pub trait Wording: fmt::Debug + Send + Sync {
    /// Describes a policy in one line.
    fn policy(&self, policy: &Policy) -> String;

    /// The key of a decision, redacted as its policy requires.
    fn key(&self, decision: &PolicyDecision<'_>) -> String;

    /// Explains the decision in one line, with the key redacted; `None` if no enforced policy
    /// applied.
    fn why(&self, decision: Option<&PolicyDecision<'_>>) -> String;
}

/// Plain wording: unredacted keys and bare figures.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainWording;

impl Wording for PlainWording {
    fn policy(&self, policy: &Policy) -> String {
        format!("{}: {} ({})", policy.name(), policy.quota(), policy.quota().algorithm())
    }

    fn key(&self, decision: &PolicyDecision<'_>) -> String {
        decision.key().to_string()
    }

    fn why(&self, decision: Option<&PolicyDecision<'_>>) -> String {
        let Some(decision) = decision else { return "no enforced policy applies".to_owned() };
        format!(
            "{}: `{}` has used {} of {}",
            decision.policy().name(),
            decision.key(),
            decision.decision().used(),
            decision.decision().limit()
        )
    }
}

/// A number with digits grouped: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, in singular or plural.
pub(crate) fn count_of(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// A program's wording, with texts made harmless for display.
#[derive(Debug, Clone)]
pub(crate) struct Words(pub(crate) Arc<dyn Wording>);

impl Words {
    pub(crate) fn policy(&self, policy: &Policy) -> String {
        inert(self.0.policy(policy))
    }

    pub(crate) fn key(&self, decision: &PolicyDecision<'_>) -> String {
        inert(self.0.key(decision))
    }

    pub(crate) fn why(&self, decision: Option<&PolicyDecision<'_>>) -> String {
        inert(self.0.why(decision))
    }
}

/// Replaces characters that change how others are shown: clients choose keys, and a right-to-left
/// mark could reverse the line of a report.
fn inert(text: String) -> String {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            write!(shown, "\\u{{{:x}}}", u32::from(c)).expect("writing to a String cannot fail");
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Direction marks, joiners, line separators and tags: invisible characters.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's name must not reverse the line that accuses it.
    #[test]
    fn marks_that_change_how_text_is_shown_are_written_as_their_number() {
        for (text, shown) in [
            ("zo\u{eb}", "zo\u{eb}"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("\u{1b}[31m", "\\u{1b}[31m"),
            ("plain, `text`", "plain, `text`"),
        ] {
            assert_eq!(inert(text.to_owned()), shown);
        }
    }
}
