//! Redis Sentinel: which server is the master.
//!
//! A Sentinel's answer is verified with the server itself: a server that does not report the role
//! `master` is not called.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::connector::Serves;
use super::error_reply;
use super::node::{Node, Terms};
use super::options::{Address, ConnectionOptions};
use super::refresh::{Refresh, Renew};
use super::reply_bound::ReplyBound;
use crate::error::Error;
use crate::time::instant;

/// Timeout for asking one Sentinel or one server.
const ASKING: Duration = Duration::from_millis(200);

/// The master of one name, as reported by the Sentinels.
pub(super) struct Sentinel {
    options: ConnectionOptions,
    sentinels: Vec<Arc<Node>>,
    /// The master's name.
    name: String,
    master: ArcSwapOption<Node>,
    refresh: Refresh,
    /// Why no master is known; empty after a successful refresh.
    why: ArcSwapOption<String>,
}

impl Sentinel {
    /// # Errors
    /// Certificates that cannot be read.
    pub(super) fn new(options: &ConnectionOptions, sentinels: &[Address], name: &str) -> Result<Self, Error> {
        let sentinels = sentinels.iter().map(|address| Node::new(options, address.clone(), Serves::Sentinel));
        Ok(Self {
            options: options.clone(),
            sentinels: sentinels.collect::<Result<_, _>>()?,
            name: name.to_owned(),
            master: ArcSwapOption::empty(),
            refresh: Refresh::default(),
            why: ArcSwapOption::empty(),
        })
    }

    /// The master, if known.
    pub(super) fn master(&self) -> Option<Arc<Node>> {
        self.master.load_full()
    }

    /// Why no master is known, after the first refresh.
    pub(super) fn last_error(&self) -> Option<String> {
        self.why.load().as_deref().cloned()
    }

    /// Applies one Sentinel's answer if the server confirms it.
    async fn ask(&self, sentinel: &Node) -> Result<(), String> {
        let deadline = instant() + ASKING;
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("get-master-addr-by-name").arg(&self.name);
        let reply = answered(sentinel, &command, deadline).await?;
        let Some(address) = address(&reply) else {
            return Err(format!("sentinel at {} knows no master `{}`", sentinel.name(), self.name));
        };
        let known = self.master().filter(|master| *master.address() == address);
        let candidate = match known {
            Some(known) => known,
            None => Node::new(&self.options, address, Serves::Keys).map_err(|error| error.to_string())?,
        };
        let mut role = Cmd::new();
        role.arg("ROLE");
        match answered(&candidate, &role, deadline.max(instant() + ASKING)).await {
            Ok(reply) if !is_master(&reply) => {
                return Err(format!(
                    "redis at {} is reported as master but does not have the role `master`",
                    candidate.name()
                ));
            }
            // A user that may not run `ROLE` has to trust the Sentinel.
            Err(words) if !words.contains("NOPERM") => return Err(words),
            _ => {}
        }
        if self.master().is_none_or(|known| !Arc::ptr_eq(&known, &candidate)) {
            self.master.store(Some(candidate));
        }
        self.why.store(None);
        Ok(())
    }
}

impl Renew for Sentinel {
    const CALM: Duration = Duration::from_secs(10);

    fn refresh(&self) -> &Refresh {
        &self.refresh
    }

    async fn renew(&self) -> bool {
        let mut why = String::new();
        // Healthy Sentinels first: one that is down delays the others.
        let (well, unwell): (Vec<_>, Vec<_>) = self.sentinels.iter().partition(|node| node.is_healthy());
        for sentinel in well.into_iter().chain(unwell) {
            match self.ask(sentinel).await {
                Ok(()) => return self.master().is_some_and(|master| !master.is_suspect()),
                Err(words) => why = words,
            }
        }
        self.why.store(Some(Arc::new(why)));
        false
    }
}

/// A node's reply, with errors as text.
async fn answered(node: &Node, command: &Cmd, deadline: Instant) -> Result<Value, String> {
    match node.call(command, Terms { deadline, bound: ReplyBound::SMALL }).await {
        Ok(Value::ServerError(error)) => {
            Err(format!("redis at {}: {}", node.name(), error_reply::reply_text(&error)))
        }
        Ok(value) => Ok(value),
        Err(failure) => Err(failure.to_string()),
    }
}

/// Host and port as two strings.
pub(super) fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = &parts[..] else { return None };
    let port = text(port)?.parse().ok().filter(|port| *port > 0)?;
    Some(Address::Tcp { host: text(host)?.to_owned(), port })
}

pub(super) fn is_master(reply: &Value) -> bool {
    matches!(reply, Value::Array(parts) if parts.first().and_then(text) == Some("master"))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).unwrap()
    }

    /// Calls go to the server that this reply names.
    #[test]
    fn the_masters_address_is_read() {
        let expected = Address::Tcp { host: "10.0.0.1".to_owned(), port: 6379 };
        assert_eq!(address(&value("*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n")), Some(expected));
        for none in ["*-1\r\n", "$-1\r\n", "*2\r\n$1\r\nh\r\n$1\r\nx\r\n", "*1\r\n$1\r\nh\r\n"] {
            assert_eq!(address(&value(none)), None, "{none:?}");
        }
    }

    /// A former master that a stale Sentinel still reports must not be charged.
    #[test]
    fn only_a_server_that_says_so_is_a_master() {
        assert!(is_master(&value("*3\r\n$6\r\nmaster\r\n:1\r\n*0\r\n")));
        assert!(!is_master(&value("*1\r\n$5\r\nslave\r\n")));
        assert!(!is_master(&value("+master\r\n")));
    }
}
