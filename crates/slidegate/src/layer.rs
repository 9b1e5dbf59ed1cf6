//! A tower layer that limits HTTP and gRPC services (feature `tower`).
//!
//! The layer says what is known of a request, [`Attribute`] by attribute; the policies of its gate say what of that they
//! count. So one gate serves many routes, each behind a layer that knows other things.
//!
//! ```
//! use axum::{Router, routing::get};
//! use slidegate::layer::{Attribute, RateLimitLayer};
//! use slidegate::{Gate, Policy, PolicySet, Quota};
//!
//! let gate = Gate::new(PolicySet::new([Policy::new("per-ip", Quota::per_minute(100))?.scope(["ip"])])?);
//! let limit = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build()?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! # Ok::<(), slidegate::Error>(())
//! ```
//!
//! A request that passes carries [`Limited`] in its extensions, and its response the header fields of
//! [`HeaderOptions`]. A denied one never reaches the inner service.

use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use http::response::Response;
use tower_layer::Layer;

use crate::client_addr::ClientAddr;
use crate::error::Error;
use crate::headers::HeaderOptions;
use crate::policy::Policy;

mod attribute;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod config;
mod denied;
mod head;
mod limited;
mod refund;
mod service;

#[cfg(feature = "axum")]
pub use self::axum::NotLimited;
pub use attribute::{Attribute, AttributeValue};
pub use body::LimitedBody;
use body::{AnyBody, SameBody};
pub use config::AnyGate;
use config::Config;
pub use denied::Denied;
pub use head::Head;
pub use limited::Limited;
pub use refund::Refund;
pub use service::{RateLimit, ResponseFuture};

/// Limits the services it is put around. A clone is the same limit, so one layer may stand before many routes.
///
/// The inner service's responses must have a body that can be made of text, as axum's is. For others there is
/// [`any_body`](Self::any_body).
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    config: Arc<Config>,
}

impl RateLimitLayer {
    /// A layer over a gate, or an [`Arc`] of one, in memory or shared: `RateLimitLayer::builder(gate)...build()?`.
    pub fn builder(gate: impl Into<AnyGate>) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder(Config {
            gate: gate.into(),
            attributes: Vec::new(),
            under: Vec::new(),
            client: ClientAddr::default(),
            finds_client: false,
            tells_handlers: true,
            #[cfg(feature = "axum")]
            reads_params: false,
            peer: None,
            cost: None,
            skip: None,
            refund: None,
            headers: HeaderOptions::default(),
            deny: None,
        })
    }

    /// The same limit for services whose bodies cannot be made of text, as those of tonic and of hyper's clients:
    /// responses then have a [`LimitedBody`].
    ///
    /// ```
    /// # use slidegate::layer::RateLimitLayer;
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// # let gate = Gate::new(PolicySet::new([Policy::new("everyone", Quota::per_minute(100))?])?);
    /// let limit = RateLimitLayer::builder(gate).build()?.any_body();
    /// let server = tonic::transport::Server::builder().layer(limit);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn any_body(self) -> AnyBodyLayer {
        AnyBodyLayer { config: self.config }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S, SameBody> {
        RateLimit::new(inner, &self.config)
    }
}

/// A [`RateLimitLayer`] for services with any type of body; see [`RateLimitLayer::any_body`].
#[derive(Debug, Clone)]
pub struct AnyBodyLayer {
    config: Arc<Config>,
}

impl<S> Layer<S> for AnyBodyLayer {
    type Service = RateLimit<S, AnyBody>;

    fn layer(&self, inner: S) -> RateLimit<S, AnyBody> {
        RateLimit::new(inner, &self.config)
    }
}

/// How a [`RateLimitLayer`] is made. A clone may go on differently, for another route over the same gate.
///
/// ```
/// use slidegate::layer::{Attribute, RateLimitLayer, Refund};
/// use slidegate::{Gate, Match, Policy, PolicySet, Quota};
///
/// let gate = Gate::new(PolicySet::new([
///     Policy::new("per-user", Quota::per_minute(100))?.scope(["user"]),
///     Policy::new("exports", Quota::per_hour(5))?.when("route", Match::equals("export")).scope(["user"]),
/// ])?);
/// let limits = RateLimitLayer::builder(gate)
///     .attribute("user", Attribute::header("x-api-key").or(Attribute::client_addr()))
///     .refund(Refund::server_errors());
/// let everywhere = limits.clone().attribute("route", Attribute::never()).build()?;
/// let exports = limits.attribute("route", Attribute::value("export")).cost(|request| {
///     if request.uri.path().ends_with(".pdf") { 2 } else { 1 }
/// });
/// let exports = exports.build()?;
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder limits nothing; end it with `.build()?`"]
pub struct RateLimitLayerBuilder(Config);

impl RateLimitLayerBuilder {
    /// Says where an attribute of the policies stands in a request. Of two with one name the last counts.
    pub fn attribute(mut self, name: impl Into<String>, value: Attribute) -> Self {
        let name = name.into();
        self.0.attributes.retain(|(known, _)| *known != name);
        self.0.attributes.push((name, value));
        self
    }

