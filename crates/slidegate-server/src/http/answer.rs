//! Decisions as JSON: the strictest one, its explanation, and those of all policies.
//!
//! Every decision is encoded, so this is written by hand into one buffer. A test compares responses
//! of every kind with `openapi.json`.

use std::ops::Range;

use slidegate::headers::Problem;
use slidegate::{
    Decision, Decisions, HoldStatus, PolicyDecision, Reason, Request, Settlement, Ticket, millis_ceil,
};

use crate::app::explanation;
use crate::app::ticket_change::Changed;
use crate::problem;

/// The body for one request.
pub(super) fn one(decisions: &Decisions<'_>) -> Vec<u8> {
    let mut json = Json(Vec::with_capacity(problem::USUAL));
    json.answer(decisions, None);
    json.0
}

/// The body for a batch.
pub(super) fn many<'d>(answers: impl Iterator<Item = &'d Decisions<'d>>) -> Vec<u8> {
    let mut json = Json(br#"{"decisions":["#.to_vec());
    for (at, decisions) in answers.enumerate() {
        if at > 0 {
            json.0.push(b',');
        }
        json.answer(decisions, None);
    }
    json.0.extend_from_slice(b"]}");
    json.0
}

/// What a reservation asked for.
pub(super) struct Asked<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) says_cost: bool,
}

impl Asked<'_> {
    /// How to reserve what otherwise never fits, to add to the explanation.
    fn hint(&self, decisions: &Decisions<'_>) -> Option<String> {
        let denying = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit))?;
        let never_fits = denying.retry_after().is_none() && denying.limit() > 0;
        let limit = denying.limit();
        never_fits.then(|| format!("; reserve at most {limit} of the estimate, and settle the rest"))
    }

    /// What it would hold under a policy.
    fn cost(&self, one: &PolicyDecision<'_>) -> u64 {
        match one.policy().estimated().filter(|_| !self.says_cost) {
            Some(estimate) => estimate.min(one.limit()),
            None => one.policy().cost_of(self.request),
        }
    }
}

/// The body for a reservation, with its ticket if it is allowed.
pub(super) fn reserved(
    decisions: &Decisions<'_>,
    asked: &Asked<'_>,
    ticket: Option<(&Ticket, &str)>,
) -> Vec<u8> {
    let mut json = Json(Vec::with_capacity(problem::USUAL));
    json.answer(decisions, asked.hint(decisions));
    json.0.pop();
    if let Some((ticket, text)) = ticket {
        json.ticket(ticket, text);
    }
    if let Some(denying) = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit)) {
        let cost = asked.cost(&denying);
        json.number("requested", cost);
        json.flag("fits_without_holds", denying.used().saturating_add(cost) <= denying.limit());
    }
    json.0.push(b'}');
    json.0
}

/// The body for a change of a reservation. One that `goes_on` has a newer ticket.
pub(super) fn settlement(settlement: &Settlement, goes_on: bool) -> Vec<u8> {
    let mut json = Json(Vec::with_capacity(problem::USUAL));
    json.settlement(settlement, goes_on);
    json.0
}

/// The body for a change that is made once the store replies.
pub(super) fn queued() -> Vec<u8> {
    let mut json = Json(Vec::new());
    json.queued();
    json.0
}

