//! The app: the parts that all protocols share, and the only way to a decision, [`App::call`].
//!
//! A protocol turns its bytes into a [`Request`] with [`Attributes`], decides it with a [`Call`], and writes the
//! decisions in its own format. It knows no store and no algorithm.

use std::sync::Arc;

use slidegate::headers::HeaderOptions;
use slidegate::{Error, MemoryStore, Policy, PolicySet, Request, Value};

use crate::access::Access;
use crate::caller::Caller;
use crate::config::{Config, describe};
use crate::request::Attributes;
use crate::telemetry::Observer;
use changes::Base;
use decide::{Call, Engine};
use policies::ActivePolicies;
use readiness::Readiness;
use shadow::Shadows;
use store::{Shared, Store};

pub(crate) mod changes;
pub(crate) mod decide;
pub(crate) mod explanation;
pub(crate) mod policies;
pub(crate) mod readiness;
pub(crate) mod shadow;
pub(crate) mod store;

/// The whole in as many sweeps as this: the part of the memory store that one sweep looks through.
const SWEEPS_PER_ROUND: usize = 64;

/// What the service is made of.
#[derive(Debug)]
pub(crate) struct App {
    engine: Arc<Engine>,
    pub(crate) active: ActivePolicies,
    pub(crate) access: Arc<Access>,
    pub(crate) attributes: Attributes,
    /// Which header fields tell of decisions, and how.
    pub(crate) headers: HeaderOptions,
    pub(crate) readiness: Readiness,
}

impl App {
    /// # Errors
    /// In one line: a shared store that cannot be one, see [`Store::new`], or spans that cannot be sent.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let memory = MemoryStore::builder().max_keys(config.max_keys).build();
        Self::with_memory(config, memory)
    }

    fn with_memory(config: Config, memory: MemoryStore) -> Result<Self, String> {
        let in_words = |error: Error| error.to_string();
        let has_inline = config.resp.is_some();
        let base = Base { policies: config.policies, candidates: config.candidates };
        let addresses = config.address_attributes;
        let policies = policies::initial(&base, &addresses, has_inline).map_err(in_words)?;
        let observer = Observer::new(config.observe, &policies)?;
        let store = Store::new(policies, memory, config.shared).map_err(in_words)?;
        let engine = Arc::new(Engine { store, observer, shadows: Shadows::default() });
        Ok(Self {
            active: ActivePolicies::new(Arc::clone(&engine), base, addresses.clone(), has_inline),
            engine,
            access: Arc::new(Access::new(config.listen, config.admin)),
            attributes: Attributes { addresses },
            headers: config.headers,
            readiness: Readiness::default(),
        })
    }

    /// One in memory, on a clock that tests move.
    #[cfg(test)]
    pub(crate) fn on_clock(config: Config, clock: slidegate::ManualClock) -> Self {
        let memory = MemoryStore::builder().clock(clock).build();
        Self::with_memory(Config { shared: None, ..config }, memory).expect("memory is always a store")
    }

    /// A call of a client: all of its decisions are made and recorded by this.
    pub(crate) fn call(&self, caller: impl Into<Caller>) -> Call<'_> {
        self.engine.call(caller)
    }

    /// The service's own work on usage, which is not recorded.
    pub(crate) fn unrecorded(&self) -> Call<'_> {
        self.engine.unrecorded()
    }

    /// Forgets the request's keys under every policy that applies; says whether anything counted there. Of limits of
    /// envoyproxy/ratelimit's files it forgets what was refused as well.
    ///
    /// # Errors
    /// A shared store did not answer in time: the keys may be forgotten or not.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let existed = self.store().reset(request).await?;
        let policies = self.policies();
        let Some(Value::Bytes(counter)) = request.value(slidegate_envoy::SCOPE) else { return Ok(existed) };
        let is_rule = |policy: &Policy| {
            policy.is_only_when_named()
                && policy.scope_attributes() == [slidegate_envoy::SCOPE]
                && policy.applies_to(request)
        };
        let (Some(rule), Ok(counter)) =
            (policies.iter().find(|policy| is_rule(policy)), std::str::from_utf8(counter))
        else {
            return Ok(existed);
        };
        let refused = slidegate_envoy::denied_key(counter);
        let refused = Request::new().with(slidegate_envoy::SCOPE, &refused).under(rule.name());
        Ok(self.store().reset(&refused).await? || existed)
    }

    /// The active policies.
    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.engine.store.policies()
    }

    /// What a policy does, in words.
    pub(crate) fn describe(&self, policy: &Policy) -> String {
        describe(policy, self.engine.store.counted())
    }

    /// Where usage lives.
    pub(crate) fn store(&self) -> &Store {
        &self.engine.store
    }

    /// The shared store, if there is one.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.engine.store.shared()
    }

    /// Whether decisions may come from fallbacks just now, as the shared store is away.
    pub(crate) fn is_degraded(&self) -> bool {
        self.shared().is_some_and(Shared::is_degraded)
    }

    /// The kind and state of the store, as JSON.
    pub(crate) fn store_status(&self) -> serde_json::Value {
        self.shared().map_or_else(|| serde_json::json!({ "kind": "memory" }), Shared::state)
    }

    /// What records decisions.
    pub(crate) fn observer(&self) -> &Observer {
        &self.engine.observer
    }

    /// What shadow policies would have denied, and what candidates would change.
    pub(crate) fn shadows(&self) -> &Shadows {
        &self.engine.shadows
    }

    /// Removes expired keys, a part of the store at a time.
    pub(crate) fn sweep(&self) {
        self.store().sweep(self.store().stats().max_keys / SWEEPS_PER_ROUND);
    }

    /// From here on `/readyz` says that no new requests should come, and streams end.
    pub(crate) fn begin_shutdown(&self) {
        self.readiness.begin_shutdown();
        self.observer().end();
    }
}
