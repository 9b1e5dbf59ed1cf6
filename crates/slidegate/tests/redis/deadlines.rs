//! Deadlines: an answer comes within 5 ms after its deadline, whatever the store does.
//!
//! What the code adds to a deadline is measured on tokio's paused clock, which stands still while anything runs and moves to
//! the next timer when all wait: a busy machine changes nothing about it. What the machine adds is in the last test.

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{FailureKind, Policy, Request, SharedGate, Source, Verb};
use slidegate_testkit::redis::{FakeRedis, FakeReply, RedisServer};
use tokio::time::{Instant, sleep};

use crate::callers::{
    DEADLINE, check_cost, errors, gate, healthy, hourly, last_failure, named, options, until_used,
};

/// What an answer may come later than its deadline.
const PROMISE: Duration = Duration::from_millis(5);
/// What a timer may be early: tokio counts milliseconds.
const TICK: Duration = Duration::from_millis(1);
/// Samples of which the quickest is taken: on a machine that does other things besides, few of them are its own fault.
const SAMPLES: usize = 20;

/// A test on one thread, whose clock can be stopped.
fn on_one_thread(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// A server that greets, tells the time, and never answers a script or anything else.
fn silent() -> FakeRedis {
    FakeRedis::greeting(|command| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        _ => FakeReply::Send(Vec::new()),
    })
}

/// A gate that is connected to such a server and knows its time.
async fn connected(fake: &FakeRedis, policies: impl IntoIterator<Item = Policy>) -> Arc<SharedGate> {
    let gate = gate(policies, options(&fake.url()).without_remembering());
    for _ in 0..100 {
        let told = check_cost(&gate, "first", 1).await;
        assert_eq!(told.source, Source::Local);
        if gate.stats().store.calls > 0 {
            return gate;
        }
    }
    panic!("a server that greets is not connected to: {:?}", gate.stats());
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

/// A store that hangs is worse than one that is gone; callers have set their own time-outs by our deadline.
#[test]
fn every_call_to_a_server_that_hangs_is_answered_within_5_ms_after_its_deadline() {
    let fake = silent();
    let request = || Request::new().with("user", "alice");
    for verb in [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize] {
        for policies in [vec![hourly(9)], vec![named("a", 9), named("b", 9)]] {
            on_one_thread(async {
                let gate = connected(&fake, policies).await;
                tokio::time::pause();
                let (decisions, took) = takes(async {
                    let request = request();
                    gate.apply(verb, &request).await.strictest().unwrap().source
                })
                .await;
                assert_eq!(decisions, Source::Local, "{}", last_failure(&gate));
                assert_kept(took, &format!("{verb:?}"));
            });
        }
    }
    on_one_thread(async {
        let gate = connected(&fake, [hourly(9)]).await;
        tokio::time::pause();
        let request = request();
        let (source, took) =
            takes(async { gate.check_once(&request, "id").await.strictest().unwrap().source }).await;
        assert_eq!(source, Source::Local);
        assert_kept(took, "a check with an id");
        let (reset, took) = takes(gate.reset(&request)).await;
        assert!(reset.is_err());
        assert_kept(took, "a reset");
    });
    on_one_thread(async {
        let gate = connected(&fake, [hourly(9)]).await;
        tokio::time::pause();
        let requests = ["alice", "bob", "carol"].map(|user| Request::new().with("user", user));
        let (all, took) = takes(async { gate.apply_all(Verb::Check, &requests).await.iter().count() }).await;
        assert_eq!(all, 3);
        assert_kept(took, "several requests in one step");
    });
}

/// Whoever waits for another caller's call has a deadline of their own.
#[test]
fn those_who_wait_for_a_call_that_is_under_way_are_answered_by_their_own_deadlines() {
    let fake = silent();
    on_one_thread(async {
        let gate = connected(&fake, [hourly(9)]).await;
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
            // Later ones go along with the first of those who waited, whose deadline ends the call of all.
            if number < 2 {
                assert_kept(took, &format!("caller {number}"));
            }
            assert!(took <= DEADLINE + PROMISE, "caller {number}: answered after {took:?}");
        }
    });
}

/// At the start there is no connection, and a network that swallows packets makes none. Nobody may burn a core meanwhile:
/// this clock would then stand still for ever.
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
            let gate = gate([hourly(9)], options(&url).without_remembering());
            tokio::time::pause();
            let (told, took) = takes(check_cost(&gate, "alice", 1)).await;
            assert_eq!(told.source, Source::Local, "{}", last_failure(&gate));
            // Where nobody is known to ask, the last look is taken up to 20 ms before.
            let looks_again = Duration::from_millis(20);
            assert!(took + looks_again + TICK >= DEADLINE, "{url}: answered after {took:?}");
            assert!(took <= DEADLINE + PROMISE, "{url}: answered after {took:?}");
            // Callers are answered first.
            sleep(TICK).await;
            assert!(errors(&gate, FailureKind::Timeout) > 0, "{url}: {:?}", gate.stats());
        });
    }
}

/// The same with a real server, real threads and real time. The machine may keep a caller waiting, and does so now and then;
/// what we add is in every sample, so also in the quickest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_answers_by_5_ms_after_the_deadline_at_most() {
    let server = RedisServer::start();
    let mut waited = Vec::new();
    while waited.len() < SAMPLES {
        // A breaker opens after a few of them.
        let gate = healthy(&server.url()).await;
        server.pause();
        for _ in 0..4 {
            let told = check_cost(&gate, "alice", 1).await;
            assert_eq!(told.source, Source::Local);
            waited.extend(Some(told.took).filter(|took| *took >= DEADLINE));
        }
        server.resume();
        until_used(&gate, "alice").await;
    }
    let quickest = waited.iter().min().unwrap();
    assert!(*quickest <= DEADLINE + PROMISE, "{waited:?}");
}
