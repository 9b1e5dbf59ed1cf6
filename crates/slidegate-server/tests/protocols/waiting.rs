//! Waiting for a turn, over every protocol.
//!
//! Every user may do one request in some seconds. The times are lower bounds, so a slow machine changes nothing.
#![allow(clippy::disallowed_methods)] // How long requests wait is what is tested.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use slidegate_testkit::http::{self, Response};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};

use crate::rls::client::{client, user};

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);
/// A window, and the longest wait that policies grant: for one turn, not for two.
const WINDOW: Duration = Duration::from_secs(3);

/// How often a slow machine may do things in another order.
const ATTEMPTS: usize = 10;

/// A request that waits, on its own connection, which is then read to the end.
struct Path {
    name: &'static str,
    /// The request of a user that waits for so many milliseconds.
    request: fn(user: &str, wait_ms: u64) -> String,
    is_resp: bool,
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn attributes(user: &str) -> String {
    format!(r#"{{"attributes": {{"user": "{user}"}}}}"#)
}

/// Whole seconds, rounded down.
fn prefer(wait_ms: u64) -> String {
    format!("prefer: wait={}\r\n", wait_ms / 1000)
}

const PATHS: [Path; 7] = [
    Path {
        name: "acquire",
        request: |user, wait_ms| {
            post(
                "/v1/acquire",
                "",
                &attributes(user).replacen('{', &format!("{{\"timeout_ms\": {wait_ms}, "), 1),
            )
        },
        is_resp: false,
    },
    Path {
        name: "check with a preference",
        request: |user, wait_ms| post("/v1/check", &prefer(wait_ms), &attributes(user)),
        is_resp: false,
    },
    Path {
        name: "check by GET with a preference",
        request: |user, wait_ms| {
            format!(
                "GET /v1/check?user={user} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{}\r\n",
                prefer(wait_ms)
            )
        },
        is_resp: false,
    },
    Path {
        name: "reserve with a preference",
        request: |user, wait_ms| post("/v1/reserve", &prefer(wait_ms), &attributes(user)),
        is_resp: false,
    },
    // The policy says how long this one waits.
    Path {
        name: "auth",
        request: |user, _| {
            format!(
                "GET /v1/auth/caddy?user={user} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-forwarded-uri: /\r\nx-forwarded-method: GET\r\nx-forwarded-host: a\r\nx-forwarded-for: 192.0.2.1\r\n\r\n"
            )
        },
        is_resp: false,
    },
    Path {
        name: "RL.ACQUIRE",
        request: |user, wait_ms| format!("RL.ACQUIRE api {user} TIMEOUT {wait_ms}\r\nQUIT\r\n"),
        is_resp: true,
    },
    Path {
        name: "RL.RESERVE",
        request: |user, wait_ms| format!("RL.RESERVE api {user} TIMEOUT {wait_ms}\r\nQUIT\r\n"),
        is_resp: true,
    },
];

fn serve(folder: &TempDir) -> Server {
    serve_with(folder, "quota: 1/3s, on_excess: wait 4s")
}

fn serve_with(folder: &TempDir, policy: &str) -> Server {
    let config = format!(
        "policies: [{{name: api, scope: user, {policy}}}]\nresp: {{listen: '127.0.0.1:0'}}\n\
         grpc: {{listen: '127.0.0.1:0'}}\nauth: {{preset: caddy}}\n"
    );
    Server::start(&["--config", &folder.file("slidegate.yaml", config)])
}

fn resp_address(server: &Server) -> &str {
    server.greeting.lines().find_map(|line| line.strip_prefix("resp       redis://")).unwrap()
}

/// Sends a request, whose answer comes later.
fn send(server: &Server, path: &Path, user: &str, wait_ms: u64) -> TcpStream {
    let address = if path.is_resp { resp_address(server) } else { &server.address };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all((path.request)(user, wait_ms).as_bytes()).unwrap();
    stream
}

/// Whether the request is allowed, as soon as it is answered.
fn is_allowed(path: &Path, mut stream: TcpStream) -> bool {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    if path.is_resp {
        let first = answer.lines().nth(1).unwrap_or_else(|| panic!("{}: {answer}", path.name));
        assert!(matches!(first, ":0" | ":1"), "{}: {answer}", path.name);
        first == ":1"
    } else {
        let status = Response::parse(&answer).status;
        assert!(matches!(status, 200 | 429), "{}: {answer}", path.name);
        status == 200
    }
}

fn use_up(server: &Server, user: &str) -> Instant {
    let at = Instant::now();
    assert_eq!(server.post("/v1/check", &attributes(user)).status, 200);
    at
}

/// A user whose first request waits, while a second one was denied at once, and when the limit was used up.
fn with_one_waiting(server: &Server, path: &Path) -> (String, TcpStream, Instant) {
    for attempt in 0.. {
        assert!(attempt < ATTEMPTS, "{}: no second one is denied at once", path.name);
        let user = format!("{}-{attempt}", path.name.replace(' ', "-"));
        let used_up = Instant::now();
        assert_eq!(server.post("/v1/check", &attributes(&user)).status, 200);
        let first = send(server, path, &user, 4000);
        // On a slow machine the second one may be first, and waits.
        if !is_allowed(path, send(server, path, &user, 4000)) && used_up.elapsed() < WINDOW {
            return (user, first, used_up);
        }
    }
    unreachable!("attempts end");
}

/// What is promised on one path and denied on another is denied to somebody.
#[test]
fn every_path_waits_for_its_turn_and_denies_at_once_if_none_comes_in_time() {
    let folder = TempDir::new("waiting");
    let server = serve(&folder);
    std::thread::scope(|scope| {
        for path in &PATHS {
            let server = &server;
            scope.spawn(move || {
                let (_, first, used_up) = with_one_waiting(server, path);
                assert!(is_allowed(path, first), "{}", path.name);
                assert!(used_up.elapsed() >= WINDOW, "{}: {:?}", path.name, used_up.elapsed());
            });
        }
    });
}

/// Whoever has gone must not get a turn, or keep others from theirs.
#[test]
fn a_client_that_hangs_up_frees_its_place_on_every_path() {
    let folder = TempDir::new("waiting-gone");
    let server = serve(&folder);
    std::thread::scope(|scope| {
        for path in &PATHS {
            let server = &server;
            scope.spawn(move || {
                // Behind the one that has gone, the turn would come a window later.
                let is_free = |_| {
                    let (user, gone, used_up) = with_one_waiting(server, path);
                    gone.shutdown(Shutdown::Both).unwrap();
                    while !is_allowed(path, send(server, path, &user, 4000)) {}
                    used_up.elapsed() < 2 * WINDOW
                };
                assert!((0..ATTEMPTS).any(is_free), "{}: its place is not free", path.name);
            });
        }
    });
}

/// A service that ends must not keep those waiting whom it will not serve: they can ask another instance.
#[test]
fn a_shutdown_answers_those_who_wait() {
    let folder = TempDir::new("waiting-shutdown");
    let mut server = serve_with(&folder, "quota: 1/50s, on_excess: wait 60s");
    let waiting: Vec<_> = PATHS
        .iter()
        .map(|path| {
            let user = path.name.replace(' ', "-");
            use_up(&server, &user);
            (path, send(&server, path, &user, 55_000))
        })
        .collect();
    until_true("all wait", || server.count("slidegate_waiting") == PATHS.len() as u64);
    server.signal("TERM");
    for (path, stream) in waiting {
        assert!(!is_allowed(path, stream), "{}", path.name);
    }
    assert!(server.wait().success());
}

/// Connections have timeouts for clients that send slowly, which must not end those that wait.
#[test]
fn no_timeout_of_connections_ends_a_wait() {
    /// Longer than a head or a command may take.
    const LONG: Duration = Duration::from_secs(12);
    let folder = TempDir::new("waiting-long");
    let server = serve_with(&folder, "quota: 1/12s, on_excess: wait 30s");
    std::thread::scope(|scope| {
        for path in &PATHS {
            let server = &server;
            scope.spawn(move || {
                let user = path.name.replace(' ', "-");
                let used_up = Instant::now();
                assert_eq!(server.post("/v1/check", &attributes(&user)).status, 200);
                assert!(is_allowed(path, send(server, path, &user, 30_000)), "{}", path.name);
                assert!(used_up.elapsed() >= LONG, "{}: {:?}", path.name, used_up.elapsed());
            });
        }
        scope.spawn(|| {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let used_up = use_up(&server, "alice");
                let answered = client(&server).await.should_rate_limit(of("alice")).await;
                assert_eq!(answered.unwrap().into_inner().overall_code(), Code::Ok);
                assert!(used_up.elapsed() >= LONG, "gRPC: {:?}", used_up.elapsed());
            });
        });
    });
}

