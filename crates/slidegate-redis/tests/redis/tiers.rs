//! Limits by the value of an attribute, over Redis.

use slidegate::{Algorithm, Policy, Quota, Request};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{gate, options};

/// Whoever looks at a key under another quota, or sends a request under it in vain, must not give back what was used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_charges_nothing_leaves_a_key_under_its_quota() {
    let server = RedisServer::start();
    for (own, other) in Algorithm::ALL.into_iter().flat_map(|own| Algorithm::ALL.map(|other| (own, other))) {
        let quota = |algorithm, limit| Quota::per_day(limit).with_algorithm(algorithm);
        let policy = Policy::new(format!("{own}-{other}"), quota(own, 100)).unwrap().with_scope(["user"]);
        let gate = gate([policy], options(&server.url()).without_denial_cache());
        let alice = || Request::new().with("user", "alice");
        let smaller = || alice().with_quota(quota(other, 5));
        assert!(gate.check(&alice().with_cost(100)).await.is_allowed(), "{own} {other}");
        gate.peek(&smaller()).await;
        assert!(gate.check(&smaller().with_cost(6)).await.is_denied(), "{own} {other}");
        let request = alice();
        let decisions = gate.peek(&request).await;
        let one = decisions.strictest().unwrap();
        assert_eq!((one.source().name(), one.used()), ("store", 100), "{own} {other}");
    }
}
