//! Claims: decide which of many instances does something first.

use std::time::Duration;

use redis::Value;
use redis_once::{Executed, Failure, FailureKind};
use slidegate::internal::{instant, millis_ceil};

use super::PATIENCE;
use crate::calls::{Calls, explain};

/// Stores a claim of this instance unless one exists. Returns whether it was stored.
pub(crate) async fn claim(calls: &Calls, key: &[u8], duration: Duration) -> Result<bool, Failure> {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(&calls.denials.instance).arg("NX").arg("PX").arg(millis_ceil(duration).max(1));
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

/// Sets how long a claim of this instance lasts. Returns false if it has ended, whoever has it now. One that ends
/// between the two commands, and is another's then, is noticed by the next call.
pub(crate) async fn extend(calls: &Calls, key: &[u8], duration: Duration) -> Result<bool, Failure> {
    let ask = async |command: &redis::Cmd| {
        calls.client.command(Some(key), command, instant() + PATIENCE).await.map_err(explain)
    };
    let owner = ask(redis::cmd("GET").arg(key)).await?;
    if owner != Value::BulkString(calls.denials.instance.clone().into_bytes()) {
        return Ok(false);
    }
    Ok(ask(redis::cmd("PEXPIRE").arg(key).arg(millis_ceil(duration).max(1))).await? == Value::Int(1))
}
