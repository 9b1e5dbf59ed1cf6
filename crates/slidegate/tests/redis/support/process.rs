//! A child process and its directory, both gone when the test is, however the test ends.
//!
//! Dropping ends the child. A guard, a shell that waits for the end of its input, does so where nothing is dropped:
//! when the tests are killed or interrupted, and for servers that live in a `static`.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Arguments: the child's pid and its directory.
const GUARD: &str = r#"trap '' INT TERM HUP; read -r nothing; kill -KILL "$1"; rm -rf -- "$2""#;

/// A running child.
pub(crate) struct Process {
    child: Child,
    guard: Child,
}

impl Process {
    /// Starts a child whose files are in `dir`. `package` is what to install where the program is missing.
    pub(crate) fn start(mut command: Command, dir: &Path, package: &str) -> Self {
        let child = spawn(command.stdin(Stdio::null()), package);
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", &child.id().to_string()]).arg(dir);
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child, guard: spawn(guard, "dash") }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Freezes it (SIGSTOP): its sockets accept and say nothing. Returns when it stands still.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        super::until_true("a stopped process stands still", || self.state() == 'T');
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Whether it runs: it has neither ended nor been frozen, by whomever.
    pub(crate) fn is_awake(&self) -> bool {
        !matches!(self.state(), 'T' | 'Z')
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "`{kill}` failed");
    }

    /// The letter of `/proc/PID/stat`, which comes after the name in brackets.
    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap()
    }
}

impl Drop for Process {
    /// The guard first: it must not come to life and kill a stranger that was given the child's number.
    fn drop(&mut self) {
        for process in [&mut self.guard, &mut self.child] {
            // Either may have ended by itself, which is what is wanted.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Runs a program that has to succeed, to its end.
pub(crate) fn run(mut command: Command, package: &str) {
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

/// A directory that only its owner can enter, removed on drop.
pub(crate) struct PrivateDir(PathBuf);

impl PrivateDir {
    /// A new, empty one.
    pub(crate) fn create() -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = CREATED.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("slidegate-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Self(path),
                // Left by a test of long ago that had our number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot create {}: {error}", path.display()),
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // What is left behind harms nobody, and a panic here would hide the one that matters.
        let _ = fs::remove_dir_all(&self.0);
    }
}