fn of(name: &str) -> RateLimitRequest {
    RateLimitRequest {
        domain: "test".to_owned(),
        descriptors: vec![user(name)],
        ..RateLimitRequest::default()
    }
}

/// gRPC says how long a call may take; whoever exceeds it is not heard.
#[test]
fn a_call_of_envoy_waits_within_its_deadline() {
    let (folder, of_minutes) = (TempDir::new("waiting-envoy"), TempDir::new("waiting-envoy-minutes"));
    let (server, slow) = (serve(&folder), serve_with(&of_minutes, "quota: 1/1m, on_excess: wait 1m"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let used_up = use_up(&slow, "alice");
        let mut hurried = tonic::Request::new(of("alice"));
        // Of this time it would take too much, although the policy grants it: a call waits for nine tenths.
        hurried.set_timeout(Duration::from_secs(50));
        let answered = client(&slow).await.should_rate_limit(hurried).await.unwrap().into_inner();
        if used_up.elapsed() < Duration::from_secs(15) {
            assert_eq!(answered.overall_code(), Code::OverLimit);
        }
        let used_up = use_up(&server, "alice");
        let answered = client(&server).await.should_rate_limit(of("alice")).await.unwrap().into_inner();
        assert_eq!(answered.overall_code(), Code::Ok);
        assert!(used_up.elapsed() >= WINDOW, "{:?}", used_up.elapsed());
    });
}

