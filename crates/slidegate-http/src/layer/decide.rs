//! The path from a request to its outcome, for a layer that checks.

use std::sync::Arc;
use std::time::Instant;

use http::response::Response;
use slidegate::internal::monotonic;
use slidegate::{Decisions, Request, verb::Verb};

use super::Limited;
use super::attribute::RequestView;
use super::config::{Config, OwnedAttributes, requests};
use super::denied::Denied;
use super::pending_refund::PendingRefund;
use crate::client_addr::Resolved;
use crate::headers::FieldBuffer;

/// The outcome of a request.
#[expect(clippy::large_enum_variant, reason = "boxed, most requests would allocate")]
pub(super) enum Outcome {
    /// The request is allowed. [`Limited`] is for its extensions.
    Pass(Pass, Option<Limited>),
    /// The request is denied with this response. Boxed because moving it would take as long for an
    /// allowed request, and denials allocate as it is.
    Deny(Box<Response<String>>),
}

/// State of an allowed request, for its response.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) fields: FieldBuffer,
    pub(super) refund: Option<Box<PendingRefund>>,
}

impl Config {
    /// Decides a request at once. `None` if its gate has to be awaited, see [`decide`](Self::decide).
    #[inline]
    pub(super) fn decide_now(self: &Arc<Self>, view: &RequestView<'_>) -> Option<Outcome> {
        if self.skips(view) {
            return Some(self.passed_by());
        }
        let (mut request, owned, client) = self.read(view);
        request.extend(owned.iter().map(|(name, bytes)| (*name, &**bytes)));
        let several = self.named_requests(&request);
        let asked = self.refund.as_ref().map(|_| monotonic());
        let decisions = self.gate.0.decide_now(Verb::Check, requests(&request, &several))?;
        Some(self.outcome(view, &request, &decisions, client, asked))
    }

    /// Decides a request.
    pub(super) async fn decide(self: &Arc<Self>, view: &RequestView<'_>) -> Outcome {
        if self.skips(view) {
            return self.passed_by();
        }
        let (mut request, owned, client) = self.read(view);
        request.extend(owned.iter().map(|(name, bytes)| (*name, &**bytes)));
        let several = self.named_requests(&request);
        let asked = self.refund.as_ref().map(|_| monotonic());
        let decisions = self.gate.0.decide(Verb::Check, requests(&request, &several)).await;
        self.outcome(view, &request, &decisions, client, asked)
    }

    /// Reads a request: its cost, its borrowed attributes, its owned ones, which the caller adds,
    /// and its client.
    #[inline]
    fn read<'p>(&'p self, view: &RequestView<'p>) -> (Request<'p>, OwnedAttributes<'p>, Option<Resolved>) {
        let mut request = self.base_request(self.cost.as_ref().map_or(1, |cost_of| cost_of(&view.head)));
        let client = self.client_of(view);
        let owned = self.set_attributes(&mut request, view, client.as_ref());
        (request, owned, client)
    }

    /// The outcome of a request that bypasses the limit.
    fn passed_by(&self) -> Outcome {
        Outcome::Pass(Pass::default(), self.sets_extension.then(Limited::default))
    }

    #[inline]
    fn outcome(
        self: &Arc<Self>,
        view: &RequestView<'_>,
        request: &Request<'_>,
        decisions: &Decisions<'_>,
        client: Option<Resolved>,
        asked: Option<Instant>,
    ) -> Outcome {
        let mut fields = FieldBuffer::default();
        self.headers.write_all(decisions, &mut fields);
        if decisions.is_denied() {
            let denied = Denied { decisions, request: view.head };
            return Outcome::Deny(Box::new(self.denial(&denied, fields)));
        }
        let refund =
            asked.and_then(|asked| PendingRefund::new(self, decisions, request, asked)).map(Box::new);
        Outcome::Pass(Pass { fields, refund }, self.sets_extension.then(|| Limited::new(decisions, client)))
    }
}
