//! The observer: records decisions in counters, events, top keys and traces.
//!
//! Called after each decision; never changes it. An allowed decision costs a few additions to thread-local
//! counters, without clock, lock or allocation unless it is sampled.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use slidegate::{
    DecisionSource, Decisions, PolicyDecision, PolicySet,
    clock::{Clock, SystemClock, Timestamp},
    reserve::{SettledCost, Ticket},
    verb::{Role, Verb},
};
use slidegate_config::names::candidate_of;
use slidegate_config::policy::KeysShown;

use super::VERBS;
use super::control_state::{ChangesSeen, ConfigState};
use super::escalations::Escalations;
use super::events::{self, Message};
use super::fullest;
use super::histogram::Histogram;
use super::history::{History, MarkerKind};
use super::notifications::Notifications;
use super::per_thread::{PerThread, copies_wanted, thread};
use super::policy_counters::{Counts, HoldOutcome, Outcome};
use super::policy_counters::{PolicyCounters, PolicyRegistry};
use super::redaction::Redactor;
use super::sampler::Sampler;
use super::top::{By, Top, Weight};
use super::traces::{SpanOf, Traces};
use super::waits::Waits;
use super::webhook::Webhook;
use crate::caller::{Caller, Protocol};
use crate::config::Observe;
use crate::envoy::LiveConfig;
use crate::shares::Bound;
use crate::wire::malformed::Malformed;

/// Maximum open streams of events and rates: for operators, and for tokens of one key. Each stream is a
/// connection that receives every message. A token may use half of the free streams.
pub(super) const MAX_STREAMS: [usize; 2] = [128, 64];
/// Maximum stored bytes of a config error.
const MAX_ERROR: usize = 4096;

#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) options: Enabled,
    pub(crate) registry: ArcSwap<PolicyRegistry>,
    /// Redaction of keys, by policy name. Locked while the registry changes.
    pub(crate) keys_shown: Mutex<HashMap<String, KeysShown>>,
    pub(crate) counters: PerThread<RequestCounters>,
    pub(crate) latency: [Histogram; Protocol::ALL.len()],
    pub(crate) store_latency: Histogram,
    pub(crate) waits: Waits,
    pub(crate) history: History,
    pub(crate) events: events::Events,
    pub(crate) top: Top,
    pub(crate) malformed: Malformed,
    pub(crate) notifications: Notifications,
    pub(crate) escalations: Escalations,
    /// Whether an active policy has thresholds.
    has_thresholds: AtomicBool,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) configuration: Mutex<ConfigState>,
    pub(crate) changes: ChangesSeen,
    /// By token name: operators, and tokens of one key.
    pub(crate) streams: [Bound<String>; 2],
    pub(crate) is_ending: AtomicBool,
    /// The envoyproxy/ratelimit files, if any.
    pub(crate) files: OnceLock<LiveConfig>,
    /// `None`: tracing is disabled.
    pub(crate) traces: Option<Traces>,
    pub(crate) clock: SystemClock,
    pub(crate) started_at: Timestamp,
}

/// The enabled outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Enabled {
    pub(crate) metrics: bool,
    pub(crate) events: bool,
    pub(crate) top: bool,
}

/// One thread's counters over all policies.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    /// By verdict, verb and protocol.
    pub(crate) requests: [[[AtomicU64; Protocol::ALL.len()]; VERBS.len()]; 2],
    /// Checks that no policy applied to, by protocol.
    pub(crate) unmatched: [AtomicU64; Protocol::ALL.len()],
    /// Samples charges for the top keys.
    pub(crate) charges: Sampler,
    /// Samples denials for the top keys and events.
    pub(crate) denials: Sampler,
    /// Samples decisions below half of a limit for the fullest keys.
    fullest: Sampler,
}

