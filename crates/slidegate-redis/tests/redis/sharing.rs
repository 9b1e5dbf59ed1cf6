//! Sharing: checks of one key that go together, and denials that are cached.
//!
//! Both save calls, and neither may change a decision.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Block, DecisionSource, Decisions, Policy, PolicySet, Quota, Reason, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::until_true;
use tokio::time::{Instant, sleep_until};

use crate::callers::{LATER, Outcome, check_cost, daily, gate, named, options, until_used, used};

/// A call that has begun.
type Begun<'f> = Pin<Box<dyn Future<Output = Outcome> + 'f>>;

fn checking<'f>(gate: &'f RedisGate, cost: u64) -> Begun<'f> {
    Box::pin(check_cost(gate, "alice", cost))
}

/// Lets each of these take its first step, in their order: it asks, and is not answered yet.
async fn begin<F: Future + ?Sized>(all: &mut [Pin<Box<F>>]) {
    poll_fn(|context| {
        for one in &mut *all {
            assert!(one.as_mut().poll(context).is_pending());
        }
        Poll::Ready(())
    })
    .await;
}

/// A gate that has been answered, and may take its time.
async fn patient(server: &RedisServer, limit: u64) -> Arc<RedisGate> {
    let gate = gate([daily(limit)], options(&server.url()).with_deadline(LATER));
    until_used(&gate, "alice").await;
    gate
}

