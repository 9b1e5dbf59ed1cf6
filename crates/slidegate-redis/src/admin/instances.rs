//! Instances: their number, and the records that they publish.
//!
//! Each instance renews its line in one table. A line counts for [`COUNTS`] by the server's clock,
//! so an instance that ends stops counting after that. A record expires with its line.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use redis_once::{Call, Executed, Failure, FailureKind, LastFailure, ReplyBound};
use slidegate::internal::{instant, millis_ceil};
use slidegate::store::InstanceRecord;
use tokio::time::Instant;

use super::PATIENCE;
use crate::calls::{Calls, explain};
use crate::names::Names;
use crate::reply::{items, number};

/// How long an instance counts after its last renewal: three intervals plus a second.
const COUNTS: Duration = Duration::from_secs(10);
/// The largest number of lines: the script reads them in half a millisecond.
const MAX_INSTANCES: usize = 1000;
/// The largest record, in bytes: a thousand of them are 4 MB.
pub(crate) const MAX_RECORD: usize = 4096;
/// Records read per call, which takes Redis about a tenth of a millisecond.
const RECORDS_AT_ONCE: usize = 100;
/// Maximum size of the table in bytes: each line has an id of 16 digits, a time of 13 and two
/// separators.
const MAX_TABLE: usize = 32 * MAX_INSTANCES;
/// The length of an instance's id.
const ID_DIGITS: usize = 16;

/// Renews this instance's line and its record, if any. Returns the number of instances.
pub(crate) async fn count(calls: &Calls, record: Option<&[u8]>) -> Result<u64, Failure> {
    let id = &calls.denials.instance;
    let mut keys = vec![Names::instances()];
    let mut args = vec![
        id.as_bytes().to_vec(),
        millis_ceil(COUNTS).to_string().into_bytes(),
        MAX_INSTANCES.to_string().into_bytes(),
    ];
    if let Some(record) = record {
        if record.len() > MAX_RECORD {
            let detail =
                format!("record: invalid size of {} bytes: must be at most {MAX_RECORD}", record.len());
            return Err(Failure::without_node(Executed::No, FailureKind::Other, detail));
        }
        keys.push(Names::instance(id));
        args.push(record.to_vec());
    }
    let slot = calls.client.slot(&keys[0]);
    let call = Call { script: &calls.scripts().instances, keys: &keys, args: &args, native: None };
    let counted = calls.reply(
        calls.client.run(call, ReplyBound::SMALL, instant() + PATIENCE, &LastFailure::default()).await,
    )?;
    let numbers = match &counted {
        Value::Array(both) => both.iter().map(number).collect::<Option<Vec<_>>>().unwrap_or_default(),
        _ => Vec::new(),
    };
    let &[count @ 1..=u64::MAX, foreign] = numbers.as_slice() else {
        let detail = format!("counted {counted:?} instances");
        return Err(calls.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail));
    };
    if foreign > 0 {
        calls.counts.instances_replaced.fetch_add(1, Ordering::Relaxed);
    }
    Ok(count)
}

/// The records of all instances, this one included, in no order.
pub(crate) async fn records(calls: &Calls) -> Result<Vec<InstanceRecord>, Failure> {
    let slot = calls.client.slot(&Names::instances());
    let malformed = |detail: &str| calls.failed(slot, Executed::No, FailureKind::Malformed, detail);
    let deadline = instant() + PATIENCE;
    let ids = ids(&table(calls, deadline).await?);
    let mut records = Vec::with_capacity(ids.len());
    for ids in ids.chunks(RECORDS_AT_ONCE) {
        let keys: Vec<_> = ids.iter().map(|id| Names::instance(id)).collect();
        let args = [MAX_RECORD.to_string().into_bytes()];
        let script = &calls.scripts().instance_records;
        let call = Call { script, keys: &keys, args: &args, native: None };
        let bound = ReplyBound::of(keys.len() * (MAX_RECORD + 32));
        let replied = calls.reply(calls.client.run(call, bound, deadline, &LastFailure::default()).await)?;
        let replied = items(replied).map_err(|unreadable| malformed(&unreadable.0))?;
        records.extend(ids.iter().zip(replied).filter_map(|(id, record)| match record {
            Value::BulkString(record) if !record.is_empty() => {
                Some(InstanceRecord { id: id.clone(), record })
            }
            _ => None,
        }));
    }
    Ok(records)
}

/// How many bytes of the table were not written by instances, at most its maximum size.
pub(crate) async fn foreign(calls: &Calls) -> Result<usize, Failure> {
    let table = table(calls, instant() + PATIENCE).await?;
    let lines = table.split_inclusive(|byte| *byte == b'\n');
    Ok(lines.filter(|line| ids(line).is_empty()).map(<[u8]>::len).sum())
}

/// The table, up to its maximum size.
async fn table(calls: &Calls, deadline: Instant) -> Result<Vec<u8>, Failure> {
    let table = Names::instances();
    let mut command = redis::cmd("GETRANGE");
    command.arg(&table).arg(0).arg(MAX_TABLE - 1);
    let read = calls.client.bounded_command(Some(&table), &command, ReplyBound::of(MAX_TABLE), deadline);
    match read.await.map_err(explain)? {
        Value::BulkString(bytes) => Ok(bytes),
        other => {
            let (slot, detail) = (calls.client.slot(&table), format!("answered GETRANGE with {other:?}"));
            Err(calls.failed(slot, Executed::No, FailureKind::Malformed, &detail))
        }
    }
}

/// The instances in a table, without duplicates. Other lines are skipped: another program may have
/// written them.
fn ids(table: &[u8]) -> Vec<String> {
    let mut known = HashSet::new();
    let lines = table.split(|byte| *byte == b'\n');
    let ids = lines.filter_map(|line| {
        let id = std::str::from_utf8(line).ok()?.split(' ').next()?;
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_id && known.insert(id)).then(|| id.to_owned())
    });
    ids.take(MAX_INSTANCES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that somebody else wrote must not become names of keys.
    #[test]
    fn only_ids_of_instances_are_read_from_the_table() {
        let table = b"00000000000000ab 1\nxyz 1\n\xff\xff 2\n{a}0000000000000 3\n00000000000000ac 4\n00ac 5\n00000000000000ab 6\n";
        assert_eq!(ids(table), ["00000000000000ab", "00000000000000ac"]);
        let crowd: String = (0..2 * MAX_INSTANCES).map(|number| format!("{number:016x} 1\n")).collect();
        assert_eq!(ids(crowd.as_bytes()).len(), MAX_INSTANCES);
        assert_eq!(ids(b""), [""; 0]);
    }
}
