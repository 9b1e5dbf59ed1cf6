//! A flood of unique keys over RESP against a small bound of bytes. `bench/flood` sends fifty
//! million.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use slidegate_testkit::service::Server;

/// Unique keys, six times as many as fit.
const KEYS: usize = 60_000;
const PIPELINE: usize = 1000;
/// Lines of a reply to a check that is allowed: the array, five numbers, the source, no reason. One that is
/// denied has one more.
const LINES_PER_REPLY: usize = 8;

fn command(words: &[&str]) -> String {
    let all: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{all}", words.len())
}

/// Resident memory of the service in KiB.
fn resident_kib(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn used(server: &Server, user: &str) -> Value {
    let body = json!({ "attributes": { "user": user } }).to_string();
    server.post("/v1/peek", &body).json()["policies"][0]["used"].clone()
}

/// Attackers make up users: memory must stay where it is, and customers must keep their counts.
#[test]
fn a_flood_over_resp_leaves_memory_flat_and_busy_keys_their_counts() {
    let policy = "1000/1d per user";
    let args = ["--policy", policy, "--resp", "127.0.0.1:0", "--max-bytes", "1MiB"];
    let server = Server::start(&args);
    for user in 0..100 {
        for cost in [1, 40 + user] {
            let body = json!({ "attributes": { "user": format!("busy-{user}") }, "cost": cost }).to_string();
            assert_eq!(server.post("/v1/check", &body).status, 200);
        }
    }
    let spend = |user: usize| {
        let body = json!({ "attributes": { "user": format!("spent-{user}") }, "cost": 1000 }).to_string();
        server.post("/v1/check", &body).status
    };
    // Keys that were used once are evicted first.
    assert!((0..100).all(|user| spend(user) == 200));
    let mut stream = TcpStream::connect(server.address_of("resp")).unwrap();
    let pid = {
        stream.write_all(command(&["INFO", "server"]).as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let len = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]).into_owned();
        answer.lines().find_map(|line| line.strip_prefix("process_id:").map(str::to_owned)).unwrap()
    };
    let name = server.get("/v1/policies").json()["policies"][0]["name"].as_str().unwrap().to_owned();
    let (mut full, mut chunk) = (None, vec![0; 1 << 16]);
    for from in (0..KEYS).step_by(PIPELINE) {
        let checks: String =
            (from..from + PIPELINE).map(|n| command(&["RL.CHECK", &name, &format!("made-up-{n}")])).collect();
        stream.write_all(checks.as_bytes()).unwrap();
        let mut lines = 0;
        while lines < PIPELINE * LINES_PER_REPLY {
            let len = stream.read(&mut chunk).unwrap();
            assert!(len > 0, "the service closed the connection");
            lines += chunk[..len].iter().filter(|byte| **byte == b'\n').count();
        }
        if from == KEYS / 2 {
            full = Some(resident_kib(&pid));
        }
    }
    let (full, end) = (full.unwrap(), resident_kib(&pid));
    let memory = server.get("/v1/status").json()["memory"].clone();
    assert!(memory["dropped"].as_u64() > Some(KEYS as u64 / 2), "{memory}");
    assert!(memory["bytes"].as_u64() <= Some(1 << 20), "{memory}");
    assert!(end < full + 4096, "{full} KiB when it was full, {end} KiB at the end");
    for user in 0..100 {
        assert_eq!(used(&server, &format!("busy-{user}")), json!(41 + user), "busy-{user}");
        assert_eq!(spend(user), 429, "spent-{user} starts again");
    }
}
