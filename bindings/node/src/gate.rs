//! Gates: in memory, whose calls return their answer, and over Redis, whose calls may return a promise.

use std::sync::Arc;

use napi::bindgen_prelude::{ClassInstance, Env};
use napi_derive::napi;
#[cfg(feature = "redis")]
use slidegate_bindings::SharedOptions;
use slidegate_bindings::{BindingError, Engine, EngineOptions};
use slidegate_config::policies::Policies;

use crate::clock::ManualClock;
use crate::error::{Result, thrown};
use crate::pending::{Answered, answer, wait};
#[cfg(feature = "redis")]
use crate::values::millis;
use crate::values::{Input, verb};

/// A gate.
#[napi]
pub struct NativeGate(Arc<Engine>);

/// Settings of gates.
#[napi(object, object_to_js = false)]
pub struct GateOptions<'e> {
    /// Time for tests.
    pub clock: Option<ClassInstance<'e, ManualClock>>,
    /// Most keys in memory.
    pub max_keys: Option<f64>,
    /// How many may wait on one key.
    pub max_waiting: Option<f64>,
    /// The version of the `RateLimit` fields.
    pub draft: Option<String>,
    /// The form of the `X-RateLimit` fields.
    pub x_ratelimit: Option<String>,
}

/// Settings of shared gates, see [`bindings::SharedOptions`](slidegate_bindings::SharedOptions).
#[cfg(feature = "redis")]
#[napi(object, object_to_js = false)]
pub struct SharedGateOptions {
    /// How many may wait on one key.
    pub max_waiting: Option<f64>,
    /// The version of the `RateLimit` fields.
    pub draft: Option<String>,
    /// The form of the `X-RateLimit` fields.
    pub x_ratelimit: Option<String>,
    /// The longest a decision may take.
    pub deadline_ms: Option<f64>,
    /// The longest that making a connection may take.
    pub connect_timeout_ms: Option<f64>,
    /// Connections to each node.
    pub connections: Option<u8>,
    /// What ids are hashed with.
    pub key_secret: Option<String>,
    /// Whether every id is hashed.
    pub hashed_keys: Option<bool>,
    /// The attribute that chooses the slot of a cluster.
    pub hash_tag: Option<String>,
    /// Certificates in PEM form.
    pub ca_certificates: Option<String>,
}

#[napi]
impl NativeGate {
    /// A gate in memory.
    #[napi(factory, catch_unwind)]
    pub fn memory(policies: String, name: String, options: GateOptions<'_>) -> Result<Self> {
        let engine = Engine::memory(parse(&policies, &name)?, &options.into()).map_err(thrown)?;
        Ok(Self(Arc::new(engine)))
    }

    /// Replaces the policies.
    #[napi(catch_unwind)]
    pub fn configure(&self, policies: String, name: String) -> Result<()> {
        self.0.configure(parse(&policies, &name)?).map_err(thrown)
    }

