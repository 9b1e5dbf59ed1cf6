//! Calls of several requests, each with its own verb and role: what Redis decides is what memory
//! decides.
//!
//! What memory decides is proved against the documented rules by the tests of behaviour.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Algorithm, Decisions, Excess, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::{Role, Verb},
};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::until_true;

use crate::callers::{random_cases, redis_gate};
use crate::harness::cluster;

const START_US: u64 = 1_700_000_000_000_000;

/// Names of policies, the last two of which apply to requests that name none.
const NAMES: [&str; 6] = ["plain", "overdraft", "counted", "shadow", "first", "second"];

fn policies(limit: u64, window: Duration, algorithm: usize) -> PolicySet {
    let policies = NAMES.iter().enumerate().map(|(at, name)| {
        let quota = Quota::new(limit + at as u64 % 3, window).unwrap();
        let quota = quota.with_algorithm(Algorithm::ALL[(algorithm + at) % 4]);
        let policy = Policy::new(*name, quota).unwrap().with_scope(["key"]);
        match *name {
            "overdraft" => policy.with_excess(Excess::Charge).with_only_when_named(),
            "counted" => policy.with_excess(Excess::Count).with_only_when_named(),
            "shadow" => policy.with_enforced(false).with_only_when_named(),
            "plain" => policy.with_only_when_named(),
            _ => policy,
        }
    });
    PolicySet::new(policies).unwrap()
}

/// Policy, user, verb, role, cost and `deny_over_limit` of a request.
type Template = (Option<&'static str>, String, Verb, Role, u64, bool);

/// A request, and the refusals under a second key after it.
fn request() -> impl Strategy<Value = Vec<Template>> {
    let verb = prop_oneof![
        5 => Just(Verb::Check),
        2 => Just(Verb::Peek),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Penalize),
    ];
    let role = prop_oneof![
        4 => Just(Role::Deciding),
        4 => Just(Role::Together),
    ];
    let policy = proptest::option::weighted(0.8, proptest::sample::select(&NAMES[..4]));
    let refusals = proptest::option::weighted(0.3, 0u64..4);
    (policy, proptest::sample::select(vec!["a", "b"]), verb, role, 0u64..4, any::<bool>(), refusals).prop_map(
        |(policy, key, verb, role, cost, over, refusals)| {
            let own = (policy, key.to_owned(), verb, role, cost, over);
            let second =
                refusals.map(|cost| (policy, format!("{key}-refused"), verb, Role::Refusals, cost, false));
            std::iter::once(own).chain(second).collect()
        },
    )
}

type Asked = (Option<&'static str>, String, Verb, Role, u64, bool);

fn calls() -> impl Strategy<Value = Vec<(u64, Vec<Asked>)>> {
    let call = proptest::collection::vec(request(), 1..5);
    let call = call.prop_map(|requests| requests.into_iter().flatten().collect());
    proptest::collection::vec((0u64..30_000, call), 1..25)
}

/// The call with keys that no other case uses.
fn requests<'r>(asked: &'r [Asked], keys: &'r [String]) -> Vec<Request<'r>> {
    let each = asked.iter().zip(keys).map(|((policy, _, verb, role, cost, over), key)| {
        let request =
            Request::new().with("key", key.as_str()).with_verb(*verb).with_role(*role).with_cost(*cost);
        let request = if *over { request.deny_over_limit() } else { request };
        policy.iter().fold(request, |request, policy| request.under(policy))
    });
    each.collect()
}

/// Both stores must decide the same, waits included.
#[test]
fn calls_of_several_verbs_and_roles_in_redis_decide_as_in_memory() {
    let server = RedisServer::builder().with_clock().start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let number = std::cell::Cell::new(0);
    let run = |(limit, algorithm, calls): (u64, usize, Vec<(u64, Vec<Asked>)>)| {
        number.set(number.get() + 1);
        let mut now = START_US;
        let clock = ManualClock::at(Timestamp::from_micros(now));
        let policies = || policies(limit, Duration::from_millis(40), algorithm);
        let options = crate::callers::options(&server.url_as_user());
        let memory = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
        let redis = redis_gate(policies(), options).unwrap();
        for (us, asked) in &calls {
            now += us;
            server.clock().stand(now);
            clock.set(Timestamp::from_micros(now));
            let keys: Vec<_> = asked.iter().map(|one| format!("{}-{}", number.get(), one.1)).collect();
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
        // Time passes on the servers by itself: none of it may matter.
        let policies = || {
            let log = |policy: &Policy| {
                let quota = policy.quota().with_algorithm(Algorithm::SlidingLog);
                let same = Policy::new(policy.name(), quota)
                    .unwrap()
                    .with_scope(["key"])
                    .with_excess(policy.options().excess);
                let same = if policy.options().enforced { same } else { same.with_enforced(false) };
                if policy.options().only_when_named { same.with_only_when_named() } else { same }
            };
            PolicySet::new(policies(limit, Duration::from_secs(3600), 0).iter().map(log)).unwrap()
        };
        let options = crate::callers::options(&cluster.url());
        let memory = Gate::new(policies());
        let redis = redis_gate(policies(), options.without_denial_cache()).unwrap();
        for (_, asked) in &calls {
            let keys: Vec<_> = asked.iter().map(|one| format!("mixed-{}-{}", number.get(), one.1)).collect();
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
            let looks = NAMES.into_iter().flat_map(|name| keys.iter().map(move |key| (name, key)));
            let looks: Vec<_> = looks
                .map(|(name, key)| Request::new().with("key", key.as_str()).under(name).with_cost(0))
                .collect();
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
