//! Around plain services: what is counted, what is sent, and what is rejected when a layer is
//! built.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use slidegate::{Match, PolicySet};
use slidegate_http::client_addr::{ClientAddr, Source, Trust, TrustedProxies};
use slidegate_http::headers::HeaderOptions;
use slidegate_http::layer::{Attribute, Limited, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{ask, fields, gate, policy, request};

/// Every user of the layer sees this first.
#[tokio::test]
async fn a_request_that_passes_is_told_about_and_so_is_its_client() {
    let (gate, clock) = gate([
        policy("per-ip", "5/1m").with_scope(["ip"]),
        policy("everyone", "100/1h"),
        policy("trial", "1/1d").with_enforced(false),
    ]);
    let layer = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build().unwrap();
    let first = ask(&layer, request(&[])).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(first.body(), "per-ip:4 everyone:99 trial:0");
    assert_eq!(
        fields(&first),
        [
            r#"ratelimit-policy: "per-ip";q=5;w=60, "everyone";q=100;w=3600"#,
            r#"ratelimit: "per-ip";r=4;t=60, "everyone";r=99;t=3600"#,
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 4",
            "x-ratelimit-reset: 1000000060",
        ]
    );
    clock.advance(Duration::from_secs(60));
    assert_eq!(ask(&layer, request(&[])).await.body(), "per-ip:4 everyone:98 trial:0");
}

/// A denied request must cost nothing but its response.
#[tokio::test]
async fn a_denied_request_never_reaches_the_service() {
    let (gate, _clock) = gate([policy("per-ip", "1/1m").with_scope(["ip"])]);
    let layer = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build().unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&served);
    let mut service = layer.layer(service_fn(move |_: Request<String>| {
        counting.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    }));
    for status in [200, 429, 429] {
        let response = service.ready().await.unwrap().call(request(&[])).await.unwrap();
        assert_eq!(response.status(), status);
        if status == 429 {
            assert_eq!(
                fields(&response),
                [
                    "cache-control: no-store",
                    "content-type: application/problem+json",
                    r#"ratelimit-policy: "per-ip";q=1;w=60"#,
                    r#"ratelimit: "per-ip";r=0;t=60"#,
                    "retry-after: 60",
                    "x-ratelimit-limit: 1",
                    "x-ratelimit-remaining: 0",
                    "x-ratelimit-reset: 1000000060",
                ]
            );
            let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!(["per-ip"]));
            assert_eq!(problem["retry_after_ms"], 60_000);
        }
    }
    assert_eq!(served.load(Ordering::SeqCst), 1);
}

/// The key by which a policy counts a request; `None` if the policy does not apply.
async fn key(attribute: Attribute, request: Request<String>) -> Option<String> {
    let (gate, _clock) = gate([policy("p", "0/1m").with_scope(["it"])]);
    let builder = RateLimitLayer::builder(gate).attribute("it", attribute);
    let layer =
        builder.denied(|denied| Response::new(denied.decisions().strictest().unwrap().key().to_string()));
    let response = ask(&layer.build().unwrap(), request).await;
    response.headers().contains_key("ratelimit").then(|| response.into_body())
}

#[derive(Clone)]
struct Account {
    name: String,
    number: u64,
}

fn request_of_account() -> Request<String> {
    let mut request = request(&[("x-api-key", "k1"), ("x-api-key", "k2"), ("x-empty", "")]);
    request.extensions_mut().insert(Account { name: "alice".into(), number: 7 });
    request
}

/// Each of these is a common first question.
#[tokio::test]
async fn attributes_come_from_wherever_they_stand() {
    let all = [
        (Attribute::client_addr(), "203.0.113.7"),
        (Attribute::header("x-api-key"), "k1"),
        (Attribute::method(), "GET"),
        (Attribute::path(), "/items"),
        (Attribute::value("export"), "export"),
        (Attribute::extension(|account: &Account| Some(account.name.as_str().into())), "alice"),
        (Attribute::extension(|account: &Account| Some(account.number.into())), "7"),
        (Attribute::read(|request| Some(request.uri.query()?.to_uppercase().into())), "PAGE=2"),
        (Attribute::header("x-none").or(Attribute::header("x-empty")).or(Attribute::path()), "/items"),
        (Attribute::never().or(Attribute::client_addr()), "203.0.113.7"),
    ];
    for (attribute, expected) in all {
        let name = format!("{attribute:?}");
        assert_eq!(key(attribute, request_of_account()).await.as_deref(), Some(expected), "{name}");
    }
}

