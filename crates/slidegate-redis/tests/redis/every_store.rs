//! What every shared store must do, on Redis and on a [store of somebody's own](super::own_store).

use std::time::Duration;

use proptest::prelude::*;
use slidegate::store::{ControlDocument, ControlDocumentId, FallbackStore, ServiceStore, SharedStore};
use slidegate::{
    Algorithm, DecisionSource, Gate, MemoryStore, OnStoreError, Policy, PolicySet, Quota, Reason, Request,
    SharedGate, clock::ManualClock, verb::Verb,
};
use slidegate_redis::RedisStore;
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::RedisServer;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::callers::{MAX_POLLS, named, options, random_cases};
use crate::own_store::{TcpStore, serve};

const NAMES: [&str; 3] = ["narrow", "wide", "strict"];

fn policies() -> PolicySet {
    let strict = named("strict", 100).with_on_store_error(OnStoreError::Deny);
    PolicySet::new([named("narrow", 3), named("wide", 5), strict]).unwrap()
}

/// A port where this memory is served.
fn serve_own(memory: MemoryStore) -> u16 {
    let named = NAMES.map(|name| Policy::new(name, Quota::per_minute(0)).unwrap().with_scope(["key"]));
    serve(PolicySet::new(named).unwrap(), memory)
}

/// Who brings a store of their own must find all that the service relies on in its traits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_store_decides_and_coordinates_whatever_it_is() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    keeps_its_promises([(); 2].map(|()| RedisStore::new(options(&proxy.url())).unwrap()), &proxy).await;
    let proxy = Proxy::before(serve_own(MemoryStore::new()));
    keeps_its_promises([(); 2].map(|()| TcpStore::new(proxy.port())), &proxy).await;
}

