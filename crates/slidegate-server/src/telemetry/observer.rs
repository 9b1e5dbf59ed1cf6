//! The observer: counts what is decided, remembers why something was denied, and who uses most.
//!
//! It sees every decision after it was made and changes none. An allowed decision costs it a few additions to counters
//! of its thread: it reads no clock, takes no lock and allocates nothing, but for the few that are looked at closely.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use slidegate::{Clock, Decisions, PolicyDecision, PolicySet, Source, SystemClock, Timestamp, Verb};
use tokio::sync::Semaphore;

use super::VERBS;
use super::events::{self, Message};
use super::histogram::Histogram;
use super::per_thread::{PerThread, copies_wanted, thread};
use super::policy_counters::{Counts, Outcome};
use super::policy_counters::{PolicyCounters, PolicyRegistry};
use super::redaction::Redactor;
use super::sampler::Sampler;
use super::top::{By, Top, Weight};
use super::traces::Traces;
use crate::caller::{Caller, Protocol};
use crate::config::{KeysShown, Observe};
use crate::policy_names::candidate_of;
use slidegate_envoy::LiveConfig;

/// Most streams at once, of events and rates together: each is a connection, and a message is sent to all.
pub(super) const MAX_STREAMS: usize = 64;
/// Longest error of a configuration that is kept.
const MAX_ERROR: usize = 4096;

/// Watches decisions. Held by the app, which shows it each one.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(super) options: Enabled,
    pub(super) registry: ArcSwap<PolicyRegistry>,
    /// How policies show keys, by their names. Held while the registry is changed.
    pub(super) keys_shown: Mutex<HashMap<String, KeysShown>>,
    pub(super) counters: PerThread<RequestCounters>,
    pub(super) latency: [Histogram; Protocol::ALL.len()],
    pub(super) store_latency: Histogram,
    pub(super) events: events::Events,
    pub(super) top: Top,
    pub(super) redactor: Arc<Redactor>,
    pub(super) configuration: Mutex<Loaded>,
    pub(super) changes: ChangesSeen,
    pub(super) streams: Arc<Semaphore>,
    pub(super) is_ending: AtomicBool,
    /// The files of envoyproxy/ratelimit, if it is those that are followed.
    pub(super) files: OnceLock<LiveConfig>,
    /// `None`: no decision has a span.
    pub(super) traces: Option<Traces>,
    pub(super) clock: SystemClock,
    pub(super) started_at: Timestamp,
}

/// What is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enabled {
    pub(super) metrics: bool,
    pub(super) events: bool,
    pub(super) top: bool,
}

/// What one lane has seen, of all policies together.
#[derive(Debug, Default)]
pub(super) struct RequestCounters {
    /// By verdict, verb and protocol.
    pub(super) requests: [[[AtomicU64; Protocol::ALL.len()]; VERBS.len()]; 2],
    /// Checks that no policy applied to, by protocol.
    pub(super) unmatched: [AtomicU64; Protocol::ALL.len()],
    /// Charges that are looked at for the top.
    pub(super) charges: Sampler,
    /// Denials that are looked at for the top and for events.
    pub(super) denials: Sampler,
}

/// What is known of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Loaded {
    pub(super) hash: String,
    pub(super) at: Timestamp,
    /// How often it was loaded and refused after the start.
    pub(super) loads: u64,
    pub(super) failures: u64,
    /// Why the last one was refused, if it was.
    pub(super) error: Option<String>,
}

/// What is known of changes that were made at run time and live in a shared store.
#[derive(Debug, Default)]
pub(super) struct ChangesSeen {
    /// How often the store lost changes that are in force here.
    pub(super) losses: AtomicU64,
    /// Whether the store holds what is in force here, as far as it was last seen.
    pub(super) are_stored: AtomicBool,
}

