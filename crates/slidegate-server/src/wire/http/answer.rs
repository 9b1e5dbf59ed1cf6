//! Decisions as JSON: the strictest one, its explanation, and those of all policies.

use serde::{Serialize, Serializer};
use slidegate::{
    Amount, Amounts, Decision, Decisions, PolicyDecision, Reason, Request,
    reserve::{HoldStatus, Settlement, Ticket},
};
use slidegate_http::headers::Problem;
use slidegate_http::headers::millis_ceil;

use crate::engine::explanation;
use crate::engine::ticket_change::Changed;
use crate::wire::key_text;
use crate::wire::problem::json;

/// The body for one request.
pub(super) fn one(decisions: &Decisions<'_>) -> Vec<u8> {
    json(&Answer::new(decisions))
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
        serde_json::to_writer(&mut self.json, &Answer::new(decisions)).expect("an answer has a JSON form");
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
pub(super) struct ReservationRequest<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) says_cost: bool,
}

impl ReservationRequest<'_> {
    /// How to reserve what otherwise never fits, to add to the explanation.
    fn hint(&self, decisions: &Decisions<'_>) -> Option<String> {
        let denying = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit))?;
        let never_fits = denying.retry_after().is_none() && denying.limit() > 0;
        let limit = denying.limit();
        never_fits.then(|| format!("; reserve at most {limit} of the estimate, and settle the rest"))
    }

    /// What it would hold under a policy.
    fn cost(&self, one: &PolicyDecision<'_>) -> Amount {
        match one.policy().estimate().filter(|_| !self.says_cost) {
            Some(estimate) => estimate.min(one.amounts().limit),
            None => one.policy().cost_of(self.request),
        }
    }
}

/// The body for a reservation, with its ticket if it is allowed.
pub(super) fn reserved(
    decisions: &Decisions<'_>,
    asked: &ReservationRequest<'_>,
    ticket: Option<(&Ticket, &str)>,
) -> Vec<u8> {
    let mut answer = Answer::new(decisions);
    answer.why.extend(asked.hint(decisions));
    answer.ticket = ticket.map(|(ticket, text)| TicketMembers::new(ticket, text.to_owned()));
    let denying = decisions.strictest().filter(|one| one.reason() == Some(Reason::OverLimit));
    answer.over_limit = denying.map(|one| {
        let requested = asked.cost(&one);
        let Amounts { used, limit, .. } = one.amounts();
        let fits_without_holds = used + requested <= limit;
        OverLimit { requested, fits_without_holds }
    });
    json(&answer)
}

/// The body for a change of a reservation. One that `goes_on` has a newer ticket.
pub(super) fn settlement(settlement: &Settlement, goes_on: bool) -> Vec<u8> {
    json(&ChangeAnswer::new(settlement, goes_on))
}

/// The body for a change that is made once the store replies.
pub(super) fn queued() -> Vec<u8> {
    json(&ChangeAnswer::queued())
}

/// The body for extensions of several.
pub(super) fn settlements(extended: &[Changed]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Extended<'a> {
        reservations: Vec<ChangeAnswer<'a>>,
    }
    let reservations = extended.iter().map(|one| match one {
        Changed::Now(settlement) => ChangeAnswer::new(settlement, true),
        Changed::Later => ChangeAnswer::queued(),
    });
    json(&Extended { reservations: reservations.collect() })
}

/// The decisions of a request. The first members are those of the strictest one, or `null` without
/// one.
#[derive(Serialize)]
struct Answer<'a> {
    allowed: bool,
    policy: Option<&'a str>,
    key: Option<String>,
    why: String,
    limit: Option<Amount>,
    #[serde(flatten)]
    outcome: Outcome<'a>,
    #[serde(serialize_with = "policies")]
    policies: &'a Decisions<'a>,
    #[serde(flatten)]
    problem: Option<ProblemMembers<'a>>,
    #[serde(flatten)]
    ticket: Option<TicketMembers>,
    #[serde(flatten)]
    over_limit: Option<OverLimit>,
}

