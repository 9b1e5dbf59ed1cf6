//! Callers of a shared gate, the outcomes of their checks, and how long they take.
//!
//! A witness asks the server itself what was charged, with a gate of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use slidegate::store::ServiceStore;
use slidegate::{DecisionSource, Error, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{FailureKind, RedisGate, RedisOptions, RedisStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The deadline where a reply is expected: longer than any takes, however busy the machine is.
pub(crate) const LATER: Duration = Duration::from_secs(10);
/// The deadline where the server is not going to reply in time. The exact deadline is tested in
/// `deadlines.rs`.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);
/// No caller waits so long under any deadline here: it hangs.
const HANGS: Duration = Duration::from_secs(60);
/// Runs a property on so many random inputs, or on a share of them: with `SLIDEGATE_TEST_HISTORIES=4`
/// on a quarter. Another version of the server that runs the same scripts needs fewer.
pub(crate) fn random_cases(cases: u32) -> TestRunner {
    let share = std::env::var("SLIDEGATE_TEST_HISTORIES").map_or(1, |share| share.parse().unwrap());
    TestRunner::new(Config { cases: cases.div_ceil(share), failure_persistence: None, ..Config::default() })
}

/// Between two requests of one caller.
const PACE: Duration = Duration::from_millis(1);
/// Polls for a store that replies again, 10 ms apart: at least a minute.
pub(crate) const MAX_POLLS: usize = 6000;

/// A policy by user, called `p`, of which nothing expires during a test.
pub(crate) fn daily(limit: u64) -> Policy {
    named("p", limit)
}

/// The same of any name.
pub(crate) fn named(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).unwrap().with_scope(["user"])
}

/// Options for a store that replies, or fails without being waited for.
pub(crate) fn options(url: &str) -> RedisOptions {
    RedisOptions::new(url).unwrap().with_deadline(LATER)
}

/// Options for a store that keeps callers waiting until their deadline. Replies may miss it on a
/// busy machine.
pub(crate) fn hasty(url: &str) -> RedisOptions {
    options(url).with_deadline(DEADLINE).with_connect_timeout(Duration::from_secs(1))
}

/// A gate over Redis.
pub(crate) fn redis_gate(policies: PolicySet, options: RedisOptions) -> Result<RedisGate, Error> {
    SharedGate::new(policies, RedisStore::new(options)?)
}

pub(crate) fn gate(policies: impl IntoIterator<Item = Policy>, options: RedisOptions) -> Arc<RedisGate> {
    Arc::new(redis_gate(PolicySet::new(policies).unwrap(), options).unwrap())
}

/// The outcome of one check: the decision of its strictest policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) allowed: bool,
    pub(crate) source: DecisionSource,
    /// As that policy counts.
    pub(crate) used: u64,
    pub(crate) took: Duration,
}

impl Outcome {
    pub(crate) fn by_store(&self) -> bool {
        self.source == DecisionSource::Store
    }
}

/// Checks one request of a user.
pub(crate) async fn check(gate: &RedisGate, user: &str) -> Outcome {
    check_cost(gate, user, 1).await
}

