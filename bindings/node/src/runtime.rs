//! The runtime of shared gates and of calls that wait for their turn: one worker thread for the whole process.
//!
//! It starts with the first of these calls and stops with the last environment, main or worker thread, that
//! made one: importing the package starts nothing, and nothing outlives Node.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use napi::bindgen_prelude::Env;
use slidegate_bindings::BindingError;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Result, thrown};
use crate::pending;

/// How long the end of a process waits for what still runs, such as a DNS query.
const SHUTDOWN: Duration = Duration::from_millis(100);

struct Shared {
    runtime: Option<Runtime>,
    environments: usize,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { runtime: None, environments: 0 });

thread_local! {
    /// Whether the environment of this thread is counted.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The runtime, until `env` ends.
pub(crate) fn handle(env: &Env) -> Result<Handle> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !IS_COUNTED.get() {
        env.add_env_cleanup_hook((), |()| leave()).map_err(|error| thrown(failure(&error)))?;
        IS_COUNTED.set(true);
        shared.environments += 1;
    }
    if let Some(runtime) = &shared.runtime {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("slidegate").enable_all().build();
    let runtime = runtime.map_err(|error| thrown(failure(&error)))?;
    Ok(shared.runtime.insert(runtime).handle().clone())
}

pub(crate) fn failure(error: &impl ToString) -> BindingError {
    BindingError::new("internal", error.to_string())
}

fn leave() {
    pending::leave_all();
    IS_COUNTED.set(false);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.environments -= 1;
    let ended = if shared.environments == 0 { shared.runtime.take() } else { None };
    drop(shared);
    if let Some(runtime) = ended {
        runtime.shutdown_timeout(SHUTDOWN);
    }
}
