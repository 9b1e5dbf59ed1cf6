//! Tickets that settle themselves: whatever happens to their holder, nothing stays held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use slidegate::{
    Counts,
    reserve::{HoldStatus, Unsettled},
};

use super::*;

/// Tokens, and a permit, on a clock that stands still.
fn gate(unsettled: Unsettled) -> Arc<Gate> {
    let policies = [
        Policy::new("tokens", Quota::per_minute(100)).unwrap().with_unsettled(unsettled),
        Policy::new("jobs", Quota::in_flight(1, secs(30)).unwrap()).unwrap().with_counts(Counts::Requests),
    ];
    Arc::new(Bench::new(policies).gate)
}

/// What the tokens used and hold, and the permits that are taken.
fn state(gate: &Gate) -> [u64; 3] {
    let request = Request::new();
    let peeked = gate.peek(&request);
    let all: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
    [all[0].0, all[0].1, all[1].1]
}

fn reserve(gate: &Arc<Gate>) -> slidegate::reserve::TicketGuard<MemoryStore> {
    gate.reserve(&Request::new().with_cost(60)).into_guard(gate).unwrap()
}

/// The outcome of a change, which memory does not wait for.
fn now<F: Future>(change: F) -> F::Output {
    slidegate::internal::poll_once(change).expect("a store in memory does not wait")
}

/// Streams break off at any time; what has flowed counts, and if nobody said it, what was held.
#[test]
fn a_dropped_guard_settles_to_what_was_recorded_or_else_to_what_was_held() {
    let gate = gate(Unsettled::Charge);
    drop(reserve(&gate));
    assert_eq!(state(&gate), [60, 0, 0]);
    gate.reset(&Request::new()).unwrap();

    let mut guard = reserve(&gate);
    guard.record(10);
    guard.record(25);
    assert_eq!(state(&gate), [0, 60, 1]);
    drop(guard);
    assert_eq!(state(&gate), [25, 0, 0]);
    gate.reset(&Request::new()).unwrap();

    let mut guard = reserve(&gate);
    now(guard.settle_so_far(20)).unwrap();
    assert_eq!(state(&gate), [20, 40, 1]);
    drop(guard);
    assert_eq!(state(&gate), [20, 0, 0]);
    gate.reset(&Request::new()).unwrap();

    let mut guard = reserve(&gate);
    assert_eq!(now(guard.extend_to(80)).unwrap().status(), HoldStatus::Changed);
    assert_eq!(now(guard.extend()).unwrap().status(), HoldStatus::Changed);
    drop(guard);
    assert_eq!(state(&gate), [80, 0, 0]);
}

/// A policy that drops what is not settled does so at once.
#[test]
fn a_dropped_guard_is_forgotten_where_the_policy_says_so() {
    let gate = gate(Unsettled::Forget);
    drop(reserve(&gate));
    assert_eq!(state(&gate), [0, 0, 0]);
    let mut guard = reserve(&gate);
    now(guard.settle_so_far(20)).unwrap();
    guard.record(30);
    drop(guard);
    assert_eq!(state(&gate), [30, 0, 0]);
}

/// What is settled, cancelled or taken over must not be settled a second time.
#[test]
fn a_guard_that_was_settled_cancelled_or_taken_apart_does_nothing_more() {
    let gate = gate(Unsettled::Charge);
    assert_eq!(now(reserve(&gate).settle(10)).unwrap().status(), HoldStatus::Changed);
    assert_eq!(state(&gate), [10, 0, 0]);
    assert_eq!(now(reserve(&gate).cancel()).unwrap().status(), HoldStatus::Changed);
    assert_eq!(state(&gate), [10, 0, 0]);
    let ticket = reserve(&gate).into_ticket();
    assert_eq!(state(&gate), [10, 60, 1]);
    gate.settle(&ticket, 5).unwrap();
    assert_eq!(state(&gate), [15, 0, 0]);
}

/// A handler's bug must not lock its user out.
#[test]
fn a_panic_and_a_cancelled_task_give_back() {
    let gate = gate(Unsettled::Charge);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut guard = reserve(&gate);
        guard.record(7);
        assert!(gate.peek(&Request::new().with_cost(100)).is_allowed(), "a handler's bug");
    }));
    assert!(panicked.is_err());
    assert_eq!(state(&gate), [7, 0, 0]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let guard = reserve(&gate);
        let task = tokio::spawn(async move {
            let mut guard = guard;
            guard.record(9);
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        assert_eq!(state(&gate), [7, 60, 1]);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
    assert_eq!(state(&gate), [16, 0, 0]);
}
