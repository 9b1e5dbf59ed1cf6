#![doc = include_str!("../README.md")]

mod breaker;
mod cluster;
mod connection;
mod connector;
mod error_reply;
mod failure;
#[cfg(fuzzing)]
pub mod fuzzing;
mod module_probe;
mod node;
mod options;
mod reply_bound;
mod script;
mod sentinel;
pub mod slot;
mod stream;
mod topology;
mod url;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::error_reply::ErrorReply;
use self::failure::Counters;
use self::node::{Asking, Job, Node, Sent, Terms};
use self::topology::Topology;

pub use breaker::BreakerState;
pub use connector::Connector;
pub use error_reply::{line, without_user};
pub use failure::{Executed, Failure, FailureCounts, FailureKind, LastFailure};
pub use node::NodeState;
pub use options::{
    Address, Application, ClientCertificate, Credentials, InvalidOptions, Options, Pem, Servers,
};
pub use reply_bound::ReplyBound;
pub use script::{Call, Native, Script};

/// Maximum redirections that one call follows.
const MAX_REDIRECTIONS: u32 = 8;
/// Minimum and maximum pause before a retry.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(20));

/// Sends calls to the node that holds their keys: a server, the master named by Sentinels, or a cluster node.
/// A failed call is retried until its deadline only if it was certainly not executed.
pub struct Client {
    topology: Arc<Topology>,
    failures: Counters,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.state()).finish()
    }
}

impl Client {
    /// Creates a client. It connects on the first call and needs no runtime before.
    ///
    /// # Errors
    /// Options out of range, or certificates that cannot be read.
    pub fn new(options: &Options) -> Result<Self, InvalidOptions> {
        options.check()?;
        Ok(Self { topology: Topology::new(options)?, failures: Counters::default() })
    }

    /// Runs a script by its hash, or a module command where a node has it, at most once and never after the
    /// deadline. All keys must be in one slot. `last_failure` receives the reason for a retry. A reply above
    /// `bound` ends the connection.
    ///
    /// Dropping the future neither cancels a call already sent nor affects other calls. Failures are not
    /// added to [`errors`](Self::errors): see [`count`](Self::count).
    ///
    /// # Errors
    /// A failure, which says whether the call may have been executed.
    pub async fn run(
        &self,
        call: Call<'_>,
        bound: ReplyBound,
        deadline: Instant,
        last_failure: &LastFailure,
    ) -> Result<Value, Failure> {
        let slot = call.keys.first().map_or(0, |key| self.slot(key));
        self.drive(slot, &Job::Script(&call), Terms { deadline, bound }, last_failure).await
    }

    /// Sends a command, at most once, to the node that holds `key`, or to any master without a key. Its reply
    /// is [small](ReplyBound::SMALL).
    ///
    /// # Errors
    /// A failure, which says whether the command may have been executed.
    pub async fn command(
        &self,
        key: Option<&[u8]>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        self.bounded_command(key, command, ReplyBound::SMALL, deadline).await
    }

