//! The refund of one request, which happens once or not at all.
//!
//! A pending refund has one owner, and both starting and cancelling it consume it. Dropping it
//! means that the request was not answered. So no cost is refunded twice, and none is forgotten
//! when a client disconnects.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slidegate::internal::monotonic;
use slidegate::{Decisions, PolicyDecision, Request, verb::Verb};

use super::attribute::AttributeValue;
use super::config::{Config, request_per_policy};
use super::refund::Refund;

/// The charge of a request, until its response decides whether it is refunded.
pub(super) struct PendingRefund {
    /// `None` once the refund was started or cancelled.
    charged: Option<ChargedRequest>,
    /// For a shared gate, whose refund is not to depend on its future.
    runtime: Option<tokio::runtime::Handle>,
}

struct ChargedRequest {
    config: Arc<Config>,
    /// In the order of the layer's attributes.
    values: Box<[Option<AttributeValue<'static>>]>,
    cost: u64,
    /// Before the charge.
    asked: Instant,
    /// How long each charge counts at least.
    counts: Duration,
    /// The policies that were charged, with how long each charge counts: if not all that decided
    /// were, or if they count for different times.
    policies: Option<Vec<(String, Duration)>>,
}

/// A refund in progress. It completes even if this future is dropped, within a tokio runtime.
pub(super) type RefundFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl PendingRefund {
    /// `None` if nothing was charged. A shadow policy that would have denied was not charged and
    /// must not get a refund.
    pub(super) fn new(
        config: &Arc<Config>,
        decisions: &Decisions<'_>,
        request: &Request<'_>,
        asked: Instant,
    ) -> Option<Self> {
        let charged = || decisions.iter().filter(|one| one.decision().cost() > 0);
        let counts = charged().map(|one| counts(&one)).min()?;
        let all = charged().count() == decisions.iter().len();
        let is_alike = all && charged().all(|one| self::counts(&one) == counts);
        let with_name = |one: PolicyDecision<'_>| (one.policy().name().to_owned(), self::counts(&one));
        let policies = (!is_alike).then(|| charged().map(with_name).collect());
        let values = config.attributes.iter().map(|(name, _)| request.value(name).map(AttributeValue::owned));
        let (values, cost) = (values.collect(), request.cost());
        Some(Self {
            charged: Some(ChargedRequest {
                config: Arc::clone(config),
                values,
                cost,
                asked,
                counts,
                policies,
            }),
            runtime: (!config.gate.0.is_local())
                .then(tokio::runtime::Handle::try_current)
                .and_then(Result::ok),
        })
    }

    /// The rule that decides about the refund.
    pub(super) fn rule(&self) -> Option<&Refund> {
        self.charged.as_ref()?.config.refund.as_ref()
    }

    /// Cancels the refund: the request was answered and keeps its charge.
    pub(super) fn cancel(mut self) {
        self.charged = None;
    }

    /// Refunds the cost. A gate in memory is done on return; for a shared gate, the future
    /// completes when the store has confirmed.
    pub(super) fn start(mut self) -> Option<RefundFuture> {
        self.settle()
    }

    fn settle(&mut self) -> Option<RefundFuture> {
        let charged = self.charged.take()?;
        let after = monotonic().saturating_duration_since(charged.asked);
        if charged.requests(after).is_empty() {
            return None;
        }
        let gate = charged.config.gate.clone();
        if gate.0.decide_now(Verb::Refund, &charged.requests(after)).is_some() {
            return None;
        }
        let refund = async move { drop(gate.0.decide(Verb::Refund, &charged.requests(after)).await) };
        if let Some(runtime) = self.runtime.take() {
            let task = runtime.spawn(refund);
            // The task fails only if the runtime shuts down, which also drops this future.
            return Some(Box::pin(async move { drop(task.await) }));
        }
        Some(Box::pin(refund))
    }
}

impl Drop for PendingRefund {
    fn drop(&mut self) {
        if self.rule().is_some_and(Refund::is_for_unanswered) {
            drop(self.settle());
        }
    }
}

impl ChargedRequest {
    /// The requests to refund this long after they were charged: those that still count.
    fn requests(&self, after: Duration) -> Vec<Request<'_>> {
        let mut request = self.config.base_request(self.cost);
        let values = self.config.attributes.iter().zip(&self.values);
        request.extend(values.filter_map(|((name, _), value)| Some((&**name, value.as_ref()?.borrowed()))));
        match (&self.policies, &*self.config.under) {
            (Some(policies), _) => {
                let counting = policies.iter().filter(|(_, counts)| after < *counts);
                counting.map(|(name, _)| request.clone().under(name)).collect()
            }
            (None, _) if after >= self.counts => Vec::new(),
            (None, []) => vec![request],
            (None, under) => request_per_policy(&request, under),
        }
    }
}

/// How long a charge counts at least.
fn counts(decision: &PolicyDecision<'_>) -> Duration {
    decision.decision().reset_after().min(decision.policy().quota().window())
}
