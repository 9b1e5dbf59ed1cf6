//! Room that appears early: who waits on one instance hears of it from another, and does not have to ask every second.

use std::sync::Arc;
use std::time::Duration;

use slidegate::reserve::{Extension, Reserved};
use slidegate::store::ServiceStore;
use slidegate::{Policy, PolicySet, Quota, Request};
use slidegate_redis::{RedisGate, RedisOptions};
use slidegate_testkit::redis::RedisServer;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::callers::{daily, gate, options};

/// Nothing takes so long.
const HANGS: Duration = Duration::from_secs(60);
/// Longer than any wait without an event: a caller that cannot be served in time is denied at once.
const PATIENCE: Duration = Duration::from_secs(2 * 86_400);
/// After how long a waiter asks again without a message.
const RETRY: Duration = Duration::from_secs(5);
/// A busy machine may be late with a message, but not each time.
const ATTEMPTS: usize = 10;
const LIMIT: u64 = 10;

fn alice<'r>() -> Request<'r> {
    Request::new().with("user", "alice")
}

fn calls(gate: &RedisGate) -> u64 {
    gate.store().primary().stats().calls
}

/// What makes room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Refund,
    Reset,
    RaisedLimit,
    Settled,
    LessHeld,
    Cancelled,
}

impl Event {
    const ALL: [Self; 6] =
        [Self::Refund, Self::Reset, Self::RaisedLimit, Self::Settled, Self::LessHeld, Self::Cancelled];

    /// Takes all there is, as another instance that has not waited before.
    async fn take(self, other: &RedisGate) -> Option<Reserved<'static>> {
        let all = alice().with_cost(LIMIT);
        if matches!(self, Self::Refund | Self::Reset | Self::RaisedLimit) {
            assert!(other.check(&all).await.is_allowed());
            return None;
        }
        // For as long as no test lasts.
        let all = Box::leak(Box::new(all));
        let reserved = other.reserve(all).await;
        assert!(reserved.ticket().is_some());
        Some(reserved)
    }

    async fn happen(self, one: &RedisGate, other: &RedisGate, reserved: Option<Reserved<'static>>) {
        let ticket = || reserved.as_ref().unwrap().ticket().unwrap();
        match self {
            Self::Refund => drop(other.refund(&alice()).await),
            Self::Reset => drop(other.reset(&alice()).await.unwrap()),
            Self::RaisedLimit => one.configure(PolicySet::new([daily(LIMIT + 1)]).unwrap()).unwrap(),
            Self::Settled => drop(other.settle(ticket(), 0).await.unwrap()),
            Self::LessHeld => drop(other.extend(ticket(), Extension::new().with_total(1)).await.unwrap()),
            Self::Cancelled => drop(other.cancel(ticket()).await.unwrap()),
        }
    }
}

fn next(one: &Arc<RedisGate>) -> JoinHandle<bool> {
    let gate = Arc::clone(one);
    tokio::spawn(async move { gate.acquire(&alice()).timeout(PATIENCE).await.is_ok() })
}

/// A caller who waits, after it was denied and its key was announced.
async fn waiting(one: &Arc<RedisGate>) -> JoinHandle<bool> {
    let asked = calls(one);
    let waits = next(one);
    while one.gate().waiting() == 0 || calls(one) < asked + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    waits
}

async fn wakes(server: &RedisServer, event: Event, options: &RedisOptions) {
    for attempt in 1.. {
        server.admin(&["FLUSHALL"]);
        let [one, other] = [(); 2].map(|()| gate([daily(LIMIT)], options.clone()));
        let reserved = event.take(&other).await;
        let waits = waiting(&one).await;
        // It has slept, and asks next when seconds are over.
        sleep(Duration::from_millis(150)).await;
        let (begun, asked) = (Instant::now(), calls(&one));
        event.happen(&one, &other, reserved).await;
        assert!(timeout(HANGS, waits).await.unwrap().unwrap());
        let (took, asked) = (begun.elapsed(), calls(&one) - asked);
        println!("{event:?}: {took:?}, {asked} calls");
        if took < RETRY / 2 && asked <= 2 {
            return;
        }
        assert!(attempt < ATTEMPTS, "{event:?}: {took:?}, {asked} calls");
    }
}

/// Room that is not noticed is capacity that nobody uses.
#[tokio::test]
async fn who_waits_is_woken_by_whatever_another_instance_frees() {
    for module in [false, true] {
        let server = RedisServer::builder().module(module).start();
        for event in Event::ALL {
            wakes(&server, event, &options(&server.url_as_user())).await;
        }
    }
}

/// Whoever caches no denials, and has never waited, does not listen to others, and must still be heard.
#[tokio::test]
async fn instances_that_cache_no_denials_wake_each_other() {
    let server = RedisServer::builder().start();
    for event in Event::ALL {
        wakes(&server, event, &options(&server.url_as_user()).without_denial_cache()).await;
    }
}

