//! Parses paths and bodies of the admin routes, and writes the audit log.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use serde::de::DeserializeOwned;

use crate::access::Operator;
use crate::control::changes::{Cause, Refusal};
use crate::wire::json_body;
use crate::wire::problem::Problem;

/// Maximum size of a request body.
const MAX_BODY: usize = 16 * 1024;

/// Variable path segments. Segments that are not UTF-8 are rejected with a problem body.
pub(super) struct InPath<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for InPath<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Path::from_request_parts(parts, state).await.map(|Path(parts)| Self(parts)).map_err(|_| {
            let detail = "invalid path: must be UTF-8; write a key as responses print it, with `%25FF` for the byte FF";
            Problem::field("path", detail)
        })
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.cause {
            Cause::Unknown => StatusCode::NOT_FOUND,
            Cause::Conflict => StatusCode::CONFLICT,
            Cause::Away => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, refusal.detail)
    }
}

/// The operator and the parsed body; an empty body is `{}`.
pub(super) async fn body<T: DeserializeOwned>(request: Request<Body>) -> Result<(Operator, T), Problem> {
    let (by, bytes) = bytes(request).await?;
    Ok((by, json_body::parse(&bytes)?))
}

/// The operator and the unparsed body.
pub(super) async fn bytes(request: Request<Body>) -> Result<(Operator, Bytes), Problem> {
    let by = request.extensions().get::<Operator>().cloned().expect("the middleware inserts the operator");
    let bytes = json_body::read(request.into_body(), MAX_BODY).await?;
    let bytes = if bytes.trim_ascii().is_empty() { Bytes::from_static(b"{}") } else { bytes };
    Ok((by, bytes))
}
