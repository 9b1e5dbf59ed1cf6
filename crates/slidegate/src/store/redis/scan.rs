//! Scans: all keys of a policy, found on every node a thousand at a time.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use super::names::Names;
use super::{Executed, Failure, FailureKind, RedisStore, number};
use crate::time::instant;

/// Keys that a server looks at in one step of a scan: over in a moment.
const SCANNED: u32 = 1000;
/// How long one step may take: nobody waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

impl RedisStore {
    /// Forgets every key of a policy; returns how many there were. Goes through all keys of the server, a thousand at a
    /// time, while decisions go on; keys that come meanwhile may stay.
    pub(crate) async fn reset_policy(&self, policy: &str) -> Result<u64, Failure> {
        let mut forgotten = 0;
        for pattern in Names::patterns(policy) {
            // Where each node left off; before the first step nobody has begun.
            let mut cursors: Option<HashMap<String, u64>> = None;
            loop {
                let command = |node: &str| {
                    let cursor = match &cursors {
                        None => 0,
                        Some(cursors) => *cursors.get(node).filter(|cursor| **cursor != 0)?,
                    };
                    let mut scan = redis::cmd("SCAN");
                    scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
                    Some(scan)
                };
                let scanned = self.calls.wire.on_each_master(command, instant() + PATIENCE).await;
                let mut next = HashMap::new();
                for (node, answer) in scanned {
                    let answer = answer.inspect_err(|failure| self.calls.wire.count(failure))?;
                    let (cursor, keys) = scan_answer(&node, &answer)?;
                    next.insert(node, cursor);
                    for key in keys.into_iter().filter(|key| Names::is_usage(key)) {
                        let deleted = self.calls.delete(&key, instant() + PATIENCE).await?;
                        forgotten += u64::from(deleted);
                    }
                }
                if next.values().all(|cursor| *cursor == 0) {
                    break;
                }
                cursors = Some(next);
            }
        }
        self.calls.tell_of_room(instant() + self.options.deadline).await;
        Ok(forgotten)
    }
}

/// The next place and the keys of one step of a scan.
fn scan_answer(node: &str, answer: &Value) -> Result<(u64, Vec<Vec<u8>>), Failure> {
    let wrong = |answer: &Value| Failure {
        executed: Executed::Maybe,
        kind: FailureKind::Malformed,
        node: node.to_owned(),
        detail: format!("answered SCAN with {answer:?}"),
    };
    let Value::Array(parts) = answer else { return Err(wrong(answer)) };
    let [cursor, Value::Array(keys)] = parts.as_slice() else { return Err(wrong(answer)) };
    let keys = keys.iter().filter_map(|key| match key {
        Value::BulkString(key) => Some(key.clone()),
        _ => None,
    });
    Ok((number(cursor).ok_or_else(|| wrong(answer))?, keys.collect()))
}
