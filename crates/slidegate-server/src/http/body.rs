//! What clients send: attributes and a cost, as JSON or as a query string.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use crate::app::App;
use crate::limits::{MAX_ATTRIBUTES, MAX_COST};
use crate::policy_names::is_inline;
use crate::problem::Problem;
use crate::query;
use slidegate::{PolicySet, Request};

/// Largest body of one request: its attributes at their longest would not fit, real ones fit a hundred times.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Most requests in a batch. They are decided one after the other.
pub(super) const MAX_BATCH: usize = 1000;
/// Largest body of a batch.
pub(super) const MAX_BATCH_BODY: usize = 2 * 1024 * 1024;
/// A client that does not send its whole body in this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// One request: `{"attributes": {"user": "alice"}, "cost": 1}`, and perhaps `"policy": "per-user"`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    #[serde(default)]
    cost: Cost,
    /// The one policy that is to decide, whatever its conditions.
    #[serde(borrow, default)]
    policy: Option<Text<'a>>,
    /// What stands before an attribute's name where an error names it.
    #[serde(skip, default = "in_body")]
    place: &'static str,
}

fn in_body() -> &'static str {
    "attributes."
}

/// Several requests: `{"requests": [...]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch<'a> {
    #[serde(borrow)]
    pub(super) requests: Vec<Ask<'a>>,
}

/// Names and values in the order they were sent.
#[derive(Debug, Default)]
pub(super) struct Attributes<'a>(Vec<(Cow<'a, str>, Cow<'a, [u8]>)>);

#[derive(Debug, Clone, Copy)]
struct Cost(u64);

impl Default for Cost {
    fn default() -> Self {
        Self(1)
    }
}

impl<'a> Ask<'a> {
    /// Reads a query string: every pair is an attribute but `cost`.
    pub(super) fn from_query(query: &'a str) -> Result<Self, Problem> {
        let query::Asked { attributes, cost } = query::request(query)?;
        let cost = cost.map_or_else(Cost::default, Cost);
        Ok(Self { attributes: Attributes(attributes), cost, policy: None, place: "" })
    }

    /// The request that this asks about.
    pub(super) fn request<'r>(&'r self, app: &App) -> Result<Request<'r>, Problem> {
        let attributes = self.attributes.0.iter().map(|(name, value)| (&**name, &**value));
        let request =
            app.attributes.request(attributes, self.cost.0).map_err(|bad| Problem::of(bad, self.place))?;
        let Some(Text(name)) = &self.policy else { return Ok(request) };
        can_decide(&app.policies(), name, &request)?;
        Ok(request.under(name))
    }
}

/// Whether a policy of this name can decide alone. Nothing would decide under a name that there is not, nor without the
/// attributes that the policy counts by: whoever names a policy wants its limit, and is told instead of let through.
fn can_decide(policies: &PolicySet, name: &str, request: &Request<'_>) -> Result<(), Problem> {
    let Some(policy) = policies.by_name(name).filter(|_| !is_inline(name)) else {
        let name = name.escape_debug();
        let detail = format!("policy `{name}` is not in force; `slidegate policy list` says which are");
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

/// Reads a whole body, in time and in bounds.
pub(crate) async fn read<B>(body: B, most: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, most).collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {most} bytes; send less, or several requests"),
        )),
        Ok(Err(error)) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}")))
        }
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs()),
        )),
    }
}

/// Reads JSON; an error names the field and the place.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    // Else a list would pass for an object without names.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let example = r#"{"attributes": {"user": "alice"}}"#;
        return Err(Problem::field(
            "body",
            format!("the body is no JSON object; send for example `{example}`"),
        ));
    }
    // Only who sends nonsense waits for the place where it stands to be found.
    if let Ok(parsed) = serde_json::from_slice(bytes) {
        return Ok(parsed);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let detail = format!("the body is not what this route takes: {}", error.inner());
        // The parser writes `.` for the whole and `?` for a place that it lost.
        if path == "." || path.contains('?') {
            Problem::field("body", detail)
        } else {
            Problem::field(path, detail)
        }
    })?;
    json.end()
        .map_err(|error| Problem::field("body", format!("the body goes on after its JSON: {error}")))?;
    Ok(parsed)
}

/// Reads a JSON object of any members, none of which may stand twice at any depth: readers of JSON disagree on which of two
/// counts.
pub(crate) fn members(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    match parse(bytes)? {
        Unique(Value::Object(members)) => Ok(members),
        Unique(_) => Err(Problem::field("body", "the body is no JSON object")),
    }
}

/// A JSON value in which no object has a member twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Unique, E> {
                Ok(Unique(Value::Null))
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Unique, E> {
                Ok(Unique(flag.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Unique, E> {
                Ok(Unique(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
                let mut values = Vec::new();
                while let Some(Unique(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Unique(values.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut members = Map::new();
                while let Some((name, Unique(value))) = map.next_entry::<String, Unique>()? {
                    if members.contains_key(&name) {
                        let name = name.escape_debug();
                        return Err(de::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    members.insert(name, value);
                }
                Ok(Unique(members.into()))
            }
        }

        deserializer.deserialize_any(Any)
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
                    // One too many is kept, for the app to refuse by name; a flood is not.
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

/// A text that is borrowed from the body unless it has escapes.
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
