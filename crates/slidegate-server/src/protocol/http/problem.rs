//! Problems: what a client did wrong, as RFC 9457 bodies that name the field.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The media type of problems, denials included.
pub(super) const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A request that cannot be decided.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    /// The member of the body or the query that is wrong.
    field: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), field: None }
    }

    /// A member of the request that is wrong.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail: detail.into(), field: Some(field.into()) }
    }

    /// The same problem within the request at this place of a batch.
    pub(super) fn in_batch(mut self, at: usize) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("requests[{at}].{field}"),
            None => format!("requests[{at}]"),
        });
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            r#type: &'static str,
            title: &'static str,
            status: u16,
            detail: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
        }
        let body = Body {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
        };
        let mut response = (self.status, [(header::CONTENT_TYPE, MEDIA_TYPE)], json(&body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A body of our own types, which always have a JSON form.
pub(super) fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("our answers have text keys and no maps that can fail")
}
