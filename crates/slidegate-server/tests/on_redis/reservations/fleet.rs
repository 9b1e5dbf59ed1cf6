//! Three instances on one store, which are killed and started again.

use std::ops::RangeInclusive;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::Value;
use slidegate_testkit::http::try_send;
use slidegate_testkit::redis::{Connection, RedisServer, Reply};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, ports};

use super::{DEADLINE, IN_FLIGHT, LIMIT, WINDOW, millis};

pub(crate) const INSTANCES: usize = 3;

/// The instances on the store of a test.
pub(crate) struct Fleet<'s> {
    /// Where the time is read.
    clock: &'s RedisServer,
    ports: [[u16; 2]; INSTANCES],
    instances: [Mutex<Option<Server>>; INSTANCES],
    config: String,
    /// Which instance was killed, and between which moments, by Redis's clock.
    pub(crate) kills: Mutex<Vec<(usize, RangeInclusive<u64>)>>,
    /// Reservations that a client settled in time.
    pub(crate) settled: AtomicU64,
    _folder: TempDir,
}

/// Reads Redis's clock.
pub(crate) struct Clock(Connection);

impl Clock {
    /// Microseconds since the epoch.
    pub(crate) fn now(&mut self) -> u64 {
        let Ok(Reply::List(parts)) = self.0.call(&["TIME"]) else { panic!("Redis did not return its time") };
        let numbers: Vec<u64> = parts.iter().map(|part| part.to_string().parse().unwrap()).collect();
        numbers[0] * 1_000_000 + numbers[1]
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// Nobody listens: nothing was executed.
    NotSent,
    /// It may have been executed.
    Lost,
    /// Redis took too long. The instance sends the change again until the reservation's time ends,
    /// unless it is killed.
    Queued,
}

impl<'s> Fleet<'s> {
    pub(crate) fn start(url: &str, clock: &'s RedisServer) -> Self {
        let folder = TempDir::new("reservations");
        let config = format!(
            "store: {{redis: '{url}', deadline: {}ms}}\npolicies:\n\
             - {{name: tokens, scope: [user], quota: {LIMIT}/{}ms, on_store_error: deny}}\n\
             - {{name: streams, scope: [user], in_flight: {IN_FLIGHT}, lease: 1s, on_store_error: deny}}\n\
             - {{name: ledger, scope: [user], quota: 1000000000/10m, on_store_error: deny}}\n",
            millis(DEADLINE),
            millis(WINDOW),
        );
        let config = folder.file("slidegate.yaml", config);
        let ports = [(); INSTANCES].map(|()| [ports::free(), ports::free()]);
        let instances = [0, 1, 2].map(|at: usize| Mutex::new(Some(instance(&config, ports[at]))));
        Self {
            clock,
            ports,
            instances,
            config,
            kills: Mutex::default(),
            settled: AtomicU64::new(0),
            _folder: folder,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock(self.clock.connect())
    }

    /// Ends an instance by SIGKILL; it starts again after this time.
    pub(crate) fn kill(&self, at: usize, clock: &mut Clock, pause: Duration) {
        let mut running = self.instances[at].lock().unwrap();
        let server = running.as_mut().unwrap();
        let before = clock.now();
        server.signal("KILL");
        server.wait();
        *running = None;
        self.kills.lock().unwrap().push((at, before..=clock.now()));
        std::thread::sleep(pause);
        *running = Some(instance(&self.config, self.ports[at]));
    }

    /// A request over HTTP: the status and the body.
    pub(crate) fn post(&self, at: usize, path: &str, body: &Value) -> Result<(u16, Value), NoReply> {
        self.send(at, "POST", path, &body.to_string())
    }

    pub(crate) fn get(&self, at: usize, path: &str) -> Value {
        let (status, body) = self.send(at, "GET", path, "").unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn send(&self, at: usize, method: &str, path: &str, body: &str) -> Result<(u16, Value), NoReply> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[at][0]);
        let reply = try_send(method, &url, "Content-Type: application/json\r\n", body);
        let reply = reply.map_err(|error| {
            if error.to_string().contains("Connection refused") { NoReply::NotSent } else { NoReply::Lost }
        })?;
        Ok((reply.status, serde_json::from_str(&reply.body).map_err(|_| NoReply::Lost)?))
    }

    /// A command over RESP on a new connection: the texts of its reply.
    pub(crate) fn command(&self, at: usize, command: &[&str]) -> Result<Vec<String>, NoReply> {
        let connected = Connection::tcp(self.ports[at][1], Duration::from_secs(60));
        let mut connection = connected.map_err(|_| NoReply::NotSent)?;
        match connection.call(command).map_err(|_| NoReply::Lost)? {
            Reply::List(fields) => Ok(fields.iter().map(Reply::to_string).collect()),
            // The store did not reply in time.
            _ => Err(NoReply::Lost),
        }
    }
}

fn instance(config: &str, [http, resp]: [u16; 2]) -> Server {
    let address = |port: u16| format!("127.0.0.1:{port}");
    let args = ["--config", config, "--resp", &address(resp)];
    Server::start_at(&address(http), &[], &args, Stdio::null())
}
