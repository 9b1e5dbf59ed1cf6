//! A node: one server with its connections, circuit breaker and counters.
//!
//! A call is sent at most once; the caller decides from the failure whether to retry. Nodes share no state,
//! so a failing node does not slow down others.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::{Instant, timeout_at};

use crate::breaker::{Breaker, BreakerState};
use crate::connection::{Connection, ManagedConnection, Outage};
use crate::connector::{Connector, Serves};
use crate::error_reply::{self, ErrorReply};
use crate::failure::{Executed, Failure, FailureKind};
use crate::module_probe::{self, ModuleProbe};
use crate::options::{Address, Application, InvalidOptions, Options};
use crate::reply_bound::ReplyBound;
use crate::script::{Call, ScriptText};

/// Maximum random time added between two probes of the circuit breaker.
const PROBE_JITTER_US: u64 = 20_000;

/// Timeout for asking a node about the module. No decision waits for it.
const MODULE_DEADLINE: Duration = Duration::from_secs(1);

/// One server.
pub(crate) struct Node {
    address: Address,
    name: String,
    connector: Arc<Connector>,
    connections: Box<[Arc<ManagedConnection>]>,
    /// Round-robin position in `connections`.
    turn: AtomicUsize,
    health: Mutex<Health>,
    /// Time zero of the breaker.
    since: Instant,
    /// A shorter timeout says nothing about the connection: half of a decision's deadline.
    silence: Duration,
    /// Whether the server lacks support for the `#!lua` script header.
    plain_scripts: AtomicBool,
    module: ModuleProbe,
    application: Application,
    pub(crate) counts: Counts,
}

/// Recent health of a node.
#[derive(Debug, Default)]
struct Health {
    breaker: Breaker,
    /// The last failure; reported to calls that the breaker rejects.
    last_failure: String,
}

/// Counters of a node since the first call.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// `MOVED` redirections.
    pub(crate) moved: AtomicU64,
    /// `ASK` redirections.
    pub(crate) ask: AtomicU64,
    /// Calls that got no reply within their deadline.
    pub(crate) timeouts: AtomicU64,
}

/// State of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// Address: `10.0.0.5:6379`, or a socket path.
    pub node: String,
    /// Whether it is connected.
    pub connected: bool,
    /// State of its circuit breaker.
    pub breaker: BreakerState,
    /// Reconnects since the first call.
    pub reconnects: u64,
    /// `MOVED` redirections replied.
    pub moved: u64,
    /// `ASK` redirections replied.
    pub ask: u64,
    /// Calls that got no reply within their deadline.
    pub timeouts: u64,
    /// Whether it has the first native command of the caller's module; native commands then replace scripts.
    pub has_module: bool,
}

/// A call to execute.
pub(crate) enum Job<'a> {
    Script(&'a Call<'a>),
    Command(&'a Cmd),
}

/// Commands that are sent together.
pub(crate) enum Sent<'c> {
    One(&'c Cmd),
    /// After `ASKING`, whose reply is dropped.
    AfterAsking(&'c Cmd),
    /// Their replies are an array.
    All(&'c Pipeline),
}

/// The deadline of a call and the bound on its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) deadline: Instant,
    pub(crate) bound: ReplyBound,
}

/// Whether to send `ASKING` first: the key's slot is being migrated to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    Yes,
    No,
}

impl Asking {
    fn before(self, command: &Cmd) -> Sent<'_> {
        match self {
            Self::Yes => Sent::AfterAsking(command),
            Self::No => Sent::One(command),
        }
    }
}

