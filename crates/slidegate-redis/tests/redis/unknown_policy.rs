//! Requests that name a policy which a shared gate does not have.

use slidegate::{Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisOptions;

use crate::callers::redis_gate;

/// Over a shared store the answer is the same, and needs no store to be made.
#[tokio::test]
async fn a_shared_gate_denies_unknown_names_without_asking_the_store() {
    let policies = PolicySet::new([Policy::new("login", Quota::per_minute(2)).unwrap()]).unwrap();
    let gate = redis_gate(policies, RedisOptions::new("redis://127.0.0.1:1").unwrap()).unwrap();
    let request = Request::new().with("user", "alice").under("typo");
    let expected = "unknown policy `typo`: the gate has `login`";
    for decisions in
        [gate.check(&request).await, gate.check_once(&request, "a").await, gate.peek(&request).await]
    {
        assert!(decisions.is_denied());
        assert_eq!(decisions.error().unwrap().to_string(), expected);
        assert!(decisions.store_failure().is_none());
    }
    assert_eq!(gate.reset(&request).await.unwrap_err().to_string(), expected);
    assert_eq!(gate.inspect(&request).await.unwrap_err().to_string(), expected);
    assert_eq!(gate.store().stats().fallbacks, 0);
}
