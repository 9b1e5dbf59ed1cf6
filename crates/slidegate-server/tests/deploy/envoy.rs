//! A real Envoy in front of a service, with the very files of `deploy/envoy`.
//!
//! Envoy gives slidegate the 100 ms of its file. On a busy machine slidegate may miss them now and
//! then, and Envoy does without its answer. It counts such calls: a test that fails and had any
//! starts afresh.
//!
//! `scripts/test` puts Envoy where this looks for it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use slidegate_testkit::TempDir;
use slidegate_testkit::http::Response;
use slidegate_testkit::process::command;
use slidegate_testkit::service::{Server, installed};
use socket2::{Domain, Socket, Type};

use super::hostile_inputs::hostile_inputs;

const PROXY: &str = include_str!("../../../../deploy/envoy/envoy.yaml");
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/envoy/slidegate.yaml");

/// A service that says of every request that it took so many tokens as `x-cost` says.
fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    port
}

fn answer_all(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut cost = "1".to_owned();
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line) {
                Ok(1..) if line != "\r\n" => {}
                Ok(1..) => break,
                _ => return,
            }
            if let Some(value) = line.to_lowercase().strip_prefix("x-cost:") {
                value.trim().clone_into(&mut cost);
            }
        }
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-tokens: {cost}\r\n\r\nok");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// How often a test may start afresh.
const ATTEMPTS: usize = 20;

/// Whether Envoy gave up calls of slidegate during an attempt.
type GaveUp = AtomicBool;

/// Repeats a test until slidegate answered every call in time, or the test passes without that.
fn in_time(test: impl Fn(&GaveUp)) {
    for _ in 0..ATTEMPTS {
        let gave_up = GaveUp::default();
        match catch_unwind(AssertUnwindSafe(|| test(&gave_up))) {
            Ok(()) => return,
            Err(_) if gave_up.into_inner() => {}
            Err(failure) => resume_unwind(failure),
        }
    }
    panic!("slidegate missed the file's timeout in each of {ATTEMPTS} attempts");
}

/// Envoy on a free port. Ends with the value.
struct Envoy<'a> {
    process: Child,
    port: u16,
    folder: TempDir,
    gave_up: &'a GaveUp,
}

impl<'a> Envoy<'a> {
    /// Starts it with the file of `deploy`, its ports replaced, and waits until it is ready.
    fn start(test: &str, slidegate: u16, gave_up: &'a GaveUp, edit: impl Fn(String) -> String) -> Self {
        let program = installed("python/bin/envoy");
        let folder = TempDir::new(test);
        let admin = folder.path().join("admin");
        let port = |text: String, from: u16, to: u16| {
            replaced(&text, &format!("port_value: {from} "), &format!("port_value: {to} "))
        };
        let config = [(9901, 0), (10000, 0), (8080, upstream()), (8081, slidegate)]
            .into_iter()
            .fold(edit(PROXY.to_owned()), |text, (from, to)| port(text, from, to));
        let config = folder.file("envoy.yaml", config);
        let log = File::create(folder.path().join("log")).unwrap();
        let process = command(program)
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "-l",
                "warning",
                "--file-flush-interval-msec",
                "50",
            ])
            .args(["-c", &config, "--admin-address-path"])
            .arg(&admin)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("Envoy starts");
        let mut envoy = Self { process, port: 0, folder, gave_up };
        envoy.until("it is ready", |envoy| envoy.admin("/ready").is_some_and(|answer| answer.status == 200));
        let listeners = envoy.admin("/listeners?format=json").expect("the admin port answers").body;
        let port = listeners.split("\"port_value\": ").nth(1).expect("there is a listener");
        let digits: String = port.chars().take_while(char::is_ascii_digit).collect();
        envoy.port = digits.parse().expect("a port");
        envoy
    }

    /// What its admin port answers, if it does.
    fn admin(&self, path: &str) -> Option<Response> {
        let address = std::fs::read_to_string(self.folder.path().join("admin")).unwrap_or_default();
        get_from(&address, path, &[])
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        get_from(&format!("127.0.0.1:{}", self.port), path, headers).expect("Envoy answers")
    }

    /// Status codes of so many requests.
    fn statuses(&self, count: usize, path: &str, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.get(path, headers).status).collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until it holds, as long as it takes on a loaded machine.
    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..600 {
            if holds(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{what}: not within a minute; {}", self.log());
    }
}

