//! A gate over Redis: how it is made, at its first call in each process.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slidegate_bindings::{self as bindings, BindingError, EngineOptions, SharedOptions};
use slidegate_config::policies::Policies;

use crate::convert::{duration, invalid, raise};
use crate::runtime::{OfProcess, locked};

/// How it is made, and what was made in this process.
pub(crate) struct Shared {
    url: String,
    headers: EngineOptions,
    options: SharedOptions,
    /// Only locked with the GIL, which a fork in Python has, too.
    state: Mutex<SharedState>,
}

struct SharedState {
    policies: Policies,
    gate: Option<OfProcess<Arc<bindings::Engine>>>,
}

impl Shared {
    /// Makes no connection. What is invalid is an error now.
    pub(crate) fn new(
        url: String,
        policies: Policies,
        headers: EngineOptions,
        options: SharedOptions,
    ) -> PyResult<Self> {
        let shared = Self { url, headers, options, state: Mutex::new(SharedState { policies, gate: None }) };
        shared.headers.headers().map_err(raise)?;
        slidegate_redis::RedisOptions::new(&shared.url).map_err(|error| invalid(error.to_string()))?;
        Ok(shared)
    }

    pub(crate) fn configure(&self, policies: Policies) -> Result<(), BindingError> {
        let mut state = locked(&self.state);
        if let Some(gate) = state.gate.as_ref().and_then(OfProcess::get) {
            gate.configure(policies.clone())?;
        }
        state.policies = policies;
        Ok(())
    }

    /// The gate of this process. Called within the runtime.
    pub(crate) fn gate(&self) -> Result<Arc<bindings::Engine>, BindingError> {
        let mut state = locked(&self.state);
        if let Some(gate) = state.gate.as_ref().and_then(OfProcess::get) {
            return Ok(Arc::clone(gate));
        }
        let (policies, options) = (state.policies.clone(), self.options.clone());
        let gate = Arc::new(bindings::Engine::shared(&self.url, policies, &self.headers, options)?);
        state.gate = Some(OfProcess::new(Arc::clone(&gate)));
        Ok(gate)
    }
}

/// How Redis is asked, from the keyword arguments of a `SharedGate`.
pub(crate) fn options(given: &Bound<'_, PyDict>) -> PyResult<SharedOptions> {
    let get = |name| given.get_item(name).map(|value| value.filter(|value| !value.is_none()));
    Ok(SharedOptions {
        deadline: get("deadline")?.map(|value| duration(&value)).transpose()?,
        connect_timeout: get("connect_timeout")?.map(|value| duration(&value)).transpose()?,
        connections: get("connections")?.map(|value| value.extract()).transpose()?,
        key_secret: get("key_secret")?.map(|value| value.extract()).transpose()?,
        hashed_keys: get("hashed_keys")?.map_or(Ok(false), |value| value.extract())?,
        hash_tag: get("hash_tag")?.map(|value| value.extract()).transpose()?,
        ca_certificates: get("ca_certificates")?.map(|value| value.extract()).transpose()?,
    })
}
