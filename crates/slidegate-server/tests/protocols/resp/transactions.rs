//! Transactions: what `MULTI`, `EXEC` and `DISCARD` do, held against a Redis where it knows the
//! same commands.

use slidegate_testkit::TempDir;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::{PATIENCE, POLICIES, ask, command, connect, exchange, expect, serve, words};

/// The lines as commands, one after another.
fn script(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| words(line)).collect()
}

/// What alice has left of her five.
fn left(server: &Server) -> u64 {
    let answer = ask(server, "RL.CHECK per-user alice PEEK COST 0");
    answer.split("\\r\\n").nth(3).and_then(|left| left.strip_prefix(':')?.parse().ok()).unwrap()
}

/// What a Redis answers to these bytes, errors by their first word.
fn of_redis(redis: &RedisServer, bytes: &[u8]) -> String {
    let port = redis.url().rsplit_once(':').unwrap().1.to_owned();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer.escape_ascii().to_string()
}

/// Answers with errors cut to their first word: their texts are each server's own.
fn codes(answer: &str) -> Vec<&str> {
    let lines = answer.split("\\r\\n");
    lines.map(|line| if line.starts_with('-') { line.split(' ').next().unwrap() } else { line }).collect()
}

/// Clients were written for Redis: an answer out of its place is taken for that of another command.
#[test]
fn transactions_are_answered_as_redis_answers_them() {
    let folder = TempDir::new("resp-transactions");
    let server = serve(&folder, "");
    let redis = RedisServer::start();
    let scripts: &[&[&str]] = &[
        &["MULTI", "PING", "ECHO a", "EXEC", "PING"],
        &["MULTI", "EXEC"],
        &["MULTI", "DISCARD", "EXEC"],
        &["MULTI", "PING", "DISCARD", "PING"],
        &["EXEC", "DISCARD", "PING"],
        &["MULTI", "PING", "MULTI", "EXEC", "EXEC"],
        &["MULTI", "PING", "NO-SUCH", "PING", "EXEC", "PING"],
        &["MULTI", "ECHO", "PING", "EXEC", "EXEC"],
        &["MULTI", "NO-SUCH", "DISCARD", "PING"],
        &["MULTI", "NO-SUCH", "MULTI", "EXEC", "MULTI", "PING", "EXEC"],
        &["MULTI", "DISCARD x", "PING", "EXEC"],
        &["MULTI", "MULTI x", "PING", "EXEC"],
        &["MULTI", "PING", "RESET", "EXEC", "PING"],
        &["MULTI", "PING", "QUIT", "EXEC"],
        &["MULTI", "PING", "UNWATCH", "EXEC", "UNWATCH"],
        &["MULTI", "CLIENT SETNAME me", "CLIENT GETNAME", "EXEC", "CLIENT GETNAME"],
        &["MULTI", "SELECT 0", "SELECT 99", "ECHO b", "EXEC"],
    ];
    for lines in scripts {
        let bytes = script(lines);
        let (ours, theirs) = (exchange(&server, &bytes), of_redis(&redis, &bytes));
        assert_eq!(codes(&ours), codes(&theirs), "{lines:?}");
        // The same where each command comes by itself, as a line.
        let inline: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\r\n").into_bytes()).collect();
        assert_eq!(exchange(&server, &inline), ours, "{lines:?}");
    }
    // Clients know these words.
    let said = exchange(&server, &script(&["EXEC", "DISCARD", "MULTI", "MULTI", "NO-SUCH", "EXEC"]));
    for words in [
        "-ERR EXEC without MULTI\\r\\n",
        "-ERR DISCARD without MULTI\\r\\n",
        "-ERR MULTI calls can not be nested\\r\\n",
        "-EXECABORT Transaction discarded because of previous errors.\\r\\n",
    ] {
        assert!(
            said.contains(words)
                && of_redis(&redis, &script(&["EXEC", "DISCARD", "MULTI", "MULTI", "NO-SUCH", "EXEC"]))
                    .contains(words),
            "{said}"
        );
    }
}

