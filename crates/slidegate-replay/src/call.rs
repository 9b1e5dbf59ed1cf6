//! A call of several requests that the service decided in one step, as a recording has it: one line
//! with the list `requests`.
//!
//! Such an entry has no attributes of its own, only the list as text, so all other entries cost what
//! they did.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slidegate::{
    Cost, PolicyDecision, Request, Role, Verb,
    reserve::{Extension, HoldOptions, Unsettled},
};

use crate::attributes::{RecordedRequest, address, named_attributes};
use crate::block::MAX_EXTRAS;
use crate::entry::{CHANGE, Entry, REQUESTS, RESERVATION};

/// Most requests of a call: a gRPC call has at most 64 descriptors, each with at most one further
/// key for what was refused.
const MAX_REQUESTS: usize = 128;

/// What `reservation` and `change` must be.
pub(crate) const EXPECTED_RESERVATION: &str =
    "an object with `id`, `ttl_us` and `is_forgotten` as the service records them";
pub(crate) const EXPECTED_CHANGE: &str = "an object with `id`, a `kind` of `settle`, `settle_so_far`, `extend` or \
                                          `cancel`, and with `cost`, `costs` and `ttl_us` as the service records them";
/// What `requests` must be.
pub(crate) const EXPECTED: &str = "a list of 1 to 128 requests, each with at most 64 `attributes`, and with \
                                   `cost`, `costs`, `verb`, `role`, `policy` and `deny_over_limit` as the service \
                                   records them";

/// The requests of one call, and what it did with a reservation.
#[derive(Debug)]
pub(crate) struct Call {
    /// Empty if it changed a reservation.
    requests: Vec<CallRequest>,
    hold: Option<RecordedHold>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CallRequest {
    #[serde(flatten)]
    cost: RecordedCost,
    #[serde(default, with = "VerbName")]
    verb: Verb,
    #[serde(default, with = "RoleName")]
    role: Role,
    #[serde(default)]
    deny_over_limit: bool,
    #[serde(default)]
    policy: Option<String>,
    attributes: BTreeMap<String, AttributeText>,
}

/// What a request cost: a number, or numbers by name. Neither if it was not said.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RecordedCost {
    cost: Option<u64>,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
}

impl RecordedCost {
    /// The cost; `None` if it was not said.
    pub(crate) fn cost(&self) -> Option<Cost<'_>> {
        if self.costs.is_empty() {
            return self.cost.map(Cost::from);
        }
        let named: Vec<(&str, u64)> = self.costs.iter().map(|(name, cost)| (name.as_str(), *cost)).collect();
        Some(Cost::from(&named[..]))
    }
}

/// What was done with a reservation.
#[derive(Debug)]
pub(crate) enum RecordedHold {
    Made(RecordedReservation),
    Changed(RecordedChange),
}

/// How a reservation was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedReservation {
    /// Absent if it was denied.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// The time that the call set.
    #[serde(default)]
    ttl_us: Option<u64>,
    #[serde(default)]
    is_forgotten: bool,
}

impl RecordedReservation {
    pub(crate) fn options(&self) -> HoldOptions<'static> {
        let unsettled = if self.is_forgotten { Unsettled::Forget } else { Unsettled::Charge };
        HoldOptions { ttl: self.ttl_us.map(Duration::from_micros), unsettled, id: None }
    }
}

/// How a reservation was changed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedChange {
    pub(crate) id: String,
    pub(crate) kind: ChangeKind,
    /// The cost of a settlement, or what an extension holds in all.
    #[serde(flatten)]
    pub(crate) cost: RecordedCost,
    #[serde(default)]
    ttl_us: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChangeKind {
    Settle,
    SettleSoFar,
    Extend,
    Cancel,
}

impl RecordedChange {
    /// The extension; one whose time is out of range keeps the time.
    pub(crate) fn extension(&self) -> Extension<'_> {
        let extension = self.cost.cost().into_iter().fold(Extension::new(), Extension::with_total);
        let ttl = self.ttl_us.map(Duration::from_micros);
        ttl.and_then(|ttl| extension.clone().with_ttl(ttl).ok()).unwrap_or(extension)
    }
}

/// What was done with the cost, as recordings name it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Verb", rename_all = "snake_case")]
enum VerbName {
    Check,
    Peek,
    Refund,
    Penalize,
}

/// How a request took part in its call, as recordings name it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "snake_case")]
#[non_exhaustive]
enum RoleName {
    Deciding,
    Together,
    Refusals,
}

/// The value of an attribute; a number is the text of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "Scalar")]
struct AttributeText(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Bool(bool),
    Number(serde_json::Number),
}

impl From<Scalar> for AttributeText {
    fn from(value: Scalar) -> Self {
        Self(match value {
            Scalar::Text(text) => text,
            Scalar::Bool(value) => value.to_string(),
            Scalar::Number(number) => number.to_string(),
        })
    }
}

impl Call {
    /// The list of a line, as an entry has it; `None` if it is not what the service records.
    pub(crate) fn of_line(list: serde_json::Value) -> Option<Vec<u8>> {
        let requests: Vec<CallRequest> = serde_json::from_value(list).ok()?;
        let has_few = |request: &CallRequest| request.attributes.len() <= usize::from(MAX_EXTRAS);
        let is_call = (1..=MAX_REQUESTS).contains(&requests.len()) && requests.iter().all(has_few);
        is_call.then(|| serde_json::to_vec(&requests).expect("a call is JSON"))
    }

