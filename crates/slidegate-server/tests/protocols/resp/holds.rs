//! Reservations of Redis clients.

use super::*;
use slidegate::clock::{Clock, SystemClock};
use slidegate_testkit::process::command;
use slidegate_testkit::service::installed;

const STREAMS: &str = "
policies:
  - {name: tokens, scope: [user], quota: 100/1h, estimate: 30}
  - {name: streams, scope: [user], in_flight: 1, lease: 1m}
resp:
  listen: 127.0.0.1:0
";

fn serve_streams(folder: &TempDir) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", STREAMS)])
}

/// The lines that redis-cli prints for a command.
fn lines(server: &Server, arguments: &[&str]) -> Vec<String> {
    cli(server, arguments).lines().map(str::to_owned).collect()
}

/// Cost that is known at the end is reserved and settled by any client that can send a command.
#[test]
fn redis_cli_reserves_and_settles() {
    let folder = TempDir::new("resp-holds");
    let server = serve_streams(&folder);
    let reserved = lines(&server, &["RL.RESERVE", "tokens", "alice", "COST", "60", "TTL", "90000"]);
    assert_eq!(reserved.len(), 10, "{reserved:?}");
    assert_eq!(reserved[..4], ["1", "100", "40", "0"]);
    assert_eq!((&reserved[5][..], &reserved[6][..], &reserved[7][..]), ("store", "", "60"));
    let until_ms: u64 = reserved[8].parse().unwrap();
    let clock = SystemClock::new();
    let now_ms = clock.wall_time(clock.now()).as_micros() / 1000;
    assert!(until_ms > now_ms + 60_000 && until_ms <= now_ms + 90_000, "{until_ms}");
    let ticket = reserved[9].as_str();

    let denied = lines(&server, &["RL.RESERVE", "tokens", "alice", "COST", "41"]);
    assert_eq!(
        (&denied[0][..], &denied[2][..], &denied[6][..], &denied[7][..]),
        ("0", "40", "over_limit", "60")
    );
    assert_eq!(denied[8..], ["", ""], "without a ticket");
    assert_eq!(lines(&server, &["RL.EXTEND", ticket, "HOLD", "101"])[0], "denied");
    assert_eq!(lines(&server, &["RL.EXTEND", ticket, "HOLD", "70"])[..3], ["changed", "100", "30"]);
    let shorter = lines(&server, &["RL.EXTEND", ticket, "TTL", "5000", "HOLD", "70"]);
    assert!(shorter[7].parse::<u64>().unwrap() < until_ms, "{shorter:?}");
    let part = lines(&server, &["RL.SETTLE", ticket, "COST", "20", "MORE"]);
    assert_eq!((part.len(), &part[0][..], &part[5][..], &part[6][..]), (9, "changed", "20", "50"));
    let last = lines(&server, &["rl.settle", &part[8], "cost", "25"]);
    assert_eq!(
        (&last[0][..], &last[2][..], &last[5][..], &last[6..]),
        ("changed", "75", "5", &["0".to_owned(), String::new(), String::new()][..])
    );
    assert_eq!(lines(&server, &["RL.SETTLE", ticket, "COST", "25"])[0], "already_settled");
    // Without a cost, the estimate of the policy is held.
    let estimated = lines(&server, &["RL.RESERVE", "tokens", "alice"]);
    assert_eq!(estimated[7], "30");
    assert_eq!(lines(&server, &["RL.CANCEL", &estimated[9]])[..3], ["changed", "100", "75"]);
}

/// A client that lost its connection sends its command again.
#[test]
fn a_reservation_with_an_id_is_made_once() {
    let folder = TempDir::new("resp-once");
    let server = serve_streams(&folder);
    let reserve = |id: &str| lines(&server, &["RL.RESERVE", "tokens", "alice", "ID", id, "COST", "10"]);
    assert_eq!(reserve("a"), reserve("a"));
    assert_eq!(reserve("b")[7], "20");
}

