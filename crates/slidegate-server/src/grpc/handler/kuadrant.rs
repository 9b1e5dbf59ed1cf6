//! The calls of Kuadrant's service: those that Limitador answers, with reservations that charge once
//! however often they are committed.
//!
//! Hits are recorded in the statistics when they are charged, and when they are denied.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf;
use slidegate::{
    Error,
    reserve::{HoldOptions, HoldStatus, Ticket, Unsettled},
};
use tonic::Status;

use super::record::{self, Recorded};
use super::removed_meanwhile;
use super::request::{self, CallKind, CallRequests, Requests};
use super::{NO_DOMAIN, RateLimitHandler};
use crate::app::ticket_change::{Changed, TicketChange};
use crate::caller::Caller;
use crate::grpc::kuadrant::{CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};
use crate::grpc::message::RateLimitRequest;
use crate::limits::MAX_COST;

impl RateLimitHandler {
    /// Holds the amount under all limits of the descriptors, or under none.
    ///
    /// # Errors
    /// As [`answer`](Self::answer), and `INVALID_ARGUMENT` for a time out of range.
    pub(crate) async fn reserve(
        &self,
        call: ReserveRequest,
        caller: &Caller,
    ) -> Result<ReserveResponse, Status> {
        if call.domain.is_empty() {
            return Ok(ReserveResponse { code: NO_DOMAIN.into(), reservation_id: String::new() });
        }
        self.counted(self.hold(call, caller)).await
    }

    async fn hold(&self, call: ReserveRequest, caller: &Caller) -> Result<ReserveResponse, Status> {
        let ReserveRequest { domain, descriptors, amount, ttl } = call;
        let ttl = ttl.map(|ttl| span(&ttl)).transpose()?;
        let mut call = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let kind = CallKind::Reserve((amount > 0).then_some(amount));
        request::validate(&call)?;
        request::make_decidable(&mut call, &self.app, self.files.is_some());
        let config = self.config(&call.domain)?;
        let targets = request::targets(config.as_deref(), &call, kind)?;
        let settings = self.files.as_ref().map(|files| &files.settings);
        let mut requests = Requests::new();
        let batch = CallRequests::new(&self.app, &call, &targets, settings, kind, &mut requests);
        let options = HoldOptions { ttl, unsettled: Unsettled::Forget, ..HoldOptions::default() };
        let mut holding = self.app.call(caller.clone());
        let reserved = holding.reserve(&requests, options).await;
        let reserved = reserved.map_err(|error| Status::invalid_argument(error.to_string()))?;
        removed_meanwhile(&reserved)?;
        let ticket = holding.ticket_text(&reserved).await.map_err(Status::invalid_argument)?;
        let (decisions, _) = reserved.into_parts();
        if let Some(files) = &self.files {
            record::statistics(
                files.live.statistics(),
                &targets,
                batch.decided(0, &decisions),
                Recorded::Denied,
            );
        }
        let is_limited = decisions.iter().len() > 0;
        let code = if ticket.is_some() { Code::Ok } else { Code::OverLimit };
        // Without limits there is nothing to commit.
        let reservation_id = ticket.filter(|_| is_limited).unwrap_or_default();
        Ok(ReserveResponse { code: code.into(), reservation_id })
    }

    /// Settles a reservation to its true cost. Repeated before its time is over, it charges nothing
    /// more.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed `reservation_id`; `NOT_FOUND` for one that the store does not
    /// know; `UNAVAILABLE` if it is not known whether
    /// it was charged. Repeating the call is safe then.
    pub(crate) async fn commit(
        &self,
        call: CommitRequest,
        caller: &Caller,
    ) -> Result<CommitResponse, Status> {
        if call.domain.is_empty() {
            return Ok(CommitResponse { reservation_released: false });
        }
        self.counted(self.settle(call, caller)).await
    }

    async fn settle(&self, call: CommitRequest, caller: &Caller) -> Result<CommitResponse, Status> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = call;
        let mut call = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        if reservation_id.is_empty() {
            self.decide(call, caller, CallKind::Report(Some(actual_amount))).await?;
            return Ok(CommitResponse { reservation_released: false });
        }
        let ticket: Ticket = reservation_id
            .parse()
            .map_err(|error: Error| Status::invalid_argument(format!("reservation_id: {error}")))?;
        if actual_amount > MAX_COST {
            let detail = format!("invalid actual_amount `{actual_amount}`: must be at most {MAX_COST}");
            return Err(Status::invalid_argument(detail));
        }
        let change = TicketChange::Settle { cost: actual_amount.into(), is_final: true };
        let settlement = match self.app.call(caller.clone()).change(&ticket, change).await {
            Ok(Changed::Now(settlement)) if settlement.status() == HoldStatus::Unknown => {
                return Err(Status::not_found(format!("reservation_id: {}", Changed::UNKNOWN)));
            }
            Ok(Changed::Now(settlement)) => settlement,
            Ok(Changed::Later) => return Ok(CommitResponse { reservation_released: false }),
            Err(error) => {
                let detail = "the change may or may not be made, and repeating it is safe";
                return Err(Status::unavailable(format!("{error}; {detail}")));
            }
        };
        request::make_decidable(&mut call, &self.app, self.files.is_some());
        if let Some(files) = &self.files
            && let Some(config) = files.live.current()
            // What it is charged to is in the ticket; descriptors that match nothing now do no harm.
            && let Ok(targets) = request::targets(Some(&config), &call, CallKind::Reserve(None))
        {
            record::committed(files.live.statistics(), &targets, &settlement, actual_amount);
        }
        let is_open = settlement.iter().any(|key| key.status() == HoldStatus::Changed);
        Ok(CommitResponse { reservation_released: is_open })
    }

    /// Counts a call, and whether it failed.
    pub(super) async fn counted<T>(
        &self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Some(files) = &self.files else { return call.await };
        let calls = files.live.statistics().calls();
        calls.total.fetch_add(1, Relaxed);
        let response = call.await;
        if response.is_err() {
            calls.service_errors.fetch_add(1, Relaxed);
        }
        response
    }
}

/// A time of a message. The store says which are in range.
fn span(of: &protobuf::Duration) -> Result<Duration, Status> {
    let parts = u64::try_from(of.seconds).ok().zip(u32::try_from(of.nanos).ok());
    let parts = parts.filter(|(_, nanos)| *nanos < 1_000_000_000);
    parts.map(|(seconds, nanos)| Duration::new(seconds, nanos)).ok_or_else(|| {
        let protobuf::Duration { seconds, nanos } = of;
        Status::invalid_argument(format!(
            "invalid ttl of {seconds} seconds and {nanos} nanoseconds: must be 1ms to 1h"
        ))
    })
}
