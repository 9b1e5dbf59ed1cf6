//! Forecasts compared with what they forecast: keys in a real Redis and in the memory store.

use std::cell::RefCell;

use futures_util::future::join_all;
use serde_json::Value;
use slidegate::{
    Algorithm, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, RedisOptions, Request, SharedGate,
    Timestamp,
};
use slidegate_replay::{Demand, Forecast, Shard};
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
    cost: u64,
}

impl Case {
    fn policy(self, algorithm: Algorithm) -> PolicySet {
        let quota = Quota::per_minute(self.limit).with_algorithm(algorithm);
        PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap()
    }

    fn forecast(self, algorithm: Algorithm) -> Forecast {
        let Self { keys, charges, cost, .. } = self;
        #[allow(clippy::cast_precision_loss)] // small
        let charges_per_key = Some(charges as f64);
        let key_bytes = id(0).len() as u64;
        let demand = Demand { keys, key_bytes, decisions_per_second: 0.0, cost, charges_per_key };
        let forecast = Forecast::of(self.policy(algorithm).iter().next().unwrap(), demand, Shard::default());
        assert_eq!(forecast.own().algorithm, algorithm.name());
        forecast
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

fn within_a_tenth(found: u64, forecast: u64) -> bool {
    found.abs_diff(forecast) * 10 <= found
}

/// Counts and fills that differ in what decides about bytes: the tables, the ring and its widths.
const CASES: [Case; 6] = [
    Case { keys: 1200, limit: 100, charges: 1, cost: 1 },
    Case { keys: 3000, limit: 100, charges: 1, cost: 1 },
    Case { keys: 300, limit: 10, charges: 10, cost: 1 },
    Case { keys: 150, limit: 100, charges: 30, cost: 1 },
    Case { keys: 80, limit: 100, charges: 100, cost: 1 },
    Case { keys: 100, limit: 10_000, charges: 60, cost: 150 },
];

/// Anyone who sizes a Redis by the forecast gets a machine of that size.
#[test]
fn bytes_in_redis_are_within_a_tenth_of_the_forecast_for_every_algorithm() {
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
        let count = if algorithm == Algorithm::SlidingLog { CASES.len() } else { 1 };
        for case in CASES.into_iter().take(count) {
            let make = |keys: u64, rounds: u64| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let options = RedisOptions::new(&server.url()).unwrap();
                let options = options.with_deadline(std::time::Duration::from_secs(20));
                runtime.block_on(async {
                    let gate = SharedGate::redis(case.policy(algorithm), options).unwrap();
                    for at in case.times().take(usize::try_from(rounds).unwrap()) {
                        server.clock().stand(at);
                        for first in (0..keys).step_by(AT_ONCE) {
                            let last = keys.min(first + AT_ONCE as u64);
                            let decided = (first..last).map(async |number| {
                                let id = id(number);
                                gate.check_async(&Request::new().with("user", &id).with_cost(case.cost))
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
            let forecast = case.forecast(algorithm).own().redis.typical;
            assert!(
                within_a_tenth(found, forecast),
                "{algorithm} {case:?}: {found} bytes, forecast {forecast}"
            );
            ask(&["FLUSHALL"]);
        }
    }
}

/// Anyone who sets `max_bytes` or sizes a container by the forecast must not lose keys.
#[test]
fn bytes_in_the_memory_store_are_within_a_tenth_of_the_forecast_for_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let more = [
            Case { keys: 40_000, limit: 100, charges: 1, cost: 1 },
            Case { keys: 20_000, limit: 50, charges: 8, cost: 1 },
        ];
        let larger = CASES.into_iter().map(|case| Case { keys: case.keys * 5, ..case });
        for case in larger.chain(more) {
            let clock = ManualClock::at(Timestamp::from_micros(START_US));
            let keys = usize::try_from(case.keys).unwrap();
            let store = MemoryStore::builder().max_keys(keys).clock(clock.clone()).build();
            let gate = Gate::with_memory(case.policy(algorithm), store);
            for at in case.times() {
                clock.set(Timestamp::from_micros(at));
                for number in 0..case.keys {
                    let id = id(number);
                    let _ = gate.check(&Request::new().with("user", &id).with_cost(case.cost));
                }
            }
            let found = gate.store().stats().bytes as u64;
            let forecast = case.forecast(algorithm).own().memory.typical;
            assert!(
                within_a_tenth(found, forecast),
                "{algorithm} {case:?}: {found} bytes, forecast {forecast}"
            );
        }
    }
}

/// The command is for those who do not write programs: it must say what the library says.
#[test]
fn the_command_forecasts_from_numbers_from_a_configuration_and_from_a_log() {
    let json = |args: &[&str]| -> Value {
        let output = run(&[&["forecast", "--json"], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_str(&text(&output.stdout)).unwrap()
    };
    let stated = json(&["--keys", "1M", "--limit", "100", "--window", "1m", "--rate", "5000/s"]);
    let policy = &stated["policies"][0];
    assert_eq!((&policy["policy"], &policy["algorithm"]), (&"per-key".into(), &"sliding-log".into()));
    assert_eq!(policy["algorithms"].as_array().unwrap().len(), 4);
    let own = &policy["algorithms"][0];
    let bytes = |of: &str, which: &str| own[of][which].as_u64().unwrap();
    assert!(bytes("redis", "full") > 5 * bytes("redis", "typical") / 2, "{own}");
    // 584 bytes of a full key with a name of 22 bytes in bench/RESULTS.md; here are its expiry and
    // its share of two tables, too.
    assert!((600..720).contains(&bytes("redis", "full_key")), "{own}");

    let folder = TempDir::new("forecast");
    let config = folder.file(
        "slidegate.yaml",
        "policies:\n  - {name: a, scope: [ip], quota: 100/1m, algorithm: token-bucket}\n  - {name: b, scope: [user], quota: 5/1h}\n",
    );
    let of_config = json(&["--config", &config, "--keys", "10k"]);
    let names: Vec<_> =
        of_config["policies"].as_array().unwrap().iter().map(|one| one["policy"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(of_config["policies"][0]["algorithms"][0]["algorithm"], "token-bucket");

    let line = |n: u32| {
        format!(
            "10.0.{}.1 - - [20/Nov/2026:10:00:{:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n",
            n % 50,
            n / 20
        )
    };
    let log = folder.file("access.log", (0..1000).map(line).collect::<String>());
    let of_log = json(&["--config", &config, &log]);
    let demand = &of_log["policies"][0]["demand"];
    assert_eq!((&demand["keys"], &demand["decisions_per_second"]), (&50.into(), &20.0.into()));
    assert_eq!(of_log["policies"][1]["demand"]["keys"], 0);

    let shown = run(&["forecast", "--config", &config, &log, "--shard-memory", "1GiB"]);
    let shown = text(&shown.stdout);
    assert!(
        shown.starts_with("a: 100 per 1m, token-bucket\n50 keys of 9 bytes, 20 decisions/s at the peak"),
        "{shown}"
    );
    assert!(shown.contains("All policies with their own algorithms: Redis "), "{shown}");
}

/// A forecast without a number of keys would be an invented figure.
#[test]
fn the_command_says_what_is_missing() {
    let error = |args: &[&str]| {
        let output = run(&[&["forecast"], args].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    assert_eq!(
        error(&["--limit", "100", "--window", "1m"]),
        "the number of keys is not known; give an access log, or for example `--keys 1M --rate 5000/s`\n"
    );
    assert!(error(&["no/such.log"]).contains("no/such.log: No such file or directory"));
    let folder = TempDir::new("forecast-empty");
    let empty = folder.file("empty.log", "");
    assert!(error(&[&empty]).contains("the log is empty"));
}