    /// Sends a [`command`](Self::command) with another bound on its reply.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub async fn bounded_command(
        &self,
        key: Option<&[u8]>,
        command: &Cmd,
        bound: ReplyBound,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let slot = key.map_or(0, |key| self.slot(key));
        self.drive(slot, &Job::Command(command), Terms { deadline, bound }, &LastFailure::default())
            .await
            .inspect_err(|failure| self.count(failure))
    }

    /// Sends each master the command that `command` returns for its name, concurrently. `None`
    /// skips a node.
    ///
    /// An error reply counts as a failure here. Failures are not added to [`errors`](Self::errors): some of
    /// these commands are optional, and the user may lack permission.
    pub async fn on_each_master(
        &self,
        mut command: impl FnMut(&str) -> Option<Cmd>,
        bound: ReplyBound,
        deadline: Instant,
    ) -> Vec<(String, Result<Value, Failure>)> {
        let masters = match self.masters(deadline).await {
            Ok(masters) => masters,
            Err(failure) => return vec![(failure.node.clone(), Err(failure))],
        };
        let mut calls = JoinSet::new();
        for node in masters {
            if let Some(command) = command(node.name()) {
                calls.spawn(async move {
                    let answer = match node.call(Sent::One(&command), Terms { deadline, bound }).await {
                        Ok(Value::ServerError(error)) => Err(refused(&node, &error)),
                        answer => answer,
                    };
                    if answer.is_ok() {
                        node.look_for_module();
                    }
                    (node.name().to_owned(), answer)
                });
            }
        }
        // A panicked call has no reply; the other replies are kept.
        let mut answers = Vec::with_capacity(calls.len());
        while let Some(answer) = calls.join_next().await {
            answers.extend(answer.ok());
        }
        answers
    }

    /// Counts a failure. [`command`](Self::command) counts its own.
    pub fn count(&self, failure: &Failure) {
        self.failures.count(failure.kind);
    }

    /// Failures so far, by kind.
    #[must_use]
    pub fn errors(&self) -> FailureCounts {
        self.failures.read()
    }

    /// Names of all masters, sorted.
    ///
    /// # Errors
    /// If none is known by the deadline.
    pub async fn master_names(&self, deadline: Instant) -> Result<Vec<String>, Failure> {
        let masters = self.masters(deadline).await?;
        let mut names: Vec<_> = masters.iter().map(|node| node.name().to_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// A connector to any known master. Each master receives messages published on another.
    #[must_use]
    pub fn connector(&self) -> Option<Arc<Connector>> {
        self.topology.start_refresh();
        self.topology.holder(0).map(|node| node.connector())
    }

    /// Whether this is a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.topology.is_cluster()
    }

    /// The slot of a key; 0 if this is not a cluster, so that all keys share one slot.
    #[must_use]
    pub fn slot(&self, key: &[u8]) -> u16 {
        self.topology.slot(key)
    }

    /// The name of the node that holds a slot, for error messages; empty until a node is known.
    #[must_use]
    pub fn holder_name(&self, slot: u16) -> String {
        self.topology.holder(slot).map(|node| node.name().to_owned()).unwrap_or_default()
    }

    /// State of each known master; empty until a cluster or Sentinel has replied.
    ///
    /// A cluster node that was never called is reported as not connected, with a closed breaker.
    #[must_use]
    pub fn state(&self) -> Vec<NodeState> {
        self.topology.masters().iter().map(|node| node.state()).collect()
    }

    /// Sends a job to the node that holds its slot. Follows redirections and retries until it has a reply or
    /// the deadline passes.
    async fn drive(
        &self,
        slot: u16,
        job: &Job<'_>,
        terms: Terms,
        last_failure: &LastFailure,
    ) -> Result<Value, Failure> {
        let Terms { deadline, .. } = terms;
        self.topology.start_refresh();
        let mut hops = 0;
        let mut asked: Option<Arc<Node>> = None;
        // The last error that asked for a retry: reported if time runs out.
        let mut retry_reason: Option<Failure> = None;
        loop {
            let (node, asking) = match asked.take() {
                Some(node) => (node, Asking::Yes),
                None => (self.holder(slot, deadline).await?, Asking::No),
            };
            let error = match node.perform(job, asking, terms).await {
                Ok(Value::ServerError(error)) => error,
                Ok(value) => return Ok(value),
                Err(failure) => {
                    if failure.kind != FailureKind::Overloaded {
                        self.topology.refresh_soon();
                    }
                    hops += 1;
                    if self.may_be_elsewhere(slot, &node, &failure) && hops <= MAX_REDIRECTIONS {
                        continue;
                    }
                    return Err(with_reason(failure, retry_reason, &node));
                }
            };
            let failure = refused(&node, &error);
            let is_redirected = match ErrorReply::of(&error) {
                ErrorReply::Moved { slot, to } => {
                    node.counts.moved.fetch_add(1, Ordering::Relaxed);
                    let is_known = self.topology.moved(slot, &to, &node);
                    self.topology.refresh_soon();
                    is_known
                }
                ErrorReply::Ask { to } => {
                    node.counts.ask.fetch_add(1, Ordering::Relaxed);
                    asked = self.topology.named(&to, &node);
                    asked.is_some()
                }
                ErrorReply::Retry => {
                    self.topology.refresh_soon();
                    last_failure.set(Some(failure.clone()));
                    if !pause(deadline).await {
                        node.exhausted(&failure.detail);
                        return Err(failure);
                    }
                    retry_reason = Some(failure);
                    continue;
                }
                ErrorReply::NoScript | ErrorReply::Fail(_) => false,
            };
            hops += 1;
            if !is_redirected || hops > MAX_REDIRECTIONS {
                return Err(failure);
            }
        }
    }

    /// Whether to repeat a call that failed on this node: nothing was sent, and the slot has moved
    /// meanwhile.
    fn may_be_elsewhere(&self, slot: u16, node: &Arc<Node>, failure: &Failure) -> bool {
        failure.executed == Executed::No
            && matches!(failure.kind, FailureKind::Connection | FailureKind::Tls | FailureKind::BreakerOpen)
            && self.topology.holder(slot).is_some_and(|holder| !Arc::ptr_eq(&holder, node))
    }

    /// The node that holds a slot. Waits until one is known.
    async fn holder(&self, slot: u16, deadline: Instant) -> Result<Arc<Node>, Failure> {
        loop {
            if let Some(node) = self.topology.holder(slot) {
                return Ok(node);
            }
            self.topology.refresh_soon();
            let (node, what, why) = self.topology.missing(slot);
            // The last lookup found nothing. Waiting for the next one would delay every call.
            let (kind, detail) = match why {
                Some(why) => (FailureKind::Connection, format!("{what}: {why}")),
                None if pause(deadline).await => continue,
                None => (FailureKind::Timeout, format!("{what}: not found within the deadline")),
            };
            return Err(Failure { executed: Executed::No, kind, node: node.to_owned(), detail });
        }
    }

    /// Every master. Waits until one is known.
    async fn masters(&self, deadline: Instant) -> Result<Vec<Arc<Node>>, Failure> {
        self.topology.start_refresh();
        let first = self.holder(0, deadline).await;
        let masters = self.topology.masters();
        if masters.is_empty() { first.map(|node| vec![node]) } else { Ok(masters) }
    }
}

