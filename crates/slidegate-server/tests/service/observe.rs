//! Telemetry of decisions over real sockets: metrics, events, top keys and streams.

mod alerts;
mod events;
mod history;
mod metrics;
mod notifications;
mod redaction;
mod streams;
mod top_keys;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, installed, run, slidegate, text};

/// Longer than anything takes here. Who waits as long has found a fault.
const LONG: Duration = Duration::from_secs(60);

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 10/1h}
  - {name: per-ip, scope: [ip], quota: 2/1h}
  - {name: tried, scope: [user], quota: 3/1h, mode: shadow}
";

fn start(folder: &TempDir, config: &str) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", config)])
}

fn ask(server: &Server, route: &str, attributes: &Value, cost: u64) -> Value {
    server.post(route, &json!({ "attributes": attributes, "cost": cost }).to_string()).json()
}

fn check(server: &Server, attributes: &Value) -> bool {
    ask(server, "/v1/check", attributes, 1)["allowed"].as_bool().unwrap()
}

/// The samples of `/metrics`: their name with labels, and their value.
fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let samples = answer.body.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

fn count(metrics: &BTreeMap<String, f64>, name: &str) -> u64 {
    let value = metrics.get(name).unwrap_or_else(|| panic!("{name} is not among {:?}", metrics.keys()));
    // Counts of a test are small.
    format!("{value}").parse().unwrap()
}

fn events(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/events{query}")).json()["events"].as_array().unwrap().clone()
}

fn top(server: &Server, query: &str) -> Value {
    server.get(&format!("/v1/top{query}")).json()
}

/// The lines of denials in the log, once there are so many.
#[allow(clippy::disallowed_methods)] // A log is written in real time.
fn lines_of(log: &str, wanted: usize) -> Vec<String> {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let lines: Vec<_> =
            text.lines().filter(|line| line.contains("slidegate::denials")).map(str::to_owned).collect();
        if lines.len() >= wanted {
            return lines;
        }
        assert!(std::time::Instant::now() < deadline, "{wanted} lines never came: {lines:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A stream of server-sent events.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(server: &Server, path: &str, more: &str) -> Self {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = Self(BufReader::new(stream));
        let head: Vec<_> = std::iter::from_fn(|| stream.line().filter(|line| !line.is_empty())).collect();
        assert!(head[0].ends_with("200 OK"), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        stream
    }

    /// The next line without its end. `None` at the end of the stream, which may cut a line off.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.ends_with('\n').then(|| line.trim_end().to_owned())
    }

    /// The name, id and content of the next event.
    fn next(&mut self) -> Option<(String, Option<u64>, Value)> {
        let (mut name, mut data, mut id) = (None, None, None);
        loop {
            let line = self.line()?;
            // Others are the sizes of chunks, and comments that keep the connection.
            match line.split_once(": ") {
                Some(("event", text)) => name = Some(text.to_owned()),
                Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                Some(("id", text)) => id = text.parse().ok(),
                _ if line.is_empty() && name.is_some() && data.is_some() => {
                    return Some((name.unwrap(), id, data.unwrap()));
                }
                _ => {}
            }
        }
    }

    fn denial(&mut self) -> (u64, Value) {
        let (name, id, event) = self.next().expect("another event");
        assert_eq!((name.as_str(), event["seq"].as_u64()), ("denial", id));
        (id.unwrap(), event)
    }
}
