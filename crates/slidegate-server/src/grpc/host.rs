//! What the service does for the handlers of `slidegate-envoy`.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use slidegate::headers::HeaderOptions;
use slidegate::{Decisions, HoldOptions, HoldStatus, PolicyDecision, PolicySet, Request, Settlement, Ticket};
use slidegate_envoy::{Client, Host, removed_meanwhile};
use tonic::Status;

use crate::access::Action;
use crate::app::ticket_change::{Changed, TicketChange};
use crate::app::{App, explanation};
use crate::caller::{Caller, Protocol};
use crate::limits::MAX_COST;
use crate::listener::Connection;
use crate::log_limit::log_limited;

impl Host for App {
    type Caller = Caller;

    fn caller(&self, headers: &HeaderMap) -> Caller {
        self.observer().caller(Protocol::Grpc, headers)
    }

    fn is_immediate(&self) -> bool {
        self.store().is_in_memory()
    }

    async fn decide<'r>(&self, caller: &Caller, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.call(caller.clone()).apply_mixed(requests).await
    }

    async fn reserve<'r>(
        &self,
        caller: &Caller,
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> Result<(Decisions<'r>, Option<String>), Status> {
        let mut call = self.call(caller.clone());
        let reserved = call.reserve(requests, options).await;
        let reserved = reserved.map_err(|error| Status::invalid_argument(error.to_string()))?;
        removed_meanwhile(&reserved)?;
        let text = call.ticket_text(&reserved).await.map_err(Status::invalid_argument)?;
        Ok((reserved.into_parts().0, text))
    }

    async fn settle(
        &self,
        caller: &Caller,
        ticket: &Ticket,
        cost: u64,
    ) -> Result<Option<Settlement>, Status> {
        if cost > MAX_COST {
            let detail = format!("invalid actual_amount `{cost}`: must be at most {MAX_COST}");
            return Err(Status::invalid_argument(detail));
        }
        let change = TicketChange::Settle { cost: cost.into(), is_final: true };
        match self.call(caller.clone()).change(ticket, change).await {
            Ok(Changed::Now(settlement)) if settlement.status() == HoldStatus::Unknown => {
                Err(Status::not_found(format!("reservation_id: {}", Changed::UNKNOWN)))
            }
            Ok(Changed::Now(settlement)) => Ok(Some(settlement)),
            Ok(Changed::Later) => Ok(None),
            Err(error) => {
                let detail = "the change may or may not be made, and repeating it is safe";
                Err(Status::unavailable(format!("{error}; {detail}")))
            }
        }
    }

    fn complete<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r str, &'r str)>,
    ) -> Result<(), String> {
        let attributes = attributes.map(|(name, value)| (name, value.as_bytes()));
        self.attributes.complete(request, attributes).map_err(|error| error.detail)
    }

    fn authorize(
        &self,
        authorization: Option<&HeaderValue>,
        action: slidegate_envoy::Action,
        client: Client,
    ) -> Result<(), Status> {
        let Client { peer, is_local, is_verified } = client;
        let connection = Connection { peer, user: None, is_local, is_verified };
        self.access.call(authorization, of(action), connection).map_err(|problem| match problem.status() {
            StatusCode::FORBIDDEN => Status::permission_denied(problem.detail()),
            _ => Status::unauthenticated(problem.detail()),
        })
    }

    fn authorize_http(&self, head: &Parts, action: slidegate_envoy::Action) -> Result<(), Response> {
        let connection = Connection::of(&head.extensions);
        self.access
            .decision(&head.headers, of(action), connection)
            .map_err(axum::response::IntoResponse::into_response)
    }

    fn policies(&self) -> Arc<PolicySet> {
        self.policies()
    }

    fn headers(&self) -> &HeaderOptions {
        &self.headers
    }

    fn explain(&self, decision: &PolicyDecision<'_>) -> String {
        explanation::one(decision)
    }

    fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    fn is_degraded(&self) -> bool {
        self.is_degraded()
    }

    fn log_rejected_call(&self, status: &Status) {
        log_limited!(DEBUG, None, %status, "rejected a call of /json");
    }
}

fn of(action: slidegate_envoy::Action) -> Action {
    match action {
        slidegate_envoy::Action::Decide => Action::Decide,
        slidegate_envoy::Action::Adjust => Action::Adjust,
    }
}
