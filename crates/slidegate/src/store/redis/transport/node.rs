//! A node: one server, its connections, its breaker and its counts.
//!
//! A call is sent at most once; whoever calls decides from the failure whether to call again. Nodes share nothing, so
//! one in trouble slows no other.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use super::breaker::{Breaker, BreakerState};
use super::connection::{Connection, ManagedConnection};
use super::connector::{Connector, Serves};
use super::failure::{self, Executed, Failure, FailureKind, Word};
use super::jitter;
use super::options::{Address, ConnectionOptions};
use super::{NodeState, Script};
use crate::error::Error;
use crate::time::instant;

/// The most that is added at random to the time between a breaker's probes.
const PROBE_JITTER_US: u64 = 20_000;

/// One server.
pub(super) struct Node {
    itself: Weak<Node>,
    address: Address,
    name: String,
    connector: Arc<Connector>,
    connections: Box<[ManagedConnection]>,
    /// Which link's turn it is.
    turn: AtomicUsize,
    health: Mutex<Health>,
    /// What the breaker's times are counted from.
    since: Instant,
    /// The least wait without an answer that says something about the connection: half of a decision's deadline.
    silence: Duration,
    /// Whether the server is one that does not know the first line of scripts.
    plain_scripts: AtomicBool,
    pub(super) counts: Counts,
}

/// How well a node has done of late.
#[derive(Debug, Default)]
struct Health {
    breaker: Breaker,
    /// What went wrong last; told to those whom the breaker turns away.
    trouble: String,
}

/// What has happened at a node since it was first called.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections made in place of lost ones.
    pub(super) reconnects: AtomicU64,
    /// Answers that a slot lies elsewhere.
    pub(super) moved: AtomicU64,
    /// Answers that a key lies elsewhere for once.
    pub(super) ask: AtomicU64,
    /// Calls that were not answered within their deadline.
    pub(super) timeouts: AtomicU64,
}

/// What is to be carried out, wherever its key lies.
pub(super) enum Job<'a> {
    /// A script, and the `EVALSHA` that runs it.
    Script(&'a Script, &'a Cmd),
    Command(&'a Cmd),
}

/// Whether a key is asked for where it does not belong yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    Yes,
    No,
}

