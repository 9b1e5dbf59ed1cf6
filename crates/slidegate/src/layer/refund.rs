//! Refunds: which answers give a request's cost back, and how that happens once and only once.
//!
//! What is owed has one owner, and to pay it or to keep it takes it from him; if he is dropped with it, the request went
//! unanswered. Nobody can pay twice, and a client that leaves cannot leave a debt behind.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::StatusCode;
use http::response::Parts;

use super::attribute::AttributeValue;
use super::config::{AnyGate, Config, named};
use crate::gate::Decisions;
use crate::request::Request;
use crate::verb::Verb;

/// Which answers give the cost of their request back.
///
/// ```
/// use slidegate::layer::Refund;
///
/// // Failures of ours are not the client's.
/// let ours = Refund::server_errors().or_unanswered();
/// // Only wrong passwords count: the limit on logins is one on guesses.
/// let guesses = Refund::successes();
/// // What was answered from a cache has cost nothing.
/// let cached = Refund::when(|response| response.headers.contains_key("x-cache-hit"));
/// ```
///
/// The head of the response decides; what becomes of its body does not matter. The refund is done before the response
/// goes on, so the client's next request finds it. The response's header fields tell what was left before it.
///
/// A request goes **unanswered** when the inner service fails with an error or panics, or when the client goes away
/// first, so that the server drops the response. Its cost stays charged unless [`or_unanswered`](Self::or_unanswered)
/// says otherwise, as whoever hangs up before the answer would have all his tries for nothing: not for limits on logins.
#[derive(Clone)]
pub struct Refund {
    answered: Arc<When>,
    unanswered: bool,
}

type When = dyn Fn(&Parts) -> bool + Send + Sync;

impl Refund {
    /// Answers that the function says yes to.
    #[must_use]
    pub fn when(answered: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { answered: Arc::new(answered), unanswered: false }
    }

    /// Answers with such a status.
    #[must_use]
    pub fn on_status(wanted: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        Self::when(move |response| wanted(response.status))
    }

    /// Status 500 to 599.
    #[must_use]
    pub fn server_errors() -> Self {
        Self::on_status(|status| status.is_server_error())
    }

    /// Status 400 to 499.
    #[must_use]
    pub fn client_errors() -> Self {
        Self::on_status(|status| status.is_client_error())
    }

    /// Status 100 to 399: what is left counts failures.
    #[must_use]
    pub fn successes() -> Self {
        Self::on_status(|status| status.as_u16() < 400)
    }

    /// Requests without an answer as well.
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

/// What a request was charged, until its answer says whether it is given back.
pub(super) struct Owed {
    /// Taken by whoever settles it.
    debt: Option<Debt>,
    #[cfg(feature = "redis")]
    runtime: Option<tokio::runtime::Handle>,
}

struct Debt {
    config: Arc<Config>,
    /// In the order of the layer's attributes.
    values: Box<[Option<AttributeValue<'static>>]>,
    cost: u64,
    /// Names of the policies that were charged, where those are not all that were asked.
    charged: Option<Vec<String>>,
}

/// A refund on its way. It arrives whether or not anybody waits for it.
pub(super) type Paying = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Owed {
    /// `None` where nothing was charged. A shadow policy that would have denied was not, and must not be given anything.
    pub(super) fn new(
        config: &Arc<Config>,
        decisions: &Decisions<'_>,
        request: &Request<'_>,
    ) -> Option<Self> {
        let charged = || decisions.iter().filter(|one| one.cost > 0);
        charged().next()?;
        let all = charged().count() == decisions.iter().len();
        let charged = (!all).then(|| charged().map(|one| one.policy().name().to_owned()).collect());
        let values = config.attributes.iter().map(|(name, _)| request.value(name).map(AttributeValue::kept));
        let (values, cost) = (values.collect(), request.asked_cost());
        Some(Self {
            debt: Some(Debt { config: Arc::clone(config), values, cost, charged }),
            #[cfg(feature = "redis")]
            runtime: tokio::runtime::Handle::try_current().ok(),
        })
    }

    /// What answers are looked at for.
    pub(super) fn refund(&self) -> Option<&Refund> {
        self.debt.as_ref()?.config.refund.as_ref()
    }

    /// The request was answered and keeps its charge.
    pub(super) fn keep(mut self) {
        self.debt = None;
    }

    /// Gives the cost back. In memory that is done on return; `Some` is a refund that a store has yet to confirm.
    pub(super) fn pay(mut self) -> Option<Paying> {
        self.settle()
    }

    fn settle(&mut self) -> Option<Paying> {
        let debt = self.debt.take()?;
        match debt.config.gate.clone() {
            AnyGate::Memory(gate) => {
                gate.apply_all(Verb::Refund, &debt.requests());
                None
            }
            #[cfg(feature = "redis")]
            AnyGate::Shared(gate) => {
                let pay = async move { drop(gate.apply_all(Verb::Refund, &debt.requests()).await) };
                let paid = self.runtime.take()?.spawn(pay);
                // A task that ends otherwise does so because the runtime ends, and with it whoever waits here.
                Some(Box::pin(async move { drop(paid.await) }))
            }
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if self.refund().is_some_and(Refund::is_for_unanswered) {
            drop(self.settle());
        }
    }
}

impl Debt {
    /// What is given back.
    fn requests(&self) -> Vec<Request<'_>> {
        let under = self.charged.as_deref().unwrap_or(&self.config.under);
        let mut request = self.config.asking(self.cost);
        let values = self.config.attributes.iter().zip(&self.values);
        request.extend(values.filter_map(|((name, _), value)| Some((&**name, value.as_ref()?.borrowed()))));
        if under.is_empty() { vec![request] } else { named(&request, under) }
    }
}
