//! The outcome of a diff as text, Markdown for a pull request, and JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::str::FromStr;

use serde::Serialize;

use super::text::{TextStyle, left_out, lines_and_requests, top_lines};
use crate::each::rfc3339;
use crate::evidence::Missing;
use crate::outcome::LogOutcome;
use crate::share::{Share, percent, percent_beside};
use crate::wording::count_of;

/// The two kinds of changed verdicts.
const DENIED: &str = "newly denied";
const ALLOWED: &str = "newly allowed";

/// The changes when one set of policies replaces another.
#[derive(Debug, Clone, Serialize)]
pub struct DiffOutcome {
    /// The logs read.
    pub log: LogOutcome,
    /// Reasons why figures prove nothing.
    #[serde(skip)]
    pub missing: Missing,
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
    /// Number of keys with newly denied requests.
    pub newly_denied_keys_in_all: u64,
    /// Number of keys with newly allowed requests.
    pub newly_allowed_keys_in_all: u64,
    /// Changed requests of keys not listed for lack of memory.
    pub changes_of_keys_not_kept: u64,
    /// Keys that a store evicted while they still counted: above 0, there are too many denials.
    pub dropped_keys: u64,
}

/// A policy in the old and the new set.
#[derive(Debug, Clone, Serialize)]
pub struct DiffPolicy {
    /// Its name.
    pub name: String,
    /// Whether any setting differs between the two sets.
    #[serde(rename = "changed")]
    pub is_changed: bool,
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

/// A key with changed verdicts.
#[derive(Debug, Clone, Serialize)]
pub struct ChangedKey {
    /// The policy that denies, or denied.
    pub policy: String,
    /// The key, redacted as its policy requires.
    pub key: String,
    /// The changed requests.
    pub requests: u64,
    /// Time of the first one, in microseconds since the Unix epoch.
    #[serde(serialize_with = "as_rfc3339", rename = "first")]
    pub first_us: u64,
    /// Time of the last one.
    #[serde(serialize_with = "as_rfc3339", rename = "last")]
    pub last_us: u64,
    /// Why the first one is, or was, denied.
    pub why: String,
}

/// The JSON form.
#[derive(Serialize)]
struct DiffJson<'a> {
    schema: u32,
    old: &'a str,
    new: &'a str,
    #[serde(flatten)]
    outcome: &'a DiffOutcome,
    errors: Vec<String>,
    warnings: Vec<String>,
    fail_above: Option<String>,
    thresholds: Vec<ThresholdJson<'a>>,
    failed: bool,
}

/// A threshold and the value compared with it.
#[derive(Serialize)]
struct ThresholdJson<'a> {
    policy: Option<&'a str>,
    change: &'static str,
    requests: u64,
    of_requests: u64,
    at_most: String,
    exceeded: bool,
}

/// Maximum share of requests with changed verdicts: of all requests, or of those under one policy. Written as
/// `0.1%` or `per-user=1%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    /// The policy that denies, or denied; `None` for all of them.
    pub policy: Option<String>,
    /// The maximum accepted share.
    pub at_most: Share,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (policy, share) = match text.rsplit_once('=') {
            Some((policy, share)) => (Some(policy.to_owned()), share),
            None => (None, text),
        };
        Ok(Self { policy, at_most: share.parse()? })
    }
}

/// What a diff may change and still be accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// For newly denied requests.
    pub newly_denied: Vec<Threshold>,
    /// For newly allowed requests.
    pub newly_allowed: Vec<Threshold>,
    /// Whether policies that judged nothing are accepted.
    pub allow_empty: bool,
}

impl Thresholds {
    fn is_empty(&self) -> bool {
        self.newly_denied.is_empty() && self.newly_allowed.is_empty()
    }

    /// Checks that thresholds name only these policies.
    ///
    /// # Errors
    /// One line: a threshold names another policy.
    pub fn check<'p>(&self, policies: impl Iterator<Item = &'p str>) -> Result<(), String> {
        let names: BTreeSet<&str> = policies.collect();
        let thresholds = self.newly_denied.iter().chain(&self.newly_allowed);
        let unknown = thresholds.filter_map(|one| one.policy.as_deref()).find(|name| !names.contains(name));
        unknown.map_or(Ok(()), |name| {
            let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Err(format!("invalid threshold: unknown policy `{name}`: must be one of {names}"))
        })
    }
}

/// A threshold and the value compared with it.
#[derive(Clone, Copy)]
struct Judged<'a> {
    threshold: &'a Threshold,
    change: &'static str,
    part: u64,
    whole: u64,
}

impl Judged<'_> {
    fn is_exceeded(&self) -> bool {
        self.threshold.at_most.is_exceeded_by(self.part, self.whole)
    }
}

