//! Replies that are larger than any that a call can get: refused before they take memory.

use std::fs;
use std::process::Command;
use std::time::Duration;

use slidegate::DecisionSource;
use slidegate_redis::FailureKind;
use slidegate_testkit::redis::{FakeRedis, FakeReply};

use crate::callers::{check, daily, errors, gate, last_failure, options};

/// What a server sends instead of a reply, and what the operator reads.
fn oversized() -> Vec<(&'static str, FakeReply, &'static str)> {
    let forever = |head: &str, block: &str| FakeReply::SendForever(head.into(), block.repeat(16_384).into());
    let nulls = |head: &str| forever(head, "_\r\n");
    vec![
        (
            "string",
            forever("$1073741824\r\n", "a"),
            "reply too large: 1073741824 bytes, must be at most 65536 bytes",
        ),
        (
            "error",
            forever("!1073741824\r\n", "a"),
            "reply too large: 1073741824 bytes, must be at most 65536 bytes",
        ),
        (
            "list",
            nulls("*1000000000\r\n"),
            "reply too large: a list of 1000000000 elements, must be at most 65536 bytes",
        ),
        (
            "list, header alone",
            FakeReply::from("*100000000\r\n"),
            "reply too large: a list of 100000000 elements",
        ),
        ("map", nulls("%1000000000\r\n"), "reply too large: a list of 1000000000 elements"),
        ("depth", forever("", "*1\r\n"), "Maximum recursion depth exceeded"),
        ("text", forever("+", "a"), "reply too large: 65537 bytes and more, must be at most 65536 bytes"),
        (
            "many lines",
            forever("*20000\r\n", "+aaaaaaaaaaaaaa\r\n"),
            "reply too large: 65537 bytes and more, must be at most 65536 bytes",
        ),
        ("length", forever("$", "1"), "reply too large: 65537 bytes and more"),
        ("no reply", forever("", "HTTP/1.1 400 Bad Request\r\n"), "malformed reply: begins with `H`"),
    ]
}

/// A server that replies so to scripts, or to whatever comes first.
fn fake(reply: FakeReply, greets: bool) -> FakeRedis {
    let answer = move |command: &Vec<Vec<u8>>| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        b"SUBSCRIBE" | b"EVALSHA" => reply.clone(),
        _ if greets => "+OK\r\n".into(),
        _ => reply.clone(),
    };
    if greets { FakeRedis::greeting(answer) } else { FakeRedis::start(answer) }
}

/// The operator must read which server sent what, and a call that may have charged is not sent
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_too_large_is_a_failure_that_names_the_node_and_the_bound() {
    for (what, reply, expected) in oversized() {
        let fake = fake(reply, true);
        let gate = gate([daily(5)], options(&fake.url()).without_batching());
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local), "{what}");
        let failure = last_failure(&gate);
        let node = format!("redis at 127.0.0.1:{}: ", fake.port());
        assert!(failure.starts_with(&node) && failure.contains(expected), "{what}: {failure}");
        assert!(failure.ends_with("; is a Redis server at this address?"), "{what}: {failure}");
        assert_eq!(errors(&gate, FailureKind::Malformed), 1, "{what}");
        let sent = fake.heard().iter().filter(|command| command[0] == b"EVALSHA").count();
        assert_eq!(sent, 1, "{what}: the call may have charged");
    }
}

/// Before the first call: a connection is refused as a call is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greeting_that_is_too_large_is_no_connection() {
    for (what, reply, expected) in oversized() {
        let fake = fake(reply, false);
        let gate = gate([daily(5)], options(&fake.url()));
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local, "{what}");
        let failure = last_failure(&gate);
        assert!(failure.contains("cannot connect: ") && failure.contains(expected), "{what}: {failure}");
        assert!(errors(&gate, FailureKind::Malformed) > 0, "{what}: {failure}");
    }
}

/// Says where the server of the test below is.
const URL: &str = "SLIDEGATE_TEST_OVERSIZED_URL";
/// Most bytes that a hostile reply may cost the program: far below what it announces.
const MOST_BYTES: u64 = 16 << 20;

/// One reply must not end the process that all limits are in.
#[test]
fn replies_without_an_end_take_little_memory() {
    let tests = std::env::current_exe().unwrap();
    for greets in [true, false] {
        for (what, reply, _) in oversized() {
            let fake = fake(reply, greets);
            let mut asking = Command::new(&tests);
            asking.args([
                "--exact",
                "oversized::a_program_that_asks_such_a_server",
                "--ignored",
                "--nocapture",
            ]);
            let ended = asking.env(URL, fake.url()).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            let grown = said.lines().find_map(|line| line.split("grown by ").nth(1)?.parse::<u64>().ok());
            let grown = grown.unwrap_or_else(|| panic!("{what}: {said}"));
            println!("{what}: {} KiB", grown >> 10);
            assert!(ended.status.success() && grown < MOST_BYTES, "{what}: {grown} bytes: {said}");
        }
    }
}

/// What the test above runs, so that its memory is counted by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server that another test starts"]
async fn a_program_that_asks_such_a_server() {
    let gate =
        gate([daily(100)], options(&std::env::var(URL).unwrap()).with_deadline(Duration::from_secs(1)));
    let before = peak_bytes();
    for _ in 0..5 {
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
    }
    println!("grown by {}", peak_bytes() - before);
}

/// The most memory that this process has had in RAM.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