    /// The call of an entry, if it is one.
    pub(crate) fn of(entry: &Entry<'_>) -> Option<Self> {
        let text = |name| entry.extra.get(name);
        if let Some(change) = text(CHANGE) {
            let change = serde_json::from_slice(change).ok()?;
            return Some(Self { requests: Vec::new(), hold: Some(RecordedHold::Changed(change)) });
        }
        let requests = serde_json::from_slice(text(REQUESTS)?).ok()?;
        let hold = text(RESERVATION).and_then(|text| serde_json::from_slice(text).ok());
        Some(Self { requests, hold: hold.map(RecordedHold::Made) })
    }

    /// What it did with a reservation.
    pub(crate) fn hold(&self) -> Option<&RecordedHold> {
        self.hold.as_ref()
    }

    /// The names of the attributes of its requests.
    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.requests.iter().flat_map(|request| request.attributes.keys().map(String::as_str))
    }

    pub(crate) fn requests(&self) -> Vec<Request<'_>> {
        self.requests.iter().map(CallRequest::request).collect()
    }
}

impl CallRequest {
    fn request(&self) -> Request<'_> {
        let mut request = Request::new().with_verb(self.verb).with_role(self.role);
        if let Some(cost) = self.cost.cost() {
            request = request.with_cost(cost);
        }
        for (name, AttributeText(text)) in &self.attributes {
            request = match name.as_str() {
                "ip" if text.is_empty() => request,
                "ip" => match address(text.as_bytes()) {
                    Some(ip) => request.with("ip", ip),
                    None => request.with("ip", text.as_bytes()),
                },
                name => request.with(name, text.as_bytes()),
            };
        }
        if self.deny_over_limit {
            request = request.deny_over_limit();
        }
        self.policy.as_deref().into_iter().fold(request, Request::under)
    }
}

/// The text of a recorded part, if it has all that it must have.
pub(crate) fn checked<T: for<'de> Deserialize<'de> + Serialize>(value: serde_json::Value) -> Option<Vec<u8>> {
    let part: T = serde_json::from_value(value).ok()?;
    serde_json::to_vec(&part).ok()
}

/// Whether a decision counts for its policy: that on a check does, and a peek that denied a call
/// denied what a client asked for, as the service counts it.
pub(crate) fn is_counted(decision: &PolicyDecision<'_>) -> bool {
    match decision.verb() {
        Verb::Check => true,
        Verb::Peek => decision.is_denied(),
        _ => false,
    }
}

/// Each check of an entry: one, or those of its call.
pub(crate) fn for_each_check(entry: &Entry<'_>, mut with: impl FnMut(&Request<'_>)) {
    if let Some(call) = Call::of(entry) {
        let is_check = |one: &&Request<'_>| one.verb() == Verb::Check && one.role() != Role::Refusals;
        call.requests().iter().filter(is_check).for_each(with);
        return;
    }
    let RecordedRequest { verb, policy } = RecordedRequest::of(entry);
    if verb != Verb::Check {
        return;
    }
    let named: Vec<_> = named_attributes(entry).collect();
    let mut request = Request::new().with_cost(entry.cost);
    request.extend(named.iter().map(|(name, value)| (*name, value.value())));
    request.extend(entry.extra.iter());
    with(&policy.into_iter().fold(request, Request::under));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Another verb or role would decide a call otherwise than the service did.
    #[test]
    fn a_request_is_read_back_with_all_that_decides() {
        let list = json!([
            {"attributes": {"user": "alice", "ip": "192.0.2.1", "shard": 7}},
            {"cost": 0, "verb": "peek", "role": "together", "policy": "p", "deny_over_limit": true, "attributes": {}},
            {"cost": 3, "verb": "refund", "attributes": {}},
            {"cost": 2, "verb": "penalize", "role": "refusals", "attributes": {}},
            {"costs": {"input": 5, "output": 7}, "attributes": {}},
        ]);
        let text = Call::of_line(list).unwrap();
        let call = Call { requests: serde_json::from_slice(&text).unwrap(), hold: None };
        let alice = Request::new()
            .with("ip", std::net::IpAddr::from([192, 0, 2, 1]))
            .with("shard", "7")
            .with("user", "alice");
        let expected = [
            alice,
            Request::new()
                .with_cost(0)
                .with_verb(Verb::Peek)
                .with_role(Role::Together)
                .under("p")
                .deny_over_limit(),
            Request::new().with_cost(3).with_verb(Verb::Refund),
            Request::new().with_cost(2).with_verb(Verb::Penalize).with_role(Role::Refusals),
            Request::new().with_cost([("input", 5), ("output", 7)]),
        ];
        assert_eq!(format!("{:?}", call.requests()), format!("{expected:?}"));
    }

    /// A line that would be decided in part, or take the square of its length, must be reported.
    #[test]
    fn lists_that_the_service_does_not_record_are_refused() {
        let one = json!({"attributes": {}});
        assert!(Call::of_line(json!(vec![one.clone(); MAX_REQUESTS])).is_some());
        let many: BTreeMap<_, _> = (0..=MAX_EXTRAS).map(|n| (n.to_string(), "x")).collect();
        for list in [
            json!([]),
            json!(vec![one; MAX_REQUESTS + 1]),
            json!({}),
            json!([{}]),
            json!([{"verb": "reset", "attributes": {}}]),
            json!([{"role": "leading", "attributes": {}}]),
            json!([{"cost": -1, "attributes": {}}]),
            json!([{"attributes": many}]),
        ] {
            assert!(Call::of_line(list.clone()).is_none(), "{list}");
        }
    }
}
