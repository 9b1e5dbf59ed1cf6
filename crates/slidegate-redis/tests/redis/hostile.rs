//! Hostile: replies that no script gives, and values that no script wrote.
//!
//! Anyone who lies may deny service, as anyone who is silent may; it decides nothing, and harms
//! nobody who asks later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, DecisionSource, Policy, Quota};
use slidegate_testkit::redis::{FakeRedis, FakeReply, RedisServer, Reply};

use crate::callers::{
    LATER, check, check_cost, daily, gate, hasty, last_failure, named, options, until_by_store,
};

/// Nobody here knows whether such a call was made: it was, as often as not, and then a second one
/// charges twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_may_have_been_made_is_never_made_again() {
    for (answer, batching) in [
        (FakeReply::SendAndClose(Vec::new()), true),
        (FakeReply::SendAndClose(Vec::new()), false),
        (FakeReply::SendAndClose(b"$35\r\n\x01".to_vec()), true),
        (FakeReply::Send(Vec::new()), true),
        (FakeReply::from("-ERR an unknown mishap\r\n"), false),
    ] {
        // It fails once, and would answer well if asked again.
        let mut first = Some(answer.clone());
        let fake = FakeRedis::greeting(move |command| match command[0].as_slice() {
            b"TIME" => TIME.into(),
            b"EVALSHA" => first.take().unwrap_or_else(|| well().into()),
            _ => "+OK\r\n".into(),
        });
        let options = options(&fake.url()).with_deadline(Duration::from_secs(3));
        let gate = gate([one_second()], if batching { options } else { options.without_batching() });
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local), "{answer:?}");
        let heard = || fake.heard().iter().filter(|command| command[0] == b"EVALSHA").count();
        assert_eq!(heard(), 1, "{answer:?}");
        let mut asked = 1;
        while asked < 1000 && !check(&gate, "alice").await.by_store() {
            asked += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(heard() <= 1 + asked && asked < 1000, "{answer:?}: {} for {asked}", heard());
    }
}

/// A bulk string.
pub(crate) fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Numbers as a script for one key replies them.
pub(crate) fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()[..7].to_vec()).collect()
}

/// Every reply to a script that no script gives, with what a script that charged would have
/// replied.
fn hostile_replies() -> Vec<Vec<u8>> {
    let list = |items: &[&str]| format!("*{}\r\n{}", items.len(), items.concat());
    let (zero, one, minus) = (":0\r\n", ":1\r\n", ":-1\r\n");
    let (huge, least) = (":9223372036854775807\r\n", ":-9223372036854775808\r\n");
    let now = ":1700000000000000\r\n";
    let mut lists: Vec<String> = [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "$2\r\nhi\r\n",
        "*0\r\n",
        "*-1\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(99999999999999999999\r\n",
        "%1\r\n:1\r\n:1\r\n",
        "~1\r\n:1\r\n",
        "-ERR of no known kind\r\n",
        "-\r\n",
        "?!\r\n",
        ":x\r\n",
        "$99999999999999999999\r\n",
        "*2\r\n:1\r\n",
        "*-7\r\n",
    ]
    .map(str::to_owned)
    .into();
    lists.push("*1\r\n".repeat(300) + ":1\r\n");
    lists.extend([
        list(&[one]),
        list(&[one, now]),
        list(&[minus, minus]),
        list(&[minus, huge]),
        list(&[minus, least]),
        list(&[one, now, now, ":1700000003000000\r\n", zero]),
        list(&[one, now, "$1\r\n1\r\n", now, zero]),
        list(&["*1\r\n:1\r\n", now, now, now, zero]),
        list(&["$0\r\n\r\n"]),
        list(&["$0\r\n\r\n", one, now, now, now, huge]),
        list(&["$0\r\n\r\n", one, now, now, "$1\r\n1\r\n", zero]),
    ]);
    let (now, huge) = (NOW_US, (1 << 56) - 1);
    let packed = [
        vec![],
        vec![1],
        vec![1, now],
        vec![huge, now, now, now, 0],
        vec![1, huge, huge, huge, 0],
        vec![1, now, huge, huge, huge],
        vec![0, huge, 0, 0, huge],
        vec![0, now, now, 0, huge],
        vec![1, now, now, now, 0, 0],
        // Says that nothing is charged where all fits, and the other way round.
        vec![0, now, now, now + 3_000_000, 0],
        vec![1, now, now, now + 3_000_000, 5],
        vec![2, now, now, now + 3_000_000, 0],
    ];
    let packed = packed.map(|reply| numbers(&reply));
    let cut_off = numbers(&[1, now, now, now + 1_000_000, 0])[..34].to_vec();
    let packed = packed.into_iter().chain([cut_off]).map(|bytes| bulk(&bytes));
    lists.into_iter().map(String::into_bytes).chain(packed).collect()
}