/// An outcome with the sets' names and the thresholds.
#[derive(Debug, Clone, Copy)]
pub struct DiffReport<'a> {
    /// The outcome.
    pub outcome: &'a DiffOutcome,
    /// The old set's name: its file.
    pub old: &'a str,
    /// The new set's name: its file.
    pub new: &'a str,
    /// The accepted changes.
    pub thresholds: &'a Thresholds,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn as_rfc3339<S: serde::Serializer>(time_us: &u64, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&rfc3339(*time_us))
}

impl DiffReport<'_> {
    /// Whether any threshold is exceeded.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.judged().any(|one| one.is_exceeded())
    }

    /// Why this log cannot judge the change, one line each: policies that lack data and, if there are
    /// thresholds, changed policies that applied to no request. Empty if that is accepted.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        if self.thresholds.allow_empty { Vec::new() } else { self.not_judged() }
    }

    fn not_judged(&self) -> Vec<String> {
        let outcome = self.outcome;
        let mut errors = outcome.missing.errors.clone();
        if self.thresholds.is_empty() {
            return errors;
        }
        for policy in outcome.policies.iter().filter(|policy| policy.is_changed) {
            for (file, side) in [(self.old, &policy.old), (self.new, &policy.new)] {
                if side.as_ref().is_some_and(|side| side.seen == 0) {
                    errors.push(format!(
                        "policy `{}` differs, and as in {file} it applied to none of {}: this log cannot \
                         judge the change; give one with such requests, or accept this with --allow-empty",
                        policy.name,
                        count_of(outcome.requests, "request", "requests")
                    ));
                }
            }
        }
        errors
    }

    fn warnings_at_top(&self) -> Vec<String> {
        let accepted = if self.thresholds.allow_empty { self.not_judged() } else { Vec::new() };
        accepted.into_iter().chain(self.outcome.missing.warnings.iter().cloned()).collect()
    }

    /// Each threshold with its requests.
    fn judged(&self) -> impl Iterator<Item = Judged<'_>> {
        let outcome = self.outcome;
        let of = move |change, threshold: &'_ Threshold| {
            let named = threshold.policy.as_deref();
            let policy = outcome.policies.iter().find(|policy| Some(policy.name.as_str()) == named);
            let seen = |side: &Option<DiffPolicySide>| side.as_ref().map_or(0, |side| side.seen);
            match (named, change) {
                (None, DENIED) => (outcome.newly_denied, outcome.requests),
                (None, _) => (outcome.newly_allowed, outcome.requests),
                (_, DENIED) => policy.map_or((0, 0), |one| (one.newly_denied, seen(&one.new))),
                (_, _) => policy.map_or((0, 0), |one| (one.newly_allowed, seen(&one.old))),
            }
        };
        let denied = self.thresholds.newly_denied.iter().map(|one| (DENIED, one));
        let allowed = self.thresholds.newly_allowed.iter().map(|one| (ALLOWED, one));
        denied.chain(allowed).map(move |(change, threshold)| {
            let (part, whole) = of(change, threshold);
            Judged { threshold, change, part, whole }
        })
    }

    /// Writes it as indented JSON. docs/replay-json.md documents the fields.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        let of_all = self.thresholds.newly_denied.iter().find(|one| one.policy.is_none());
        let json = DiffJson {
            schema: 1,
            old: self.old,
            new: self.new,
            outcome: self.outcome,
            errors: self.errors(),
            warnings: self.warnings_at_top(),
            fail_above: of_all.map(|one| one.at_most.to_string()),
            thresholds: self.judged().map(ThresholdJson::of).collect(),
            failed: self.has_failed(),
        };
        serde_json::to_writer_pretty(&mut out, &json)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Formats the report for a terminal.
    #[must_use]
    pub fn text(self, style: TextStyle) -> String {
        let Self { outcome, old, new, .. } = self;
        let mut lines = vec![style.bold(&format!("{old} -> {new}"))];
        lines.extend(top_lines(&self.errors(), &self.warnings_at_top()));
        lines.push(self.log_line());
        lines.extend(outcome.log.malformed_lines.iter().map(|line| format!("  {line}")));
        lines.extend(outcome.log.notes.iter().cloned());
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
        lines.extend(self.verdicts().into_iter().map(|verdict| format!("\n{verdict}")));
        lines.join("\n")
    }

    /// Formats the report as Markdown, for a pull request comment.
    #[must_use]
    pub fn markdown(self) -> String {
        let Self { outcome, old, new, .. } = self;
        let mut lines = vec![format!("### Rate limits: {} to {}", code(old), code(new)), String::new()];
        let top = top_lines(&self.errors(), &self.warnings_at_top());
        lines.extend(top.iter().map(|line| format!("> {}\n", code(line))));
        lines.extend([
            format!("{}.", self.log_line()),
            String::new(),
            "| | requests | share |".to_owned(),
            "|---|--:|--:|".to_owned(),
        ]);
        for (name, count) in [
            ("denied by the old policies", outcome.denied_old),
            ("denied by the new policies", outcome.denied_new),
            ("**newly denied**", outcome.newly_denied),
            ("**newly allowed**", outcome.newly_allowed),
        ] {
            lines.push(format!("| {name} | {count} | {} |", percent(count, outcome.requests)));
        }
        lines.push(String::new());
        self.markdown_policies(&mut lines);
        self.markdown_keys(&mut lines);
        lines.extend(self.warnings().into_iter().map(|warning| format!("\n> {warning}")));
        lines.extend(outcome.log.notes.iter().map(|note| format!("\n{}", code(note))));
        lines.extend(self.verdicts().into_iter().map(|verdict| format!("\n{verdict}")));
        lines.push(
            "\nA replay cannot know of retries after a denial, nor of clients that slow down when they are denied."
                .to_owned(),
        );
        lines.join("\n")
    }

    fn markdown_policies(&self, lines: &mut Vec<String>) {
        lines.push("| policy | old | new | denied | newly denied | newly allowed |".to_owned());
        lines.push("|---|---|---|--:|--:|--:|".to_owned());
        for policy in &self.outcome.policies {
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
    }

    fn markdown_keys(&self, lines: &mut Vec<String>) {
        for (name, keys, in_all) in self.key_lists() {
            if keys.is_empty() {
                continue;
            }
            lines.push(format!(
                "\n<details><summary>{} with {name} requests</summary>\n",
                count_of(in_all, "key", "keys")
            ));
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
    }

    fn key_lists(&self) -> [(&'static str, &[ChangedKey], u64); 2] {
        let outcome = self.outcome;
        [
            (DENIED, &outcome.newly_denied_keys, outcome.newly_denied_keys_in_all),
            (ALLOWED, &outcome.newly_allowed_keys, outcome.newly_allowed_keys_in_all),
        ]
    }

    fn log_line(&self) -> String {
        let log = &self.outcome.log;
        let mut line = lines_and_requests(log);
        if let (Some(first), Some(last)) = (&log.first, &log.last) {
            line.push_str(&format!(" from {first} to {last}"));
        }
        if log.malformed > 0 {
            line.push_str(&format!("; {}", left_out(log.malformed)));
        }
        line
    }

    fn warnings(&self) -> Vec<String> {
        let outcome = self.outcome;
        let mut warnings = Vec::new();
        if outcome.dropped_keys > 0 {
            warnings.push(format!(
                "The memory stores were full and dropped {} keys that still counted: some denials are too many; raise \
                 store.memory.max_keys",
                outcome.dropped_keys
            ));
        }
        if outcome.changes_of_keys_not_kept > 0 {
            warnings.push(count_of(
                outcome.changes_of_keys_not_kept,
                "changed request is of a key that was not kept",
                "changed requests are of keys that were not kept",
            ));
        }
        warnings
    }

    /// The result of each threshold, in a sentence. Without evidence, none passes.
    fn verdicts(&self) -> Vec<String> {
        let has_evidence = self.errors().is_empty();
        let kept = self.judged().filter(|one| has_evidence || one.is_exceeded());
        let mut verdicts: Vec<String> = kept.map(|one| one.in_words()).collect();
        if !has_evidence && !self.thresholds.is_empty() {
            verdicts
                .push("Not passed: this log cannot judge the change, see the errors at the top.".to_owned());
        }
        verdicts
    }
}

impl<'a> ThresholdJson<'a> {
    fn of(one: Judged<'a>) -> Self {
        Self {
            policy: one.threshold.policy.as_deref(),
            change: one.change,
            requests: one.part,
            of_requests: one.whole,
            at_most: one.threshold.at_most.to_string(),
            exceeded: one.is_exceeded(),
        }
    }
}

impl Judged<'_> {
    fn in_words(&self) -> String {
        let Self { threshold: Threshold { policy, at_most }, change, part, whole } = self;
        let share = percent_beside(*part, *whole, *at_most);
        let under = policy.as_ref().map_or_else(String::new, |name| format!(" under {}", code(name)));
        if self.is_exceeded() {
            format!("Failed: {share} of the requests{under} are {change}, more than {at_most}.")
        } else {
            format!("Passed: {share} of the requests{under} are {change}, at most {at_most} may be.")
        }
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

/// Formats text as code in a Markdown table cell, without any markup.
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
