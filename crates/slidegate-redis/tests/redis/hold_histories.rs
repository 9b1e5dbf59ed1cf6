//! Random histories of holds: what is reserved, settled, extended and cancelled in Redis counts as in
//! memory.

use std::cell::RefCell;
use std::time::Duration;

use proptest::option;
use proptest::prelude::*;
use slidegate::reserve::{Extension, Reserved, Settlement, Ticket, Unsettled};
use slidegate::{
    Algorithm, Counts, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;

use crate::callers::{options, random_cases, redis_gate};

pub(crate) const START_US: u64 = 1_700_000_000_000_000;

/// What happens next. A ticket is named by how many were made after it.
#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Reserve(u64, u64),
    Apply(Verb, u64),
    Settle(usize, u64),
    Part(usize, u64),
    Extend(usize, Option<u64>, Option<u64>),
    Cancel(usize),
    Reset,
    Limit(u64),
    /// Another window, in milliseconds.
    Window(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let advance = prop_oneof![0u64..50, 0u64..5_000, 0u64..300_000, (1u64..6).prop_map(|n| n * 10_000)];
    let ttl = prop_oneof![1_000u64..50_000, (1u64..9).prop_map(|n| n * 10_000)];
    let (ticket, cost) = (|| 0usize..4, || 0u64..25);
    let verb = prop::sample::select(vec![Verb::Check, Verb::Check, Verb::Peek, Verb::Penalize, Verb::Refund]);
    prop_oneof![
        10 => advance.prop_map(Step::Advance),
        9 => (cost(), ttl.clone()).prop_map(|(cost, ttl)| Step::Reserve(cost, ttl)),
        6 => (verb, cost()).prop_map(|(verb, cost)| Step::Apply(verb, cost)),
        5 => (ticket(), cost()).prop_map(|(at, cost)| Step::Settle(at, cost)),
        4 => (ticket(), cost()).prop_map(|(at, cost)| Step::Part(at, cost)),
        3 => (ticket(), option::of(cost()), option::of(ttl.clone()))
            .prop_map(|(at, cost, ttl)| Step::Extend(at, cost, ttl)),
        1 => ticket().prop_map(Step::Cancel),
        1 => Just(Step::Reset),
        1 => (0u64..40).prop_map(Step::Limit),
        1 => (1u64..100).prop_map(Step::Window),
    ]
}

/// Steps, each of which says whether its request has the attribute `beside`.
fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    // Redis takes another window into account with the next charge.
    let written = |(step, is_beside): (Step, bool)| match step {
        Step::Window(_) => {
            let charge = (Step::Apply(Verb::Penalize, 1), is_beside);
            // A full bucket has no room for a penalty.
            let room = (Step::Apply(Verb::Refund, 2), is_beside);
            vec![charge.clone(), room, (step, is_beside), charge]
        }
        _ => vec![(step, is_beside)],
    };
    let steps = proptest::collection::vec((step(), prop::bool::weighted(0.2)), 0..60);
    steps.prop_map(move |steps| steps.into_iter().flat_map(written).collect())
}

/// Two gates of the same policies, at the same time.
struct Pair {
    memory: Gate,
    redis: RedisGate,
    clock: ManualClock,
    key: String,
}

pub(crate) fn decisions(reserved: &Reserved<'_>) -> Vec<String> {
    reserved.decisions().iter().map(|one| format!("{:?}", one.decision())).collect()
}

fn changes(settlement: &Settlement) -> Vec<String> {
    settlement.iter().map(|one| format!("{} {:?} {:?}", one.policy(), one.status(), one.decision())).collect()
}

/// Compares what both said of each policy, and shows those that differ.
pub(crate) fn compare(theirs: &[String], ours: &[String], what: &str) {
    let differ = |(theirs, ours): (&String, &String)| {
        (theirs != ours).then(|| format!("redis  {theirs}\nmemory {ours}"))
    };
    let differ: Vec<_> = theirs.iter().zip(ours).filter_map(differ).collect();
    assert!(differ.is_empty() && theirs.len() == ours.len(), "{what}:\n{}", differ.join("\n"));
}

impl Pair {
    fn new((server, url): (&RedisServer, &str), key: &str, policies: &dyn Fn() -> PolicySet) -> Self {
        server.clock().stand(START_US);
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let memory = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
        // A cached denial shows the time of this process.
        let options = options(url).without_denial_cache();
        let redis = redis_gate(policies(), options).unwrap();
        Self { memory, redis, clock, key: key.to_owned() }
    }