    /// Only the policies of these names decide, whether or not their conditions hold: for a layer around one route.
    ///
    /// ```
    /// # use slidegate::layer::{Attribute, RateLimitLayer};
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// # use axum::{Router, routing::{get, post}};
    /// # async fn home() {}
    /// # async fn login() {}
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("per-ip", Quota::per_minute(100))?.scope(["ip"]),
    ///     Policy::new("login", Quota::per_minute(5))?.scope(["ip"]),
    /// ])?);
    /// let limits = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr());
    /// let app: Router = Router::new()
    ///     .route("/", get(home).layer(limits.clone().under(["per-ip"]).build()?))
    ///     .route("/login", post(login).layer(limits.under(["per-ip", "login"]).build()?));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn under<N: Into<String>>(mut self, policies: impl IntoIterator<Item = N>) -> Self {
        self.0.under = policies.into_iter().map(Into::into).collect();
        self
    }

    /// How the client's address is found, and that handlers may ask for it. By default it is the peer's, as no proxy is
    /// trusted.
    pub fn client_addr(mut self, rule: ClientAddr) -> Self {
        self.0.client = rule;
        self.0.finds_client = true;
        self
    }

    /// Where the peer's address stands in a request's extensions. By default axum's `ConnectInfo<SocketAddr>` (feature
    /// `axum`) is looked for, then a plain [`SocketAddr`](std::net::SocketAddr).
    ///
    /// ```
    /// # use slidegate::layer::RateLimitLayer;
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// use tonic::transport::server::TcpConnectInfo;
    /// # let gate = Gate::new(PolicySet::new([Policy::new("everyone", Quota::per_minute(100))?])?);
    /// let limit = RateLimitLayer::builder(gate)
    ///     .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn peer(mut self, peer_of: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.0.peer = Some(Arc::new(peer_of));
        self
    }

    /// What a request costs: 1 unless said. Zero passes and charges nothing.
    pub fn cost(mut self, cost_of: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.0.cost = Some(Arc::new(cost_of));
        self
    }

    /// Which requests the limit does not concern: they pass, are counted nowhere and get no header fields.
    ///
    /// ```
    /// # use slidegate::layer::RateLimitLayer;
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// # let gate = Gate::new(PolicySet::new([Policy::new("everyone", Quota::per_minute(100))?])?);
    /// let limit = RateLimitLayer::builder(gate).skip(|request| request.method == http::Method::OPTIONS);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn skip(mut self, skips: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.0.skip = Some(Arc::new(skips));
        self
    }

    /// Which answers give the cost of their request back: none unless said.
    pub fn refund(mut self, refund: Refund) -> Self {
        self.0.refund = Some(refund);
        self
    }

    /// Whether requests that pass carry [`Limited`] in their extensions, as they do unless said. Where no handler asks for
    /// it, saying no saves as much as deciding costs.
    pub fn tell_handlers(mut self, tell: bool) -> Self {
        self.0.tells_handlers = tell;
        self
    }

    /// Which header fields responses carry. A field that a response has already stays as it is: so the innermost of
    /// several limits is the one that speaks.
    pub fn headers(mut self, headers: HeaderOptions) -> Self {
        self.0.headers = headers;
        self
    }

    /// What denied requests are answered with, instead of [`Denied::problem_response`]. Header fields are added to it.
    pub fn denied(mut self, deny: impl Fn(&Denied<'_>) -> Response<String> + Send + Sync + 'static) -> Self {
        self.0.deny = Some(Arc::new(deny));
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// A policy has an attribute in its scope or conditions that no `attribute` of this layer gives: requests would pass
    /// it uncounted. Or the layer names a policy that the gate does not have. Policies that the gate is
    /// [configured](crate::Gate::configure) with later are not looked at: if a named policy is removed then, requests are
    /// answered with status 500 until it is back.
    pub fn build(mut self) -> Result<RateLimitLayer, Error> {
        self.0.policies_find_their_attributes()?;
        let attributes = self.0.attributes.iter().map(|(_, attribute)| attribute);
        self.0.finds_client |= attributes.clone().any(Attribute::needs_client_addr);
        #[cfg(feature = "axum")]
        {
            self.0.reads_params = attributes.clone().any(Attribute::needs_path_params);
        }
        Ok(RateLimitLayer { config: Arc::new(self.0) })
    }
}

impl Config {
    fn policies_find_their_attributes(&self) -> Result<(), Error> {
        let policies = self.gate.policies();
        if self.under.is_empty() {
            let mut unnamed = policies.iter().filter(|policy| !policy.is_only_when_named());
            return unnamed.try_for_each(|policy| self.gives(policy, attributes_of(policy)));
        }
        self.under.iter().try_for_each(|name| {
            let policy = policies
                .by_name(name)
                .ok_or_else(|| Error::unknown_policy(name, policies.iter().map(Policy::name)))?;
            self.gives(policy, policy.scope_attributes().iter().map(String::as_str))
        })
    }

    fn gives<'p>(&self, policy: &Policy, mut attributes: impl Iterator<Item = &'p str>) -> Result<(), Error> {
        let given = |name: &str| self.attributes.iter().any(|(given, _)| given == name);
        attributes.find(|name| !given(name)).map_or(Ok(()), |missing| {
            Err(Error::policy(format!(
                "policy `{}`: attribute `{missing}` is given by no attribute of the layer; add \
                 `.attribute(\"{missing}\", ...)`, with `Attribute::never()` if the policy is for other layers",
                policy.name()
            )))
        })
    }
}

/// What a policy looks at.
fn attributes_of(policy: &Policy) -> impl Iterator<Item = &str> {
    let conditions = policy.conditions().iter().map(|(attribute, _)| attribute);
    policy.scope_attributes().iter().chain(conditions).map(String::as_str)
}
