//! A call of a gate, and its result. A job owns what it needs, so that it can outlive the call of Python's.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBool;
use slidegate::reserve::Ticket;
use slidegate::verb::Verb;
use slidegate_bindings::{Amount, Answer, BindingError, Call, Engine, Settled, quota};

use crate::convert::{amount, attributes, decision, duration, guarded, invalid, raise, settlement};

#[pyclass(frozen, module = "slidegate")]
#[derive(Clone)]
pub(crate) struct Job(Work);

#[derive(Clone)]
enum Work {
    Decide(Verb, Call),
    Acquire(Call),
    Reset(Call),
    Reserve(Call, Option<Duration>),
    Settle { ticket: String, cost: Amount, is_final: bool },
    Extend { ticket: String, ttl: Option<Duration>, hold: Option<Amount> },
    Cancel(String),
}

/// What a job comes to.
pub(crate) enum Outcome {
    Decision(Answer),
    Reserved(Answer),
    Truth(bool),
    Settlement(Settled),
}

#[pymethods]
impl Job {
    /// `check`, `peek`, `refund`, `penalize` or `reset`.
    #[staticmethod]
    #[pyo3(signature = (verb, attributes, cost=None, policy=None, idempotency_key=None, quota_text=None))]
    fn decide(
        verb: &str,
        attributes: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        policy: Option<String>,
        idempotency_key: Option<String>,
        quota_text: Option<&str>,
    ) -> PyResult<Self> {
        guarded(|| {
            let mut call = call(attributes, cost, policy, idempotency_key)?;
            call.quota = quota_text.map(|text| quota(text, None, None)).transpose().map_err(raise)?;
            let verb = match verb {
                "check" => Verb::Check,
                "peek" => Verb::Peek,
                "refund" => Verb::Refund,
                "penalize" => Verb::Penalize,
                "reset" => return Ok(Self(Work::Reset(call))),
                _ => return Err(invalid(format!("invalid verb `{verb}`"))),
            };
            Ok(Self(Work::Decide(verb, call)))
        })
    }

    /// A check that returns only whether it was allowed, and makes no decision of it.
    #[staticmethod]
    fn acquire(attributes: &Bound<'_, PyAny>, cost: &Bound<'_, PyAny>, quota_text: &str) -> PyResult<Self> {
        guarded(|| {
            let mut call = call(attributes, Some(cost), None, None)?;
            call.quota = Some(quota(quota_text, None, None).map_err(raise)?);
            call.wants_headers = false;
            Ok(Self(Work::Acquire(call)))
        })
    }

    #[staticmethod]
    #[pyo3(signature = (attributes, cost=None, policy=None, idempotency_key=None, ttl=None))]
    fn reserve(
        attributes: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        policy: Option<String>,
        idempotency_key: Option<String>,
        ttl: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        guarded(|| {
            let call = call(attributes, cost, policy, idempotency_key)?;
            let ttl = ttl.map(duration).transpose()?;
            Ok(Self(Work::Reserve(call, ttl)))
        })
    }

    /// `settle`, `settle_so_far`, `extend` or `cancel`.
    #[staticmethod]
    #[pyo3(signature = (kind, ticket, cost=None, ttl=None, hold=None))]
    fn change(
        kind: &str,
        ticket: String,
        cost: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        hold: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        guarded(|| {
            let cost = cost.map_or(Ok(Amount::Number(0)), amount)?;
            Ok(Self(match kind {
                "settle" => Work::Settle { ticket, cost, is_final: true },
                "settle_so_far" => Work::Settle { ticket, cost, is_final: false },
                "extend" => Work::Extend {
                    ticket,
                    ttl: ttl.map(duration).transpose()?,
                    hold: hold.map(amount).transpose()?,
                },
                "cancel" => Work::Cancel(ticket),
                _ => return Err(invalid(format!("invalid change `{kind}`"))),
            }))
        })
    }
}

fn call(
    given: &Bound<'_, PyAny>,
    cost: Option<&Bound<'_, PyAny>>,
    policy: Option<String>,
    id: Option<String>,
) -> PyResult<Call> {
    let cost = cost.map(amount).transpose()?;
    Ok(Call { attributes: attributes(given)?, cost, policy, id, quota: None, wants_headers: true })
}

impl Job {
    pub(crate) async fn run(&self, engine: &Engine) -> Result<Outcome, BindingError> {
        match &self.0 {
            Work::Decide(verb, call) => engine.decide(*verb, call).await.map(Outcome::Decision),
            Work::Acquire(call) => {
                engine.decide(Verb::Check, call).await.map(|answer| Outcome::Truth(answer.allowed))
            }
            Work::Reset(call) => engine.reset(call).await.map(Outcome::Truth),
            Work::Reserve(call, ttl) => engine.reserve(call, *ttl).await.map(Outcome::Reserved),
            Work::Settle { ticket, cost, is_final } => {
                engine.settle(ticket, cost, *is_final).await.map(Outcome::Settlement)
            }
            Work::Extend { ticket, ttl, hold } => {
                engine.extend(ticket, *ttl, hold.as_ref()).await.map(Outcome::Settlement)
            }
            Work::Cancel(ticket) => engine.cancel(ticket).await.map(Outcome::Settlement),
        }
    }
}

impl Outcome {
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Decision(answer) => decision(py, answer),
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
