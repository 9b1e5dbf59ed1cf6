//! Response headers of decisions, for all HTTP protocols.

use axum::http::{HeaderMap, HeaderValue, header};
use slidegate::Decisions;
use slidegate_http::headers::HeaderOptions;

/// Decisions must not be cached.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Capacity for a response's default headers, so the map does not grow.
pub(super) const USUAL: usize = 12;

/// Adds the rate-limit headers of a check.
pub(super) fn insert(headers: &mut HeaderMap, options: &HeaderOptions, decisions: &Decisions<'_>) {
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    options.add_to(headers, decisions);
}
