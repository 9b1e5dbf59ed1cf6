//! Managed offers: what their documentation and their users say that they forbid, enforced by a proxy
//! before a real server. `docs/compatibility.md` has a row for each.

use std::sync::Arc;
use std::time::Duration;

use slidegate::reserve::{Extension, HoldStatus};
use slidegate::store::ServiceStore;
use slidegate::{Algorithm, DecisionSource, Policy, Quota, Request};
use slidegate_redis::{RedisGate, RedisStore};
use slidegate_testkit::redis::{Connection, Offer, OfferRules, RedisCluster, RedisServer, Shape};
use tokio::task::JoinSet;

use crate::callers::{LATER, gate, options};
use crate::{histories, hold_histories};

/// One virtual node of a cluster. Scripts may use declared keys alone, and not call `TIME`.
const ELASTICACHE_SERVERLESS: OfferRules = OfferRules {
    refused: &[
        "ACL",
        "CLIENT KILL",
        "CLIENT NO-EVICT",
        "CONFIG",
        "DEBUG",
        "MIGRATE",
        "MODULE",
        "REPLICAOF",
        "SAVE",
        "SELECT",
        "WAIT",
    ],
    time_in_scripts: false,
    undeclared_keys: false,
};
/// A sharded cluster of OCI Cache has no scripts.
const OCI_SHARDED: OfferRules = OfferRules {
    refused: &[
        "ACL",
        "CONFIG SET",
        "DEBUG",
        "EVAL",
        "EVALSHA",
        "FCALL",
        "FUNCTION",
        "MODULE",
        "REPLICAOF",
        "SCRIPT",
        "SHUTDOWN",
    ],
    time_in_scripts: true,
    undeclared_keys: true,
};
/// Upstash has no client-side caches.
const UPSTASH: OfferRules =
    OfferRules { refused: &["CLIENT TRACKING"], time_in_scripts: true, undeclared_keys: true };
/// Dragonfly refuses undeclared keys by default.
const DECLARED_KEYS: OfferRules =
    OfferRules { refused: &["MODULE"], time_in_scripts: true, undeclared_keys: false };

const LIMIT: u64 = 40;
/// No charge expires and no window ends during a test.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// A proxy that let something through would prove nothing.
#[test]
fn the_rules_of_an_offer_are_enforced() {
    let server = RedisServer::start();
    let offer = Offer::before(&server, ELASTICACHE_SERVERLESS);
    let mut client = Connection::tcp(offer.port(), LATER).unwrap();
    let mut said = |command: &[&str]| client.call(command).unwrap().to_string();
    let script = |text: &'static str| ["EVAL", text, "1", "a*b", "other"];
    assert_eq!(said(&script("return redis.call('SET', KEYS[1], 'x').ok")), "OK");
    assert_eq!(said(&script("return redis.call('GET', KEYS[1])")), "x");
    assert_eq!(said(&["TIME"]).lines().count(), 2);
    // The pattern of one key must not match another one.
    for undeclared in ["return redis.call('GET', ARGV[1])", "return redis.call('GET', 'aab')"] {
        let refused = said(&script(undeclared));
        assert!(refused.contains("key"), "{undeclared}: {refused}");
    }
    let refused = said(&script("return redis.call('TIME')"));
    assert!(refused.contains("can't run this command") || refused.contains("'time'"), "{refused}");
    assert_eq!(said(&["EVAL", "return 1", "0"]), "ERR a script must declare a key");
    for command in [&["config", "get", "port"][..], &["SELECT", "1"], &["CLIENT", "KILL", "TYPE", "normal"]] {
        assert!(said(command).starts_with("ERR unknown command `"), "{command:?}");
    }
}

fn scoped(name: &str, algorithm: Algorithm) -> Policy {
    let quota = Quota::new(LIMIT, YEAR).unwrap().with_algorithm(algorithm);
    Policy::new(name, quota).unwrap().with_scope([name])
}

/// A policy of each algorithm, which applies to requests that have an attribute of its name.
fn policies() -> Vec<Policy> {
    Algorithm::ALL.into_iter().map(|algorithm| scoped(algorithm.name(), algorithm)).collect()
}

/// A request under all of them.
fn under_all(user: &str) -> Request<'_> {
    Algorithm::ALL.iter().fold(Request::new().with("user", user), |one, of| one.with(of.name(), user))
}