/// redis-py's default pipeline was charged and then raised an exception.
#[test]
fn nothing_is_charged_before_exec_and_everything_by_it() {
    let folder = TempDir::new("resp-transaction-charges");
    let server = serve(&folder, "");
    let mut stream = connect(&server);
    stream
        .write_all(&script(&["MULTI", "RL.CHECK per-user alice", "RL.CHECK per-user alice COST 9"]))
        .unwrap();
    expect(&mut stream, b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(left(&server), 5);
    // In order: refunded cost can be used again. An unknown policy is an error reply and does not
    // stop the rest.
    let more = ["RL.CHECK nobody x", "RL.CHECK per-user alice COST 4", "RL.REFUND per-user alice COST 3"];
    stream.write_all(&script(&more)).unwrap();
    stream
        .write_all(&script(&["RL.CHECK per-user alice COST 3", "RL.RESET per-user bob", "EXEC", "PING"]))
        .unwrap();
    let one = |allowed, remaining, wait: &str| {
        let reason = if allowed == 1 { "$-1" } else { "$10\r\nover_limit" };
        format!("*7\r\n:{allowed}\r\n:5\r\n:{remaining}\r\n:{wait}\r\n:3600000\r\n+store\r\n{reason}\r\n")
    };
    let expected = [
        "+QUEUED\r\n".repeat(5),
        "*7\r\n".to_owned(),
        one(1, 4, "0"),
        one(0, 4, "-1"),
        "-ERR RL.CHECK: unknown policy `nobody`; RL.POLICIES lists the policies\r\n".to_owned(),
        one(1, 0, "0"),
        one(1, 3, "0"),
        one(1, 0, "0"),
        ":0\r\n+PONG\r\n".to_owned(),
    ];
    let mut read = vec![0; expected.concat().len()];
    stream.read_exact(&mut read).unwrap();
    // The wait until the key is free shrinks by the milliseconds that have passed.
    let steady = |text: &str| -> Vec<String> {
        let is_reset = |line: &&str| line.len() == 8 && line.starts_with(":3");
        text.split("\r\n")
            .map(|line| if is_reset(&line) { "reset".to_owned() } else { line.to_owned() })
            .collect()
    };
    assert_eq!(steady(&String::from_utf8_lossy(&read)), steady(&expected.concat()));
    assert_eq!(left(&server), 0);
}

/// A client that gives up, or sends something wrong, must not have paid.
#[test]
fn a_transaction_that_does_not_end_well_charges_nothing() {
    let folder = TempDir::new("resp-transaction-aborts");
    let server = serve(&folder, "");
    let check = "RL.CHECK per-user alice";
    for lines in [
        &["MULTI", check, "DISCARD"][..],
        &["MULTI", check],
        &["MULTI", check, "QUIT"],
        &["MULTI", check, "RESET", "EXEC"],
        &["MULTI", check, "GET x", check, "EXEC"],
        &["MULTI", check, "RL.CHECK", "EXEC"],
        &["MULTI", check, "WATCH x", "EXEC"],
        &["MULTI", check, "AUTH x", "EXEC"],
        &["MULTI", check, "HELLO 3", "EXEC"],
        &["MULTI", "GET x", check, "EXEC"],
    ] {
        let answer = exchange(&server, &script(lines));
        assert_eq!(left(&server), 5, "{lines:?}: {answer}");
        if lines.last() == Some(&"EXEC") && !lines.contains(&"RESET") {
            assert!(
                answer.ends_with("-EXECABORT Transaction discarded because of previous errors.\\r\\n"),
                "{answer}"
            );
        }
    }
    let watch = ask(&server, "WATCH x");
    let refusal = "-ERR WATCH is not supported: there are no values to watch; use RL.REQUEST to charge several limits atomically\\r\\n";
    assert_eq!(watch, refusal);
    let auth = exchange(&server, &script(&["MULTI", "HELLO 3"]));
    assert_eq!(auth, "+OK\\r\\n-ERR HELLO: not allowed between MULTI and EXEC; send it before MULTI\\r\\n");
}

/// What is queued lies in memory until its client says otherwise.
#[test]
fn a_queue_that_is_full_is_refused_and_not_carried_out() {
    let folder = TempDir::new("resp-transaction-full");
    let server = serve(&folder, "");
    let check = words("RL.CHECK per-user alice COST 0");
    let full = [words("MULTI"), check.repeat(1024), words("EXEC")].concat();
    assert_eq!(exchange(&server, &full).matches("+store\\r\\n").count(), 1024);
    let charge = words("RL.CHECK per-user alice");
    let over = [words("MULTI"), charge.clone(), check.repeat(1025), words("EXEC"), words("PING")].concat();
    let answer = exchange(&server, &over);
    let refusal =
        "-ERR RL.CHECK: too many queued commands: at most 1024; send EXEC earlier, or do not use MULTI\\r\\n";
    assert_eq!(answer.matches(refusal).count(), 1, "the rest is not kept and fails with it");
    assert!(
        answer.ends_with("-EXECABORT Transaction discarded because of previous errors.\\r\\n+PONG\\r\\n")
    );
    let long = command(&[b"ECHO", &vec![b'a'; 60_000]]);
    let answer = exchange(&server, &[words("MULTI"), charge, long.repeat(5), words("EXEC")].concat());
    assert!(
        answer.contains(
            "-ERR ECHO: too many queued bytes: at most 262144; send EXEC earlier, or do not use MULTI\\r\\n"
        ),
        "{answer}"
    );
    assert!(
        answer.ends_with("-EXECABORT Transaction discarded because of previous errors.\\r\\n"),
        "{answer}"
    );
    assert_eq!(left(&server), 5);
}

/// Over a shared store decisions are asked for together; what answers them must stay in the order
/// of the commands.
#[test]
fn over_a_shared_store_a_transaction_is_answered_in_order() {
    let redis = RedisServer::start();
    let folder = TempDir::new("resp-transaction-shared");
    // The default of 50 ms is short for a machine that does other work.
    let path = folder.file("slidegate.yaml", format!("{POLICIES}\nstore: {{deadline: 10s}}\n"));
    let server = Server::start(&["--config", &path, "--redis", &redis.url()]);
    let mut lines = vec!["RL.CHECK per-user before".to_owned(), "MULTI".to_owned()];
    for number in 0..300 {
        lines.push(format!("RL.CHECK per-user key{number} COST {}", number % 5));
        lines.push(format!("ECHO {number}"));
    }
    lines.push("RL.CHECK per-user key1 COST 4".into());
    lines.push("RL.REFUND per-user key1 COST 2".into());
    lines.push("RL.RESET per-user key1".into());
    lines.push("RL.CHECK per-user key1 COST 5".into());
    lines.push("EXEC".into());
    lines.push("RL.CHECK per-user key1 COST 1".into());
    let answer = exchange(&server, &lines.iter().flat_map(|line| words(line)).collect::<Vec<_>>());
    let mut rest = answer.as_str();
    let mut next = |expected: &str| {
        let (_, after) =
            rest.split_once(expected).unwrap_or_else(|| panic!("{expected} is missing in {rest}"));
        rest = after;
    };
    next("*7\\r\\n:1\\r\\n:5\\r\\n:4\\r\\n");
    next("+store\\r\\n$-1\\r\\n+OK\\r\\n+QUEUED\\r\\n");
    next("+QUEUED\\r\\n*604\\r\\n");
    for number in 0..300 {
        next(&format!("*7\\r\\n:1\\r\\n:5\\r\\n:{}\\r\\n", 5 - number % 5));
        next("+store\\r\\n");
        next(&format!("\\r\\n{number}\\r\\n"));
    }
    next("*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*7\\r\\n:1\\r\\n:5\\r\\n:2\\r\\n");
    next(":1\\r\\n*7\\r\\n:1\\r\\n:5\\r\\n:0\\r\\n");
    next("*7\\r\\n:0\\r\\n:5\\r\\n:0\\r\\n");
}