/// Waits until the gate hears what would end a denial: before, it remembers none.
async fn until_it_remembers(gate: &RedisGate) {
    let (much, one) =
        (Request::new().with("user", "nobody").with_cost(10), Request::new().with("user", "nobody"));
    for _ in 0..1000 {
        let decisions = gate.check(&one).await;
        if decisions.is_allowed() {
            gate.penalize(&much).await;
        } else if decisions.strictest().unwrap().decision().source() == DecisionSource::CachedDenial {
            gate.reset(&one).await.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("no denial is ever cached");
}

/// Checks in a batch are decided in order, and each caller gets its own decision.
#[tokio::test]
async fn checks_that_go_together_are_decided_one_by_one_in_the_order_they_came() {
    let server = RedisServer::start();
    let gate = patient(&server, 150).await;
    let before = gate.store().primary().stats();
    let costs: Vec<u64> = (0..120).map(|number| number * 7 % 5).collect();

    server.pause();
    let mut all: Vec<_> = costs.iter().map(|cost| checking(&gate, *cost)).collect();
    begin(&mut all).await;
    server.resume();

    let mut expected = 0;
    for (cost, outcome) in costs.iter().zip(all) {
        let outcome = outcome.await;
        // One that does not fit is passed over; a smaller one after it may fit.
        let fits = expected + cost <= 150;
        expected += if fits { *cost } else { 0 };
        assert_eq!((outcome.allowed, outcome.used, outcome.source), (fits, expected, DecisionSource::Store));
    }
    assert!(expected > 140);
    assert_eq!(used(&server.url(), "alice").await, expected);
    let after = gate.store().primary().stats();
    // The first is on its way when the others come.
    assert_eq!((after.calls - before.calls, after.batched - before.batched), (2, 118));
}

/// More than one call can carry must not be lost or decided twice.
#[tokio::test]
async fn a_thousand_checks_at_once_are_each_charged_once() {
    // The first alone; then 1024 of one cost at a time, or 128 of which each has another cost than
    // the one before.
    for (checks, costs, calls) in [(2000, 1, 3), (1000, 2, 9)] {
        let server = RedisServer::start();
        let gate = patient(&server, 1_000_000).await;
        let before = gate.store().primary().stats();
        server.pause();
        let cost = |number: u64| 1 + number % costs;
        let mut all: Vec<_> = (0..checks).map(|number| checking(&gate, cost(number))).collect();
        begin(&mut all).await;
        server.resume();
        let mut expected = 0;
        for (number, outcome) in (0..).zip(all) {
            let outcome = outcome.await;
            expected += cost(number);
            assert_eq!((outcome.allowed, outcome.used), (true, expected));
        }
        assert_eq!(used(&server.url(), "alice").await, expected);
        let after = gate.store().primary().stats();
        assert_eq!((after.calls - before.calls, after.batched - before.batched), (calls, checks - calls));
    }
}

/// Clients hang up all the time: each may take back its own request, and nothing else.
#[tokio::test]
async fn a_caller_who_gives_up_takes_no_other_along() {
    let server = RedisServer::start();
    let gate = patient(&server, 1_000_000).await;
    server.pause();
    let mut all: Vec<_> = (0..20).map(|_| checking(&gate, 1)).map(Some).collect();
    for one in &mut all {
        begin(std::slice::from_mut(one.as_mut().unwrap())).await;
    }
    // The first is on its way: let it be sent.
    tokio::task::yield_now().await;
    for gone in [0, 7, 19] {
        all[gone] = None;
    }
    server.resume();
    let mut used_by = Vec::new();
    for outcome in all.into_iter().flatten() {
        used_by.push(outcome.await.used);
    }
    // Those who had not been sent yet are charged nothing; the first one, perhaps.
    let charged = used(&server.url(), "alice").await;
    assert!((17..=18).contains(&charged), "{charged}");
    let expected: Vec<_> = (charged - 16..=charged).collect();
    assert_eq!(used_by, expected);
    // The lane is open for those who come later.
    assert_eq!(check_cost(&gate, "alice", 1).await.used, charged + 1);
}

/// Outcome to call for each check, it does.
#[tokio::test]
async fn without_batching_each_check_is_a_call_of_its_own() {
    let server = RedisServer::start();
    let gate = gate([daily(100)], options(&server.url()).with_deadline(LATER).without_batching());
    until_used(&gate, "alice").await;
    let (before, calls) = (server.commandstats("evalsha").calls, gate.store().primary().stats().calls);
    let mut all: Vec<_> = (0..10).map(|_| checking(&gate, 1)).collect();
    begin(&mut all).await;
    for (number, outcome) in (1..).zip(all) {
        assert_eq!(outcome.await.used, number);
    }
    let stats = gate.store().primary().stats();
    assert_eq!((stats.calls - calls, stats.batched), (10, 0));
    // A script that has to be loaded is asked for more than once.
    assert!(server.commandstats("evalsha").calls >= before + 10);
}

/// Anyone who goes on asking after a denial must not be able to keep the server busy with it.
#[tokio::test]
async fn a_denied_key_costs_the_server_no_call_until_its_wait_is_over() {
    let server = RedisServer::start();
    let quota = Quota::new(2, Duration::from_secs(5)).unwrap();
    let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
    let gate = gate([policy], options(&server.url()).with_deadline(LATER));
    until_it_remembers(&gate).await;
    let before_all = gate.store().primary().stats().cached_denials;
    let request = Request::new().with("user", "alice");
    for _ in 0..2 {
        assert!(gate.check(&request).await.is_allowed());
    }
    let strictest = |decisions: &Decisions<'_>| *decisions.strictest().unwrap().decision();
    let sent = Instant::now();
    let denied = strictest(&gate.check(&request).await);
    assert_eq!((denied.is_denied(), denied.source()), (true, DecisionSource::Store));
    let wait = denied.retry_after().unwrap();
    let free = Instant::now() + wait;

    let before = server.commandstats("evalsha").calls;
    let mut cached = 0;
    loop {
        let begun = Instant::now();
        let outcome = strictest(&gate.check(&request).await);
        if outcome.source() == DecisionSource::Store {
            // The true wait is over, or all but the time that the denial took to arrive.
            assert!(Instant::now() >= sent + wait);
            break;
        }
        assert_eq!(
            (outcome.is_denied(), outcome.source(), outcome.used(), outcome.remaining()),
            (true, DecisionSource::CachedDenial, 2, 0)
        );
        // Never longer than the truth.
        assert!(begun + outcome.retry_after().unwrap() <= free);
        assert!(begun < free);
        cached += 1;
        if cached == 100 {
            assert_eq!(server.commandstats("evalsha").calls, before);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(cached > 100, "{cached}");
    assert_eq!(gate.store().primary().stats().cached_denials - before_all, cached);
    assert_eq!(server.commandstats("evalsha").calls, before + 1);

    // A promised wait is kept: who comes then is admitted.
    server.admin(&["FLUSHALL"]);
    let request = Request::new().with("user", "bob");
    for _ in 0..2 {
        assert!(gate.check(&request).await.is_allowed());
    }
    let denied = strictest(&gate.check(&request).await);
    sleep_until(Instant::now() + denied.retry_after().unwrap()).await;
    assert!(gate.check(&request).await.is_allowed());
}

/// What did not fit says nothing about what is smaller.
#[tokio::test]
async fn a_cached_denial_holds_for_costs_at_least_as_large_and_for_its_own_key() {
    let server = RedisServer::start();
    let gate = patient(&server, 10).await;
    until_it_remembers(&gate).await;
    for (cost, expected) in [
        (6, (true, DecisionSource::Store)),
        (5, (false, DecisionSource::Store)),
        (5, (false, DecisionSource::CachedDenial)),
        (7, (false, DecisionSource::CachedDenial)),
        (11, (false, DecisionSource::CachedDenial)),
        (4, (true, DecisionSource::Store)),
        (0, (true, DecisionSource::Store)),
        (1, (false, DecisionSource::Store)),
    ] {
        let outcome = check_cost(&gate, "alice", cost).await;
        assert_eq!((outcome.allowed, outcome.source), expected, "cost {cost}");
    }
    // More than ever fits: no wait is promised.
    let request = Request::new().with("user", "alice").with_cost(11);
    assert_eq!(gate.check(&request).await.strictest().unwrap().decision().retry_after(), None);
    let other = check_cost(&gate, "bob", 5).await;
    assert_eq!((other.allowed, other.source), (true, DecisionSource::Store));
}

/// Support gives a client its quota back, and the client tries again at once.
#[tokio::test]
async fn a_refund_a_reset_and_another_quota_end_cached_denials() {
    let server = RedisServer::start();
    let gate = patient(&server, 1).await;
    until_it_remembers(&gate).await;
    let request = Request::new().with("user", "alice");
    for end in ["refund", "reset", "configure"] {
        assert!(check_cost(&gate, "alice", 1).await.allowed, "{end}");
        for source in [DecisionSource::Store, DecisionSource::CachedDenial] {
            let outcome = check_cost(&gate, "alice", 1).await;
            assert_eq!((outcome.allowed, outcome.source), (false, source), "{end}");
        }
        match end {
            "refund" => assert_eq!(gate.refund(&request).await.strictest().unwrap().decision().cost(), 1),
            "reset" => assert!(gate.reset(&request).await.unwrap()),
            _ => gate.configure(PolicySet::new([daily(2)]).unwrap()).unwrap(),
        }
        let outcome = check_cost(&gate, "alice", 1).await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Store), "{end}");
        gate.reset(&request).await.unwrap();
    }
}

/// A denial that arrives when the refund is already on its way is true no longer than that takes.
#[tokio::test]
async fn a_denial_that_a_refund_overtakes_is_not_cached() {
    for refund_first in [false, true] {
        let server = RedisServer::start();
        let gate = gate([daily(1)], options(&server.url()).with_deadline(LATER).without_batching());
        until_used(&gate, "alice").await;
        until_it_remembers(&gate).await;
        assert!(check_cost(&gate, "alice", 1).await.allowed);
        let request = Request::new().with("user", "alice");
        gate.peek(&request).await;

        server.pause();
        let mut denial = [checking(&gate, 1)];
        begin(&mut denial).await;
        let mut refund = [Box::pin(gate.refund(&request))];
        begin(&mut refund).await;
        server.resume();
        let ([denial], [refund]) = (denial, refund);
        // Both were answered together; who reads first is chance.
        if refund_first {
            assert_eq!(refund.await.strictest().unwrap().decision().cost(), 1);
            assert!(!denial.await.allowed);
        } else {
            assert!(!denial.await.allowed);
            assert_eq!(refund.await.strictest().unwrap().decision().cost(), 1);
        }
        let outcome = check_cost(&gate, "alice", 1).await;
        assert_eq!(
            (outcome.allowed, outcome.source),
            (true, DecisionSource::Store),
            "refund first: {refund_first}"
        );
    }
}

/// Outcome to ask for each denial, it does.
#[tokio::test]
async fn without_remembering_each_denial_is_asked_for() {
    let server = RedisServer::start();
    let gate = gate([daily(1)], options(&server.url()).with_deadline(LATER).without_denial_cache());
    assert!(check_cost(&gate, "alice", 1).await.allowed);
    let before = server.commandstats("evalsha").calls;
    for _ in 0..5 {
        let outcome = check_cost(&gate, "alice", 1).await;
        assert_eq!((outcome.allowed, outcome.source), (false, DecisionSource::Store));
    }
    assert_eq!(server.commandstats("evalsha").calls, before + 5);
    assert_eq!(gate.store().primary().stats().cached_denials, 0);
}

/// Numbers that do not count are worse than none: somebody watches them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_is_counted() {
    let server = RedisServer::builder().with_clock().start();
    let gate = gate([named("p", 2)], options(&server.url()).with_deadline(Duration::from_secs(3)));
    until_used(&gate, "alice").await;
    let begun = gate.store().primary().stats();
    assert_eq!((begun.batched, begun.cached_denials, begun.late), (0, 0, 0));

    // An hour passes in a moment: the call is late by the server's clock, and made again.
    server.clock().set(3_600_000_000);
    let outcome = check_cost(&gate, "alice", 1).await;
    assert_eq!(
        (outcome.allowed, outcome.source),
        (true, DecisionSource::Store),
        "{:?}",
        gate.store().stats()
    );
    let late = gate.store().primary().stats();
    assert_eq!((late.calls - begun.calls, late.late), (2, 1));

    assert_eq!(gate.store().primary().nodes()[0].reconnects, 0);
    server.admin(&["CLIENT", "KILL", "TYPE", "normal"]);
    until_true("the connection is found lost", || {
        !gate.store().primary().nodes()[0].connected || gate.store().primary().nodes()[0].reconnects > 0
    });
    until_used(&gate, "alice").await;
    assert_eq!(gate.store().primary().nodes()[0].reconnects, 1);

    let before = (gate.store().stats().fallbacks, gate.store().primary().nodes()[0].timeouts);
    server.pause();
    let outcome = check_cost(&gate, "alice", 1).await;
    server.resume();
    assert_eq!(outcome.source, DecisionSource::Local);
    assert_eq!(
        (gate.store().stats().fallbacks, gate.store().primary().nodes()[0].timeouts),
        (before.0 + 1, before.1 + 1)
    );
}

/// An operator blocks the client that floods: from then on its requests must cost the store next to
/// nothing.
#[tokio::test]
async fn a_flood_on_a_blocked_key_asks_the_store_ten_times_a_second_at_most() {
    let server = RedisServer::start();
    let policy = daily(5).with_block(["mallory"], Block::forever());
    let gate = gate([policy], options(&server.url()).with_deadline(LATER));
    until_used(&gate, "alice").await;
    let mallory = Request::new().with("user", "mallory");
    let source = async || {
        let decisions = gate.check(&mallory).await;
        let denied = decisions.strictest().unwrap();
        assert_eq!(
            (denied.decision().reason(), denied.decision().limit(), denied.decision().used()),
            (Some(Reason::Blocked), 5, 0)
        );
        denied.decision().source()
    };
    assert_eq!(source().await, DecisionSource::Store);
    // Nothing is cached before invalidations are received.
    while source().await != DecisionSource::CachedDenial {}
    let before = gate.store().primary().stats().calls;
    let began = Instant::now();
    for _ in 0..2000 {
        source().await;
    }
    let calls = gate.store().primary().stats().calls - before;
    let most = 1 + began.elapsed().as_millis() / 100;
    let stats = gate.store().primary().stats();
    assert!(u128::from(calls) <= most, "{calls} calls in {:?}: {stats:?}", began.elapsed());

    // What this instance does to the key is seen at once.
    gate.penalize(&mallory).await;
    assert_eq!(gate.check(&mallory).await.strictest().unwrap().decision().used(), 1);
    gate.reset(&mallory).await.unwrap();
    assert_eq!(gate.check(&mallory).await.strictest().unwrap().decision().used(), 0);
}
