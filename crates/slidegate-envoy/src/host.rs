//! The interface between the handlers and the service that embeds them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, HoldOptions, PolicyDecision, PolicySet, Request, Settlement, Ticket};
use tonic::Status;

/// What the handlers need from the service.
pub trait Host: Send + Sync + 'static {
    /// Who sent a call, for metrics, events and traces.
    type Caller: Clone + Send + Sync;

    /// Reads who sent a call from its headers.
    fn caller(&self, headers: &HeaderMap) -> Self::Caller;

    /// Whether [`decide`](Self::decide) and [`reserve`](Self::reserve) are ready when they are first
    /// polled, because the store is in this process.
    fn is_immediate(&self) -> bool;

    /// Decides all requests of a call in one atomic step, each with its own verb and role, and
    /// records the decisions.
    fn decide<'r>(
        &self,
        caller: &Self::Caller,
        requests: &'r [Request<'r>],
    ) -> impl Future<Output = Decisions<'r>> + Send;

    /// Reserves the cost of requests that stand for one, and records the decisions. With them comes
    /// the ticket's text, if they allow it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the time is out of range, or the ticket would be too long;
    /// `UNAVAILABLE` during a reload.
    fn reserve<'r>(
        &self,
        caller: &Self::Caller,
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> impl Future<Output = Result<(Decisions<'r>, Option<String>), Status>> + Send;

    /// Settles a reservation to its true cost. `None` if the shared store did not reply and the host
    /// will settle it when it does.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the cost is out of bounds; `UNAVAILABLE` if the shared store did not
    /// reply.
    fn settle(
        &self,
        caller: &Self::Caller,
        ticket: &Ticket,
        cost: u64,
    ) -> impl Future<Output = Result<Option<Settlement>, Status>> + Send;

    /// Adds attributes to a request where it is, because moving one takes as long.
    ///
    /// # Errors
    /// The request's cost or the attributes are out of bounds, in one line. The request must not be
    /// used then.
    fn complete<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r str, &'r str)>,
    ) -> Result<(), String>;

    /// Whether a gRPC client may do this. `authorization` is the metadata of that name.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` or `PERMISSION_DENIED`.
    fn authorize(
        &self,
        authorization: Option<&HeaderValue>,
        action: Action,
        client: Client,
    ) -> Result<(), Status>;

    /// Whether an HTTP client may do this.
    ///
    /// # Errors
    /// The response to send instead.
    // A denial is rare, and a box would only move it.
    #[allow(clippy::result_large_err)]
    fn authorize_http(&self, head: &Parts, action: Action) -> Result<(), Response>;

    /// The active policies.
    fn policies(&self) -> Arc<PolicySet>;

    /// The configured response headers.
    fn headers(&self) -> &HeaderOptions;

    /// Explains a decision in one line.
    fn explain(&self, decision: &PolicyDecision<'_>) -> String;

    /// Whether the service accepts requests: not before its start is complete, and not while it
    /// shuts down.
    fn is_ready(&self) -> bool;

    /// Whether the shared store is unavailable.
    fn is_degraded(&self) -> bool;

    /// Logs a call of `/json` that was rejected. Clients can cause it, so the implementation bounds
    /// the lines.
    fn log_rejected_call(&self, status: &Status);
}

/// What a call does with usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Check, peek, reserve, settle or report.
    Decide,
    /// Refund.
    Adjust,
}

/// How a gRPC client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Its address. `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    /// Whether the listener can only be reached from this machine: loopback or a Unix socket.
    pub is_local: bool,
    /// Whether the client has shown a valid certificate.
    pub is_verified: bool,
}