impl Node {
    /// Creates a node without connecting to it.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn new(
        options: &Options,
        address: Address,
        serves: Serves,
    ) -> Result<Arc<Self>, InvalidOptions> {
        let connector = Arc::new(Connector::new(options, &address, serves)?);
        let connections = match serves {
            Serves::Keys => options.connections,
            Serves::Sentinel => 1,
        };
        Ok(Arc::new(Self {
            name: address.to_string(),
            address,
            connections: (0..connections).map(|_| ManagedConnection::new(connector.clone())).collect(),
            connector,
            turn: AtomicUsize::new(0),
            health: Mutex::default(),
            since: Instant::now(),
            silence: options.deadline / 2,
            plain_scripts: AtomicBool::new(false),
            module: ModuleProbe::default(),
            application: options.application,
            counts: Counts::default(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The code of errors raised by the caller's scripts.
    pub(crate) fn script_error(&self) -> &'static str {
        self.application.script_error
    }

    pub(crate) fn connector(&self) -> Arc<Connector> {
        self.connector.clone()
    }

    /// Whether it is connected and its breaker is closed.
    pub(crate) fn is_healthy(&self) -> bool {
        self.is_connected() && self.breaker_state() == BreakerState::Closed
    }

    /// Whether it was called and is not healthy.
    pub(crate) fn is_suspect(&self) -> bool {
        !self.connections.iter().all(|one| one.is_idle()) && !self.is_healthy()
    }

    fn is_connected(&self) -> bool {
        self.connections.iter().any(|one| one.is_up())
    }

    pub(crate) fn state(&self) -> NodeState {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeState {
            node: self.name.clone(),
            connected: self.is_connected(),
            breaker: self.breaker_state(),
            reconnects: self.connections.iter().map(|one| count(&one.reconnects)).sum(),
            moved: count(&self.counts.moved),
            ask: count(&self.counts.ask),
            timeouts: count(&self.counts.timeouts),
            has_module: self.module.has(0),
        }
    }

    /// Executes a job, loading the script first if the server does not know it.
    ///
    /// Error replies are returned as values.
    pub(crate) async fn perform(
        self: &Arc<Self>,
        job: &Job<'_>,
        asking: Asking,
        terms: Terms,
    ) -> Result<Value, Failure> {
        let call = match job {
            Job::Command(command) => return self.call(asking.before(command), terms).await,
            Job::Script(call) => call,
        };
        if let Some(native) = &call.native {
            if self.module.has(native.command) {
                let value = self.call(asking.before(&(native.build)()), terms).await?;
                if !module_probe::is_refused(&value) {
                    return Ok(value);
                }
                self.module.is_lost(native.command, self.since_us());
            }
            self.look_for_module();
        }
        loop {
            let plain = self.plain_scripts.load(Ordering::Relaxed);
            let source = call.script.source(plain);
            let command = call.evalsha(source);
            let mut value = self.call(asking.before(&command), terms).await?;
            if is_missing_script(&value) {
                value = self.load(call, source, command, asking, terms).await?;
            }
            if plain || !is_uncompiled(&value) {
                return Ok(value);
            }
            self.plain_scripts.store(true, Ordering::Relaxed);
        }
    }

    /// Loads the script of a call and repeats its command.
    async fn load(
        &self,
        call: &Call<'_>,
        source: &ScriptText,
        command: Cmd,
        asking: Asking,
        terms: Terms,
    ) -> Result<Value, Failure> {
        let mut all = Pipeline::with_capacity(3);
        all.cmd("SCRIPT").arg("LOAD").arg(&source.text);
        // `ASKING` applies to the next command only.
        if asking == Asking::Yes {
            all.cmd("ASKING");
        }
        all.add_command(command);
        let mut values = self.call_all(&all, terms).await?.into_iter();
        let loaded = values.next().ok_or_else(|| self.malformed())?;
        let answer = values.next_back().ok_or_else(|| self.malformed())?;
        // If loading failed but another client loaded the script meanwhile, the call succeeded.
        if !is_missing_script(&answer) {
            return Ok(answer);
        }
        // The script did not run. A user or host may forbid `SCRIPT LOAD` but permit `EVAL`, after which
        // most servers keep the script too.
        if is_uncompiled(&loaded) {
            return Ok(loaded);
        }
        let value = self.call(asking.before(&call.eval(source)), terms).await?;
        Ok(match (is_refused_command(&value), loaded) {
            (false, _) => value,
            (true, refusal @ Value::ServerError(_)) => refusal,
            (true, _) => answer,
        })
    }

    /// Asks in the background whether the node has the module, if due.
    pub(crate) fn look_for_module(self: &Arc<Self>) {
        if self.application.native.is_empty() || !self.module.begins(self.since_us()) {
            return;
        }
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let terms = Terms { deadline: Instant::now() + MODULE_DEADLINE, bound: ReplyBound::SMALL };
            if let Ok(reply) =
                node.call(Sent::One(&module_probe::question(node.application.native)), terms).await
            {
                node.module.answered(&reply);
            }
        });
    }

    /// Sends several commands together on one connection.
    async fn call_all(&self, commands: &Pipeline, terms: Terms) -> Result<Vec<Value>, Failure> {
        match self.call(Sent::All(commands), terms).await? {
            Value::Array(values) => Ok(values),
            _ => Err(self.malformed()),
        }
    }

    /// Sends commands, at most once.
    pub(crate) async fn call(
        &self,
        commands: Sent<'_>,
        Terms { deadline, bound }: Terms,
    ) -> Result<Value, Failure> {
        let begun = Instant::now();
        if begun >= deadline {
            return Err(self.failure(
                Executed::No,
                FailureKind::Timeout,
                "the deadline passed before the call was sent",
            ));
        }
        self.admit()?;
        let managed = self.next_connection();
        let Ok(_room) = managed.room.try_acquire() else {
            let detail = "too many calls in flight; raise `connections` or add nodes";
            return Err(self.failure(Executed::No, FailureKind::Overloaded, detail));
        };
        let connection = match managed.connection(deadline).await {
            Ok(connection) => connection,
            Err(Outage { kind, detail }) => {
                if kind == FailureKind::Timeout {
                    self.exhausted(&detail);
                }
                return Err(self.failure(Executed::No, kind, &detail));
            }
        };
        connection.accepted.accept(bound);
        let mut stream = connection.stream.clone();
        let reply = async {
            match commands {
                Sent::One(command) => stream.send_packed_command(command).await,
                Sent::AfterAsking(command) => {
                    let mut both = Pipeline::with_capacity(2);
                    both.cmd("ASKING").add_command(command.clone());
                    let replies = stream.send_packed_commands(&both, 0, 2).await;
                    replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
                }
                Sent::All(all) => stream.send_packed_commands(all, 0, all.len()).await.map(Value::Array),
            }
        };
        match timeout_at(deadline, reply).await {
            Ok(Ok(value)) => {
                let now = Instant::now();
                connection.answered(now);
                if !asks_for_retry(&value) {
                    self.with_health(|health| health.breaker.success(self.us(now)));
                }
                Ok(value)
            }
            Ok(Err(error)) => Err(self.broken(managed, &connection, &error)),
            Err(_) => Err(self.timed_out(managed, &connection, begun)),
        }
    }

    /// Handles the timeout of a call that was sent at `begun`.
    fn timed_out(
        &self,
        managed: &Arc<ManagedConnection>,
        connection: &Connection,
        begun: Instant,
    ) -> Failure {
        let waited = Instant::now().duration_since(begun);
        self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
        let detail = format!("no reply within {} ms", waited.as_millis());
        self.exhausted(&detail);
        if waited >= self.silence && connection.is_silent(begun) {
            managed.lose(connection);
        }
        self.failure(Executed::Maybe, FailureKind::Timeout, &detail)
    }

    /// Rejects the call if the breaker is open.
    fn admit(&self) -> Result<(), Failure> {
        let (now_us, jitter_us) = (self.since_us(), fastrand::u64(..PROBE_JITTER_US));
        let last_failure = self.with_health(|health| {
            let admitted = health.breaker.admit(now_us, jitter_us);
            (!admitted).then(|| health.last_failure.clone())
        });
        match last_failure {
            None => Ok(()),
            Some(last_failure) => {
                let detail =
                    format!("circuit breaker open after repeated failures; the last one: {last_failure}");
                Err(self.failure(Executed::No, FailureKind::BreakerOpen, &detail))
            }
        }
    }

    /// The next connection in turn, or a connected one if that is not.
    fn next_connection(&self) -> &Arc<ManagedConnection> {
        let next = self.turn.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let managed = &self.connections[next];
        if managed.is_up() {
            return managed;
        }
        managed.connect();
        let (before, after) = self.connections.split_at(next);
        after.iter().chain(before).find(|other| other.is_up()).unwrap_or(managed)
    }

    /// Handles a connection error. A lost connection counts as one failure, however many calls were on it.
    fn broken(
        &self,
        managed: &Arc<ManagedConnection>,
        connection: &Connection,
        error: &RedisError,
    ) -> Failure {
        let (kind, detail) = match connection.accepted.refused() {
            Some(refused) => (FailureKind::Malformed, refused.to_owned()),
            None => {
                let text = error_reply::error_text(error);
                match error.kind() {
                    redis::ErrorKind::Parse => (
                        FailureKind::Malformed,
                        format!("malformed reply: {text}; is a Redis server at this address?"),
                    ),
                    _ => (
                        FailureKind::ConnectionLost,
                        format!("the connection was lost before the reply arrived: {text}"),
                    ),
                }
            }
        };
        if managed.lose(connection) {
            self.exhausted(&detail);
        }
        self.failure(Executed::Maybe, kind, &detail)
    }

    /// Records that a call failed within its deadline.
    pub(crate) fn exhausted(&self, detail: &str) {
        let (now_us, jitter_us) = (self.since_us(), fastrand::u64(..PROBE_JITTER_US));
        self.with_health(|health| {
            health.breaker.failure(now_us, jitter_us);
            detail.clone_into(&mut health.last_failure);
        });
    }

    pub(crate) fn failure(&self, executed: Executed, kind: FailureKind, detail: &str) -> Failure {
        Failure { executed, kind, node: self.name.clone(), detail: detail.to_owned() }
    }

    fn malformed(&self) -> Failure {
        self.failure(Executed::Maybe, FailureKind::Malformed, "fewer replies than commands")
    }

    fn breaker_state(&self) -> BreakerState {
        self.with_health(|health| health.breaker.state())
    }

    fn with_health<T>(&self, f: impl FnOnce(&mut Health) -> T) -> T {
        f(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Microseconds since this node was created.
    fn since_us(&self) -> u64 {
        self.us(Instant::now())
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.since).as_micros()).unwrap_or(u64::MAX)
    }
}

/// Errors that ask for a retry say nothing about the node's health until the deadline passes.
fn asks_for_retry(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if ErrorReply::of(error) == ErrorReply::Retry)
}

/// Whether a server rejected a script's text.
fn is_uncompiled(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.details().is_some_and(|words| words.contains("compiling script")))
}

/// Whether the server forbids or does not know a command.
fn is_refused_command(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    let is_unknown =
        |words: &str| words.starts_with("unknown command") || words.contains("unknown subcommand");
    // The script ran but may not call a command.
    let of_script = error.details().is_some_and(|words| words.contains("script"));
    error.code() == "NOPERM" && !of_script || error.details().is_some_and(is_unknown)
}

fn is_missing_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if ErrorReply::of(error) == ErrorReply::NoScript)
}
