//! Layout: the very bytes that a release leaves in Redis, which the next one has to read.

use std::time::Duration;

use slidegate::{Algorithm, DecisionSource, Policy, PolicySet, Quota, Request, verb::Verb};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{Connection, RedisServer, Reply};

use crate::callers::redis_gate;

const NOW_US: u64 = 1_700_000_000_000_000;

/// Numbers and their widths, as docs/redis-layout.md lists them.
fn bytes(fields: &[(u64, usize)]) -> Vec<u8> {
    fields.iter().flat_map(|(number, width)| number.to_le_bytes()[..*width].to_vec()).collect()
}

fn stored(server: &RedisServer, key: &str) -> Vec<u8> {
    let mut conn = Connection::tcp(server.port(), Duration::from_secs(10)).unwrap();
    match conn.call(&["GET", key]).unwrap() {
        Reply::Bytes(bytes) => bytes,
        other => panic!("{key} holds {other}"),
    }
}

/// A byte that moves unnoticed is a limit that is misread by every instance still running the
/// release before.
#[test]
fn every_byte_is_where_the_documentation_says() {
    let server = RedisServer::builder().with_clock().start();
    let policies = Algorithm::ALL.map(|algorithm| {
        let quota = Quota::per_minute(100).with_algorithm(algorithm);
        Policy::new(algorithm.name(), quota).unwrap().with_scope(["user"])
    });
    let options = crate::callers::options(&server.url_as_user());
    let gate = redis_gate(PolicySet::new(policies).unwrap(), options).unwrap();
    runtime().block_on(async {
        for (after_us, cost) in [(0, 1), (7, 300), (9, 2)] {
            server.clock().stand(NOW_US + after_us);
            let request = Request::new().with("user", "alice").with_cost(cost);
            let charged = if cost > 100 { gate.penalize(&request).await } else { gate.check(&request).await };
            assert_eq!(charged.is_allowed(), cost != 2, "{charged:?}");
            if cost == 2 {
                gate.penalize(&request).await;
            }
        }
    });
    let (window, end) = (60_000_000, NOW_US / 60_000_000 * 60_000_000 + 60_000_000);
    // A minute is 60 seconds, and those are unit 0; counts of the window before stand above 20
    // bits.
    let head = |tag: u64| [(tag, 1), (60 << 2, 2), (end / 1_000_000, 4)];
    assert_eq!(
        stored(&server, "sg1:fixed-window:alice"),
        bytes(&[head(0x21).as_slice(), &[(303, 5)]].concat())
    );
    let sliding = |previous: u64, current: u64| {
        bytes(&[head(0x22).as_slice(), &[(previous << 20 | current, 5)]].concat())
    };
    assert_eq!(stored(&server, "sg1:sliding-window:alice"), sliding(0, 303));
    // 100 per minute drain 900 millionths of a minute's cost in 9 microseconds. The penalty of 300
    // has filled the bucket as far as one can, so the one of 2 charged nothing.
    assert_eq!(
        stored(&server, "sg1:token-bucket:alice"),
        bytes(&[(0x13, 1), (window, 6), (NOW_US + 9, 7), (199, 7), (window - 900, 6)])
    );
    let low = |stamp: u64| stamp % (1 << 32);
    let mut log = bytes(&[(0x14, 1), (0, 1), (303, 7), (NOW_US + 9, 7), (NOW_US, 7)]);
    // Stamps of 4 bytes and costs of 2; the first of two runs, with room for seven; the newest of
    // cost 2.
    log.extend(bytes(&[(0x42, 1), (0, 2), (2, 2), (7, 2), (2, 7), (0, 6)]));
    let lives_until_s = (NOW_US + 9 + 2 * window + 4_000_000).div_ceil(1000) * 1000 / 1_000_000;
    log.extend(bytes(&[(lives_until_s, 5)]));
    log.extend(bytes(&[
        (low(NOW_US), 4),
        (1, 2),
        (low(NOW_US + 7), 4),
        (300, 2),
        (0, 6),
        (0, 6),
        (0, 6),
        (0, 6),
        (0, 6),
    ]));
    assert_eq!(stored(&server, "sg1:sliding-log:alice"), log);
    for algorithm in Algorithm::ALL {
        let lives: u64 = server.admin(&["PTTL", &format!("sg1:{algorithm}:alice")]).trim().parse().unwrap();
        assert!(lives <= 125_000 && lives > 5000, "{algorithm} lives {lives} ms");
    }
}

