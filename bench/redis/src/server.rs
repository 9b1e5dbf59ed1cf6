//! A private Redis on a Unix socket, and its statistics.

use std::io::ErrorKind;
use std::ops::Sub;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};

/// How long a server may take to start.
const MOST_TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(25);

/// A running server. Dropping ends it and deletes its files.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    dir: PathBuf,
}

/// A server's statistics at one moment, or the difference between two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Calls of scripts and of the native module.
    pub(crate) calls: u64,
    /// Time within them, in microseconds: with their commands, without reading requests and
    /// writing replies.
    pub(crate) script_us: f64,
    /// CPU time of the whole process, in microseconds.
    pub(crate) cpu_us: f64,
}

/// Reads a server's statistics.
#[derive(Debug)]
pub(crate) struct Meter(MultiplexedConnection);

impl Server {
    /// Starts a server that stores nothing on disk, and waits until it answers. Later arguments
    /// overrule that.
    pub(crate) async fn start(args: &[&str]) -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("slidegate-redis-bench-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--unixsocketperm", "700"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(args)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = child.map_err(|error| {
            let _ = std::fs::remove_dir_all(&dir);
            match error.kind() {
                ErrorKind::NotFound => {
                    "redis-server was not found; install the package `redis-server`".to_owned()
                }
                _ => format!("redis-server cannot be started: {error}"),
            }
        })?;
        let mut server = Self { child, dir };
        for _ in 0..MOST_TRIES {
            if server.connect().await.is_ok() {
                return Ok(server);
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("redis-server ended at once: {status}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(format!("redis-server did not answer in {:?}", PAUSE * MOST_TRIES))
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.dir.join("redis.sock").display())
    }

    pub(crate) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        // No client timeout: a disturbed machine must not end a run.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await
    }

    pub(crate) async fn meter(&self) -> RedisResult<Meter> {
        Ok(Meter(self.connect().await?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to save, and may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Meter {
    /// The work done since the server was started.
    pub(crate) async fn read(&mut self) -> RedisResult<Work> {
        let info: String = redis::cmd("INFO").arg("all").query_async(&mut self.0).await?;
        let mut work = Work::default();
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name {
                "used_cpu_sys" | "used_cpu_user" => work.cpu_us += value.parse().unwrap_or(f64::NAN) * 1e6,
                "cmdstat_evalsha"
                | "cmdstat_increx"
                | "cmdstat_slidegate.check1"
                | "cmdstat_slidegate.decide"
                | "cmdstat_slidegate.change" => {
                    work.calls += field(value, "calls").parse::<u64>().unwrap_or(0);
                    work.script_us += field(value, "usec").parse().unwrap_or(f64::NAN);
                }
                _ => {}
            }
        }
        Ok(work)
    }

    pub(crate) async fn version(&mut self) -> RedisResult<String> {
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut self.0).await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("of an unknown version").to_owned())
    }

    pub(crate) async fn has_command(&mut self, name: &str) -> RedisResult<bool> {
        let info: Vec<redis::Value> =
            redis::cmd("COMMAND").arg("INFO").arg(name).query_async(&mut self.0).await?;
        Ok(matches!(info.first(), Some(redis::Value::Array(_))))
    }

    /// Deletes all keys; scripts stay.
    pub(crate) async fn forget_keys(&mut self) -> RedisResult<()> {
        redis::cmd("FLUSHALL").arg("SYNC").query_async(&mut self.0).await
    }

    /// Bytes of one key with its name and its table entry.
    pub(crate) async fn bytes_of_a_key(&mut self) -> RedisResult<u64> {
        let key: Vec<u8> = redis::cmd("RANDOMKEY").query_async(&mut self.0).await?;
        redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query_async(&mut self.0).await
    }
}

/// The value of `name` in `calls=3,usec=17`.
fn field<'s>(stats: &'s str, name: &str) -> &'s str {
    stats.split(',').find_map(|one| one.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            script_us: self.script_us - earlier.script_us,
            cpu_us: self.cpu_us - earlier.cpu_us,
        }
    }
}