/// The body for extensions of several.
pub(super) fn settlements(extended: &[Changed]) -> Vec<u8> {
    let mut json = Json(br#"{"reservations":["#.to_vec());
    for (at, one) in extended.iter().enumerate() {
        if at > 0 {
            json.0.push(b',');
        }
        match one {
            Changed::Now(settlement) => json.settlement(settlement, true),
            Changed::Later => json.queued(),
        }
    }
    json.0.extend_from_slice(b"]}");
    json.0
}

/// JSON being written. Names of members need no escaping.
struct Json(Vec<u8>);

impl Json {
    /// The first members are those of the strictest decision, or `null` without one.
    fn answer(&mut self, decisions: &Decisions<'_>, hint: Option<String>) {
        let strictest = decisions.strictest();
        let key = strictest.as_ref().map(|one| one.key().to_string());
        self.open();
        self.flag("allowed", decisions.is_allowed());
        let mut outcome = 0..0;
        match (&strictest, &key) {
            (Some(one), Some(key)) => {
                self.text("policy", one.policy().name());
                self.text("key", key);
                let mut why = explanation::of_key(one, key);
                why.extend(hint);
                self.text("why", &why);
                self.number("limit", one.limit());
                outcome = self.outcome(one);
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
            // Most requests have one policy, whose key and outcome are already text.
            let same = strictest.filter(|strictest| strictest.position() == one.position());
            match (same, &key) {
                (Some(_), Some(key)) => {
                    self.policy(&one, key);
                    self.0.extend_from_within(outcome.clone());
                }
                _ => {
                    self.policy(&one, &one.key().to_string());
                    self.outcome(&one);
                }
            }
            self.0.push(b'}');
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

    /// One policy's decision up to its outcome. `enforced` is false for a shadow policy.
    fn policy(&mut self, one: &PolicyDecision<'_>, key: &str) {
        self.open();
        self.text("policy", one.policy().name());
        self.text("key", key);
        self.flag("allowed", one.is_allowed());
        self.flag("enforced", one.policy().is_enforced());
        self.number("limit", one.limit());
        self.number("window_ms", millis_ceil(one.quota().window()));
    }

    fn ticket(&mut self, ticket: &Ticket, text: &str) {
        self.text("ticket", text);
        self.number("until_ms", ticket.until().map(|until| until.as_micros() / 1000));
    }

    fn queued(&mut self) {
        self.open();
        self.text("outcome", Changed::QUEUED);
        self.name("policies");
        self.0.extend_from_slice(b"[]}");
    }

    fn settlement(&mut self, settlement: &Settlement, goes_on: bool) {
        self.open();
        self.text("outcome", settlement.status().name());
        self.name("policies");
        self.0.push(b'[');
        for (at, one) in settlement.iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            self.open();
            self.text("policy", one.policy());
            self.text("status", one.status().name());
            self.number("limit", one.limit());
            self.usage(one.decision());
            self.0.push(b'}');
        }
        self.0.push(b']');
        if goes_on {
            let ticket = settlement.ticket();
            self.ticket(ticket, &ticket.to_string());
        }
        if settlement.status() == HoldStatus::Denied {
            let denying =
                || settlement.iter().filter(|one| one.status() == HoldStatus::Denied && one.is_denied());
            let names: Vec<_> = denying().map(|one| format!("`{}`", one.policy())).collect();
            self.text("type", "https://iana.org/assignments/http-problem-types#quota-exceeded");
            self.text("title", "Request cannot be satisfied as assigned quota has been exceeded");
            self.number("status", 429);
            self.text(
                "detail",
                &format!(
                    "The extension does not fit under {}. The reservation stays as it was.",
                    names.join(", ")
                ),
            );
            self.name("violated-policies");
            self.0.push(b'[');
            for (at, one) in denying().enumerate() {
                if at > 0 {
                    self.0.push(b',');
                }
                self.string(one.policy());
            }
            self.0.push(b']');
        }
        self.0.push(b'}');
    }

    /// The numbers of a key.
    fn usage(&mut self, one: &Decision) {
        self.number("used", one.used());
        if one.held() > 0 {
            self.number("held", one.held());
        }
        self.number("remaining", one.remaining());
        self.number("cost", one.cost());
        self.number("retry_after_ms", one.retry_after().map(millis_ceil));
        self.number("reset_after_ms", millis_ceil(one.reset_after()));
    }

    /// The numbers, the source, and the reason of a denial. Returns where they are.
    fn outcome(&mut self, one: &PolicyDecision<'_>) -> Range<usize> {
        let start = self.0.len();
        self.usage(one);
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
        start..self.0.len()
    }

    fn open(&mut self) {
        self.0.push(b'{');
    }

    // Inlined, as are its callers, because names are constants.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    #[inline(always)]
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
    #[inline(always)]
    fn number(&mut self, name: &str, number: impl Into<Option<u64>>) {
        self.name(name);
        match number.into() {
            Some(number) => self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            None => self.0.extend_from_slice(b"null"),
        }
    }

    #[inline(always)]
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
