//! The outcome of a diff, as text, Markdown for a pull request, and JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::text::TextStyle;
use crate::each::rfc3339;
use crate::outcome::LogOutcome;
use crate::share::{Share, percent};
use crate::stats::LogStats;

/// What changes if one set of policies replaces another.
#[derive(Debug, Clone)]
pub struct DiffOutcome {
    pub(crate) log: LogStats,
    /// Requests decided.
    pub requests: u64,
    /// Requests that the old set denies.
    pub denied_old: u64,
    /// Requests that the new set denies.
    pub denied_new: u64,
    /// Requests that the old set allows and the new one denies.
    pub newly_denied: u64,
    /// Requests that the old set denies and the new one allows.
    pub newly_allowed: u64,
    /// Every policy of either set.
    pub policies: Vec<DiffPolicy>,
    /// The keys with the most newly denied requests.
    pub newly_denied_keys: Vec<ChangedKey>,
    /// The keys with the most newly allowed requests.
    pub newly_allowed_keys: Vec<ChangedKey>,
    /// How many keys have newly denied requests.
    pub newly_denied_keys_in_all: u64,
    /// How many keys have newly allowed requests.
    pub newly_allowed_keys_in_all: u64,
    /// Changed requests of keys that are not listed for want of memory.
    pub changes_of_keys_not_kept: u64,
    /// Recorded requests under a policy that one of the sets does not have: they are not compared.
    pub unknown_policy: u64,
    /// Keys that a store dropped although they still counted: above 0, the figures are too low.
    pub dropped_keys: u64,
    /// What reservations mean for the figures, in sentences.
    pub reservation_notes: Vec<String>,
}

/// A policy in the old and the new set.
#[derive(Debug, Clone, Serialize)]
pub struct DiffPolicy {
    /// Its name.
    pub name: String,
    /// In the old set; `None` if the new one adds it.
    pub old: Option<DiffPolicySide>,
    /// In the new set; `None` if it is removed.
    pub new: Option<DiffPolicySide>,
    /// Newly denied requests that this policy denies.
    pub newly_denied: u64,
    /// Newly allowed requests that this policy denied.
    pub newly_allowed: u64,
}

/// A policy in one of the sets.
#[derive(Debug, Clone, Serialize)]
pub struct DiffPolicySide {
    /// The quota, such as `100/1m`.
    pub quota: String,
    /// The algorithm.
    pub algorithm: String,
    /// Whether its denials deny the request.
    pub enforced: bool,
    /// Requests that it applies to.
    pub seen: u64,
    /// Requests that it denies, or would deny as a shadow.
    pub denied: u64,
    /// Different keys among those.
    pub denied_keys: u64,
}

/// A key whose requests are decided differently.
#[derive(Debug, Clone, Serialize)]
pub struct ChangedKey {
    /// The policy that denies, or denied.
    pub policy: String,
    /// The key, redacted as its policy requires.
    pub key: String,
    /// The changed requests.
    pub requests: u64,
    /// The time of the first, in microseconds since the Unix epoch.
    #[serde(serialize_with = "as_rfc3339", rename = "first")]
    pub first_us: u64,
    /// The time of the last.
    #[serde(serialize_with = "as_rfc3339", rename = "last")]
    pub last_us: u64,
    /// Why the first one is, or was, denied.
    pub why: String,
}

/// The form that is written as JSON.
#[derive(Serialize)]
struct DiffJson<'a> {
    schema: u32,
    old: &'a str,
    new: &'a str,
    log: LogOutcome,
    requests: u64,
    denied_old: u64,
    denied_new: u64,
    newly_denied: u64,
    newly_allowed: u64,
    newly_denied_keys_in_all: u64,
    newly_allowed_keys_in_all: u64,
    changes_of_keys_not_kept: u64,
    unknown_policy: u64,
    dropped_keys: u64,
    reservation_notes: &'a [String],
    fail_above: Option<String>,
    failed: bool,
    policies: &'a [DiffPolicy],
    newly_denied_keys: &'a [ChangedKey],
    newly_allowed_keys: &'a [ChangedKey],
}

/// An outcome with the names of the sets and the threshold.
#[derive(Debug, Clone, Copy)]
pub struct DiffReport<'a> {
    /// The outcome.
    pub outcome: &'a DiffOutcome,
    /// What the old set is called: its file.
    pub old: &'a str,
    /// What the new set is called.
    pub new: &'a str,
    /// The greatest share of newly denied requests that is accepted.
    pub fail_above: Option<Share>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn as_rfc3339<S: serde::Serializer>(time_us: &u64, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&rfc3339(*time_us))
}

