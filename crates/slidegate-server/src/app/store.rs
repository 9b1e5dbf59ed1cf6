//! The service's store: in-process memory, or a shared store.
//!
//! A shared store may be unavailable: that is counted here, logged, reported at `/readyz`, and
//! shown in every decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use slidegate::{
    BreakerState, ControlDocument, ControlDocumentId, DecisionSource, Decisions, Error, FailureKind, Gate,
    KeyUse, MemoryStats, MemoryStore, NodeState, Policy, PolicyReset, PolicySet, Request, ResetCursor,
    SharedGate, SharedStats, Verb,
};

use crate::config::{Counted, SharedStore};
use crate::log_limit::LogLimit;

/// The store.
#[derive(Debug)]
// Not boxed: there is one instance, and the memory variant avoids an indirection.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Store {
    Memory(Gate),
    Shared(Box<Shared>),
}

/// A shared store and its health.
#[derive(Debug)]
pub(crate) struct Shared {
    gate: SharedGate,
    instances: u64,
    /// Requests decided by the store itself.
    answered: AtomicU64,
    /// Whether a call failed and the store was not found healthy since.
    away: AtomicBool,
}

/// The state of a shared store at the last health check.
#[derive(Debug)]
pub(crate) struct Seen {
    answered: u64,
    fallbacks: u64,
    /// Fallback decisions already logged.
    reported: u64,
    log_limit: LogLimit,
    /// Whether unavailability was logged.
    away: bool,
}

impl Default for Seen {
    fn default() -> Self {
        let log_limit = LogLimit::every(REPORT_EVERY);
        Self { answered: 0, fallbacks: 0, reported: 0, log_limit, away: false }
    }
}

impl Store {
    /// # Errors
    /// The shared store's certificates are invalid, or a limit is too large for its scripts.
    pub(crate) fn new(
        policies: PolicySet,
        memory: MemoryStore,
        shared: Option<SharedStore>,
    ) -> Result<Self, Error> {
        let Some(shared) = shared else { return Ok(Self::Memory(Gate::with_store(policies, memory))) };
        let gate = SharedGate::builder(policies, shared.options)
            .instances(shared.instances)
            .memory(memory)
            .build()?;
        let (answered, away) = (AtomicU64::new(0), AtomicBool::new(false));
        let instances = shared.instances;
        Ok(Self::Shared(Box::new(Shared { gate, instances, answered, away })))
    }

    /// Decides requests in one atomic step in memory. `None` with a shared store.
    #[inline]
    pub(crate) fn try_apply<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
    ) -> Option<Decisions<'r>> {
        match self {
            Self::Memory(gate) => Some(apply_now(gate, verb, requests)),
            Self::Shared(_) => None,
        }
    }

    /// Decides requests in one step.
    pub(crate) async fn apply<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        match self {
            Self::Memory(gate) => apply_now(gate, verb, requests),
            Self::Shared(shared) => shared.apply(verb, requests).await,
        }
    }

    /// Activates policies. Usage is kept by policy name.
    ///
    /// # Errors
    /// A limit is too large for a shared store; the old policies stay active.
    pub(crate) fn configure(&self, policies: PolicySet) -> Result<(), Error> {
        match self {
            Self::Memory(gate) => {
                gate.configure(policies);
                Ok(())
            }
            Self::Shared(shared) => shared.gate.configure(policies),
        }
    }

    /// Checks that the store supports a policy.
    ///
    /// # Errors
    /// A limit is too large for a shared store.
    pub(crate) fn can_count(&self, policy: &Policy) -> Result<(), Error> {
        let Self::Shared(shared) = self else { return Ok(()) };
        SharedGate::new(PolicySet::new([policy.clone()])?, shared.gate.options().clone()).map(drop)
    }

    /// Checks a request with an idempotency key: repeated requests with the same id are charged
    /// once.
    pub(crate) async fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        match self {
            Self::Memory(gate) => gate.check_once(request, id),
            Self::Shared(shared) => shared.check_once(request, id).await,
        }
    }

    /// Resets the request's keys. Returns whether they had usage.
    ///
    /// # Errors
    /// A shared store did not reply in time.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        match self {
            Self::Memory(gate) => gate.reset(request),
            Self::Shared(shared) => shared.reset(request).await,
        }
    }

    /// One step of resetting every key of a policy.
    ///
    /// # Errors
    /// The cursor belongs to another store, or a shared store did not reply in time.
    pub(crate) async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        match self {
            Self::Memory(gate) => gate.reset_policy_step(policy, from, keys),
            Self::Shared(shared) => shared.gate.reset_policy_step(policy, from, keys).await,
        }
    }

    /// The usage of the request's keys, charge by charge.
    ///
    /// # Errors
    /// A shared store did not reply, or holds a value that slidegate did not write.
    pub(crate) async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        match self {
            Self::Memory(gate) => gate.inspect(request),
            Self::Shared(shared) => shared.gate.inspect(request).await,
        }
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        match self {
            Self::Memory(gate) => gate.policies(),
            Self::Shared(shared) => shared.gate.policies(),
        }
    }

    /// Statistics of the in-process memory store, which is also the fallback of a shared store.
    pub(crate) fn stats(&self) -> MemoryStats {
        match self {
            Self::Memory(gate) => gate.stats(),
            Self::Shared(shared) => shared.gate.memory().stats(),
        }
    }

    /// Removes expired keys from this process's memory.
    pub(crate) fn sweep(&self, slots: usize) {
        match self {
            Self::Memory(gate) => gate.sweep(slots),
            Self::Shared(shared) => shared.gate.memory().sweep(slots),
        };
    }

    pub(crate) fn counted(&self) -> Counted {
        match self {
            Self::Memory(_) => Counted::Here,
            Self::Shared(shared) => Counted::Shared { instances: shared.instances },
        }
    }

    /// The shared store, if configured.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

