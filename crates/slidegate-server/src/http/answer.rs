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

/// The start of a member that others precede: one piece of text, as every response has some thirty.
macro_rules! member {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// The start of an object and of its first member.
macro_rules! object {
    ($name:literal) => {
        concat!("{\"", $name, "\":")
    };
}

/// The body for one request.
pub(super) fn one(decisions: &Decisions<'_>) -> Vec<u8> {
    let mut json = Json(String::with_capacity(problem::USUAL));
    json.answer(decisions, None);
    json.0.into_bytes()
}

/// The body for a batch, which may be written in parts.
#[derive(Default)]
pub(super) struct Batch {
    json: Json,
    has_begun: bool,
}

impl Batch {
    /// Adds the decisions of the next request.
    pub(super) fn push(&mut self, decisions: &Decisions<'_>) {
        self.begin(",");
        self.json.answer(decisions, None);
    }

    /// The length of the part that is being written.
    pub(super) fn len(&self) -> usize {
        self.json.0.len()
    }

    /// Ends a part, which others follow.
    pub(super) fn take_part(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.json.0).into_bytes()
    }

    /// The last part.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.begin("");
        self.json.0.push_str("]}");
        self.json.0.into_bytes()
    }

    /// Begins the list, or writes this between two of its members.
    fn begin(&mut self, separator: &str) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        self.json.0.push_str(if is_first { r#"{"decisions":["# } else { separator });
    }
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
    let mut json = Json(String::with_capacity(problem::USUAL));
    json.answer(decisions, asked.hint(decisions));
    json.0.pop();
    if let Some((ticket, text)) = ticket {
        json.ticket(ticket, text);
    }
    if let Some(denying) = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit)) {
        let cost = asked.cost(&denying);
        json.number(member!("requested"), cost);
        json.flag(member!("fits_without_holds"), denying.used().saturating_add(cost) <= denying.limit());
    }
    json.0.push('}');
    json.0.into_bytes()
}

/// The body for a change of a reservation. One that `goes_on` has a newer ticket.
pub(super) fn settlement(settlement: &Settlement, goes_on: bool) -> Vec<u8> {
    let mut json = Json(String::with_capacity(problem::USUAL));
    json.settlement(settlement, goes_on);
    json.0.into_bytes()
}

/// The body for a change that is made once the store replies.
pub(super) fn queued() -> Vec<u8> {
    let mut json = Json(String::new());
    json.queued();
    json.0.into_bytes()
}

