//! What `validate --keys` and `replay` say that keys take, compared with keys in a real Redis.

use std::cell::RefCell;
use std::fmt::Write as _;

use futures_util::future::join_all;
use serde_json::Value;
use slidegate::{Algorithm, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisOptions, RedisStore};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{run, text};
use slidegate_testkit::{TempDir, until_true};

/// The start of a minute in 2023, so that no window ends while keys are made.
const START_US: u64 = 1_699_999_980_000_000;
/// Keys that are charged at once.
const AT_ONCE: usize = 400;

/// Keys with some requests each.
#[derive(Debug, Clone, Copy)]
struct Case {
    keys: u64,
    limit: u64,
    charges: u64,
    first_cost: u64,
    cost: u64,
}

impl Case {
    fn policy(self, algorithm: Algorithm) -> PolicySet {
        let quota = Quota::per_minute(self.limit).with_algorithm(algorithm);
        PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap()
    }

    /// The bytes that all keys take in Redis.
    fn said(self, algorithm: Algorithm) -> u64 {
        let folder = TempDir::new("key-size");
        let policy = format!(
            "policies: [{{name: per-user, scope: [user], quota: {}/1m, algorithm: {algorithm}}}]\n",
            self.limit
        );
        let config = folder.file("slidegate.yaml", policy);
        if self.is_full() {
            return said_by_validate(&config, self.keys);
        }
        let mut log = String::new();
        for at in self.times() {
            for number in 0..self.keys {
                let _ = writeln!(log, r#"{{"time":{at},"user":"{}","cost":{}}}"#, id(number), self.cost);
            }
        }
        let log = folder.file("log.jsonl", log);
        let fields = ["--log-format", "json", "--field", "user=user", "--cost-field", "cost"];
        let output = run(&[&["replay", &log, "--config", &config, "--json", "-"], &fields[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(outcome["configured"]["keys_at_once"], self.keys);
        outcome["configured"]["redis_bytes"].as_u64().unwrap()
    }

    /// Whether a key has all that it can hold: a cost above 1 among many widens each entry.
    fn is_full(self) -> bool {
        self.first_cost + (self.charges - 1) * self.cost == self.limit && self.first_cost > 1
    }

    /// The time of each round of charges, spread over half a window.
    fn times(self) -> impl Iterator<Item = u64> {
        (0..self.charges).map(move |round| START_US + round * 30_000_000 / self.charges)
    }
}

/// 24 bytes, as long as a UUID without its dashes is not: an ordinary user id.
fn id(number: u64) -> String {
    format!("user-{number:019}")
}

/// The bytes in Redis at the end of the line about the policy: `..., 80 keys take 49.4 KiB and 61.2 KiB.`
fn said_by_validate(config: &str, keys: u64) -> u64 {
    let output = run(&["validate", config, "--keys", &keys.to_string()]);
    let said = text(&output.stdout);
    let line = said.lines().last().unwrap();
    let (_, size) = line.strip_suffix(" KiB.").and_then(|line| line.rsplit_once(' ')).expect(line);
    let kib: f64 = size.parse().unwrap();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a few hundred
    let bytes = (kib * 1024.0) as u64;
    bytes
}

fn case(keys: u64, limit: u64, charges: u64, cost: u64) -> Case {
    Case { keys, limit, charges, first_cost: cost, cost }
}

/// Counts and fills that differ in what decides about bytes: the tables, the ring and its widths.
fn cases() -> [Case; 7] {
    [
        case(1200, 100, 1, 1),
        Case { first_cost: 2, ..case(80, 100, 99, 1) },
        case(3000, 100, 1, 1),
        case(300, 10, 10, 1),
        case(150, 100, 30, 1),
        case(80, 100, 100, 1),
        case(100, 10_000, 60, 150),
    ]
}

/// Anyone who sizes a Redis by these figures gets a machine of that size.
#[test]
fn bytes_in_redis_are_within_a_tenth_of_what_is_said_for_every_algorithm() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(START_US);
    // One connection for all: the buffers of each are 32 KiB, for as long as the server has not
    // noticed that it is closed.
    let connection = RefCell::new(server.connect());
    let ask = |command: &[&str]| connection.borrow_mut().call(command).unwrap().to_string();
    let used = || -> u64 {
        // Tables are resized and connections are closed in the background.
        until_true("nobody else is connected, and no table is being resized", || {
            ask(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() <= 1
                && !ask(&["DEBUG", "HTSTATS", "0"]).contains("rehashing target")
        });
        let info = ask(&["INFO", "memory"]);
        info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
    };
    for algorithm in Algorithm::ALL {
        // Counters take the same whatever is charged.
        let count = if algorithm == Algorithm::SlidingLog { usize::MAX } else { 2 };
        for case in cases().into_iter().take(count) {
            let make = |keys: u64, rounds: u64| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let options = RedisOptions::new(&server.url()).unwrap();
                let options = options.with_deadline(std::time::Duration::from_secs(20));
                runtime.block_on(async {
                    let gate =
                        SharedGate::new(case.policy(algorithm), RedisStore::new(options).unwrap()).unwrap();
                    for (round, at) in case.times().take(usize::try_from(rounds).unwrap()).enumerate() {
                        server.clock().stand(at);
                        let cost = if round == 0 { case.first_cost } else { case.cost };
                        for first in (0..keys).step_by(AT_ONCE) {
                            let last = keys.min(first + AT_ONCE as u64);
                            let decided = (first..last).map(async |number| {
                                let id = id(number);
                                gate.check(&Request::new().with("user", &id).with_cost(cost))
                                    .await
                                    .is_allowed()
                            });
                            assert!(join_all(decided).await.into_iter().all(|is_allowed| is_allowed));
                        }
                    }
                });
                // Closes its connections, whose buffers would count.
                drop(runtime);
            };
            // The scripts, and the histogram that the server has for each command, are there
            // before.
            make(1, case.charges);
            ask(&["DBSIZE"]);
            ask(&["FLUSHALL"]);
            let before = used();
            make(case.keys, case.charges);
            assert_eq!(ask(&["DBSIZE"]).trim(), case.keys.to_string());
            let found = used() - before;
            let said = case.said(algorithm);
            assert!(found.abs_diff(said) * 10 <= found, "{algorithm} {case:?}: {found} bytes, said {said}");
            ask(&["FLUSHALL"]);
        }
    }
}
