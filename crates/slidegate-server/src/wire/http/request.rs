//! Request bodies of the HTTP API: attributes and a cost, as JSON or as a query string.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use slidegate::{Policy, Request, clock::parse_window};

use super::cost::Cost;
use super::reply::undecided;
use super::text::{Bytes, Text, Ttl};
use crate::engine::App;
use crate::limits::MAX_ATTRIBUTES;
use crate::wire::problem::Problem;
use crate::wire::query::{self, can_decide};
use crate::wire::request::sent_value;

/// Maximum requests in a batch. They are decided one after another.
pub(super) const MAX_REQUESTS: usize = 1000;

/// Maximum body of one request: a hundred times the size of real ones.
pub(super) const MAX_BODY: usize = 64 * 1024;

/// One request: `{"attributes": {"user": "alice"}, "cost": 1}`, and perhaps `"policy": "per-user"`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Request")]
pub(super) struct RequestBody<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    /// Default: 1.
    #[serde(borrow, default)]
    cost: Option<Cost<'a>>,
    /// The only policy to decide by, regardless of its conditions. It must be active, and the request must have the
    /// attributes of its scope.
    #[schemars(length(min = 1, max = Policy::MAX_NAME), extend("example" = "per-user"))]
    #[serde(borrow, default)]
    policy: Option<Text<'a>>,
    /// The prefix of an attribute's name in errors.
    #[serde(skip, default = "in_body")]
    prefix: &'static str,
}

fn in_body() -> &'static str {
    "attributes."
}

/// Several requests: `{"requests": [...]}`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Batch")]
pub(super) struct BatchBody<'a> {
    #[schemars(length(max = MAX_REQUESTS))]
    #[serde(borrow)]
    pub(super) requests: Vec<RequestBody<'a>>,
}

/// Attributes of the request, in the order sent. Those that are addresses, by default `ip`, are IP addresses; requests with other text
/// there count as one client, `unknown`. `host` counts in lower case, without port and trailing dot.
#[derive(Debug, Default, JsonSchema)]
#[schemars(
    with = "BTreeMap<String, String>",
    extend("maxProperties" = MAX_ATTRIBUTES, "example" = {"user": "alice"})
)]
pub(super) struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, [u8]>)>);

/// A request to reserve: one request, and `"ttl": "30s"`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReserveRequest")]
pub(super) struct ReserveBody<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    /// The maximum cost of the request. Default: the estimate of each policy, or 1.
    #[serde(borrow, default)]
    cost: Option<Cost<'a>>,
    /// The only policy to decide by, regardless of its conditions, as in a check.
    #[schemars(length(min = 1, max = Policy::MAX_NAME))]
    #[serde(borrow, default)]
    policy: Option<Text<'a>>,
    /// How long the reservation lasts, 1 ms to 1 h. Default: one minute; under the algorithm `in-flight`, the lease
    /// of the policy.
    #[schemars(extend("example" = "30s"))]
    #[serde(borrow, default)]
    ttl: Option<Ttl<'a>>,
}

impl<'a> ReserveBody<'a> {
    /// The request, and the lifetime of its reservation, if given.
    pub(super) fn into_parts(self) -> Result<(RequestBody<'a>, Option<Duration>), Problem> {
        let Self { attributes, cost, policy, ttl } = self;
        let ttl = ttl.as_ref().map(parse_ttl);
        Ok((RequestBody::new(attributes, cost, policy), ttl.transpose()?))
    }
}

/// The field `ttl`. Its range is checked where it is used.
pub(super) fn parse_ttl(Ttl(text): &Ttl<'_>) -> Result<Duration, Problem> {
    parse_window(text).map_err(|_| {
        let text = text.chars().take(64).collect::<String>();
        let detail = format!("invalid ttl `{}`: must be {}", text.escape_debug(), Ttl::EXPECTED);
        Problem::field("ttl", detail)
    })
}

impl<'a> RequestBody<'a> {
    /// The request of another body.
    pub(super) fn new(attributes: Attributes<'a>, cost: Option<Cost<'a>>, policy: Option<Text<'a>>) -> Self {
        Self { attributes, cost, policy, prefix: in_body() }
    }

    /// Parses a query string: every pair is an attribute, except `cost` and `policy`.
    pub(super) fn from_query(query: &'a str) -> Result<Self, Problem> {
        let query::RequestQuery { attributes, cost, policy } = query::request(query)?;
        let (cost, policy) = (cost.map(Cost::Number), policy.map(Text));
        Ok(Self { attributes: Attributes(attributes), cost, policy, prefix: "" })
    }

    /// Its attributes and its cost.
    #[cfg(fuzzing)]
    pub(super) fn asked(&self) -> (Vec<(String, Vec<u8>)>, u64) {
        let owned = |(name, value): &(Cow<'_, str>, Cow<'_, [u8]>)| (name.to_string(), value.to_vec());
        (self.attributes.0.iter().map(owned).collect(), self.cost.as_ref().map_or(1, Cost::total))
    }

    /// Whether it has a cost.
    pub(super) fn says_cost(&self) -> bool {
        self.cost.is_some()
    }

    /// The request to decide.
    pub(super) fn request<'r>(&'r self, app: &App) -> Result<Request<'r>, Problem> {
        let attributes = self.attributes.0.iter().map(|(name, value)| (&**name, &**value));
        let mut request = match &self.cost {
            Some(cost) => Request::new().with_cost(cost.read()?),
            None => Request::new(),
        };
        app.attributes.add_to(&mut request, attributes).map_err(|bad| Problem::of(bad, self.prefix))?;
        if let Some(Text(name)) = &self.policy {
            can_decide(&app.policies(), name, &request)?;
            request = request.under(name);
        }
        // Of a batch nothing may be charged if one cannot be decided.
        if matches!(self.cost, Some(Cost::Named(_)))
            && let Some(error) = app.policies().error_of(&request)
        {
            return Err(undecided(&error));
        }
        Ok(request)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts such as {\"user\": \"alice\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((Text(name), Bytes(value))) = map.next_entry()? {
                    // Keep one too many, so that the request is rejected with the right error.
                    if pairs.len() <= MAX_ATTRIBUTES {
                        let value = sent_value(&name, value);
                        pairs.push((name, value));
                    }
                }
                Ok(Attributes(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}
