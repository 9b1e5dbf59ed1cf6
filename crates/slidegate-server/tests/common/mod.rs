//! A running `slidegate serve`, and what every test asks of it.

// Each test binary uses a part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// The binary under test.
pub(crate) fn slidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slidegate"));
    for name in ["REDIS", "KEY_SECRET", "RESP_PASSWORD", "ADMIN_TOKENS", "TOKEN"] {
        command.env_remove(format!("SLIDEGATE_{name}"));
    }
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        command.env_remove(name);
    }
    command
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    slidegate().args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server on a free port of loopback. Ends with the value.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
    pub(crate) url: String,
    /// What it printed when it started.
    pub(crate) greeting: String,
}

impl Server {
    /// Starts a server with these arguments and waits until it says what it listens to.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_logging_to(args, Stdio::inherit())
    }

    /// The same with a place for its log.
    pub(crate) fn start_logging_to(args: &[&str], log: impl Into<Stdio>) -> Self {
        Self::start_at("127.0.0.1:0", &[], args, log)
    }

    /// The same at an address, with variables of the environment.
    pub(crate) fn start_at(
        listen: &str,
        variables: &[(&str, &str)],
        args: &[&str],
        log: impl Into<Stdio>,
    ) -> Self {
        let mut command = slidegate();
        Self::run(command.envs(variables.iter().copied()).args(["serve", "--listen", listen]).args(args), log)
    }

    /// The same with variables in its environment.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_at("127.0.0.1:0", variables, args, Stdio::inherit())
    }

    fn run(command: &mut Command, log: impl Into<Stdio>) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        let mut greeting = String::new();
        let url = loop {
            let line = lines.next().expect("it says what it listens to").expect("its output is text");
            greeting.push_str(&line);
            greeting.push('\n');
            if line.starts_with("try ") {
                break greeting
                    .lines()
                    .find_map(|line| line.strip_prefix("listening  "))
                    .expect("the address stands before the try line")
                    .to_owned();
            }
        };
        let address = url.strip_prefix("http://").expect("a plain address").to_owned();
        Self { process, address, url, greeting }
    }

    /// A request as text, from its first line to the end of its body; the answer until the server closes.
    pub(crate) fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("the server reads");
        let mut answer = Vec::new();
        // A server that closes before it has read all may reset the connection after its answer.
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        text(&answer)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("the server listens")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, Some(body))
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        self.ask_with("", method, path, body)
    }

    /// The same with further fields, each with its line's end.
    pub(crate) fn ask_with(&self, fields: &str, method: &str, path: &str, body: Option<&str>) -> Answer {
        let body = body.unwrap_or("");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{fields}content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        Answer::parse(&self.raw(request.as_bytes()))
    }

    /// Changes something as an operator's program does, with further header fields.
    pub(crate) fn change(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{fields}\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        Answer::parse(&self.raw(request.as_bytes()))
    }

    /// Asks, and holds the answer against what `openapi.json` says of it.
    pub(crate) fn judge(&self, method: &str, path: &str, body: Option<&str>, status: u16) {
        let document = self.get("/openapi.json").json();
        let answer = self.ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let bare = path.split('?').next().expect("a path");
        let described = &document["paths"][bare][method.to_lowercase()]["responses"][status.to_string()];
        let media_type = answer.header("content-type").expect("a media type");
        let mut schema = described["content"][media_type]["schema"].clone();
        assert!(schema.is_object(), "{method} {path} {status} {media_type} is not described");
        schema["components"] = document["components"].clone();
        let judge = jsonschema::validator_for(&schema).expect("a schema");
        let errors: Vec<_> = judge.iter_errors(&answer.json()).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{method} {path} {status}: {errors:?} in {}", answer.body);
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(status.success(), "the server lives");
    }

    /// Its standard error, if that was piped.
    pub(crate) fn take_log(&mut self) -> std::process::ChildStderr {
        self.process.stderr.take().expect("its log is piped")
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("the server ends")
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("the server can be asked").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A parsed HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Self { status: status.expect("a status"), headers, body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

/// A folder of its own for a test's files. Ends with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{process}-{number}"));
        std::fs::create_dir_all(&path).expect("the target folder can be written");
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("paths of tests are text")
    }

    /// Writes a file and gives its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("the target folder can be written");
        path.into_os_string().into_string().expect("paths of tests are text")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What `scripts/test` installed for the tests.
pub(crate) fn installed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-clients").join(path);
    assert!(path.exists(), "{} is missing: run scripts/test, which installs it", path.display());
    std::path::absolute(path).expect("the folder of the package is known")
}
