//! Requests that wait for their turn behind the layer, as their policies let them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use slidegate::{Gate, PolicySet, SharedGate};
use slidegate_http::layer::{Attribute, RateLimitLayer, Refund};
use slidegate_redis::{RedisOptions, RedisStore};
use slidegate_testkit::redis::RedisServer;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

use crate::{on_runtime_clock, policy, request};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The ways in which a layer decides.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Checks,
    Reserves,
}

/// Sends a request, and returns its status and the value of `retry-after`.
async fn send(kind: Kind, gate: Arc<Gate>, user: &'static str) -> (u16, Option<String>) {
    let answer = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let request = request(&[("x-user", user)]);
    let user = Attribute::header("x-user");
    let (status, headers) = match kind {
        Kind::Checks => {
            let layer = RateLimitLayer::builder(gate).attribute("user", user).build().unwrap();
            let Ok(response) = layer.layer(answer).oneshot(request).await;
            (response.status(), response.headers().clone())
        }
        Kind::Reserves => {
            let layer = RateLimitLayer::reserve(gate, |_| 1).attribute("user", user).build().unwrap();
            let Ok(response) = layer.layer(answer).oneshot(request).await;
            (response.status(), response.headers().clone())
        }
    };
    let retry_after = headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    (status.as_u16(), retry_after)
}

/// Two a user in ten seconds, and who comes later waits for up to 15.
#[tokio::test(start_paused = true)]
async fn requests_wait_as_long_as_their_policies_let_them_and_in_order() {
    for kind in [Kind::Checks, Kind::Reserves] {
        let policies =
            [policy("per-user", "2/10s").with_scope(["user"]).with_wait(secs(15)), policy("all", "100/1h")];
        let gate = on_runtime_clock(PolicySet::new(policies).unwrap());
        let begun = Instant::now();
        let later = || tokio::spawn(send(kind, Arc::clone(&gate), "alice"));
        for _ in 0..2 {
            assert_eq!(send(kind, Arc::clone(&gate), "alice").await, (200, None), "{kind:?}");
        }
        let (first, gone) = (later(), later());
        yield_now().await;
        // Two have their turn in ten seconds, and the next one only in twenty.
        assert_eq!(send(kind, Arc::clone(&gate), "alice").await, (429, Some("20".to_owned())), "{kind:?}");
        assert_eq!(gate.waiting(), 2, "{kind:?}");
        // Its client hangs up: it leaves its place and charges nothing.
        gone.abort();
        assert!(gone.await.is_err());
        let second = later();
        yield_now().await;
        // Nobody else waits for her.
        assert_eq!(send(kind, Arc::clone(&gate), "bob").await, (200, None), "{kind:?}");
        assert_eq!((begun.elapsed(), gate.waiting()), (secs(0), 2), "{kind:?}");
        assert_eq!(first.await.unwrap(), (200, None), "{kind:?}");
        assert_eq!(second.await.unwrap(), (200, None), "{kind:?}");
        assert!((secs(10)..secs(11)).contains(&begun.elapsed()), "{kind:?}: {:?}", begun.elapsed());
        assert_eq!(gate.waiting(), 0, "{kind:?}");
    }
}

/// All policies that deny a request must let it wait.
#[tokio::test(start_paused = true)]
async fn who_is_denied_by_a_policy_that_lets_nobody_wait_is_denied_at_once() {
    for kind in [Kind::Checks, Kind::Reserves] {
        let policies =
            [policy("per-user", "2/10s").with_scope(["user"]).with_wait(secs(15)), policy("all", "1/10s")];
        let gate = on_runtime_clock(PolicySet::new(policies).unwrap());
        let begun = Instant::now();
        assert_eq!(send(kind, Arc::clone(&gate), "alice").await.0, 200, "{kind:?}");
        assert_eq!(send(kind, Arc::clone(&gate), "alice").await.0, 429, "{kind:?}");
        assert_eq!((begun.elapsed(), gate.waiting()), (secs(0), 0), "{kind:?}");
    }
}

/// A request that fails after a second makes room for who waits, whether it is answered or not.
#[tokio::test(start_paused = true)]
async fn what_is_refunded_goes_to_who_waits_at_once() {
    for is_answered in [true, false] {
        let policies = [policy("all", "1/10s").with_wait(secs(15))];
        let gate = on_runtime_clock(PolicySet::new(policies).unwrap());
        let refund = Refund::server_errors().or_unanswered();
        let layer = RateLimitLayer::builder(Arc::clone(&gate)).refund(refund).build().unwrap();
        let fails = service_fn(move |_: Request<String>| async move {
            sleep(secs(1)).await;
            let response = Response::builder().status(500).body(String::new()).unwrap();
            if is_answered { Ok(response) } else { Err("no response") }
        });
        let serves =
            service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let begun = Instant::now();
        let first = tokio::spawn(layer.layer(fails).oneshot(request(&[])));
        yield_now().await;
        let Ok(second) = layer.layer(serves).oneshot(request(&[])).await;
        assert_eq!(second.status(), 200, "{is_answered}");
        assert_eq!(first.await.unwrap().is_ok(), is_answered);
        assert!((secs(1)..secs(2)).contains(&begun.elapsed()), "{is_answered}: {:?}", begun.elapsed());
    }
}

/// Over a shared store.
#[tokio::test]
async fn requests_wait_over_redis_too() {
    let server = RedisServer::start();
    let options = RedisOptions::new(&server.url()).unwrap().with_deadline(secs(10));
    let policies = PolicySet::new([policy("all", "1/300ms").with_wait(secs(30))]).unwrap();
    let gate = SharedGate::new(policies, RedisStore::new(options).unwrap()).unwrap();
    let answer = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let layer = RateLimitLayer::builder(gate.clone()).build().unwrap();
    let reserving = RateLimitLayer::reserve(gate, |_| 1).build().unwrap();
    let begun = Instant::now();
    for _ in 0..2 {
        let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
        assert_eq!(response.status(), 200);
        let Ok(response) = reserving.layer(answer).oneshot(request(&[])).await;
        assert_eq!(response.status(), 200);
    }
    assert!(begun.elapsed() >= 3 * Duration::from_millis(300), "{:?}", begun.elapsed());
}
