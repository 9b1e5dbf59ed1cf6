//! A tower layer that limits HTTP and gRPC services.
//!
//! The layer defines where each [`Attribute`] is in a request. The gate's policies define which
//! attributes count. So one gate can serve many routes, each behind a layer that provides other
//! attributes.
//!
//! ```
//! use axum::{Router, routing::get};
//! use slidegate_http::layer::{Attribute, RateLimitLayer};
//! use slidegate::{Gate, Policy, PolicySet, Quota};
//!
//! let gate = Gate::new(PolicySet::new([Policy::new("per-ip", Quota::per_minute(100))?.with_scope(["ip"])])?);
//! let limit = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build()?;
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! # Ok::<(), slidegate::Error>(())
//! ```
//!
//! An allowed request carries [`Limited`] in its extensions, and its response the header fields of
//! [`HeaderOptions`]. A denied request never reaches the inner service. Where policies [let requests
//! wait](slidegate::Policy::with_wait), they queue for their turn before that. A client that hangs up leaves the queue,
//! unless the layer reserves over a shared store, or [refunds](Refund) requests without a response: such a request waits
//! on, and is refunded.

use std::net::IpAddr;
use std::sync::Arc;

use http::Extensions;
use http::response::Response;
use slidegate::{Cost, Error, Policy};
use tower_layer::Layer;

use crate::client_addr::ClientAddr;
use crate::headers::HeaderOptions;

mod attribute;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "axum")]
mod axum_request;
#[cfg(not(feature = "axum"))]
#[path = "layer/without_axum.rs"]
mod axum_request;
mod body;
mod config;
mod decide;
mod denied;
mod head;
mod hold_gate;
mod limited;
mod pending_refund;
mod refund;
mod reservation;
mod reserve;
mod reserved_body;
mod service;
mod settle;

#[cfg(feature = "axum")]
pub use self::axum::NotLimited;
pub use attribute::{Attribute, AttributeValue};
pub use body::LimitedBody;
use body::{AnyBody, SameBody};
pub use config::AnyGate;
use config::Config;
pub use denied::Denied;
pub use head::Head;
pub use hold_gate::AnyHoldGate;
pub use limited::{Limited, LimitedDecision};
pub use refund::Refund;
pub use reservation::Reservation;
use reserve::Settings;
pub use reserve::{ReserveLayer, ReserveService, Reserves};
pub use reserved_body::ReservedBody;
pub use service::{RateLimit, ResponseFuture};
pub use settle::Settle;

/// Limits the services it wraps. Clones share the limit, so one layer can wrap many routes.
///
/// The body type of the inner service must implement `From<String>`, as axum's does. For other
/// bodies see [`any_body`](Self::any_body).
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    config: Arc<Config>,
}

