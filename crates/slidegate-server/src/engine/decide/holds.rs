//! Reservations: made by a request; settled, extended or cancelled by ticket.

use futures_util::future::join_all;
use slidegate::{
    Algorithm, Error, Request,
    clock::Timestamp,
    reserve::{Extension, HoldOptions, HoldStatus, Reserved, SettledKey, Ticket},
    verb::Verb,
};

use super::{Call, Engine};
use crate::engine::open_reservations::Due;
use crate::engine::ticket_change::{TicketChange, TicketChanged};
use crate::log_limit::log_limited;
use crate::record::HoldOutcome;

impl Call<'_> {
    /// Reserves the cost of requests that together count as one, with one ticket: decides like a
    /// check, but holds the cost. The default time is a minute, or the lease of an in-flight limit.
    ///
    /// # Errors
    /// The time is out of range. Nothing is decided.
    pub(crate) async fn reserve<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> Result<Reserved<'r>, Error> {
        let span_start = self.engine.observer.span_start();
        let reserved = self.engine.ask_to_reserve(requests, options, false).await?;
        self.count(requests.len());
        self.record_reserved(&reserved, requests, span_start).await;
        Ok(reserved)
    }

    pub(super) async fn record_reserved(
        &self,
        reserved: &Reserved<'_>,
        requests: &[Request<'_>],
        span_start: Option<Timestamp>,
    ) {
        let engine = self.engine;
        let decided = (reserved.decisions(), reserved.ticket());
        let candidates = engine.record(&self.caller, Some(Verb::Check), span_start, decided);
        self.charge_candidates(candidates, requests).await;
        for policy in reserved.ticket().into_iter().flat_map(Ticket::policies) {
            engine.observer.record_hold(policy, HoldOutcome::Reserved);
        }
        engine.open_reservations.add(reserved, requests, self.caller.protocol);
    }

    /// The ticket's text, if the reservation is allowed. If the text is too long to be accepted
    /// again, the reservation is cancelled.
    ///
    /// # Errors
    /// Why it is too long, in one line.
    pub(crate) async fn ticket_text(&self, reserved: &Reserved<'_>) -> Result<Option<String>, String> {
        let Some(ticket) = reserved.ticket() else { return Ok(None) };
        let text = ticket.to_string();
        if text.len() <= Ticket::MAX_TEXT {
            return Ok(Some(text));
        }
        // Nobody could settle it. If this fails, the reservation expires.
        let _ = self.change(ticket, TicketChange::Cancel).await;
        Err(format!(
            "{} policies apply, whose ticket would have {} bytes; at most {}, so name one `policy`",
            reserved.decisions().iter().len(),
            text.len(),
            Ticket::MAX_TEXT
        ))
    }

    /// Changes a reservation. May be repeated.
    ///
    /// # Errors
    /// A shared store did not reply: the change may or may not be made.
    pub(crate) async fn change(
        &self,
        ticket: &Ticket,
        change: TicketChange<'_>,
    ) -> Result<TicketChanged, Error> {
        self.count(1);
        self.change_one(ticket, change).await
    }

    /// Extends each of these reservations from now on, concurrently, for its own time or another
    /// one.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub(crate) async fn extend_each(
        &self,
        tickets: &[Ticket],
        extension: &Extension<'_>,
    ) -> Result<Vec<TicketChanged>, Error> {
        self.count(tickets.len());
        let extend = || TicketChange::Extend(extension.clone());
        let changed = tickets.iter().map(|ticket| self.change_one(ticket, extend()));
        join_all(changed).await.into_iter().collect()
    }

    async fn change_one(&self, ticket: &Ticket, change: TicketChange<'_>) -> Result<TicketChanged, Error> {
        let outcome = outcome_of(&change);
        let is_last = change.is_last();
        let changed = self.engine.store.change_hold(ticket, change).await?;
        let is_unknown =
            matches!(&changed, TicketChanged::Now(settlement) if settlement.status() == HoldStatus::Unknown);
        let open = &self.engine.open_reservations;
        let noted = open.keys(ticket.id());
        if is_unknown {
            log_limited!(WARN, None, "a ticket is unknown to the store; nothing was charged or released");
        } else if is_last {
            open.remove(ticket.id());
        }
        let TicketChanged::Now(settlement) = &changed else { return Ok(changed) };
        if !is_last {
            open.change(settlement);
        }
        let policies = self.engine.store.policies();
        let is_in_flight = |policy: &str| {
            let policy = policies.by_name(policy);
            policy.is_some_and(|policy| policy.quota().algorithm() == Algorithm::InFlight)
        };
        let cost_of = |key: &SettledKey<'_>| {
            policies
                .by_name(key.policy())
                .map_or(0, |policy| policy.options().counts.count(key.decision().amounts().cost))
        };
        for key in settlement.iter() {
            self.engine.observer.record_hold(key.policy(), HoldOutcome::of(key.status(), outcome));
            if let Some(last) = key.last() {
                self.engine.observer.record_settled(key.policy(), last);
            }
            let of_key = noted.iter().find(|(policy, _)| **policy == *key.policy()).map(|(_, text)| &**text);
            match outcome {
                HoldOutcome::Cancelled => self.engine.observer.record_refund(key.policy(), cost_of(&key)),
                // A permit charges nothing.
                _ if is_in_flight(key.policy()) => {}
                _ => {
                    self.engine.observer.record_charge_of_hold(
                        key.policy(),
                        of_key,
                        cost_of(&key),
                        key.decision().at(),
                    );
                }
            }
        }
        Ok(changed)
    }
}

impl Engine {
    /// Asks the store once, and records how long that took.
    pub(super) async fn ask_to_reserve<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
        is_waiting: bool,
    ) -> Result<Reserved<'r>, Error> {
        let started = self.observer.store_call(!self.store.is_in_memory());
        let reserved = self.store.reserve(requests, options, is_waiting).await?;
        self.observer.record_store_call(started, reserved.decisions());
        Ok(reserved)
    }

    /// Reports reservations that expire, until the process ends.
    pub(in crate::engine) async fn watch_reservations(&self) {
        loop {
            let due = self.open_reservations.next_due().await;
            join_all(due.into_iter().map(|one| self.carry_out(one))).await;
        }
    }

    async fn carry_out(&self, due: Due) {
        match due {
            Due::Ended(expired) => {
                // A removed policy counts nothing any more.
                if let Some(policy) = self.store.policies().by_name(&expired.policy) {
                    self.observer.record_expired(&expired, policy);
                }
            }
            Due::LookUp(place, hold) => {
                // Without a reply the hold's state is unknown: it is not reported.
                let keys = self.store.inspect(&hold.request()).await.unwrap_or_default();
                self.open_reservations.looked_up(place, &keys);
            }
        }
    }
}

/// The outcome to count if the reservation was open.
fn outcome_of(change: &TicketChange<'_>) -> HoldOutcome {
    match change {
        TicketChange::Settle { .. } => HoldOutcome::Settled,
        TicketChange::Extend(_) => HoldOutcome::Extended,
        TicketChange::Cancel => HoldOutcome::Cancelled,
    }
}