/// Two instances ask at once for twice the limit.
async fn admits_the_limit(instances: &[Arc<RedisGate>; 2], request: impl Fn() -> Request<'static>) {
    let mut tasks = JoinSet::new();
    for number in 0..2 * LIMIT {
        let (instance, request) = (Arc::clone(&instances[usize::from(number % 2 == 0)]), request());
        tasks.spawn(async move {
            let decisions = instance.check(&request).await;
            let by_store = [DecisionSource::Store, DecisionSource::CachedDenial];
            let failure = instance.store().stats().last_failure;
            assert!(
                decisions.iter().all(|one| by_store.contains(&one.decision().source())),
                "{failure:?}: {decisions:?}"
            );
            u64::from(decisions.is_allowed())
        });
    }
    assert_eq!(tasks.join_all().await.iter().sum::<u64>(), LIMIT, "{:?}", request());
}

/// Every kind of call that the store makes, by two instances, counted to the last one.
async fn decides_exactly(url: &str) {
    let instances = [(); 2].map(|()| gate(policies(), options(url).with_hash_tag("user")));
    let [one, other] = &instances;
    for instance in &instances {
        instance.store().primary().self_test().await.unwrap();
    }
    for algorithm in Algorithm::ALL {
        let request = || Request::new().with("user", "alice").with(algorithm.name(), "alice");
        admits_the_limit(&instances, request).await;
    }
    admits_the_limit(&instances, || under_all("bob")).await;

    // Holds: on one key and on four, settled by the other instance.
    let single = || Request::new().with("user", "carol").with("token-bucket", "carol").with_cost(30);
    for request in [single(), under_all("dave").with_cost(30)] {
        let ticket = one.reserve(&request).await.into_ticket().unwrap();
        assert!(other.check(&request).await.is_denied());
        let extended = other.extend(&ticket, Extension::new().with_total(35)).await.unwrap();
        assert!(extended.iter().all(|one| one.status() == HoldStatus::Changed), "{extended:?}");
        other.settle(&ticket, 10).await.unwrap();
        let peeked = one.peek(&request).await;
        assert!(
            peeked.iter().all(|one| one.decision().used() == 10 && one.decision().held() == 0),
            "{peeked:?}"
        );
        let ticket = one.reserve(&request).await.into_ticket().unwrap();
        other.cancel(&ticket).await.unwrap();
        assert!(
            one.refund(&request.clone().with_cost(10)).await.iter().all(|one| one.decision().used() == 0)
        );
    }

    // A repeated request is charged once.
    let request = under_all("erin").with_cost(25);
    for instance in &instances {
        assert!(instance.check_once(&request, "id").await.is_allowed());
    }
    assert!(one.penalize(&request).await.iter().all(|one| one.decision().used() == 50));
    assert!(one.reset(&request).await.unwrap());
    assert!(one.peek(&request).await.iter().all(|one| one.decision().used() == 0));

    // What instances share beside usage.
    one.store().primary().count_instances(None).await.unwrap();
    assert_eq!(other.store().primary().count_instances(None).await.unwrap(), 2);
    assert_eq!(other.store().stats().last_failure, None);
}

/// A fleet on a serverless cache must not find out in production that it shares no limits.
#[test]
fn elasticache_serverless_decides_exactly_by_a_clock_of_milliseconds() {
    let cluster = RedisCluster::start(Shape { masters: 1, replicas_each: 0 });
    let offer = Offer::before(&cluster.nodes()[0], ELASTICACHE_SERVERLESS);
    // The node has the proxy's address for all others.
    cluster.nodes()[0].admin(&["CONFIG", "SET", "cluster-announce-port", &offer.port().to_string()]);
    let url = offer.url().replace("redis://", "redis+cluster://");
    crate::cluster::runtime().block_on(async {
        decides_exactly(&url).await;
        let store = RedisStore::new(options(&url)).unwrap();
        store.self_test().await.unwrap();
        assert_eq!(store.stats().clock_resolution_us, 1000);
    });
    assert!(offer.heard().iter().any(|command| command[0] == b"EVALSHA"), "the node itself was asked");
}

/// No script can share a limit there, and the operator must read why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sharded_cluster_of_oci_is_refused_as_it_has_no_scripts() {
    let server = RedisServer::start();
    let offer = Offer::before(&server, OCI_SHARDED);
    let store = RedisStore::new(options(&offer.url())).unwrap();
    let refusal = store.self_test().await.unwrap_err().to_string();
    assert!(refusal.contains("unknown command `evalsha`"), "{refusal}");
}

/// What the offer lacks is not needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstash_decides_exactly() {
    let server = RedisServer::start();
    decides_exactly(&Offer::before(&server, UPSTASH).url()).await;
}

/// A script that reads a key that its call does not declare is an error where keys belong to threads.
#[test]
fn scripts_decide_as_in_memory_where_they_may_use_declared_keys_alone() {
    let server = RedisServer::builder().with_clock().start();
    let offer = Offer::before(&server, DECLARED_KEYS);
    histories::decide_as_in_memory(&server, &offer.url());
    hold_histories::decide_as_in_memory(&server, &offer.url());
}
