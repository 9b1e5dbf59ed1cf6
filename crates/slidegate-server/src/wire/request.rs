//! Builds requests from attributes and a cost, with the same bounds for all protocols.

use std::borrow::Cow;

use slidegate::{Cost, Request, Value, request_path::normalized_host};
use slidegate_config::values::MAX_ATTRIBUTE_NAME;

use crate::limits::{MAX_ATTRIBUTES, MAX_COST, MAX_COST_NAME, MAX_COST_NAMES};
use crate::log_limit::log_limited;
use crate::wire::malformed::Flaw;

/// The shared value of unreadable addresses. It is text, so no address equals it.
pub(crate) const UNKNOWN: &str = "unknown";

/// The attribute whose spellings are normalized over HTTP.
pub(crate) const HOST: &str = "host";

/// Builds requests from attributes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes {
    /// Attributes whose text is an IP address.
    pub(crate) addresses: Vec<String>,
}

/// Why attributes or a cost are invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRequest {
    pub(crate) field: Field,
    /// One line that names the value and the fix.
    pub(crate) detail: String,
}

/// The invalid part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    /// The attribute of this name.
    Attribute(String),
    /// The attributes as a whole.
    Attributes,
    Cost,
    /// The cost of this name.
    NamedCost(String),
}

impl Attributes {
    /// Whether the text of this attribute is an IP address.
    pub(crate) fn is_address(&self, attribute: &str) -> bool {
        self.addresses.iter().any(|known| known == attribute)
    }

    /// Builds a request, with addresses parsed.
    ///
    /// # Errors
    /// Too many attributes, a duplicate, a name that is empty or too long, or a cost above
    /// [`MAX_COST`]. Never a value: clients of proxies choose those, and an error is not a denial.
    pub(crate) fn request<'r>(
        &self,
        attributes: impl Iterator<Item = (&'r str, &'r [u8])>,
        cost: u64,
    ) -> Result<Request<'r>, BadRequest> {
        check_cost(cost)?;
        let mut request = Request::new().with_cost(cost);
        self.add_to(&mut request, attributes)?;
        Ok(request)
    }

    /// Adds attributes to a request, with addresses parsed.
    ///
    /// # Errors
    /// The errors of [`request`](Self::request); the request must then not be used.
    pub(crate) fn add_to<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r str, &'r [u8])>,
    ) -> Result<(), BadRequest> {
        let bad = |field, detail| Err(BadRequest { field, detail });
        for (at, (name, value)) in attributes.enumerate() {
            if at == MAX_ATTRIBUTES {
                return bad(
                    Field::Attributes,
                    format!("there are more than {MAX_ATTRIBUTES} attributes; give those that policies use"),
                );
            }
            if name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME {
                return bad(
                    Field::Attributes,
                    format!(
                        "the name of attribute {} has {} bytes; give 1 to {MAX_ATTRIBUTE_NAME}",
                        at + 1,
                        name.len()
                    ),
                );
            }
            if request.value(name).is_some() {
                return bad(
                    Field::Attribute(name.to_owned()),
                    format!("attribute `{name}` is given twice; give it once"),
                );
            }
            let value = if self.is_address(name) { address(name, value) } else { Value::Bytes(value) };
            request.extend([(name, value)]);
        }
        Ok(())
    }

    /// Adds the countable attributes of a request whose sender cannot correct them: a proxy's clients choose
    /// some of them, so an error would bypass limits. Reports the flaws.
    ///
    /// Of attributes with one name, the first counts. Attributes that no policy can name, and those beyond
    /// the maximum, are dropped. If an address attribute is not an address, its text is an ordinary key in no
    /// network. Values may have any length.
    pub(crate) fn add_all_that_count<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r [u8], &'r [u8])>,
        mut report: impl FnMut(Flaw),
    ) {
        let mut added = 0;
        for (name, value) in attributes {
            let Ok(name) = std::str::from_utf8(name) else {
                report(Flaw::Encoding);
                continue;
            };
            if name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME {
                report(Flaw::Length);
                continue;
            }
            if request.value(name).is_some() {
                report(Flaw::Repeated);
                continue;
            }
            if added == MAX_ATTRIBUTES {
                report(Flaw::TooMany);
                return;
            }
            added += 1;
            let is_address = self.is_address(name);
            let address = || std::str::from_utf8(value).ok()?.parse().ok();
            match is_address.then(address).flatten() {
                Some(ip) => request.extend([(name, Value::Address(ip))]),
                None => {
                    if is_address {
                        report(Flaw::Address);
                    }
                    request.extend([(name, Value::Bytes(value))]);
                }
            }
        }
    }
}

/// A value received over HTTP: `host` is normalized, others stay unchanged.
pub(crate) fn sent_value<'v>(name: &str, value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
    if name != HOST {
        return value;
    }
    match value {
        Cow::Borrowed(value) => normalized_host(value),
        Cow::Owned(value) => Cow::Owned(normalized_host(&value).into_owned()),
    }
}

/// Parses an address; returns [`UNKNOWN`] if it is invalid: if each text counted separately, clients could
/// choose any number of keys.
fn address<'r>(name: &str, text: &[u8]) -> Value<'r> {
    match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
        Some(ip) => Value::Address(ip),
        None => {
            if text != UNKNOWN.as_bytes() {
                // Without the text, which may be anything of any length.
                log_limited!(
                    WARN,
                    None,
                    attribute = name,
                    bytes = text.len(),
                    "an attribute is not an IP address such as 192.0.2.7 or 2001:db8::7; requests like this one \
                     count as one client, `unknown`"
                );
            }
            Value::from(UNKNOWN)
        }
    }
}

/// Combines named numbers into a cost.
///
/// # Errors
/// No name or too many, one that policies cannot count, one that is given twice, or a sum above
/// [`MAX_COST`].
pub(crate) fn named_cost<'r>(costs: &[(&'r str, u64)]) -> Result<Cost<'r>, BadRequest> {
    let bad = |field, detail| Err(BadRequest { field, detail });
    if costs.is_empty() || costs.len() > MAX_COST_NAMES {
        return bad(
            Field::Cost,
            format!(
                "the cost has {} names; give 1 to {MAX_COST_NAMES} that policies count, or a number",
                costs.len()
            ),
        );
    }
    for (at, (name, _)) in costs.iter().enumerate() {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if !(1..=MAX_COST_NAME).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return bad(
                Field::Cost,
                format!(
                    "invalid name of a cost `{}`: must be 1 to {} of the characters A-Z a-z 0-9 _ . -",
                    name.chars().take(64).collect::<String>().escape_debug(),
                    MAX_COST_NAME
                ),
            );
        }
        if costs[..at].iter().any(|(before, _)| before == name) {
            return bad(
                Field::NamedCost((*name).to_owned()),
                format!("cost `{name}` is given more than once; give it once"),
            );
        }
    }
    check_cost(costs.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost)))?;
    Ok(costs.into())
}

/// Rejects a cost above [`MAX_COST`].
pub(crate) fn check_cost(cost: u64) -> Result<(), BadRequest> {
    if cost <= MAX_COST {
        return Ok(());
    }
    let detail = format!("cost {cost} is too large; give a whole number from 0 to {MAX_COST}");
    Err(BadRequest { field: Field::Cost, detail })
}