/// The decision of one policy. `enforced` is false for a shadow policy.
#[derive(Serialize)]
struct PolicyAnswer<'a> {
    policy: &'a str,
    key: String,
    allowed: bool,
    enforced: bool,
    limit: Amount,
    window_ms: u64,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

/// The numbers, the source, and the reason of a denial.
#[derive(Default, Serialize)]
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
#[derive(Default, Serialize)]
struct Usage {
    used: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Amount>,
    remaining: Option<Amount>,
    cost: Option<Amount>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

/// A problem (RFC 9457), in addition to the members of a decision.
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
struct TicketMembers {
    ticket: String,
    until_ms: Option<u64>,
}

#[derive(Serialize)]
struct OverLimit {
    requested: Amount,
    fits_without_holds: bool,
}

/// What a change of a reservation came to.
#[derive(Default, Serialize)]
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
    limit: Amount,
    #[serde(flatten)]
    usage: Usage,
}

impl<'a> Answer<'a> {
    fn new(decisions: &'a Decisions<'a>) -> Self {
        let strictest = decisions.strictest();
        let nothing =
            || Outcome { usage: Usage { retry_after_ms: Some(0), ..Usage::default() }, ..Outcome::default() };
        Self {
            allowed: decisions.is_allowed(),
            policy: strictest.map(|one| one.policy().name()),
            key: strictest.map(|one| key_text::shown(&one.key())),
            why: strictest.map_or_else(|| explanation::NOTHING.to_owned(), |one| explanation::one(&one)),
            limit: strictest.map(|one| one.amounts().limit),
            outcome: strictest.map_or_else(nothing, Outcome::new),
            policies: decisions,
            problem: Problem::of(decisions).map(|problem| ProblemMembers {
                r#type: problem.type_uri,
                title: problem.title,
                status: problem.status,
                detail: problem.detail,
                violated_policies: problem.violated_policies,
            }),
            ticket: None,
            over_limit: None,
        }
    }
}

impl<'a> Outcome<'a> {
    fn new(one: PolicyDecision<'a>) -> Self {
        let block = one.block();
        Self {
            usage: Usage::new(&one),
            source: Some(one.source().name()),
            reason: one.reason().map(Reason::name),
            block: block.map(|block| BlockMembers {
                until: block.ends_at().map(explanation::time),
                by: block.blocked_by(),
            }),
        }
    }
}

impl Usage {
    fn new(one: &Decision) -> Self {
        let Amounts { used, held, remaining, cost, .. } = one.amounts();
        Self {
            used: Some(used),
            held: Some(held).filter(|held| *held > Amount::default()),
            remaining: Some(remaining),
            cost: Some(cost),
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
    fn queued() -> Self {
        Self { outcome: Changed::QUEUED, ..Self::default() }
    }

    fn new(settlement: &'a Settlement, goes_on: bool) -> Self {
        let policies = settlement.iter().map(|one| SettledPolicy {
            policy: one.policy(),
            status: one.status().name(),
            limit: one.amounts().limit,
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
        let is_blocked = denying.clone().any(|one| one.reason() == Some(Reason::Blocked));
        let why =
            if is_blocked { "is denied, as a key of the reservation is blocked," } else { "does not fit" };
        let denying: Vec<_> = denying.map(|one| one.policy()).collect();
        let names = denying.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        Self {
            r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: 429,
            detail: format!("The extension {why} under {names}. The reservation stays as it was."),
            violated_policies: denying,
        }
    }
}

fn policies<S: Serializer>(decisions: &Decisions<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decisions.iter().map(|one| PolicyAnswer {
        policy: one.policy().name(),
        key: key_text::shown(&one.key()),
        allowed: one.is_allowed(),
        enforced: one.policy().is_enforced(),
        limit: one.amounts().limit,
        window_ms: millis_ceil(one.quota().window()),
        outcome: Outcome::new(one),
    }))
}
