//! Clients that have used up their limit and try everything to pass: whatever they send, the application
//! must not receive it.

use std::net::Shutdown;
use std::thread;

use super::hostile_requests::{self, Hostile, UsedUp};
use super::*;

/// The limits that are used up, one after the other.
const USED_UP: &str = "
policies:
  - {name: address, scope: [ip], quota: 1000000/1h}
  - {name: login, when: {path: /login}, quota: 1/1h}
  - {name: shop, when: {host: Shop.EXAMPLE}, quota: 1/1h}
";
/// Requests from this size are sent [`MANY`] times: whether a proxy sees an answer or a broken pipe is a
/// race then. Others are sent [`FEW`] times.
const LARGE: usize = 10_000;
const MANY: usize = 40;
const FEW: usize = 3;
/// How long an answer is waited for. Some requests get none, as the proxy waits for their rest.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long more of an answer is waited for.
const AFTERWARDS: Duration = Duration::from_millis(200);

/// Sends bytes, of which the proxy may not read all, and returns what comes back.
fn provoke(port: u16, bytes: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    thread::scope(|scope| {
        // The proxy may answer and close before it has read everything.
        scope.spawn(|| (&stream).write_all(bytes));
        let mut part = [0; 4096];
        loop {
            match (&stream).read(&mut part) {
                Ok(0) | Err(_) => break,
                Ok(read) => {
                    answer.extend_from_slice(&part[..read]);
                    // The connection may stay open for the rest of the request.
                    stream.set_read_timeout(Some(AFTERWARDS)).unwrap();
                }
            }
        }
        // Ends a write that still waits. The proxy may have closed before.
        let _ = stream.shutdown(Shutdown::Both);
    });
    answer
}

/// The first line of an answer, for messages.
fn first_line(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).lines().next().unwrap_or("no answer").to_owned()
}

/// Uses up a limit, and makes sure that an ordinary client of it is denied.
fn use_up(beside: &mut Beside, used_up: UsedUp) {
    let (line, host) = match used_up {
        UsedUp::Address => ("GET /a", "other.example"),
        UsedUp::Login => ("GET /login", "other.example"),
        UsedUp::Host => ("GET /a", "shop.example"),
    };
    let request = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let ask = || first_line(&provoke(beside.port, request.as_bytes()));
    let address = |path: &str, cost: u32| {
        let body = format!(r#"{{"attributes":{{"ip":"127.0.0.1"}},"cost":{cost},"policy":"address"}}"#);
        let changed = beside.limiter.post(path, &body);
        assert_eq!(changed.status, 200, "{}", changed.body);
    };
    address("/v1/reset", 0);
    assert!(ask().contains(" 200 "), "{used_up:?}: an ordinary request passes before");
    if used_up == UsedUp::Address {
        address("/v1/penalize", 1_000_000);
    }
    let denied = ask();
    assert!(denied.contains(" 429 "), "{used_up:?}: an ordinary client is denied: {denied}");
}

/// Each request of the table, many times if it is large.
fn nothing_passes(kind: &Kind) {
    // A busy machine must not make slidegate count as unavailable: then requests pass, as the file says.
    let mut beside = Beside::start_edited(kind, USED_UP, &[("250ms", "60s")]);
    let requests = hostile_requests::all();
    assert!(requests.len() >= 60);
    let mut passed = Vec::new();
    for used_up in [UsedUp::Address, UsedUp::Login, UsedUp::Host] {
        use_up(&mut beside, used_up);
        for Hostile { name, bytes, .. } in requests.iter().filter(|one| one.used_up == used_up) {
            let tries = if bytes.len() >= LARGE { MANY } else { FEW };
            let before = beside.application.served();
            let answers: Vec<_> = (0..tries).map(|_| first_line(&provoke(beside.port, bytes))).collect();
            let came = beside.application.served() - before;
            if came > 0 {
                passed.push(format!("{name}: {came} of {tries}: {:?}", answers.last()));
            }
        }
        assert!(!beside.proxy.has_ended(), "the proxy ended");
    }
    assert!(passed.is_empty(), "{}: these passed: {passed:#?}", kind.name);
}

/// nginx asks by subrequests, whose errors are its own.
#[test]
fn nothing_that_a_client_sends_passes_a_limit_behind_nginx() {
    nothing_passes(&NGINX);
}

/// Caddy passes on whatever slidegate answers, and errors are what the file chose.
#[test]
fn nothing_that_a_client_sends_passes_a_limit_behind_caddy() {
    nothing_passes(&CADDY);
}

/// Traefik has a fallback for statuses that are its own.
#[test]
fn nothing_that_a_client_sends_passes_a_limit_behind_traefik() {
    nothing_passes(&TRAEFIK);
}
