//! Time that tests advance by hand.

use std::sync::{Mutex, Weak};

use pyo3::prelude::*;

use crate::convert::duration;
use crate::runtime::locked;

/// A clock that stands still until it is advanced, for tests of limiters and gates in memory.
#[pyclass(frozen, module = "slidegate")]
pub(crate) struct ManualClock {
    pub(crate) clock: slidegate::clock::ManualClock,
    /// Notified that time has passed, while they exist: calls that wait sleep by another clock.
    watchers: Mutex<Vec<Watcher>>,
}

/// Returns false once there is nobody to notify.
type Watcher = Box<dyn Fn() -> bool + Send>;

#[pymethods]
impl ManualClock {
    #[new]
    fn new() -> Self {
        Self { clock: slidegate::clock::ManualClock::new(), watchers: Mutex::default() }
    }

    /// Moves it forward by a `timedelta`.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        self.clock.advance(duration(by)?);
        locked(&self.watchers).retain(|watcher| watcher());
        Ok(())
    }
}

impl ManualClock {
    pub(crate) fn watch<T: Send + Sync + 'static>(&self, watcher: Weak<T>, time_has_passed: fn(&T)) {
        let notify = move || watcher.upgrade().inspect(|watcher| time_has_passed(watcher)).is_some();
        locked(&self.watchers).push(Box::new(notify));
    }
}