/// Clients without an address share one key, and policies still apply to them.
#[tokio::test]
async fn a_request_without_the_attribute_is_not_under_the_policy() {
    let absent = [
        Attribute::header("x-none"),
        Attribute::header("x-empty"),
        Attribute::never(),
        Attribute::extension(|name: &String| Some(name.as_str().into())),
        Attribute::read(|_| None),
    ];
    for attribute in absent {
        let name = format!("{attribute:?}");
        assert_eq!(key(attribute, request_of_account()).await, None, "{name}");
    }
}

/// Behind a proxy the peer is the proxy. Without one, the client could forge the header.
#[tokio::test]
async fn the_client_is_found_behind_trusted_proxies_only() {
    let forwarded = [("x-forwarded-for", "6.6.6.6, 198.51.100.9, 203.0.113.1")];
    let answer = |rule: Option<ClientAddr>, request: Request<String>| async {
        let (gate, _clock) = gate([policy("per-ip", "0/1m").with_scope(["ip"])]);
        let builder = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr());
        let builder = if let Some(rule) = rule { builder.client_addr(rule) } else { builder };
        let builder =
            builder.denied(|denied| Response::new(denied.decisions().strictest().unwrap().key().to_string()));
        ask(&builder.build().unwrap(), request).await.into_body()
    };
    let trusting = ClientAddr::new(
        Source::XForwardedFor,
        Trust::Networks(TrustedProxies::new(["203.0.113.0/24"]).unwrap()),
    );
    assert_eq!(answer(Some(trusting.clone()), request(&forwarded)).await, "198.51.100.9");
    assert_eq!(answer(None, request(&forwarded)).await, "203.0.113.7");
    // A Unix socket has no address, and some servers do not provide one.
    let mut unknown = request(&forwarded);
    unknown.extensions_mut().clear();
    assert_eq!(answer(Some(trusting), unknown).await, "unknown");
}

/// Each server has its own way to provide the peer's address.
#[tokio::test]
async fn the_peer_may_stand_anywhere_in_the_extensions() {
    let (gate, _clock) = gate([policy("per-ip", "5/1m").with_scope(["ip"])]);
    let layer = RateLimitLayer::builder(gate)
        .attribute("ip", Attribute::client_addr())
        .peer(|extensions| extensions.get::<Vec<u8>>().map(|octets| [octets[0]; 4].into()));
    let mut request = request(&[]);
    request.extensions_mut().insert(vec![9_u8]);
    let shown = service_fn(|request: Request<String>| async move {
        let client = request.extensions().get::<Limited>().unwrap().client().unwrap();
        Ok::<_, Infallible>(Response::new(client.addr.unwrap().to_string()))
    });
    let Ok(response) = layer.build().unwrap().layer(shown).oneshot(request).await;
    assert_eq!(response.body(), "9.9.9.9");
}

/// An export costs more than a page.
#[tokio::test]
async fn a_request_costs_what_the_function_says() {
    let (gate, _clock) = gate([policy("everyone", "10/1m")]);
    let layer = RateLimitLayer::builder(gate).cost(|request| {
        request.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
    });
    let layer = layer.build().unwrap();
    let cost = |cost: &'static str| ask(&layer, request(&[("x-cost", cost)]));
    assert_eq!(cost("4").await.body(), "everyone:6");
    assert_eq!(ask(&layer, request(&[])).await.body(), "everyone:5");
    assert_eq!(cost("0").await.body(), "everyone:5");
    assert_eq!(cost("6").await.status(), 429);
    // Waiting does not help here, so nothing may suggest it.
    let never = cost("11").await;
    assert_eq!((never.status().as_u16(), never.headers().get("retry-after")), (429, None));
    assert_eq!(cost("5").await.body(), "everyone:0");
}

/// Preflights and health checks come from browsers and load balancers and must not use up a user's
/// limit.
#[tokio::test]
async fn a_skipped_request_is_counted_nowhere() {
    let (gate, _clock) = gate([policy("everyone", "1/1m")]);
    let layer =
        RateLimitLayer::builder(gate).skip(|request| request.method == Method::OPTIONS).build().unwrap();
    for _ in 0..3 {
        let mut preflight = request(&[]);
        *preflight.method_mut() = Method::OPTIONS;
        let response = ask(&layer, preflight).await;
        assert_eq!((response.status().as_u16(), response.body().as_str()), (200, ""));
        assert_eq!(fields(&response), [""; 0]);
    }
    assert_eq!(ask(&layer, request(&[])).await.body(), "everyone:0");
}

