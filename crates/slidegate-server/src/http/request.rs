//! Request bodies of the HTTP API: attributes and a cost, as JSON or as a query string.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use crate::app::App;
use crate::limits::{MAX_ATTRIBUTES, MAX_COST};
use crate::policy_names::is_inline;
use crate::problem::Problem;
use crate::query;
use slidegate::{PolicySet, Request};

/// Maximum body of one request: a hundred times the size of real ones.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Maximum requests in a batch. They are decided one after another.
pub(super) const MAX_BATCH: usize = 1000;
/// Maximum body of a batch.
pub(super) const MAX_BATCH_BODY: usize = 2 * 1024 * 1024;

/// One request: `{"attributes": {"user": "alice"}, "cost": 1}`, and perhaps `"policy": "per-user"`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestBody<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    #[serde(default)]
    cost: Cost,
    /// The only policy to decide, regardless of its conditions.
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
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<'a> {
    #[serde(borrow)]
    pub(super) requests: Vec<RequestBody<'a>>,
}

/// Names and values, in the order sent.
#[derive(Debug, Default)]
pub(super) struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, [u8]>)>);

#[derive(Debug, Clone, Copy)]
struct Cost(u64);

impl Default for Cost {
    fn default() -> Self {
        Self(1)
    }
}

impl<'a> RequestBody<'a> {
    /// Parses a query string: every pair is an attribute, except `cost`.
    pub(super) fn from_query(query: &'a str) -> Result<Self, Problem> {
        let query::Asked { attributes, cost } = query::request(query)?;
        let cost = cost.map_or_else(Cost::default, Cost);
        Ok(Self { attributes: Attributes(attributes), cost, policy: None, prefix: "" })
    }

    /// Its attributes and its cost.
    #[cfg(fuzzing)]
    pub(super) fn asked(&self) -> (Vec<(String, Vec<u8>)>, u64) {
        let owned = |(name, value): &(Cow<'_, str>, Cow<'_, [u8]>)| (name.to_string(), value.to_vec());
        (self.attributes.0.iter().map(owned).collect(), self.cost.0)
    }

    /// The request to decide.
    pub(super) fn request<'r>(&'r self, app: &App) -> Result<Request<'r>, Problem> {
        let attributes = self.attributes.0.iter().map(|(name, value)| (&**name, &**value));
        let request =
            app.attributes.request(attributes, self.cost.0).map_err(|bad| Problem::of(bad, self.prefix))?;
        let Some(Text(name)) = &self.policy else { return Ok(request) };
        can_decide(&app.policies(), name, &request)?;
        Ok(request.under(name))
    }
}

/// Whether a policy of this name can decide alone. Without the policy or an attribute of its scope,
/// nothing would limit the request, so it is rejected.
fn can_decide(policies: &PolicySet, name: &str, request: &Request<'_>) -> Result<(), Problem> {
    let Some(policy) = policies.by_name(name).filter(|_| !is_inline(name)) else {
        let name = name.escape_debug();
        let detail =
            format!("invalid policy `{name}`: must be a policy in force; `slidegate policy list` lists them");
        return Err(Problem::field("policy", detail));
    };
    match policy.scope_attributes().iter().find(|attribute| request.value(attribute).is_none()) {
        None => Ok(()),
        Some(missing) => {
            let detail = format!("policy `{name}` counts by `{missing}`; give that attribute");
            Err(Problem::field("attributes", detail))
        }
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
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    // Keep one too many, so that the request is rejected with the right error.
                    if pairs.len() <= MAX_ATTRIBUTES {
                        pairs.push((name, into_bytes(value)));
                    }
                }
                Ok(Attributes(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// The bytes of a text, without a copy.
fn into_bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// A string, borrowed from the body unless it has escapes.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowing;

        impl<'de> Visitor<'de> for Borrowing {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text; write numbers as \"42\"")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Borrowing)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;

        impl Visitor<'_> for Whole {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {MAX_COST}")
            }

            fn visit_u64<E: de::Error>(self, cost: u64) -> Result<Cost, E> {
                Ok(Cost(cost))
            }
        }

        deserializer.deserialize_u64(Whole)
    }
}
