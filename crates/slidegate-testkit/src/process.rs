//! A child process that ends with the test, together with its directory, however the test ends.
//!
//! Dropping it kills the child. A guard, a shell that waits for the end of its input, kills it when
//! nothing is dropped: if the tests are killed or interrupted, and for servers in a `static`.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Arguments: the child's pid and directory.
const GUARD: &str = r#"trap '' INT TERM HUP; read -r nothing; kill -KILL "$1"; rm -rf -- "$2""#;

/// A running child.
pub struct Process {
    child: Child,
    guard: Child,
}

impl Process {
    /// Starts a child with files in `dir`. `package` is the one to install if the program is
    /// missing.
    pub fn start(mut command: Command, dir: &Path, package: &str) -> Self {
        let child = spawn(command.stdin(Stdio::null()), package);
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", &child.id().to_string()]).arg(dir);
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child, guard: spawn(guard, "dash") }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Freezes it (SIGSTOP): its sockets accept but do not reply. Returns once it is frozen.
    pub fn pause(&self) {
        self.signal("STOP");
        until_stopped(self.pid());
    }

    /// Resumes it (SIGCONT).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Whether it is running: neither ended nor frozen, by anyone.
    pub fn is_awake(&self) -> bool {
        !matches!(self.state(), 'T' | 'Z')
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "`{kill}` failed");
    }

    fn state(&self) -> char {
        state_in(Path::new(&format!("/proc/{}/stat", self.pid()))).unwrap()
    }
}

impl Drop for Process {
    /// The guard first: it must not wake up later and kill another process with the child's pid.
    fn drop(&mut self) {
        for process in [&mut self.guard, &mut self.child] {
            // Either may have ended by itself, which is fine.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Prefixes of variables that slidegate reads: its own settings, and those of envoyproxy/ratelimit,
/// OpenTelemetry and the service manager.
const SETTINGS: [&str; 7] =
    ["SLIDEGATE_", "REDIS_", "RUNTIME_", "OTEL_", "NOTIFY_SOCKET", "WATCHDOG_", "LIMIT_"];

/// Variables that all programs read, in capitals.
const USUAL: [&str; 10] = [
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "NO_COLOR",
    "RUST_LOG",
    "LOG_LEVEL",
    "HOST",
    "PORT",
    "GRPC_PORT",
];

/// Prefix of the variables of [`crate::clock`], which move a process's clock.
const CLOCK: &str = "SLIDEGATE_CLOCK_";

/// A program, without settings from the environment of the tests.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // Debian has servers there, where an ordinary user's path does not look.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    for (name, _) in std::env::vars_os() {
        let is_setting = name.to_str().is_some_and(|name| {
            USUAL.contains(&name.to_uppercase().as_str())
                || !name.starts_with(CLOCK) && SETTINGS.iter().any(|start| name.starts_with(start))
        });
        if is_setting {
            command.env_remove(name);
        }
    }
    command
}

/// `cargo build` with the profile of the tests, so that nothing is built again that `cargo test` has built.
///
/// It does not get what cargo tells tests about their package: build scripts that read it would run again.
pub fn cargo_build() -> Command {
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    for (name, _) in std::env::vars_os() {
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
    command.args(["build", "--profile", "test", "--quiet", "--locked"]);
    command
}

/// Runs a program to its end. It must succeed.
pub fn run(mut command: Command, package: &str) {
    let output = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()), package).wait_with_output();
    let output = output.unwrap();
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
}

fn spawn(command: &mut Command, package: &str) -> Child {
    match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let program = command.get_program().display();
            panic!("the program `{program}` is missing: install the Debian package `{package}`")
        }
        Err(error) => panic!("{command:?} did not start: {error}"),
    }
}

/// Waits until every thread of a process that was sent SIGSTOP stands still. On a busy machine, some go on until the
/// one that got the signal has run.
pub(crate) fn until_stopped(pid: u32) {
    // One may end meanwhile.
    let is_stopped =
        |thread: fs::DirEntry| state_in(&thread.path().join("stat")).is_none_or(|state| state == 'T');
    crate::poll::until_true("a stopped process stands still", || {
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|thread| is_stopped(thread.unwrap()))
    });
}

/// The state letter of a process's or thread's `stat` file, which follows the name in parentheses.
fn state_in(stat: &Path) -> Option<char> {
    fs::read_to_string(stat).ok()?.rsplit(") ").next()?.chars().next()
}