impl Observer {
    /// # Errors
    /// In one line: spans that cannot be sent where the configuration says.
    pub(crate) fn new(options: Observe, policies: &PolicySet) -> Result<Self, String> {
        let traces = options.traces.as_ref().map(Traces::start).transpose()?;
        let copies = copies_wanted();
        let Observe { metrics, events, top, .. } = options;
        let redactor =
            Arc::new(Redactor::new(options.key_secret.as_ref().map(|secret| secret.expose().as_str())));
        let clock = SystemClock::new();
        let observer = Self {
            registry: ArcSwap::default(),
            keys_shown: Mutex::new(options.keys_shown),
            counters: PerThread::new(copies),
            latency: std::array::from_fn(|_| Histogram::new(copies)),
            store_latency: Histogram::new(copies),
            events: events::Events::new(Arc::clone(&redactor), events && options.log_denials),
            top: Top::new(copies),
            redactor,
            configuration: Mutex::new(Loaded { at: clock.now(), ..Loaded::default() }),
            changes: ChangesSeen::default(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            is_ending: AtomicBool::new(false),
            files: OnceLock::new(),
            traces,
            started_at: clock.now(),
            clock,
            options: Enabled { metrics, events, top },
        };
        observer.follow(policies, &HashMap::new());
        Ok(observer)
    }

    /// Who asks by a request with these fields.
    pub(crate) fn caller(&self, protocol: Protocol, headers: &HeaderMap) -> Caller {
        if self.traces.is_some() { Traces::caller(protocol, headers) } else { protocol.into() }
    }

    /// When a decision begins, if that is wanted.
    #[inline]
    pub(crate) fn span_start(&self) -> Option<Timestamp> {
        self.traces.as_ref().map(|_| self.clock.now())
    }

    /// The span of decisions that began then.
    #[cold]
    fn trace(
        &self,
        traces: &Traces,
        caller: &Caller,
        verb: Verb,
        span_start: Timestamp,
        decisions: &Decisions<'_>,
    ) {
        let shown = |one: &PolicyDecision<'_>| self.shown(one.policy().name(), &one.key().to_string());
        let span = [span_start, self.clock.now()].map(|at| self.wall_time(at));
        traces.record(caller, verb, span.into(), decisions, shown);
    }

    /// What sends spans, if anything does.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Sees decisions. Every one is shown here, once, after it was made; `span_start` is from [`span_start`](Self::span_start).
    pub(crate) fn record(
        &self,
        caller: &Caller,
        verb: Verb,
        span_start: Option<Timestamp>,
        decisions: &Decisions<'_>,
    ) {
        if let (Some(traces), Some(span_start)) = (&self.traces, span_start) {
            self.trace(traces, caller, verb, span_start, decisions);
        }
        let protocol = caller.protocol;
        let Enabled { metrics, events, top } = self.options;
        if !(metrics || events || top) {
            return;
        }
        let thread = thread();
        let seen = self.counters.of(thread);
        let registry = self.registry.load();
        let mut is_denied = false;
        for one in decisions.iter() {
            let (decision, policy) = (one.decision(), one.policy());
            is_denied |= decision.is_denied() && policy.is_enforced();
            let Some(row) = registry.row(one.position(), policy.name()) else { continue };
            let outcome = if metrics {
                row.record(thread, verb, decision, policy.is_enforced(), one.asked())
            } else {
                (verb == Verb::Check).then(|| Outcome::of(decision, policy.is_enforced()))
            };
            match outcome {
                Some(Outcome::Deny | Outcome::ShadowDeny) => {
                    self.record_denial(protocol, row, &one, seen, policy.is_enforced());
                }
                Some(Outcome::Allow) if top && decision.cost > 0 => self.record_charge(row, &one, seen),
                _ => {}
            }
        }
        if metrics {
            let (protocol, verb_at) = (protocol as usize, verb as usize);
            seen.requests[usize::from(is_denied)][verb_at][protocol].fetch_add(1, Relaxed);
            if decisions.iter().len() == 0 && verb == Verb::Check {
                seen.unmatched[protocol].fetch_add(1, Relaxed);
            }
        }
    }

    /// Sees looks that decided a client's request, each with its outcome: counted as checks that charged nothing.
    pub(crate) fn record_peeks(&self, protocol: Protocol, looks: &[(PolicyDecision<'_>, Outcome)]) {
        let Enabled { metrics, events, top } = self.options;
        if !(metrics || events || top) {
            return;
        }
        let thread = thread();
        let seen = self.counters.of(thread);
        let registry = self.registry.load();
        for (one, outcome) in looks {
            let Some(row) = registry.row(one.position(), one.policy().name()) else { continue };
            if metrics {
                row.record_peek(thread, one.decision(), *outcome, one.asked());
            }
            if *outcome != Outcome::Allow {
                self.record_denial(protocol, row, one, seen, *outcome == Outcome::Deny);
            }
        }
        if metrics && looks.iter().any(|(_, outcome)| *outcome == Outcome::Deny) {
            seen.requests[1][Verb::Check as usize][protocol as usize].fetch_add(1, Relaxed);
        }
    }

    #[inline]
    fn record_charge(&self, row: &PolicyCounters, one: &PolicyDecision<'_>, seen: &RequestCounters) {
        let decisions = seen.charges.weigh(one.at);
        if decisions > 0 {
            let weight = Weight { decisions, each: one.asked() };
            self.top.add(row.number, By::Used, one.key(), one.at, weight, &self.redactor);
        }
    }

    /// `denies` says whether it denied the request.
    fn record_denial(
        &self,
        protocol: Protocol,
        row: &PolicyCounters,
        one: &PolicyDecision<'_>,
        seen: &RequestCounters,
        denies: bool,
    ) {
        let decisions = seen.denials.weigh(one.at);
        if decisions == 0 {
            self.events.leave_out();
            return;
        }
        let key = one.key().to_string();
        if self.options.top {
            let weight = Weight { decisions, each: 1 };
            self.top.add(row.number, By::Denied, &key, one.at, weight, &self.redactor);
        }
        if self.options.events {
            self.events.record(protocol, one, &key, row.keys_shown, denies);
        }
    }

    /// Goes over to these policies, before they decide: decisions of policies that were never told here are not seen.
    /// Counts stay with the policies' names. `added` says how those show keys that the configuration does not have.
    pub(crate) fn follow(&self, policies: &PolicySet, added: &HashMap<String, KeysShown>) {
        let keys_shown = self.keys_shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.registry.load_full();
        let after = before.of(policies, |name| {
            // A candidate decides the requests of its policy, and shows their keys as that does.
            let name = candidate_of(name).unwrap_or(name);
            added.get(name).or(keys_shown.get(name)).copied().unwrap_or_default()
        });
        for row in after.in_force() {
            if before.by_name(&row.name).is_some_and(|known| known.keys_shown != row.keys_shown) {
                self.events.forget(&row.name);
            }
        }
        self.registry.store(Arc::new(after));
        drop(keys_shown);
        self.mark_changed();
    }

    /// Shows keys so from the next [`follow`](Self::follow) on.
    pub(crate) fn show_keys(&self, keys_shown: HashMap<String, KeysShown>) {
        *self.keys_shown.lock().unwrap_or_else(PoisonError::into_inner) = keys_shown;
    }

    /// What was counted of a policy. `None` if it never was in force.
    pub(crate) fn counts(&self, policy: &str) -> Option<Counts> {
        self.registry.load().by_name(policy).map(|row| row.counts())
    }

    /// Checks that were allowed and that were denied, by all policies together.
    pub(super) fn checks(&self) -> [u64; 2] {
        let check = Verb::Check as usize;
        let of = |seen: &RequestCounters, verdict: usize| {
            seen.requests[verdict][check].iter().map(|n| n.load(Relaxed)).sum()
        };
        [0, 1].map(|verdict| self.counters.sum(|seen| of(seen, verdict)))
    }

    /// Counts how often files of envoyproxy/ratelimit are taken and refused.
    pub(crate) fn watch_files(&self, live: LiveConfig) {
        // They are followed from the start or never.
        let _ = self.files.set(live);
    }

    /// The denials that are remembered.
    pub(crate) fn events(&self) -> &events::Events {
        &self.events
    }

    /// The time from which a protocol measures how long its decisions take.
    pub(crate) fn start(&self) -> Timestamp {
        if self.options.metrics { self.clock.now() } else { Timestamp::EPOCH }
    }

    /// Says that a protocol took from `start` until now for so many decisions.
    pub(crate) fn record_duration(&self, protocol: Protocol, start: Timestamp, decisions: u64) {
        if self.options.metrics && decisions > 0 {
            self.latency[protocol as usize].add(self.clock.now() - start, decisions);
        }
    }

    /// Says that a call of the shared store took from `start` until now, if it was the store that decided.
    pub(crate) fn record_store_call(&self, start: Timestamp, decisions: &Decisions<'_>) {
        if self.options.metrics && decisions.iter().any(|one| one.source == Source::Store) {
            self.store_latency.add(self.clock.now() - start, 1);
        }
    }

    /// Tells listeners that policies, configuration or changes moved.
    pub(crate) fn mark_changed(&self) {
        self.events.send(Message::Changed);
    }

    /// Says which configuration is in force now.
    pub(crate) fn config_loaded(&self, hash: &str) {
        let at = self.clock.now();
        let mut known = self.configuration.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = known.loads + u64::from(!known.hash.is_empty());
        *known = Loaded { hash: hash.to_owned(), at, loads, error: None, ..known.clone() };
        drop(known);
        self.mark_changed();
    }

    /// Says that a new configuration was refused, so the old one stays in force.
    pub(crate) fn config_refused(&self, error: &str) {
        let error: String = error.chars().take(MAX_ERROR).collect();
        let mut known = self.configuration.lock().unwrap_or_else(PoisonError::into_inner);
        known.failures += 1;
        known.error = Some(error);
        drop(known);
        self.mark_changed();
    }

    /// Says that the store lost run-time changes that are in force.
    pub(crate) fn changes_lost(&self) {
        self.changes.losses.fetch_add(1, Relaxed);
        self.changes_are_stored(false);
        self.mark_changed();
    }

    /// Says whether the store holds the run-time changes that are in force.
    pub(crate) fn changes_are_stored(&self, are_stored: bool) {
        self.changes.are_stored.store(are_stored, Relaxed);
    }

    /// Sends the last spans. To be called after the last decision; it waits a little for a collector.
    pub(crate) fn end_traces(&self) {
        if let Some(traces) = &self.traces {
            traces.end();
            traces.report_losses();
        }
    }

    /// Ends all streams, so that their connections do not hold up the end of the service.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, SeqCst);
        self.events.send(Message::End);
    }

    /// The date of a time that the observer noted, by the wall clock as it is set now.
    pub(super) fn wall_time(&self, at: Timestamp) -> Timestamp {
        self.clock.wall_time(at)
    }

    /// The keys that a policy shows as this text, among those that are kept: used or denied most in this period and the
    /// one before, and the last denials. `None` if the text is not what keys are shown as, but one.
    pub(crate) fn keys_shown_as(&self, policy: &str, text: &str) -> Option<Vec<Box<str>>> {
        let registry = self.registry.load();
        let row = registry.by_name(policy).filter(|row| Redactor::is_shown(text, row.keys_shown))?;
        let mut keys = self.events.keys_shown_as(policy, text);
        for by in [By::Used, By::Denied] {
            let known = self.top.ranking(row.number, by).keys.into_iter().map(|one| one.key);
            let known =
                known.filter(|key| !Redactor::is_cut(key) && self.redactor.show(key, row.keys_shown) == text);
            keys.extend(known.map(|key| Box::from(&*key)));
        }
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// A key's text as its policy shows it.
    pub(crate) fn shown(&self, policy: &str, key: &str) -> String {
        let keys_shown = self.registry.load().by_name(policy).map(|row| row.keys_shown).unwrap_or_default();
        self.redactor.show(key, keys_shown)
    }
}
