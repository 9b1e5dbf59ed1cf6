//! Calls of several requests, each with its own verb and role: what Redis decides is what memory
//! decides.
//!
//! What memory decides is proved against the documented rules by the tests of behaviour.

#[path = "../../../slidegate/tests/behaviour/mixed/asked.rs"]
mod asked;

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Algorithm, Decisions, Gate, MemoryStore, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::until_true;

use self::asked::{Asked, POLICIES, call, keys, policies, requests};
use crate::callers::{random_cases, redis_gate};
use crate::harness::cluster;

const START_US: u64 = 1_700_000_000_000_000;

fn calls() -> impl Strategy<Value = Vec<(u64, Vec<Asked>)>> {
    proptest::collection::vec((0u64..30_000, call(1..5)), 1..25)
}

/// Both stores must decide the same, waits included.
#[test]
fn calls_of_several_verbs_and_roles_in_redis_decide_as_in_memory() {
    let server = RedisServer::builder().with_clock().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let number = std::cell::Cell::new(0);
    let run = |(limit, algorithm, calls): (u64, usize, Vec<(u64, Vec<Asked>)>)| {
        number.set(number.get() + 1);
        let keys = keys(&format!("{}-", number.get()));
        let mut now = START_US;
        let clock = ManualClock::at(Timestamp::from_micros(now));
        let quota = |at, limit| {
            let quota = Quota::new(limit, Duration::from_millis(40)).unwrap();
            quota.with_algorithm(Algorithm::ALL[(algorithm + at) % 4])
        };
        let policies = || policies(limit, quota);
        let options = crate::callers::options(&server.url_as_user());
        let memory = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
        let redis = redis_gate(policies(), options).unwrap();
        for (us, asked) in &calls {
            now += us;
            server.clock().stand(now);
            clock.set(Timestamp::from_micros(now));
            let requests = requests(asked, &keys);
            let said = |decisions: &Decisions<'_>| -> Vec<String> {
                let without_source = |text: String| text.replace("source: DenialCache", "source: Store");
                decisions.iter().map(|one| without_source(format!("{:?}", one.decision()))).collect()
            };
            let ours = memory.apply(&requests);
            let theirs = runtime.block_on(redis.apply(&requests));
            assert_eq!(said(&theirs), said(&ours), "{asked:?} of {calls:?}: {:?}", redis.store().stats());
            assert_eq!(theirs.verdict(), ours.verdict(), "{asked:?} of {calls:?}");
        }
        Ok(())
    };
    random_cases(250).run(&(0u64..6, 0usize..4, calls()), run).unwrap();
}

/// In a cluster the keys of a call lie on several servers: alone, it is decided as in one step.
#[test]
fn calls_over_several_slots_decide_as_in_memory_while_nobody_else_asks() {
    let cluster = cluster();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let number = std::cell::Cell::new(0);
    let run = |(limit, calls): (u64, Vec<(u64, Vec<Asked>)>)| {
        number.set(number.get() + 1);
        let keys = keys(&format!("mixed-{}-", number.get()));
        // Time passes on the servers by itself: none of it may matter.
        let log = |_, limit| Quota::per_hour(limit).with_algorithm(Algorithm::SlidingLog);
        let policies = || policies(limit, log);
        let options = crate::callers::options(&cluster.url());
        let memory = Gate::new(policies());
        let redis = redis_gate(policies(), options.without_denial_cache()).unwrap();
        for (_, asked) in &calls {
            let requests = requests(asked, &keys);
            let said = |decisions: &Decisions<'_>| -> Vec<_> {
                decisions
                    .iter()
                    .map(|one| {
                        (
                            one.decision().verdict(),
                            one.decision().used(),
                            one.decision().remaining(),
                            one.decision().cost(),
                        )
                    })
                    .collect()
            };
            let ours = memory.apply(&requests);
            let theirs = runtime.block_on(redis.apply(&requests));
            assert_eq!(said(&theirs), said(&ours), "{asked:?} of {calls:?}: {:?}", redis.store().stats());
            assert_eq!(theirs.verdict(), ours.verdict(), "{asked:?} of {calls:?}");
            // What was charged before a denial of another slot is refunded in the background.
            let look = |key| {
                POLICIES.map(move |(name, ..)| Request::new().with("key", key).under(name).with_cost(0))
            };
            let looks: Vec<_> = keys.iter().flatten().flat_map(look).collect();
            let used = |decisions: &Decisions<'_>| -> Vec<_> {
                decisions.iter().map(|one| one.decision().used()).collect()
            };
            let expected = used(&memory.apply_all(Verb::Peek, &looks));
            until_true("the stores agree on what is used", || {
                used(&runtime.block_on(redis.apply_all(Verb::Peek, &looks))) == expected
            });
        }
        Ok(())
    };
    random_cases(60).run(&(0u64..6, calls()), run).unwrap();
}
