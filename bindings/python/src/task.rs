//! What the runtime does for a caller, and what it comes to.

use std::pin::Pin;

use pyo3::prelude::*;
use pyo3::types::PyBool;
use slidegate::reserve::Ticket;
use slidegate_bindings::{Answer, BindingError, Settled};

use crate::convert::{decision, settlement};
use crate::limiter::LimiterDecision;

/// What is done.
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Outcome, BindingError>> + Send>>;

/// Gives back what was taken for a caller who is gone.
pub(crate) type GiveBack = Box<dyn FnOnce(Outcome) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

pub(crate) struct Task {
    pub(crate) work: Work,
    /// Of work that waits for its turn, and ends with its caller.
    pub(crate) give_back: Option<GiveBack>,
}

/// What a task comes to.
pub(crate) enum Outcome {
    Decision(Answer),
    OfLimiter(LimiterDecision),
    Reserved(Answer),
    Truth(bool),
    Settlement(Settled),
}

impl Outcome {
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Decision(answer) => decision(py, answer),
            Self::OfLimiter(decision) => Ok(Bound::new(py, decision)?.into_any()),
            Self::Truth(truth) => Ok(PyBool::new(py, truth).to_owned().into_any()),
            Self::Settlement(settled) => settlement(py, settled),
            Self::Reserved(mut answer) => {
                let ticket = answer.ticket.take();
                // A third of its time.
                let heartbeat = ticket.as_deref().and_then(|ticket| ticket.parse::<Ticket>().ok());
                let lasts_s = heartbeat.map_or(0.0, |ticket| ticket.heartbeat().as_secs_f64() * 3.0);
                Ok((decision(py, answer)?, ticket, lasts_s).into_pyobject(py)?.into_any())
            }
        }
    }
}