/// Checks until the store decides.
pub(crate) async fn until_by_store(gate: &RedisGate, user: &str) -> Outcome {
    for _ in 0..MAX_POLLS {
        let outcome = check(gate, user).await;
        if outcome.by_store() {
            return outcome;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not decide: {:?}", gate.store().stats());
}

/// Checks a request of any cost. No caller may hang.
pub(crate) async fn check_cost(gate: &RedisGate, user: &str, cost: u64) -> Outcome {
    let request = Request::new().with("user", user).with_cost(cost);
    let begun = Instant::now();
    let decisions = gate.check(&request).await;
    let took = begun.elapsed();
    assert!(took < HANGS, "decided after {took:?}: {:?}", gate.store().stats());
    let strictest = decisions.strictest().unwrap();
    Outcome {
        allowed: decisions.is_allowed(),
        source: strictest.decision().source(),
        used: strictest.decision().used(),
        took,
    }
}

/// Why the store last did not answer.
pub(crate) fn last_failure(gate: &RedisGate) -> String {
    gate.store().stats().last_failure.unwrap_or_default()
}

/// How many calls to the store have failed in this way.
pub(crate) fn errors(gate: &RedisGate, kind: FailureKind) -> u64 {
    gate.store().primary().stats().errors[kind.name()]
}

/// What is charged to each policy of a user, in their order. Asks until the store answers and no
/// breaker holds back the next call, charges nothing. A breaker closes only if its node is asked: so users of other slots
/// are asked for, too.
pub(crate) async fn until_used(gate: &RedisGate, user: &str) -> Vec<u64> {
    let request = Request::new().with("user", user);
    for poll in 0..MAX_POLLS {
        let peeked = gate.peek(&request).await;
        gate.peek(&Request::new().with("user", &format!("{user}-{poll}"))).await;
        let closed = gate.store().primary().nodes().iter().all(|node| node.breaker == "closed");
        if closed && peeked.iter().all(|one| one.decision().source() == DecisionSource::Store) {
            return peeked.iter().map(|one| one.decision().used()).collect();
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("asked {MAX_POLLS} times in vain what is used: {:?}", gate.store().stats());
}

/// What is really charged to a user under [`daily`], by a gate that is made for this one question.
pub(crate) async fn used(url: &str, user: &str) -> u64 {
    let witness = gate([daily(1_000_000)], options(url));
    until_used(&witness, user).await[0]
}

/// The outcomes of many checks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Admitted by the store: charged exactly once.
    pub(crate) allowed: u64,
    /// Denied by the store, or from memory of its denial: not charged.
    pub(crate) denied: u64,
    /// Decided by the fallback: charged once or not at all.
    pub(crate) ambiguous: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, outcome: Outcome) {
        match outcome.source {
            DecisionSource::Store if outcome.allowed => self.allowed += 1,
            DecisionSource::Store | DecisionSource::CachedDenial => self.denied += 1,
            _ => self.ambiguous += 1,
        }
    }

    /// Asserts that the charged cost fits the outcomes, on a store that lost nothing.
    pub(crate) fn assert_explains(&self, used: u64) {
        let Self { allowed, ambiguous, .. } = self;
        assert!(
            (*allowed..=allowed + ambiguous).contains(&used),
            "{used} charged, {allowed} allowed, {ambiguous} ambiguous"
        );
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |sum, one| Self {
            allowed: sum.allowed + one.allowed,
            denied: sum.denied + one.denied,
            ambiguous: sum.ambiguous + one.ambiguous,
        })
    }
}

/// Many callers who go on asking.
pub(crate) struct Storm {
    over: Arc<AtomicBool>,
    callers: JoinSet<Tally>,
}

impl Storm {
    /// So many callers, each of whom asks for the user that `user` names by the caller's number.
    pub(crate) fn start(gate: &Arc<RedisGate>, callers: usize, user: impl Fn(usize) -> String) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let callers = (0..callers).map(|number| {
            let (gate, over, user) = (gate.clone(), over.clone(), user(number));
            async move {
                let mut tally = Tally::default();
                while !over.load(Ordering::Relaxed) {
                    tally.add(check(&gate, &user).await);
                    sleep(PACE).await;
                }
                tally
            }
        });
        let callers = callers.collect();
        Self { over, callers }
    }

    /// Lets all callers finish, and returns their outcomes.
    pub(crate) async fn end(self) -> Tally {
        self.over.store(true, Ordering::Relaxed);
        self.callers.join_all().await.into_iter().sum()
    }
}

/// So many callers who ask once each, all at the same time, for one user.
pub(crate) async fn all_at_once(gate: &Arc<RedisGate>, callers: usize, user: &'static str) -> Vec<Outcome> {
    let callers = (0..callers).map(|_| {
        let gate = gate.clone();
        async move { check(&gate, user).await }
    });
    callers.collect::<JoinSet<_>>().join_all().await
}

/// A gate of one ample policy, on a server that nothing has happened to yet: the store has decided
/// once.
pub(crate) async fn healthy(options: RedisOptions) -> Arc<RedisGate> {
    let gate = gate([daily(1_000_000)], options.without_batching());
    until_by_store(&gate, "first").await;
    gate
}

/// Checks until the store is said to fail for this reason; until then the fallback answers, and
/// nothing else does.
///
/// An attempt may run out of time before the server's reason arrives.
pub(crate) async fn fails_with(gate: &RedisGate, user: &str, reason: &str) {
    for _ in 0..MAX_POLLS {
        let outcome = check(gate, user).await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local));
        if last_failure(gate).contains(reason) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("does not fail with {reason}: {}", last_failure(gate));
}
