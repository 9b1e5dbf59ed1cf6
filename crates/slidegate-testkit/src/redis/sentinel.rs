//! A master, its replica, and three Sentinels that fail over between them.
//!
//! The Sentinels are configured with each other and the replica, because discovery takes seconds.

use std::thread;
use std::time::Duration;

use super::acl;
use super::resp::Reply;
use super::server::{RedisServer, addresses};
use crate::poll::{until, until_true};
use crate::ports;

/// The master's name for the Sentinels.
const NAME: &str = "limits";

/// Timeout for a running Sentinel's reply. A slower one has no vote.
const PATIENCE: Duration = Duration::from_secs(2);

/// Running servers and Sentinels. All end when dropped.
pub struct RedisSentinels {
    servers: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
}

impl RedisSentinels {
    /// Starts all of them and waits until the Sentinels would agree on a failover.
    pub fn start() -> Self {
        let master = RedisServer::start();
        let port = master.port().to_string();
        let replica = RedisServer::builder().args(["--replicaof", "127.0.0.1", &port]).start();
        master.until_followed_by(1);
        let ports = [ports::free(), ports::free(), ports::free()];
        let sentinels = thread::scope(|scope| {
            let starting = ports.map(|own| {
                let config = configuration(own, ports, master.port(), replica.port());
                scope.spawn(move || RedisServer::builder().port(own).sentinel(config).start())
            });
            starting.into_iter().map(|sentinel| sentinel.join().unwrap()).collect()
        });
        let all = Self { servers: [master, replica], sentinels };
        until_true("each sentinel sees the master, its replica and a quorum", || {
            all.sentinels.iter().all(Self::is_ready)
        });
        all
    }

    /// Never fails over by itself from now on: a busy machine is no reason for it.
    pub fn without_failover(self) -> Self {
        for sentinel in &self.sentinels {
            sentinel.admin(&["SENTINEL", "SET", NAME, "down-after-milliseconds", "3600000"]);
        }
        self
    }

    /// `redis+sentinel://127.0.0.1:P1,127.0.0.1:P2,127.0.0.1:P3/limits`.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", addresses(&self.sentinels))
    }

    /// The URL with the user of [`acl::MINIMUM`], known to the servers but not to the Sentinels.
    pub fn url_as_user(&self) -> String {
        format!("redis+sentinel://{}{}/{NAME}", acl::userinfo(), addresses(&self.sentinels))
    }

    /// The master and its replica, in either order.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The three Sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The master according to most Sentinels. Kill or pause it, then call
    /// [`until_moved`](Self::until_moved).
    pub fn master(&self) -> &RedisServer {
        until("most sentinels agree on the master", || {
            self.servers.iter().find(|server| self.votes(server) * 2 > self.sentinels.len())
        })
    }

    /// Waits until all Sentinels report a master other than `old`, and that one accepts writes.
    pub fn until_moved(&self, old: &RedisServer) -> &RedisServer {
        until("all sentinels agree on a new master that is one", || {
            let mut others = self.servers.iter().filter(|server| server.port() != old.port());
            others.find(|server| {
                let role = || server.ask_within(PATIENCE, &["ROLE"]).map(|role| role.to_string());
                self.votes(server) == self.sentinels.len()
                    && role().is_ok_and(|role| role.starts_with("master"))
            })
        })
    }

    fn votes(&self, server: &RedisServer) -> usize {
        let address = format!("127.0.0.1\n{}", server.port());
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
        let says_so = |sentinel: &&RedisServer| {
            let reply = || sentinel.ask_within(PATIENCE, &question).map(|reply| reply.to_string());
            sentinel.is_awake() && reply().is_ok_and(|reply| reply == address)
        };
        self.sentinels.iter().filter(says_so).count()
    }

    fn is_ready(sentinel: &RedisServer) -> bool {
        let Ok(Reply::Bytes(quorum)) = sentinel.ask(&["SENTINEL", "CKQUORUM", NAME]) else { return false };
        let replicas = sentinel.admin(&["SENTINEL", "REPLICAS", NAME]);
        let replicas: Vec<_> = replicas.lines().collect();
        let has = |field: &str, value: &str| replicas.windows(2).any(|pair| pair == [field, value]);
        quorum.starts_with(b"OK 3 ") && has("flags", "slave") && has("master-link-status", "ok")
    }
}

/// The config file of the Sentinel at `own`, which knows the others at `ports`.
fn configuration(own: u16, ports: [u16; 3], master: u16, replica: u16) -> String {
    // Forty hexadecimal digits; not random, because the id is only known here.
    let id = |port: u16| format!("{port:040x}");
    let mut lines = vec![
        "bind 127.0.0.1".to_owned(),
        format!("sentinel myid {}", id(own)),
        format!("sentinel monitor {NAME} 127.0.0.1 {master} 2"),
        format!("sentinel down-after-milliseconds {NAME} 1000"),
        format!("sentinel failover-timeout {NAME} 3000"),
        format!("sentinel known-replica {NAME} 127.0.0.1 {replica}"),
    ];
    for other in ports.into_iter().filter(|port| *port != own) {
        lines.push(format!("sentinel known-sentinel {NAME} 127.0.0.1 {other} {}", id(other)));
    }
    lines.join("\n") + "\n"
}
