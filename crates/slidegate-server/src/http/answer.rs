//! Decisions as JSON: the strictest one, its explanation, and those of all policies.

use std::fmt::Display;

use serde::{Serialize, Serializer};
use slidegate::headers::Problem;
use slidegate::{
    Decision, Decisions, HoldStatus, Key, PolicyDecision, Reason, Request, Settlement, Ticket, millis_ceil,
};

use crate::app::explanation;
use crate::app::ticket_change::Changed;
use crate::problem::json;

/// The body for one request.
pub(super) fn one(decisions: &Decisions<'_>) -> Vec<u8> {
    json(&Answer::new(decisions, None))
}

/// The body for a batch, which may be written in parts.
#[derive(Default)]
pub(super) struct Batch {
    json: Vec<u8>,
    has_begun: bool,
}

impl Batch {
    /// Adds the decisions of the next request.
    pub(super) fn push(&mut self, decisions: &Decisions<'_>) {
        self.begin(b",");
        serde_json::to_writer(&mut self.json, &Answer::new(decisions, None))
            .expect("an answer has a JSON form");
    }

    /// The length of the part that is being written.
    pub(super) fn len(&self) -> usize {
        self.json.len()
    }

    /// Ends a part, which others follow.
    pub(super) fn take_part(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.json)
    }

    /// The last part.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.begin(b"");
        self.json.extend(b"]}");
        self.json
    }

    /// Begins the list, or writes this between two of its members.
    fn begin(&mut self, separator: &[u8]) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        self.json.extend(if is_first { br#"{"decisions":["# } else { separator });
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
    let over_limit = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit));
    json(&Reserved {
        answer: Answer::new(decisions, asked.hint(decisions)),
        ticket: ticket.map(|(ticket, text)| TicketMembers::new(ticket, text.to_owned())),
        over_limit: over_limit.map(|one| {
            let requested = asked.cost(&one);
            let fits_without_holds = one.used().saturating_add(requested) <= one.limit();
            OverLimit { requested, fits_without_holds }
        }),
    })
}

/// The body for a change of a reservation. One that `goes_on` has a newer ticket.
pub(super) fn settlement(settlement: &Settlement, goes_on: bool) -> Vec<u8> {
    json(&ChangeAnswer::new(settlement, goes_on))
}

/// The body for a change that is made once the store replies.
pub(super) fn queued() -> Vec<u8> {
    json(&ChangeAnswer::QUEUED)
}

/// The body for extensions of several.
pub(super) fn settlements(extended: &[Changed]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Extended<'a> {
        reservations: Vec<ChangeAnswer<'a>>,
    }
    let reservations = extended.iter().map(|one| match one {
        Changed::Now(settlement) => ChangeAnswer::new(settlement, true),
        Changed::Later => ChangeAnswer::QUEUED,
    });
    json(&Extended { reservations: reservations.collect() })
}

/// The decisions of a request. The first members are those of the strictest one, or `null` without
/// one.
#[derive(Serialize)]
struct Answer<'a> {
    allowed: bool,
    policy: Option<&'a str>,
    #[serde(serialize_with = "text_or_null")]
    key: Option<Key<'a>>,
    why: String,
    limit: Option<u64>,
    #[serde(flatten)]
    outcome: Outcome<'a>,
    #[serde(serialize_with = "policies")]
    policies: &'a Decisions<'a>,
    #[serde(flatten)]
    problem: Option<ProblemMembers<'a>>,
}

/// The decision of one policy. `enforced` is false for a shadow policy.
#[derive(Serialize)]
struct PolicyAnswer<'a> {
    policy: &'a str,
    #[serde(serialize_with = "text_or_null")]
    key: Option<Key<'a>>,
    allowed: bool,
    enforced: bool,
    limit: u64,
    window_ms: u64,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

/// The numbers, the source, and the reason of a denial.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    usage: Usage,
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<BlockMembers<'a>>,
}

#[derive(Serialize)]
struct BlockMembers<'a> {
    until: Option<String>,
    by: Option<&'a str>,
}

/// The numbers of a key.
#[derive(Serialize)]
struct Usage {
    used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<u64>,
    remaining: Option<u64>,
    cost: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

/// A problem (RFC 9457), beside what is said of a decision anyway.
#[derive(Serialize)]
struct ProblemMembers<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
}

#[derive(Serialize)]
struct Reserved<'a> {
    #[serde(flatten)]
    answer: Answer<'a>,
    #[serde(flatten)]
    ticket: Option<TicketMembers>,
    #[serde(flatten)]
    over_limit: Option<OverLimit>,
}

#[derive(Serialize)]
struct TicketMembers {
    ticket: String,
    until_ms: Option<u64>,
}

#[derive(Serialize)]
struct OverLimit {
    requested: u64,
    fits_without_holds: bool,
}

