//! The settings of a layer, and how it reads requests.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{fmt, slice};

use http::Extensions;
use http::response::Response;
use slidegate::acquire::Patience;
use slidegate::store::Store;
use slidegate::{Decisions, Gate, PolicySet, Request, SharedGate, verb::Verb};

use super::attribute::{Attribute, AttributeValue, Repr, RequestView};
use super::axum_request::connected_peer;
use super::denied::Denied;
use super::head::Head;
use super::refund::Refund;
use crate::client_addr::{ClientAddr, Resolved};
use crate::headers::{FieldBuffer, HeaderOptions};

/// The gate of a layer, over any store. Created with `From`, from a [`SharedGate`], a gate or an [`Arc`]
/// of one.
#[derive(Debug, Clone)]
pub struct AnyGate(pub(super) Arc<dyn ErasedGate>);

impl<S: Store + 'static> From<Gate<S>> for AnyGate {
    fn from(gate: Gate<S>) -> Self {
        Arc::new(gate).into()
    }
}

impl<S: Store + 'static> From<Arc<Gate<S>>> for AnyGate {
    fn from(gate: Arc<Gate<S>>) -> Self {
        SharedGate::from(gate).into()
    }
}

impl<S: Store + 'static> From<SharedGate<S>> for AnyGate {
    fn from(gate: SharedGate<S>) -> Self {
        Self(Arc::new(gate))
    }
}

/// A gate without the type of its store.
pub(super) trait ErasedGate: fmt::Debug + Send + Sync {
    /// Whether the store decides at once.
    fn is_local(&self) -> bool;

    /// Decides requests, if the store is local and they need not [wait](slidegate::Policy::with_wait).
    fn decide_now<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Option<Decisions<'r>>;

    /// Decides requests. Checks wait for their turn as long as their policies let them.
    fn decide<'g, 'r: 'g>(
        &'g self,
        verb: Verb,
        requests: &'r [Request<'r>],
    ) -> Pin<Box<dyn Future<Output = Decisions<'r>> + Send + 'g>>;

    /// The active policies.
    fn policies(&self) -> Arc<PolicySet>;
}

impl<S: Store + 'static> ErasedGate for SharedGate<S> {
    fn is_local(&self) -> bool {
        self.store().as_local().is_some()
    }

    fn decide_now<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Option<Decisions<'r>> {
        let gate = self.gate();
        // No check overtakes those who wait.
        let store = self.store().as_local().filter(|_| verb != Verb::Check || gate.waiting() == 0)?;
        let decisions = gate.decide_now(store, Some(verb), requests, None);
        (!decisions.is_denied() || !gate.lets_wait()).then_some(decisions)
    }

    fn decide<'g, 'r: 'g>(
        &'g self,
        verb: Verb,
        requests: &'r [Request<'r>],
    ) -> Pin<Box<dyn Future<Output = Decisions<'r>> + Send + 'g>> {
        if verb == Verb::Check && self.gate().lets_wait() {
            return Box::pin(self.gate().acquire_all(requests, BY_POLICIES).decide());
        }
        Box::pin(self.apply_all(verb, requests))
    }

    fn policies(&self) -> Arc<PolicySet> {
        self.policies()
    }
}

/// As long as each policy lets its requests wait.
pub(super) const BY_POLICIES: Patience = Patience::OfPolicies(Duration::MAX);

/// The settings of a layer.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) gate: AnyGate,
    /// Attributes with their names.
    pub(super) attributes: Vec<(String, Attribute)>,
    /// Names of the policies that decide; if empty, all policies that apply.
    pub(super) under: Vec<String>,
    pub(super) client: ClientAddr,
    /// Whether the client's address is found for every request.
    pub(super) finds_client: bool,
    /// Whether allowed requests carry [`Limited`] in their extensions.
    pub(super) sets_extension: bool,
    pub(super) reads_params: bool,
    pub(super) peer: Option<Arc<PeerOf>>,
    /// Done once a client had no address.
    no_address: Arc<Once>,
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