/// One policy for each of the algorithms that have a wide and a compact form, by this window.
fn counters(server: &RedisServer, window: Duration) -> RedisGate {
    let policies = [Algorithm::FixedWindow, Algorithm::SlidingWindow].map(|algorithm| {
        let quota = Quota::new(10_000_000_000_000, window).unwrap().with_algorithm(algorithm);
        Policy::new(algorithm.name(), quota).unwrap().with_scope(["user"])
    });
    let options = crate::callers::options(&server.url_as_user());
    redis_gate(PolicySet::new(policies).unwrap(), options).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What each counter of the gate says is used after this.
async fn used(gate: &RedisGate, verb: Verb, cost: u64) -> Vec<u64> {
    let request = Request::new().with("user", "alice").with_cost(cost);
    let applied = gate.apply_all(verb, std::slice::from_ref(&request)).await;
    assert!(
        applied.iter().all(|one| one.decision().source() == DecisionSource::Store),
        "{:?}",
        gate.store().stats()
    );
    applied.iter().map(|one| one.decision().used()).collect()
}

const FIXED: &str = "sg1:fixed-window:alice";
const SLIDING: &str = "sg1:sliding-window:alice";

/// What no compact value can hold must be held by a wide one, to the last digit, and come back when
/// it fits again.
#[test]
fn large_counts_and_unusual_windows_are_kept_in_wide_values() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(NOW_US);
    runtime().block_on(async {
        let gate = counters(&server, Duration::from_secs(60));
        let minute = 60_000_000;
        let end = NOW_US / minute * minute + minute;
        let head = |tag: u64| [(tag, 1), (60 << 2, 2), (end / 1_000_000, 4)];
        let (most, sliding_most) = ((1 << 40) - 1, (1 << 20) - 1);

        assert_eq!(used(&gate, Verb::Check, sliding_most).await, [sliding_most; 2]);
        assert_eq!(stored(&server, SLIDING), bytes(&[head(0x22).as_slice(), &[(sliding_most, 5)]].concat()));
        assert_eq!(used(&gate, Verb::Check, 1).await, [1 << 20; 2]);
        let wide =
            |previous, current| bytes(&[(0x12, 1), (minute, 6), (end, 7), (previous, 7), (current, 7)]);
        assert_eq!(stored(&server, SLIDING), wide(0, 1 << 20));

        assert_eq!(used(&gate, Verb::Check, most - (1 << 20)).await, [most; 2]);
        assert_eq!(stored(&server, FIXED), bytes(&[head(0x21).as_slice(), &[(most, 5)]].concat()));
        assert_eq!(used(&gate, Verb::Check, 1).await, [1 << 40; 2]);
        assert_eq!(stored(&server, FIXED), bytes(&[(0x11, 1), (minute, 6), (end, 7), (1 << 40, 7)]));
        for key in [FIXED, SLIDING] {
            let lives: u64 = server.admin(&["PTTL", key]).trim().parse().unwrap();
            assert!(lives > 5_000 && lives <= 125_000, "{key} lives {lives} ms");
        }

        // It fits again after a refund.
        assert_eq!(used(&gate, Verb::Refund, (1 << 40) - 3).await, [3; 2]);
        assert_eq!(stored(&server, FIXED), bytes(&[head(0x21).as_slice(), &[(3, 5)]].concat()));
        assert_eq!(stored(&server, SLIDING), bytes(&[head(0x22).as_slice(), &[(3, 5)]].concat()));

        // Charges of a day count on by the hour and the other way round, whatever the form of
        // either.
        for (ms, code) in [(1_500, None), (86_400_000, Some(1_440 << 2 | 1)), (86_400_001, None)] {
            let window = Duration::from_millis(ms);
            let gate = counters(&server, window);
            assert_eq!(used(&gate, Verb::Check, 1).await[0], used(&gate, Verb::Check, 0).await[0]);
            let window_us = ms * 1000;
            let end = NOW_US / window_us * window_us + window_us;
            let count = used(&gate, Verb::Peek, 0).await[0];
            let expected = match code {
                Some(code) => bytes(&[(0x21, 1), (code, 2), (end / 1_000_000, 4), (count, 5)]),
                None => bytes(&[(0x11, 1), (window_us, 6), (end, 7), (count, 7)]),
            };
            assert_eq!(stored(&server, FIXED), expected, "{ms} ms");
        }
        assert_eq!(used(&gate, Verb::Peek, 0).await, [6; 2]);
    });
}

