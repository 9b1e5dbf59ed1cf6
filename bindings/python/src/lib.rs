//! The native part of the Python package: limiters and gates as Python calls them.
//!
//! `python/slidegate` has what users see of gates; here are the calls that it makes. Nothing but a call to
//! Redis, and waiting for a turn, gives up the GIL: a fork in another thread would otherwise copy a lock of the store
//! while it is held.

mod call;
mod client;
mod clock;
mod convert;
mod engine;
mod job;
mod limiter;
mod runtime;
#[cfg(feature = "redis")]
mod shared;
mod task;

use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The native part of slidegate; see the package `slidegate`.
#[pymodule]
mod _slidegate {
    #[pymodule_export]
    use crate::client::ClientRule;
    #[pymodule_export]
    use crate::clock::ManualClock;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::limiter::{Limiter, LimiterDecision};
    #[pymodule_export]
    use crate::runtime::{Completions, after_fork, before_fork, shutdown};

    use super::{Bound, PyModule, PyResult};

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::refuse_other_interpreters()
    }
}

/// Classes and cached objects are of one interpreter. From 3.12 on, Python refuses others itself.
fn refuse_other_interpreters() -> PyResult<()> {
    static FIRST: AtomicI64 = AtomicI64::new(-1);
    // SAFETY: a module is initialized by a thread that is attached to its interpreter.
    let this = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match FIRST.compare_exchange(-1, this, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != this => Err(PyImportError::new_err(
            "module slidegate._slidegate does not support loading in subinterpreters",
        )),
        _ => Ok(()),
    }
}