/// The other commands of a connection follow, as after BLPOP; those of other connections do not wait.
#[test]
fn a_waiting_command_keeps_only_its_own_connection_waiting() {
    let folder = TempDir::new("waiting-resp");
    let server = serve(&folder);
    use_up(&server, "alice");
    let mut waiting = TcpStream::connect(resp_address(&server)).unwrap();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    waiting.write_all(b"PING\r\nRL.ACQUIRE api alice\r\nECHO after\r\n").unwrap();
    // What comes before is answered at once.
    let mut pong = [0; 7];
    waiting.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    let mut other = TcpStream::connect(resp_address(&server)).unwrap();
    other.write_all(b"RL.CHECK api bob\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(":1\r\n:1\r\n:0\r\n"), "{answer}");
    // Sent while it waits.
    waiting
        .write_all(b"ECHO last\r\nMULTI\r\nRL.ACQUIRE api alice TIMEOUT 60000\r\nEXEC\r\nQUIT\r\n")
        .unwrap();
    let mut rest = String::new();
    waiting.read_to_string(&mut rest).unwrap();
    let (first, rest) = rest.split_once("$5\r\nafter\r\n").unwrap_or_else(|| panic!("{rest}"));
    assert!(first.starts_with("*7\r\n:1\r\n"), "{first}");
    // A command of a transaction does not wait.
    let of_transaction =
        rest.strip_prefix("$4\r\nlast\r\n+OK\r\n+QUEUED\r\n*1\r\n").unwrap_or_else(|| panic!("{rest}"));
    assert!(of_transaction.starts_with("*7\r\n:0\r\n") && of_transaction.ends_with("+OK\r\n"), "{rest}");
}

/// Invalid input must be refused, not waited for.
#[test]
fn invalid_waits_are_refused_with_their_range() {
    let folder = TempDir::new("waiting-invalid");
    let server = serve(&folder);
    for (wait, status, detail) in [
        ("0", 200, ""),
        ("60000", 200, ""),
        ("60001", 400, "invalid timeout_ms 60001: must be 0 to 60000; ask again for longer waits"),
        ("-1", 400, "integer `-1`, expected a whole number"),
        ("1.5", 400, "floating point `1.5`, expected a whole number"),
        ("\"2s\"", 400, "timeout_ms"),
        ("null", 400, "null, expected a whole number"),
    ] {
        let user = wait.replace('"', "");
        let body = attributes(&user).replacen('{', &format!("{{\"timeout_ms\": {wait}, "), 1);
        let answer = http::send("POST", &format!("{}/v1/acquire", server.url), "", &body);
        assert_eq!(answer.status, status, "{wait}: {}", answer.body);
        assert!(answer.body.contains(detail), "{wait}: {}", answer.body);
    }
    let preferred =
        http::send("POST", &format!("{}/v1/check", server.url), "prefer: wait=7\r\n", &attributes("p"));
    assert_eq!(preferred.header("preference-applied"), Some("wait=7"));
    // A client that lost its connection asks again, and is charged once.
    for _attempt in 0..2 {
        let acquire = format!("{}/v1/acquire", server.url);
        let answer = http::send("POST", &acquire, "idempotency-key: a-7\r\n", &attributes("again"));
        assert_eq!((answer.status, answer.json()["used"].as_u64()), (200, Some(1)), "{}", answer.body);
    }
}

/// A flood must be refused with its own reason, must not push back others, and must leave nothing behind.
#[test]
fn a_flood_of_waiters_is_refused_when_its_queue_is_full() {
    /// How many wait for a key.
    const WAITING: usize = 1024;
    const FLOOD: usize = WAITING + 76;
    let folder = TempDir::new("waiting-flood");
    let config =
        "server: {max_connections_per_peer: 5000}\npolicies: [{name: api, scope: user, quota: 2000/50s}]\n";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
    let acquire = |user: &str, wait_ms| {
        let body = attributes(user).replacen('{', &format!("{{\"timeout_ms\": {wait_ms}, "), 1);
        post("/v1/acquire", "", &body)
    };
    let ask = |user: &str, wait_ms| Response::parse(&server.raw(acquire(user, wait_ms).as_bytes()));
    let used = attributes("flood").replacen('{', "{\"cost\": 2000, ", 1);
    assert_eq!(server.post("/v1/check", &used).status, 200);
    let flood: Vec<_> = (0..FLOOD)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(acquire("flood", 60_000).as_bytes()).unwrap();
            stream
        })
        .collect();
    // Those above the bound are answered at once, the others wait for their turn.
    let answered = until("those above the bound are answered", || {
        let is_answered = |stream: &&TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.peek(&mut [0]), Ok(1))
        };
        let answered: Vec<_> = flood.iter().filter(is_answered).collect();
        (answered.len() >= FLOOD - WAITING).then_some(answered)
    });
    assert_eq!(answered.len(), FLOOD - WAITING);
    let mut full = answered[0];
    full.set_nonblocking(false).unwrap();
    let mut text = String::new();
    full.read_to_string(&mut text).unwrap();
    let full = Response::parse(&text);
    assert_eq!(full.json()["reason"], "queue_full", "{}", full.body);
    assert!(full.body.contains("lets no more requests wait"), "{}", full.body);
    assert!(full.header("retry-after").is_some());
    // Operators see why, among the events and in the figures.
    let events = server.get("/v1/events?key=flood").json();
    let reasons: Vec<_> =
        events["events"].as_array().unwrap().iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert!(!reasons.is_empty() && reasons.iter().all(|reason| *reason == "queue_full"), "{reasons:?}");
    assert_eq!(server.count("slidegate_waits_total{outcome=\"full\"}"), (FLOOD - WAITING) as u64);
    // Another key is served at once, and another client of the key learns how long it would wait.
    assert_eq!(ask("victim", 0).status, 200);
    drop(flood);
    until_true("the places are free", || {
        let reason = ask("flood", 0).json()["reason"].clone();
        assert!(reason == "queue_full" || reason == "over_limit", "{reason}");
        reason == "over_limit"
    });
}
