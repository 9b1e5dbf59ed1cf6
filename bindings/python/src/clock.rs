//! Time that tests advance by hand.

use pyo3::prelude::*;

use crate::convert::duration;

/// A clock that stands still until it is advanced, for tests of limiters and gates in memory.
#[pyclass(frozen, module = "slidegate")]
pub(crate) struct ManualClock(pub(crate) slidegate::clock::ManualClock);

#[pymethods]
impl ManualClock {
    #[new]
    fn new() -> Self {
        Self(slidegate::clock::ManualClock::new())
    }

    /// Moves it forward by a `timedelta`.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.advance(duration(by)?);
        Ok(())
    }
}