impl RateLimitLayer {
    /// Starts to build a layer over a gate or an [`Arc`] of one, in memory or shared:
    /// `RateLimitLayer::builder(gate)...build()?`.
    pub fn builder(gate: impl Into<AnyGate>) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder(Config::new(gate.into()), Checks)
    }

    /// Starts to build a layer that [reserves](slidegate::Gate::reserve) what a request may cost at
    /// most, and settles it to the true cost: for costs that are known at the end, and for limits on
    /// what is [in flight](slidegate::Quota::in_flight).
    ///
    /// The reservation is open until the response body has ended, failed, or been dropped because
    /// the client disconnected. Until then a task keeps it every third of its time, or settles it in
    /// part every second, see [`Settle`]. A handler that fails, panics or is dropped before it
    /// answers is settled to what it recorded, otherwise to what was held. Where
    /// [`refund`](RateLimitLayerBuilder::refund) applies, the reservation is cancelled instead.
    ///
    /// An allowed request carries its [`Reservation`] in its extensions. The response body is a
    /// [`ReservedBody`].
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use slidegate_http::layer::{Attribute, RateLimitLayer, Settle};
    /// use slidegate::{Counts, Gate, Policy, PolicySet, Quota};
    /// use std::time::Duration;
    ///
    /// # async fn complete() {}
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("tokens", Quota::per_minute(100_000))?.with_scope(["key"]),
    ///     Policy::new("streams", Quota::in_flight(4, Duration::from_secs(30))?)?
    ///         .with_scope(["key"])
    ///         .with_counts(Counts::Requests),
    /// ])?);
    /// let limit = RateLimitLayer::reserve(gate, |_| 4096)
    ///     .attribute("key", Attribute::header("x-api-key"))
    ///     .settle(Settle::header("x-usage-tokens"))
    ///     .build()?;
    /// let app: Router = Router::new().route("/complete", post(complete)).layer(limit);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn reserve<C: Into<Cost<'static>>>(
        gate: impl Into<AnyHoldGate>,
        estimate: impl Fn(&Head<'_>) -> C + Send + Sync + 'static,
    ) -> RateLimitLayerBuilder<Reserves> {
        let gate = gate.into();
        let config = Config::new(AnyGate(Arc::clone(&gate.0) as _));
        let estimate = Arc::new(move |head: &Head<'_>| estimate(head).into());
        RateLimitLayerBuilder(config, Reserves { gate, estimate, settle: Settle::default() })
    }

    /// The same layer for services whose body type is not `From<String>`, such as those of tonic
    /// and of hyper's clients. Responses then have a [`LimitedBody`].
    ///
    /// ```
    /// # use slidegate_http::layer::RateLimitLayer;
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

/// A [`RateLimitLayer`] for services with any body type; see [`RateLimitLayer::any_body`].
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

/// Builds a [`RateLimitLayer`]. Clone it to build layers with different settings for several routes
/// over one gate.
///
/// ```
/// use slidegate_http::layer::{Attribute, RateLimitLayer, Refund};
/// use slidegate::{Gate, Match, Policy, PolicySet, Quota};
///
/// let gate = Gate::new(PolicySet::new([
///     Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"]),
///     Policy::new("exports", Quota::per_hour(5))?.with_condition("route", Match::equals("export")).with_scope(["user"]),
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
pub struct RateLimitLayerBuilder<M = Checks>(Config, M);

/// A layer that checks requests: what [`RateLimitLayer::builder`] builds.
#[derive(Debug, Clone, Copy)]
pub struct Checks;

impl<M> RateLimitLayerBuilder<M> {
    /// Defines where an attribute of the policies is in a request. Replaces an earlier definition
    /// of the same name.
    pub fn attribute(mut self, name: impl Into<String>, value: Attribute) -> Self {
        let name = name.into();
        self.0.attributes.retain(|(known, _)| *known != name);
        self.0.attributes.push((name, value));
        self
    }

    /// Restricts the layer to the policies with these names, which then decide whether or not their
    /// conditions hold. Useful for a layer around one route.
    ///
    /// ```
    /// # use slidegate_http::layer::{Attribute, RateLimitLayer};
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// # use axum::{Router, routing::{get, post}};
    /// # async fn home() {}
    /// # async fn login() {}
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("per-ip", Quota::per_minute(100))?.with_scope(["ip"]),
    ///     Policy::new("login", Quota::per_minute(5))?.with_scope(["ip"]),
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

    /// Sets how the client's address is found, and makes it available to handlers. By default no
    /// proxy is trusted, so it is the peer's address.
    pub fn client_addr(mut self, rule: ClientAddr) -> Self {
        self.0.client = rule;
        self.0.finds_client = true;
        self
    }

    /// Sets how the peer's address is read from a request's extensions. By default it is axum's
    /// `ConnectInfo<SocketAddr>` (feature `axum`), or else a plain
    /// [`SocketAddr`](std::net::SocketAddr).
    ///
    /// ```
    /// # use slidegate_http::layer::RateLimitLayer;
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

    /// Sets which requests bypass the limit: they are not counted and get no header fields.
    ///
    /// ```
    /// # use slidegate_http::layer::RateLimitLayer;
    /// # use slidegate::{Gate, Policy, PolicySet, Quota};
    /// # let gate = Gate::new(PolicySet::new([Policy::new("everyone", Quota::per_minute(100))?])?);
    /// let limit = RateLimitLayer::builder(gate).skip(|request| request.method == http::Method::OPTIONS);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn skip(mut self, skips: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.0.skip = Some(Arc::new(skips));
        self
    }

    /// Sets which responses refund the cost of their request, or cancel its reservation. Default:
    /// none.
    pub fn refund(mut self, refund: Refund) -> Self {
        self.0.refund = Some(refund);
        self
    }

    /// Leaves [`Limited`] out of the extensions of allowed requests, for routes whose handlers do
    /// not read it. Saves about as much time as a decision takes.
    pub fn without_extension(mut self) -> Self {
        self.0.sets_extension = false;
        self
    }

    /// Sets the header fields of responses. A field that the response already has is kept, so of
    /// several nested limits the innermost sets the fields.
    pub fn headers(mut self, headers: HeaderOptions) -> Self {
        self.0.headers = headers;
        self
    }

    /// Sets the response to denied requests, instead of [`Denied::problem_response`]. Header fields
    /// are added to it.
    pub fn denied(mut self, deny: impl Fn(&Denied<'_>) -> Response<String> + Send + Sync + 'static) -> Self {
        self.0.deny = Some(Arc::new(deny));
        self
    }

    fn finish(mut self) -> Result<(Arc<Config>, M), Error> {
        self.0.check_attributes()?;
        let attributes = self.0.attributes.iter().map(|(_, attribute)| attribute);
        self.0.finds_client |= attributes.clone().any(Attribute::needs_client_addr);
        self.0.reads_params = attributes.clone().any(Attribute::needs_path_params);
        Ok((Arc::new(self.0), self.1))
    }
}

impl RateLimitLayerBuilder {
    /// Sets the cost of a request. Default: 1. A cost of 0 is allowed and charges nothing.
    pub fn cost(mut self, cost_of: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.0.cost = Some(Arc::new(cost_of));
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// If a policy has an attribute in its scope or conditions that the layer does not define,
    /// because requests would bypass that policy; or if the layer names a policy that the gate does
    /// not have. Policies [configured](slidegate::Gate::configure) later are not checked. If a named
    /// policy is removed, requests get status 500 until it is added again.
    pub fn build(self) -> Result<RateLimitLayer, Error> {
        self.finish().map(|(config, Checks)| RateLimitLayer { config })
    }
}

impl RateLimitLayerBuilder<Reserves> {
    /// Sets where the true cost of a request is found. Default: [`Settle::recorded`].
    pub fn settle(mut self, settle: Settle) -> Self {
        self.1.settle = settle;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// Same as for a layer that checks.
    pub fn build(self) -> Result<ReserveLayer, Error> {
        let (config, reserves) = self.finish()?;
        Ok(ReserveLayer { settings: Arc::new(Settings { config, reserves }) })
    }
}

impl Config {
    fn check_attributes(&self) -> Result<(), Error> {
        let policies = self.gate.0.policies();
        if self.under.is_empty() {
            let mut unnamed = policies.iter().filter(|policy| !policy.options().only_when_named);
            return unnamed.try_for_each(|policy| self.check_policy(policy, policy.attributes()));
        }
        self.under.iter().try_for_each(|name| {
            let policy = policies
                .by_name(name)
                .ok_or_else(|| Error::unknown_policy(name, policies.iter().map(Policy::name)))?;
            self.check_policy(policy, policy.scope().iter().map(String::as_str))
        })
    }

    fn check_policy<'p>(
        &self,
        policy: &Policy,
        mut attributes: impl Iterator<Item = &'p str>,
    ) -> Result<(), Error> {
        let given = |name: &str| self.attributes.iter().any(|(given, _)| given == name);
        attributes.find(|name| !given(name)).map_or(Ok(()), |missing| {
            Err(Error::policy(format!(
                "policy `{}`: the layer does not define attribute `{missing}`; add `.attribute(\"{missing}\", ...)`, \
                 with `Attribute::never()` if the policy is for other layers",
                policy.name()
            )))
        })
    }
}
