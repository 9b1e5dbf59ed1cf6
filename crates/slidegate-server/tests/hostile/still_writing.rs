//! Clients of HTTP that are still writing when they are answered: proxies, which pass on what their own
//! clients send. One that sees a broken pipe instead of the answer may let the request pass.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

/// Tries of each request: what a client sees is a race if the socket is closed too early.
const TRIES: usize = 20;
/// What fails is an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(30);
/// What proxies in Go forward at most by default, and a little more.
const LARGE: usize = 1_200_000;

/// Sends everything, whatever comes back meanwhile, and returns the status. Like a proxy it fails where a
/// write fails.
fn status(server: &Server, request: &[u8]) -> Result<u16, String> {
    let mut stream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    for part in request.chunks(16 * 1024) {
        stream.write_all(part).map_err(|error| format!("write: {error}"))?;
    }
    let answer = answer(&mut stream)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| format!("not an answer: {answer:?}"))
}

/// What the service says until it has no more to say.
fn answer(stream: &mut TcpStream) -> Result<String, String> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| format!("read: {error}"))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn with_head(line: &str, fields: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nhost: localhost\r\n{fields}connection: close\r\n\r\n").into_bytes()
}

/// A request with a body of this many bytes.
fn with_body(line: &str, fields: &str, bytes: usize) -> Vec<u8> {
    let length =
        if fields.contains("chunked") { String::new() } else { format!("content-length: {bytes}\r\n") };
    let mut request = with_head(line, &format!("{fields}{length}"));
    let body = if length.is_empty() {
        format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(bytes))
    } else {
        "x".repeat(bytes)
    };
    request.extend(body.into_bytes());
    request
}

/// An operator's proxy must see why a request was refused, not a connection that broke.
#[test]
fn http_clients_that_are_still_writing_get_their_answer() {
    let dir = TempDir::new("hostile-writing");
    let config = dir.file("slidegate.yaml", "policies: [{name: p, scope: [user], quota: 1000000/1h}]\n");
    let server = Server::start(&["--config", &config]);
    let auth = "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n";
    let field = |bytes| format!("x-a: {}\r\n", "v".repeat(bytes));
    for (name, request, expected) in [
        ("2,000 fields", with_head("GET /v1/auth/caddy", &"x-a: b\r\n".repeat(2000)), 431),
        ("100,000 fields", with_head("GET /v1/auth/caddy", &"x-a: b\r\n".repeat(100_000)), 431),
        ("101 fields", with_head("GET /v1/auth/caddy", &"x-a: b\r\n".repeat(101)), 431),
        ("a field of 65 kB", with_head("GET /v1/auth/caddy", &field(66_000)), 431),
        ("a field of 1.2 MB", with_head("GET /v1/auth/caddy", &field(LARGE)), 431),
        ("a target of 1.2 MB", with_head(&format!("GET /v1/auth/caddy?{}", "q".repeat(LARGE)), auth), 431),
        ("a method of 1.2 MB", with_head(&format!("{} /v1/auth/caddy", "M".repeat(LARGE)), auth), 431),
        ("a name of 1.2 MB", with_head("GET /v1/auth/caddy", &format!("{}: b\r\n", "n".repeat(LARGE))), 431),
        ("NUL, then 1.2 MB", with_head("GET /v1/auth/caddy", &format!("x-b: \0\r\n{}", field(LARGE))), 400),
        ("another protocol", [b"\x16\x03\x01\x02\0".to_vec(), vec![b'x'; LARGE]].concat(), 400),
        ("a body of an auth request", with_body("POST /v1/auth/caddy", auth, LARGE), 200),
        (
            "chunks of an auth request",
            with_body("PUT /v1/auth/caddy", &format!("{auth}transfer-encoding: chunked\r\n"), LARGE),
            200,
        ),
        ("a body of a GET", with_body("GET /v1/check?user=a", "", LARGE), 200),
        ("a body that is too large", with_body("POST /v1/check", "", LARGE), 413),
        (
            "chunks that are too large",
            with_body("POST /v1/check", "transfer-encoding: chunked\r\n", LARGE),
            413,
        ),
        ("a body of no route", with_body("POST /none", "", LARGE), 404),
        ("a body of another method", with_body("PUT /v1/check", "", LARGE), 405),
        ("a body across sites", with_body("POST /v1/check", "origin: http://evil.example\r\n", LARGE), 403),
        ("two hosts and a body", with_body("POST /v1/check", "host: evil.example\r\n", LARGE), 400),
    ] {
        for at in 0..TRIES {
            let found = status(&server, &request);
            // The parser may find a field invalid before the head is too large.
            let is_refused_head = expected == 431 && found == Ok(400);
            assert!(found == Ok(expected) || is_refused_head, "{name}, try {at}: {found:?}");
        }
    }
}

/// Reading on must end: by bytes, and by time for a client that sends nothing and does not close.
#[test]
fn what_is_read_after_an_answer_is_bounded() {
    let dir = TempDir::new("hostile-endless");
    let config = dir.file("slidegate.yaml", "policies: [{name: p, scope: [user], quota: 1000000/1h}]\n");
    let server = Server::start(&["--config", &config]);
    // It sends as long as it may.
    let stream = server.connect();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut sent = 0_usize;
    let part = [b'M'; 64 * 1024];
    while (&stream).write_all(&part).is_ok() {
        sent += part.len();
        assert!(sent < 64 << 20, "it is still read after {sent} bytes");
    }
    // It keeps its end open and sends nothing.
    let mut stream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&with_head("GET /v1/auth/caddy", &"x-a: b\r\n".repeat(2000))).unwrap();
    assert!(answer(&mut stream).unwrap().starts_with("HTTP/1.1 431 "));
    // Once the service has closed its end as well, what is sent is answered by a reset.
    until_true("the connection is closed", || stream.write_all(b"x").is_err());
    assert_eq!(server.get("/healthz").status, 200);
}