impl Drop for Envoy<'_> {
    fn drop(&mut self) {
        let timeouts = "cluster.slidegate.upstream_rq_timeout";
        if let Some(stats) = self.admin(&format!("/stats?filter={timeouts}"))
            && stats.body.lines().any(|line| line.starts_with(timeouts) && !line.ends_with(": 0"))
        {
            self.gave_up.store(true, Ordering::Relaxed);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The answer to a request, if there is one.
fn get_from(address: &str, path: &str, headers: &[(&str, &str)]) -> Option<Response> {
    let mut stream = TcpStream::connect(address.trim()).ok()?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains("\r\n\r\n").then(|| Response::parse(&answer))
}

fn unedited(text: String) -> String {
    text
}

/// `x-user` reaches the limits, as if an authentication filter had set it.
#[allow(clippy::needless_pass_by_value)] // As `unedited`.
fn authenticated(text: String) -> String {
    replaced(&text, "                        - remove: x-user\n", "")
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

/// slidegate with a gRPC listener on this port, 0 for a free one, and the actual port.
fn slidegate(port: u16, args: &[&str]) -> (Server, u16) {
    let server = Server::start(&[&["--grpc", &format!("127.0.0.1:{port}")], args].concat());
    let url =
        server.greeting.lines().find_map(|line| line.strip_prefix("grpc       ")).expect("a gRPC listener");
    let port = url.rsplit(':').next().unwrap().parse().unwrap();
    (server, port)
}

/// What an operator sets up first: the files as they are, a limit that holds, and headers that say
/// so.
#[test]
fn the_files_of_deploy_limit_by_path_and_tell_the_client() {
    in_time(|gave_up| {
        let (_server, port) = slidegate(0, &["--config", LIMITS]);
        let envoy = Envoy::start("envoy-deploy", port, gave_up, authenticated);
        let alice = [("x-user", "alice")];
        for remaining in (0..5).rev() {
            let answer = envoy.get("/login", &alice);
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining.to_string().as_str()));
            let limit = answer.header("x-ratelimit-limit").unwrap();
            assert!(limit.starts_with("5, ") && limit.contains("5;w=60;name=\"login\""), "{limit}");
            assert_eq!(answer.header("retry-after"), None);
        }
        // Another user of the same address.
        let denied = envoy.get("/login?next=/", &[("x-user", "bob")]);
        assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")));
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
        // What was refused has cost nothing elsewhere: five of the hundred are used.
        assert_eq!(envoy.statuses(95, "/", &alice), [200; 95]);
        assert_eq!(envoy.get("/", &alice).status, 429);
        assert_eq!(envoy.get("/", &[("x-user", "bob")]).status, 200);
        envoy.until("the access log says why", |envoy| {
            envoy
                .log()
                .contains("policy=login key=127.0.0.1 why=\"login: `127.0.0.1` has used 5 of 5 per 1m;")
        });
    });
}

/// A client that chooses who it is has a new limit with every request.
#[test]
fn fields_that_only_the_proxy_may_set_are_removed() {
    in_time(|gave_up| {
        let (_server, port) = slidegate(0, &["--config", LIMITS]);
        let envoy = Envoy::start("envoy-removed", port, gave_up, unedited);
        let statuses = |path: &str| -> Vec<u16> {
            let user = |at: usize| format!("user-{at}");
            (0..6).map(|at| envoy.get(path, &[("x-user", &user(at)), ("x-items", "0")]).status).collect()
        };
        assert_eq!(statuses("/login"), [200, 200, 200, 200, 200, 429]);
        let answer = envoy.get("/", &[("x-user", "alice")]);
        assert!(!answer.header("x-ratelimit-limit").unwrap().contains("per-user"), "{answer:?}");
    });
}

/// Envoy forwards requests if the service fails: logins must be denied while nothing can count
/// them.
#[test]
fn a_policy_that_denies_without_its_store_answers_503_through_envoy() {
    in_time(|gave_up| {
        let folder = TempDir::new("envoy-store-away");
        let config = folder.file(
        "slidegate.yaml",
        "policies:\n  - {name: login, when: {path: /login}, scope: [user], quota: 5/1m, on_store_error: deny}\n",
    );
        // Nothing listens at port 1.
        let (_server, port) = slidegate(0, &["--config", &config, "--redis", "redis://127.0.0.1:1"]);
        let envoy = Envoy::start("envoy-store-away", port, gave_up, authenticated);
        let alice = [("x-user", "alice")];
        envoy.until("slidegate answers in time", |envoy| envoy.get("/login", &alice).status != 200);
        let denied = envoy.get("/login", &alice);
        assert_eq!(denied.status, 503, "{}", denied.body);
        let problem = denied.json();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3).contains(&wait), "{wait}");
        // What no such policy applies to passes.
        assert_eq!(envoy.get("/", &alice).status, 200);
    });
}

