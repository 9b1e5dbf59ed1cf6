//! The runtime of calls that take their time, and how their results get into event loops.
//!
//! All of it belongs to one process. A fork copies no threads, and locks as they happened to be: the child
//! forgets what it inherited, without dropping it, and makes its own. No thread of the runtime ever waits for
//! the GIL, as calls of other threads would miss their deadlines meanwhile: one thread beside it does, and
//! wakes event loops, once for all results that are there.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{process, thread};

use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use slidegate_bindings::{BindingError, poll_once};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

use crate::call::call_method;
use crate::convert::{guarded, panicked, raise};
use crate::task::{GiveBack, Outcome, Task, Work};

/// The longest that the end of the interpreter waits for calls.
const MAX_SHUTDOWN: Duration = Duration::from_secs(1);

/// How often a thread that waits for its turn looks for signals, such as that of Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// A value of one process. In another one, it is leaked.
pub(crate) struct OfProcess<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { pid: process::id(), value: ManuallyDrop::new(value) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
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

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

/// What the calls of this process run in.
pub(crate) fn runtime() -> Result<Handle, BindingError> {
    with_runtime(|runtime, _| runtime.clone())
}

fn closed() -> BindingError {
    BindingError::new("closed", "the interpreter is shutting down, so gates are closed")
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
    give_back: Option<GiveBack>,
}

impl Completion {
    /// Nobody gets the result.
    fn discard(self) {
        if let (Ok(outcome), Some(give_back)) = (self.result, self.give_back) {
            give_back_later(outcome, give_back);
        }
    }
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
        for completion in self.take() {
            let future = completion.future.bind(py);
            // A future that was cancelled is done.
            if call_method(future, "done", ())?.extract()? {
                completion.discard();
                continue;
            }
            match guarded(|| completion.result.map_err(raise)?.into_python(py)) {
                Ok(value) => call_method(future, "set_result", (value,))?,
                Err(error) => call_method(future, "set_exception", (error,))?,
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
            .and_then(|drain| call_method(this.event_loop.bind(slf.py()), "call_soon_threadsafe", (drain,)));
        if is_woken.is_err() {
            // The event loop is closed: nobody waits any more.
            this.take().into_iter().for_each(Completion::discard);
        }
    }
}

/// The result of a task that is not waited for long, for a thread that can wait.
#[cfg(feature = "redis")]
pub(crate) fn wait(py: Python<'_>, runtime: &Handle, work: Work) -> Result<Outcome, BindingError> {
    poll_once(work).unwrap_or_else(|work| py.detach(|| runtime.block_on(work)))
}

/// The result of a task that waits for its turn, for a thread that can wait. A signal ends it.
pub(crate) fn wait_turn(py: Python<'_>, runtime: &Handle, task: Task) -> PyResult<Outcome> {
    let work = match poll_once(task.work) {
        Ok(result) => return result.map_err(raise),
        Err(work) => work,
    };
    let (sender, mut receiver) = channel();
    let spawned = spawn(runtime, work, move |result| drop(sender.send(result)));
    loop {
        let received;
        (received, receiver) = py.detach(move || (receiver.recv_timeout(SIGNALS), receiver));
        match received {
            Ok(result) => return result.map_err(raise),
            Err(RecvTimeoutError::Disconnected) => return Err(raise(closed())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(interrupted) = py.check_signals() {
            spawned.abort();
            // Its turn may have come just now.
            let received = py.detach(move || receiver.recv_timeout(MAX_SHUTDOWN));
            if let (Ok(Ok(outcome)), Some(give_back)) = (received, task.give_back) {
                give_back_later(outcome, give_back);
            }
            return Err(interrupted);
        }
    }
}

/// Starts a task for an event loop: its result if it is there, otherwise a future. A task that waits for its turn
/// ends if the future is cancelled.
pub(crate) fn start<'py>(
    py: Python<'py>,
    task: Task,
    completions: &Bound<'py, Completions>,
) -> PyResult<Bound<'py, PyAny>> {
    let (runtime, to_wake) =
        with_runtime(|runtime, to_wake| (runtime.clone(), to_wake.clone())).map_err(raise)?;
    let _within = runtime.enter();
    // A denial that is cached, or a fallback while Redis is away, needs no thread.
    let work = match poll_once(task.work) {
        Ok(result) => return result.map_err(raise)?.into_python(py),
        Err(work) => work,
    };
    let future = call_method(completions.get().event_loop.bind(py), "create_future", ())?;
    let (completions, promise) = (completions.clone().unbind(), future.clone().unbind());
    let (is_waiting, give_back) = (task.give_back.is_some(), task.give_back);
    let spawned = spawn(&runtime, work, move |result| {
        if completions.get().push(Completion { future: promise, result, give_back }) {
            // It fails only while the interpreter ends.
            let _ = to_wake.send(completions);
        }
    });
    if is_waiting {
        let abort = PyCFunction::new_closure(py, None, None, move |_, _| spawned.abort())?;
        call_method(&future, "add_done_callback", (abort,))?;
    }
    Ok(future)
}

fn spawn(
    runtime: &Handle,
    work: Work,
    done: impl FnOnce(Result<Outcome, BindingError>) + Send + 'static,
) -> JoinHandle<()> {
    let work = OutsideForks(Some(work));
    runtime.spawn(async move { done(work.await) })
}

/// Gives back what nobody gets any more.
fn give_back_later(outcome: Outcome, give_back: GiveBack) {
    let work = async move {
        give_back(outcome).await;
        Ok(Outcome::Truth(true))
    };
    // Without a runtime, the process ends.
    let _ = with_runtime(|runtime, _| spawn(runtime, Box::pin(work), drop));
}

/// Written to during a fork.
static FORK: RwLock<()> = RwLock::new(());

thread_local! {
    static FORKING: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Before a thread forks: no other thread is within a gate or a limiter in memory, whose locks the child would have as
/// they are.
#[pyfunction]
pub(crate) fn before_fork() {
    FORKING.set(Some(FORK.write().unwrap_or_else(PoisonError::into_inner)));
}

/// After a thread has forked, in both processes.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKING.set(None);
}

/// Work of the runtime, which does nothing, and is not dropped, during a fork.
struct OutsideForks(Option<Work>);

impl Future for OutsideForks {
    type Output = Result<Outcome, BindingError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let _no_fork = FORK.read().unwrap_or_else(PoisonError::into_inner);
        let Some(work) = &mut self.0 else { unreachable!("it is not polled after its end") };
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))));
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for OutsideForks {
    fn drop(&mut self) {
        let _no_fork = FORK.read().unwrap_or_else(PoisonError::into_inner);
        self.0 = None;
    }
}
