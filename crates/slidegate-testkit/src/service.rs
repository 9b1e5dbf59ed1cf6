//! The service as a process: `slidegate serve` and the other commands.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::http::{self, Response};
use crate::poll::until_true;
use crate::process::{command, until_stopped};

/// The binary that Cargo built for the tests of `slidegate-server`: `target/PROFILE/slidegate`.
fn binary() -> PathBuf {
    // The running test is target/PROFILE/deps/NAME-HASH.
    let this = std::env::current_exe().expect("a test knows its path");
    let binary = this.ancestors().nth(2).expect("tests are in target/PROFILE/deps").join("slidegate");
    assert!(binary.exists(), "{} is missing: only tests of slidegate-server can start it", binary.display());
    binary
}

/// The binary under test, without settings from the environment of the tests. Its texts are not wrapped.
pub fn slidegate() -> Command {
    let mut command = command(binary());
    command.env("COLUMNS", "1000");
    command
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> Output {
    // The default port may be in use.
    assert!(args[0] != "serve" || args.contains(&"--listen"), "{args:?}: give the address of a free port");
    slidegate().args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

/// Lets this process open as many files as it may: of an ordinary user's 1,024, tests that flood a service need more.
fn raise_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Where the system refuses, such a test fails, and says why.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Bytes as text, for comparing and printing.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server on a free loopback port. Ends when dropped.
pub struct Server {
    process: Child,
    /// `127.0.0.1:PORT` of its HTTP listener.
    pub address: String,
    /// The URL of `address`, with `http://`, or `https://` if it uses TLS.
    pub url: String,
    /// Its startup message.
    pub greeting: String,
}

impl Server {
    /// Starts a server with these arguments and waits for its startup message.
    pub fn start(args: &[&str]) -> Self {
        Self::start_logging_to(args, Stdio::inherit())
    }

    /// [`start`](Self::start) with a destination for its log.
    pub fn start_logging_to(args: &[&str], log: impl Into<Stdio>) -> Self {
        Self::start_at("127.0.0.1:0", &[], args, log)
    }

    /// Starts at this address, with environment variables.
    pub fn start_at(listen: &str, variables: &[(&str, &str)], args: &[&str], log: impl Into<Stdio>) -> Self {
        let mut command = slidegate();
        command.envs(variables.iter().copied());
        Self::start_as(command, listen, args, log)
    }

    /// Starts another build: the command is its binary.
    pub fn start_as(mut command: Command, listen: &str, args: &[&str], log: impl Into<Stdio>) -> Self {
        Self::start_command(command.args(["serve", "--listen", listen]).args(args), log)
    }

    /// [`start`](Self::start) with environment variables.
    pub fn start_with(args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_at("127.0.0.1:0", variables, args, Stdio::inherit())
    }

    /// Starts a server limited to this many file descriptors.
    pub fn start_with_descriptors(descriptors: usize, args: &[&str]) -> Self {
        let slidegate = slidegate();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$@\"")).arg("sh");
        command.arg(slidegate.get_program()).args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        slidegate.get_envs().for_each(|(name, _)| _ = command.env_remove(name));
        Self::start_command(&mut command, Stdio::inherit())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Starts a server with this command.
    pub fn start_command(command: &mut Command, log: impl Into<Stdio>) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        // Not before: a service raises its own.
        raise_descriptors();
        let mut lines = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        let mut greeting = String::new();
        let url = loop {
            let line = lines.next().expect("it says what it listens to").expect("its output is text");
            greeting.push_str(&line);
            greeting.push('\n');
            if let Ok(started) = serde_json::from_str::<serde_json::Value>(&line) {
                break started["fields"]["listening"][0].as_str().expect("a URL").to_owned();
            }
            if line.starts_with("try ") || line.starts_with("open ") {
                break greeting
                    .lines()
                    .find_map(|line| line.strip_prefix("listening  "))
                    .expect("the address stands before the last line")
                    .to_owned();
            }
        };
        // A Unix socket may follow.
        let url = url.split(", ").next().unwrap_or_default().to_owned();
        let address = url.split_once("://").expect("a URL").1.to_owned();
        Self { process, address, url, greeting }
    }

    /// Sends a request given as text, from first line to end of body; reads until the server
    /// closes.
    pub fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("the server reads");
        let mut answer = Vec::new();
        // A server that closes before reading everything may reset the connection after its
        // response.
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        text(&answer)
    }

    /// A TCP connection to its HTTP listener.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("the server listens")
    }

    /// Sends a `GET` request.
    pub fn get(&self, path: &str) -> Response {
        self.ask("GET", path, None)
    }

    /// Sends a `POST` request without a media type.
    pub fn post(&self, path: &str, body: &str) -> Response {
        self.ask("POST", path, Some(body))
    }

    /// Sends a request with any method.
    pub fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Response {
        self.ask_with("", method, path, body)
    }

    /// [`ask`](Self::ask) with header lines, each with its line end.
    pub fn ask_with(&self, headers: &str, method: &str, path: &str, body: Option<&str>) -> Response {
        http::send(method, &format!("{}{path}", self.url), headers, body.unwrap_or(""))
    }

    /// Sends a change like an operator's program: JSON, with further headers.
    pub fn change(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut lines = "content-type: application/json\r\n".to_owned();
        headers.iter().for_each(|(name, value)| lines.extend([name, ": ", value, "\r\n"]));
        self.ask_with(&lines, method, path, Some(body))
    }

    /// Sends a request and compares the response with its schema in `openapi.json`.
    #[cfg(feature = "openapi")]
    pub fn assert_matches_openapi(&self, method: &str, path: &str, body: Option<&str>, status: u16) {
        let document = self.get("/openapi.json").json();
        let answer = self.ask(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let bare = path.split('?').next().expect("a path");
        let described = &document["paths"][bare][method.to_lowercase()]["responses"][status.to_string()];
        let shared = described["$ref"].as_str().and_then(|path| document.pointer(path.strip_prefix('#')?));
        let described = shared.unwrap_or(described);
        let media_type = answer.header("content-type").expect("a media type");
        let mut schema = described["content"][media_type]["schema"].clone();
        assert!(schema.is_object(), "{method} {path} {status} {media_type} is not described");
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let errors: Vec<_> = validator.iter_errors(&answer.json()).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{method} {path} {status}: {errors:?} in {}", answer.body);
    }

    /// Writes the config file, and waits until it was loaded. `headers` are those of who may read the status.
    pub fn reload(&self, file: &str, text: &str, headers: &str) {
        let reloads = || {
            let status = self.ask_with(headers, "GET", "/v1/status", None);
            status.json()["config"]["reloads"].as_u64().expect("a number")
        };
        std::fs::write(file, text).expect("the file is ours");
        // The first to end may have begun before the file was written; the next begins when that one has ended.
        for _ in 0..2 {
            let before = reloads();
            self.signal("HUP");
            until_true("the config is reloaded", || reloads() > before);
        }
    }

    /// Sends a signal, such as `HUP`. After `STOP`, returns once the server stands still.
    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(status.success(), "the server lives");
        if name == "STOP" {
            until_stopped(self.process.id());
        }
    }

    /// Its standard error, if piped.
    pub fn take_log(&mut self) -> std::process::ChildStderr {
        self.process.stderr.take().expect("its log is piped")
    }

    /// The value of a metric, which may have labels.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().expect("a number")
    }

    /// The value of a counter on the page of metrics.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn count(&self, name: &str) -> u64 {
        self.metric(name) as u64
    }

    /// Where a listener of this name listens, without its scheme.
    pub fn address_of(&self, listener: &str) -> &str {
        let line = self.greeting.lines().find_map(|line| line.strip_prefix(listener)?.strip_prefix(' '));
        let url = line.unwrap_or_else(|| panic!("no {listener} in {}", self.greeting));
        let address = url.split_once("://").expect("a URL").1;
        address.split([',', ' ']).next().unwrap_or_default()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("the server ends")
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("the server can be asked").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A token, as `slidegate token new` prints it.
#[derive(Debug, Clone)]
pub struct Token {
    /// The secret that a client sends.
    pub secret: String,
    /// Its digest, as files have it.
    pub sha256: String,
    /// Its entry in the environment: name, scope and digest.
    pub entry: String,
}

impl Token {
    /// A new one of this name and scope.
    pub fn new(name: &str, scope: &str) -> Self {
        let made = run(&["token", "new", "--name", name, "--scope", scope]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let made = text(&made.stdout);
        let of = |start: &str| made.lines().find_map(|line| line.strip_prefix(start)).expect(start).trim();
        let entry = of("environment ").strip_prefix("SLIDEGATE_ADMIN_TOKENS=").expect("a variable");
        let sha256 = entry.rsplit(':').next().unwrap_or_default().to_owned();
        Self { secret: of("token ").to_owned(), sha256, entry: entry.to_owned() }
    }

    /// The line of a header that has it.
    pub fn header(&self) -> String {
        format!("authorization: Bearer {}\r\n", self.secret)
    }
}

/// The path of a program that `scripts/test` installed.
pub fn installed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-clients").join(path);
    assert!(path.exists(), "{} is missing: run scripts/test, which installs it", path.display());
    std::path::absolute(path).expect("the folder of the package is known")
}