/// A store that hangs takes slidegate its deadline: Envoy must wait longer, or its failure mode
/// decides instead of the policies.
#[test]
fn a_store_that_hangs_is_decided_by_the_policies_from_the_first_request_on() {
    in_time(|gave_up| {
        let folder = TempDir::new("envoy-store-hangs");
        // The kernel accepts connections, and nothing reads them.
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let text = format!(
            "store: {{redis: 'redis://{}'}}\n\
             policies:\n  - {{name: login, when: {{path: /login}}, scope: [user], quota: 5/1m, on_store_error: deny}}\n",
            store.local_addr().unwrap()
        );
        let (_server, port) = slidegate(0, &["--config", &folder.file("slidegate.yaml", text)]);
        let envoy = Envoy::start("envoy-store-hangs", port, gave_up, authenticated);
        assert_eq!(envoy.statuses(3, "/login", &[("x-user", "alice")]), [503; 3]);
    });
}

/// A batch that counts as one is no limit, and one whose client says what it costs is none either.
#[test]
fn a_batch_costs_what_the_proxy_says_whatever_its_client_says() {
    in_time(|gave_up| {
        let (_server, port) = slidegate(0, &["--config", LIMITS]);
        let envoy = Envoy::start("envoy-batch", port, gave_up, unedited);
        for (remaining, items) in (0..10).rev().zip(["0", "-5", "abc", "1000", "", "1", "-1", "x", "0", "7"])
        {
            let answer = envoy.get("/batch", &[("x-items", items)]);
            let left = (remaining * 100).to_string();
            assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(&*left)));
        }
        assert_eq!(envoy.statuses(3, "/batch", &[("x-items", "-5")]), [429; 3]);
    });
}

/// Tokens are counted when the answer has been written: what they exceed the limit by has to be
/// waited out.
#[test]
fn costs_known_at_the_end_of_the_stream_count_for_later_requests() {
    in_time(|gave_up| {
        let (_server, port) = slidegate(0, &["--config", LIMITS]);
        let envoy = Envoy::start("envoy-tokens", port, gave_up, unedited);
        let generate = || envoy.get("/generate", &[("x-cost", "40000")]).status;
        let left = || envoy.get("/generate", &[("x-cost", "0")]);
        assert_eq!(generate(), 200);
        // The charge follows the answer.
        envoy.until("the first is charged", |_| left().header("x-ratelimit-remaining") == Some("10000"));
        assert_eq!(generate(), 200);
        envoy.until("the second is charged in full", |_| left().status == 429);
        let wait: u64 = left().header("retry-after").unwrap().parse().unwrap();
        assert!(wait > 3000, "{wait}");
    });
}