/// The failure to report if an earlier attempt got a reason to retry.
fn with_reason(failure: Failure, retry_reason: Option<Failure>, node: &Node) -> Failure {
    match retry_reason {
        Some(reason) if failure.executed == Executed::No => {
            node.exhausted(&reason.detail);
            reason
        }
        // The reason says more than the last timeout.
        Some(reason) if failure.kind == FailureKind::Timeout => {
            Failure { executed: failure.executed, ..reason }
        }
        _ => failure,
    }
}

/// Converts an error reply to a failure.
fn refused(node: &Node, error: &redis::ServerError) -> Failure {
    let (executed, hint) = match ErrorReply::of(error) {
        ErrorReply::Moved { .. } => {
            (Executed::No, "; if this is a cluster, use a url that begins with `redis+cluster`")
        }
        ErrorReply::Fail(executed) => (executed, ""),
        ErrorReply::Ask { .. } | ErrorReply::NoScript | ErrorReply::Retry => (Executed::No, ""),
    };
    node.failure(
        executed,
        FailureKind::of(error, node.script_error()),
        &format!("{}{hint}", error_reply::reply_text(error)),
    )
}

/// Time that must remain for a retry. With less, the caller would get a timeout instead of the server's
/// error.
const LAST_CALL: Duration = Duration::from_millis(5);

/// A random duration from `least` to `most`, so that callers do not act in step.
fn between(least: Duration, most: Duration) -> Duration {
    let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(us(least)..=us(most).max(us(least))))
}

/// Pauses before a retry. Returns whether enough time is left for it.
async fn pause(deadline: Instant) -> bool {
    let (shortest, longest) = PAUSE;
    let pause = between(shortest, longest);
    if Instant::now() + pause + LAST_CALL >= deadline {
        return false;
    }
    sleep(pause).await;
    // On a busy machine the pause took longer: report the last error rather than a timeout.
    Instant::now() + LAST_CALL < deadline
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service must be able to start before its Redis, and outside a runtime.
    #[test]
    fn a_client_is_made_without_a_server_or_a_runtime() {
        for url in ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"] {
            let client = Client::new(&Options::from_url(url).unwrap()).unwrap();
            assert!(client.state().iter().all(|node| !node.connected));
        }
    }

    /// Only a cluster spreads keys over slots; elsewhere one call carries all keys.
    #[test]
    fn keys_share_one_slot_except_in_a_cluster() {
        let slot = |url: &str| Client::new(&Options::from_url(url).unwrap()).unwrap().slot(b"123456789");
        assert_eq!(slot("redis://h"), 0);
        assert_eq!(slot("redis+sentinel://h/m"), 0);
        assert_eq!(slot("redis+cluster://h"), 12_739);
    }

    /// Without a server, a caller must get an error within its deadline that says nothing was charged.
    #[tokio::test]
    async fn without_a_server_a_call_fails_within_its_deadline_and_was_not_executed() {
        for url in ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"] {
            let client = Client::new(&Options::from_url(url).unwrap()).unwrap();
            let begun = Instant::now();
            let script = Script::new("return 1".to_owned());
            let call = Call { script: &script, keys: &[b"k".to_vec()], args: &[], native: None };
            let deadline = begun + Duration::from_millis(500);
            let answer = client.run(call, ReplyBound::SMALL, deadline, &LastFailure::default()).await;
            let failure = answer.unwrap_err();
            assert_eq!(failure.executed, Executed::No, "{failure}");
            assert_eq!(failure.kind, FailureKind::Connection, "{failure}");
            assert!(failure.to_string().contains("redis at 127.0.0.1:1: cannot connect"), "{failure}");
            assert!(Instant::now().duration_since(begun) < Duration::from_millis(500));
        }
    }
}
