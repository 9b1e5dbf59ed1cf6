//! Denials: what a denied request is answered with.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::response::Response;

use super::head::Head;
use crate::gate::Decisions;
use crate::headers::Problem;

/// A request that is denied, and why.
///
/// ```
/// use http::{Response, StatusCode};
/// use slidegate::layer::Denied;
///
/// fn page(denied: &Denied<'_>) -> Response<String> {
///     let mut response = Response::new(format!("Please slow down. {}", denied.problem().detail));
///     *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
///     response
/// }
/// ```
#[derive(Debug)]
pub struct Denied<'d> {
    pub(super) decisions: &'d Decisions<'d>,
    pub(super) request: Head<'d>,
}

impl<'d> Denied<'d> {
    /// What every policy says.
    #[must_use]
    pub fn decisions(&self) -> &'d Decisions<'d> {
        self.decisions
    }

    /// The head of the request.
    #[must_use]
    pub fn request(&self) -> Head<'d> {
        self.request
    }

    /// The denial in words and numbers.
    ///
    /// # Panics
    /// Never: a denial has a policy that denies.
    #[must_use]
    pub fn problem(&self) -> Problem<'d> {
        Problem::of(self.decisions).expect("a denial has a policy that denies")
    }

    /// What is answered unless something else is asked for: status 429 and a body of RFC 9457, not to be cached.
    #[must_use]
    pub fn problem_response(&self) -> Response<String> {
        let problem = self.problem();
        let mut response = Response::new(problem.to_json());
        *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