    fn request(&self, cost: u64) -> Request<'_> {
        Request::new().with("user", self.key.as_str()).with_cost(cost)
    }

    async fn reserve(&self, request: Request<'_>, ttl: Duration) -> Option<(Ticket, Ticket)> {
        let ours = self.memory.reserve_for(&request, ttl).unwrap();
        let theirs = self.redis.reserve_for(&request, ttl).await.unwrap();
        compare(&decisions(&theirs), &decisions(&ours), &format!("reserve {request:?} for {ttl:?}"));
        ours.into_ticket().zip(theirs.into_ticket())
    }

    async fn apply(&self, verb: Verb, request: Request<'_>) {
        let request = [request];
        let ours = self.memory.apply_all(verb, &request);
        let theirs = self.redis.apply_all(verb, &request).await;
        let ours: Vec<_> = ours.iter().map(|one| format!("{:?}", one.decision())).collect();
        let theirs: Vec<_> = theirs.iter().map(|one| format!("{:?}", one.decision())).collect();
        compare(&theirs, &ours, &format!("{verb:?} {request:?}"));
    }

    async fn inspect(&self) {
        let request = self.request(1);
        let ours = self.memory.inspect(&request).unwrap();
        let theirs = self.redis.inspect(&request).await.unwrap();
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let holds = |found: &slidegate::store::KeyUse| {
                found.holds.iter().map(|hold| (hold.held, hold.settled, hold.until)).collect::<Vec<_>>()
            };
            assert_eq!(holds(theirs), holds(ours));
            assert_eq!(format!("{:?}", theirs.decision), format!("{:?}", ours.decision));
        }
    }
}

/// Which policies a history has.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// One of every kind, so that each call is about several keys.
    All,
    /// The one at this position. Calls are about its key alone, or about one of `beside` too.
    Single(usize),
}

/// A history of one user. With the attribute `beside` a further policy applies, and other scripts run.
async fn history(
    (server, url): (&RedisServer, &str),
    (key, shape): (&str, Shape),
    (limit, ms): (u64, u64),
    unsettled: Unsettled,
    steps: &[(Step, bool)],
) {
    let (first, limit, ms) = (limit, RefCell::new(limit), RefCell::new(ms));
    let policies = || {
        let (window, limit) = (Duration::from_millis(*ms.borrow()), *limit.borrow());
        let quota = |algorithm| {
            // A bucket whose limit changes has drained by the former one, which only memory knows.
            let limit = if algorithm == Algorithm::TokenBucket { first } else { limit };
            Quota::new(limit, window).unwrap().with_algorithm(algorithm)
        };
        let policy =
            |name, quota| Policy::new(name, quota).unwrap().with_scope(["user"]).with_unsettled(unsettled);
        let rates = Algorithm::ALL.map(|algorithm| policy(algorithm.name(), quota(algorithm)));
        let requests = policy("requests", quota(Algorithm::SlidingLog)).with_counts(Counts::Requests);
        let in_flight = Quota::in_flight(limit + 3, Duration::from_secs(1)).unwrap();
        let in_flight = policy("in-flight", in_flight).with_counts(Counts::Requests);
        let mut all: Vec<_> = rates.into_iter().chain([requests, in_flight]).collect();
        if let Shape::Single(at) = shape {
            let beside = Policy::new("beside", Quota::per_day(1 << 40)).unwrap();
            all = vec![all.swap_remove(at), beside.with_scope(["user", "beside"]).with_unsettled(unsettled)];
        }
        PolicySet::new(all).unwrap()
    };
    let pair = Pair::new((server, url), key, &policies);
    let mut now = START_US;
    let mut made: Vec<(Ticket, Ticket)> = Vec::new();
    for (step, is_beside) in steps {
        let request = |cost: u64| match shape {
            Shape::Single(_) if *is_beside => pair.request(cost).with("beside", "yes"),
            _ => pair.request(cost),
        };
        let ticket = |at: &usize| made.len().checked_sub(at + 1);
        let (at, ours, theirs) = match step {
            Step::Advance(us) => {
                now += us;
                server.clock().stand(now);
                pair.clock.set(Timestamp::from_micros(now));
                continue;
            }
            Step::Reserve(cost, ttl) => {
                made.extend(pair.reserve(request(*cost), Duration::from_micros(*ttl)).await);
                continue;
            }
            Step::Apply(verb, cost) => {
                pair.apply(*verb, request(*cost)).await;
                pair.inspect().await;
                continue;
            }
            Step::Reset => {
                let request = request(1);
                // Redis knows whether there was a key, memory whether it still counted.
                pair.redis.reset(&request).await.unwrap();
                pair.memory.reset(&request).unwrap();
                continue;
            }
            Step::Limit(changed) | Step::Window(changed) => {
                let setting = if matches!(step, Step::Limit(_)) { &limit } else { &ms };
                *setting.borrow_mut() = *changed;
                pair.memory.configure(policies()).unwrap();
                pair.redis.configure(policies()).unwrap();
                continue;
            }
            Step::Settle(at, cost) => {
                let Some(at) = ticket(at) else { continue };
                let theirs = pair.redis.settle(&made[at].1, *cost).await.unwrap();
                (at, pair.memory.settle(&made[at].0, *cost).unwrap(), theirs)
            }
            Step::Part(at, cost) => {
                let Some(at) = ticket(at) else { continue };
                let theirs = pair.redis.settle_so_far(&made[at].1, *cost).await.unwrap();
                (at, pair.memory.settle_so_far(&made[at].0, *cost).unwrap(), theirs)
            }
            Step::Extend(at, cost, ttl_us) => {
                let Some(at) = ticket(at) else { continue };
                let mut extension = cost.map_or(Extension::new(), |cost| Extension::new().with_total(cost));
                if let Some(ttl_us) = ttl_us {
                    extension = extension.with_ttl(Duration::from_micros(*ttl_us)).unwrap();
                }
                let theirs = pair.redis.extend(&made[at].1, extension.clone()).await.unwrap();
                (at, pair.memory.extend(&made[at].0, extension).unwrap(), theirs)
            }
            Step::Cancel(at) => {
                let Some(at) = ticket(at) else { continue };
                let theirs = pair.redis.cancel(&made[at].1).await.unwrap();
                (at, pair.memory.cancel(&made[at].0).unwrap(), theirs)
            }
        };
        compare(&changes(&theirs), &changes(&ours), &format!("{step:?} of {steps:?}"));
        made[at] = (ours.into_ticket(), theirs.into_ticket());
    }
}

