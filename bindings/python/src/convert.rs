//! Values between Python and Rust, and errors in both directions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};
use slidegate_bindings::{Amount, Answer, BindingError, PolicyAnswer, Settled};

use crate::call::{call, call_method};

/// Runs a call of Python's. A panic becomes an ordinary exception, which `except Exception` catches.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => Err(raise(panicked(&*panic))),
    }
}

/// The error of a panic, which is a mistake of ours.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> BindingError {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic");
    BindingError::new("internal", format!("slidegate failed, please report it: {text}"))
}

/// The exception of an error, in its class.
pub(crate) fn raise(error: BindingError) -> PyErr {
    static ERROR_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Python::attach(|py| {
        let exception = ERROR_OF
            .import(py, "slidegate.errors", "error_of")
            .and_then(|error_of| call(error_of, (error.code, error.message)));
        match exception {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        }
    })
}

pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    raise(BindingError::request(message))
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// A key, or the value of an attribute: the bytes of a `str` in UTF-8, or those of a `bytes`.
#[inline]
pub(crate) fn bytes_of<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = value.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => Ok(text.as_bytes()),
            Err(_) => Err(invalid("invalid text: it has a lone surrogate, which is not Unicode; pass bytes")),
        };
    }
    match value.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes()),
        Err(_) => {
            Err(invalid(format!("invalid key or value of type {}: must be str or bytes", type_name(value))))
        }
    }
}

/// A cost. `True` is not 1, and 1.0 is not either.
#[inline]
pub(crate) fn units(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if value.is_instance_of::<PyInt>()
        && !value.is_instance_of::<PyBool>()
        && let Ok(units) = value.extract()
    {
        return Ok(units);
    }
    Err(invalid(format!(
        "invalid cost of type {}: must be a whole number from 0 to {}",
        type_name(value),
        u64::MAX
    )))
}

/// A cost, or costs by name.
pub(crate) fn amount(value: &Bound<'_, PyAny>) -> PyResult<Amount> {
    if value.is_instance_of::<PyInt>() || !is_mapping(value)? {
        return units(value).map(Amount::Number);
    }
    let costs = pairs(value)?.into_iter().map(|(name, cost)| Ok((name, units(&cost)?)));
    costs.collect::<PyResult<_>>().map(Amount::Named)
}

/// Whether it is a `collections.abc.Mapping`, which classes written in Python can say for themselves.
fn is_mapping(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IS_INSTANCE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static MAPPING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if value.is_instance_of::<PyDict>() {
        return Ok(true);
    }
    let is_instance = IS_INSTANCE.import(value.py(), "builtins", "isinstance")?;
    let mapping = MAPPING.import(value.py(), "collections.abc", "Mapping")?;
    call(is_instance, (value, mapping))?.extract()
}

/// The attributes of a request.
pub(crate) fn attributes(value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Vec<u8>)>> {
    if !is_mapping(value)? {
        return Err(invalid(format!(
            "invalid attributes of type {}: must be a mapping, for example {{\"user\": \"alice\"}}",
            type_name(value)
        )));
    }
    pairs(value)?.into_iter().map(|(name, value)| Ok((name, bytes_of(&value)?.to_vec()))).collect()
}

fn pairs<'py>(mapping: &Bound<'py, PyAny>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let name = |name: &Bound<'py, PyAny>| match name.cast::<PyString>() {
        Ok(_) => Ok(String::from_utf8_lossy(bytes_of(name)?).into_owned()),
        Err(_) => Err(invalid(format!("invalid name of type {}: must be str", type_name(name)))),
    };
    if let Ok(dict) = mapping.cast::<PyDict>() {
        return dict.iter().map(|(key, value)| Ok((name(&key)?, value))).collect();
    }
    let items = call_method(mapping, "items", ())?;
    let items = call(&mapping.py().get_type::<PyList>(), (items,))?;
    items
        .cast::<PyList>()?
        .iter()
        .map(|pair| {
            let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract()?;
            Ok((name(&key)?, value))
        })
        .collect()
}

pub(crate) fn duration(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    value.extract().map_err(|_| {
        invalid(format!(
            "invalid time of type {}: must be a timedelta that is not negative",
            type_name(value)
        ))
    })
}

/// How long a call waits for its turn.
pub(crate) fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: Option<f64> = if value.is_instance_of::<PyBool>() { None } else { value.extract().ok() };
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        invalid(format!(
            "invalid timeout of type {}: must be seconds from 0, for example 2.5",
            type_name(value)
        ))
    })
}

/// A `slidegate.Decision`.
pub(crate) fn decision<'py>(py: Python<'py>, answer: Answer) -> PyResult<Bound<'py, PyAny>> {
    static DECISION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let policies: Vec<_> =
        answer.policies.into_iter().map(|one| numbers(py, one)).collect::<PyResult<_>>()?;
    let arguments = (
        answer.allowed,
        answer.status,
        answer.why,
        policies,
        answer.strictest,
        answer.headers,
        answer.store_failure,
    );
    call(DECISION.import(py, "slidegate.decision", "decision_of")?, arguments)
}

/// A `slidegate.Settlement`.
pub(crate) fn settlement<'py>(py: Python<'py>, settled: Settled) -> PyResult<Bound<'py, PyAny>> {
    static SETTLEMENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let policies: Vec<_> = settled
        .policies
        .into_iter()
        .map(|one| Ok((one.status, numbers(py, one.decision)?)))
        .collect::<PyResult<_>>()?;
    let arguments = (settled.status, settled.ticket, policies);
    call(SETTLEMENT.import(py, "slidegate.reservation", "settlement_of")?, arguments)
}

/// The arguments of `slidegate.decision.policy_decision_of`.
fn numbers(py: Python<'_>, one: PolicyAnswer) -> PyResult<Bound<'_, PyTuple>> {
    (
        (one.policy, one.key, one.allowed, one.enforced),
        (one.limit, one.used, one.held, one.remaining, one.cost),
        (one.window_us, one.retry_after_us, one.reset_after_us, one.reason, one.source),
    )
        .into_pyobject(py)
}
