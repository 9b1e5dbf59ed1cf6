//! Deciding: the only way from a protocol to the store.
//!
//! A [`Call`] measures, decides, and records the decision in metrics, events, traces, shadow
//! policies and candidates, so no protocol can forget one of these. Its duration is recorded on
//! drop.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Decisions, Request, clock::Timestamp, reserve::Ticket, verb::Verb};

use super::open_reservations::OpenReservations;
use super::shadow::{CandidateCharge, Shadows};
use super::store::Store;
use crate::caller::Caller;
use crate::record::Observer;

mod holds;
mod turns;

pub(crate) use turns::TurnTerms;

/// The store, and everything that records its decisions.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) store: Store,
    pub(crate) observer: Observer,
    pub(crate) shadows: Shadows,
    pub(crate) open_reservations: OpenReservations,
}

/// One call by a client, which may make several decisions.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    engine: &'a Engine,
    caller: Caller,
    started: Timestamp,
    decisions: AtomicU64,
}

impl Engine {
    /// Starts a call, recorded under this caller.
    pub(crate) fn call(&self, caller: impl Into<Caller>) -> Call<'_> {
        Call {
            engine: self,
            caller: caller.into(),
            started: self.observer.start(),
            decisions: AtomicU64::new(0),
        }
    }

    /// Asks the store once, and records how long that took.
    async fn ask<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
        is_waiting: bool,
    ) -> Decisions<'r> {
        let started = self.observer.store_call(!self.store.is_in_memory());
        let decisions = self.store.ask(verb, requests, id, is_waiting).await;
        self.observer.record_store_call(started, &decisions);
        decisions
    }

    /// Records decisions and the reservation's ticket. Returns the candidates to charge, because
    /// only their policies denied.
    #[inline]
    fn record(
        &self,
        caller: &Caller,
        verb: Option<Verb>,
        span_start: Option<Timestamp>,
        (decisions, ticket): (&Decisions<'_>, Option<&Ticket>),
    ) -> Vec<CandidateCharge> {
        self.observer.record(caller, verb, span_start, (decisions, ticket));
        let verb = verb.unwrap_or_default();
        if verb == Verb::Check {
            self.observer.record_skipped(decisions);
        }
        self.shadows.record(verb, decisions)
    }
}

impl Call<'_> {
    /// Decides requests in one atomic step: all are charged on all of their policies, or none is.
    ///
    /// Without a `verb`, each request has its own verb and role. A denied peek is then recorded as a
    /// denied check, because it denies a client's request.
    ///
    /// With an idempotency key `id`, there is one request to check: repeats with the same `id`, within
    /// the longest of its policies' windows, are charged once and get the first answer.
    pub(crate) async fn apply<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
    ) -> Decisions<'r> {
        self.count(requests.len());
        let span_start = self.engine.observer.span_start();
        let decisions = self.engine.ask(verb, requests, id, false).await;
        if !requests.is_empty() {
            self.charge_candidates(
                self.engine.record(&self.caller, verb, span_start, (&decisions, None)),
                requests,
            )
            .await;
        }
        decisions
    }

    /// Charges candidates, because only their policies denied.
    async fn charge_candidates(&self, candidates: Vec<CandidateCharge>, requests: &[Request<'_>]) {
        for charge in candidates {
            let request = requests[charge.request].clone().under(&charge.candidate);
            self.engine.store.apply(Some(Verb::Check), slice::from_ref(&request), None).await;
        }
    }

    fn count(&self, decisions: usize) {
        self.decisions.fetch_add(decisions as u64, Ordering::Relaxed);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.engine.observer.record_duration(
            self.caller.protocol,
            self.started,
            self.decisions.load(Ordering::Relaxed),
        );
    }
}
