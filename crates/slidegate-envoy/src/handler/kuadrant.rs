//! The calls of Kuadrant's service: those that Limitador answers, with reservations that charge once
//! however often they are committed.
//!
//! Hits are recorded in the statistics when they are charged, and when they are denied.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf;
use slidegate::{Error, HoldOptions, HoldStatus, Ticket, Unsettled};
use tonic::Status;

use super::RateLimitHandler;
use super::record::{self, Recorded};
use super::request::{self, Asks, Batch, Requests};
use super::status;
use crate::host::Host;
use crate::kuadrant::{CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};
use crate::message::{CallMessage, EncodedResponse};

/// Calls without a domain get this code and no error, as from Limitador.
const NO_DOMAIN: Code = Code::Unknown;

impl<H: Host> RateLimitHandler<H> {
    /// Whether one more hit of each descriptor fits, whatever the call's hits are. Charges nothing.
    ///
    /// # Errors
    /// As [`should_rate_limit`](Self::should_rate_limit).
    pub(crate) async fn check_rate_limit(
        &self,
        call: &CallMessage,
        caller: &H::Caller,
    ) -> Result<EncodedResponse, Status> {
        self.unless_without_domain(call, caller, Asks::Check).await
    }

    /// Charges the hits of each descriptor, also those that exceed a limit. Denies nothing.
    ///
    /// # Errors
    /// As [`should_rate_limit`](Self::should_rate_limit); `UNAVAILABLE` if hits cannot be charged.
    pub(crate) async fn report(
        &self,
        call: &CallMessage,
        caller: &H::Caller,
    ) -> Result<EncodedResponse, Status> {
        self.unless_without_domain(call, caller, Asks::Report(None)).await
    }

    async fn unless_without_domain(
        &self,
        call: &CallMessage,
        caller: &H::Caller,
        asks: Asks,
    ) -> Result<EncodedResponse, Status> {
        if call.domain().is_empty() {
            return Ok(EncodedResponse(status::encode(NO_DOMAIN, &[])));
        }
        self.counted(self.decide(call, caller, asks)).await
    }

    /// Holds the amount under all limits of the descriptors, or under none.
    ///
    /// # Errors
    /// As [`should_rate_limit`](Self::should_rate_limit), and `INVALID_ARGUMENT` for a time out of
    /// range.
    pub(crate) async fn reserve(
        &self,
        call: ReserveRequest,
        caller: &H::Caller,
    ) -> Result<ReserveResponse, Status> {
        if call.domain.is_empty() {
            return Ok(ReserveResponse { code: NO_DOMAIN.into(), reservation_id: String::new() });
        }
        self.counted(self.hold(call, caller)).await
    }

    async fn hold(&self, call: ReserveRequest, caller: &H::Caller) -> Result<ReserveResponse, Status> {
        let ReserveRequest { domain, descriptors, amount, ttl } = call;
        let ttl = ttl.map(|ttl| span(&ttl)).transpose()?;
        let call = CallMessage::from(RateLimitRequest { domain, descriptors, hits_addend: 0 });
        let asks = Asks::Reserve((amount > 0).then_some(amount));
        request::validate(&call)?;
        let config = self.config(call.domain())?;
        let targets = request::targets(config.as_deref(), &call, asks)?;
        let settings = self.files().map(|files| &files.settings);
        let mut requests = Requests::new();
        let batch = Batch::new(self.host(), &call, &targets, settings, asks, &mut requests)?;
        let options = HoldOptions { ttl, unsettled: Unsettled::Forget, ..HoldOptions::default() };
        let (decisions, ticket) = self.host().reserve(caller, &requests, options).await?;
        if let Some(files) = self.files() {
            record::statistics(files.live.statistics(), &batch, &decisions, Recorded::Denied);
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
        caller: &H::Caller,
    ) -> Result<CommitResponse, Status> {
        if call.domain.is_empty() {
            return Ok(CommitResponse { reservation_released: false });
        }
        self.counted(self.settle(call, caller)).await
    }

    async fn settle(&self, call: CommitRequest, caller: &H::Caller) -> Result<CommitResponse, Status> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = call;
        let call = CallMessage::from(RateLimitRequest { domain, descriptors, hits_addend: 0 });
        if reservation_id.is_empty() {
            self.decide(&call, caller, Asks::Report(Some(actual_amount))).await?;
            return Ok(CommitResponse { reservation_released: false });
        }
        let ticket: Ticket = reservation_id
            .parse()
            .map_err(|error: Error| Status::invalid_argument(format!("reservation_id: {error}")))?;
        let Some(settlement) = self.host().settle(caller, &ticket, actual_amount).await? else {
            return Ok(CommitResponse { reservation_released: false });
        };
        if let Some(files) = self.files()
            && let Some(config) = files.live.current()
            // What it is charged to is in the ticket; descriptors that match nothing now do no harm.
            && let Ok(targets) = request::targets(Some(&config), &call, Asks::Reserve(None))
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
        let Some(files) = self.files() else { return call.await };
        let calls = files.live.statistics().calls();
        calls.total.fetch_add(1, Relaxed);
        let response = call.await;
        if response.is_err() {
            calls.service_errors.fetch_add(1, Relaxed);
        }
        response
    }
}

/// A time of a message. The host says which are in range.
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