/// What a change of a reservation came to.
#[derive(Serialize)]
struct ChangeAnswer<'a> {
    outcome: &'static str,
    policies: Vec<SettledPolicy<'a>>,
    #[serde(flatten)]
    ticket: Option<TicketMembers>,
    #[serde(flatten)]
    problem: Option<ProblemMembers<'a>>,
}

#[derive(Serialize)]
struct SettledPolicy<'a> {
    policy: &'a str,
    status: &'static str,
    limit: u64,
    #[serde(flatten)]
    usage: Usage,
}

impl<'a> Answer<'a> {
    /// The `hint` is added to the explanation.
    fn new(decisions: &'a Decisions<'a>, hint: Option<String>) -> Self {
        let strictest = decisions.strictest();
        let mut why = strictest.map_or_else(|| explanation::NOTHING.to_owned(), |one| explanation::one(&one));
        why.extend(hint);
        Self {
            allowed: decisions.is_allowed(),
            policy: strictest.map(|one| one.policy().name()),
            key: strictest.map(|one| one.key()),
            why,
            limit: strictest.map(|one| one.limit()),
            outcome: strictest.map_or(Outcome::NOTHING, Outcome::new),
            policies: decisions,
            problem: Problem::of(decisions).map(|problem| ProblemMembers {
                r#type: problem.type_uri,
                title: problem.title,
                status: problem.status,
                detail: problem.detail,
                violated_policies: problem.violated_policies,
            }),
        }
    }
}

impl<'a> PolicyAnswer<'a> {
    fn new(one: PolicyDecision<'a>) -> Self {
        Self {
            policy: one.policy().name(),
            key: Some(one.key()),
            allowed: one.is_allowed(),
            enforced: one.policy().is_enforced(),
            limit: one.limit(),
            window_ms: millis_ceil(one.quota().window()),
            outcome: Outcome::new(one),
        }
    }
}

impl<'a> Outcome<'a> {
    /// If no enforced policy applies.
    const NOTHING: Self = Self {
        usage: Usage {
            used: None,
            held: None,
            remaining: None,
            cost: None,
            retry_after_ms: Some(0),
            reset_after_ms: None,
        },
        source: None,
        reason: None,
        block: None,
    };

    fn new(one: PolicyDecision<'a>) -> Self {
        let block = |block: &'a slidegate::Block| BlockMembers {
            until: block.ends_at().map(explanation::time),
            by: block.blocked_by(),
        };
        Self {
            usage: Usage::new(&one),
            source: Some(one.source().name()),
            reason: one.reason().map(Reason::name),
            block: one.block().map(block),
        }
    }
}

impl Usage {
    fn new(one: &Decision) -> Self {
        Self {
            used: Some(one.used()),
            held: Some(one.held()).filter(|held| *held > 0),
            remaining: Some(one.remaining()),
            cost: Some(one.cost()),
            retry_after_ms: one.retry_after().map(millis_ceil),
            reset_after_ms: Some(millis_ceil(one.reset_after())),
        }
    }
}

impl TicketMembers {
    fn new(ticket: &Ticket, text: String) -> Self {
        Self { ticket: text, until_ms: ticket.until().map(|until| until.as_micros() / 1000) }
    }
}

impl<'a> ChangeAnswer<'a> {
    const QUEUED: Self = Self { outcome: Changed::QUEUED, policies: Vec::new(), ticket: None, problem: None };

    fn new(settlement: &'a Settlement, goes_on: bool) -> Self {
        let policies = settlement.iter().map(|one| SettledPolicy {
            policy: one.policy(),
            status: one.status().name(),
            limit: one.limit(),
            usage: Usage::new(one.decision()),
        });
        let ticket = settlement.ticket();
        let is_denied = settlement.status() == HoldStatus::Denied;
        Self {
            outcome: settlement.status().name(),
            policies: policies.collect(),
            ticket: goes_on.then(|| TicketMembers::new(ticket, ticket.to_string())),
            problem: is_denied.then(|| ProblemMembers::of_extension(settlement)),
        }
    }
}

impl<'a> ProblemMembers<'a> {
    /// The problem of an extension that does not fit.
    fn of_extension(settlement: &'a Settlement) -> Self {
        let denying = settlement.iter().filter(|one| one.status() == HoldStatus::Denied && one.is_denied());
        let denying: Vec<_> = denying.map(|one| one.policy()).collect();
        let names: Vec<_> = denying.iter().map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        Self {
            r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: 429,
            detail: format!("The extension does not fit under {names}. The reservation stays as it was."),
            violated_policies: denying,
        }
    }
}

fn policies<S: Serializer>(decisions: &Decisions<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decisions.iter().map(PolicyAnswer::new))
}

fn text_or_null<T: Display, S: Serializer>(text: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => serializer.collect_str(text),
        None => serializer.serialize_none(),
    }
}
