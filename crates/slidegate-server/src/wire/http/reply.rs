//! What the routes of the HTTP API have in common: how a call is recorded, and responses.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response as HttpResponse;
use http_body_util::Full;
use slidegate::{Decisions, Error, Reason, verb::Verb};

use super::answer;
use crate::caller::Protocol;
use crate::engine::App;
use crate::engine::decide::Call;
use crate::wire::fields::{self, NO_STORE};
use crate::wire::problem::{self, Problem};

pub(super) type AppAnswer = Result<HttpResponse<Full<Bytes>>, Problem>;

/// A call of an HTTP client, with the trace context of its request.
pub(super) fn call<'a>(app: &'a App, headers: &HeaderMap) -> Call<'a> {
    app.call(app.observer().caller(Protocol::Http, headers))
}

/// The status and the media type of decisions.
pub(super) fn status_of(verb: Verb, decisions: &Decisions<'_>) -> (StatusCode, HeaderValue) {
    match (verb, decisions.strictest().and_then(|strictest| strictest.decision().reason())) {
        (_, Some(Reason::StoreFull | Reason::StoreUnavailable)) => {
            (StatusCode::SERVICE_UNAVAILABLE, problem::MEDIA_TYPE)
        }
        (Verb::Check, Some(_)) => (StatusCode::TOO_MANY_REQUESTS, problem::MEDIA_TYPE),
        _ => (StatusCode::OK, JSON),
    }
}

/// A denied check gets 429, or 503 if the policy denies because the store is unavailable. A denied
/// peek gets 200, because it succeeded, and 503 if the store is unavailable. Only checks get
/// rate-limit headers. `reused` is a map that is no longer needed.
pub(super) fn respond(app: &App, verb: Verb, decisions: &Decisions<'_>, reused: HeaderMap) -> AppAnswer {
    if let Some(error) = decisions.error() {
        return Err(undecided(&error));
    }
    let (status, media_type) = status_of(verb, decisions);
    let mut response = HttpResponse::new(answer::one(decisions).into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    *headers = reused;
    headers.clear();
    headers.reserve(fields::USUAL);
    headers.insert(header::CONTENT_TYPE, media_type);
    if verb == Verb::Check {
        fields::insert(headers, &app.headers, decisions);
    } else {
        headers.insert(header::CACHE_CONTROL, NO_STORE);
    }
    Ok(response)
}

/// A cost that no policy counts, or a named policy that was removed between the parsing of the
/// request and its decision.
pub(super) fn undecided(error: &Error) -> Problem {
    if error.is_unknown_cost() {
        return Problem::field("cost", error.to_string());
    }
    Problem::field("policy", format!("{error}; it was removed a moment ago"))
}

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub(super) fn ok<B: From<Vec<u8>>>(body: Vec<u8>) -> HttpResponse<B> {
    let mut response = HttpResponse::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    response
}
