//! Decisions as JSON: the strictest one, its explanation, and those of all policies.
//!
//! Every decision is encoded, so this is written by hand into one buffer. A test compares responses
//! of every kind with `openapi.json`.

use slidegate::headers::Problem;
use slidegate::{Decisions, PolicyDecision, millis_ceil};

use crate::app::explanation;
use crate::problem;

/// The body for one request.
pub(super) fn one(decisions: &Decisions<'_>) -> Vec<u8> {
    let mut json = Json(Vec::with_capacity(problem::USUAL));
    json.answer(decisions);
    json.0
}

/// The body for a batch.
pub(super) fn many<'d>(answers: impl Iterator<Item = &'d Decisions<'d>>) -> Vec<u8> {
    let mut json = Json(br#"{"decisions":["#.to_vec());
    for (at, decisions) in answers.enumerate() {
        if at > 0 {
            json.0.push(b',');
        }
        json.answer(decisions);
    }
    json.0.extend_from_slice(b"]}");
    json.0
}

/// JSON being written. Names of members need no escaping.
struct Json(Vec<u8>);

impl Json {
    /// The first members are those of the strictest decision, or `null` without one.
    fn answer(&mut self, decisions: &Decisions<'_>) {
        let strictest = decisions.strictest();
        let key = strictest.as_ref().map(|one| one.key().to_string());
        self.open();
        self.flag("allowed", decisions.is_allowed());
        match (&strictest, &key) {
            (Some(one), Some(key)) => {
                self.text("policy", one.policy().name());
                self.text("key", key);
                self.text("why", &explanation::of_key(one, key));
                self.number("limit", one.limit());
                self.outcome(one);
            }
            _ => {
                self.number("policy", None);
                self.number("key", None);
                self.text("why", explanation::NOTHING);
                for name in ["limit", "used", "remaining", "cost"] {
                    self.number(name, None);
                }
                self.number("retry_after_ms", 0);
                self.number("reset_after_ms", None);
                self.number("source", None);
            }
        }
        self.name("policies");
        self.0.push(b'[');
        for (at, one) in decisions.iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            // Most requests have one policy, whose key is already text.
            let same = strictest.filter(|strictest| strictest.position() == one.position());
            match (same, &key) {
                (Some(_), Some(key)) => self.policy(&one, key),
                _ => self.policy(&one, &one.key().to_string()),
            }
        }
        self.0.push(b']');
        if let Some(problem) = Problem::of(decisions) {
            self.text("type", problem.type_uri);
            self.text("title", problem.title);
            self.number("status", u64::from(problem.status));
            self.text("detail", &problem.detail);
            self.name("violated-policies");
            self.0.push(b'[');
            for (at, policy) in problem.violated_policies.iter().enumerate() {
                if at > 0 {
                    self.0.push(b',');
                }
                self.string(policy);
            }
            self.0.push(b']');
        }
        self.0.push(b'}');
    }

    /// One policy's decision. `enforced` is false for a shadow policy.
    fn policy(&mut self, one: &PolicyDecision<'_>, key: &str) {
        self.open();
        self.text("policy", one.policy().name());
        self.text("key", key);
        self.flag("allowed", one.is_allowed());
        self.flag("enforced", one.policy().is_enforced());
        self.number("limit", one.limit());
        self.number("window_ms", millis_ceil(one.quota().window()));
        self.outcome(one);
        self.0.push(b'}');
    }

    /// The numbers, the source, and the reason of a denial.
    fn outcome(&mut self, one: &PolicyDecision<'_>) {
        self.number("used", one.used());
        self.number("remaining", one.remaining());
        self.number("cost", one.cost());
        self.number("retry_after_ms", one.retry_after().map(millis_ceil));
        self.number("reset_after_ms", millis_ceil(one.reset_after()));
        self.text("source", one.source().name());
        if let Some(reason) = one.reason() {
            self.text("reason", reason.name());
        }
        if let Some(block) = one.block() {
            self.name("block");
            self.open();
            self.text_or_null("until", block.ends_at().map(explanation::time).as_deref());
            self.text_or_null("by", block.blocked_by());
            self.0.push(b'}');
        }
    }

    fn open(&mut self) {
        self.0.push(b'{');
    }

    fn name(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.string(text);
    }

    fn text_or_null(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(name, text),
            None => self.number(name, None),
        }
    }

    /// `null` for `None`.
    fn number(&mut self, name: &str, number: impl Into<Option<u64>>) {
        self.name(name);
        match number.into() {
            Some(number) => self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            None => self.0.extend_from_slice(b"null"),
        }
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.name(name);
        self.0.extend_from_slice(if flag { b"true" } else { b"false" });
    }

    fn string(&mut self, text: &str) {
        // Without a branch per byte, this compiles to vector instructions.
        let is_plain = |plain, byte: u8| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\');
        if text.bytes().fold(true, is_plain) {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else {
            serde_json::to_writer(&mut self.0, text).expect("a text has a JSON form");
        }
    }
}
