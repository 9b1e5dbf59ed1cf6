//! Selects the responses that refund the cost of their request. `pending_refund.rs` refunds it.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::response::Parts;

/// The responses that refund the cost of their request.
///
/// ```
/// use slidegate_http::layer::Refund;
///
/// // Failures of ours are not the client's.
/// let ours = Refund::server_errors().or_unanswered();
/// // Only wrong passwords count: the limit on logins is one on guesses.
/// let guesses = Refund::successes();
/// // What was answered from a cache has cost nothing.
/// let cached = Refund::when(|response| response.headers.contains_key("x-cache-hit"));
/// ```
///
/// The head of the response decides; its body does not matter. The refund completes before the
/// response is returned, so the client's next request benefits from it. The header fields of the
/// response show the state before the refund. A response that takes longer than the charge counts
/// refunds nothing: that would return what other requests have charged since.
///
/// A request is **unanswered** if the inner service fails with an error or panics, or if the client
/// disconnects first and the server drops the response. By default its cost stays charged;
/// [`or_unanswered`](Self::or_unanswered) refunds it. Do not use that for login limits: a client
/// that always disconnects before the answer would have unlimited attempts.
#[derive(Clone)]
pub struct Refund {
    answered: Arc<When>,
    unanswered: bool,
}

type When = dyn Fn(&Parts) -> bool + Send + Sync;

impl Refund {
    /// Refunds if the function returns true for the head of the response.
    #[must_use]
    pub fn when(answered: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { answered: Arc::new(answered), unanswered: false }
    }

    /// Refunds if the function returns true for the status.
    #[must_use]
    pub fn on_status(wanted: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        Self::when(move |response| wanted(response.status))
    }

    /// Refunds on status 500 to 599.
    #[must_use]
    pub fn server_errors() -> Self {
        Self::on_status(|status| status.is_server_error())
    }

    /// Refunds on status 400 to 499.
    #[must_use]
    pub fn client_errors() -> Self {
        Self::on_status(|status| status.is_client_error())
    }

    /// Refunds on status 100 to 399, so that only failures count.
    #[must_use]
    pub fn successes() -> Self {
        Self::on_status(|status| status.as_u16() < 400)
    }

    /// Refunds unanswered requests too.
    #[must_use]
    pub fn or_unanswered(mut self) -> Self {
        self.unanswered = true;
        self
    }

    pub(super) fn answered(&self, response: &Parts) -> bool {
        (self.answered)(response)
    }

    pub(super) fn is_for_unanswered(&self) -> bool {
        self.unanswered
    }
}

impl fmt::Debug for Refund {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refund").field("unanswered", &self.unanswered).finish_non_exhaustive()
    }
}