/// What runs at once is limited for workers that only have a Redis client.
#[test]
fn a_permit_is_taken_given_back_and_only_asked_for_by_checks() {
    let folder = TempDir::new("resp-permits");
    let server = serve_streams(&folder);
    let taken = lines(&server, &["RL.RESERVE", "streams", "alice"]);
    assert_eq!(lines(&server, &["RL.CHECK", "streams", "alice"])[0], "0");
    assert_eq!(lines(&server, &["RL.RESERVE", "streams", "alice"])[0], "0");
    assert_eq!(lines(&server, &["RL.EXTEND", &taken[9]])[0], "changed");
    // Settled over HTTP: a ticket is the same everywhere.
    let body = format!(r#"{{"ticket":"{}","cost":1}}"#, taken[9]);
    assert_eq!(server.post("/v1/settle", &body).status, 200);
    for _ in 0..2 {
        assert_eq!(lines(&server, &["RL.CHECK", "streams", "alice"])[0], "1");
    }
}

/// Replies stay in the order of the commands, in a pipeline and in a transaction.
#[test]
fn reservations_in_a_pipeline_are_decided_in_order() {
    let folder = TempDir::new("resp-holds-pipeline");
    let server = serve_streams(&folder);
    let script = [
        "RL.CHECK tokens bob COST 10",
        "RL.RESERVE tokens bob COST 80",
        "RL.CHECK tokens bob COST 11",
        "MULTI",
        "RL.RESERVE tokens bob COST 10",
        "EXEC",
    ];
    let script = script.map(words).concat();
    let replies = exchange(&server, &script);
    let first: Vec<&str> = replies.split("\\r\\n").filter(|line| line.starts_with('*')).collect();
    assert_eq!(first, ["*7", "*10", "*7", "*1", "*10"], "{replies}");
    assert_eq!(ask(&server, "RL.CHECK tokens bob COST 0").split("\\r\\n").nth(3), Some(":0"));
}

/// A typo is named, and holds nothing.
#[test]
fn every_wrong_argument_of_a_reservation_is_named() {
    let folder = TempDir::new("resp-holds-wrong");
    let server = serve_streams(&folder);
    let hostile = "x".repeat(5000);
    for (line, error) in [
        (
            "RL.RESERVE",
            "ERR RL.RESERVE: too few arguments (0); write `RL.RESERVE policy key [key ...] [COST n] [TTL ms] [ID id] [TIMEOUT ms]`",
        ),
        ("RL.RESERVE nope x", "ERR RL.RESERVE: unknown policy `nope`; RL.POLICIES lists the policies"),
        ("RL.RESERVE tokens", "ERR RL.RESERVE: policy `tokens` counts by user; write `tokens <user>`"),
        (
            "RL.RESERVE tokens a TTL 0",
            "ERR RL.RESERVE: invalid TTL `0`: must be a whole number from 1 to 3600000",
        ),
        (
            "RL.RESERVE tokens a TTL 3600001",
            "ERR RL.RESERVE: invalid TTL `3600001`: must be a whole number from 1 to 3600000",
        ),
        ("RL.RESERVE tokens a ID", "ERR RL.RESERVE: ID has no value; give for example a UUID"),
        (
            "RL.RESERVE tokens a ID \u{e9}",
            "ERR RL.RESERVE: invalid ID `\\xc3\\xa9`: must be 1 to 128 visible ASCII characters, for example a UUID",
        ),
        ("RL.RESERVE tokens a COST", "ERR RL.RESERVE: COST has no value; write for example `COST 5`"),
        ("RL.RESERVE tokens a COST 1 COST 2", "ERR RL.RESERVE: COST is given twice; give it once"),
        (
            "RL.RESERVE tokens a PEEK",
            "ERR RL.RESERVE: unexpected argument `PEEK`; expected `COST n` or `TTL n`",
        ),
        ("RL.RESERVE CL.THROTTLE a", ""),
        (
            "RL.SETTLE x COST 1",
            "ERR RL.SETTLE: invalid ticket `x`: must be the text that a reservation returned, unchanged",
        ),
        (
            &format!("RL.CANCEL {hostile}"),
            "ERR RL.CANCEL: invalid ticket `xxxxxxxxxxxxxxxxxxxx...`: must be the text that a reservation returned, unchanged",
        ),
        ("RL.SETTLE x", "ERR RL.SETTLE: too few arguments (1); write `RL.SETTLE ticket COST n [MORE]`"),
    ] {
        let reply = ask(&server, line);
        let expected = format!("-{error}\r\n").as_bytes().escape_ascii().to_string();
        if line.contains("CL.THROTTLE") {
            assert!(reply.starts_with("-ERR RL.RESERVE: "), "{reply}");
            continue;
        }
        assert_eq!(reply, expected, "{line}");
    }
    let ticket = lines(&server, &["RL.RESERVE", "tokens", "a", "COST", "0"])[9].clone();
    let reply = ask(&server, &format!("RL.SETTLE {ticket} COST x"));
    assert_eq!(
        reply,
        "-ERR RL.SETTLE: invalid COST `x`: must be a whole number from 0 to 9007199254740991\\r\\n"
    );
    let reply = ask(&server, &format!("RL.EXTEND {ticket} HOLD"));
    assert_eq!(reply, "-ERR RL.EXTEND: HOLD has no value; write for example `HOLD 5`\\r\\n");
    assert_eq!(lines(&server, &["RL.CHECK", "tokens", "a", "COST", "100"])[0], "1");
}

/// Limits on what is read and on what is written are two, and a call has a cost under each.
#[test]
fn costs_by_name_count_under_the_policies_that_name_them() {
    let folder = TempDir::new("resp-named-costs");
    let policies = "
policies:
  - {name: input, scope: [user], quota: 1000/1h, counts: input}
  - {name: output, scope: [user], quota: 5000/1h, counts: output}
resp:
  listen: 127.0.0.1:0
";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", policies)]);
    let costs = "input=900,output=4096";
    assert_eq!(lines(&server, &["RL.REQUEST", "user", "alice", "COST", costs])[..3], ["1", "1000", "100"]);
    assert_eq!(
        lines(&server, &["RL.CHECK", "output", "alice", "COST", costs, "PEEK"])[..3],
        ["0", "5000", "904"]
    );
    assert_eq!(
        lines(&server, &["RL.REFUND", "output", "alice", "COST", "output=96"])[..3],
        ["1", "5000", "1000"]
    );

    let reserved = lines(&server, &["RL.RESERVE", "output", "bob", "COST", costs]);
    assert_eq!((reserved[2].as_str(), reserved[7].as_str()), ("904", "4096"));
    let settled = lines(&server, &["RL.SETTLE", &reserved[9], "COST", "input=1,output=200", "MORE"]);
    assert_eq!((settled[0].as_str(), settled[5].as_str()), ("changed", "200"));
    let extended = lines(&server, &["RL.EXTEND", &reserved[9], "HOLD", "input=1,output=600"]);
    assert_eq!(extended[6], "400");
    let settled = lines(&server, &["RL.SETTLE", &reserved[9], "COST", "512"]);
    assert_eq!((settled[0].as_str(), settled[2].as_str()), ("changed", "4488"));
    assert_eq!(
        ask(&server, "RL.CHECK output bob COST output=5,6"),
        "-ERR RL.CHECK: invalid COST `6`: must be a number, or numbers by name, for example \
         `COST input=900,output=4096`\\r\\n"
    );
}

