//! A gate as Python calls it: in memory, where calls return at once, or over Redis.
//!
//! A shared gate is made at its first call, and anew in a process that was forked since: connections and
//! threads belong to the process that made them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use slidegate::Algorithm;
use slidegate_bindings::{self as bindings, BindingError, EngineOptions, poll_once};
use slidegate_config::policies::Policies;

use crate::clock::ManualClock;
use crate::convert::{guarded, raise};
use crate::job::Job;
use crate::runtime::{self, Completions};
#[cfg(feature = "redis")]
use crate::shared::{self, Shared};
use crate::task::Outcome;

#[pyclass(frozen, module = "slidegate")]
pub(crate) struct Engine {
    gate: Gate,
    /// Whether a policy limits what is in flight.
    has_in_flight: AtomicBool,
}

enum Gate {
    Memory(Arc<bindings::Engine>),
    #[cfg(feature = "redis")]
    Shared(Box<Shared>),
}

#[pymethods]
impl Engine {
    /// `policies` is YAML, or JSON of the same.
    #[staticmethod]
    #[pyo3(signature = (policies, file_name, clock, max_keys, max_waiting, draft, x_ratelimit))]
    fn memory(
        policies: &str,
        file_name: Option<&str>,
        clock: Option<&Bound<'_, ManualClock>>,
        max_keys: Option<usize>,
        max_waiting: Option<usize>,
        draft: Option<String>,
        x_ratelimit: Option<String>,
    ) -> PyResult<Self> {
        guarded(|| {
            let manual = clock.map(Bound::get);
            let clock = manual.map(|clock| clock.clock.clone());
            let options = EngineOptions { clock, max_keys, max_waiting, draft, x_ratelimit };
            let policies = parse(policies, file_name)?;
            let has_in_flight = has_in_flight(&policies);
            let gate = Arc::new(bindings::Engine::memory(policies, &options).map_err(raise)?);
            if let Some(clock) = manual {
                clock.watch(Arc::downgrade(&gate), bindings::Engine::time_has_passed);
            }
            Ok(Self { gate: Gate::Memory(gate), has_in_flight })
        })
    }

    #[cfg(feature = "redis")]
    #[staticmethod]
    #[pyo3(signature = (url, policies, file_name, max_waiting, draft, x_ratelimit, options))]
    fn shared(
        url: String,
        policies: &str,
        file_name: Option<&str>,
        max_waiting: Option<usize>,
        draft: Option<String>,
        x_ratelimit: Option<String>,
        options: &Bound<'_, pyo3::types::PyDict>,
    ) -> PyResult<Self> {
        guarded(|| {
            let own = EngineOptions { max_waiting, draft, x_ratelimit, ..EngineOptions::default() };
            let policies = parse(policies, file_name)?;
            let has_in_flight = has_in_flight(&policies);
            let shared = Shared::new(url, policies, own, shared::options(options)?)?;
            Ok(Self { gate: Gate::Shared(Box::new(shared)), has_in_flight })
        })
    }

    /// Runs a job, and waits for it if Redis must be asked, or its turn must come.
    fn run<'py>(&self, py: Python<'py>, job: &Bound<'py, Job>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let job = job.get();
            if let Some(outcome) = self.at_once(job) {
                return outcome?.into_python(py);
            }
            let runtime = runtime::runtime().map_err(raise)?;
            let _within = runtime.enter();
            let task = job.task(self.gate.engine().map_err(raise)?);
            let outcome = match task.give_back {
                #[cfg(feature = "redis")]
                None => runtime::wait(py, &runtime, task.work).map_err(raise)?,
                _ => runtime::wait_turn(py, &runtime, task)?,
            };
            outcome.into_python(py)
        })
    }

    /// Starts a job: returns its result if it is there, otherwise a future of the event loop.
    fn start<'py>(
        &self,
        py: Python<'py>,
        job: &Bound<'py, Job>,
        completions: &Bound<'py, Completions>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let job = job.get();
            if let Some(outcome) = self.at_once(job) {
                return outcome?.into_python(py);
            }
            let runtime = runtime::runtime().map_err(raise)?;
            let _within = runtime.enter();
            runtime::start(py, job.task(self.gate.engine().map_err(raise)?), completions)
        })
    }

    /// How many calls of this process wait for their turn.
    #[getter]
    fn waiting(&self) -> PyResult<usize> {
        guarded(|| {
            let runtime = runtime::runtime().map_err(raise)?;
            let _within = runtime.enter();
            Ok(self.gate.engine().map_err(raise)?.waiting())
        })
    }

    /// Whether a policy limits what is in flight, which must be reserved.
    #[getter]
    fn has_in_flight(&self) -> bool {
        self.has_in_flight.load(Ordering::Relaxed)
    }

    /// Replaces the policies. Usage stays with their names.
    fn configure(&self, policies: &str, file_name: Option<&str>) -> PyResult<()> {
        guarded(|| {
            let policies = parse(policies, file_name)?;
            let reserves = has_in_flight(&policies);
            match &self.gate {
                Gate::Memory(gate) => gate.configure(policies),
                #[cfg(feature = "redis")]
                Gate::Shared(shared) => shared.configure(policies),
            }
            .map_err(raise)?;
            self.has_in_flight.store(reserves.into_inner(), Ordering::Relaxed);
            Ok(())
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

fn has_in_flight(policies: &Policies) -> AtomicBool {
    AtomicBool::new(policies.set.iter().any(|policy| policy.quota().algorithm() == Algorithm::InFlight))
}

impl Engine {
    /// What a job comes to that waits for nothing.
    fn at_once(&self, job: &Job) -> Option<PyResult<Outcome>> {
        match &self.gate {
            Gate::Memory(gate) if !job.waits() => {
                let result = poll_once(pin!(job.run(gate)))
                    .unwrap_or_else(|_| unreachable!("a gate in memory waits for nothing"));
                Some(result.map_err(raise))
            }
            _ => None,
        }
    }
}

impl Gate {
    /// Called within the runtime.
    fn engine(&self) -> Result<Arc<bindings::Engine>, BindingError> {
        match self {
            Self::Memory(gate) => Ok(Arc::clone(gate)),
            #[cfg(feature = "redis")]
            Self::Shared(shared) => shared.gate(),
        }
    }
}
