//! The limiter: the fast path. A call takes a tenth of a microsecond more than one that does nothing.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use slidegate::{Algorithm, Decision, Quota};
use slidegate_bindings::{BindingError, EngineOptions, quota};
use slidegate_http::headers::{HeaderOptions, Problem};

use crate::call::call;
use crate::clock::ManualClock;
use crate::convert::{bytes_of, guarded, raise, seconds, units};
use crate::runtime::{self, Completions};
use crate::task::{Outcome, Task};

/// One quota for many keys, in the memory of this process.
#[pyclass(frozen, subclass, module = "slidegate")]
pub(crate) struct Limiter {
    limiter: Arc<slidegate::Limiter>,
    headers: HeaderOptions,
    /// The name of its policy in header fields.
    name: String,
}

#[pymethods]
impl Limiter {
    #[new]
    #[pyo3(signature = (quota, *, algorithm=None, burst=None, clock=None, max_keys=None, max_waiting=None, name="default", draft=None, x_ratelimit=None))]
    #[expect(clippy::too_many_arguments, reason = "Python has them by name")]
    fn new(
        quota: &str,
        algorithm: Option<&str>,
        burst: Option<u64>,
        clock: Option<&Bound<'_, ManualClock>>,
        max_keys: Option<usize>,
        max_waiting: Option<usize>,
        name: &str,
        draft: Option<String>,
        x_ratelimit: Option<String>,
    ) -> PyResult<Self> {
        guarded(|| {
            let manual = clock.map(Bound::get);
            let clock = manual.map(|clock| clock.clock.clone());
            let options = EngineOptions { clock, max_keys, max_waiting, draft, x_ratelimit };
            let limiter = slidegate::Limiter::with_store(rate(quota, algorithm, burst)?, options.store())
                .with_max_waiting(options.max_waiting());
            let limiter = Arc::new(limiter);
            if let Some(clock) = manual {
                clock.watch(Arc::downgrade(&limiter), |limiter| limiter.configure(limiter.quota()));
            }
            Ok(Self { limiter, headers: options.headers().map_err(raise)?, name: name.to_owned() })
        })
    }

    /// Decides a request, charges it if it is allowed, and returns whether it is.
    #[pyo3(signature = (key, cost=None))]
    fn allows(&self, key: &Bound<'_, PyAny>, cost: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        guarded(|| Ok(self.limiter.check_cost(bytes_of(key)?, cost_or_one(cost)?).is_allowed()))
    }

    /// Decides a request, and charges it if it is allowed.
    #[pyo3(signature = (key, cost=None))]
    fn check(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LimiterDecision> {
        Self::decide(slf, key, cost, |limiter, key, cost| limiter.check_cost(key, cost))
    }

    /// What `check` would say, without charging.
    #[pyo3(signature = (key, cost=None))]
    fn peek(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LimiterDecision> {
        Self::decide(slf, key, cost, |limiter, key, cost| limiter.peek_cost(key, cost))
    }

    /// Returns cost that was charged and still counts: the decision's `cost` says how much.
    #[pyo3(signature = (key, cost=None))]
    fn refund(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LimiterDecision> {
        Self::decide(slf, key, cost, |limiter, key, cost| limiter.refund(key, cost))
    }

    /// Charges a cost even if it exceeds the limit.
    #[pyo3(signature = (key, cost=None))]
    fn penalize(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LimiterDecision> {
        Self::decide(slf, key, cost, |limiter, key, cost| limiter.penalize(key, cost))
    }

    /// Forgets what a key has used; returns whether there was anything.
    fn reset(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        guarded(|| Ok(self.limiter.reset(bytes_of(key)?)))
    }

    /// Waits for its turn, and charges.
    fn run_acquire<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        cost: Option<&Bound<'py, PyAny>>,
        timeout: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let runtime = runtime::runtime().map_err(raise)?;
            let _within = runtime.enter();
            let task = Self::acquire(slf, key, cost, timeout)?;
            runtime::wait_turn(slf.py(), &runtime, task)?.into_python(slf.py())
        })
    }

    /// The same for an event loop: its result if it is there, otherwise a future.
    fn start_acquire<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        cost: Option<&Bound<'py, PyAny>>,
        timeout: &Bound<'py, PyAny>,
        completions: &Bound<'py, Completions>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| runtime::start(slf.py(), Self::acquire(slf, key, cost, timeout)?, completions))
    }

    /// Puts another quota in force at once. Keys keep what they have used.
    #[pyo3(signature = (quota, *, algorithm=None, burst=None))]
    fn configure(&self, quota: &str, algorithm: Option<&str>, burst: Option<u64>) -> PyResult<()> {
        guarded(|| {
            self.limiter.configure(rate(quota, algorithm, burst)?);
            Ok(())
        })
    }

    /// The quota in force, such as `100/1m`.
    #[getter]
    fn quota(&self) -> String {
        self.limiter.quota().to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Limiter {}>", self.limiter.quota())
    }
}

impl Limiter {
    #[inline]
    fn decide(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&slidegate::Limiter, &[u8], u64) -> Decision,
    ) -> PyResult<LimiterDecision> {
        guarded(|| {
            let decision = call(&slf.get().limiter, bytes_of(key)?, cost_or_one(cost)?);
            Ok(LimiterDecision { decision, limiter: slf.clone().unbind() })
        })
    }
}

