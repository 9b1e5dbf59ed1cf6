//! Extensions of reservations are bound by what is set when they are asked for, in memory and over Redis.

use std::sync::Arc;
use std::time::Duration;

use slidegate::reserve::{Extension, HoldStatus};
use slidegate::store::HoldStore;
use slidegate::{Algorithm, Block, Counts, Gate, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{options, redis_gate};

/// What is set before the reservation is made, and before it is extended. The key has used 5 and holds 5, and
/// asks for 1 more.
struct Case {
    name: &'static str,
    before: fn(Policy) -> Policy,
    request: fn(Request<'static>) -> Request<'static>,
    after: fn(Policy) -> Policy,
    expected: HoldStatus,
}

/// Long enough that nothing of a quota passes during a test.
fn per_month(limit: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(30 * 86_400)).unwrap()
}

/// A quota of the algorithm that the case is tried with.
fn of(policy: &Policy, limit: u64) -> Quota {
    per_month(limit).with_algorithm(policy.quota().algorithm())
}

fn limited(policy: Policy, limit: u64) -> Policy {
    let quota = of(&policy, limit);
    policy.with_quota(quota)
}

fn overridden(policy: Policy, limit: u64) -> Policy {
    let quota = of(&policy, limit);
    policy.with_override(["alice"], quota)
}

fn tiered(policy: Policy, pro: u64) -> Policy {
    let quota = of(&policy, pro);
    policy.with_tiers("plan", [("pro", quota)])
}

fn cases() -> Vec<Case> {
    use HoldStatus::{Changed, Denied};
    let case = |name, before, request, after, expected| Case { name, before, request, after, expected };
    let same: fn(Policy) -> Policy = |policy| policy;
    let plain: fn(Request<'static>) -> Request<'static> = |request| request;
    let pro: fn(Request<'static>) -> Request<'static> = |request| request.with("plan", "pro");
    vec![
        case("nothing is changed", same, plain, same, Changed),
        case("limit lowered", same, plain, |policy| limited(policy, 10), Denied),
        case("limit raised", |policy| limited(policy, 10), plain, |policy| limited(policy, 11), Changed),
        case("override added", same, plain, |policy| overridden(policy, 10), Denied),
        case(
            "override of another",
            same,
            plain,
            |policy| {
                let quota = of(&policy, 10);
                policy.with_override(["bob"], quota)
            },
            Changed,
        ),
        case(
            "override lowered",
            |policy| overridden(policy, 50),
            plain,
            |policy| overridden(policy, 10),
            Denied,
        ),
        case(
            "override raised",
            |policy| overridden(policy, 10),
            plain,
            |policy| overridden(policy, 50),
            Changed,
        ),
        case(
            "override removed",
            |policy| overridden(limited(policy, 10), 50),
            plain,
            |policy| limited(policy, 10),
            Denied,
        ),
        case("lower override removed", |policy| overridden(policy, 10), plain, same, Changed),
        case(
            "tier is as before",
            |policy| tiered(limited(policy, 5), 50),
            pro,
            |policy| tiered(limited(policy, 5), 50),
            Changed,
        ),
        case(
            "tier lowered",
            |policy| tiered(limited(policy, 5), 50),
            pro,
            |policy| tiered(limited(policy, 5), 10),
            Denied,
        ),
        case(
            "default lowered below the tier",
            |policy| tiered(policy, 50),
            pro,
            |policy| tiered(limited(policy, 1), 50),
            Changed,
        ),
        case(
            "override below the tier",
            |policy| tiered(policy, 50),
            pro,
            |policy| overridden(tiered(policy, 50), 10),
            Denied,
        ),
        case("blocked", same, plain, |policy| policy.with_block(["alice"], Block::forever()), Denied),
        case(
            "another is blocked",
            same,
            plain,
            |policy| policy.with_block(["bob"], Block::forever()),
            Changed,
        ),
        case(
            "the block is over",
            same,
            plain,
            |policy| policy.with_block(["alice"], Block::until(slidegate::clock::Timestamp::from_micros(1))),
            Changed,
        ),
        case(
            "blocked with a tier",
            |policy| tiered(policy, 50),
            pro,
            |policy| tiered(policy, 50).with_block(["alice"], Block::forever()),
            Denied,
        ),
        case(
            "blocked in shadow",
            same,
            plain,
            |policy| policy.with_enforced(false).with_block(["alice"], Block::forever()),
            Changed,
        ),
        case("lowered in shadow", same, plain, |policy| limited(policy, 10).with_enforced(false), Changed),
        case(
            "a quota of the request",
            same,
            |request| request.with_quota(per_month(50)),
            |policy| limited(policy, 10),
            Changed,
        ),
    ]
}

/// Policies under which a request is reserved: requests are charged at once, tokens are held.
fn set(algorithm: Algorithm, change: fn(Policy) -> Policy) -> PolicySet {
    let policy =
        |name| Policy::new(name, per_month(100).with_algorithm(algorithm)).unwrap().with_scope(["user"]);
    PolicySet::new([change(policy("tokens")), policy("requests").with_counts(Counts::Requests)]).unwrap()
}

async fn outcome<S: HoldStore + 'static>(
    gate: &SharedGate<S>,
    case: &Case,
    algorithm: Algorithm,
) -> HoldStatus {
    let request = || (case.request)(Request::new().with("user", "alice").with("tenant", "acme").with_cost(5));
    let (used, held) = (request(), request());
    assert!(gate.check(&used).await.is_allowed(), "{}", case.name);
    let ticket = gate.reserve(&held).await.into_ticket().unwrap_or_else(|| panic!("{}", case.name));
    gate.configure(set(algorithm, case.after)).unwrap();
    let extended = gate.extend(&ticket, Extension::new().with_total(6)).await.unwrap();
    let status = extended.status();
    if status == HoldStatus::Denied {
        // It is as it was, and can be kept, lowered and settled.
        let kept = gate.extend(&ticket, Extension::new()).await.unwrap();
        assert_eq!(kept.status(), HoldStatus::Changed, "{}", case.name);
        assert_eq!(
            kept.iter().map(|key| (key.decision().used(), key.decision().held())).collect::<Vec<_>>(),
            [(5, 5)],
            "{}",
            case.name
        );
        let lowered = gate.extend(&ticket, Extension::new().with_total(4)).await.unwrap();
        assert_eq!(lowered.status(), HoldStatus::Changed, "{}", case.name);
    }
    let settled = gate.settle(extended.ticket(), 9).await.unwrap();
    assert_eq!(settled.status(), HoldStatus::Changed, "{}", case.name);
    assert_eq!(
        settled.iter().map(|key| (key.decision().used(), key.decision().held())).collect::<Vec<_>>(),
        [(14, 0)],
        "{}",
        case.name
    );
    status
}

/// A customer whose limit is lowered must not go on by extending what was reserved before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_is_bound_by_what_is_set_now_in_every_store() {
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        let server = RedisServer::start();
        for case in &cases() {
            if case.name == "a quota of the request" && algorithm != Algorithm::SlidingLog {
                continue;
            }
            let memory = SharedGate::from(Arc::new(Gate::new(set(algorithm, case.before))));
            let mut outcomes = vec![("memory", outcome(&memory, case, algorithm).await)];
            let url = server.url();
            let stores = [
                ("redis", options(&url)),
                ("redis with tags", options(&url).with_hash_tag("tenant")),
                ("redis with hashed names", options(&url).hashed_keys()),
            ];
            for (store, options) in stores {
                server.admin(&["FLUSHALL"]);
                let gate = redis_gate(set(algorithm, case.before), options).unwrap();
                outcomes.push((store, outcome(&gate, case, algorithm).await));
            }
            let differing = outcomes.into_iter().filter(|(_, status)| *status != case.expected);
            wrong.extend(
                differing.map(|(store, status)| format!("{}, {algorithm}, {store}: {status:?}", case.name)),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A request is blocked if any of its keys is, also one that was charged when it was reserved.
#[tokio::test]
async fn a_block_under_another_policy_of_the_reservation_denies_an_extension() {
    let server = RedisServer::start();
    let policies = |is_blocked: bool| {
        let policy = |name| Policy::new(name, per_month(100)).unwrap().with_scope(["user"]);
        let requests = policy("requests").with_counts(Counts::Requests);
        let requests = if is_blocked { requests.with_block(["alice"], Block::forever()) } else { requests };
        PolicySet::new([policy("tokens"), requests]).unwrap()
    };
    async fn extend<S: HoldStore + 'static>(gate: &SharedGate<S>, blocked: PolicySet) {
        let request = Request::new().with("user", "alice").with_cost(5);
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        gate.configure(blocked).unwrap();
        let denied = gate.extend(&ticket, Extension::new().with_total(6)).await.unwrap();
        assert_eq!(denied.status(), HoldStatus::Denied);
        let keys: Vec<_> = denied
            .iter()
            .map(|key| {
                (
                    key.policy().to_owned(),
                    key.decision().is_denied(),
                    key.decision().reason(),
                    key.decision().used(),
                    key.decision().held(),
                )
            })
            .collect();
        let blocked = Some(slidegate::Reason::Blocked);
        assert_eq!(
            keys,
            [("tokens".to_owned(), false, None, 0, 5), ("requests".to_owned(), true, blocked, 1, 0)]
        );
        assert_eq!(gate.settle(&ticket, 7).await.unwrap().status(), HoldStatus::Changed);
        // What has ended is not denied.
        let ended = gate.extend(&ticket, Extension::new().with_total(8)).await.unwrap();
        assert_eq!(ended.status(), HoldStatus::AlreadySettled);
    }
    extend(&SharedGate::from(Arc::new(Gate::new(policies(false)))), policies(true)).await;
    extend(&redis_gate(policies(false), options(&server.url())).unwrap(), policies(true)).await;
}
