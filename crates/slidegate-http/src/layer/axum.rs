//! Extractors for handlers of axum.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::{Limited, Reservation};
use crate::client_addr::Resolved;

/// Why an extractor failed. The response has status 500, because the application is set up
/// incorrectly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotLimited(&'static str);

impl std::fmt::Display for NotLimited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotLimited {}

impl IntoResponse for NotLimited {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}

const NO_LAYER: NotLimited = NotLimited(
    "no rate limit decision in the request: the route has no `RateLimitLayer`, or it has `.without_extension()`; add the layer",
);
const NO_RESERVATION: NotLimited = NotLimited(
    "no reservation in the request: the route has no `ReserveLayer`, or the request bypassed it; add the layer",
);
const NO_CLIENT: NotLimited = NotLimited(
    "no client address in the request: the `RateLimitLayer` of the route has no rule for it; add `.client_addr(...)`",
);

/// The decisions for the request.
impl<S: Sync> FromRequestParts<S> for Limited {
    type Rejection = NotLimited;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, NotLimited> {
        request.extensions.get::<Self>().cloned().ok_or(NO_LAYER)
    }
}

/// The decisions for the request, if its route has a limit.
impl<S: Sync> OptionalFromRequestParts<S> for Limited {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(request.extensions.get::<Self>().cloned())
    }
}

/// The reservation of the request.
impl<S: Sync> FromRequestParts<S> for Reservation {
    type Rejection = NotLimited;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, NotLimited> {
        request.extensions.get::<Self>().cloned().ok_or(NO_RESERVATION)
    }
}

/// The client's address, found by the rule of the route's
/// [`RateLimitLayer`](super::RateLimitLayer).
impl<S: Sync> FromRequestParts<S> for Resolved {
    type Rejection = NotLimited;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, NotLimited> {
        let limited = request.extensions.get::<Limited>().ok_or(NO_LAYER)?;
        limited.client().ok_or(NO_CLIENT)
    }
}
