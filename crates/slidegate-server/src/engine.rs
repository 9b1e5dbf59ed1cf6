//! The app: the parts shared by all protocols, and the only way to a decision, [`App::call`].
//!
//! A protocol turns its bytes into a [`Request`] with [`Attributes`], decides it with a [`Call`], and writes
//! the decisions in its own format. It knows neither stores nor algorithms.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use decide::{Call, Engine};
use futures_util::future::Either;
use slidegate::{Error, MemoryStore, Policy, PolicySet, Request, Value, verb::Verb};
use slidegate_http::headers::HeaderOptions;

use crate::access::Access;
use crate::audit;
use crate::caller::Caller;
use crate::config::{Config, describe};
use crate::envoy;
use crate::listener::ConnectionBudget;
use crate::record::{NotDelivered, Observer};
use crate::wire::request::Attributes;
pub(crate) use open_reservations::OpenCost;
use open_reservations::OpenReservations;
use readiness::Readiness;
use shadow::Shadows;
use slidegate_config::names::listed;
use slidegate_config::policy::KeysShown;
use snapshots::Snapshots;
pub(crate) use store::StoreState;
use store::{Shared, Store};

pub(crate) mod decide;
pub(crate) mod explanation;
mod open_reservations;
pub(crate) mod readiness;
pub(crate) mod shadow;
pub(crate) mod snapshots;
pub(crate) mod store;
pub(crate) mod ticket_change;

/// The value of each attribute in a self-check.
const SELF_CHECK: &str = "slidegate self-check";
/// Sweeps that together cover the whole memory store.
const SWEEPS_PER_ROUND: usize = 64;

/// The parts shared by all protocols.
#[derive(Debug)]
pub(crate) struct App {
    engine: Engine,
    pub(crate) access: Arc<Access>,
    pub(crate) attributes: Attributes,
    /// The style of rate-limit response headers.
    pub(crate) headers: HeaderOptions,
    pub(crate) readiness: Readiness,
    /// The connections of all listeners.
    pub(crate) connections: Arc<ConnectionBudget>,
    /// Preserves usage across restarts, if configured.
    pub(crate) snapshots: Option<Snapshots>,
}

