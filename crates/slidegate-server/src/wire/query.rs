//! Query strings: names and values as sent, percent-decoded.
//!
//! A key may be any bytes, so values are not converted to text: `%F1` and `%F2` are two values.

use std::borrow::Cow;

use axum::http::{StatusCode, Uri};
use percent_encoding::percent_decode;
use slidegate::{PolicySet, Request};
use slidegate_config::names::is_inline;

use crate::limits::MAX_COST;
use crate::wire::problem::Problem;
use crate::wire::request::sent_value;

/// A request in a query string.
#[derive(Debug, Default)]
pub(super) struct RequestQuery<'q> {
    /// In the order they were sent.
    pub(super) attributes: Vec<(Cow<'q, str>, Cow<'q, [u8]>)>,
    pub(super) cost: Option<u64>,
    /// The only policy to decide.
    pub(super) policy: Option<Cow<'q, str>>,
}

/// Parses a query string in which every pair is an attribute, except `cost` and `policy`, each allowed once.
///
/// # Errors
/// A cost that is not a number, a cost or a policy that is given twice, and names that are not
/// UTF-8: no policy can have such an attribute.
pub(super) fn request(query: &str) -> Result<RequestQuery<'_>, Problem> {
    let mut asked = RequestQuery::default();
    for (at, (name, value)) in pairs(query).enumerate() {
        if *name == *b"cost" {
            if asked.cost.is_some() {
                return Err(Problem::field("cost", "cost is given more than once; give it once"));
            }
            let cost = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
            asked.cost = Some(cost.ok_or_else(|| Problem::cost(&String::from_utf8_lossy(&value), MAX_COST))?);
            continue;
        }
        if *name == *b"policy" {
            if asked.policy.is_some() {
                return Err(Problem::field("policy", "policy is given more than once; give it once"));
            }
            let not_text = || Problem::field("policy", "the policy is not UTF-8; names of policies are text");
            asked.policy = Some(text(value).ok_or_else(not_text)?);
            continue;
        }
        let name = text(name).ok_or_else(|| {
            let detail = format!("the name of parameter {} is not UTF-8; attribute names are text", at + 1);
            Problem::field("attributes", detail)
        })?;
        let value = sent_value(&name, value);
        asked.attributes.push((name, value));
    }
    Ok(asked)
}

/// The pairs of a text-only query string.
///
/// # Errors
/// A name or a value that is not UTF-8.
pub(crate) fn texts(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let read = |(name, value)| {
        let name = text(name).ok_or_else(|| {
            Problem::field("query", "the name of a parameter is not UTF-8; parameter names are text")
        })?;
        let value = text(value).ok_or_else(|| {
            let detail = format!(
                "invalid parameter `{}`: must be UTF-8; write a key as responses print it, with `%25FF` for the byte FF",
                name.escape_debug()
            );
            Problem::field(&*name, detail)
        })?;
        Ok((name.into_owned(), value.into_owned()))
    };
    pairs(query).map(read).collect()
}

/// The parameters of a text-only query string, each taken once.
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// # Errors
    /// A name or a value that is not UTF-8.
    pub(crate) fn of(uri: &Uri) -> Result<Self, Problem> {
        texts(uri.query().unwrap_or_default()).map(Self)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let permit = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(permit).1)
    }

    /// An integer from 1 to `most`.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        default: usize,
        most: usize,
    ) -> Result<usize, Problem> {
        let Some(text) = self.take(name) else { return Ok(default) };
        text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
            Problem::field(
                name,
                format!("invalid {name} `{}`: must be a whole number from 1 to {most}", text.escape_debug()),
            )
        })
    }

    /// Rejects unknown parameters: a misspelled filter would be ignored.
    pub(crate) fn nothing_else(&self, known: &str) -> Result<(), Problem> {
        self.0.first().map_or(Ok(()), |(name, _)| {
            let detail =
                format!("unknown parameter `{}`: must be one of {known}, once each", name.escape_debug());
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        })
    }
}

/// The pairs of a query string. `+` is a space, and a `%` without two hexadecimal digits stands for
/// itself, as in the URL standard.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    })
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('+') {
        return percent_decode(text.as_bytes()).into();
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode(spaced.as_bytes()).collect())
}

fn text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

/// Rejects a policy that cannot decide alone: without the policy, or an attribute of its scope, nothing would
/// limit the request.
pub(crate) fn can_decide(policies: &PolicySet, name: &str, request: &Request<'_>) -> Result<(), Problem> {
    let Some(policy) = policies.by_name(name).filter(|_| !is_inline(name)) else {
        let name = name.escape_debug();
        let detail =
            format!("invalid policy `{name}`: must be a policy in force; `slidegate policy list` lists them");
        return Err(Problem::field("policy", detail));
    };
    match policy.scope().iter().find(|attribute| request.value(attribute).is_none()) {
        None => Ok(()),
        Some(missing) => {
            let detail = format!("policy `{name}` counts by `{missing}`; give that attribute");
            Err(Problem::field("attributes", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two users whose names differ in one byte must not share a limit because that byte is not text.
    #[test]
    fn values_are_decoded_to_the_bytes_that_were_sent() {
        let query = "user=%F1&user=%f2&a%20b=x+y%2B&flag&=v&u=zo%C3%AB&p=100%&q=%zz&r=a=b&&";
        let read: Vec<_> =
            pairs(query).map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        let expected: [(&[u8], &[u8]); 9] = [
            (b"user", b"\xf1"),
            (b"user", b"\xf2"),
            (b"a b", b"x y+"),
            (b"flag", b""),
            (b"", b"v"),
            (b"u", "zoë".as_bytes()),
            (b"p", b"100%"),
            (b"q", b"%zz"),
            (b"r", b"a=b"),
        ];
        let expected = expected.map(|(name, value)| (name.to_vec(), value.to_vec()));
        assert_eq!(read, expected);
        assert_eq!(pairs("").count(), 0);
    }

    /// One of two costs would be dropped silently, and the client charged another cost than it meant.
    #[test]
    fn a_cost_is_given_once_and_is_a_number() {
        let asked = request("user=a&cost=3&policy=p%20q").unwrap();
        assert_eq!((asked.cost, asked.policy.as_deref(), asked.attributes.len()), (Some(3), Some("p q"), 1));
        for (query, said) in [
            ("cost=1&user=a&cost=1", "cost is given more than once"),
            ("cost=1&c%6Fst=2", "cost is given more than once"),
            ("cost=x", "invalid cost `x`: must be a whole number"),
            ("cost=%ff", "must be a whole number"),
            ("policy=a&policy=b", "policy is given more than once; give it once"),
            ("policy=%ff", "the policy is not UTF-8; names of policies are text"),
            ("user=a&%ff=b", "the name of parameter 2 is not UTF-8"),
        ] {
            let problem = format!("{:?}", request(query).unwrap_err());
            assert!(problem.contains(said), "{query}: {problem}");
        }
    }

    /// A filter that lost a byte would show another key's events.
    #[test]
    fn where_text_is_expected_other_bytes_are_an_error() {
        assert_eq!(texts("key=a%2Cb").unwrap(), [("key".to_owned(), "a,b".to_owned())]);
        assert!(
            format!("{:?}", texts("key=%ff").unwrap_err()).contains("invalid parameter `key`: must be UTF-8")
        );
    }
}
