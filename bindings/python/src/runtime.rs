//! The runtime of shared gates, and how its results get into event loops.
//!
//! All of it belongs to one process. A fork copies no threads, and locks as they happened to be: the child
//! forgets what it inherited, without dropping it, and makes its own. No thread of the runtime ever waits for
//! the GIL, as calls of other threads would miss their deadlines meanwhile: one thread beside it does, and
//! wakes event loops, once for all results that are there.

use std::future::poll_fn;
use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use std::{process, thread};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slidegate_bindings::{self as bindings, BindingError, EngineOptions, SharedOptions, poll_once};
use slidegate_config::policies::Policies;
use tokio::runtime::{Builder, Handle};

use crate::convert::{duration, guarded, invalid, panicked, raise};
use crate::job::{Job, Outcome};

/// The longest that the end of the interpreter waits for calls.
const MAX_SHUTDOWN: Duration = Duration::from_secs(1);

/// A value of one process. In another one, it is leaked.
struct OfProcess<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    fn new(value: T) -> Self {
        Self { pid: process::id(), value: ManuallyDrop::new(value) }
    }

    fn get(&self) -> Option<&T> {
        (self.pid == process::id()).then_some(&self.value)
    }

    fn into_inner(mut self) -> Option<T> {
        let is_ours = self.pid == process::id();
        // SAFETY: `self` is forgotten, so the value is not used again.
        let value = is_ours.then(|| unsafe { ManuallyDrop::take(&mut self.value) });
        mem::forget(self);
        value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.pid == process::id() {
            // SAFETY: a value is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Only locked by threads that have the GIL, which a fork in Python has, too: so never during a fork.
static RUNTIME: Mutex<State> = Mutex::new(State::Unused);

enum State {
    Unused,
    Running(OfProcess<Runtime>),
    /// The interpreter ends.
    Stopped,
}

struct Runtime {
    tokio: tokio::runtime::Runtime,
    waker: thread::JoinHandle<()>,
    to_wake: Sender<Py<Completions>>,
}

impl Runtime {
    fn start() -> Result<Self, BindingError> {
        let failed = |error| BindingError::new("internal", format!("cannot start a thread: {error}"));
        // One worker: a call to Redis takes some microseconds of it.
        let tokio = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("slidegate")
            .enable_all()
            .build()
            .map_err(failed)?;
        let (to_wake, woken) = channel();
        let waker =
            thread::Builder::new().name("slidegate-wake".to_owned()).spawn(|| wake(woken)).map_err(failed)?;
        Ok(Self { tokio, waker, to_wake })
    }
}

/// The runtime of this process.
fn with_runtime<T>(run: impl FnOnce(&Handle, &Sender<Py<Completions>>) -> T) -> Result<T, BindingError> {
    let mut state = locked(&RUNTIME);
    let is_ours = match &*state {
        State::Stopped => return Err(closed()),
        State::Running(runtime) => runtime.get().is_some(),
        State::Unused => false,
    };
    if !is_ours {
        *state = State::Running(OfProcess::new(Runtime::start()?));
    }
    let State::Running(runtime) = &*state else { unreachable!("it was just started") };
    let Some(runtime) = runtime.get() else { unreachable!("it is of this process") };
    Ok(run(runtime.tokio.handle(), &runtime.to_wake))
}

fn closed() -> BindingError {
    BindingError::new("closed", "the interpreter is shutting down, so shared gates are closed")
}

/// Stops the runtime, at the end of the interpreter. Calls that are still open fail.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) -> PyResult<()> {
    guarded(|| {
        let state = mem::replace(&mut *locked(&RUNTIME), State::Stopped);
        let State::Running(runtime) = state else { return Ok(()) };
        let Some(Runtime { tokio, waker, to_wake }) = runtime.into_inner() else { return Ok(()) };
        // The other thread may need the GIL to end.
        py.detach(|| {
            tokio.shutdown_timeout(MAX_SHUTDOWN);
            drop(to_wake);
            // It panicked at worst, which changes nothing now.
            let _ = waker.join();
        });
        Ok(())
    })
}

/// Wakes event loops.
fn wake(woken: Receiver<Py<Completions>>) {
    for completions in woken {
        Python::try_attach(|py| Completions::wake(completions.bind(py)));
    }
}

/// What is done for one event loop, and not yet known to it.
#[pyclass(frozen, module = "slidegate")]
pub(crate) struct Completions {
    event_loop: Py<PyAny>,
    done: OfProcess<Mutex<Vec<Completion>>>,
}

struct Completion {
    future: Py<PyAny>,
    result: Result<Outcome, BindingError>,
}

#[pymethods]
impl Completions {
    #[new]
    fn new(event_loop: Py<PyAny>) -> Self {
        Self { event_loop, done: OfProcess::new(Mutex::default()) }
    }

    /// Whether it is of this event loop, and was made in this process.
    fn is_of(&self, event_loop: &Bound<'_, PyAny>) -> bool {
        self.event_loop.is(event_loop) && self.done.get().is_some()
    }

    /// Gives all results to their futures. Called by the event loop.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        for Completion { future, result } in self.take() {
            let future = future.bind(py);
            // A future that was cancelled is done.
            if future.call_method0("done")?.extract()? {
                continue;
            }
            match guarded(|| result.map_err(raise)?.into_python(py)) {
                Ok(value) => future.call_method1("set_result", (value,))?,
                Err(error) => future.call_method1("set_exception", (error,))?,
            };
        }
        Ok(())
    }
}