/// Attributes that a layer's function has computed.
pub(super) type OwnedAttributes<'p> = Vec<(&'p str, Box<[u8]>)>;

impl Config {
    pub(super) fn new(gate: AnyGate) -> Self {
        Self {
            gate,
            attributes: Vec::new(),
            under: Vec::new(),
            client: ClientAddr::default(),
            finds_client: false,
            sets_extension: true,
            reads_params: false,
            peer: None,
            no_address: Arc::new(Once::new()),
            cost: None,
            skip: None,
            refund: None,
            headers: HeaderOptions::default(),
            deny: None,
        }
    }

    /// Whether the request bypasses the limit.
    pub(super) fn skips(&self, view: &RequestView<'_>) -> bool {
        self.skip.as_ref().is_some_and(|skips| skips(&view.head))
    }

    /// A request without attributes. If the layer names a single policy, the request is under that
    /// policy.
    pub(super) fn base_request<'r>(&'r self, cost: u64) -> Request<'r> {
        Request::asking(cost, if let [policy] = &*self.under { Some(policy) } else { None })
    }

    /// Adds the borrowed attributes to `request` and returns the owned ones, which the caller adds.
    #[inline]
    pub(super) fn set_attributes<'p>(
        &'p self,
        request: &mut Request<'p>,
        view: &RequestView<'p>,
        client: Option<&Resolved>,
    ) -> OwnedAttributes<'p> {
        let mut owned = Vec::new();
        for (name, attribute) in &self.attributes {
            match attribute.of(view, client).map(AttributeValue::into_repr) {
                Some(Repr::Borrowed(bytes)) => request.extend([(&**name, bytes)]),
                Some(Repr::Address(ip)) => request.extend([(&**name, ip)]),
                Some(Repr::Owned(bytes)) => owned.push((&**name, bytes)),
                None => {}
            }
        }
        owned
    }

    pub(super) fn denial(&self, denied: &Denied<'_>, mut fields: FieldBuffer) -> Response<String> {
        let mut response = self.deny.as_ref().map_or_else(|| denied.problem_response(), |deny| deny(denied));
        fields.append_to(response.headers_mut());
        response
    }

    /// One request per policy, if the layer names several.
    pub(super) fn named_requests<'r>(&'r self, request: &Request<'r>) -> Vec<Request<'r>> {
        if self.under.len() < 2 { Vec::new() } else { request_per_policy(request, &self.under) }
    }

    /// The client's address, if an attribute or a handler needs it.
    pub(super) fn client_of(&self, view: &RequestView<'_>) -> Option<Resolved> {
        if !self.finds_client {
            return None;
        }
        let head = &view.head;
        let peer = match &self.peer {
            Some(peer_of) => peer_of(head.extensions),
            None => peer_of(head.extensions).map(SocketAddr::ip),
        };
        let lines = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let client = self.client.resolve(peer, lines);
        if client.addr.is_none() {
            self.no_address.call_once(|| tracing::warn!("{NO_ADDRESS}"));
        }
        Some(client)
    }
}

/// Logged once by each layer.
const NO_ADDRESS: &str = "a request has no client address; all such requests share the key `unknown`, and so one limit; with axum, serve \
     `into_make_service_with_connect_info::<SocketAddr>()`";

/// `several`, or only `one` if that is empty.
pub(super) fn requests<'a, 'r>(one: &'a Request<'r>, several: &'a [Request<'r>]) -> &'a [Request<'r>] {
    if several.is_empty() { slice::from_ref(one) } else { several }
}

/// One request per policy, each under that policy.
pub(super) fn request_per_policy<'r>(request: &Request<'r>, policies: &'r [String]) -> Vec<Request<'r>> {
    policies.iter().map(|name| request.clone().under(name)).collect()
}

/// The peer's address in the extensions: axum's `ConnectInfo<SocketAddr>` or a plain `SocketAddr`.
#[inline]
fn peer_of(extensions: &Extensions) -> Option<&SocketAddr> {
    connected_peer(extensions).or_else(|| extensions.get::<SocketAddr>())
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
