//! Header fields of responses: what every HTTP protocol says of a decision.

use axum::http::{HeaderMap, HeaderValue, header};
use slidegate::Decisions;
use slidegate::headers::HeaderOptions;

/// A decision is true once: no cache may keep it.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Room for what a response has by default, so that its fields are moved nowhere while they are written.
pub(super) const USUAL: usize = 12;

/// Adds the fields that tell a client about a check.
pub(super) fn insert(headers: &mut HeaderMap, options: &HeaderOptions, decisions: &Decisions<'_>) {
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    options.add_to(headers, decisions);
}
