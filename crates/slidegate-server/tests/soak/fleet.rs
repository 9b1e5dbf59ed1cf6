//! Two instances on one Redis that keeps what it has acknowledged, whatever happens to it.

use std::fs::{self, File};
use std::process::Stdio;
use std::sync::{Mutex, RwLock};

use serde_json::json;
use slidegate_testkit::http::{Response, try_send};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, ports, until_true};

use crate::{LIMIT, WINDOW};

/// What a process uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Bytes of resident memory.
    pub(crate) resident: u64,
    /// Open file descriptors.
    pub(crate) descriptors: usize,
}

/// The ports of an instance on loopback, which it keeps when it is restarted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) http: u16,
    pub(crate) resp: u16,
    pub(crate) grpc: u16,
}

/// The servers. The first instance is never restarted.
pub(crate) struct Fleet {
    pub(crate) redis: RedisServer,
    pub(crate) ports: [Ports; 2],
    /// Each behind a lock of its own, which is held while it is restarted.
    instances: [RwLock<Server>; 2],
    config: String,
    version: Mutex<u64>,
    folder: TempDir,
}

impl Fleet {
    pub(crate) fn start() -> Self {
        let redis = RedisServer::builder().args(["--appendonly", "yes", "--appendfsync", "always"]).start();
        let folder = TempDir::new("soak");
        let config = folder.file("slidegate.yaml", config(&redis, 0));
        let ports = [0, 1].map(|_| Ports { http: ports::free(), resp: ports::free(), grpc: ports::free() });
        let instances = [0, 1].map(|at| RwLock::new(instance(&folder, &config, at, ports[at])));
        Self { redis, ports, instances, config, version: Mutex::new(0), folder }
    }

    /// A request to an instance. An error: it is away, or the connection was cut.
    pub(crate) fn send(&self, at: usize, method: &str, path: &str, body: &str) -> Result<Response, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[at].http);
        try_send(method, &url, "Content-Type: application/json\r\n", body).map_err(|error| error.to_string())
    }

    /// Ends the second instance, by this signal, and starts it again.
    pub(crate) fn restart(&self, signal: &str) {
        let mut server = self.instances[1].write().unwrap();
        server.signal(signal);
        server.wait();
        *server = instance(&self.folder, &self.config, 1, self.ports[1]);
    }

    /// Changes the config file and makes both instances read it, also while it is half-written.
    pub(crate) fn reload(&self) {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        let whole = config(&self.redis, *version);
        for text in ["policies: [{", &whole[..whole.len() / 2], &whole] {
            fs::write(&self.config, text).unwrap();
            self.instances.iter().for_each(|instance| instance.read().unwrap().signal("HUP"));
        }
    }

    /// Waits until everything is well after the last fault.
    pub(crate) fn heal(&self) {
        for at in 0..self.ports.len() {
            let body = json!({ "attributes": { "user": "healed" } }).to_string();
            until_true("the store decides again", || {
                let reply = self.send(at, "POST", "/v1/check", &body);
                reply.is_ok_and(|reply| reply.status == 200 && reply.json()["source"] == "store")
            });
        }
    }

    /// What the first instance uses.
    pub(crate) fn usage(&self) -> Usage {
        let pid = self.instances[0].read().unwrap().pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        Usage { resident, descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() }
    }

    /// Waits until the first instance has no more descriptors open than `before`, when there was a
    /// load. Returns what it uses.
    pub(crate) fn until_quiet(&self, before: Usage) -> Usage {
        until_true("descriptors are closed", || self.usage().descriptors <= before.descriptors);
        self.usage()
    }
}

fn config(redis: &RedisServer, version: u64) -> String {
    format!(
        "store: {{redis: '{}', deadline: 500ms}}\n\
         policies:\n\
         - {{name: per-user, scope: [user], quota: {LIMIT}/{}ms, on_store_error: deny}}\n\
         - {{name: fixed, scope: [fixed], quota: 1000000/1h, on_store_error: local}}\n\
         - {{name: other-{}, when: {{path: /other}}, quota: {}/1h}}\n",
        redis.url(),
        WINDOW.as_millis(),
        version % 3,
        100 + version,
    )
}

fn instance(folder: &TempDir, config: &str, at: usize, ports: Ports) -> Server {
    let address = |port: u16| format!("127.0.0.1:{port}");
    let (resp, grpc) = (address(ports.resp), address(ports.grpc));
    let args = ["--config", config, "--resp", &resp, "--grpc", &grpc];
    let log = File::create(folder.path().join(format!("{at}.log"))).unwrap();
    Server::start_at(&address(ports.http), &[], &args, Stdio::from(log))
}
