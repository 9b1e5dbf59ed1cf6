//! Decisions as JSON: the strictest one, its explanation, and those of all policies.

use lined_config::without_null;
use schemars::{JsonSchema, Schema};
use serde::{Serialize, Serializer};
use serde_json::Value;
use slidegate::reserve::{HoldStatus, Settlement, Ticket};
use slidegate::{Amount, Amounts, Decision, Decisions, PolicyDecision, Reason, Request};
use slidegate_http::headers::{Problem, millis_ceil};

use crate::engine::explanation;
use crate::engine::ticket_change::TicketChanged;
use crate::wire::key_text;
use crate::wire::problem::json;

/// Maximum tickets that one call extends. All are extended concurrently.
pub(super) const MAX_TICKETS: usize = 256;

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
        let denying =
            decisions.strictest().filter(|one| one.decision().reason() == Some(Reason::OverLimit))?;
        let never_fits = denying.decision().retry_after().is_none() && denying.decision().limit() > 0;
        let limit = denying.decision().limit();
        never_fits.then(|| format!("; reserve at most {limit} of the estimate, and settle the rest"))
    }

    /// What it would hold under a policy.
    fn cost(&self, one: &PolicyDecision<'_>) -> Amount {
        match one.policy().estimate().filter(|_| !self.says_cost) {
            Some(estimate) => estimate.min(one.decision().amounts().limit),
            None => self.request.counted_cost(&one.policy().options().counts),
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
    let denying = decisions.strictest().filter(|one| one.decision().reason() == Some(Reason::OverLimit));
    answer.over_limit = denying.map(|one| {
        let requested = asked.cost(&one);
        let Amounts { used, limit, .. } = one.decision().amounts();
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
pub(super) fn settlements(extended: &[TicketChanged]) -> Vec<u8> {
    let reservations = extended.iter().map(|one| match one {
        TicketChanged::Now(settlement) => ChangeAnswer::new(settlement, true),
        TicketChanged::Later => ChangeAnswer::queued(),
    });
    json(&Extended { reservations: reservations.collect() })
}

/// The decisions of a request. The first members are those of the strictest one, or `null` without
/// one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(super) struct Answer<'a> {
    allowed: bool,
    /// The strictest policy; null if no enforced policy applies.
    policy: Option<&'a str>,
    /// The key under that policy: the values of its scope, joined by commas.
    key: Option<String>,
    /// The decision in a sentence.
    why: String,
    #[schemars(with = "Option<u64>")]
    limit: Option<Amount>,
    #[serde(flatten)]
    outcome: OutcomeBody<'a>,
    /// The decisions of all policies that apply.
    #[schemars(with = "Vec<PolicyAnswer<'a>>")]
    #[serde(serialize_with = "policies")]
    policies: &'a Decisions<'a>,
    // The last three are in some responses only, whose schemas add them.
    #[schemars(skip)]
    #[serde(flatten)]
    problem: Option<ProblemMembers<'a>>,
    #[schemars(skip)]
    #[serde(flatten)]
    ticket: Option<TicketMembers>,
    #[schemars(skip)]
    #[serde(flatten)]
    over_limit: Option<OverLimit>,
}

/// The decision of one policy.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PolicyDecision", transform = never_null)]
struct PolicyAnswer<'a> {
    policy: &'a str,
    key: String,
    allowed: bool,
    /// False for a shadow policy, whose denials deny nothing.
    enforced: bool,
    #[schemars(with = "u64")]
    limit: Amount,
    #[schemars(range(min = 1))]
    window_ms: u64,
    #[serde(flatten)]
    outcome: OutcomeBody<'a>,
}

/// The numbers, the source, and the reason of a denial.
#[derive(Default, Serialize, JsonSchema)]
struct OutcomeBody<'a> {
    #[serde(flatten)]
    usage: Usage,
    /// Where the decision comes from: the store; a cached denial of the store that is still valid; a
    /// lease of this instance; or, while a shared store is unreachable, the policy's fallback.
    #[schemars(extend("enum" = ["store", "cached", "leased", "local", "allow", "deny", null]))]
    source: Option<&'static str>,
    /// Why it is denied: the cost exceeds what remains; the key is blocked; the key has the maximum of open
    /// reservations; the store has no room for more; as many calls wait as may; or the shared store is unavailable and the policy denies in that
    /// case. Absent if allowed.
    #[schemars(
        with = "String",
        extend("enum" = ["over_limit", "blocked", "too_many_holds", "store_full", "queue_full", "store_unavailable"])
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[schemars(with = "BlockMembers<'a>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<BlockMembers<'a>>,
}

/// The key is blocked: every request with a cost is denied.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Block")]
struct BlockMembers<'a> {
    /// When the block ends, RFC 3339; null if permanent.
    until: Option<String>,
    /// The name of the token that set it.
    by: Option<&'a str>,
}

/// The numbers of a key.
#[derive(Default, Serialize, JsonSchema)]
struct Usage {
    #[schemars(with = "Option<f64>", range(min = 0))]
    used: Option<Amount>,
    /// Cost that open reservations hold on the key. Absent if 0.
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Amount>,
    #[schemars(with = "Option<f64>", range(min = 0))]
    remaining: Option<Amount>,
    /// What this call charged, released or refunded.
    #[schemars(with = "Option<f64>", range(min = 0))]
    cost: Option<Amount>,
    /// 0 if allowed; null if the cost never fits or the block is permanent.
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
}

/// A problem (RFC 9457), in addition to the members of a decision.
#[derive(Serialize, JsonSchema)]
pub(super) struct ProblemMembers<'a> {
    r#type: &'static str,
    title: &'static str,
    #[schemars(extend("enum" = [429, 503]))]
    status: u16,
    /// Policy, key, usage and wait in a sentence.
    detail: String,
    #[schemars(length(min = 1))]
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct TicketMembers {
    /// Opaque text that settles, extends or cancels the reservation. That of a change is for the next one; older
    /// tickets remain valid while the reservation is open.
    #[schemars(length(max = Ticket::MAX_TEXT))]
    ticket: String,
    /// When the first hold of the reservation expires if it is neither settled nor extended, in milliseconds since the
    /// Unix epoch. Null if nothing is held.
    until_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct OverLimit {
    /// What the request would hold under the strictest policy. Only with `over_limit`.
    #[schemars(with = "f64", range(min = 0))]
    requested: Amount,
    /// Whether it would fit if no reservation were open. Only with `over_limit`.
    fits_without_holds: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Extended<'a> {
    #[schemars(length(max = MAX_TICKETS))]
    reservations: Vec<ChangeAnswer<'a>>,
}

/// What a change of a reservation came to.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "Settlement")]
pub(super) struct ChangeAnswer<'a> {
    /// The outcome: the reservation was open and is changed; it was already settled; it had expired; an extension does
    /// not fit; the store does not know the reservation; or the store is unreachable, and the change is queued until
    /// the reservation expires.
    #[schemars(extend("enum" = ["changed", "already_settled", "expired", "denied", "unknown", "queued"]))]
    outcome: &'static str,
    policies: Vec<SettledPolicy<'a>>,
    #[serde(flatten)]
    ticket: Option<TicketMembers>,
    #[schemars(skip)]
    #[serde(flatten)]
    problem: Option<ProblemMembers<'a>>,
}

/// What a change came to under one policy.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SettledKey", transform = never_null)]
struct SettledPolicy<'a> {
    policy: &'a str,
    /// The outcome under this policy; `unknown`: the store has lost the reservation.
    #[schemars(extend("enum" = ["changed", "already_settled", "expired", "denied", "unknown"]))]
    status: &'static str,
    #[schemars(with = "u64")]
    limit: Amount,
    #[serde(flatten)]
    usage: Usage,
}

impl<'a> Answer<'a> {
    fn new(decisions: &'a Decisions<'a>) -> Self {
        let strictest = decisions.strictest();
        let nothing = || OutcomeBody {
            usage: Usage { retry_after_ms: Some(0), ..Usage::default() },
            ..OutcomeBody::default()
        };
        Self {
            allowed: decisions.is_allowed(),
            policy: strictest.map(|one| one.policy().name()),
            key: strictest.map(|one| key_text::shown(&one.key())),
            why: strictest.map_or_else(|| explanation::NOTHING.to_owned(), |one| explanation::one(&one)),
            limit: strictest.map(|one| one.decision().amounts().limit),
            outcome: strictest.map_or_else(nothing, OutcomeBody::new),
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

impl<'a> OutcomeBody<'a> {
    fn new(one: PolicyDecision<'a>) -> Self {
        let block = one.block();
        Self {
            usage: Usage::new(one.decision()),
            source: Some(one.decision().source().name()),
            reason: one.decision().reason().map(Reason::name),
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
        Self { outcome: TicketChanged::QUEUED, ..Self::default() }
    }

    fn new(settlement: &'a Settlement, goes_on: bool) -> Self {
        let policies = settlement.iter().map(|one| SettledPolicy {
            policy: one.policy(),
            status: one.status().name(),
            limit: one.decision().amounts().limit,
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
        let denying =
            settlement.iter().filter(|one| one.status() == HoldStatus::Denied && one.decision().is_denied());
        let is_blocked = denying.clone().any(|one| one.decision().reason() == Some(Reason::Blocked));
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
        allowed: one.decision().is_allowed(),
        enforced: one.policy().options().enforced,
        limit: one.decision().amounts().limit,
        window_ms: millis_ceil(one.quota().window()),
        outcome: OutcomeBody::new(one),
    }))
}

/// Removes null, which only the strictest decision of no policies has, except from the wait.
fn never_null(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let others = properties.into_iter().flatten().filter(|(name, _)| *name != "retry_after_ms");
    for property in others.filter_map(|(_, property)| property.try_into().ok()) {
        without_null(property);
    }
}