/// What a fake says the time is, and what a script would reply then under [`one_second`], for a key
/// that is not there.
const TIME: &str = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n";
const NOW_US: u64 = 1_700_000_000_000_000;

fn well() -> Vec<u8> {
    bulk(&numbers(&[1, NOW_US, NOW_US, NOW_US + 1_000_000, 0]))
}

/// A policy whose scripts reply as few numbers as any.
fn one_second() -> Policy {
    let quota = Quota::per_second(5).with_algorithm(Algorithm::FixedWindow);
    Policy::new("p", quota).unwrap().with_scope(["user"])
}

/// What stands at the address of a server may be anything: it may deny service, but not decide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_no_script_gives_decide_nothing_and_harm_nobody_later() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let script = said.clone();
    let fake = FakeRedis::greeting(move |command| match command[0].as_slice() {
        b"TIME" => TIME.into(),
        b"EVALSHA" => FakeReply::from(script.lock().unwrap().clone()),
        // A script that is missing is loaded.
        _ => "+OK\r\n".into(),
    });
    for batching in [true, false] {
        for reply in hostile_replies() {
            let options = hasty(&fake.url());
            let options = if batching { options } else { options.without_batching() };
            let gate = gate([one_second()], options);
            *said.lock().unwrap() = reply.clone();
            let outcome = check(&gate, "alice").await;
            let reply = String::from_utf8_lossy(&reply);
            assert_eq!(
                (outcome.allowed, outcome.source),
                (true, DecisionSource::Local),
                "{reply:?}: {:?}",
                gate.store().stats()
            );
            let failure = last_failure(&gate);
            assert!(failure.starts_with("redis at ") && !failure.contains('\n'), "{reply:?}: {failure}");
            // The very same key, by the same gate: nothing of it is stuck.
            *said.lock().unwrap() = well();
            until_by_store(&gate, "alice").await;
        }
    }
}

/// The server's time is asked for before anything else: a lie about it must not end the caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_about_the_time_decide_nothing() {
    for lie in [
        "+now\r\n",
        "*0\r\n",
        "*1\r\n:1\r\n",
        "*2\r\n:-1\r\n:0\r\n",
        "*2\r\n$20\r\n18446744073709551615\r\n$1\r\n0\r\n",
        "*2\r\n$20\r\n18446744073709551615\r\n$20\r\n18446744073709551615\r\n",
        "*2\r\n$1\r\nx\r\n$1\r\n0\r\n",
    ] {
        let fake = FakeRedis::greeting(move |command| match command[0].as_slice() {
            b"TIME" => lie.into(),
            _ => "*2\r\n:-1\r\n:0\r\n".into(),
        });
        let gate = gate([daily(5)], hasty(&fake.url()).without_batching());
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local), "{lie:?}");
    }
}

