//! Deadlines: an answer comes within 5 ms after its deadline, whatever the store does.
//!
//! Measured on tokio's paused clock, which stands still while anything runs and moves to the next
//! timer when all wait: a busy machine changes nothing about it. That callers of a real server that
//! hangs are answered is in `faults.rs`.

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::{DecisionSource, Policy, Request, verb::Verb};
use slidegate_redis::{FailureKind, RedisGate};
use slidegate_testkit::redis::{FakeRedis, FakeReply};
use tokio::time::{Instant, sleep};

use crate::callers::{
    DEADLINE, check, check_cost, daily, errors, fails_with, gate, hasty, last_failure, named, options,
};

/// What an answer may come later than its deadline.
const PROMISE: Duration = Duration::from_millis(5);
/// What a timer may be early: tokio counts milliseconds.
const TICK: Duration = Duration::from_millis(1);

/// A test on one thread, whose clock can be stopped.
fn on_one_thread(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// A server that greets, tells the time, refuses the user `first` and never replies to anybody
/// else.
fn silent() -> FakeRedis {
    FakeRedis::greeting(|command| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        b"EVALSHA" if command.iter().any(|argument| argument.ends_with(b":first")) => {
            "-OOM command not allowed when used memory > 'maxmemory'.\r\n".into()
        }
        _ => FakeReply::Send(Vec::new()),
    })
}

/// A gate that is connected to such a server and knows its time.
async fn connected(fake: &FakeRedis, policies: impl IntoIterator<Item = Policy>) -> Arc<RedisGate> {
    let gate = gate(policies, hasty(&fake.url()).without_denial_cache());
    // A reply, so that earlier time-outs on a busy machine do not count towards the circuit
    // breaker.
    fails_with(&gate, "first", "OOM ").await;
    gate
}

/// How long something takes by the runtime's clock.
async fn takes<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let value = what.await;
    (value, begun.elapsed())
}

fn assert_kept(took: Duration, what: &str) {
    assert!(took + TICK >= DEADLINE, "{what}: answered after {took:?}, so nothing was waited for");
    assert!(took <= DEADLINE + PROMISE, "{what}: answered after {took:?}");
}

/// A store that hangs is worse than one that is gone; callers have set their own time-outs by our
/// deadline.
#[test]
fn every_call_to_a_server_that_hangs_is_answered_within_5_ms_after_its_deadline() {
    let fake = silent();
    let request = || Request::new().with("user", "alice");
    for verb in [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize] {
        for policies in [vec![daily(9)], vec![named("a", 9), named("b", 9)]] {
            on_one_thread(async {
                let gate = connected(&fake, policies).await;
                tokio::time::pause();
                let (decisions, took) = takes(async {
                    let request = request();
                    gate.apply_all(verb, std::slice::from_ref(&request))
                        .await
                        .strictest()
                        .unwrap()
                        .decision()
                        .source()
                })
                .await;
                assert_eq!(decisions, DecisionSource::Local, "{}", last_failure(&gate));
                assert_kept(took, &format!("{verb:?}"));
            });
        }
    }
    on_one_thread(async {
        let gate = connected(&fake, [daily(9)]).await;
        tokio::time::pause();
        let request = request();
        let (source, took) =
            takes(async { gate.check_once(&request, "id").await.strictest().unwrap().decision().source() })
                .await;
        assert_eq!(source, DecisionSource::Local);
        assert_kept(took, "a check with an id");
        let (reset, took) = takes(gate.reset(&request)).await;
        assert!(reset.is_err());
        assert_kept(took, "a reset");
    });
    on_one_thread(async {
        let gate = connected(&fake, [daily(9)]).await;
        tokio::time::pause();
        let requests = ["alice", "bob", "carol"].map(|user| Request::new().with("user", user));
        let (all, took) = takes(async { gate.apply_all(Verb::Check, &requests).await.iter().count() }).await;
        assert_eq!(all, 3);
        assert_kept(took, "several requests in one step");
    });
}

/// Anyone who waits for another caller's call has a deadline of their own.
#[test]
fn those_who_wait_for_a_call_that_is_under_way_are_answered_by_their_own_deadlines() {
    let fake = silent();
    on_one_thread(async {
        let gate = connected(&fake, [daily(9)]).await;
        tokio::time::pause();
        let late = |ms| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                sleep(Duration::from_millis(ms)).await;
                takes(check_cost(&gate, "alice", 1)).await.1
            })
        };
        let callers = [0, 0, 20, 60, 99, 101].map(late);
        for (number, caller) in callers.into_iter().enumerate() {
            let took = caller.await.unwrap();
            // Later ones go along with the first of those who waited, whose deadline ends the call
            // of all.
            if number < 2 {
                assert_kept(took, &format!("caller {number}"));
            }
            assert!(took <= DEADLINE + PROMISE, "caller {number}: answered after {took:?}");
        }
    });
}

/// A call is repeated while its server is a replica. If the last attempt gets no reply, the caller
/// must learn why the call was repeated, whether or not its own deadline is noticed first.
#[test]
fn a_check_whose_repeated_call_gets_no_reply_reports_what_the_server_refused() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let fake = FakeRedis::greeting(move |command| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        b"EVALSHA" if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
            "-READONLY You can't write against a read only replica.\r\n".into()
        }
        _ => FakeReply::Send(Vec::new()),
    });
    on_one_thread(async {
        let gate = gate([daily(9)], options(&fake.url()).without_denial_cache());
        let repeated = async {
            while attempts.load(Ordering::SeqCst) < 2 {
                sleep(TICK).await;
            }
            // Nobody replies from here on, so the paused clock goes straight to the deadline.
            tokio::time::pause();
        };
        let (outcome, ()) = tokio::join!(check(&gate, "alice"), repeated);
        assert_eq!(outcome.source, DecisionSource::Local);
        assert!(last_failure(&gate).contains("READONLY"), "{}", last_failure(&gate));
    });
}

/// At the start there is no connection, and a network that swallows packets makes none. Nobody may
/// burn a core meanwhile: this clock would then stand still forever.
#[test]
fn without_a_connection_a_check_is_answered_within_5_ms_after_its_deadline() {
    // The kernel takes connections for it, and nobody ever answers them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for url in [
        format!("redis://{address}"),
        format!("redis+cluster://{address}"),
        format!("redis+sentinel://{address}/mymaster"),
    ] {
        on_one_thread(async {
            let gate = gate([daily(9)], hasty(&url).without_denial_cache());
            tokio::time::pause();
            let (outcome, took) = takes(check_cost(&gate, "alice", 1)).await;
            assert_eq!(outcome.source, DecisionSource::Local, "{}", last_failure(&gate));
            // Without a known node, the call is retried while a pause of at most 20 ms and the 5 ms
            // that a retry needs remain.
            let last_retry = Duration::from_millis(20 + 5);
            assert!(took + last_retry >= DEADLINE, "{url}: answered after {took:?}");
            assert!(took <= DEADLINE + PROMISE, "{url}: answered after {took:?}");
            // Callers are answered first.
            sleep(TICK).await;
            assert!(errors(&gate, FailureKind::Timeout) > 0, "{url}: {:?}", gate.store().stats());
        });
    }
}