/// A worker that misspells a cost must not use the limit of nobody.
#[test]
fn a_cost_that_no_policy_counts_is_an_error_of_every_command() {
    let folder = TempDir::new("resp-holds-unknown");
    let config = "policies: [{name: tpm, scope: [user], quota: 5000/1h, counts: output}]\n\
                  resp: {listen: '127.0.0.1:0'}\n";
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
    let error = "-ERR unknown cost `ouput`: no policy counts it, and policy `tpm` counts `output`, which is missing; \
                 correct the name, or add `output`\\r\\n";
    let reserved = lines(&server, &["RL.RESERVE", "tpm", "alice", "COST", "output=10"]);
    let settle = format!("RL.SETTLE {} COST ouput=1", reserved[9]);
    let extend = format!("RL.EXTEND {} HOLD ouput=1", reserved[9]);
    for command in [
        "RL.CHECK tpm alice COST ouput=1",
        "RL.CHECK tpm alice COST ouput=1 PEEK",
        "RL.REFUND tpm alice COST ouput=1",
        "RL.REQUEST user alice COST ouput=1",
        "RL.RESERVE tpm alice COST ouput=1",
        &settle,
        &extend,
    ] {
        assert_eq!(ask(&server, command), error, "{command}");
    }
    let left = lines(&server, &["RL.CHECK", "tpm", "alice", "PEEK"]);
    assert_eq!(left[2], "4990");
}

/// A worker in Python takes a permit, and its crash gives it back: with the client it has.
#[test]
fn redis_py_reserves_in_both_protocols() {
    let folder = TempDir::new("resp-holds-python");
    let server = serve_streams(&folder);
    let script = "
import redis, sys
port = int(sys.argv[1])
for protocol in (2, 3):
    client = redis.Redis('127.0.0.1', port, protocol=protocol, decode_responses=True)
    user = f'user{protocol}'
    answer = client.execute_command('RL.RESERVE', 'tokens', user, 'COST', 60)
    if protocol == 3:
        assert answer['allowed'] is True and answer['held'] == 60, answer
        answer = list(answer.values())
    allowed, limit, remaining, retry, reset, source, reason, held, until, ticket = answer
    assert (limit, remaining, held, reason) == (100, 40, 60, None), answer
    settled = client.execute_command('RL.SETTLE', ticket, 'COST', 20)
    if protocol == 3:
        assert list(settled)[:2] == ['outcome', 'limit'], settled
        settled = list(settled.values())
    assert settled[:3] == ['changed', 100, 80] and settled[5:] == [20, 0, None, None], settled
    # The default pipeline is a transaction.
    with client.pipeline() as pipeline:
        pipeline.execute_command('RL.RESERVE', 'streams', user)
        pipeline.execute_command('RL.RESERVE', 'streams', user)
        first, second = pipeline.execute()
    if protocol == 3:
        first, second = list(first.values()), list(second.values())
    assert first[0] and not second[0] and second[9] is None, (first, second)
    client.close()
print('served')
";
    let output =
        command(installed("python/bin/python")).args(["-c", script, port(&server)]).output().unwrap();
    assert_eq!(succeed(&output), "served\n", "{}", text(&output.stderr));
}
