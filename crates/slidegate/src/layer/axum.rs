//! What axum knows of a request, and extractors for handlers.
//!
//! axum hands out path parameters by an asynchronous function that never waits.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::{FromRequestParts, MatchedPath, OptionalFromRequestParts, RawPathParams};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Extensions, Request, StatusCode};

use super::Limited;
use crate::client_addr::Resolved;

/// The parameters of the path pattern that was matched.
pub(super) struct PathParams(RawPathParams);

impl PathParams {
    /// `None` outside of a router's routes, and where one of them is not UTF-8.
    pub(super) fn of(extensions: &mut Extensions) -> Option<Self> {
        // axum reads them from the head of a request, of which it needs only these.
        let (mut head, ()) = Request::new(()).into_parts();
        std::mem::swap(&mut head.extensions, extensions);
        let read = at_once(RawPathParams::from_request_parts(&mut head, &()));
        std::mem::swap(&mut head.extensions, extensions);
        read?.ok().map(Self)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// What a future gives that never waits.
fn at_once<T>(read: impl Future<Output = T>) -> Option<T> {
    match pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => Some(read),
        Poll::Pending => None,
    }
}

pub(super) fn matched_path(extensions: &Extensions) -> Option<&str> {
    extensions.get::<MatchedPath>().map(MatchedPath::as_str)
}

/// Why a handler was not given what it asked for: answers 500, as the application is put together wrongly.
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
    "the handler asks for what the limit has decided, but its route has no `RateLimitLayer` that tells handlers; add one",
);
const NO_CLIENT: NotLimited = NotLimited(
    "the handler asks for the client's address, but its `RateLimitLayer` has no rule for it; add `.client_addr(...)`",
);

/// What was decided about the request.
impl<S: Sync> FromRequestParts<S> for Limited {
    type Rejection = NotLimited;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, NotLimited> {
        request.extensions.get::<Self>().cloned().ok_or(NO_LAYER)
    }
}

/// What was decided about the request, where the route has a limit.
impl<S: Sync> OptionalFromRequestParts<S> for Limited {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(request.extensions.get::<Self>().cloned())
    }
}

/// Who the client is, by the rule of the route's [`RateLimitLayer`](super::RateLimitLayer).
impl<S: Sync> FromRequestParts<S> for Resolved {
    type Rejection = NotLimited;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, NotLimited> {
        let limited = request.extensions.get::<Limited>().ok_or(NO_LAYER)?;
        limited.client().ok_or(NO_CLIENT)
    }
}
