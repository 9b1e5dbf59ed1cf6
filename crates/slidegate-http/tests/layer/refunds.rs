//! What is refunded, and that it is refunded once.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use slidegate::{Gate, Request as Asked};
use slidegate_http::layer::{Attribute, RateLimitLayer, RateLimitLayerBuilder, Refund};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{gate, is_pending, policy, request};

/// A limit of ten per address, for the client of the tests' requests.
fn limits() -> (Arc<Gate>, RateLimitLayerBuilder) {
    let (gate, _clock) = gate([policy("per-ip", "10/1m").with_scope(["ip"])]);
    let builder = RateLimitLayer::builder(Arc::clone(&gate)).attribute("ip", Attribute::client_addr());
    (gate, builder)
}

/// The cost that this client has used.
fn used(gate: &Gate) -> u64 {
    let client: std::net::IpAddr = "203.0.113.7".parse().unwrap();
    gate.peek(&Asked::new().with("ip", client)).strictest().unwrap().decision().used()
}

/// Sends a request that gets this status.
async fn answered(builder: &RateLimitLayerBuilder, status: u16) -> Response<String> {
    let answer = service_fn(move |_: Request<String>| async move {
        let response = Response::builder().status(status).header("x-cache-hit", "1").body(String::new());
        Ok::<_, Infallible>(response.unwrap())
    });
    let Ok(response) = builder.clone().build().unwrap().layer(answer).oneshot(request(&[])).await;
    response
}

/// A client must not pay for the server's failures, but password guesses must count.
#[tokio::test]
async fn answers_of_the_kind_that_was_named_give_the_cost_back() {
    let kinds: [(&str, Refund, &[u16]); 6] = [
        ("server errors", Refund::server_errors(), &[500, 503]),
        ("client errors", Refund::client_errors(), &[400, 404, 429]),
        ("successes", Refund::successes(), &[200, 204, 304]),
        ("one status", Refund::on_status(|status| status == StatusCode::NOT_FOUND), &[404]),
        (
            "a field",
            Refund::when(|response| response.headers.contains_key("x-cache-hit")),
            &[200, 204, 304, 400, 404, 429, 500, 503],
        ),
        ("none", Refund::when(|_| false), &[]),
    ];
    for (name, refund, refunded) in kinds {
        for status in [200, 204, 304, 400, 404, 429, 500, 503] {
            let (gate, builder) = limits();
            assert_eq!(answered(&builder.refund(refund.clone()), status).await.status(), status);
            assert_eq!(used(&gate), u64::from(!refunded.contains(&status)), "{name}: {status}");
        }
    }
}