/// A website responds with a page, an API with its own error format.
#[tokio::test]
async fn the_denial_is_replaceable_and_still_says_when_to_retry() {
    let (gate, _clock) = gate([policy("everyone", "0/1m")]);
    let layer =
        RateLimitLayer::builder(gate).headers(HeaderOptions { retry_after_ms: true, ..HeaderOptions::OFF });
    let layer = layer.denied(|denied| {
        let text = format!("{}: {}", denied.request().uri.path(), denied.problem().violated_policies[0]);
        Response::builder()
            .status(503)
            .header("retry-after-ms", "soon")
            .header("x-mine", "1")
            .body(text)
            .unwrap()
    });
    let response = ask(&layer.build().unwrap(), request(&[])).await;
    assert_eq!((response.status().as_u16(), response.body().as_str()), (503, "/items: everyone"));
    assert_eq!(fields(&response), ["retry-after-ms: soon", "x-mine: 1"]);
}

/// A limit on the whole site must not overwrite the fields of a limit on one route.
#[tokio::test]
async fn of_two_limits_the_inner_one_speaks() {
    let (outer, _clock) = gate([policy("site", "100/1m")]);
    let (inner, _clock) = gate([policy("route", "1/1m")]);
    let [outer, inner] = [outer, inner].map(|gate| RateLimitLayer::builder(gate).build().unwrap());
    let answer = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let mut both = outer.layer(inner.layer(answer));
    for status in [200, 429] {
        let response = both.ready().await.unwrap().call(request(&[])).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["ratelimit"], r#""route";r=0;t=60"#);
        assert_eq!(response.headers().get_all("x-ratelimit-limit").iter().count(), 1);
    }
}

/// A route may name its policies instead, and then no others apply.
#[tokio::test]
async fn under_names_only_those_policies_decide_all_or_none() {
    let (gate, _clock) = gate([
        policy("per-ip", "3/1m").with_scope(["ip"]),
        policy("login", "1/1m").with_condition("path", Match::equals("/nowhere")).with_scope(["ip"]),
        policy("other", "0/1m").with_scope(["host"]),
    ]);
    let limits = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr());
    let home = limits.clone().under(["per-ip"]).build().unwrap();
    let login = limits.under(["per-ip", "login"]).build().unwrap();
    assert_eq!(ask(&login, request(&[])).await.body(), "per-ip:2 login:0");
    let denied = ask(&login, request(&[])).await;
    assert_eq!(denied.status(), 429);
    assert!(denied.body().contains(r#""violated-policies":["login"]"#), "{}", denied.body());
    assert_eq!(ask(&home, request(&[])).await.body(), "per-ip:1");
}

/// A reload that removes a route's policy must not open the route, nor reveal the other policies to
/// clients.
#[tokio::test]
async fn a_layer_whose_policy_is_gone_answers_500_until_it_is_back() {
    let (gate, _clock) =
        gate([policy("per-ip", "3/1m").with_scope(["ip"]), policy("login", "1/1m").with_scope(["ip"])]);
    let limits = RateLimitLayer::builder(Arc::clone(&gate)).attribute("ip", Attribute::client_addr());
    let one = limits.clone().under(["login"]).build().unwrap();
    let both = limits.under(["per-ip", "login"]).build().unwrap();
    gate.configure(PolicySet::new([policy("per-ip", "3/1m").with_scope(["ip"])]).unwrap()).unwrap();
    for layer in [&one, &both] {
        let refused = ask(layer, request(&[])).await;
        assert_eq!(refused.status(), 500);
        assert!(!refused.body().contains("per-ip"), "{}", refused.body());
        assert!(refused.headers().get("ratelimit").is_none());
    }
    let back = [policy("per-ip", "3/1m").with_scope(["ip"]), policy("login", "1/1m").with_scope(["ip"])];
    gate.configure(PolicySet::new(back).unwrap()).unwrap();
    assert_eq!(ask(&both, request(&[])).await.body(), "per-ip:2 login:0");
}

/// A request without an API key is not counted by key, even if the layer names its policies.
#[tokio::test]
async fn a_named_policy_without_its_attribute_is_left_out() {
    let (gate, _clock) =
        gate([policy("per-ip", "3/1m").with_scope(["ip"]), policy("per-key", "1/1m").with_scope(["key"])]);
    let limits = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr());
    let limits = limits.attribute("key", Attribute::header("x-api-key"));
    let both = limits.clone().under(["per-ip", "per-key"]).build().unwrap();
    assert_eq!(ask(&both, request(&[])).await.body(), "per-ip:2");
    assert_eq!(ask(&both, request(&[("x-api-key", "a")])).await.body(), "per-ip:1 per-key:0");
    let one = limits.under(["per-key"]).build().unwrap();
    assert_eq!(ask(&one, request(&[])).await.body(), "");
}

