//! The Redis servers that targets keep their state in.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::Failed;
use crate::target::State;

const STARTED_WITHIN: Duration = Duration::from_secs(20);
/// From Debian's package `libfaketime`: it steps the clock of a server.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// Loaded after it, so that memory comes from there: the allocator of Redis asks for the time while it starts, and
/// libfaketime for memory.
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const PROGRAM: &str = "redis-server";

/// One server, or the three of a cluster.
pub(crate) struct Servers {
    ports: Vec<u16>,
    children: Mutex<Vec<Child>>,
    is_cluster: bool,
    has_clock: bool,
    folder: tempfile::TempDir,
}

impl Servers {
    /// `None`: the state is in the memory of the target. With `has_clock`, their clock can be stepped, which makes them
    /// slower.
    pub(crate) async fn start(state: State, has_clock: bool) -> Result<Option<Self>, Failed> {
        let (count, is_cluster) = match state {
            State::Memory => return Ok(None),
            State::Redis => (1, false),
            State::Cluster => (3, true),
        };
        let free =
            (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports = free
            .iter()
            .map(|socket| Ok(socket.local_addr()?.port()))
            .collect::<Result<_, std::io::Error>>()?;
        drop(free);
        let servers =
            Self { ports, children: Mutex::default(), is_cluster, has_clock, folder: tempfile::tempdir()? };
        servers.step(0.0)?;
        servers.start_empty().await?;
        Ok(Some(servers))
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.ports[0])
    }

    /// Ends the servers at once, with all that they have.
    pub(crate) async fn kill(&self) {
        for mut child in self.children.lock().await.drain(..) {
            let _ = child.kill().await;
        }
    }

    /// Starts them with nothing.
    pub(crate) async fn start_empty(&self) -> Result<(), Failed> {
        timeout(STARTED_WITHIN, self.try_start_empty())
            .await
            .unwrap_or_else(|_| Err(format!("{PROGRAM} was not ready after {STARTED_WITHIN:?}").into()))
    }

    async fn try_start_empty(&self) -> Result<(), Failed> {
        for port in &self.ports {
            let folder = self.folder.path().join(port.to_string());
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir(&folder)?;
            let mut command = Command::new(PROGRAM);
            command.args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ]);
            command.arg("--dir").arg(&folder);
            if self.is_cluster {
                command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
            }
            if self.has_clock {
                command
                    .env("LD_PRELOAD", format!("{FAKETIME}:{LIBC}"))
                    .env("FAKETIME_TIMESTAMP_FILE", self.clock());
                command.envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).process_group(0);
            let child = command.spawn().map_err(|error| format!("cannot start {PROGRAM}: {error}"))?;
            self.children.lock().await.push(child);
        }
        for port in &self.ports {
            while !self.says(*port, "PING", &[], "PONG").await {
                sleep(Duration::from_millis(10)).await;
            }
        }
        if self.is_cluster {
            let nodes = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
            let created = Command::new("redis-cli")
                .args(["--cluster", "create"])
                .args(nodes)
                .args(["--cluster-replicas", "0", "--cluster-yes"])
                .output()
                .await?;
            if !created.status.success() {
                return Err(String::from_utf8_lossy(&created.stdout).into_owned().into());
            }
            for port in &self.ports {
                while !self.says(*port, "CLUSTER", &["INFO"], "cluster_state:ok").await {
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
        Ok(())
    }

    async fn says(&self, port: u16, command: &str, arguments: &[&str], expected: &str) -> bool {
        let Ok(client) = redis::Client::open(format!("redis://127.0.0.1:{port}")) else { return false };
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
        let reply = redis::cmd(command).arg(arguments).query_async::<String>(&mut connection).await;
        reply.is_ok_and(|reply| reply.contains(expected))
    }

    fn clock(&self) -> std::path::PathBuf {
        self.folder.path().join("clock")
    }

    /// Sets the wall clock of the servers to the time of the machine plus `seconds`.
    pub(crate) fn step(&self, seconds: f64) -> Result<(), Failed> {
        // A reader sees one text or the other.
        let (new, clock) = (self.folder.path().join("clock.new"), self.clock());
        std::fs::write(&new, format!("{seconds:+.3}\n"))?;
        Ok(std::fs::rename(new, clock)?)
    }
}

/// Whether clocks of servers can be stepped on this machine.
pub(crate) fn can_step() -> bool {
    Path::new(FAKETIME).exists() && Path::new(LIBC).exists()
}
