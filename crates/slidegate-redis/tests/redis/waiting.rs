//! Waiting for permits that other instances hold, and guards of tickets in Redis.

mod freed;
mod outages;
mod turns;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use slidegate::{Counts, Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;

use crate::callers::{options, redis_gate};

/// One permit with a long lease, and tokens.
fn gate(server: &RedisServer) -> Arc<RedisGate> {
    let lease = Duration::from_secs(600);
    let jobs = Policy::new("jobs", Quota::in_flight(1, lease).unwrap()).unwrap();
    let policies = [
        jobs.with_scope(["user"]).with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_day(1000)).unwrap().with_scope(["user"]),
    ];
    let options = options(&server.url_as_user()).with_deadline(Duration::from_secs(10));
    Arc::new(redis_gate(PolicySet::new(policies).unwrap(), options).unwrap())
}

/// What the tokens used, and the permits that are taken.
async fn state(gate: &RedisGate) -> (u64, u64) {
    let request = Request::new().with("user", "alice");
    let peeked = gate.peek(&request).await;
    let all: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
    (all[1].0, all[0].1)
}

/// Waits until the store reports this, with a generous bound.
async fn until_state(gate: &RedisGate, wanted: (u64, u64)) {
    for _ in 0..2000 {
        if state(gate).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it is {:?} and never {wanted:?}", state(gate).await);
}

/// A permit that another instance gives back must not be waited for until its lease ends.
#[tokio::test]
async fn a_permit_goes_to_who_waits_on_the_same_instance_and_on_another() {
    let server = RedisServer::builder().start();
    let (one, other) = (gate(&server), gate(&server));
    let request = Request::new().with("user", "alice").with_cost(10);
    for holder in [&one, &other] {
        let held = holder.reserve(&request).await.into_guard(holder.gate()).unwrap();
        let waits = one.acquire_reservation(&request).timeout(Duration::from_secs(60));
        let (waited, settled) = tokio::join!(waits, async {
            // Asked and denied meanwhile.
            tokio::time::sleep(Duration::from_millis(30)).await;
            held.settle(1).await
        });
        settled.unwrap();
        waited.unwrap().into_guard(one.gate()).unwrap().settle(1).await.unwrap();
    }
    assert_eq!(state(&one).await, (4, 0));
}

/// A guard is dropped where nothing can be awaited: in a cancelled task, on another thread, and
/// after its runtime.
#[test]
fn a_dropped_guard_settles_in_the_background_wherever_it_is_dropped() {
    let server = RedisServer::builder().start();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let request = Request::new().with("user", "alice").with_cost(10);
    let first = runtime();
    let (shared, mut guard) = first.block_on(async {
        let shared = gate(&server);
        let guard = shared.reserve(&request).await.into_guard(shared.gate()).unwrap();
        drop(guard);
        until_state(&shared, (10, 0)).await;
        let mut guard = shared.reserve(&request).await.into_guard(shared.gate()).unwrap();
        guard.record(3);
        std::thread::spawn(move || drop(guard)).join().unwrap();
        until_state(&shared, (13, 0)).await;
        // A call that is cancelled after it was sent is completed by the guard.
        let guard = shared.reserve(&request).await.into_guard(shared.gate()).unwrap();
        let mut settles = Box::pin(guard.settle(4));
        poll_fn(|cx| Poll::Ready(settles.as_mut().poll(cx).is_pending())).await;
        drop(settles);
        until_state(&shared, (17, 0)).await;
        let guard = shared.reserve(&request).await.into_guard(shared.gate()).unwrap();
        (shared, guard)
    });
    guard.record(5);
    drop(first);
    drop(guard);
    drop(shared);
    // Nobody was there to settle it: it ends by its time.
    runtime().block_on(async { assert_eq!(state(&gate(&server)).await, (17, 1)) });
}
