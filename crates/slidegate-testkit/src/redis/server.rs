//! One server: a process with its own port, socket and directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::acl;
use super::module::{EVERYWHERE, module};
use super::resp::{Connection, Reply};
use crate::clock::ClockOffset;
use crate::poll::until_true;
use crate::ports;
use crate::process::Process;
use crate::temp_dir::TempDir;

/// Timeout of a healthy server's reply on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum ports tried, if others take them before the server binds.
const MOST_PORTS: usize = 10;

/// Arguments of every server: no persistence, immediate sync of new replicas.
const ALWAYS: [&str; 12] = [
    "--bind",
    "127.0.0.1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--daemonize",
    "no",
    "--repl-diskless-sync-delay",
    "0",
    "--loglevel",
    "notice",
];

/// Arguments for Redis 7 and later that allow DEBUG in tests; older servers always allow it.
const SINCE_7: [&str; 2] = ["--enable-debug-command", "yes"];

/// The server program that tests run.
fn program() -> OsString {
    std::env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server"))
}

/// Whether test servers are older than Redis 7.
pub(super) fn is_old() -> bool {
    static OLD: OnceLock<bool> = OnceLock::new();
    *OLD.get_or_init(|| {
        let said = Command::new(program()).arg("--version").output();
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(" v=6."))
    })
}

/// A running server, or a killed one that may be restarted. Ends with the test.
pub struct RedisServer {
    process: Mutex<Option<Process>>,
    builder: Builder,
    port: u16,
    clock: Option<ClockOffset>,
    // Last, so it is removed after the process has ended.
    dir: TempDir,
}

/// Calls of one command since the server started, or since `CONFIG RESETSTAT`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Number of calls, including those from scripts.
    pub calls: u64,
    /// Total duration, in microseconds.
    pub usec: u64,
}

