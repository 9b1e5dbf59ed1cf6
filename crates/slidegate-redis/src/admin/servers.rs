//! Server information: the replies to `INFO`, and the clocks.

use std::collections::HashMap;

use redis::Value;
use redis_once::ReplyBound;
use slidegate::clock::{Clock, SystemClock};
use slidegate::internal::instant;

use super::PATIENCE;
use crate::calls::Calls;
use crate::reply::{items, number};

/// Information about one server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its address: `10.0.0.5:6379`, or the path of a socket.
    pub node: String,
    /// How far its clock is ahead of this machine's, in microseconds: minimum and maximum. `None`
    /// if it did not reply to `TIME`.
    pub clock_ahead_us: Option<(i64, i64)>,
    /// Its reply to `INFO`; empty if it did not reply, or if the store's user lacks the right.
    info: String,
}

impl ServerInfo {
    /// Whether it replied to `INFO`. Otherwise there are no fields.
    #[must_use]
    pub fn has_fields(&self) -> bool {
        !self.info.is_empty()
    }

    /// The fields of `INFO` with their values, in its order. Some names repeat, such as `module`.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.info.lines().filter_map(|line| line.trim().split_once(':'))
    }

    /// A field of `INFO`, such as `maxmemory_policy`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields().find_map(|(field, value)| (field == name).then_some(value))
    }
}

/// Asks every master. Sorted by address, without those that do not reply.
pub(crate) async fn ask(calls: &Calls) -> Vec<ServerInfo> {
    let clock = SystemClock::new();
    let sent = clock.now().as_micros();
    let times: HashMap<_, _> = on_each_master(calls, "TIME").await.into_iter().collect();
    let arrived = clock.now().as_micros();
    let ahead = |time: u64, ours: u64| i64::try_from(time).ok()?.checked_sub(i64::try_from(ours).ok()?);
    let mut servers = Vec::new();
    for (node, info) in on_each_master(calls, "INFO").await {
        let time = times.get(&node).and_then(|time| micros(time.as_ref()?));
        let clock_ahead_us = time.and_then(|time| ahead(time, arrived).zip(ahead(time, sent)));
        let info = match info {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Some(Value::VerbatimString { text, .. } | Value::SimpleString(text)) => text,
            _ => String::new(),
        };
        servers.push(ServerInfo { node, clock_ahead_us, info });
    }
    servers.sort_by(|one, other| one.node.cmp(&other.node));
    servers
}

/// The reply of every master, `None` if it is an error.
async fn on_each_master(calls: &Calls, name: &str) -> Vec<(String, Option<Value>)> {
    let command = |_: &str| Some(redis::cmd(name));
    let answers = calls.client.on_each_master(command, ReplyBound::SMALL, instant() + PATIENCE).await;
    answers.into_iter().map(|(node, answer)| (node, answer.ok())).collect()
}

/// The reply to `TIME`, in microseconds.
fn micros(reply: &Value) -> Option<u64> {
    let Ok([secs, micros]) = <[Value; 2]>::try_from(items(reply.clone()).ok()?) else { return None };
    number(&secs)?.checked_mul(1_000_000)?.checked_add(number(&micros)?)
}