/// Who upgrades must find what was charged before, and must not lose it to the first look at it.
#[test]
fn values_of_layout_1_are_counted_on_and_written_anew_when_they_are_charged() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(NOW_US);
    let minute = 60_000_000;
    let end = NOW_US / minute * minute + minute;
    let fixed = bytes(&[(0x11, 1), (minute, 6), (end, 7), (7, 7)]);
    let sliding = bytes(&[(0x12, 1), (minute, 6), (end, 7), (0, 7), (7, 7)]);
    let mut conn = server.connect();
    for (key, value) in [(FIXED, &fixed), (SLIDING, &sliding)] {
        conn.call(&[b"SET", key.as_bytes(), value, b"PX", b"100000"]).unwrap();
    }
    runtime().block_on(async {
        let gate = counters(&server, Duration::from_secs(60));
        assert_eq!(used(&gate, Verb::Peek, 1).await, [7; 2]);
        let found = gate.inspect(&Request::new().with("user", "alice")).await.unwrap();
        assert_eq!(found.iter().map(|found| found.decision.used()).collect::<Vec<_>>(), [7; 2]);
        assert_eq!((stored(&server, FIXED), stored(&server, SLIDING)), (fixed, sliding));
        assert_eq!(used(&gate, Verb::Check, 1).await, [8; 2]);
        let head = |tag: u64| [(tag, 1), (60 << 2, 2), (end / 1_000_000, 4), (8, 5)];
        assert_eq!(
            (stored(&server, FIXED), stored(&server, SLIDING)),
            (bytes(&head(0x21)), bytes(&head(0x22)))
        );
    });
}

/// While instances are upgraded one by one, those of the release before meet what the others wrote:
/// with an error, and without taking it for something else or writing over it.
#[test]
fn the_release_of_layout_1_refuses_values_of_layout_2_and_leaves_them_alone() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(NOW_US);
    let gate = counters(&server, Duration::from_secs(60));
    runtime().block_on(async { assert_eq!(used(&gate, Verb::Check, 3).await, [3; 2]) });
    let mut conn = server.connect();
    let quota = bytes(&[(60_000_000, 6), (10, 7)]);
    let latest = (NOW_US + 1).to_string();
    for (key, script, first) in [
        (FIXED, include_str!("layout_1/fixed_window.lua"), 33),
        (SLIDING, include_str!("layout_1/sliding_window.lua"), 34),
    ] {
        let mut ask = |key: &str| {
            let call: [&[u8]; 7] =
                [b"EVAL", script.as_bytes(), b"1", key.as_bytes(), latest.as_bytes(), &quota, b"1"];
            conn.call(&call).unwrap()
        };
        // The script is what it was: a key that it wrote itself, it counts on.
        let other = format!("{key}-beside");
        for _ in 0..2 {
            assert!(matches!(ask(&other), Reply::List(_)), "{key}");
        }
        assert_eq!(stored(&server, &other)[0], u8::try_from(first - 16).unwrap());
        let before = stored(&server, key);
        let refused = format!("SLIDEGATE value is not of layout 1: its first byte is {first}");
        match ask(key) {
            Reply::Error(error) => assert!(error.contains(&refused), "{error}"),
            other => panic!("{key}: {other}"),
        }
        assert_eq!(stored(&server, key), before);
    }
}

/// A window without a code must not take for its own what begins like no code.
#[test]
fn twelve_empty_bytes_are_no_compact_value_under_any_window() {
    let server = RedisServer::start();
    let mut conn = server.connect();
    runtime().block_on(async {
        for ms in [1_500, 60_000] {
            let gate = counters(&server, Duration::from_millis(ms));
            for policy in ["fixed-window", "sliding-window"] {
                let key = format!("sg1:{policy}:alice");
                conn.call(&[b"SET".as_slice(), key.as_bytes(), &[0; 12], b"PX", b"100000"]).unwrap();
                let request = Request::new().with("user", "alice").under(policy);
                let outcome = gate.check(&request).await;
                assert_eq!(
                    outcome.strictest().unwrap().decision().source(),
                    DecisionSource::Local,
                    "{policy} of {ms} ms"
                );
                let failure = gate.store().stats().last_failure.unwrap();
                assert!(failure.contains("is not of layout 1 or 2: its first byte is 0"), "{failure}");
                assert_eq!(stored(&server, &key), [0; 12]);
            }
        }
    });
}
