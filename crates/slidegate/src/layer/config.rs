//! What a layer was told, and the one road from a request to its outcome.
//!
//! The road is asynchronous for the sake of shared gates. Over one in memory it never waits, so that a single poll on the
//! stack is the whole of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::Extensions;
use http::request::Parts;
use http::response::Response;
use smallvec::SmallVec;

use super::Limited;
use super::attribute::{Attribute, AttributeValue, Seen};
use super::denied::Denied;
use super::fields::FieldTexts;
use super::refund::{Owed, Refund};
use crate::client_addr::{ClientAddr, Resolved};
use crate::gate::{Decisions, Gate};
use crate::headers::HeaderOptions;
use crate::policy::PolicySet;
use crate::request::Request;
#[cfg(feature = "redis")]
use crate::shared_gate::SharedGate;
use crate::verb::Verb;

#[cfg(feature = "axum")]
use super::axum::PathParams;

/// The gate of a layer, in memory or shared; made by `From`, also from an [`Arc`] of either.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyGate {
    /// In the memory of this process.
    Memory(Arc<Gate>),
    /// Over a store that many instances share.
    #[cfg(feature = "redis")]
    Shared(Arc<SharedGate>),
}

impl From<Gate> for AnyGate {
    fn from(gate: Gate) -> Self {
        Arc::new(gate).into()
    }
}

impl From<Arc<Gate>> for AnyGate {
    fn from(gate: Arc<Gate>) -> Self {
        Self::Memory(gate)
    }
}

#[cfg(feature = "redis")]
impl From<SharedGate> for AnyGate {
    fn from(gate: SharedGate) -> Self {
        Arc::new(gate).into()
    }
}

#[cfg(feature = "redis")]
impl From<Arc<SharedGate>> for AnyGate {
    fn from(gate: Arc<SharedGate>) -> Self {
        Self::Shared(gate)
    }
}

impl AnyGate {
    /// Whether it decides without waiting.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    pub(super) fn policies(&self) -> Arc<PolicySet> {
        match self {
            Self::Memory(gate) => gate.policies(),
            #[cfg(feature = "redis")]
            Self::Shared(gate) => gate.policies(),
        }
    }

    pub(super) async fn apply_all<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        match self {
            Self::Memory(gate) => gate.apply_all(verb, requests),
            #[cfg(feature = "redis")]
            Self::Shared(gate) => gate.apply_all(verb, requests).await,
        }
    }
}

/// The outcome of what never waits: the road over a gate in memory.
pub(super) fn at_once<T>(road: impl Future<Output = T>) -> T {
    match pin!(road).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a gate in memory never waits"),
    }
}

/// What a layer was told.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) gate: AnyGate,
    /// With their names.
    pub(super) attributes: Vec<(String, Attribute)>,
    /// Names of the only policies that decide; of all that apply if there are none.
    pub(super) under: Vec<String>,
    pub(super) client: ClientAddr,
    /// Whether each request's client is to be found out.
    pub(super) finds_client: bool,
    #[cfg(feature = "axum")]
    pub(super) reads_params: bool,
    pub(super) peer: Option<Arc<PeerOf>>,
    pub(super) cost: Option<Arc<CostOf>>,
    pub(super) skip: Option<Arc<Skips>>,
    pub(super) refund: Option<Refund>,
    pub(super) headers: HeaderOptions,
    pub(super) deny: Option<Arc<Deny>>,
}

pub(super) type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
pub(super) type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;
pub(super) type Skips = dyn Fn(&Parts) -> bool + Send + Sync;
pub(super) type Deny = dyn Fn(&Denied<'_>) -> Response<String> + Send + Sync;

/// What becomes of a request.
pub(super) enum Outcome {
    /// It passes.
    Pass(Pass),
    /// It is answered with this.
    Deny(Response<String>),
}

/// What a request that passes leaves behind for its answer.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) fields: FieldTexts,
    pub(super) owed: Option<Owed>,
}

/// Values of a layer's attributes in one request, in their order.
type Values<'p> = SmallVec<[Option<AttributeValue<'p>>; 4]>;

impl Config {
    /// Decides a request. What was decided is then in its extensions.
    pub(super) async fn decide(self: &Arc<Self>, request: &mut Parts) -> Outcome {
        if self.skip.as_ref().is_some_and(|skips| skips(request)) {
            request.extensions.insert(Limited::default());
            return Outcome::Pass(Pass::default());
        }
        #[cfg(feature = "axum")]
        let params = if self.reads_params { PathParams::of(request) } else { None };
        let (limited, pass) = {
            let seen = Seen {
                request,
                client: self.finds_client.then(|| self.client_of(request)),
                #[cfg(feature = "axum")]
                params: params.as_ref(),
            };
            let values: Values<'_> =
                self.attributes.iter().map(|(_, attribute)| attribute.of(&seen)).collect();
            let cost = self.cost.as_ref().map_or(1, |cost_of| cost_of(seen.request));
            let asked = self.request(&values, cost);
            let several = if self.under.is_empty() { Vec::new() } else { named(&asked, &self.under) };
            let asked = if several.is_empty() { slice::from_ref(&asked) } else { &several };
            let decisions = self.gate.apply_all(Verb::Check, asked).await;
            let mut fields = FieldTexts::default();
            self.headers.write_all(&decisions, &mut fields);
            if decisions.is_denied() {
                return Outcome::Deny(
                    self.denial(&Denied { decisions: &decisions, request: seen.request }, fields),
                );
            }
            let owed = self.refund.as_ref().and_then(|_| Owed::new(self, &decisions, &values, cost));
            (Limited::new(&decisions, seen.client), Pass { fields, owed })
        };
        request.extensions.insert(limited);
        Outcome::Pass(pass)
    }

    fn denial(&self, denied: &Denied<'_>, fields: FieldTexts) -> Response<String> {
        let mut response = self.deny.as_ref().map_or_else(|| denied.problem_response(), |deny| deny(denied));
        fields.put_into(response.headers_mut());
        response
    }

    /// The request as policies see it.
    pub(super) fn request<'r>(&'r self, values: &'r [Option<AttributeValue<'_>>], cost: u64) -> Request<'r> {
        let named = self.attributes.iter().zip(values);
        named.fold(Request::new().cost(cost), |request, ((name, _), value)| match value {
            Some(value) => request.with(name, value.borrowed()),
            None => request,
        })
    }

    fn client_of(&self, request: &Parts) -> Resolved {
        let peer = match &self.peer {
            Some(peer_of) => peer_of(&request.extensions),
            None => peer_of(&request.extensions),
        };
        let lines = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        self.client.resolve(peer, lines)
    }
}

/// The request once for each policy that it is to be decided under.
pub(super) fn named<'r>(request: &Request<'r>, policies: &'r [String]) -> Vec<Request<'r>> {
    policies.iter().map(|name| request.clone().under(name)).collect()
}

/// The connection's other end, where servers say it: axum's `ConnectInfo<SocketAddr>`, or a plain `SocketAddr`.
fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RateLimitLayer");
        out.field("gate", &self.gate)
            .field("attributes", &self.attributes)
            .field("client_addr", &self.client);
        out.field("refund", &self.refund).field("headers", &self.headers).finish_non_exhaustive()
    }
}
