//! Settlements that wait until the store replies.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;
use tokio::time::sleep;

use crate::callers::{MAX_POLLS, options, redis_gate, until_used};

fn shared(server: &RedisServer) -> Arc<RedisGate> {
    let policies = [
        Policy::new("requests", Quota::per_minute(100)).unwrap().with_counts(slidegate::Counts::Requests),
        Policy::new("input", Quota::per_minute(1000))
            .unwrap()
            .with_counts(slidegate::Counts::Named("input".into())),
        Policy::new("output", Quota::per_minute(1000))
            .unwrap()
            .with_counts(slidegate::Counts::Named("output".into())),
    ];
    let policies = policies.map(|policy| policy.with_scope(["user"]));
    Arc::new(redis_gate(PolicySet::new(policies).unwrap(), options(&server.url_as_user())).unwrap())
}

async fn until_nothing_waits(gate: &RedisGate) {
    for _ in 0..MAX_POLLS {
        if gate.pending_settlements().waiting == 0 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", gate.pending_settlements());
}

/// A gateway that cannot wait for its store must not charge its customers for what they did not use.
#[tokio::test]
async fn settlements_wait_for_the_store_and_are_sent_when_it_replies() {
    let server = RedisServer::builder().start();
    let gate = shared(&server);
    let cost = [("input", 100), ("output", 400)];
    let request = Request::new().with("user", "alice").with_cost(cost);
    let settled = gate.reserve(&request).await.into_ticket().unwrap();
    let cancelled = gate.reserve(&request).await.into_ticket().unwrap();
    server.pause();
    let cost = [("input", 90), ("output", 20)];
    assert!(gate.settle_later(settled.clone(), cost).unwrap());
    assert!(gate.settle_later(settled.clone(), cost).unwrap(), "the same again");
    assert!(!gate.settle_later(settled.clone(), 7).unwrap(), "the first one counts");
    assert!(!gate.cancel_later(settled).unwrap());
    assert!(gate.cancel_later(cancelled).unwrap());
    assert_eq!(gate.pending_settlements().waiting, 2);
    // Until a first attempt has failed.
    let checked = gate.check(&request).await;
    let is_awake = server.is_awake();
    let is_by_store = checked.iter().any(|one| one.decision().source() == slidegate::DecisionSource::Store);
    assert!(!is_by_store, "the server is {}: {checked:?}", if is_awake { "awake" } else { "paused" });
    server.resume();
    until_nothing_waits(&gate).await;
    let stats = gate.pending_settlements();
    assert_eq!((stats.sent, stats.dropped), (2, 0));
    assert_eq!(until_used(&gate, "alice").await, [1, 90, 20]);
    let request = Request::new().with("user", "alice");
    assert!(gate.peek(&request).await.iter().all(|one| one.decision().held() == 0));
}

/// What can no longer change anything is given up, and counted.
#[tokio::test]
async fn a_settlement_is_given_up_when_the_time_of_its_hold_is_over() {
    let server = RedisServer::builder().start();
    let gate = shared(&server);
    let request = Request::new().with("user", "alice").with_cost(100);
    let reserved = gate.reserve_for(&request, Duration::from_millis(300)).await.unwrap();
    let ticket = reserved.into_ticket().unwrap();
    server.kill();
    gate.settle_later(ticket, 5).unwrap();
    until_nothing_waits(&gate).await;
    let stats = gate.pending_settlements();
    assert_eq!((stats.sent, stats.dropped), (0, 1));
}

/// A guard may be dropped where no runtime is: that must not be a panic.
#[test]
fn without_a_runtime_a_settlement_is_refused() {
    let server = RedisServer::builder().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gate = shared(&server);
    let request = Request::new().with("user", "alice").with_cost(100);
    let ticket = runtime.block_on(async { gate.reserve(&request).await.into_ticket().unwrap() });
    let error = gate.settle_later(ticket.clone(), 5).unwrap_err();
    assert_eq!(
        error.to_string(),
        "settlements wait for the store in a tokio runtime, and this thread has none"
    );
    assert_eq!(gate.pending_settlements().dropped, 1);
    // A runtime that ends with a task in it does not stop later settlements.
    server.pause();
    runtime.block_on(async { gate.settle_later(ticket.clone(), 5).unwrap() });
    drop(runtime);
    server.resume();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(!gate.settle_later(ticket, 6).unwrap(), "what waited waits still");
        until_nothing_waits(&gate).await;
        assert_eq!(until_used(&gate, "alice").await, [1, 5, 5]);
    });
}
