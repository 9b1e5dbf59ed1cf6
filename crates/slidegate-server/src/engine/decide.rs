//! Deciding: the only way from a protocol to the store.
//!
//! A [`Call`] measures, decides, and records the decision in metrics, events, traces, shadow
//! policies and candidates, so no protocol can forget one of these. Its duration is recorded on
//! drop.

use std::collections::HashMap;

use futures_util::future::join_all;
use slidegate::{Decisions, Error, PolicySet, Request, clock::Timestamp, reserve::Ticket, verb::Verb};
use slidegate_config::policy::KeysShown;

use super::open_reservations::OpenReservations;
use super::shadow::{CandidateCharge, Shadows};
use super::store::Store;
use crate::caller::Caller;
use crate::record::Observer;

mod holds;

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
    decisions: u64,
}

impl Engine {
    /// Starts a call, recorded under this caller.
    pub(crate) fn call(&self, caller: impl Into<Caller>) -> Call<'_> {
        Call { engine: self, caller: caller.into(), started: self.observer.start(), decisions: 0 }
    }

    /// Activates policies. `keys_shown`: redaction of the policies added at run time;
    /// `old_keys_shown`: that of the ones before.
    ///
    /// # Errors
    /// A limit is more than a shared store can count; the old policies stay active.
    pub(super) fn activate(
        &self,
        policies: PolicySet,
        keys_shown: &HashMap<String, KeysShown>,
        old_keys_shown: &HashMap<String, KeysShown>,
    ) -> Result<(), Error> {
        // Register them before they decide, so that no decision is missed.
        self.observer.follow(&policies, keys_shown);
        if let Err(error) = self.store.configure(policies) {
            self.observer.follow(&self.store.policies(), old_keys_shown);
            return Err(error);
        }
        self.shadows.follow(&self.store.policies());
        Ok(())
    }

    /// Decides requests in one atomic step; without a `verb`, each by its own. With an `id`,
    /// repeats of the single request are charged once.
    async fn apply<'r>(
        &self,
        caller: Option<&Caller>,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
    ) -> Decisions<'r> {
        let span_start = self.observer.span_start();
        let decisions = match (id, requests) {
            (Some(id), [request]) => self.store.check_once(request, id).await,
            _ => {
                let started = self.observer.start();
                let decisions = self.store.apply(verb, requests).await;
                self.observer.record_store_call(started, &decisions);
                decisions
            }
        };
        for charge in self.record(caller, verb, span_start, (&decisions, None)) {
            let request = requests[charge.request].clone().under(&charge.candidate);
            self.store.apply(Some(Verb::Check), std::slice::from_ref(&request)).await;
        }
        decisions
    }

    /// Records decisions and the reservation's ticket. Returns the candidates to charge, because
    /// only their policies denied.
    #[inline]
    fn record(
        &self,
        caller: Option<&Caller>,
        verb: Option<Verb>,
        span_start: Option<Timestamp>,
        (decisions, ticket): (&Decisions<'_>, Option<&Ticket>),
    ) -> Vec<CandidateCharge> {
        let Some(caller) = caller else { return Vec::new() };
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
    pub(crate) async fn apply<'r>(&mut self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.count(requests);
        self.engine.apply(self.recorded(requests), Some(verb), requests, None).await
    }

    /// Checks a request with an idempotency key: repeats with the same `id`, within the longest of
    /// its policies' windows, are charged once and get the first answer. Without an `id`, as
    /// [`apply`](Self::apply).
    pub(crate) async fn check_once<'r>(
        &mut self,
        request: &'r Request<'r>,
        id: Option<&str>,
    ) -> Decisions<'r> {
        let requests = std::slice::from_ref(request);
        self.count(requests);
        self.engine.apply(self.recorded(requests), Some(Verb::Check), requests, id).await
    }

    /// Decides each request by itself, concurrently.
    pub(crate) async fn apply_each<'r>(
        &mut self,
        asked: impl Iterator<Item = (Verb, &'r Request<'r>)>,
    ) -> Vec<Decisions<'r>> {
        let (engine, caller) = (self.engine, Some(&self.caller));
        let decided =
            join_all(asked.map(|(verb, request)| {
                engine.apply(caller, Some(verb), std::slice::from_ref(request), None)
            }));
        let decisions = decided.await;
        self.decisions += decisions.len() as u64;
        decisions
    }

    /// Decides requests with their own verbs and roles, in one atomic step. A denied peek is
    /// recorded as a denied check, because it denies a client's request.
    pub(crate) async fn apply_mixed<'r>(&mut self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.count(requests);
        self.engine.apply(self.recorded(requests), None, requests, None).await
    }

    fn count(&mut self, requests: &[Request<'_>]) {
        self.decisions += requests.len() as u64;
    }

    /// The caller to record, if there is anything to record.
    fn recorded(&self, requests: &[Request<'_>]) -> Option<&Caller> {
        (!requests.is_empty()).then_some(&self.caller)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.engine.observer.record_duration(self.caller.protocol, self.started, self.decisions);
    }
}