fn histories(cases: u32, unsettled: Unsettled, shape: impl Strategy<Value = Shape>) {
    let server = RedisServer::builder().with_clock().start();
    histories_on((&server, &server.url_as_user()), cases, unsettled, shape);
}

fn histories_on(
    server: (&RedisServer, &str),
    cases: u32,
    unsettled: Unsettled,
    shape: impl Strategy<Value = Shape>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = random_cases(cases);
    let number = RefCell::new(0);
    runner
        .run(&((1u64..40, 1u64..60), shape, steps()), |(quota, shape, steps)| {
            *number.borrow_mut() += 1;
            let key = format!("key-{}", number.borrow());
            runtime.block_on(history(server, (&key, shape), quota, unsettled, &steps));
            Ok(())
        })
        .unwrap();
}

/// Runs histories of each kind on a server that this URL leads to.
pub(crate) fn decide_as_in_memory(server: &RedisServer, url: &str) {
    histories_on((server, url), 20, Unsettled::Charge, Just(Shape::All));
    server.admin(&["FLUSHALL"]);
    histories_on((server, url), 40, Unsettled::Charge, (0usize..6).prop_map(Shape::Single));
}

/// A fleet that moves from memory to Redis must get the same decisions, to the microsecond.
#[test]
fn holds_in_redis_decide_as_those_in_memory() {
    histories(150, Unsettled::Charge, Just(Shape::All));
}

#[test]
fn holds_that_are_dropped_at_their_end_decide_in_redis_as_in_memory() {
    histories(100, Unsettled::Forget, Just(Shape::All));
}

/// Most calls are about one key and run scripts of their own, also between calls that do not.
#[test]
fn holds_of_a_single_key_in_redis_decide_as_those_in_memory() {
    histories(400, Unsettled::Charge, (0usize..6).prop_map(Shape::Single));
}

#[test]
fn holds_of_a_single_key_that_are_dropped_at_their_end_decide_in_redis_as_in_memory() {
    histories(200, Unsettled::Forget, (0usize..6).prop_map(Shape::Single));
}