/// A refund that comes when the charge no longer counts would return what other requests used, and
/// admit more than the limit in their window.
#[tokio::test]
async fn a_response_that_takes_longer_than_the_window_refunds_nothing() {
    for (window, takes_ms) in [("500ms", 600), ("1m", 0)] {
        let policies = [policy("short", &format!("10/{window}")), policy("long", "10/1h")];
        // Real time, as it is the handler that takes long.
        let gate = Arc::new(Gate::new(slidegate::PolicySet::new(policies).unwrap()));
        let builder = RateLimitLayer::builder(Arc::clone(&gate)).refund(Refund::server_errors());
        let answer = service_fn(|_: Request<String>| {
            let gate = Arc::clone(&gate);
            async move {
                tokio::time::sleep(std::time::Duration::from_millis(takes_ms)).await;
                // Of others, just before the refund.
                assert!(gate.check(&Asked::new().under("short").with_cost(2)).is_allowed());
                let response = Response::builder().status(500).body(String::new());
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let Ok(_) = builder.build().unwrap().layer(answer).oneshot(request(&[])).await;
        let used = |name: &str| gate.peek(&Asked::new().under(name)).strictest().unwrap().decision().used();
        assert_eq!(used("short"), 2, "{window}");
        assert_eq!(used("long"), 0, "{window}: its charge still counted");
    }
}

/// A second refund would return cost that another request used.
#[tokio::test]
async fn a_cost_is_given_back_once_and_in_full() {
    let (gate, builder) = limits();
    answered(&builder, 200).await;
    let costly = builder.cost(|_| 4).refund(Refund::server_errors().or_unanswered());
    let response = answered(&costly, 500).await;
    // The fields show the state before the refund.
    assert_eq!(response.headers()["x-ratelimit-remaining"], "5");
    assert_eq!(used(&gate), 1);
    answered(&costly, 200).await;
    assert_eq!(used(&gate), 5);
    drop(response);
    assert_eq!(used(&gate), 5);
}

/// What was never charged is not refunded: a denial, a request that bypasses the limit, a cost of
/// 0.
#[tokio::test]
async fn nothing_is_given_back_for_what_was_not_charged() {
    let (gate, builder) = limits();
    let builder = builder.refund(Refund::when(|_| true).or_unanswered());
    let client: std::net::IpAddr = "203.0.113.7".parse().unwrap();
    assert!(gate.check(&Asked::new().with("ip", client).with_cost(10)).is_allowed());
    assert_eq!(answered(&builder, 200).await.status(), 429);
    assert_eq!(answered(&builder.clone().skip(|_| true), 200).await.status(), 200);
    assert_eq!(answered(&builder.cost(|_| 0), 200).await.status(), 200);
    assert_eq!(used(&gate), 10);
}

/// A shadow policy that would have denied was not charged. A refund would remove the usage of other
/// requests.
#[tokio::test]
async fn a_shadow_policy_that_denied_is_given_nothing() {
    let (gate, _clock) = gate([policy("everyone", "10/1m"), policy("trial", "1/1m").with_enforced(false)]);
    let builder = RateLimitLayer::builder(Arc::clone(&gate));
    let refunding = builder.clone().refund(Refund::when(|_| true));
    let used = || gate.peek(&Asked::new()).iter().map(|one| one.decision().used()).collect::<Vec<_>>();
    answered(&refunding, 200).await;
    assert_eq!(used(), [0, 0]);
    answered(&builder, 200).await;
    answered(&refunding, 200).await;
    assert_eq!(used(), [1, 1]);
    answered(&refunding.under(["everyone"]), 200).await;
    assert_eq!(used(), [1, 1]);
}

/// A client that disconnects before the response must not get free attempts unless configured.
#[tokio::test]
async fn a_request_whose_client_leaves_keeps_its_charge_unless_told_otherwise() {
    let leave = |builder: RateLimitLayerBuilder, polls: bool| async move {
        let never =
            service_fn(|_: Request<String>| std::future::pending::<Result<Response<String>, Infallible>>());
        let mut response = Box::pin(builder.build().unwrap().layer(never).call(request(&[])));
        if polls {
            assert!(is_pending(&mut response).await);
        }
        drop(response);
    };
    for polls in [false, true] {
        let (gate, builder) = limits();
        leave(builder.clone(), polls).await;
        leave(builder.clone().refund(Refund::when(|_| true)), polls).await;
        assert_eq!(used(&gate), 2);
        leave(builder.refund(Refund::when(|_| false).or_unanswered()), polls).await;
        assert_eq!(used(&gate), 2);
    }
}

/// A service that fails or panics has not responded either.
#[tokio::test]
async fn a_request_whose_service_fails_is_unanswered() {
    let (gate, builder) = limits();
    let fails = service_fn(|_: Request<String>| async { Err::<Response<String>, _>("down") });
    let panics = service_fn(|request: Request<String>| async move {
        assert_ne!(request.uri().path(), "/items", "a handler's own bug");
        Err::<Response<String>, _>("down")
    });
    for (refund, left) in [(Refund::server_errors(), 2), (Refund::server_errors().or_unanswered(), 2)] {
        let layer = builder.clone().refund(refund).build().unwrap();
        assert_eq!(layer.layer(fails).oneshot(request(&[])).await.unwrap_err(), "down");
        let task = tokio::spawn(layer.layer(panics).oneshot(request(&[])));
        assert!(task.await.unwrap_err().is_panic());
        assert_eq!(used(&gate), left);
    }
}
