//! Fields: a decision on a request as header fields of its response, the same through every door.

use axum::http::{HeaderMap, HeaderValue, header};
use slidegate::Decisions;

use crate::app::App;

/// A decision is true once: no cache may keep it.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Room for what a response has by default, so that its fields are moved nowhere while they are written.
pub(super) const USUAL: usize = 12;

/// Puts in what the client is told of a check.
pub(super) fn insert(headers: &mut HeaderMap, app: &App, decisions: &Decisions<'_>) {
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    app.headers.add_to(headers, decisions);
}
