//! Targets that are asked by commands of the Redis protocol.

use std::time::Instant;

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::Failed;
use crate::judge::Answer;
use crate::target::{Resp, filled};

pub(super) struct Client {
    connection: MultiplexedConnection,
    form: Resp,
}

impl Client {
    pub(super) async fn new(form: &Resp, port: u16) -> Result<Self, Failed> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { connection, form: form.clone() })
    }

    pub(super) async fn ask(&self, key: &str, cost: u64) -> (Instant, Answer) {
        let mut command = redis::Cmd::new();
        for word in &self.form.command {
            command.arg(filled(word, key, cost));
        }
        let reply = command.query_async::<Value>(&mut self.connection.clone()).await;
        let answered = Instant::now();
        (answered, reply.map_or_else(|error| Answer::Failed(error.to_string()), |reply| self.read(&reply)))
    }

    fn read(&self, reply: &Value) -> Answer {
        let Some(admitted) = element(reply, self.form.admitted.index) else {
            return Answer::Failed(format!("{reply:?} has no element {}", self.form.admitted.index));
        };
        if admitted == self.form.admitted.is {
            return Answer::Admitted;
        }
        let wait = self.form.wait.as_ref();
        Answer::Denied(wait.and_then(|wait| wait.unit.duration(element(reply, wait.index)?.parse().ok()?)))
    }
}

/// The element of an answer with several, or the answer itself, as text.
fn element(reply: &Value, index: usize) -> Option<String> {
    match reply {
        Value::Array(elements) => element(elements.get(index)?, 0),
        Value::Int(number) => Some(number.to_string()),
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Okay => Some("OK".to_owned()),
        Value::Double(number) => Some(number.to_string()),
        Value::Boolean(is) => Some(is.to_string()),
        _ => None,
    }
}