/// The body for extensions of several.
pub(super) fn settlements(extended: &[Changed]) -> Vec<u8> {
    let mut json = Json(r#"{"reservations":["#.to_owned());
    for (at, one) in extended.iter().enumerate() {
        if at > 0 {
            json.0.push(',');
        }
        match one {
            Changed::Now(settlement) => json.settlement(settlement, true),
            Changed::Later => json.queued(),
        }
    }
    json.0.push_str("]}");
    json.0.into_bytes()
}

/// JSON being written.
#[derive(Default)]
struct Json(String);

impl Json {
    /// The first members are those of the strictest decision, or `null` without one.
    fn answer(&mut self, decisions: &Decisions<'_>, hint: Option<String>) {
        let strictest = decisions.strictest();
        let key = strictest.as_ref().map(|one| one.key().to_string());
        self.flag(object!("allowed"), decisions.is_allowed());
        let (mut names, mut outcome) = (0..0, 0..0);
        match (&strictest, &key) {
            (Some(one), Some(key)) => {
                let comma = self.0.len();
                self.text(member!("policy"), one.policy().name());
                self.text(member!("key"), key);
                names = comma + 1..self.0.len();
                self.explained(one, key, hint);
                self.number(member!("limit"), one.limit());
                outcome = self.outcome(one);
            }
            _ => {
                self.null(member!("policy"));
                self.null(member!("key"));
                self.text(member!("why"), explanation::NOTHING);
                self.null(member!("limit"));
                self.null(member!("used"));
                self.null(member!("remaining"));
                self.null(member!("cost"));
                self.number(member!("retry_after_ms"), 0);
                self.null(member!("reset_after_ms"));
                self.null(member!("source"));
            }
        }
        self.0.push_str(concat!(member!("policies"), "["));
        for (at, one) in decisions.iter().enumerate() {
            if at > 0 {
                self.0.push(',');
            }
            // Most requests have one policy, whose names and outcome are already text.
            if strictest.is_some_and(|strictest| strictest.position() == one.position()) {
                self.0.push('{');
                self.0.extend_from_within(names.clone());
                self.terms(&one);
                self.0.extend_from_within(outcome.clone());
            } else {
                self.text(object!("policy"), one.policy().name());
                self.text(member!("key"), &one.key().to_string());
                self.terms(&one);
                self.outcome(&one);
            }
            self.0.push('}');
        }
        self.0.push(']');
        if let Some(problem) = Problem::of(decisions) {
            self.text(member!("type"), problem.type_uri);
            self.text(member!("title"), problem.title);
            self.number(member!("status"), u64::from(problem.status));
            self.text(member!("detail"), &problem.detail);
            self.texts(member!("violated-policies"), problem.violated_policies);
        }
        self.0.push('}');
    }

    /// What one policy's decision is about, after its names. `enforced` is false for a shadow
    /// policy.
    fn terms(&mut self, one: &PolicyDecision<'_>) {
        self.flag(member!("allowed"), one.is_allowed());
        self.flag(member!("enforced"), one.policy().is_enforced());
        self.number(member!("limit"), one.limit());
        self.number(member!("window_ms"), millis_ceil(one.quota().window()));
    }

    /// Explains a decision on the key with this text.
    fn explained(&mut self, one: &PolicyDecision<'_>, key: &str, hint: Option<String>) {
        self.0.push_str(concat!(member!("why"), "\""));
        let start = self.0.len();
        explanation::write(&mut self.0, one, key);
        self.0.extend(hint);
        if is_plain(&self.0[start..]) {
            self.0.push('"');
        } else {
            let why = self.0.split_off(start);
            self.0.pop();
            self.string(&why);
        }
    }

    fn ticket(&mut self, ticket: &Ticket, text: &str) {
        self.text(member!("ticket"), text);
        self.number(member!("until_ms"), ticket.until().map(|until| until.as_micros() / 1000));
    }

    fn queued(&mut self) {
        self.text(object!("outcome"), Changed::QUEUED);
        self.0.push_str(concat!(member!("policies"), "[]}"));
    }

    fn settlement(&mut self, settlement: &Settlement, goes_on: bool) {
        self.text(object!("outcome"), settlement.status().name());
        self.0.push_str(concat!(member!("policies"), "["));
        for (at, one) in settlement.iter().enumerate() {
            if at > 0 {
                self.0.push(',');
            }
            self.text(object!("policy"), one.policy());
            self.text(member!("status"), one.status().name());
            self.number(member!("limit"), one.limit());
            self.usage(one.decision());
            self.0.push('}');
        }
        self.0.push(']');
        if goes_on {
            let ticket = settlement.ticket();
            self.ticket(ticket, &ticket.to_string());
        }
        if settlement.status() == HoldStatus::Denied {
            let denying =
                settlement.iter().filter(|one| one.status() == HoldStatus::Denied && one.is_denied());
            let denying: Vec<_> = denying.map(|one| one.policy()).collect();
            let names: Vec<_> = denying.iter().map(|name| format!("`{name}`")).collect();
            self.text(member!("type"), "https://iana.org/assignments/http-problem-types#quota-exceeded");
            self.text(member!("title"), "Request cannot be satisfied as assigned quota has been exceeded");
            self.number(member!("status"), 429);
            let names = names.join(", ");
            self.text(
                member!("detail"),
                &format!("The extension does not fit under {names}. The reservation stays as it was."),
            );
            self.texts(member!("violated-policies"), denying);
        }
        self.0.push('}');
    }

    /// The numbers of a key.
    fn usage(&mut self, one: &Decision) {
        self.number(member!("used"), one.used());
        if one.held() > 0 {
            self.number(member!("held"), one.held());
        }
        self.number(member!("remaining"), one.remaining());
        self.number(member!("cost"), one.cost());
        self.number(member!("retry_after_ms"), one.retry_after().map(millis_ceil));
        self.number(member!("reset_after_ms"), millis_ceil(one.reset_after()));
    }

    /// The numbers, the source, and the reason of a denial. Returns where they are.
    fn outcome(&mut self, one: &PolicyDecision<'_>) -> Range<usize> {
        let start = self.0.len();
        self.usage(one);
        self.text(member!("source"), one.source().name());
        if let Some(reason) = one.reason() {
            self.text(member!("reason"), reason.name());
        }
        if let Some(block) = one.block() {
            self.0.push_str(member!("block"));
            self.text_or_null(object!("until"), block.ends_at().map(explanation::time).as_deref());
            self.text_or_null(member!("by"), block.blocked_by());
            self.0.push('}');
        }
        start..self.0.len()
    }

    // Inlined, as are its callers, because the starts of members are constants.
    #[inline(always)]
    fn text(&mut self, start: &str, text: &str) {
        self.0.push_str(start);
        self.string(text);
    }

    fn text_or_null(&mut self, start: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(start, text),
            None => self.null(start),
        }
    }

    fn texts<'t>(&mut self, start: &str, texts: impl IntoIterator<Item = &'t str>) {
        self.0.push_str(start);
        self.0.push('[');
        for (at, text) in texts.into_iter().enumerate() {
            if at > 0 {
                self.0.push(',');
            }
            self.string(text);
        }
        self.0.push(']');
    }

    /// `null` for `None`.
    #[inline(always)]
    fn number(&mut self, start: &str, number: impl Into<Option<u64>>) {
        match number.into() {
            Some(number) => {
                self.0.push_str(start);
                self.0.push_str(itoa::Buffer::new().format(number));
            }
            None => self.null(start),
        }
    }

    #[inline(always)]
    fn null(&mut self, start: &str) {
        self.0.push_str(start);
        self.0.push_str("null");
    }

    #[inline(always)]
    fn flag(&mut self, start: &str, flag: bool) {
        self.0.push_str(start);
        self.0.push_str(if flag { "true" } else { "false" });
    }

    fn string(&mut self, text: &str) {
        if is_plain(text) {
            self.0.push('"');
            self.0.push_str(text);
            self.0.push('"');
        } else {
            self.0.push_str(&serde_json::to_string(text).expect("a text has a JSON form"));
        }
    }
}

/// Whether a text needs no escaping.
fn is_plain(text: &str) -> bool {
    // Without a branch per byte, this compiles to vector instructions.
    let is_plain = |plain, byte: u8| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\');
    text.bytes().fold(true, is_plain)
}
