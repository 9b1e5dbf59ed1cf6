//! Inspection: reads the stored value of one key in full, for operators.
//!
//! Reads values without a script, as the native module does. A malformed value is an error that names the key.

use std::borrow::Cow;

use redis::Value;
use redis_once::{Executed, Failure, FailureKind, ReplyBound};
use slidegate::Quota;
use slidegate::internal::{TAG, instant};
use slidegate::store::{Charge, KeyInspection};
use slidegate_stored::{Pair, Unusable};

use super::PATIENCE;
use crate::calls::{Calls, explain};
use crate::names::Names;

/// Bytes of the largest value: a log's header and the maximum number of runs, each of the maximum width.
const LARGEST: usize = 48 + 65_535 * 13;

/// The usage of these keys in full, in order.
pub(crate) async fn inspect(
    calls: &Calls,
    names: &Names,
    charges: &[Charge<'_>],
) -> Result<Vec<KeyInspection>, Failure> {
    let mut found = Vec::with_capacity(charges.len());
    for charge in charges {
        let name = names.name(&charge.key);
        let deadline = instant() + PATIENCE;
        let client = &calls.client;
        let get = async |name: &[u8]| {
            let mut get = redis::cmd("GETRANGE");
            get.arg(name).arg(0).arg(LARGEST);
            let bound = ReplyBound::of(LARGEST + 1);
            client.bounded_command(Some(name), &get, bound, deadline).await.map_err(explain)
        };
        let mut value = get(&name).await?;
        let mut table = None;
        if matches!(&value, Value::BulkString(bytes) if bytes.first() == Some(&TAG)) {
            table = Some(std::mem::replace(&mut value, get(&Names::usage(&name)).await?));
        }
        let now = calls.server_time(&name, deadline).await.map_err(explain)?;
        let failed = |detail: String| {
            let name = String::from_utf8_lossy(&name).into_owned();
            let detail = format!("`{}` {detail}", name.escape_debug());
            calls.failed(client.slot(name.as_bytes()), Executed::No, FailureKind::Malformed, &detail)
        };
        let [table, usage] = [table, Some(value)].map(|value| match value {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes).filter(|bytes| !bytes.is_empty())),
            Some(other) => Err(failed(format!("reads as {other:?}"))),
            None => Ok(None),
        });
        let (table, usage) = (table?.map(Cow::Owned), usage?.map(Cow::Owned));
        let mut pair = match table {
            Some(_) => Pair { key: table, usage },
            None => Pair { key: usage, usage: None },
        };
        found.push(read(&mut pair, charge.quota, now, charge.part.cost).map_err(failed)?);
    }
    Ok(found)
}

/// Reads the values of a key. A value of another algorithm counts as no usage, as in a decision.
pub(crate) fn read(pair: &mut Pair<'_>, quota: &Quota, now: u64, cost: u64) -> Result<KeyInspection, String> {
    slidegate_stored::inspect(pair, quota, now, cost).map_err(|Unusable { message, .. }| {
        let advice = match message.starts_with("damaged") {
            true => "reset the key",
            false => "another program writes it, or a newer slidegate does",
        };
        format!("is {message}; {advice}")
    })
}