impl Observer {
    /// # Errors
    /// One line: the configured trace exporter cannot be created.
    pub(crate) fn new(options: Observe, policies: &PolicySet) -> Result<Self, String> {
        let traces = options.traces.as_ref().map(Traces::start).transpose()?;
        let copies = copies_wanted();
        let webhook =
            options.webhook.as_ref().map(|webhook| Webhook::start(&webhook.url, webhook.key.clone()));
        let notifications = Notifications::new(webhook.transpose()?.map(Arc::new));
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
            waits: Waits::new(copies),
            history: History::default(),
            events: events::Events::new(Arc::clone(&redactor), events && options.log_denials),
            top: Top::new(copies),
            malformed: Malformed::default(),
            notifications,
            escalations: Escalations::new(),
            has_thresholds: AtomicBool::new(false),
            redactor,
            configuration: Mutex::new(ConfigState { at: clock.now(), ..ConfigState::default() }),
            changes: ChangesSeen::default(),
            streams: MAX_STREAMS.map(Bound::new),
            is_ending: AtomicBool::new(false),
            files: OnceLock::new(),
            traces,
            started_at: clock.now(),
            clock,
            options: Enabled { metrics, events, top },
        };
        observer.follow(policies, &HashMap::new());
        observer.mark(MarkerKind::Started, concat!("slidegate ", env!("CARGO_PKG_VERSION")));
        Ok(observer)
    }

    /// The caller of a request with these header fields.
    pub(crate) fn caller(&self, protocol: Protocol, headers: &HeaderMap) -> Caller {
        if self.traces.is_some() { Traces::caller(protocol, headers) } else { protocol.into() }
    }

    /// The start time of a decision, if tracing is enabled.
    #[inline]
    pub(crate) fn span_start(&self) -> Option<Timestamp> {
        self.traces.as_ref().map(|_| self.clock.now())
    }

    /// Starts the span of these decisions, with this start time.
    #[inline(never)]
    fn trace(
        &self,
        traces: &Traces,
        caller: &Caller,
        verb: Verb,
        span_start: Timestamp,
        decisions: &Decisions<'_>,
    ) {
        let span = SpanOf { caller, verb, start: self.wall_time(span_start) };
        let now = || self.wall_time(self.clock.now());
        let registry = self.registry.load();
        let keys_shown = |one: &PolicyDecision<'_>| {
            let known = registry.find(one.position(), one.policy().name());
            known.map(|known| known.keys_shown).unwrap_or_default()
        };
        traces.record(span, now, decisions, &self.redactor, keys_shown);
    }

    /// The trace exporter, if tracing is enabled.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Records decisions. Call once per decision, after it was made; `span_start` is from
    /// [`span_start`](Self::span_start). Without `verb`, each decision is recorded under its own. Cost held
    /// by the ticket is not yet charged.
    pub(crate) fn record(
        &self,
        caller: &Caller,
        verb: Option<Verb>,
        span_start: Option<Timestamp>,
        (decisions, ticket): (&Decisions<'_>, Option<&Ticket>),
    ) {
        if let (Some(traces), Some(span_start)) = (&self.traces, span_start) {
            self.trace(traces, caller, verb.unwrap_or_default(), span_start, decisions);
        }
        let Enabled { metrics, events, top } = self.options;
        let is_watched = || self.has_thresholds.load(Relaxed) || self.escalations.is_used();
        if !(metrics || events || top || is_watched()) {
            return;
        }
        let thread = thread();
        let call = CallRecorder {
            observer: self,
            protocol: caller.protocol,
            thread,
            counters: self.counters.of(thread),
            ticket,
        };
        match verb {
            Some(verb) => call.record(verb, decisions),
            None => call.record_mixed(decisions),
        }
    }

    /// Counts a reservation, or a change of one. Ignored for a policy that was never active.
    pub(crate) fn record_hold(&self, policy: &str, outcome: HoldOutcome) {
        if self.options.metrics
            && let Some(counters) = self.registry.load().by_name(policy)
        {
            counters.record_hold(outcome);
        }
    }

    /// Counts a settled reservation. Ignored for a policy that was never active.
    pub(crate) fn record_settled(&self, policy: &str, settled: SettledCost) {
        if self.options.metrics
            && let Some(counters) = self.registry.load().by_name(policy)
        {
            counters.settled_shares.add(settled);
        }
    }

    /// Counts the cost charged when a reservation was settled or expired, as stores count it. The key is
    /// known only to the instance that made the reservation.
    pub(crate) fn record_charge_of_hold(&self, policy: &str, key: Option<&str>, cost: u64, at: Timestamp) {
        let registry = self.registry.load();
        let Some(policy) = registry.by_name(policy).filter(|_| cost > 0) else { return };
        let thread = thread();
        if self.options.metrics {
            policy.record_charge(thread, cost);
        }
        if let Some(key) = key.filter(|_| self.options.top) {
            let decisions = self.counters.of(thread).charges.weigh(at);
            if decisions > 0 {
                let weight = Weight { decisions, each: cost };
                self.top.add(policy.number, By::Used, key, at, weight, &self.redactor);
            }
        }
    }

    /// Counts the cost released by a cancelled reservation, as stores count it.
    pub(crate) fn record_refund(&self, policy: &str, cost: u64) {
        if self.options.metrics
            && let Some(counters) = self.registry.load().by_name(policy)
        {
            counters.record_refund(thread(), cost);
        }
    }

    /// Counts policies skipped because a scope attribute is missing. Logs the first time per policy, unless
    /// the policy configures the skip.
    #[inline]
    pub(crate) fn record_skipped(&self, decisions: &Decisions<'_>) {
        for (position, policy) in decisions.skipped() {
            let registry = self.registry.load();
            let Some(counters) = registry.find(position, policy.name()) else { continue };
            if self.options.metrics {
                counters.record_missing_attribute(thread());
            }
            let is_candidate = candidate_of(policy.name()).is_some();
            if policy.options().on_missing.is_none() && !is_candidate && counters.is_first_skip() {
                tracing::warn!(
                    policy = policy.name(),
                    scope = policy.scope().join(","),
                    "a request lacks an attribute of the policy's scope, so the policy does not limit it; say what is to \
                     happen with `on_missing: one-key`, `deny` or `skip`; more such requests are only counted"
                );
            }
        }
    }

    /// Registers these policies. Call before they decide: decisions of unregistered policies are not
    /// recorded. Counts are kept by policy name. `added`: redaction of policies outside the config.
    pub(crate) fn follow(&self, policies: &PolicySet, added: &HashMap<String, KeysShown>) {
        let keys_shown = self.keys_shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.registry.load_full();
        let after = before.of(policies, |name| {
            // A candidate uses the redaction of its policy.
            let name = candidate_of(name).unwrap_or(name);
            added.get(name).or(keys_shown.get(name)).copied().unwrap_or_default()
        });
        for policy in after.in_force() {
            if before.by_name(&policy.name).is_some_and(|known| known.keys_shown != policy.keys_shown) {
                self.events.forget(&policy.name);
            }
        }
        after.gone().iter().for_each(|policy| policy.forget_fullest());
        self.registry.store(Arc::new(after));
        let has_thresholds = policies.iter().any(|policy| !policy.options().notify.is_empty());
        self.has_thresholds.store(has_thresholds, Relaxed);
        drop(keys_shown);
        self.mark_changed();
    }

    /// Sets the redaction of keys, effective at the next [`follow`](Self::follow).
    pub(crate) fn show_keys(&self, keys_shown: HashMap<String, KeysShown>) {
        *self.keys_shown.lock().unwrap_or_else(PoisonError::into_inner) = keys_shown;
    }

    /// A policy's counts. `None` if it was never active.
    pub(crate) fn counts(&self, policy: &str) -> Option<Counts> {
        self.registry.load().by_name(policy).map(|policy| policy.counts())
    }

    /// Allowed and denied checks, over all policies.
    pub(crate) fn checks(&self) -> [u64; 2] {
        let check = Verb::Check as usize;
        let of = |seen: &RequestCounters, verdict: usize| {
            seen.requests[verdict][check].iter().map(|n| n.load(Relaxed)).sum()
        };
        [0, 1].map(|verdict| self.counters.sum(|seen| of(seen, verdict)))
    }

    pub(crate) fn events(&self) -> &events::Events {
        &self.events
    }

    /// The start time for the duration metric.
    pub(crate) fn start(&self) -> Timestamp {
        if self.options.metrics { self.clock.now() } else { Timestamp::EPOCH }
    }

    /// Records the duration since `start` for this many decisions.
    pub(crate) fn record_duration(&self, protocol: Protocol, start: Timestamp, decisions: u64) {
        if self.options.metrics && decisions > 0 {
            self.latency[protocol as usize].add(self.clock.now() - start, decisions);
        }
    }

    /// The start of a call to the store, if it is shared: a decision in memory takes less than its measurement.
    pub(crate) fn store_call(&self, is_shared: bool) -> Option<Timestamp> {
        (is_shared && self.options.metrics).then(|| self.clock.now())
    }

    /// Records the duration of a call to a shared store since `start`, if the store decided.
    pub(crate) fn record_store_call(&self, start: Option<Timestamp>, decisions: &Decisions<'_>) {
        let Some(start) = start else { return };
        if decisions.iter().any(|one| one.decision().source() == DecisionSource::Store) {
            self.store_latency.add(self.clock.now() - start, 1);
        }
    }

    /// Marks an event in the history.
    fn mark(&self, what: MarkerKind, text: &str) {
        let at_ms = self.wall_time(self.clock.now()).as_micros() / 1000;
        self.history.mark(at_ms, what, text);
    }

    /// Tells subscribers that policies, the config or run-time changes have changed.
    pub(crate) fn mark_changed(&self) {
        self.events.send(Message::Changed);
    }

    pub(crate) fn config(&self) -> ConfigState {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the active config and its settings that need a restart.
    pub(crate) fn config_loaded(&self, hash: &str, pending: Option<String>) {
        let at = self.clock.now();
        let mut known = self.configuration.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = known.loads + u64::from(!known.hash.is_empty());
        let failures = known.failures;
        *known = ConfigState { hash: hash.to_owned(), at, loads, failures, error: None, pending };
        drop(known);
        if loads > 0 {
            // As much as people compare.
            self.mark(MarkerKind::Reloaded, hash.get(..12).unwrap_or(hash));
        }
        self.mark_changed();
    }

    /// Records a rejected reload.
    pub(crate) fn config_refused(&self, error: &str) {
        let error: String = error.chars().take(MAX_ERROR).collect();
        let mut known = self.configuration.lock().unwrap_or_else(PoisonError::into_inner);
        known.failures += 1;
        known.error = Some(error.clone());
        drop(known);
        self.mark(MarkerKind::Rejected, &error);
        self.mark_changed();
    }

    /// Records that the store lost active run-time changes.
    pub(crate) fn changes_lost(&self) {
        self.changes.losses.fetch_add(1, Relaxed);
        self.changes_are_stored(false);
        self.mark(MarkerKind::ChangesLost, "the store lost run-time changes; they stay active");
        self.mark_changed();
    }

    /// Records whether the store holds the active run-time changes.
    pub(crate) fn changes_are_stored(&self, are_stored: bool) {
        self.changes.are_stored.store(are_stored, Relaxed);
    }

    /// Exports the last spans. Call after the last decision; blocks for a bounded time.
    pub(crate) fn end_traces(&self) {
        if let Some(traces) = &self.traces {
            traces.end();
            traces.report_losses();
        }
    }

    /// Ends all streams and waits, so they do not delay shutdown.
    pub(crate) fn end(&self) {
        self.waits.end();
        self.is_ending.store(true, SeqCst);
        self.events.send(Message::End);
    }

    /// Time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.now() - self.started_at
    }

    /// Converts a time of the observer's clock to the current wall clock.
    pub(crate) fn wall_time(&self, at: Timestamp) -> Timestamp {
        self.clock.wall_time(at)
    }
}