impl RedisServer {
    /// Starts a plain, empty server.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Configures a server with arguments.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`, with a user that may do everything.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The URL with the user of [`acl::MINIMUM`].
    pub fn url_as_user(&self) -> String {
        format!("redis://{}{}", acl::userinfo(), self.address())
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Runs a command as a user that may do everything, on a new connection. Lists have one item
    /// per line.
    ///
    /// Panics if the server rejects it or does not reply: test setup must work.
    pub fn admin(&self, command: &[&str]) -> String {
        match self.ask(command) {
            Ok(Reply::Error(error)) => panic!("{} refused {command:?}: {error}", self.address()),
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("{} did not answer {command:?}: {error}", self.address()),
        }
    }

    /// Runs a command on a new connection and returns its reply, even an error.
    pub fn ask(&self, command: &[&str]) -> io::Result<Reply> {
        self.ask_within(PATIENCE, command)
    }

    /// [`ask`](Self::ask) for servers that may not reply.
    pub fn ask_within(&self, patience: Duration, command: &[&str]) -> io::Result<Reply> {
        Connection::unix(&self.socket(), patience)?.call(command)
    }

    /// A persistent TCP connection.
    pub fn connect(&self) -> Connection {
        Connection::tcp(self.port, PATIENCE).unwrap()
    }

    /// Freezes the process: it accepts connections but replies to nothing until it resumes.
    pub fn pause(&self) {
        self.running().as_ref().expect("only a running server can be paused").pause();
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.running().as_ref().expect("only a running server can be resumed").resume();
    }

    /// Whether it runs and is not frozen.
    pub fn is_awake(&self) -> bool {
        self.running().as_ref().is_some_and(Process::is_awake)
    }

    /// Kills it at once, like a crash.
    pub fn kill(&self) {
        *self.running() = None;
    }

    /// Restarts it empty, on the same port with the same arguments. Kills it first if necessary.
    pub fn restart(&self) {
        self.kill();
        if let Err(log) = self.launch() {
            panic!("{} did not start again: {log}", self.address());
        }
    }

    /// Waits until this many replicas acknowledge writes, as `WAIT` does on the connection that
    /// wrote.
    ///
    /// A replica reported as online is not enough: it is sent nothing before its first message, up
    /// to a second later.
    pub fn until_followed_by(&self, replicas: usize) {
        until_true("replicas confirm what they are sent", || self.is_followed_by(replicas));
    }

    /// Whether this many replicas acknowledge writes within a tenth of a second. False for a
    /// replica.
    pub fn is_followed_by(&self, replicas: usize) -> bool {
        let mut conn = self.connect();
        // Replicated, but changes no data.
        let _ = conn.call(&["FUNCTION", "FLUSH"]);
        let reply = conn.call(&["WAIT", &replicas.to_string(), "100"]);
        matches!(reply, Ok(Reply::Integer(confirmed)) if confirmed >= i64::try_from(replicas).unwrap())
    }

    /// Statistics of a command: `evalsha`, `script|load`. Zeros if it never ran.
    pub fn commandstats(&self, name: &str) -> CommandStats {
        let info = self.admin(&["INFO", "commandstats"]);
        let head = format!("cmdstat_{name}:");
        let Some(line) = info.lines().find_map(|line| line.strip_prefix(&head)) else {
            return CommandStats::default();
        };
        let field = |name: &str| {
            let value = line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            value.unwrap().parse().unwrap()
        };
        CommandStats { calls: field("calls"), usec: field("usec") }
    }

    /// Bytes of a key with its value, as reported by the server. `None` if the key does not exist.
    pub fn memory_usage(&self, key: &str) -> Option<u64> {
        self.admin(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse().ok()
    }

    /// The clock of a server built [`with_clock`](Builder::with_clock).
    pub fn clock(&self) -> &ClockOffset {
        self.clock.as_ref().expect("only a server built with_clock has a clock to move")
    }

    fn running(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program and waits until it replies. The error is its log.
    fn launch(&self) -> Result<(), String> {
        let dir = self.dir.path();
        // A killed server leaves it behind.
        let _ = fs::remove_file(self.socket());
        let log = File::create(self.log()).unwrap();
        let mut command = Command::new(program());
        command.current_dir(dir).stdout(log.try_clone().unwrap()).stderr(log);
        if let Some(clock) = &self.clock {
            clock.put_on(&mut command);
        }
        if let Some(config) = &self.builder.sentinel {
            let path = dir.join("sentinel.conf");
            fs::write(&path, config).unwrap();
            command.arg(path).arg("--sentinel");
        } else {
            if !is_old() {
                command.args(SINCE_7);
            }
            command.args(ALWAYS).arg("--user").args(acl::directive(self.builder.loads_module()));
        }
        command.args(["--port", &self.port.to_string(), "--unixsocket"]).arg(self.socket());
        command.args(&self.builder.args);
        if self.builder.sentinel.is_none() && self.builder.loads_module() {
            command.arg("--loadmodule").arg(module());
        }

        let mut running = self.running();
        let process = running.insert(Process::start(command, dir, "redis-server"));
        let mut ended = false;
        // Over the socket, which only this process can have created: the port may belong to
        // another.
        until_true("a server that was started answers PING", || {
            ended = process.has_ended();
            let pong = || Reply::Bytes(b"PONG".to_vec());
            ended || self.ask(&["PING"]).is_ok_and(|reply| reply == pong())
        });
        if !ended {
            if self.clock.is_some() && self.builder.sentinel.is_none() {
                // Keys expire when they are touched, not at some time while a test moves the clock forth and back.
                self.admin(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
            }
            return Ok(());
        }
        *running = None;
        Err(fs::read_to_string(self.log()).unwrap())
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// `127.0.0.1:P1,127.0.0.1:P2,...`, as in a URL with several servers.
pub(super) fn addresses(servers: &[RedisServer]) -> String {
    servers.iter().map(RedisServer::address).collect::<Vec<_>>().join(",")
}

/// The configuration of a server to start.
#[derive(Default)]
pub struct Builder {
    args: Vec<String>,
    port: Option<u16>,
    sentinel: Option<String>,
    clock: bool,
    module: Option<bool>,
}

impl Builder {
    /// Loads the native module or not, even if all test servers load it.
    pub fn module(mut self, loads: bool) -> Self {
        self.module = Some(loads);
        self
    }

    fn loads_module(&self) -> bool {
        self.module.unwrap_or_else(|| std::env::var_os(EVERYWHERE).is_some())
    }

    /// Adds arguments after the default ones, which they override: `["--maxmemory", "1mb"]`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Gives it a wall clock that the test can move.
    pub fn with_clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Uses exactly this port, which must be free.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts a Sentinel with this config file instead of a server.
    pub fn sentinel(mut self, config: String) -> Self {
        self.sentinel = Some(config);
        self
    }

    /// Starts the server and waits until it replies.
    pub fn start(self) -> RedisServer {
        let dir = TempDir::new("redis");
        let clock = self.clock.then(|| ClockOffset::create(dir.path()));
        let port = self.port.unwrap_or_else(ports::free);
        let mut server = RedisServer { process: Mutex::new(None), builder: self, port, clock, dir };
        for _ in 0..MOST_PORTS {
            match server.launch() {
                Ok(()) => return server,
                Err(log) if server.builder.port.is_none() && log.contains("Address already in use") => {
                    server.port = ports::free();
                }
                Err(log) => panic!("a server did not start: {log}"),
            }
        }
        panic!("others took each of {MOST_PORTS} free ports before a server could");
    }
}
