//! `Idempotency-Key`: a client may resend a check whose response it did not receive.
//!
//! Only checks and reservations are idempotent. Other requests with this header are rejected, because the client
//! would expect that a refund sent twice refunds once.

use axum::http::{HeaderMap, HeaderName};

use slidegate::verb::Verb;

use crate::limits::MAX_ID;
use crate::wire::problem::Problem;

const NAME: HeaderName = HeaderName::from_static("idempotency-key");

/// The id of a request, if any.
pub(super) fn id(verb: Verb, headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    if !headers.contains_key(NAME) {
        return Ok(None);
    }
    if verb != Verb::Check {
        return Err(wrong(
            "only a single check or reservation has an idempotency key, so leave the header out",
        ));
    }
    let mut values = headers.get_all(NAME).iter();
    let (value, more) = (values.next(), values.next());
    let visible =
        |id: &&str| (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    match value.and_then(|value| value.to_str().ok()).filter(visible) {
        _ if more.is_some() => Err(wrong("the header is sent twice; give one id")),
        Some(id) => Ok(Some(id)),
        None => Err(wrong(&format!(
            "the id is not 1 to {MAX_ID} visible ASCII characters; give for example a UUID"
        ))),
    }
}

/// Rejects an id on anything but a single check.
pub(super) fn none(headers: &HeaderMap) -> Result<(), Problem> {
    id(Verb::Peek, headers).map(|_| ())
}

fn wrong(detail: &str) -> Problem {
    Problem::field("Idempotency-Key", detail)
}