    /// Decides on a request.
    #[napi(catch_unwind)]
    pub fn decide<'e>(&self, env: &'e Env, by: u32, request: String) -> Result<Answered<'e>> {
        let (engine, call) = (Arc::clone(&self.0), Input::parse(&request)?.into_call());
        answer(env, &self.0, async move { engine.decide(verb(by), &call).await.into() })
    }

    /// Waits for a turn.
    #[napi(catch_unwind)]
    pub fn acquire<'e>(&self, env: &'e Env, number: u32, request: String) -> Result<Answered<'e>> {
        let (engine, input) = (Arc::clone(&self.0), Input::parse(&request)?);
        let (timeout, call) = (input.timeout(), input.into_call());
        wait(env, number, async move { engine.acquire(&call, timeout).await.into() })
    }

    /// Lets calls that wait ask again: after the clock of a test was advanced.
    #[napi(catch_unwind)]
    pub fn time_has_passed(&self) {
        self.0.time_has_passed();
    }

    /// Forgets what was used.
    #[napi(catch_unwind)]
    pub fn reset<'e>(&self, env: &'e Env, request: String) -> Result<Answered<'e>> {
        let (engine, call) = (Arc::clone(&self.0), Input::parse(&request)?.into_call());
        answer(env, &self.0, async move { engine.reset(&call).await.into() })
    }

    /// Holds a cost.
    #[napi(catch_unwind)]
    pub fn reserve<'e>(&self, env: &'e Env, request: String) -> Result<Answered<'e>> {
        let (engine, input) = (Arc::clone(&self.0), Input::parse(&request)?);
        let (ttl, call) = (input.ttl(), input.into_call());
        answer(env, &self.0, async move { engine.reserve(&call, ttl).await.into() })
    }

    /// Waits until a cost can be held.
    #[napi(catch_unwind)]
    pub fn acquire_reservation<'e>(
        &self,
        env: &'e Env,
        number: u32,
        request: String,
    ) -> Result<Answered<'e>> {
        let (engine, input) = (Arc::clone(&self.0), Input::parse(&request)?);
        let (ttl, timeout, call) = (input.ttl(), input.timeout(), input.into_call());
        wait(env, number, async move { engine.acquire_reservation(&call, ttl, timeout).await.into() })
    }

    /// Charges a reservation.
    #[napi(catch_unwind)]
    pub fn settle<'e>(
        &self,
        env: &'e Env,
        ticket: String,
        change: String,
        is_final: bool,
    ) -> Result<Answered<'e>> {
        let (engine, cost) = (Arc::clone(&self.0), Input::parse(&change)?.into_cost());
        let cost = cost.ok_or_else(|| thrown(BindingError::request("missing cost: a settlement has one")))?;
        answer(env, &self.0, async move { engine.settle(&ticket, &cost, is_final).await.into() })
    }

    /// Lengthens a reservation, or changes what it holds.
    #[napi(catch_unwind)]
    pub fn extend<'e>(&self, env: &'e Env, ticket: String, change: String) -> Result<Answered<'e>> {
        let (engine, input) = (Arc::clone(&self.0), Input::parse(&change)?);
        let (ttl, total) = (input.ttl(), input.into_cost());
        answer(env, &self.0, async move { engine.extend(&ticket, ttl, total.as_ref()).await.into() })
    }

    /// Gives a reservation back.
    #[napi(catch_unwind)]
    pub fn cancel<'e>(&self, env: &'e Env, ticket: String) -> Result<Answered<'e>> {
        let engine = Arc::clone(&self.0);
        answer(env, &self.0, async move { engine.cancel(&ticket).await.into() })
    }
}

// A block of its own: the macro exports methods that the build does not have.
#[cfg(feature = "redis")]
#[napi]
impl NativeGate {
    /// A gate over Redis.
    #[napi(factory, catch_unwind)]
    pub fn shared(url: String, policies: String, name: String, options: SharedGateOptions) -> Result<Self> {
        let (engine, shared) = options.split();
        let engine = Engine::shared(&url, parse(&policies, &name)?, &engine, shared).map_err(thrown)?;
        Ok(Self(Arc::new(engine)))
    }
}

/// Policies as YAML, or as JSON, which is YAML.
fn parse(text: &str, name: &str) -> Result<Policies> {
    Policies::parse(text, name)
        .map_err(|errors| thrown(BindingError::new("invalid_policy", errors.to_string())))
}

impl From<GateOptions<'_>> for EngineOptions {
    fn from(options: GateOptions<'_>) -> Self {
        Self {
            clock: options.clock.map(|clock| clock.shared()),
            max_keys: options.max_keys.map(|keys| keys as usize),
            max_waiting: options.max_waiting.map(|most| most as usize),
            draft: options.draft,
            x_ratelimit: options.x_ratelimit,
        }
    }
}

#[cfg(feature = "redis")]
impl SharedGateOptions {
    fn split(self) -> (EngineOptions, SharedOptions) {
        let engine = EngineOptions {
            max_waiting: self.max_waiting.map(|most| most as usize),
            draft: self.draft,
            x_ratelimit: self.x_ratelimit,
            ..EngineOptions::default()
        };
        let shared = SharedOptions {
            deadline: self.deadline_ms.map(millis),
            connect_timeout: self.connect_timeout_ms.map(millis),
            connections: self.connections,
            key_secret: self.key_secret,
            hashed_keys: self.hashed_keys.unwrap_or(false),
            hash_tag: self.hash_tag,
            ca_certificates: self.ca_certificates.map(String::into_bytes),
        };
        (engine, shared)
    }
}
