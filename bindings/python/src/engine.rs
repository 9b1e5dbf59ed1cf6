//! A gate as Python calls it: in memory, where calls return at once, or over Redis.
//!
//! A shared gate is made at its first call, and anew in a process that was forked since: connections and
//! threads belong to the process that made them.

use std::pin::pin;
use std::sync::Arc;

use pyo3::prelude::*;
use slidegate_bindings::{self as bindings, BindingError, EngineOptions, poll_once};
use slidegate_config::policies::Policies;

use crate::clock::ManualClock;
use crate::convert::{guarded, raise};
use crate::job::{Job, Outcome};
#[cfg(feature = "redis")]
use crate::runtime::{Completions, Shared, start, wait};

#[pyclass(frozen, module = "slidegate")]
pub(crate) struct Engine(Gate);

enum Gate {
    Memory(Arc<bindings::Engine>),
    #[cfg(feature = "redis")]
    Shared(Box<Shared>),
}

#[pymethods]
impl Engine {
    /// `policies` is YAML, or JSON of the same.
    #[staticmethod]
    #[pyo3(signature = (policies, file_name, clock, max_keys, draft, x_ratelimit))]
    fn memory(
        policies: &str,
        file_name: Option<&str>,
        clock: Option<&Bound<'_, ManualClock>>,
        max_keys: Option<usize>,
        draft: Option<String>,
        x_ratelimit: Option<String>,
    ) -> PyResult<Self> {
        guarded(|| {
            let clock = clock.map(|clock| clock.get().0.clone());
            let options = EngineOptions { clock, max_keys, draft, x_ratelimit };
            let gate = bindings::Engine::memory(parse(policies, file_name)?, &options).map_err(raise)?;
            Ok(Self(Gate::Memory(Arc::new(gate))))
        })
    }

    #[cfg(feature = "redis")]
    #[staticmethod]
    #[pyo3(signature = (url, policies, file_name, draft, x_ratelimit, options))]
    fn shared(
        url: String,
        policies: &str,
        file_name: Option<&str>,
        draft: Option<String>,
        x_ratelimit: Option<String>,
        options: &Bound<'_, pyo3::types::PyDict>,
    ) -> PyResult<Self> {
        guarded(|| {
            let headers = EngineOptions { draft, x_ratelimit, ..EngineOptions::default() };
            let shared =
                Shared::new(url, parse(policies, file_name)?, headers, crate::runtime::options(options)?)?;
            Ok(Self(Gate::Shared(Box::new(shared))))
        })
    }

    /// Runs a job, and waits for it if Redis must be asked.
    fn run<'py>(&self, py: Python<'py>, job: &Bound<'py, Job>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let job = job.get();
            let result = match &self.0 {
                Gate::Memory(gate) => at_once(job, gate),
                #[cfg(feature = "redis")]
                Gate::Shared(shared) => wait(py, shared, job),
            };
            result.map_err(raise)?.into_python(py)
        })
    }

    /// Starts a job: returns its result if it is there, otherwise a future of the event loop.
    #[cfg(feature = "redis")]
    fn start<'py>(
        &self,
        py: Python<'py>,
        job: &Bound<'py, Job>,
        completions: &Bound<'py, Completions>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| match &self.0 {
            Gate::Memory(gate) => at_once(job.get(), gate).map_err(raise)?.into_python(py),
            Gate::Shared(shared) => start(py, shared, job.get(), completions),
        })
    }

    /// Replaces the policies. Usage stays with their names.
    fn configure(&self, policies: &str, file_name: Option<&str>) -> PyResult<()> {
        guarded(|| {
            let policies = parse(policies, file_name)?;
            match &self.0 {
                Gate::Memory(gate) => gate.configure(policies),
                #[cfg(feature = "redis")]
                Gate::Shared(shared) => shared.configure(policies),
            }
            .map_err(raise)
        })
    }
}

fn parse(text: &str, file_name: Option<&str>) -> PyResult<Policies> {
    let policies = if let Some(name) = file_name {
        Policies::parse(text, name)
    } else {
        let invalid =
            |error| raise(BindingError::new("invalid_policy", format!("invalid policies: {error}")));
        Policies::from_json(&serde_json::from_str(text).map_err(invalid)?)
    };
    policies.map_err(|errors| raise(BindingError::new("invalid_policy", errors.to_string())))
}

fn at_once(job: &Job, gate: &bindings::Engine) -> Result<Outcome, BindingError> {
    poll_once(pin!(job.run(gate))).unwrap_or_else(|_| unreachable!("a gate in memory waits for nothing"))
}