impl DiffReport<'_> {
    /// Whether more is newly denied than is accepted.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let outcome = self.outcome;
        self.fail_above.is_some_and(|share| share.is_exceeded_by(outcome.newly_denied, outcome.requests))
    }

    /// Writes it as indented JSON. docs/replay.md documents the fields.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        let outcome = self.outcome;
        let json = DiffJson {
            schema: 1,
            old: self.old,
            new: self.new,
            log: LogOutcome::of(&outcome.log),
            requests: outcome.requests,
            denied_old: outcome.denied_old,
            denied_new: outcome.denied_new,
            newly_denied: outcome.newly_denied,
            newly_allowed: outcome.newly_allowed,
            newly_denied_keys_in_all: outcome.newly_denied_keys_in_all,
            newly_allowed_keys_in_all: outcome.newly_allowed_keys_in_all,
            changes_of_keys_not_kept: outcome.changes_of_keys_not_kept,
            unknown_policy: outcome.unknown_policy,
            dropped_keys: outcome.dropped_keys,
            reservation_notes: &outcome.reservation_notes,
            fail_above: self.fail_above.map(|share| share.to_string()),
            failed: self.has_failed(),
            policies: &outcome.policies,
            newly_denied_keys: &outcome.newly_denied_keys,
            newly_allowed_keys: &outcome.newly_allowed_keys,
        };
        serde_json::to_writer_pretty(&mut out, &json)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// As text for a terminal.
    #[must_use]
    pub fn text(self, style: TextStyle) -> String {
        let Self { outcome, old, new, .. } = self;
        let mut lines = vec![style.bold(&format!("{old} -> {new}")), self.log_line()];
        let log = LogOutcome::of(&outcome.log);
        lines.extend(log.malformed_lines.iter().map(|line| format!("  {line}")));
        lines.extend(log.notes);
        lines.push(format!(
            "denied {} -> {}  newly denied {} ({})  newly allowed {} ({})",
            outcome.denied_old,
            outcome.denied_new,
            outcome.newly_denied,
            percent(outcome.newly_denied, outcome.requests),
            outcome.newly_allowed,
            percent(outcome.newly_allowed, outcome.requests)
        ));
        for policy in &outcome.policies {
            lines.push(format!("\n{}", style.bold(&policy.name)));
            for (name, side) in [("old", &policy.old), ("new", &policy.new)] {
                let side =
                    side.as_ref().map_or_else(|| "no such policy".to_owned(), DiffPolicySide::in_words);
                lines.push(format!("  {name}  {side}"));
            }
            let (denied, allowed) = (policy.newly_denied, policy.newly_allowed);
            lines.push(format!("  newly denied {denied}  newly allowed {allowed}"));
        }
        for (name, keys, in_all) in self.key_lists() {
            if keys.is_empty() {
                continue;
            }
            lines.push(format!("\n{}", style.bold(&format!("Keys with {name} requests"))));
            for key in keys {
                let (first, last) = (rfc3339(key.first_us), rfc3339(key.last_us));
                lines.push(format!("  {:>8} x {}: {}  {first} to {last}", key.requests, key.policy, key.key));
                lines.push(format!("             first: {}", key.why));
            }
            if in_all > keys.len() as u64 {
                lines.push(format!("  ... and {} more keys", in_all - keys.len() as u64));
            }
        }
        lines.extend(self.warnings().into_iter().map(|warning| format!("\n{warning}")));
        lines.extend(self.verdict().map(|verdict| format!("\n{verdict}")));
        lines.join("\n")
    }

    /// As Markdown, for a comment of a pull request.
    #[must_use]
    pub fn markdown(self) -> String {
        let Self { outcome, old, new, .. } = self;
        let mut lines = vec![
            format!("### Rate limits: {} to {}", code(old), code(new)),
            String::new(),
            format!("{}.", self.log_line()),
            String::new(),
            "| | requests | share |".to_owned(),
            "|---|--:|--:|".to_owned(),
        ];
        for (name, count) in [
            ("denied by the old policies", outcome.denied_old),
            ("denied by the new policies", outcome.denied_new),
            ("**newly denied**", outcome.newly_denied),
            ("**newly allowed**", outcome.newly_allowed),
        ] {
            lines.push(format!("| {name} | {count} | {} |", percent(count, outcome.requests)));
        }
        lines.push(String::new());
        lines.push("| policy | old | new | denied | newly denied | newly allowed |".to_owned());
        lines.push("|---|---|---|--:|--:|--:|".to_owned());
        for policy in &outcome.policies {
            let quota = |side: &Option<DiffPolicySide>| {
                side.as_ref().map_or_else(|| "-".to_owned(), DiffPolicySide::quota_in_words)
            };
            let denied = |side: &Option<DiffPolicySide>| side.as_ref().map_or(0, |side| side.denied);
            lines.push(format!(
                "| {} | {} | {} | {} -> {} | {} | {} |",
                code(&policy.name),
                quota(&policy.old),
                quota(&policy.new),
                denied(&policy.old),
                denied(&policy.new),
                policy.newly_denied,
                policy.newly_allowed
            ));
        }
        for (name, keys, in_all) in self.key_lists() {
            if keys.is_empty() {
                continue;
            }
            lines.push(format!("\n<details><summary>{in_all} keys with {name} requests</summary>\n"));
            lines.push("| policy | key | requests | first | last |".to_owned());
            lines.push("|---|---|--:|---|---|".to_owned());
            for key in keys {
                lines.push(format!(
                    "| {} | {} | {} | {} | {} |",
                    code(&key.policy),
                    code(&key.key),
                    key.requests,
                    rfc3339(key.first_us),
                    rfc3339(key.last_us)
                ));
            }
            if in_all > keys.len() as u64 {
                lines.push(format!("\n... and {} more keys.", in_all - keys.len() as u64));
            }
            lines.push("\n</details>".to_owned());
        }
        lines.extend(self.warnings().into_iter().map(|warning| format!("\n> {warning}")));
        lines.extend(LogOutcome::of(&outcome.log).notes.iter().map(|note| format!("\n{}", code(note))));
        lines.extend(self.verdict().map(|verdict| format!("\n{verdict}")));
        lines.push(
            "\nA replay cannot know of retries after a denial, nor of clients that slow down when they are denied."
                .to_owned(),
        );
        lines.join("\n")
    }

    fn key_lists(&self) -> [(&'static str, &[ChangedKey], u64); 2] {
        let outcome = self.outcome;
        [
            ("newly denied", &outcome.newly_denied_keys, outcome.newly_denied_keys_in_all),
            ("newly allowed", &outcome.newly_allowed_keys, outcome.newly_allowed_keys_in_all),
        ]
    }

    fn log_line(&self) -> String {
        let log = LogOutcome::of(&self.outcome.log);
        let mut line = format!("{} lines, {} requests", log.lines, log.requests);
        if let (Some(first), Some(last)) = (log.first, log.last) {
            line.push_str(&format!(" from {first} to {last}"));
        }
        if log.malformed > 0 {
            line.push_str(&format!("; {} malformed lines were left out", log.malformed));
        }
        line
    }

    fn warnings(&self) -> Vec<String> {
        let outcome = self.outcome;
        let mut warnings = Vec::new();
        if outcome.dropped_keys > 0 {
            warnings.push(format!(
                "The memory stores were full and dropped {} keys that still counted: some denials are missing; raise \
                 store.memory.max_keys",
                outcome.dropped_keys
            ));
        }
        if outcome.unknown_policy > 0 {
            warnings.push(format!(
                "{} recorded requests are under a policy that is not in both files: they are not compared",
                outcome.unknown_policy
            ));
        }
        warnings.extend(outcome.reservation_notes.iter().cloned());
        if outcome.changes_of_keys_not_kept > 0 {
            let requests = outcome.changes_of_keys_not_kept;
            warnings.push(format!("{requests} changed requests are of keys that were not kept"));
        }
        warnings
    }

    fn verdict(&self) -> Option<String> {
        let share = self.fail_above?;
        let newly = percent(self.outcome.newly_denied, self.outcome.requests);
        Some(if self.has_failed() {
            format!("Failed: {newly} of the requests are newly denied, more than {share}.")
        } else {
            format!("Passed: {newly} of the requests are newly denied, at most {share} may be.")
        })
    }
}

impl DiffPolicySide {
    fn quota_in_words(&self) -> String {
        let shadow = if self.enforced { "" } else { ", shadow" };
        format!("{} {}{shadow}", self.quota, self.algorithm)
    }

    fn in_words(&self) -> String {
        let would = if self.enforced { "denied" } else { "would have denied" };
        format!(
            "{}: seen {}  {would} {} ({})  of {} keys",
            self.quota_in_words(),
            self.seen,
            self.denied,
            percent(self.denied, self.seen),
            self.denied_keys
        )
    }
}

/// A text as code in a cell of a Markdown table, where nothing of it is markup.
///
/// Bars would end the cell. Back quotes would end the code, so they become typographic ones.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "\u{2bb}").replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's name must not become a link or a picture in a pull request.
    #[test]
    fn keys_are_code_in_markdown() {
        assert_eq!(code("alice"), "`alice`");
        assert_eq!(code("`![x](https://evil.example/)`"), "`\u{2bb}![x](https://evil.example/)\u{2bb}`");
        assert_eq!(code("a|b"), "`a\\|b`");
    }
}
