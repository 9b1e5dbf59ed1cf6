//! What a layer was told, and the one road from a request to its outcome.
//!
//! The road is two steps with the gate between them: what is asked, and what comes of the answer. So a gate in memory is
//! asked without a future, and a shared one is waited for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::slice;
use std::sync::Arc;

use http::Extensions;
use http::response::Response;

use super::Limited;
use super::attribute::{Attribute, AttributeValue, Held, Seen};
use super::denied::Denied;
use super::head::Head;
use super::refund::{Owed, Refund};
use crate::client_addr::{ClientAddr, Resolved};
use crate::gate::{Decisions, Gate};
use crate::headers::{FieldTexts, HeaderOptions};
use crate::policy::PolicySet;
use crate::request::Request;
#[cfg(feature = "redis")]
use crate::shared_gate::SharedGate;
use crate::verb::Verb;

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
    pub(super) fn policies(&self) -> Arc<PolicySet> {
        match self {
            Self::Memory(gate) => gate.policies(),
            #[cfg(feature = "redis")]
            Self::Shared(gate) => gate.policies(),
        }
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
    /// Whether requests that pass carry what was decided.
    pub(super) tells_handlers: bool,
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
pub(super) type CostOf = dyn Fn(&Head<'_>) -> u64 + Send + Sync;
pub(super) type Skips = dyn Fn(&Head<'_>) -> bool + Send + Sync;
pub(super) type Deny = dyn Fn(&Denied<'_>) -> Response<String> + Send + Sync;

/// What becomes of a request.
pub(super) enum Outcome {
    /// It passes, and tells its handler this.
    Pass(Pass, Option<Limited>),
    /// It is answered with this. In a box, as what passes would be moved in the room of it.
    Deny(Box<Response<String>>),
}

/// What a request that passes leaves behind for its answer.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) fields: FieldTexts,
    pub(super) owed: Option<Box<Owed>>,
}

impl Config {
    /// Decides a request over a gate in memory.
    pub(super) fn decide(self: &Arc<Self>, gate: &Gate, seen: &Seen<'_>) -> Outcome {
        if self.skips(seen) {
            return self.skipped();
        }
        let (client, made);
        let mut request = self.asking(self.cost_of(seen));
        client = self.client_of(seen);
        made = self.describe(&mut request, seen, client.as_ref());
        request.extend(made.iter().map(|(name, bytes)| (*name, &**bytes)));
        let several = self.under_several(&request);
        let decisions = gate.apply_all(Verb::Check, requests(&request, &several));
        self.outcome(seen, client, &request, &decisions)
    }

    /// Decides a request over a shared gate.
    #[cfg(feature = "redis")]
    pub(super) async fn decide_shared(self: &Arc<Self>, gate: &SharedGate, seen: &Seen<'_>) -> Outcome {
        if self.skips(seen) {
            return self.skipped();
        }
        let (client, made);
        let mut request = self.asking(self.cost_of(seen));
        client = self.client_of(seen);
        made = self.describe(&mut request, seen, client.as_ref());
        request.extend(made.iter().map(|(name, bytes)| (*name, &**bytes)));
        let several = self.under_several(&request);
        let decisions = gate.apply_all(Verb::Check, requests(&request, &several)).await;
        self.outcome(seen, client, &request, &decisions)
    }

    /// Whether the layer does not concern the request.
    fn skips(&self, seen: &Seen<'_>) -> bool {
        self.skip.as_ref().is_some_and(|skips| skips(&seen.head))
    }

    fn cost_of(&self, seen: &Seen<'_>) -> u64 {
        self.cost.as_ref().map_or(1, |cost_of| cost_of(&seen.head))
    }

    /// A request as policies see it, without attributes; under the one policy that decides if there is only one.
    pub(super) fn asking<'r>(&'r self, cost: u64) -> Request<'r> {
        Request::asking(cost, if let [policy] = &*self.under { Some(policy) } else { None })
    }

    /// Adds the attributes that stand in the request, and returns those that were made from it, for adding them too.
    #[inline]
    fn describe<'p>(
        &'p self,
        request: &mut Request<'p>,
        seen: &Seen<'p>,
        client: Option<&Resolved>,
    ) -> Vec<(&'p str, Box<[u8]>)> {
        let mut made = Vec::new();
        for (name, attribute) in &self.attributes {
            match attribute.of(seen, client).map(AttributeValue::held) {
                Some(Held::Borrowed(bytes)) => request.extend([(&**name, bytes)]),
                Some(Held::Address(ip)) => request.extend([(&**name, ip)]),
                Some(Held::Owned(bytes)) => made.push((&**name, bytes)),
                None => {}
            }
        }
        made
    }

    fn skipped(&self) -> Outcome {
        Outcome::Pass(Pass::default(), self.tells_handlers.then(Limited::default))
    }

    fn outcome(
        self: &Arc<Self>,
        seen: &Seen<'_>,
        client: Option<Resolved>,
        request: &Request<'_>,
        decisions: &Decisions<'_>,
    ) -> Outcome {
        let mut fields = FieldTexts::default();
        self.headers.write_all(decisions, &mut fields);
        if decisions.is_denied() {
            let denied = Denied { decisions, request: seen.head };
            return Outcome::Deny(Box::new(self.denial(&denied, fields)));
        }
        let owed = self.refund.as_ref().and_then(|_| Owed::new(self, decisions, request)).map(Box::new);
        Outcome::Pass(Pass { fields, owed }, self.tells_handlers.then(|| Limited::new(decisions, client)))
    }

    fn denial(&self, denied: &Denied<'_>, fields: FieldTexts) -> Response<String> {
        let mut response = self.deny.as_ref().map_or_else(|| denied.problem_response(), |deny| deny(denied));
        fields.put_into(response.headers_mut());
        response
    }

    /// The request once for each policy that it is to be decided under, if those are several.
    fn under_several<'r>(&'r self, request: &Request<'r>) -> Vec<Request<'r>> {
        if self.under.len() < 2 { Vec::new() } else { named(request, &self.under) }
    }

    /// Who the client is, if an attribute or a handler needs it.
    fn client_of(&self, seen: &Seen<'_>) -> Option<Resolved> {
        if !self.finds_client {
            return None;
        }
        let head = &seen.head;
        let peer = match &self.peer {
            Some(peer_of) => peer_of(head.extensions),
            None => peer_of(head.extensions),
        };
        let lines = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        Some(self.client.resolve(peer, lines))
    }
}

/// Several requests, or the one that they were made of.
fn requests<'a, 'r>(one: &'a Request<'r>, several: &'a [Request<'r>]) -> &'a [Request<'r>] {
    if several.is_empty() { slice::from_ref(one) } else { several }
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