/// Records the decisions of one call, on this thread.
struct CallRecorder<'o> {
    observer: &'o Observer,
    protocol: Protocol,
    thread: usize,
    counters: &'o RequestCounters,
    /// The reservation of the call, if any.
    ticket: Option<&'o Ticket>,
}

impl CallRecorder<'_> {
    /// Records decisions that all have this verb.
    fn record(&self, verb: Verb, decisions: &Decisions<'_>) {
        let registry = self.observer.registry.load();
        let mut is_denied = false;
        for one in decisions.iter() {
            let outcome = Outcome::of(one.decision(), one.policy().options().enforced);
            is_denied |= outcome == Outcome::Deny;
            self.record_decision(&registry, verb, &one, outcome);
        }
        if self.observer.options.metrics {
            self.count_request(verb, is_denied);
            if decisions.iter().len() == 0 && verb == Verb::Check {
                self.counters.unmatched[self.protocol as usize].fetch_add(1, Relaxed);
            }
        }
    }

    /// Records decisions with their own verbs. A denied peek counts as a denied check that charged nothing; a
    /// denial that does not deny the call counts as a shadow denial.
    fn record_mixed(&self, decisions: &Decisions<'_>) {
        let registry = self.observer.registry.load();
        let is_denial =
            |one: &PolicyDecision<'_>| one.decision().is_denied() && one.policy().options().enforced;
        let all_deny_together =
            decisions.iter().filter(|one| one.role() == Role::Together).all(|one| is_denial(&one));
        // Per verb: whether a request was denied.
        let mut requests = [None; VERBS.len()];
        for one in decisions.iter() {
            let is_denied_peek = one.verb() == Verb::Peek && one.decision().is_denied();
            let verb = if is_denied_peek { Verb::Check } else { one.verb() };
            let denies = is_denial(&one) && (one.role() != Role::Together || all_deny_together);
            *requests[verb as usize].get_or_insert(false) |= verb == Verb::Check && denies;
            self.record_decision(&registry, verb, &one, Outcome::of(one.decision(), denies));
        }
        if self.observer.options.metrics {
            if decisions.iter().len() == 0 {
                requests[Verb::Check as usize] = Some(false);
                self.counters.unmatched[self.protocol as usize].fetch_add(1, Relaxed);
            }
            for (verb, is_denied) in VERBS.into_iter().zip(requests) {
                is_denied.into_iter().for_each(|is_denied| self.count_request(verb, is_denied));
            }
        }
    }

    fn count_request(&self, verb: Verb, is_denied: bool) {
        let counters = &self.counters.requests[usize::from(is_denied)][verb as usize];
        counters[self.protocol as usize].fetch_add(1, Relaxed);
    }

    /// Records one policy's decision; `outcome` is the check's.
    #[inline]
    fn record_decision(
        &self,
        registry: &PolicyRegistry,
        verb: Verb,
        one: &PolicyDecision<'_>,
        outcome: Outcome,
    ) {
        let Some(policy) = registry.find(one.position(), one.policy().name()) else { return };
        let Enabled { metrics, top, .. } = self.observer.options;
        let is_held =
            self.ticket.is_some_and(|ticket| ticket.holds().any(|hold| hold.policy == one.policy().name()));
        if metrics {
            let count = |amount| one.policy().options().counts.count(amount);
            let asked = if is_held { 0 } else { count(one.asked()) };
            policy.record(
                self.thread,
                verb,
                one.decision(),
                outcome,
                asked,
                count(one.decision().amounts().cost),
            );
        }
        if top && verb != Verb::Peek && one.position() < fullest::POLICIES {
            self.record_fullness(policy, one);
        }
        if !one.policy().options().notify.is_empty() && one.crossed().next().is_some() {
            self.observer.notifications.record(one, self.protocol);
        }
        match (verb, outcome) {
            (Verb::Check, Outcome::Deny | Outcome::ShadowDeny) => self.record_denial(policy, one, outcome),
            (Verb::Check, Outcome::Allow) if top && one.decision().cost() > 0 => {
                // A held cost is listed but not yet charged.
                let cost = if is_held { 0 } else { one.policy().options().counts.count(one.asked()) };
                self.record_charge(policy, one, cost);
            }
            _ => {}
        }
    }

    #[inline]
    fn record_fullness(&self, policy: &PolicyCounters, one: &PolicyDecision<'_>) {
        let (decision, keys) = (one.decision(), policy.fullest_of(self.thread));
        let share = fullest::share(decision);
        if keys.admits(share, decision.at(), || self.counters.fullest.weigh(decision.at()) > 0) {
            keys.add(&one.key(), share, decision, &self.observer.redactor);
        }
    }

    #[inline]
    fn record_charge(&self, policy: &PolicyCounters, one: &PolicyDecision<'_>, cost: u64) {
        let decisions = self.counters.charges.weigh(one.decision().at());
        if decisions > 0 {
            let weight = Weight { decisions, each: cost };
            let Observer { top, redactor, .. } = self.observer;
            top.add(policy.number, By::Used, one.key(), one.decision().at(), weight, redactor);
        }
    }

    fn record_denial(&self, policy: &PolicyCounters, one: &PolicyDecision<'_>, outcome: Outcome) {
        let Observer { options, events, top, redactor, escalations, notifications, .. } = self.observer;
        if outcome == Outcome::Deny {
            let is_reported = options.events || notifications.webhook.is_some();
            escalations.record(one, |key| {
                is_reported.then(|| events.of_denial(self.protocol, one, key, policy.keys_shown, true))
            });
        }
        let decisions = self.counters.denials.weigh(one.decision().at());
        if decisions == 0 {
            events.leave_out();
            return;
        }
        let key = one.key().to_string();
        if options.top {
            let weight = Weight { decisions, each: 1 };
            top.add(policy.number, By::Denied, &key, one.decision().at(), weight, redactor);
        }
        if options.events {
            events.record(self.protocol, one, &key, policy.keys_shown, outcome == Outcome::Deny);
        }
    }
}