/// Another program under our names must be met with its name, not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_not_ours_are_refused_and_left_alone() {
    let server = RedisServer::start();
    for algorithm in Algorithm::ALL {
        let policy = || {
            let quota = Quota::per_hour(5).with_algorithm(algorithm);
            Policy::new("p", quota).unwrap().with_scope(["user"])
        };
        // Alone and with another: two different scripts.
        for with_another in [false, true] {
            let policies = [policy()].into_iter().chain(with_another.then(|| named("q", 5)));
            let gate = gate(policies, options(&server.url()).with_deadline(LATER));
            let values = [
                "hello",
                "17",
                "\u{12}",
                "\u{14}\u{14}",
                "0123456789",
                // Of layout 2, which has no such window and no such algorithms; and of layouts to
                // come.
                "\u{21}",
                "\u{22}\u{1}\u{0}012345678",
                "#\u{1}\u{0}012345678",
                "$\u{1}\u{0}012345678",
                "1\u{f0}\u{0}01234567",
                "2\u{f0}\u{0}01234567",
            ];
            for (number, value) in values.iter().enumerate() {
                let user = format!("{}-{with_another}-{number}", algorithm.name());
                server.admin(&["SET", &format!("sg1:p:{user}"), value]);
                let outcome = check_cost(&gate, &user, 1).await;
                let failure = last_failure(&gate);
                if !matches!(value.as_bytes()[0], 0x11..=0x14 | 0x21 | 0x22) {
                    assert_eq!(outcome.source, DecisionSource::Local, "{user}");
                    let says = "not of layout 1 or 2: its first byte is";
                    assert!(failure.contains(says) && failure.contains("another program"), "{failure}");
                    assert_eq!(server.admin(&["GET", &format!("sg1:p:{user}")]), *value);
                }
                // The tags of other algorithms start afresh; our own in too few bytes are damaged.
                assert!(outcome.source == DecisionSource::Local || outcome.used == 1, "{user}: {outcome:?}");
                if with_another {
                    let charged = u64::from(outcome.by_store());
                    assert_eq!(server.admin(&["EXISTS", &format!("sg1:q:{user}")]), charged.to_string());
                }
            }
            let user = format!("{}-{with_another}-list", algorithm.name());
            server.admin(&["LPUSH", &format!("sg1:p:{user}"), "1"]);
            assert_eq!(check_cost(&gate, &user, 1).await.source, DecisionSource::Local);
            let failure = last_failure(&gate);
            assert!(failure.contains("WRONGTYPE") && failure.contains("another program"), "{failure}");
            let errors = gate.store().primary().stats().errors;
            assert_eq!(errors["wrongtype"], 1, "{errors:?}");
            assert!(errors["foreign_value"] > 0, "{errors:?}");
        }
    }
}

/// A value that lost its end must not be read as one of smaller usage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_was_cut_off_is_never_read_as_something_else() {
    let server = RedisServer::start();
    let mut conn = server.connect();
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_hour(5).with_algorithm(algorithm);
        let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
        let gate = gate([policy], options(&server.url()).with_deadline(LATER).without_denial_cache());
        let user = algorithm.name();
        let key = format!("sg1:p:{user}");
        for _ in 0..3 {
            assert!(check_cost(&gate, user, 1).await.by_store());
        }
        let Reply::Bytes(whole) = conn.call(&["GET", &key]).unwrap() else { panic!("{user} has no value") };
        for length in 1..whole.len() {
            conn.call(&[b"SET", key.as_bytes(), &whole[..length], b"PX", b"60000"]).unwrap();
            let mut used = 3;
            for _ in 0..4 {
                let outcome = check_cost(&gate, user, 1).await;
                if outcome.by_store() {
                    // What is left was enough to know what is used.
                    used += u64::from(outcome.allowed);
                    assert_eq!(
                        (outcome.used, outcome.allowed),
                        (used.min(5), outcome.allowed),
                        "{user}, {length} bytes"
                    );
                    assert!(used <= 5, "{user}, {length} bytes");
                } else {
                    assert!(
                        last_failure(&gate).contains("damaged") || last_failure(&gate).contains("ERR"),
                        "{}",
                        last_failure(&gate)
                    );
                }
            }
        }
    }
}

/// What a cut log has lost must not be made up with zeros by those who write after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_cut_off_forgets_nothing_before_its_time() {
    const START_US: u64 = 1_700_000_000_000_000;
    let server = RedisServer::builder().with_clock().start();
    let mut conn = server.connect();
    let gate = gate([daily(8)], options(&server.url()).with_deadline(LATER).without_denial_cache());
    for length in 48..80 {
        let user = format!("u{length}");
        let key = format!("sg1:p:{user}");
        let at = |seconds: u64| server.clock().stand(START_US + seconds * 1_000_000);
        for second in 0..5 {
            at(second);
            assert!(check_cost(&gate, &user, 1).await.by_store());
        }
        let Reply::Bytes(whole) = conn.call(&["GET", &key]).unwrap() else { panic!("{user} has no value") };
        let Some(cut) = whole.get(..length) else { continue };
        conn.call(&[b"SET", key.as_bytes(), cut, b"PX", b"172800000"]).unwrap();
        at(5);
        let mut used = 5;
        for _ in 0..2 {
            used += u64::from(check_cost(&gate, &user, 1).await.by_store());
        }
        // The first has expired, and no other.
        at(86_400);
        let request = slidegate::Request::new().with("user", &user);
        let peeked = gate.peek(&request).await;
        let outcome = peeked.strictest().unwrap();
        assert!(
            outcome.decision().source() == DecisionSource::Local || outcome.decision().used() == used - 1,
            "{length} of {}: {outcome:?}",
            whole.len()
        );
    }
}
