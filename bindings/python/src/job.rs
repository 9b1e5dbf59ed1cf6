//! A call of a gate, and its result. A job owns what it needs, so that it can outlive the call of Python's.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use slidegate::verb::Verb;
use slidegate_bindings::{Amount, Answer, BindingError, Call, Engine, quota};

use crate::convert::{amount, attributes, duration, guarded, invalid, raise, seconds};
use crate::task::{GiveBack, Outcome, Task};

#[pyclass(frozen, module = "slidegate")]
#[derive(Clone)]
pub(crate) struct Job(Work);

#[derive(Clone)]
enum Work {
    Decide(Verb, Call),
    Allows(Call),
    Acquire(Call, Duration),
    AcquireReservation(Call, Option<Duration>, Duration),
    Reset(Call),
    Reserve(Call, Option<Duration>),
    Settle { ticket: String, cost: Amount, is_final: bool },
    Extend { ticket: String, ttl: Option<Duration>, hold: Option<Amount> },
    Cancel(String),
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
    fn allows(attributes: &Bound<'_, PyAny>, cost: &Bound<'_, PyAny>, quota_text: &str) -> PyResult<Self> {
        guarded(|| {
            let mut call = call(attributes, Some(cost), None, None)?;
            call.quota = Some(quota(quota_text, None, None).map_err(raise)?);
            call.wants_headers = false;
            Ok(Self(Work::Allows(call)))
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

    /// As a check, after waiting for its turn.
    #[staticmethod]
    #[pyo3(signature = (timeout, attributes, cost=None, policy=None))]
    fn acquire(
        timeout: &Bound<'_, PyAny>,
        attributes: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        policy: Option<String>,
    ) -> PyResult<Self> {
        guarded(|| Ok(Self(Work::Acquire(call(attributes, cost, policy, None)?, seconds(timeout)?))))
    }

    /// As `reserve`, after waiting for its turn.
    #[staticmethod]
    #[pyo3(signature = (timeout, attributes, cost=None, policy=None, ttl=None))]
    fn acquire_reservation(
        timeout: &Bound<'_, PyAny>,
        attributes: &Bound<'_, PyAny>,
        cost: Option<&Bound<'_, PyAny>>,
        policy: Option<String>,
        ttl: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        guarded(|| {
            let ttl = ttl.map(duration).transpose()?;
            let call = call(attributes, cost, policy, None)?;
            Ok(Self(Work::AcquireReservation(call, ttl, seconds(timeout)?)))
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
    /// The job as a task of the runtime.
    pub(crate) fn task(&self, gate: Arc<Engine>) -> Task {
        let give_back = self.waits().then(|| -> GiveBack {
            let (job, gate) = (self.clone(), Arc::clone(&gate));
            Box::new(move |outcome| Box::pin(async move { job.give_back(&gate, outcome).await }))
        });
        let job = self.clone();
        Task { work: Box::pin(async move { job.run(&gate).await }), give_back }
    }

    /// Whether it waits for its turn.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.0, Work::Acquire(..) | Work::AcquireReservation(..))
    }

    async fn give_back(&self, engine: &Engine, outcome: Outcome) {
        // If it fails, the charge stays.
        match (&self.0, outcome) {
            (Work::Acquire(call, _), Outcome::Decision(answer)) if answer.allowed => {
                let _ = engine.decide(Verb::Refund, call).await;
            }
            (_, Outcome::Reserved(Answer { ticket: Some(ticket), .. })) => {
                let _ = engine.cancel(&ticket).await;
            }
            _ => {}
        }
    }

    pub(crate) async fn run(&self, engine: &Engine) -> Result<Outcome, BindingError> {
        match &self.0 {
            Work::Decide(verb, call) => engine.decide(*verb, call).await.map(Outcome::Decision),
            Work::Allows(call) => {
                engine.decide(Verb::Check, call).await.map(|answer| Outcome::Truth(answer.allowed))
            }
            Work::Acquire(call, timeout) => engine.acquire(call, *timeout).await.map(Outcome::Decision),
            Work::AcquireReservation(call, ttl, timeout) => {
                engine.acquire_reservation(call, *ttl, *timeout).await.map(Outcome::Reserved)
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
