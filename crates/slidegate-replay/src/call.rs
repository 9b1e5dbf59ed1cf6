//! A call of several requests that the service decided in one step, as a recording has it: one line
//! with the list `requests`.
//!
//! Such an entry has no attributes of its own, only the list as text, so all other entries cost what
//! they did.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slidegate::{PolicyDecision, Request, Role, Verb};

use crate::attributes::{EntryTexts, client_value, request};
use crate::block::MAX_EXTRAS;
use crate::entry::{Entry, REQUESTS};

/// Most requests of a call: a gRPC call has at most 64 descriptors, each with at most one further
/// key for what was refused.
const MAX_REQUESTS: usize = 128;

/// What `requests` must be.
pub(crate) const EXPECTED: &str = "a list of 1 to 128 requests, each with at most 64 `attributes`, and with \
                                   `cost`, `verb`, `role`, `policy` and `deny_over_limit` as the service \
                                   records them";

/// The requests of one call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Call(Vec<CallRequest>);

#[derive(Debug, Serialize, Deserialize)]
struct CallRequest {
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    verb: CallVerb,
    #[serde(default)]
    role: CallRole,
    #[serde(default)]
    deny_over_limit: bool,
    #[serde(default)]
    policy: Option<String>,
    attributes: BTreeMap<String, AttributeText>,
}

fn one() -> u64 {
    1
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallVerb {
    #[default]
    Check,
    Peek,
    Refund,
    Penalize,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallRole {
    #[default]
    Deciding,
    Together,
    IfAllowed,
    Independent,
    Refusals,
}

/// The value of an attribute; a number is the text of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "AttributeValue")]
struct AttributeText(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum AttributeValue {
    Text(String),
    Bool(bool),
    Number(serde_json::Number),
}

impl From<AttributeValue> for AttributeText {
    fn from(value: AttributeValue) -> Self {
        Self(match value {
            AttributeValue::Text(text) => text,
            AttributeValue::Bool(value) => value.to_string(),
            AttributeValue::Number(number) => number.to_string(),
        })
    }
}

impl Call {
    /// The list of a line; `None` if it is not what the service records.
    pub(crate) fn of_line(list: serde_json::Value) -> Option<Self> {
        let call: Self = serde_json::from_value(list).ok()?;
        let has_few = |request: &CallRequest| request.attributes.len() <= usize::from(MAX_EXTRAS);
        ((1..=MAX_REQUESTS).contains(&call.0.len()) && call.0.iter().all(has_few)).then_some(call)
    }

    /// The text that an entry has of it.
    pub(crate) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a call is JSON")
    }

    /// The call of an entry, if it is one.
    pub(crate) fn of(entry: &Entry<'_>) -> Option<Self> {
        serde_json::from_slice(entry.extra.get(REQUESTS)?).ok()
    }

    pub(crate) fn requests(&self) -> Vec<Request<'_>> {
        self.0.iter().map(CallRequest::request).collect()
    }
}

impl CallRequest {
    fn request(&self) -> Request<'_> {
        let verb = match self.verb {
            CallVerb::Check => Verb::Check,
            CallVerb::Peek => Verb::Peek,
            CallVerb::Refund => Verb::Refund,
            CallVerb::Penalize => Verb::Penalize,
        };
        let role = match self.role {
            CallRole::Deciding => Role::Deciding,
            CallRole::Together => Role::Together,
            CallRole::IfAllowed => Role::IfAllowed,
            CallRole::Independent => Role::Independent,
            CallRole::Refusals => Role::Refusals,
        };
        let mut request = Request::new().cost(self.cost).verb(verb).role(role);
        for (name, AttributeText(text)) in &self.attributes {
            request = match name.as_str() {
                "ip" => client_value(text.as_bytes()).into_iter().fold(request, |one, ip| one.with("ip", ip)),
                name => request.with(name, text.as_bytes()),
            };
        }
        if self.deny_over_limit {
            request = request.deny_over_limit();
        }
        self.policy.as_deref().into_iter().fold(request, Request::under)
    }
}

/// Whether a decision counts for its policy: that on a check does, and a peek that denied a call
/// denied what a client asked for, as the service counts it.
pub(crate) fn is_counted(decision: &PolicyDecision<'_>) -> bool {
    match decision.verb() {
        Verb::Check => true,
        Verb::Peek => decision.is_denied() && decision.role() != Role::Independent,
        _ => false,
    }
}

/// Each check of an entry: one, or those of its call.
pub(crate) fn for_each_check(entry: &Entry<'_>, mut with: impl FnMut(&Request<'_>)) {
    let is_check =
        |request: &Request<'_>| request.own_verb() == Verb::Check && request.own_role() != Role::Refusals;
    if let Some(call) = Call::of(entry) {
        call.requests().iter().filter(|request| is_check(request)).for_each(with);
        return;
    }
    let texts = EntryTexts::new(entry, true);
    let request = request(entry, &texts);
    if is_check(&request) {
        with(&request);
    }
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
            {"cost": 3, "verb": "refund", "role": "if_allowed", "attributes": {}},
            {"cost": 2, "verb": "penalize", "role": "refusals", "attributes": {}},
            {"role": "independent", "attributes": {}},
        ]);
        let text = Call::of_line(list).unwrap().text();
        let call: Call = serde_json::from_slice(&text).unwrap();
        let alice = Request::new()
            .cost(1)
            .with("ip", std::net::IpAddr::from([192, 0, 2, 1]))
            .with("shard", "7")
            .with("user", "alice");
        let expected = [
            alice,
            Request::new().cost(0).verb(Verb::Peek).role(Role::Together).under("p").deny_over_limit(),
            Request::new().cost(3).verb(Verb::Refund).role(Role::IfAllowed),
            Request::new().cost(2).verb(Verb::Penalize).role(Role::Refusals),
            Request::new().cost(1).role(Role::Independent),
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
