//! How targets are asked: one driver for each kind.

mod http;
mod lines;
mod resp;
mod rls;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Failed;
use crate::judge::{Answer, Limit};
use crate::target::{Ability, Kind, Target};

/// An answer that takes longer is a failure.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The longest that a target may take to start.
const STARTED_WITHIN: Duration = Duration::from_secs(30);
/// The longest that a target may take to end after SIGTERM.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// The configuration that a target is started with.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) limits: Vec<Limit>,
    pub(crate) max_keys: Option<u64>,
    pub(crate) redis: Option<String>,
    /// Outlives the instance.
    pub(crate) folder: PathBuf,
}

/// A running instance of a target.
pub(crate) struct Instance {
    driver: Driver,
    child: Child,
    /// Of the processes.
    group: Option<Pid>,
    pub(crate) version: String,
    pub(crate) can: Vec<Ability>,
}

enum Driver {
    Lines(lines::Lines),
    Http(http::Client),
    Resp(resp::Client),
    Rls(rls::Client),
}

impl Instance {
    /// Starts `target`, whose command is in `folder`, and waits until it can be asked.
    pub(crate) async fn start(target: &Target, folder: &Path, setting: &Setting) -> Result<Self, Failed> {
        let within = timeout(STARTED_WITHIN, Self::try_start(target, folder, setting)).await;
        let started = within.unwrap_or_else(|_| Err(format!("not ready after {STARTED_WITHIN:?}").into()));
        started.map_err(|error| format!("{} {:?}: {error}", target.name, target.command).into())
    }

    async fn try_start(target: &Target, folder: &Path, setting: &Setting) -> Result<Self, Failed> {
        let program = &target.command[0];
        // Names without a slash are looked up in PATH.
        let path = if program.contains('/') { folder.join(program) } else { program.into() };
        let mut command = Command::new(path);
        command.args(&target.command[1..]).current_dir(folder).kill_on_drop(true).process_group(0);
        for (at, limit) in setting.limits.iter().enumerate() {
            let which = if at == 0 { "" } else { "2" };
            command.env(format!("LIMIT{which}"), limit.cost.to_string());
            command.env(format!("WINDOW{which}_MS"), limit.window.as_millis().to_string());
        }
        command.env("FOLDER", &setting.folder);
        if let Some(max_keys) = setting.max_keys {
            command.env("MAX_KEYS", max_keys.to_string());
        }
        if let Some(redis) = &setting.redis {
            command.env("REDIS", redis);
        }
        if target.kind == Kind::Stdio {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let (lines, hello) = lines::Lines::new(&mut child).await?;
            return Ok(Self {
                driver: Driver::Lines(lines),
                group: group_of(&child),
                child,
                version: hello.version,
                can: hello.can,
            });
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if let Some(status) = child.try_wait()? {
                return Err(format!("it ended with {status}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let driver = match (&target.http, &target.resp, &target.rls) {
            (Some(form), _, _) => Driver::Http(http::Client::new(form, port)?),
            (_, Some(form), _) => Driver::Resp(resp::Client::new(form, port).await?),
            (_, _, Some(form)) => Driver::Rls(rls::Client::new(form, port).await?),
            _ => unreachable!("the form of each target was checked"),
        };
        let version = version_of(&target.version, folder).await?;
        let started = Self { driver, group: group_of(&child), child, version, can: target.can.clone() };
        // Some accept connections before they have read their configuration.
        while matches!(started.ask("started", 1).await.2, Answer::Failed(_)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(started)
    }

    /// Asks once. The times are those before and after the call.
    pub(crate) async fn ask(&self, key: &str, cost: u64) -> (Instant, Instant, Answer) {
        let sent = Instant::now();
        let answer = match &self.driver {
            Driver::Lines(lines) => timeout(ANSWERED_WITHIN, lines.ask(key, cost)).await,
            Driver::Http(client) => timeout(ANSWERED_WITHIN, client.ask(key, cost)).await,
            Driver::Resp(client) => timeout(ANSWERED_WITHIN, client.ask(key, cost)).await,
            Driver::Rls(client) => timeout(ANSWERED_WITHIN, client.ask(key, cost)).await,
        };
        let late = || (Instant::now(), Answer::Failed(format!("no answer within {ANSWERED_WITHIN:?}")));
        let (answered, answer) = answer.unwrap_or_else(|_| late());
        (sent, answered, answer)
    }

    /// Ends it: at once, or as a supervisor would.
    pub(crate) async fn end(mut self, at_once: bool) {
        if !at_once {
            self.signal(Signal::TERM);
            if let Driver::Lines(lines) = &self.driver {
                lines.end().await;
            }
            let _ = timeout(ENDED_WITHIN, self.child.wait()).await;
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// To it and the processes that it started.
    fn signal(&self, signal: Signal) {
        if let Some(id) = self.group {
            let _ = rustix::process::kill_process_group(id, signal);
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The processes of a target are a group, named by the first.
fn group_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
}

/// The last word with a digit of what the command prints.
async fn version_of(command: &[String], folder: &Path) -> Result<String, Failed> {
    let [program, arguments @ ..] = command else { return Ok(String::new()) };
    let path = if program.contains('/') { folder.join(program) } else { program.into() };
    let output = Command::new(path).args(arguments).current_dir(folder).output().await?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let first = text.lines().next().unwrap_or_default();
    let mut words = first.split(|letter: char| !(letter.is_ascii_alphanumeric() || ".-+".contains(letter)));
    let is_version = |word: &&str| word.contains('.') && word.chars().any(|letter| letter.is_ascii_digit());
    Ok(words.rfind(is_version).unwrap_or(first).to_owned())
}