/// A limit is changed in the middle of the day: nobody else may notice, and what was used still
/// counts.
#[test]
fn a_limit_that_is_changed_under_traffic_counts_at_once_and_keeps_what_was_used() {
    in_time(|gave_up| {
        let text = |login: &str| {
            let text = std::fs::read_to_string(LIMITS).unwrap();
            assert_eq!((text.matches("quota: 5/1m").count(), text.matches("quota: 300/1m").count()), (1, 1));
            text.replace("quota: 5/1m", login).replace("quota: 300/1m", "quota: 1_000_000/1m")
        };
        let folder = TempDir::new("envoy-reload-limits");
        let config = folder.file("slidegate.yaml", text("quota: 5/1h"));
        let (_server, port) = slidegate(0, &["--config", &config]);
        let envoy = Envoy::start("envoy-reload", port, gave_up, unedited);
        let alice = [];
        assert_eq!(envoy.statuses(6, "/login", &alice), [200, 200, 200, 200, 200, 429]);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut served = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let user = format!("user-{served}");
                    assert_eq!(envoy.get("/", &[("x-user", &user)]).status, 200, "{user}");
                    served += 1;
                }
                served
            });
            folder.file("slidegate.yaml", text("quota: 8/1h"));
            envoy.until("the new limit is in force", |envoy| envoy.get("/login", &alice).status == 200);
            is_over.store(true, Ordering::Relaxed);
            assert!(others.join().unwrap() > 0);
        });
        assert_eq!(envoy.statuses(3, "/login", &alice), [200, 200, 429]);
    });
}

/// Whether limits hold while the limiter is away is the proxy's choice, and it must be the one that
/// the file says.
#[test]
fn without_slidegate_requests_pass_or_fail_as_failure_mode_deny_says() {
    in_time(|gave_up| {
        let (server, port) = slidegate(0, &["--config", LIMITS]);
        let open = Envoy::start("envoy-open", port, gave_up, unedited);
        let closed = Envoy::start("envoy-closed", port, gave_up, |text| {
            let edited = text.replace("failure_mode_deny: false\n", "failure_mode_deny: true\n");
            assert_ne!(edited, text);
            edited
        });
        let alice = [("x-user", "alice")];
        assert_eq!(open.statuses(3, "/login", &alice), [200; 3]);
        assert_eq!(closed.statuses(3, "/login", &alice), [200, 200, 429], "they share one limiter");
        drop(server);
        assert_eq!(open.statuses(7, "/login", &alice), [200; 7]);
        assert_eq!(closed.statuses(3, "/login", &alice), [500; 3]);
        let (_server, _) = slidegate(port, &["--config", LIMITS]);
        closed.until("it is asked again", |_| closed.get("/", &[]).status == 200);
        open.until("limits hold again", |_| open.get("/login", &alice).status == 429);
    });
}

/// Fixed windows let twice the limit through around their border. No span of one window may hold
/// more than the limit.
#[test]
fn no_window_wherever_it_begins_lets_more_than_the_limit_through() {
    in_time(|gave_up| {
        const LIMIT: usize = 20;
        const WINDOW: Duration = Duration::from_secs(2);
        let (_server, port) = slidegate(0, &["--policy", &format!("{LIMIT}/2s per user")]);
        let envoy = Envoy::start("envoy-window", port, gave_up, authenticated);
        let clock = SystemClock::new();
        // When each request that passed was sent at the earliest and decided at the latest.
        let mut passed = Vec::new();
        let mut denied = 0;
        while passed.len() < 3 * LIMIT {
            let sent = clock.now();
            match envoy.get("/", &[("x-user", "alice")]).status {
                200 => passed.push((sent, clock.now())),
                429 => denied += 1,
                other => panic!("status {other}"),
            }
        }
        assert!(denied > 0, "the limit was met");
        for (first, last) in passed.iter().zip(&passed[LIMIT..]) {
            assert!(last.1 - first.0 >= WINDOW, "{} requests within {:?}", LIMIT + 1, last.1 - first.0);
        }
    });
}

/// The status of a raw request from this address, 0 if the connection ends without one.
fn raw(port: u16, from: [u8; 4], request: &[u8]) -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut stream = TcpStream::from(socket);
    // Envoy may answer and close before it has read all.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// All that protects the limits in the proxy's own file is off, and the tracer copies fields of clients.
fn open_wide(text: String) -> String {
    let text = authenticated(text);
    let text = replaced(&text, "                        - remove: tracestate\n", "");
    let text = replaced(&text, "                        - remove: traceparent\n", "");
    let text = replaced(&text, "max_request_headers_kb: 16", "max_request_headers_kb: 1000");
    let tracing = "stat_prefix: http
                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      grpc_service: { envoy_grpc: { cluster_name: slidegate } }
                      service_name: edge
";
    replaced(&text, "stat_prefix: http\n", tracing)
}