impl Completions {
    fn take(&self) -> Vec<Completion> {
        self.done.get().map_or_else(Vec::new, |done| mem::take(&mut *locked(done)))
    }

    /// Returns whether its event loop must be woken: whether nothing was there.
    fn push(&self, completion: Completion) -> bool {
        let Some(done) = self.done.get() else { return false };
        let mut done = locked(done);
        done.push(completion);
        done.len() == 1
    }

    fn wake(slf: &Bound<'_, Self>) {
        let this = slf.get();
        let is_woken = slf
            .getattr("drain")
            .and_then(|drain| this.event_loop.bind(slf.py()).call_method1("call_soon_threadsafe", (drain,)));
        if is_woken.is_err() {
            // The event loop is closed: nobody waits any more.
            drop(this.take());
        }
    }
}

/// A gate over Redis: how it is made, and what was made in this process.
pub(crate) struct Shared {
    url: String,
    headers: EngineOptions,
    options: SharedOptions,
    /// Only locked with the GIL, as `RUNTIME`.
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
    fn gate(&self) -> Result<Arc<bindings::Engine>, BindingError> {
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

/// The result of a job, for a thread that can wait.
pub(crate) fn wait(py: Python<'_>, shared: &Shared, job: &Job) -> Result<Outcome, BindingError> {
    let runtime = with_runtime(|runtime, _| runtime.clone())?;
    let _within = runtime.enter();
    let gate = shared.gate()?;
    poll_once(pin!(job.run(&gate))).unwrap_or_else(|work| py.detach(|| runtime.block_on(work)))
}

/// Starts a job for an event loop: its result if it is there, otherwise a future.
pub(crate) fn start<'py>(
    py: Python<'py>,
    shared: &Shared,
    job: &Job,
    completions: &Bound<'py, Completions>,
) -> PyResult<Bound<'py, PyAny>> {
    let (runtime, to_wake) =
        with_runtime(|runtime, to_wake| (runtime.clone(), to_wake.clone())).map_err(raise)?;
    let _within = runtime.enter();
    let (gate, job) = (shared.gate().map_err(raise)?, job.clone());
    // A denial that is cached, or a fallback while Redis is away, needs no thread.
    let mut work = match poll_once(Box::pin(async move { job.run(&gate).await })) {
        Ok(result) => return result.map_err(raise)?.into_python(py),
        Err(work) => work,
    };
    let future = completions.get().event_loop.bind(py).call_method0("create_future")?;
    let (completions, promise) = (completions.clone().unbind(), future.clone().unbind());
    runtime.spawn(async move {
        let result = poll_fn(|context| {
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
                .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
        })
        .await;
        if completions.get().push(Completion { future: promise, result }) {
            // It fails only while the interpreter ends.
            let _ = to_wake.send(completions);
        }
    });
    Ok(future)
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