impl Shared {
    /// Decides requests in one step.
    async fn apply<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        let decisions = match verb {
            Some(verb) => self.gate.apply_all(verb, requests).await,
            None => self.gate.apply(requests).await,
        };
        self.saw(&decisions);
        decisions
    }

    async fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        let decisions = self.gate.check_once(request, id).await;
        self.saw(&decisions);
        decisions
    }

    /// Records whether the store decided these.
    fn saw(&self, decisions: &Decisions<'_>) {
        let (mut answered, mut fell_back) = (false, false);
        for decision in decisions.iter() {
            match decision.source {
                DecisionSource::Store => answered = true,
                // Says nothing about the current state of the store.
                DecisionSource::CachedDenial => {}
                _ => fell_back = true,
            }
        }
        if fell_back {
            self.away.store(true, Ordering::Relaxed);
        } else if answered {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let existed = self.gate.reset(request).await;
        if existed.is_err() {
            self.away.store(true, Ordering::Relaxed);
        }
        existed
    }

    /// The control document, unless it still is this one; see [`SharedGate::note`].
    pub(crate) async fn note(
        &self,
        known: Option<ControlDocumentId>,
    ) -> Result<Option<ControlDocument>, Error> {
        self.gate.note(known).await
    }

    /// Replaces the control document `found`; see [`SharedGate::replace_control_document`].
    pub(crate) async fn replace_control_document(
        &self,
        found: ControlDocumentId,
        note: &ControlDocument,
    ) -> Result<bool, Error> {
        self.gate.replace_control_document(found, note).await
    }

    /// Waits until another instance announces a new control document.
    pub(crate) async fn control_document_changed(&self) {
        self.gate.control_document_changed().await;
    }

    /// Statistics of its use.
    pub(crate) fn stats(&self) -> SharedStats {
        self.gate.stats()
    }

    /// The state of each node.
    pub(crate) fn nodes(&self) -> Vec<NodeState> {
        self.gate.nodes()
    }

    /// The `hash_tag` attribute, if configured.
    pub(crate) fn hash_tag(&self) -> Option<&str> {
        self.gate.options().tag_attribute()
    }

    /// Its URL, without secrets.
    pub(crate) fn url(&self) -> String {
        self.gate.options().to_string()
    }

    /// Pings the store at the start.
    ///
    /// # Errors
    /// The store is unreachable.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let answer = self.gate.ping().await;
        self.away.store(answer.is_err(), Ordering::Relaxed);
        answer
    }

    /// Pings often enough to close each healthy node's circuit breaker.
    async fn knock(&self) -> Result<(), Error> {
        for _ in 1..KNOCKS {
            self.gate.ping().await?;
            tokio::time::sleep(BETWEEN_KNOCKS).await;
        }
        self.gate.ping().await
    }

    /// Whether decisions may currently come from fallbacks.
    pub(crate) fn is_degraded(&self) -> bool {
        // Replicas are known but never connected to.
        self.away.load(Ordering::Relaxed) || self.gate.nodes().iter().all(|node| !node.connected)
    }

    /// The state of the store and its nodes, as JSON.
    pub(crate) fn state(&self) -> Value {
        let nodes = self.gate.nodes().into_iter().map(|node| {
            let breaker = match node.breaker {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half-open",
            };
            json!({
                "node": node.node,
                "connected": node.connected,
                "breaker": breaker,
                "reconnects": node.reconnects,
                "timeouts": node.timeouts,
            })
        });
        let stats = self.gate.stats();
        let errors = stats.store.errors.iter().filter(|(_, count)| *count > 0);
        let errors: Map<_, _> = errors.map(|(kind, count)| (kind.name().to_owned(), count.into())).collect();
        json!({
            "kind": "redis",
            "url": self.url(),
            "nodes": nodes.collect::<Vec<_>>(),
            "fallbacks": stats.fallbacks,
            "last_failure": stats.last_failure,
            "last_failure_kind": stats.last_failure_kind.map(FailureKind::name),
            "errors": errors,
            "clock": {
                "forward_jumps": stats.store.clock_jumps.forward,
                "backward_jumps": stats.store.clock_jumps.backward,
                "last_jump_ms": stats.store.clock_jumps.last_us / 1000,
            },
        })
    }

    /// Checks the health since the last check, and logs when the store becomes unavailable or
    /// available again. Pings it if there was no traffic, and to confirm recovery.
    pub(crate) async fn look(&self, seen: &mut Seen) {
        let stats = self.gate.stats();
        let answered = self.answered.load(Ordering::Relaxed);
        let (new_answers, new_fallbacks) = (answered - seen.answered, stats.fallbacks - seen.fallbacks);
        (seen.answered, seen.fallbacks) = (answered, stats.fallbacks);
        if new_fallbacks > 0 {
            seen.away = true;
        }
        let unreported = stats.fallbacks - seen.reported;
        if unreported > 0 && seen.log_limit.admit_key(b"").is_some() {
            seen.reported = stats.fallbacks;
            tracing::warn!(
                decisions = unreported,
                last_failure = stats.last_failure.unwrap_or_default(),
                "the store was unavailable; decisions were made by fallbacks"
            );
        }
        if new_fallbacks > 0 {
            return;
        }
        let is_away = self.away.load(Ordering::Relaxed);
        let answer = match (is_away, new_answers) {
            (true, _) => self.knock().await,
            (false, 0) => self.gate.ping().await,
            (false, _) => Ok(()),
        };
        if let Err(failure) = answer {
            self.away.store(true, Ordering::Relaxed);
            if !seen.away {
                tracing::warn!(%failure, "the store does not answer; until it does, each policy decides by its fallback");
            }
            seen.away = true;
        } else if self.gate.stats().fallbacks == seen.fallbacks {
            self.away.store(false, Ordering::Relaxed);
            if seen.away {
                tracing::info!(store = self.url(), "the store answers again; decisions come from it");
            }
            seen.away = false;
        }
    }
}

impl Shared {
    /// Logs settings that silently break limits, as far as the store's user has the rights to read
    /// them.
    pub(crate) async fn examine(&self) {
        for finding in self.gate.examine().await {
            tracing::warn!(finding, "the store does not keep limits as it should");
        }
    }
}

/// Minimum interval between log lines about fallback decisions; each line has the full count.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Consecutive replies that close a node's circuit breaker.
const KNOCKS: u32 = 3;
/// An open breaker admits one call per 100 to 120 ms.
const BETWEEN_KNOCKS: Duration = Duration::from_millis(130);
/// Decides requests in memory; without a `verb`, each by its own.
#[inline]
fn apply_now<'r>(gate: &Gate, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
    match verb {
        Some(verb) => gate.apply_all(verb, requests),
        None => gate.apply(requests),
    }
}