/// Limits of the reference for the same descriptors.
const REFERENCE: &str = "domain: web
descriptors:
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 5 }
  - key: user
    rate_limit: { unit: day, requests_per_unit: 1000 }
";

/// An error is not a denial: Envoy passes a request on if its question is one, so nothing that a client
/// sends may make it one, neither its own nor that of another client on the same connection.
#[test]
fn no_request_of_a_client_that_used_up_its_limit_passes_and_none_lifts_the_limits_of_others() {
    const CLIENT: [u8; 4] = [127, 0, 0, 1];
    const OTHER: [u8; 4] = [127, 0, 0, 2];
    let plain = b"GET /login HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    let folder = TempDir::new("envoy-hostile-limits");
    let limits = std::fs::read_to_string(LIMITS).unwrap();
    // Windows that no test outlasts.
    let limits = replaced(&replaced(&limits, "quota: 5/1m", "quota: 5/1d"), "quota: 300/1m", "quota: 6/1d");
    let config = folder.file("slidegate.yaml", limits);
    let rules = TempDir::new("envoy-hostile-rules");
    rules.file("web.yaml", REFERENCE);
    for (what, args) in [("policies", ["--config", &config]), ("files", ["--envoy-config", rules.as_str()])] {
        for (file, edit) in [("shipped", unedited as fn(String) -> String), ("open", open_wide)] {
            let gave_up = GaveUp::default();
            let (server, port) = slidegate(0, &args);
            let patient = |text| replaced(&edit(text), "timeout: 0.1s", "timeout: 60s");
            let envoy = Envoy::start(&format!("envoy-hostile-{what}-{file}"), port, &gave_up, patient);
            for client in [CLIENT, OTHER] {
                let used: Vec<_> = (0..6).map(|_| raw(envoy.port, client, plain)).collect();
                assert_eq!(used, [200, 200, 200, 200, 200, 429], "{what} {file}");
            }
            let mut outcomes = Vec::new();
            for hostile in hostile_inputs() {
                let status = raw(envoy.port, CLIENT, &hostile.bytes);
                let beside = raw(envoy.port, OTHER, plain);
                outcomes.push((hostile.name, status, beside));
            }
            let passed: Vec<_> = outcomes
                .iter()
                .filter(|(_, status, beside)| matches!(status, 200..=299) || *beside != 429)
                .collect();
            assert!(passed.is_empty(), "{what} {file}: {passed:?}\n{}", envoy.log());
            let limited = outcomes.iter().filter(|(_, status, _)| *status == 429).count();
            assert!(
                limited >= 60,
                "{what} {file}: {limited} of {} were decided: {outcomes:?}",
                outcomes.len()
            );
            let stats = envoy.admin("/stats").expect("the admin port answers").body;
            for name in ["cluster.service.ratelimit.error", "cluster.slidegate.upstream_cx_destroy_remote"] {
                let odd = stats
                    .lines()
                    .find(|line| line.starts_with(&format!("{name}: ")) && !line.ends_with(": 0"));
                assert_eq!(odd, None, "{what} {file}");
            }
            let metrics = server.get("/metrics").body;
            let refused = metrics.lines().find(|line| {
                line.starts_with("slidegate_malformed_total{protocol=\"grpc\"")
                    && line.contains("outcome=\"refused\"")
                    && !line.ends_with(" 0")
            });
            assert_eq!(refused, None, "{what} {file}");
        }
    }
}

/// The block that people copy first ends with a denial.
#[test]
fn the_block_of_the_readme_denies_the_sixth_login() {
    in_time(|gave_up| {
        let (_server, port) = slidegate(0, &["--config", LIMITS]);
        let envoy = Envoy::start("envoy-readme", port, gave_up, unedited);
        let (serve, statuses) = super::of_readme("Envoy", "127.0.0.1:10000", envoy.port);
        assert_eq!(serve, "--config $CHECKOUT/deploy/envoy/slidegate.yaml");
        assert_eq!(statuses, ["200", "200", "200", "200", "200", "429"]);
    });
}
