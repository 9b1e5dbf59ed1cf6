//! Waiting for a turn: `/v1/acquire`, and `Prefer: wait` on checks and reservations.

use std::slice;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request as HttpRequest};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::acquire::Patience;
use slidegate::{Policy, Request, verb::Verb};

use super::cost::Cost;
use super::idempotency;
use super::reply::{AppAnswer, call, respond};
use super::request::{Attributes, MAX_BODY, RequestBody};
use super::text::Text;
use crate::engine::App;
use crate::engine::decide::{Call, TurnTerms};
use crate::limits::MAX_WAIT;
use crate::listener::{Connection, TrackedBody};
use crate::wire::json_body;
use crate::wire::problem::Problem;

/// The wait of a call that gives none, in milliseconds.
const DEFAULT_WAIT_MS: u64 = 10_000;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// A request to admit, at once or in its turn.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AcquireRequest")]
pub(super) struct AcquireBody<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    /// Default: 1.
    #[serde(borrow, default)]
    cost: Option<Cost<'a>>,
    /// The only policy to decide by, regardless of its conditions, as in a check.
    #[schemars(length(min = 1, max = Policy::MAX_NAME))]
    #[serde(borrow, default)]
    policy: Option<Text<'a>>,
    /// The longest wait in milliseconds, 0 to 60000. With 0, it is decided at once, but after those who wait.
    #[schemars(range(max = 60_000))]
    #[serde(default = "default_wait")]
    timeout_ms: u64,
}

fn default_wait() -> u64 {
    DEFAULT_WAIT_MS
}

pub(super) async fn acquire(app: &App, client: Connection, request: HttpRequest<TrackedBody>) -> AppAnswer {
    let (head, body) = request.into_parts();
    let bytes = json_body::read(body, MAX_BODY).await?;
    let call = call(app, &head.headers);
    let id = idempotency::id(Verb::Check, &head.headers)?;
    let AcquireBody { attributes, cost, policy, timeout_ms } = json_body::parse(&bytes)?;
    let within = Duration::from_millis(timeout_ms);
    if within > MAX_WAIT {
        let detail = format!(
            "invalid timeout_ms {timeout_ms}: must be 0 to {}; ask again for longer waits",
            MAX_WAIT.as_millis()
        );
        return Err(Problem::field("timeout_ms", detail));
    }
    let ask = RequestBody::new(attributes, cost, policy);
    let request = ask.request(app)?;
    let turn = TurnTerms { patience: Patience::AtMost(within), client };
    let decisions = call.apply_in_turn(Some(Verb::Check), slice::from_ref(&request), id, turn).await;
    respond(app, Verb::Check, &decisions, head.headers)
}

/// A check whose client prefers to wait.
pub(super) async fn check_within(
    app: &App,
    call: &Call<'_>,
    (request, headers): (&Request<'_>, HeaderMap),
    wait: Duration,
    client: Connection,
) -> AppAnswer {
    let id = idempotency::id(Verb::Check, &headers)?;
    let turn = TurnTerms { patience: Patience::AtMost(wait), client };
    let decisions = call.apply_in_turn(Some(Verb::Check), slice::from_ref(request), id, turn).await;
    let mut response = respond(app, Verb::Check, &decisions, headers)?;
    applied(response.headers_mut(), wait);
    Ok(response)
}

/// The wait that a client prefers, in whole seconds and at most [`MAX_WAIT`]: `Prefer: wait=5` (RFC 7240). What is not
/// understood is ignored, as it is a preference.
pub(super) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let wait = |preference: &str| {
        let (name, seconds) = preference.split(';').next()?.split_once('=')?;
        let seconds = seconds.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then(|| Duration::from_secs(seconds).min(MAX_WAIT))
    };
    preferences.flat_map(|value| value.split(',')).find_map(wait)
}

/// Says which wait was granted.
pub(super) fn applied(headers: &mut HeaderMap, wait: Duration) {
    let text = format!("wait={}", wait.as_secs());
    headers.insert(PREFERENCE_APPLIED, HeaderValue::try_from(text).expect("a number is visible"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A preference that is misread keeps a connection open that nobody asked for, or denies at once.
    #[test]
    fn a_preference_is_read_as_the_rfc_writes_it() {
        for (value, wait) in [
            ("wait=5", Some(5)),
            ("Wait = 5", Some(5)),
            ("respond-async, wait=10; foo=bar", Some(10)),
            ("wait=\"7\"", Some(7)),
            ("wait=0", Some(0)),
            ("wait=100000", Some(60)),
            ("wait", None),
            ("wait=", None),
            ("wait=soon", None),
            ("wait=-1", None),
            ("wait=1.5", None),
            ("waiting=3", None),
        ] {
            let headers = [(PREFER, HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(preferred_wait(&headers), wait.map(Duration::from_secs), "{value}");
        }
    }
}
