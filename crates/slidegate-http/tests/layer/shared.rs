//! Over a shared store: the same layer, and clients that disconnect at any moment.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use slidegate::{PolicySet, Request as Asked, SharedGate};
use slidegate_http::layer::{Attribute, Limited, RateLimitLayer, RateLimitLayerBuilder, Refund};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::RedisServer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{ask, is_pending, policy, request};

/// Long enough for a busy machine to connect and to answer.
const PATIENT: Duration = Duration::from_secs(10);

/// A gate over this store with a limit of ten per address.
fn gate(url: &str) -> RedisGate {
    let policies = PolicySet::new([policy("per-ip", "10/1h").with_scope(["ip"])]).unwrap();
    let options = RedisOptions::new(url).unwrap().with_deadline(PATIENT);
    SharedGate::new(policies, RedisStore::new(options).unwrap()).unwrap()
}

fn limits(gate: &RedisGate) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(gate.clone()).attribute("ip", Attribute::client_addr())
}

/// The cost that the client of the tests' requests has used, read from the store.
async fn used(gate: &RedisGate) -> u64 {
    let client: std::net::IpAddr = "203.0.113.7".parse().unwrap();
    let asked = Asked::new().with("ip", client);
    let peeked = gate.peek(&asked).await;
    let strictest = peeked.strictest().unwrap();
    assert_eq!(strictest.decision().source().name(), "store");
    strictest.decision().used()
}

/// Waits until the store reports this usage, with a generous bound.
async fn until_used(gate: &RedisGate, wanted: u64) {
    for _ in 0..2000 {
        if used(gate).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} are used and never {wanted}", used(gate).await);
}

/// The service instance that was polled for readiness has reserved capacity, so it must be the one
/// that is called.
#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    struct Ready(bool);
    impl Clone for Ready {
        fn clone(&self) -> Self {
            Self(false)
        }
    }
    impl Service<Request<String>> for Ready {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
            self.0 = true;
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            assert!(self.0, "called without having been asked");
            std::future::ready(Ok(Response::new("ready".into())))
        }
    }
    let redis = RedisServer::start();
    let mut service = limits(&gate(&redis.url())).build().unwrap().layer(Ready(false));
    for _ in 0..3 {
        let response = service.ready().await.unwrap().call(request(&[])).await.unwrap();
        assert_eq!(response.body(), "ready");
    }
}

/// A client that sends its next request right after this response must benefit from the refund.
#[tokio::test]
async fn a_refund_is_in_the_store_before_the_answer_goes_on() {
    let redis = RedisServer::start();
    let gate = gate(&redis.url());
    let layer = limits(&gate).cost(|_| 3).refund(Refund::server_errors().or_unanswered()).build().unwrap();
    for (status, expected) in [(200, 3), (500, 3), (503, 3), (404, 6)] {
        let answer = service_fn(move |_: Request<String>| async move {
            Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap())
        });
        let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
        assert_eq!(response.status(), status);
        assert_eq!(used(&gate).await, expected);
    }
}

/// A client that disconnects while the response is produced gets exactly one refund.
#[tokio::test]
async fn a_client_that_leaves_before_the_answer_is_refunded_once() {
    let redis = RedisServer::start();
    let gate = gate(&redis.url());
    ask(&limits(&gate).build().unwrap(), request(&[])).await;
    let arrived = Arc::new(tokio::sync::Notify::new());
    let says = arrived.clone();
    let never = service_fn(move |_: Request<String>| {
        says.notify_one();
        std::future::pending::<Result<Response<String>, Infallible>>()
    });
    for (refund, left) in [(Refund::server_errors().or_unanswered(), 1), (Refund::server_errors(), 2)] {
        let layer = limits(&gate).refund(refund).build().unwrap();
        let task = tokio::spawn(layer.layer(never.clone()).oneshot(request(&[])));
        arrived.notified().await;
        assert_eq!(used(&gate).await, 2);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        until_used(&gate, left).await;
    }
    assert_eq!(used(&gate).await, 2);
}