impl Node {
    /// A node that nobody has called yet: no connection is made here.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub(super) fn new(
        options: &ConnectionOptions,
        address: Address,
        serves: Serves,
    ) -> Result<Arc<Self>, Error> {
        let connector = Arc::new(Connector::new(options, &address, serves)?);
        let connections = match serves {
            Serves::Keys => options.connections,
            Serves::Sentinel => 1,
        };
        Ok(Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            name: address.to_string(),
            address,
            connector,
            connections: (0..connections).map(|_| ManagedConnection::new()).collect(),
            turn: AtomicUsize::new(0),
            health: Mutex::default(),
            since: instant(),
            silence: options.deadline / 2,
            plain_scripts: AtomicBool::new(false),
            counts: Counts::default(),
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn itself(&self) -> Weak<Self> {
        self.itself.clone()
    }

    pub(super) fn connector(&self) -> Arc<Connector> {
        self.connector.clone()
    }

    pub(super) fn connection(&self, number: usize) -> Option<&ManagedConnection> {
        self.connections.get(number)
    }

    /// Whether there is a connection and no reason to doubt it.
    pub(super) fn is_well(&self) -> bool {
        self.connections.iter().any(ManagedConnection::is_up) && self.breaker_state() == BreakerState::Closed
    }

    /// Whether it was called and is not well.
    pub(super) fn is_suspect(&self) -> bool {
        !self.connections.iter().all(ManagedConnection::is_idle) && !self.is_well()
    }

    pub(super) fn state(&self) -> NodeState {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeState {
            node: self.name.clone(),
            connected: self.connections.iter().any(ManagedConnection::is_up),
            breaker: self.breaker_state(),
            reconnects: count(&self.counts.reconnects),
            moved: count(&self.counts.moved),
            ask: count(&self.counts.ask),
            timeouts: count(&self.counts.timeouts),
        }
    }

    /// Carries out a job; a script that the server does not know is loaded on the way.
    ///
    /// An error of the server is a value here.
    pub(super) async fn perform(
        &self,
        job: &Job<'_>,
        asking: Asking,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let (script, command) = match job {
            Job::Command(command) => return self.ask(command, asking, deadline).await,
            Job::Script(script, command) => (script, *command),
        };
        loop {
            let plain = self.plain_scripts.load(Ordering::Relaxed);
            let source = script.source(plain);
            let command =
                if plain { Cow::Owned(with_hash(command, &source.hash)) } else { Cow::Borrowed(command) };
            let value = self.ask(&command, asking, deadline).await?;
            if !is_missing_script(&value) {
                return Ok(value);
            }
            let mut all = Pipeline::with_capacity(3);
            all.cmd("SCRIPT").arg("LOAD").arg(&source.text);
            // Asking holds for one command, so it stands right before.
            if asking == Asking::Yes {
                all.cmd("ASKING");
            }
            all.add_command(command.into_owned());
            let mut values = self.call_all(&all, deadline).await?.into_iter();
            let loaded = values.next().ok_or_else(|| self.malformed())?;
            let answer = self.last(values)?;
            // Loading may fail and the script run all the same, where another has loaded it meanwhile: only when it
            // did not run, why it could not be loaded is the answer.
            if !is_missing_script(&answer) {
                return Ok(answer);
            }
            if plain || !is_uncompiled(&loaded) {
                return Ok(loaded);
            }
            self.plain_scripts.store(true, Ordering::Relaxed);
        }
    }

    /// One command, after an `ASKING` if the key is asked for where it does not belong yet.
    async fn ask(&self, command: &Cmd, asking: Asking, deadline: Instant) -> Result<Value, Failure> {
        match asking {
            Asking::No => self.call(command, deadline).await,
            Asking::Yes => {
                let mut both = Pipeline::with_capacity(2);
                both.cmd("ASKING").add_command(command.clone());
                self.last(self.call_all(&both, deadline).await?.into_iter())
            }
        }
    }

    /// One command, sent at most once.
    pub(super) async fn call(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        self.exchange(deadline, async |mut stream: MultiplexedConnection| {
            stream.send_packed_command(command).await
        })
        .await
    }

    /// Several commands in one go on one connection, nothing between them.
    async fn call_all(&self, commands: &Pipeline, deadline: Instant) -> Result<Vec<Value>, Failure> {
        let value = self
            .exchange(deadline, async |mut stream: MultiplexedConnection| {
                stream.send_packed_commands(commands, 0, commands.len()).await.map(Value::Array)
            })
            .await?;
        match value {
            Value::Array(values) => Ok(values),
            _ => Err(self.malformed()),
        }
    }

    async fn exchange(
        &self,
        deadline: Instant,
        send: impl AsyncFnOnce(MultiplexedConnection) -> Result<Value, RedisError>,
    ) -> Result<Value, Failure> {
        let begun = instant();
        if begun >= deadline {
            return Err(self.failure(Executed::No, FailureKind::Timeout, "the deadline had passed already"));
        }
        self.admit()?;
        let (number, managed) = self.next_connection()?;
        let Ok(_room) = managed.room.try_acquire() else {
            let detail = "too many calls are waiting for it; allow more connections or add nodes";
            return Err(self.failure(Executed::No, FailureKind::Overloaded, detail));
        };
        let connection = match managed.connection(self, number, deadline).await {
            Ok(connection) => connection,
            Err(failure) => {
                if failure.kind == FailureKind::Timeout {
                    self.exhausted(&failure.detail);
                }
                return Err(failure);
            }
        };
        match timeout_at(deadline, send(connection.stream.clone())).await {
            Ok(Ok(value)) => {
                let now_us = self.since_us();
                connection.answered(now_us);
                if !asks_for_patience(&value) {
                    self.with_health(|health| health.breaker.success(now_us));
                }
                Ok(value)
            }
            Ok(Err(error)) => Err(self.broken(managed, number, &connection, &error)),
            Err(_) => {
                let waited = instant().duration_since(begun);
                self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
                let detail = format!("no answer in {} ms", waited.as_millis());
                self.exhausted(&detail);
                if waited >= self.silence && connection.is_silent(self.us(begun)) {
                    managed.lose(self, number, &connection);
                }
                Err(self.failure(Executed::Maybe, FailureKind::Timeout, &detail))
            }
        }
    }

    /// Lets the call pass, unless the breaker is open.
    fn admit(&self) -> Result<(), Failure> {
        let (now_us, jitter_us) = (self.since_us(), jitter::below(PROBE_JITTER_US));
        let trouble = self.with_health(|health| {
            let admitted = health.breaker.admit(now_us, jitter_us);
            (!admitted).then(|| health.trouble.clone())
        });
        match trouble {
            None => Ok(()),
            Some(trouble) => {
                let detail = format!("not called, for it failed too often of late: {trouble}");
                Err(self.failure(Executed::No, FailureKind::BreakerOpen, &detail))
            }
        }
    }

    /// The link whose turn it is, or while that has no connection, another that has one.
    fn next_connection(&self) -> Result<(usize, &ManagedConnection), Failure> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let connections =
            (0..self.connections.len()).map(|step| turn.wrapping_add(step) % self.connections.len());
        let mut connections = connections.filter_map(|number| Some((number, self.connections.get(number)?)));
        let Some((number, managed)) = connections.next() else {
            return Err(self.failure(Executed::No, FailureKind::Connection, "it has no connections"));
        };
        if managed.is_up() {
            return Ok((number, managed));
        }
        managed.connect(self, number);
        Ok(connections.find(|(_, managed)| managed.is_up()).unwrap_or((number, managed)))
    }

    /// The connection did not bring the answer. Losing it is one failure, however many calls were on it.
    fn broken(
        &self,
        managed: &ManagedConnection,
        number: usize,
        connection: &Connection,
        error: &RedisError,
    ) -> Failure {
        let (kind, what) = match error.kind() {
            redis::ErrorKind::Parse => (FailureKind::Malformed, "answered what cannot be read"),
            _ => (FailureKind::ConnectionLost, "the connection was lost before the answer came"),
        };
        let detail = format!("{what}: {}", failure::words_of(error));
        if managed.lose(self, number, connection) {
            self.exhausted(&detail);
        }
        self.failure(Executed::Maybe, kind, &detail)
    }

    /// A call got nothing out of this node within its deadline.
    pub(super) fn exhausted(&self, detail: &str) {
        let (now_us, jitter_us) = (self.since_us(), jitter::below(PROBE_JITTER_US));
        self.with_health(|health| {
            health.breaker.failure(now_us, jitter_us);
            detail.clone_into(&mut health.trouble);
        });
    }

    pub(super) fn failure(&self, executed: Executed, kind: FailureKind, detail: &str) -> Failure {
        Failure { executed, kind, node: self.name.clone(), detail: detail.to_owned() }
    }

    fn malformed(&self) -> Failure {
        self.failure(Executed::Maybe, FailureKind::Malformed, "answered fewer commands than it was sent")
    }

    fn last(&self, mut values: impl DoubleEndedIterator<Item = Value>) -> Result<Value, Failure> {
        values.next_back().ok_or_else(|| self.malformed())
    }

    fn breaker_state(&self) -> BreakerState {
        self.with_health(|health| health.breaker.state())
    }

    fn with_health<T>(&self, f: impl FnOnce(&mut Health) -> T) -> T {
        f(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Microseconds that this node exists.
    pub(super) fn since_us(&self) -> u64 {
        self.us(instant())
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.since).as_micros()).unwrap_or(u64::MAX)
    }
}

/// Answers that say neither that the node is well nor that it is not: only patience running out decides.
fn asks_for_patience(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Word::of(error) == Word::Again)
}

/// The same `EVALSHA` of another script.
fn with_hash(command: &Cmd, hash: &str) -> Cmd {
    let mut other = Cmd::new();
    for (at, part) in command.args_iter().enumerate() {
        match part {
            _ if at == 1 => other.arg(hash),
            redis::Arg::Simple(bytes) => other.arg(bytes),
            _ => &mut other,
        };
    }
    other
}

/// Whether a server has refused a script's text as such.
fn is_uncompiled(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.details().is_some_and(|words| words.contains("compiling script")))
}

fn is_missing_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Word::of(error) == Word::NoScript)
}
