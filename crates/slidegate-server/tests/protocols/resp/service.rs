//! The port in a service: over a shared store, at its end, and where nobody asked for it.

use slidegate_testkit::TempDir;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use std::io::{Read, Write};

use super::{POLICIES, ask, connect, exchange, expect, serve, words};

/// With a shared store a pipeline waits for one round trip and not for each of its commands, and
/// stays in order.
#[test]
fn a_pipeline_over_a_shared_store_is_answered_in_order() {
    let redis = RedisServer::start();
    let folder = TempDir::new("resp-shared");
    // The default of 50 ms is short for a machine that does other work.
    let path = folder.file("slidegate.yaml", format!("{POLICIES}\nstore: {{deadline: 10s}}\n"));
    let server = Server::start(&["--config", &path, "--redis", &redis.url()]);
    let mut lines: Vec<String> = Vec::new();
    for number in 0..300 {
        lines.push(format!("RL.CHECK per-user key{number} COST {}", number % 5));
        lines.push(format!("ECHO {number}"));
    }
    lines.push("RL.CHECK per-user key1 COST 4".into());
    lines.push("RL.REFUND per-user key1 COST 2".into());
    lines.push("RL.CHECK per-user key1 COST 5 PEEK".into());
    lines.push("RL.RESET per-user key1".into());
    lines.push("RL.CHECK per-user key1 COST 5".into());
    lines.push("THROTTLE key1 10 100 60".into());
    let answer = exchange(&server, &lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>());
    let mut rest = answer.as_str();
    let mut next = |expected: &str| {
        let (_, after) =
            rest.split_once(expected).unwrap_or_else(|| panic!("{expected} is missing in {rest}"));
        rest = after;
    };
    for number in 0..300 {
        next(&format!("*7\\r\\n:1\\r\\n:5\\r\\n:{}\\r\\n", 5 - number % 5));
        next("+store\\r\\n");
        next(&format!("\\r\\n{number}\\r\\n"));
    }
    next("*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*7\\r\\n:1\\r\\n:5\\r\\n:2\\r\\n");
    next("*7\\r\\n:0\\r\\n:5\\r\\n:2\\r\\n");
    next(":1\\r\\n*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*5\\r\\n:1\\r\\n:10\\r\\n:9\\r\\n:5\\r\\n:0\\r\\n");
    redis.kill();
    let local = ask(&server, "RL.CHECK per-user other");
    assert!(local.ends_with("+local\\r\\n$-1\\r\\n"), "an answer without the store says so: {local}");
}

/// A deploy sends SIGTERM: what has come is answered, and nobody's idle connection holds it up.
#[test]
fn on_sigterm_what_has_come_is_answered_and_idle_connections_are_closed() {
    let folder = TempDir::new("resp-stop");
    let mut server = serve(&folder, "");
    let (mut idle, mut busy) = (connect(&server), connect(&server));
    for stream in [&mut idle, &mut busy] {
        stream.write_all(&words("PING")).unwrap();
        expect(stream, b"+PONG\r\n");
    }
    let ask = words("RL.CHECK per-user alice");
    // The beginning of a command; the answer to the one before it says that it was read.
    busy.write_all(&[&words("PING")[..], &ask[..10]].concat()).unwrap();
    expect(&mut busy, b"+PONG\r\n");
    server.signal("TERM");
    assert_eq!(idle.read(&mut [0; 64]).unwrap(), 0, "the idle one is closed");
    assert!(server.is_running(), "it waits for the command that has begun");
    busy.write_all(&ask[10..]).unwrap();
    expect(&mut busy, b"*7\r\n:1\r\n:5\r\n:4\r\n:0\r\n:3600000\r\n+store\r\n$-1\r\n");
    assert_eq!(busy.read(&mut [0; 64]).unwrap(), 0, "and closed after its answer");
    assert!(server.wait().success());
}

/// A port that nobody asked for is one that nobody guards.
#[test]
fn the_port_is_off_unless_it_is_asked_for() {
    let server = Server::start(&[]);
    assert!(!server.greeting.contains("resp"), "{}", server.greeting);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--resp", &address]);
    assert_eq!(output.status.code(), Some(2));
    let error = format!(
        "cannot listen on {address}: Address already in use (os error 98); choose another address with --resp\n"
    );
    assert_eq!(text(&output.stderr), error);
}