/// A client that disconnects while the store decides may still be charged; that must be refunded
/// too.
#[tokio::test]
async fn a_client_that_leaves_before_the_decision_is_refunded_when_it_comes() {
    let redis = RedisServer::start();
    let [asked, direct] = [(); 2].map(|()| gate(&redis.url()));
    for _ in 0..2 {
        ask(&limits(&direct).build().unwrap(), request(&[])).await;
    }
    // This opens the connection before the call.
    assert_eq!(used(&asked).await, 2);
    let served = Arc::new(AtomicBool::new(false));
    let serves = served.clone();
    let service = service_fn(move |_: Request<String>| {
        serves.store(true, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    });
    let layer = limits(&asked).refund(Refund::when(|_| false).or_unanswered()).build().unwrap();
    let mut response = Box::pin(layer.layer(service).oneshot(request(&[])));
    // One poll sends the call. Not polling for the reply simulates a client that disconnects at the
    // worst moment.
    assert!(is_pending(&mut response).await);
    until_used(&direct, 3).await;
    drop(response);
    until_used(&direct, 2).await;
    assert!(!served.load(Ordering::SeqCst));
    // Calls are executed in order: once this one has returned, no second refund can be in progress.
    assert_eq!(used(&asked).await, 2);
    assert_eq!(used(&direct).await, 2);
}

/// A store outage must not become an outage of the service, and handlers may want to know the
/// source of a decision.
#[tokio::test]
async fn without_the_store_the_fallback_decides_and_says_so() {
    let proxy = Proxy::before(1);
    proxy.set(Mode::Refuse);
    let policies = PolicySet::new([policy("everyone", "2/1h")]).unwrap();
    let gate = SharedGate::new(policies, RedisStore::new(RedisOptions::new(&proxy.url()).unwrap()).unwrap())
        .unwrap();
    let found = service_fn(|request: Request<String>| async move {
        let limited = request.extensions().get::<Limited>().unwrap();
        Ok::<_, Infallible>(Response::new(limited.strictest().unwrap().decision().source().name().to_owned()))
    });
    let mut service = RateLimitLayer::builder(gate).build().unwrap().layer(found);
    for (status, body) in [(200, "local"), (200, "local")] {
        let response = service.ready().await.unwrap().call(request(&[])).await.unwrap();
        assert_eq!((response.status().as_u16(), response.body().as_str()), (status, body));
    }
    let Ok(denied) = service.ready().await.unwrap().call(request(&[])).await;
    assert_eq!(denied.status(), 429);
}

/// Reservations in the store, with a client that leaves while it decides, and one that leaves while
/// the response is sent.
#[tokio::test]
async fn a_reservation_is_cancelled_or_settled_in_the_store_when_its_client_leaves() {
    use slidegate::{Counts, Policy, Quota};
    use slidegate_http::layer::Settle;

    let redis = RedisServer::start();
    let lease = Duration::from_secs(600);
    let jobs =
        Policy::new("jobs", Quota::in_flight(1, lease).unwrap()).unwrap().with_counts(Counts::Requests);
    let policies = PolicySet::new([policy("requests", "10/1h").with_counts(Counts::Requests), jobs]).unwrap();
    let options = RedisOptions::new(&redis.url()).unwrap().with_deadline(PATIENT);
    let gate = SharedGate::new(policies, RedisStore::new(options).unwrap()).unwrap();
    let state = || async {
        let request = Asked::new();
        let peeked = gate.peek(&request).await;
        let all: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
        (all[0].0, all[1].1)
    };
    let until = async |wanted: (u64, u64)| {
        for _ in 0..2000 {
            if state().await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it is {:?} and never {wanted:?}", state().await);
    };
    assert_eq!(state().await, (0, 0));
    let layer = RateLimitLayer::reserve(gate.clone(), |_| 100).settle(Settle::bytes()).build().unwrap();
    let answer =
        service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::from("answer"))) });
    // It leaves at once. What the store then reserved is cancelled: otherwise the permit would be
    // taken for its lease.
    let mut response = Box::pin(layer.layer(answer).oneshot(request(&[])));
    assert!(is_pending(&mut response).await);
    drop(response);
    let mut attempts = 0;
    let response = loop {
        let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
        if response.status() == 200 {
            break response;
        }
        attempts += 1;
        assert!(attempts < 2000, "the permit is not given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    // The permit is for the body, too.
    until((1, 1)).await;
    let Ok(denied) = layer.layer(answer).oneshot(request(&[])).await;
    assert_eq!(denied.status(), 429);
    drop(response);
    until((1, 0)).await;
}
