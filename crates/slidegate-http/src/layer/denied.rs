//! Denials: the response to a denied request.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::response::Response;
use slidegate::Decisions;

use super::head::Head;
use crate::headers::Problem;

/// A denied request with its decisions.
///
/// ```
/// use http::{Response, StatusCode};
/// use slidegate_http::layer::Denied;
///
/// fn page(denied: &Denied<'_>) -> Response<String> {
///     let problem = denied.problem();
///     let mut response = Response::new(format!("Please come back later. {}", problem.detail));
///     // 429, or 503 where a shared store is unavailable.
///     *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
///     response
/// }
/// ```
#[derive(Debug)]
pub struct Denied<'d> {
    pub(super) decisions: &'d Decisions<'d>,
    pub(super) request: Head<'d>,
}

impl<'d> Denied<'d> {
    /// The decisions of all policies.
    #[must_use]
    pub fn decisions(&self) -> &'d Decisions<'d> {
        self.decisions
    }

    /// The head of the request.
    #[must_use]
    pub fn request(&self) -> Head<'d> {
        self.request
    }

    /// The denial as a problem body.
    ///
    /// # Panics
    /// Never: a denial has either a policy that denies or an error.
    #[must_use]
    pub fn problem(&self) -> Problem<'d> {
        Problem::of(self.decisions).expect("a denial has a policy that denies, or one that cannot decide")
    }

    /// The default response: the [problem](Self::problem) with its status and
    /// `cache-control: no-store`. The status is 429; or 503 if the shared store is unavailable and
    /// the policy denies in that case; or 500 if the layer names a policy that the gate no longer
    /// has.
    #[must_use]
    pub fn problem_response(&self) -> Response<String> {
        let problem = self.problem();
        let mut response = Response::new(problem.to_json());
        let status = http::StatusCode::from_u16(problem.status);
        *response.status_mut() = status.unwrap_or(http::StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
