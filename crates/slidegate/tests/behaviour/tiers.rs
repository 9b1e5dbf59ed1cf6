//! Tiers: limits by the value of an attribute, such as the plan of a customer.

use slidegate::{
    Algorithm, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};

fn gate(policy: Policy) -> Gate {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    Gate::with_memory(PolicySet::new([policy]).unwrap(), MemoryStore::builder().clock(clock).build())
}

fn by_plan(algorithm: Algorithm) -> Policy {
    let quota = |limit| Quota::per_hour(limit).with_algorithm(algorithm);
    Policy::new("per-user", quota(3))
        .unwrap()
        .with_scope(["user"])
        .with_tiers("plan", [("free", quota(5)), ("pro", quota(100))])
        .with_override(["vip"], quota(7))
}

fn limit_of(gate: &Gate, user: &str, plan: Option<&str>) -> u64 {
    let request = Request::new().with("user", user);
    let request = plan.into_iter().fold(request, |request, plan| request.with("plan", plan));
    gate.peek(&request).strictest().unwrap().decision().limit()
}

/// Customers pay for a plan, and some have an agreement of their own.
#[test]
fn a_request_meets_the_limit_of_its_plan_unless_its_key_has_one() {
    for algorithm in Algorithm::ALL {
        let gate = gate(by_plan(algorithm));
        for (user, plan, limit) in [
            ("alice", Some("free"), 5),
            ("alice", Some("pro"), 100),
            ("alice", Some("gold"), 3),
            ("alice", Some("PRO"), 3),
            ("alice", None, 3),
            ("vip", Some("pro"), 7),
            ("vip", None, 7),
        ] {
            assert_eq!(limit_of(&gate, user, plan), limit, "{algorithm} {user} {plan:?}");
        }
    }
}

/// Who upgrades goes on at once, and who downgrades has used what they used.
#[test]
fn a_key_that_changes_its_plan_keeps_its_usage() {
    for algorithm in Algorithm::ALL {
        let gate = gate(by_plan(algorithm));
        let alice = |plan| Request::new().with("user", "alice").with("plan", plan);
        for _ in 0..5 {
            assert!(gate.check(&alice("free")).is_allowed(), "{algorithm}");
        }
        assert!(gate.check(&alice("free")).is_denied(), "{algorithm}");
        let pro = alice("pro");
        let upgraded = gate.check(&pro);
        assert!(upgraded.is_allowed(), "{algorithm}");
        assert_eq!(upgraded.strictest().unwrap().decision().remaining(), 94, "{algorithm}");
        assert!(gate.check(&alice("free")).is_denied(), "{algorithm}");
        assert_eq!(gate.peek(&alice("free")).strictest().unwrap().decision().used(), 6, "{algorithm}");
    }
}

/// Usage under one algorithm means nothing to another.
#[test]
fn a_tier_of_another_algorithm_is_refused_by_name() {
    let bucket = Quota::per_hour(9).with_algorithm(Algorithm::TokenBucket);
    let policy = Policy::new("p", Quota::per_hour(3)).unwrap().with_tiers("plan", [("pro", bucket)]);
    let error = PolicySet::new([policy]).unwrap_err().to_string();
    assert_eq!(
        error,
        "policy `p`: invalid tier `pro`: its algorithm is token-bucket, that of the policy sliding-log; use one algorithm"
    );
}
