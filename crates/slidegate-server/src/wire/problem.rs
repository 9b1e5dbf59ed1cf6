//! Problem bodies (RFC 9457) for invalid requests; they name the field.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate_http::headers::secs_ceil;

use crate::wire::request::{BadRequest, Field};

/// The media type of problems, including denials.
pub(super) const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The error of a request that cannot be decided.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    /// The invalid member of the body or query.
    field: Option<String>,
    /// When to retry the same request.
    retry_after: Option<Duration>,
    /// The only key that the token may read.
    own_key: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), field: None, retry_after: None, own_key: None }
    }

    /// An invalid member of the request.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(StatusCode::BAD_REQUEST, detail) }
    }

    /// An instance that is not in the fleet.
    pub(crate) fn unknown_instance(detail: String) -> Self {
        Self::field("instance", detail).with_status(StatusCode::NOT_FOUND)
    }

    /// Names another member.
    pub(super) fn in_field(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// Sets a status other than 400.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Sets the time after which to retry.
    pub(crate) fn after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }

    /// Names the only key that the token may read, so that a page can open it.
    pub(crate) fn with_own_key(self, own_key: String) -> Self {
        Self { own_key: Some(own_key), ..self }
    }

    /// Adds a fix.
    pub(crate) fn and(self, fix: &str) -> Self {
        Self { detail: format!("{}; {fix}", self.detail), ..self }
    }

    /// For invalid attributes or an invalid cost; `prefix` precedes an attribute's name.
    pub(super) fn of(bad: BadRequest, prefix: &str) -> Self {
        match bad.field {
            Field::Attribute(name) => Self::field(format!("{prefix}{name}"), bad.detail),
            Field::Attributes => Self::field("attributes", bad.detail),
            Field::Cost => Self::field("cost", bad.detail),
            Field::NamedCost(name) => Self::field(format!("cost.{name}"), bad.detail),
        }
    }

    /// For an invalid cost.
    pub(super) fn cost(written: &str, most: u64) -> Self {
        let detail =
            format!("invalid cost `{}`: must be a whole number from 0 to {most}", written.escape_debug());
        Self::field("cost", detail)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// For an unsupported method.
    pub(super) fn wrong_method(uri: &Uri, method: &Method) -> Self {
        let path = uri.path().escape_debug();
        let detail = format!("{path} does not take {method}; the `Allow` header says what it takes");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
    }

    /// Adds the request's index in a batch.
    pub(super) fn in_batch(mut self, at: usize) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("requests[{at}].{field}"),
            None => format!("requests[{at}]"),
        });
        self
    }
}

/// A problem of RFC 9457.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct Members<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    /// What is wrong and how to fix it, in a sentence.
    detail: &'a str,
    /// The invalid member of the body or query.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// The only key that the token may read, as `POLICY/KEY`.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    own_key: Option<&'a str>,
}

impl Problem {
    pub(crate) fn response<B: From<Vec<u8>>>(self) -> Response<B> {
        let members = Members {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            own_key: self.own_key.as_deref(),
        };
        let mut response = Response::new(B::from(json(&members)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, MEDIA_TYPE);
        if let Some(span) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, secs_ceil(span).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        self.response()
    }
}

/// An uncacheable response.
pub(crate) fn ok(body: &impl Serialize) -> Response<Body> {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, json(body)).into_response()
}

/// Serializes a body of our own types, which never fails.
pub(crate) fn json(body: &impl Serialize) -> Vec<u8> {
    let mut written = Vec::with_capacity(USUAL);
    serde_json::to_writer(&mut written, body).expect("our answers have text keys and no maps that can fail");
    written
}

/// Initial capacity of a response: enough for one request under one or two policies.
pub(super) const USUAL: usize = 1024;