impl App {
    /// # Errors
    /// One line: the shared store is misconfigured, see [`Store::new`], or the trace exporter
    /// cannot be created.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let snapshots = config.memory.snapshot.as_ref().map(Snapshots::open).transpose()?;
        let builder = config.memory.builder();
        let memory = match &snapshots {
            Some(snapshots) => builder.for_snapshot(&snapshots.file()).build(),
            None => builder.build(),
        };
        Self::over(config, memory, snapshots)
    }

    /// The app over this memory store, unless a shared store is configured.
    pub(crate) fn over(
        config: Config,
        memory: MemoryStore,
        snapshots: Option<Snapshots>,
    ) -> Result<Self, String> {
        let policies = config.policies;
        let observer = Observer::new(config.observe, &policies)?;
        let store = Store::new(policies, memory, config.shared).map_err(|error| error.to_string())?;
        let (shadows, open_reservations) = (Shadows::default(), OpenReservations::default());
        Ok(Self {
            engine: Engine { store, observer, shadows, open_reservations },
            access: Arc::new(Access::new(config.listen, config.admin)),
            attributes: Attributes { addresses: config.address_attributes },
            headers: config.headers,
            readiness: Readiness::default(),
            connections: Arc::new(ConnectionBudget::new(config.connections)),
            snapshots,
        })
    }

    /// Starts a client's call, which makes and records all of its decisions.
    pub(crate) fn call(&self, caller: impl Into<Caller>) -> Call<'_> {
        self.engine.call(caller)
    }

    /// Activates policies. `keys_shown`: redaction of the policies added at run time;
    /// `old_keys_shown`: that of the ones before.
    ///
    /// # Errors
    /// A limit is more than a shared store can count; the old policies stay active.
    pub(crate) fn activate(
        &self,
        policies: PolicySet,
        keys_shown: &HashMap<String, KeysShown>,
        old_keys_shown: &HashMap<String, KeysShown>,
    ) -> Result<(), Error> {
        let Engine { store, observer, shadows, .. } = &self.engine;
        // Register them before they decide, so that no decision is missed.
        observer.follow(&policies, keys_shown);
        if let Err(error) = store.configure(policies) {
            observer.follow(&store.policies(), old_keys_shown);
            return Err(error);
        }
        shadows.follow(&store.policies());
        Ok(())
    }

    /// Completes the future of one request's decision: at once for the memory store, unless it may wait for its turn. Such a future has 2 kB,
    /// which would otherwise be moved with its caller's on every request.
    #[inline(always)] // a call would move it
    pub(crate) fn complete<F: Future>(
        &self,
        may_wait: bool,
        decision: F,
    ) -> Either<Ready<F::Output>, Pin<Box<F>>> {
        if self.store().is_in_memory() && !may_wait {
            let Poll::Ready(decided) = pin!(decision).poll(&mut Context::from_waker(Waker::noop())) else {
                unreachable!("a decision in memory does not wait");
            };
            Either::Left(ready(decided))
        } else {
            Either::Right(Box::pin(decision))
        }
    }

    /// Resets the request's keys under every policy that applies. Returns whether they had usage. For
    /// envoyproxy/ratelimit limits, also resets the denied hits.
    ///
    /// # Errors
    /// A shared store did not reply in time: the keys may or may not have been reset.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let existed = self.store().reset(request).await?;
        let policies = self.policies();
        let Some(Value::Bytes(counter)) = request.value(envoy::SCOPE) else { return Ok(existed) };
        let is_rule = |policy: &Policy| {
            policy.options().only_when_named
                && policy.scope() == [envoy::SCOPE]
                && policy.key_of(request).is_some()
        };
        let (Some(rule), Ok(counter)) =
            (policies.iter().find(|policy| is_rule(policy)), std::str::from_utf8(counter))
        else {
            return Ok(existed);
        };
        let refused = envoy::denied_key(counter);
        let refused = Request::new().with(envoy::SCOPE, &refused).under(rule.name());
        Ok(self.store().reset(&refused).await? || existed)
    }

    /// [`reset`](Self::reset) by a client, with the lines of the audit log.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn reset_for(&self, by: &str, request: &Request<'_>) -> Result<bool, Error> {
        let before = self.store().apply(Some(Verb::Peek), std::slice::from_ref(request), None).await;
        let existed = self.reset(request).await?;
        audit::reset(by, &before, |policy, key| self.observer().shown(policy, key));
        Ok(existed)
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.engine.store.policies()
    }

    pub(crate) fn describe(&self, policy: &Policy) -> String {
        describe(policy, self.engine.store.storage())
    }

    /// Cost held by open reservations of this process, by policy.
    pub(crate) fn open_reservations(&self) -> HashMap<Arc<str>, OpenCost> {
        self.engine.open_reservations.costs(&self.policies())
    }

    /// Cost held by open reservations of this process, by policy and key; `None`: of all policies.
    pub(crate) fn held_by_key(&self, policy: Option<&str>) -> HashMap<(Arc<str>, Arc<str>), u64> {
        let mut held = self.engine.open_reservations.held(policy);
        let policies = self.policies();
        for ((policy, _), held) in &mut held {
            *held =
                policies.by_name(policy).map_or(*held, |policy| policy.options().counts.amount(*held).ceil());
        }
        held
    }

    /// Reservations of this process that are not tracked, because there were too many.
    pub(crate) fn reservations_not_noted(&self) -> u64 {
        self.engine.open_reservations.not_noted()
    }

    /// Reports keys that cross thresholds, until the process ends. With a shared store, one instance reports
    /// each crossing.
    pub(crate) async fn report_crossings(&self) {
        let notifications = &self.observer().notifications;
        let Some(mut queue) = notifications.take_queue() else { return };
        while let Some((crossing, _place)) = queue.recv().await {
            let is_first = match self.shared() {
                None => Ok(true),
                Some(shared) => shared.store().claim(&crossing.claim(), crossing.quiet).await,
            };
            match is_first {
                Ok(false) => {}
                Err(_) => notifications.dropped(NotDelivered::StoreUnavailable),
                Ok(true) => {
                    if let Some(policy) = self.policies().by_name(&crossing.policy) {
                        self.observer().record_crossing(&crossing, policy);
                    }
                }
            }
        }
    }

    /// Reports reservations that expire, until the process ends.
    pub(crate) async fn watch_reservations(&self) {
        self.engine.watch_reservations().await;
    }

    pub(crate) fn store(&self) -> &Store {
        &self.engine.store
    }

    /// The shared store, if there is one.
    pub(crate) fn shared(&self) -> Option<Shared<'_>> {
        self.engine.store.shared()
    }

    /// Whether fallbacks may currently decide, because the shared store is unavailable.
    pub(crate) fn is_degraded(&self) -> bool {
        self.shared().is_some_and(Shared::is_degraded)
    }

    /// Why fallbacks may decide, without addresses or error texts.
    pub(crate) fn degradation(&self) -> Option<&'static str> {
        self.shared().and_then(Shared::degradation)
    }

    /// The kind and state of the store.
    pub(crate) fn store_state(&self) -> StoreState {
        self.engine.store.state()
    }

    /// The recorder of decisions.
    pub(crate) fn observer(&self) -> &Observer {
        &self.engine.observer
    }

    pub(crate) fn shadows(&self) -> &Shadows {
        &self.engine.shadows
    }

    /// Peeks, through the store, at a key that no request has. Not recorded. Does not complete if decisions
    /// hang.
    pub(crate) async fn self_check(&self) {
        let policies = self.policies();
        let Some(policy) = listed(&policies).next() else { return };
        let address = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let request = policy.scope().iter().fold(Request::new().with_cost(0), |request, name| {
            if self.attributes.addresses.contains(name) {
                request.with(name, address)
            } else {
                request.with(name, SELF_CHECK)
            }
        });
        let request = request.under(policy.name());
        self.store().apply(Some(Verb::Peek), std::slice::from_ref(&request), None).await;
    }

    /// Removes expired keys from a part of the store.
    pub(crate) fn sweep(&self) {
        self.store().sweep(self.store().stats().max_keys / SWEEPS_PER_ROUND);
    }
}
