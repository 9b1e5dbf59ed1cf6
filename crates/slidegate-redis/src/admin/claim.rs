//! Claims: decide which of many instances does something first.

use std::time::Duration;

use redis::Value;
use redis_once::{Executed, Failure, FailureKind};
use slidegate::internal::{instant, millis_ceil};

use super::PATIENCE;
use crate::calls::{Calls, explain};

/// Stores a claim unless one exists. Returns whether it was stored.
pub(crate) async fn claim(calls: &Calls, key: &[u8], duration: Duration) -> Result<bool, Failure> {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(1).arg("NX").arg("PX").arg(millis_ceil(duration).max(1));
    match calls.client.command(Some(key), &command, instant() + PATIENCE).await.map_err(explain)? {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        other => {
            let detail = format!("answered SET with {other:?}");
            let slot = calls.client.slot(key);
            Err(calls.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail))
        }
    }
}

/// Sets how long a claim lasts.
pub(crate) async fn extend(calls: &Calls, key: &[u8], duration: Duration) -> Result<(), Failure> {
    let mut command = redis::cmd("PEXPIRE");
    command.arg(key).arg(millis_ceil(duration).max(1));
    calls.client.command(Some(key), &command, instant() + PATIENCE).await.map(|_| ()).map_err(explain)
}