async fn keeps_its_promises<S: SharedStore + ServiceStore>(stores: [S; 2], proxy: &Proxy) {
    coordinates(&stores[0], &stores[1]).await;
    let gates = stores.map(|store| {
        SharedGate::with_store(policies(), FallbackStore::new(store).with_instances(2)).unwrap()
    });
    let [one, other] = &gates;
    let alice = |cost| Request::new().with("user", "alice").with_cost(cost);
    let used = async || {
        let request = alice(0);
        let found = other.peek(&request).await;
        assert!(found.iter().all(|one| one.decision().source() == DecisionSource::Store));
        found.iter().map(|one| one.decision().used()).collect::<Vec<_>>()
    };
    assert!(one.check(&alice(2)).await.is_allowed());
    assert!(one.check(&alice(2)).await.is_denied());
    assert_eq!(used().await, [2, 2, 2], "all or nothing");
    assert!(one.refund(&alice(1)).await.is_allowed());
    assert!(one.penalize(&alice(3)).await.is_allowed());
    assert_eq!(used().await, [4, 4, 4]);
    assert_eq!((one.reset(&alice(1)).await, other.reset(&alice(1)).await), (Ok(true), Ok(false)));
    for gate in [one, one, other] {
        assert!(gate.check_once(&alice(1), "sent again").await.is_allowed());
    }
    assert_eq!(used().await, [1, 1, 1]);

    proxy.set(Mode::Refuse);
    let narrow = alice(1).under("narrow");
    let source = |decisions: &slidegate::Decisions<'_>| decisions.strictest().unwrap().decision().source();
    let local = one.check(&narrow).await;
    assert_eq!((source(&local), local.is_allowed()), (DecisionSource::Local, true));
    assert!(one.check(&alice(2).under("narrow")).await.is_denied(), "two instances share three");
    let all = alice(1);
    let denied = one.check(&all).await;
    assert_eq!(denied.strictest().unwrap().decision().reason(), Some(Reason::StoreUnavailable));
    assert_eq!(one.store().stats().fallbacks, 3);
    let store: &dyn ServiceStore = one.store().primary();
    assert!(store.ping().await.unwrap_err().is_store());
    assert!(!store.self_test().await.unwrap_err().is_refusal());
    assert!(store.nodes().iter().all(|node| !node.connected), "{:?}", store.nodes());

    proxy.set(Mode::Pass);
    for _ in 0..MAX_POLLS {
        if source(&other.peek(&narrow).await) == DecisionSource::Store {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(used().await, [1, 1, 1]);
}

/// What instances tell each other through the store.
async fn coordinates(one: &dyn ServiceStore, other: &dyn ServiceStore) {
    one.ping().await.unwrap();
    one.self_test().await.unwrap();
    assert!(one.nodes().iter().any(|node| node.connected));
    assert_eq!((one.examine().await, one.restriction(), one.url()), (Vec::new(), None, other.url()));

    assert_eq!(one.count_instances(None).await, Ok(1));
    assert_eq!(other.count_instances(Some(b"a record\n")).await, Ok(2));
    let [record] = one.instance_records().await.unwrap().try_into().unwrap();
    assert_eq!((record.id.as_str(), record.record.as_slice()), (other.instance_id(), &b"a record\n"[..]));
    assert_ne!(one.instance_id(), other.instance_id());

    let hour = Duration::from_secs(3600);
    assert_eq!((one.claim(b"first", hour).await, other.claim(b"first", hour).await), (Ok(true), Ok(false)));
    assert_eq!(other.claim(b"second", hour).await, Ok(true));

    assert_eq!(one.control_document(None).await, Ok(Some(ControlDocument::default())));
    assert_eq!(one.control_document(Some(ControlDocumentId::ABSENT)).await, Ok(None));
    let document = |version, text| {
        ControlDocument::new(ControlDocumentId { epoch: 7, version, revision: version + 1 }, text)
    };
    let [first, second] = [document(1, "{}\n"), document(2, "a second text")];
    let absent = ControlDocumentId::ABSENT;
    assert!(one.replace_control_document(absent, &ControlDocument::default()).await.is_err());
    assert_eq!(one.replace_control_document(absent, &first).await, Ok(true));
    assert_eq!(other.replace_control_document(absent, &second).await, Ok(false), "another was first");
    assert_eq!(other.control_document(Some(absent)).await, Ok(Some(first.clone())));
    assert_eq!(other.replace_control_document(first.id, &second).await, Ok(true));
    assert_eq!(one.control_document(Some(first.id)).await, Ok(Some(second.clone())));
    assert_eq!(one.control_document(Some(second.id)).await, Ok(None));
}

/// Over a network a store of one's own decides as the memory store that it owns.
#[test]
fn an_own_store_decides_as_the_memory_store() {
    let runtime = Runtime::new().unwrap();
    let steps = prop::collection::vec((0..4_usize, 0..3_u8, 0..5_u64, 0..700_u64), 1..40);
    let histories = (prop::sample::select(&Algorithm::ALL[..]), 0..6_u64, steps);
    let run = |(algorithm, limit, steps): (_, u64, Vec<(usize, u8, u64, u64)>)| {
        let clock = ManualClock::new();
        let memory = || MemoryStore::builder().clock(clock.clone()).build();
        let policies = || {
            let quota =
                |limit| Quota::new(limit, Duration::from_millis(1)).unwrap().with_algorithm(algorithm);
            let policy = |name, limit| Policy::new(name, quota(limit)).unwrap().with_scope(["user"]);
            PolicySet::new([policy("narrow", limit), policy("wide", limit + 2)]).unwrap()
        };
        let ours = SharedGate::new(policies(), TcpStore::new(serve_own(memory()))).unwrap();
        let theirs = Gate::with_memory(policies(), memory());
        for (verb, user, cost, later_us) in steps {
            clock.advance(Duration::from_micros(later_us));
            let verb = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize][verb];
            let user = user.to_string();
            let request = [Request::new().with("user", user.as_str()).with_cost(cost).with_verb(verb)];
            let all = |decisions: &slidegate::Decisions<'_>| -> Vec<_> {
                decisions.iter().map(|one| *one.decision()).collect()
            };
            prop_assert_eq!(all(&runtime.block_on(ours.apply(&request))), all(&theirs.apply(&request)));
        }
        Ok(())
    };
    random_cases(100).run(&histories, run).unwrap();
}