/// Permits are given back by whoever is done, on any instance.
#[tokio::test]
async fn three_instances_never_use_more_permits_than_there_are_and_do_all_jobs() {
    let server = RedisServer::builder().start();
    let policy = || Policy::new("jobs", Quota::in_flight(2, Duration::from_secs(600)).unwrap()).unwrap();
    let gates = [(); 3].map(|()| gate([policy().with_scope(["user"])], options(&server.url_as_user())));
    let (running, begun) = (Arc::new(std::sync::Mutex::new((0, 0))), Instant::now());
    let jobs: JoinSet<_> = (0..30)
        .map(|number| {
            let (gate, running) = (Arc::clone(&gates[number % 3]), Arc::clone(&running));
            async move {
                let request = alice();
                let permit = gate.acquire_reservation(&request).timeout(PATIENCE).await.unwrap();
                let permit = permit.into_guard(gate.gate()).unwrap();
                let count = |change: i32| {
                    let mut running = running.lock().unwrap();
                    running.0 += change;
                    running.1 = running.1.max(running.0);
                };
                count(1);
                sleep(Duration::from_millis(20)).await;
                count(-1);
                permit.settle(1).await.unwrap();
            }
        })
        .collect();
    jobs.join_all().await;
    println!("{:?}, {} calls", begun.elapsed(), gates.iter().map(|gate| calls(gate)).sum::<u64>());
    assert_eq!(*running.lock().unwrap(), (0, 2));
}

/// A message that is lost costs seconds, and neither the turn nor the wait until the window ends.
#[tokio::test]
async fn without_messages_a_waiter_still_notices_room_within_seconds() {
    let server = RedisServer::builder().start();
    let options = options(&server.url_as_user());
    let [one, other] = [(); 2].map(|()| gate([daily(LIMIT)], options.clone()));
    assert!(other.check(&alice().with_cost(LIMIT)).await.is_allowed());
    let first = waiting(&one).await;
    let second = next(&one);
    // Both are subscribed. No subscription lasts from here on.
    server.admin(&["ACL", "SETUSER", "slidegate", "resetchannels"]);
    server.admin(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    for waits in [first, second] {
        let begun = Instant::now();
        other.refund(&alice()).await;
        assert!(timeout(HANGS, waits).await.unwrap().unwrap());
        println!("{:?} without a message", begun.elapsed());
        assert!(begun.elapsed() < HANGS / 2);
    }
}

/// Who goes away takes nothing along: neither the turn of others nor any cost.
#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_its_turn_to_the_next_and_charges_nothing() {
    let server = RedisServer::builder().start();
    let [one, other] = [(); 2].map(|()| gate([daily(LIMIT)], options(&server.url_as_user())));
    assert!(other.check(&alice().with_cost(LIMIT)).await.is_allowed());
    let head = waiting(&one).await;
    let next = next(&one);
    while one.gate().waiting() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    head.abort();
    assert!(head.await.is_err());
    assert_eq!(one.gate().waiting(), 1);
    other.refund(&alice()).await;
    assert!(timeout(HANGS, next).await.unwrap().unwrap());
    let used = other.peek(&alice()).await.strictest().unwrap().decision().used();
    assert_eq!((used, one.gate().waiting()), (LIMIT, 0));
}

/// Messages about a flood of keys must not be a flood themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_waited_keys_is_announced_in_few_messages() {
    const KEYS: usize = 2000;
    let server = RedisServer::builder().start();
    let one = gate([daily(1)], options(&server.url_as_user()).with_deadline(HANGS));
    let begun = Instant::now();
    let mut waiters = JoinSet::new();
    while waiters.len() < KEYS && begun.elapsed() < HANGS {
        for number in waiters.len()..waiters.len() + 100 {
            let gate = Arc::clone(&one);
            waiters.spawn(async move {
                let user = number.to_string();
                let request = Request::new().with("user", &user);
                gate.check(&request).await;
                gate.acquire(&request).timeout(PATIENCE).await.is_ok()
            });
        }
        while one.gate().waiting() < waiters.len() && begun.elapsed() < HANGS {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let (published, took) = (server.commandstats("publish").calls, begun.elapsed());
    println!("{published} messages, {} calls, {} waiting, {took:?}", calls(&one), one.gate().waiting());
    // 64 keys in a message, every five seconds; new keys are gathered for 2 ms.
    let rounds = 1 + took.as_secs() / 5;
    assert!(published <= rounds * (2000 / 64 + 1) + 2000 / 4, "{published} messages in {took:?}");
    waiters.shutdown().await;
    assert_eq!(one.gate().waiting(), 0);
}

/// Who cannot be served in time is denied at once, also before the head of the queue has asked again: it knows from the
/// denial that made it wait.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_just_after_the_head_and_cannot_be_served_in_time_is_denied_at_once() {
    let server = RedisServer::start();
    let gate = gate([daily(1)], options(&server.url()));
    for user in 0..20 {
        let user = format!("user{user}");
        let ask = |patience: Duration| {
            let (gate, user) = (Arc::clone(&gate), user.clone());
            tokio::spawn(async move {
                let request = Request::new().with("user", &user);
                gate.acquire(&request).timeout(patience).await.is_ok()
            })
        };
        assert!(ask(PATIENCE).await.unwrap());
        let head = ask(PATIENCE);
        while gate.gate().waiting() == 0 {
            tokio::task::yield_now().await;
        }
        // A day is left until the head's turn, and another one until the next.
        let behind = timeout(HANGS, ask(PATIENCE / 2)).await;
        assert!(!behind.expect("it is denied at once").unwrap(), "{user}");
        head.abort();
        assert!(head.await.is_err());
    }
}