impl Limiter {
    fn acquire(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        timeout: &Bound<'_, PyAny>,
    ) -> PyResult<Task> {
        let (key, cost, timeout) = (bytes_of(key)?.to_vec(), cost_or_one(cost)?, seconds(timeout)?);
        let (own, inner, limiter) =
            (slf.clone().unbind(), Arc::clone(&slf.get().limiter), Arc::clone(&slf.get().limiter));
        let charged = key.clone();
        Ok(Task {
            work: Box::pin(async move {
                let decision = inner.acquire(key).cost(cost).timeout(timeout).decide().await;
                Ok(Outcome::OfLimiter(LimiterDecision { decision, limiter: own }))
            }),
            give_back: Some(Box::new(move |outcome| {
                Box::pin(async move {
                    if matches!(outcome, Outcome::OfLimiter(one) if one.decision.is_allowed()) {
                        limiter.refund(charged, cost);
                    }
                })
            })),
        })
    }
}

#[inline]
fn cost_or_one(cost: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    cost.map_or(Ok(1), units)
}

/// A quota that a limiter can have.
fn rate(text: &str, algorithm: Option<&str>, burst: Option<u64>) -> PyResult<Quota> {
    let quota = quota(text, algorithm, burst).map_err(raise)?;
    if quota.algorithm() == Algorithm::InFlight {
        let text =
            "what is in flight must be reserved, and a limiter only checks; use it in a policy of a Gate";
        return Err(raise(BindingError::new("invalid_quota", format!("invalid quota of a limiter: {text}"))));
    }
    Ok(quota)
}

/// A decision of a `Limiter`; true if the request is allowed.
#[pyclass(frozen, freelist = 64, module = "slidegate")]
pub(crate) struct LimiterDecision {
    decision: Decision,
    /// For the header fields, which few decisions need.
    limiter: Py<Limiter>,
}

#[pymethods]
impl LimiterDecision {
    fn __bool__(&self) -> bool {
        self.decision.is_allowed()
    }

    #[getter]
    fn allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    #[getter]
    fn limit(&self) -> u64 {
        self.decision.limit()
    }

    #[getter]
    fn used(&self) -> u64 {
        self.decision.used()
    }

    #[getter]
    fn held(&self) -> u64 {
        self.decision.held()
    }

    #[getter]
    fn remaining(&self) -> u64 {
        self.decision.remaining()
    }

    #[getter]
    fn cost(&self) -> u64 {
        self.decision.cost()
    }

    #[getter]
    fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after().map(fitting)
    }

    #[getter]
    fn reset_after(&self) -> Duration {
        fitting(self.decision.reset_after())
    }

    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.decision.reason().map(slidegate::Reason::name)
    }

    #[getter]
    fn source(&self) -> &'static str {
        self.decision.source().name()
    }

    #[getter]
    fn status(&self) -> u16 {
        if self.decision.is_allowed() { 200 } else { 429 }
    }

    #[getter]
    fn headers(&self) -> PyResult<Vec<(&'static str, String)>> {
        guarded(|| {
            let limiter = self.limiter.get();
            Ok(limiter.headers.headers_of(&limiter.name, &limiter.limiter.quota(), &self.decision))
        })
    }

    #[getter]
    fn problem<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        guarded(|| {
            #[expect(
                clippy::redundant_closure_for_method_calls,
                reason = "the method has a lifetime of its own"
            )]
            let Some(json) = self.with_problem(|problem| problem.to_json()) else { return Ok(None) };
            call(&py.import("json")?.getattr("loads")?, (json,)).map(Some)
        })
    }

    #[getter]
    fn why(&self) -> Option<String> {
        self.with_problem(|problem| problem.detail.clone())
    }

    #[getter]
    fn policy(&self) -> Option<&'static str> {
        None
    }

    #[getter]
    fn key(&self) -> &'static str {
        ""
    }

    #[getter]
    fn policies<'py>(&self, py: Python<'py>) -> Bound<'py, PyTuple> {
        PyTuple::empty(py)
    }

    #[getter]
    fn block<'py>(&self) -> Option<Bound<'py, PyDict>> {
        None
    }

    #[getter]
    fn error<'py>(&self) -> Option<Bound<'py, PyAny>> {
        None
    }

    fn __repr__(&self) -> String {
        let verdict = if self.decision.is_allowed() { "allowed" } else { "denied" };
        let (used, limit, remaining) =
            (self.decision.used(), self.decision.limit(), self.decision.remaining());
        format!("<Decision {verdict}: used {used} of {limit}, {remaining} remain>")
    }
}

impl LimiterDecision {
    fn with_problem<T>(&self, read: impl FnOnce(&Problem<'_>) -> T) -> Option<T> {
        let limiter = self.limiter.get();
        Problem::of_one(&limiter.name, &limiter.limiter.quota(), &self.decision).as_ref().map(read)
    }
}

/// What `timedelta` can hold: a billion days, less one.
fn fitting(wait: Duration) -> Duration {
    wait.min(Duration::new(86_400 * 1_000_000_000 - 1, 999_999_000))
}