/// A limit that silently applies to nobody would only be noticed during an attack.
#[test]
fn a_policy_that_could_never_apply_is_refused_at_the_start() {
    let (gate, _clock) = gate([
        policy("everyone", "5/1m"),
        policy("per-user", "5/1m").with_condition("path", Match::equals("/")).with_scope(["user"]),
        // It applies only to requests that name it, so other layers need not define its attributes.
        policy("named", "5/1m").with_only_when_named().with_scope(["tenant"]),
    ]);
    let limits = RateLimitLayer::builder(gate);
    assert_eq!(
        limits.clone().attribute("path", Attribute::path()).build().unwrap_err().to_string(),
        "policy `per-user`: the layer does not define attribute `user`; add `.attribute(\"user\", ...)`, \
         with `Attribute::never()` if the policy is for other layers"
    );
    let user = limits.clone().attribute("user", Attribute::header("x-user"));
    assert_eq!(
        user.clone().build().unwrap_err().to_string(),
        "policy `per-user`: the layer does not define attribute `path`; add `.attribute(\"path\", ...)`, \
         with `Attribute::never()` if the policy is for other layers"
    );
    assert_eq!(
        user.clone().under(["per-usr"]).build().unwrap_err().to_string(),
        "unknown policy `per-usr`: the gate has `everyone`, `per-user`, `named`"
    );
    // If a policy is named, its conditions do not matter. A policy that is not named needs nothing.
    assert!(user.under(["per-user"]).build().is_ok());
    assert!(limits.clone().under(["everyone"]).build().is_ok());
    let never = limits.attribute("user", Attribute::never()).attribute("path", Attribute::never());
    assert!(never.build().is_ok());
}

/// The caller must see when the service is not ready or fails.
#[tokio::test]
async fn readiness_and_errors_are_those_of_the_service() {
    #[derive(Clone)]
    struct Busy(u32);
    impl Service<Request<String>> for Busy {
        type Response = Response<String>;
        type Error = u32;
        type Future = std::future::Ready<Result<Response<String>, u32>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), u32>> {
            self.0 += 1;
            if self.0 < 3 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            std::future::ready(Err(self.0))
        }
    }
    let (gate, _clock) = gate([policy("everyone", "5/1m")]);
    let mut service = RateLimitLayer::builder(gate).build().unwrap().layer(Busy(0));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert_eq!(service.poll_ready(&mut cx), Poll::Pending);
    assert_eq!(service.poll_ready(&mut cx), Poll::Pending);
    assert_eq!(service.poll_ready(&mut cx), Poll::Ready(Ok(())));
    assert_eq!(service.call(request(&[])).await.unwrap_err(), 3);
}

/// A body that cannot be created from text.
#[derive(Debug)]
struct Elsewhere(Option<&'static str>);

impl Body for Elsewhere {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// gRPC services and proxies have their own body types.
#[tokio::test]
async fn services_with_any_body_can_be_limited() {
    let (gate, _clock) = gate([policy("everyone", "1/1m")]);
    let layer = RateLimitLayer::builder(gate).denied(|denied| {
        let empty = denied.request().headers.contains_key("x-empty");
        Response::new(if empty { String::new() } else { "no".into() })
    });
    let answer =
        service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(Elsewhere(Some("yes")))) });
    let mut service = layer.build().unwrap().any_body().layer(answer);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let asked: [(&[(&str, &str)], _, _); 3] =
        [(&[], Some("yes"), None), (&[], Some("no"), Some(2)), (&[("x-empty", "1")], None, Some(0))];
    for (headers, text, exactly) in asked {
        let response = service.ready().await.unwrap().call(request(headers)).await.unwrap();
        let mut body = response.into_body();
        assert_eq!(body.size_hint().exact(), exactly);
        assert_eq!(body.is_end_stream(), text.is_none());
        let mut frames = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut cx) {
            frames.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(frames, text.into_iter().map(Bytes::from).collect::<Vec<_>>());
        assert!(body.is_end_stream());
    }
}
