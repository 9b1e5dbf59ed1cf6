//! A policy that is the only one, and asks nothing of a request but an attribute, is checked on a
//! shorter path. Random requests are answered as by a policy with a condition that always holds.

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use http::{Request, Response};
use proptest::prelude::*;
use slidegate::client_addr::{ClientAddr, Source, Trust, TrustedProxies};
use slidegate::headers::{Draft, HeaderOptions, XRateLimit};
use slidegate::layer::{Attribute, Limited, RateLimitLayer, RateLimitLayerBuilder, Refund};
use slidegate::{Algorithm, Gate, ManualClock, Match, Policy, PolicySet, Quota};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{fields, gate, policy};

/// What the layers have in common.
#[derive(Debug, Clone)]
struct Settings {
    algorithm: Algorithm,
    limit: u64,
    /// Whether requests are counted by an attribute, and by which.
    counted_by: Option<CountedBy>,
    trusts_proxies: bool,
    headers: HeaderOptions,
    extension: bool,
    refunds: bool,
}

#[derive(Debug, Clone, Copy)]
enum CountedBy {
    Client,
    User,
    UserOrClient,
}

/// One request, after so many milliseconds.
#[derive(Debug, Clone)]
struct Sent {
    after_ms: u64,
    peer: Option<IpAddr>,
    forwarded: Option<&'static str>,
    user: Option<&'static str>,
    cost: u64,
    status: u16,
}

fn settings() -> impl Strategy<Value = Settings> {
    let algorithms =
        [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::FixedWindow, Algorithm::TokenBucket];
    let counted_by = prop_oneof![
        1 => Just(None),
        3 => Just(Some(CountedBy::Client)),
        1 => Just(Some(CountedBy::User)),
        1 => Just(Some(CountedBy::UserOrClient)),
    ];
    let draft = prop::sample::select(vec![Draft::Off, Draft::Draft6, Draft::Draft7, Draft::Draft10]);
    let x_ratelimit = prop::sample::select(vec![
        XRateLimit::Off,
        XRateLimit::EpochSeconds,
        XRateLimit::DeltaSeconds,
        XRateLimit::OpenAi,
        XRateLimit::Anthropic,
    ]);
    let headers = prop_oneof![
        1 => Just(HeaderOptions::OFF),
        1 => (draft, x_ratelimit, any::<bool>(), any::<bool>()).prop_map(
            |(draft, x_ratelimit, retry_after, retry_after_ms)| HeaderOptions {
                draft,
                x_ratelimit,
                retry_after,
                retry_after_ms,
            },
        ),
    ];
    let rest = (any::<bool>(), headers, any::<bool>(), proptest::bool::weighted(0.2));
    (prop::sample::select(algorithms.to_vec()), 0u64..6, counted_by, rest).prop_map(
        |(algorithm, limit, counted_by, (trusts_proxies, headers, extension, refunds))| Settings {
            algorithm,
            limit,
            counted_by,
            trusts_proxies,
            headers,
            extension,
            refunds,
        },
    )
}

fn sent() -> impl Strategy<Value = Sent> {
    let peers =
        ["203.0.113.7", "10.0.0.1", "::ffff:203.0.113.7", "2001:db8::1", "2001:db8::2", "64:ff9b::cb00:7107"];
    let peer = proptest::option::weighted(0.9, prop::sample::select(peers.to_vec()));
    let forwarded =
        proptest::option::weighted(0.3, prop::sample::select(vec!["198.51.100.2", "x", "2001:db8::1"]));
    let user = proptest::option::weighted(0.7, prop::sample::select(vec!["alice", "bob", "203.0.113.7"]));
    (0u64..400, peer, forwarded, user, 0u64..4, prop::sample::select(vec![200, 500])).prop_map(
        |(after_ms, peer, forwarded, user, cost, status)| Sent {
            after_ms,
            peer: peer.map(|peer| peer.parse().unwrap()),
            forwarded,
            user,
            cost,
            status,
        },
    )
}

/// A layer and its clock. With `plans`, its policy has a condition.
fn layer(settings: &Settings, plans: bool) -> (RateLimitLayer, ManualClock) {
    let quota = Quota::per_second(settings.limit).with_algorithm(settings.algorithm);
    let mut policy = Policy::new("limit", quota).unwrap();
    if settings.counted_by.is_some() {
        policy = policy.with_scope(["key"]);
    }
    if plans {
        policy = policy.with_condition("always", Match::present());
    }
    let (gate, clock) = gate([policy]);
    let key = match settings.counted_by {
        None => Attribute::never(),
        Some(CountedBy::Client) => Attribute::client_addr(),
        Some(CountedBy::User) => Attribute::header("x-user"),
        Some(CountedBy::UserOrClient) => Attribute::header("x-user").or(Attribute::client_addr()),
    };
    let mut builder = RateLimitLayer::builder(gate)
        .attribute("always", Attribute::value("yes"))
        .attribute("key", key)
        .cost(|request| request.headers["x-cost"].to_str().unwrap().parse().unwrap())
        .headers(settings.headers);
    if settings.trusts_proxies {
        let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
        builder = builder.client_addr(ClientAddr::new(Source::XForwardedFor, Trust::Networks(proxies)));
    }
    if !settings.extension {
        builder = builder.without_extension();
    }
    if settings.refunds {
        builder = builder.refund(Refund::server_errors());
    }
    (builder.build().unwrap(), clock)
}

/// Status, header fields and body of the response, which has what the service was given.
fn answer(layer: &RateLimitLayer, sent: &Sent) -> (u16, Vec<String>, String) {
    let status = sent.status;
    let service = service_fn(move |request: Request<String>| async move {
        let found = request.extensions().get::<Limited>().map(|limited| {
            let decisions: Vec<_> = limited.iter().map(|one| (one.policy().name(), *one)).collect();
            format!("{decisions:?} {:?}", limited.client())
        });
        Ok::<_, Infallible>(Response::builder().status(status).body(found.unwrap_or_default()).unwrap())
    });
    let mut request = Request::get("/").header("x-cost", sent.cost);
    if let Some(forwarded) = sent.forwarded {
        request = request.header("x-forwarded-for", forwarded);
    }
    if let Some(user) = sent.user {
        request = request.header("x-user", user);
    }
    if let Some(peer) = sent.peer {
        request = request.extension(std::net::SocketAddr::from((peer, 1000)));
    }
    let request = request.body(String::new()).unwrap();
    let run = async { layer.layer(service).ready().await?.call(request).await };
    let Ok::<_, Infallible>(response) =
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run);
    (response.status().as_u16(), fields(&response), response.into_body())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_check_without_a_plan_is_answered_as_one_with_a_plan(
        settings in settings(),
        requests in proptest::collection::vec(sent(), 1..30),
    ) {
        let (short, long) = (layer(&settings, false), layer(&settings, true));
        for sent in requests {
            for (_, clock) in [&short, &long] {
                clock.advance(Duration::from_millis(sent.after_ms));
            }
            prop_assert_eq!(answer(&short.0, &sent), answer(&long.0, &sent), "{:?}", sent);
        }
    }
}

/// A layer of which only the verdict is read, which takes the shortest path.
fn verdicts(gate: &Arc<Gate>) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(Arc::clone(gate)).headers(HeaderOptions::OFF).without_extension()
}

/// The status of a request without attributes, which is decided at once.
fn status(layer: &RateLimitLayer) -> u16 {
    let mut service = layer.layer(service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new())))));
    let mut response = pin!(service.call(Request::new(String::new())));
    match response.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status().as_u16(),
        Poll::Pending => panic!("a gate in memory answers at once"),
    }
}

fn one(name: &str, quota: &str) -> PolicySet {
    PolicySet::new([policy(name, quota)]).unwrap()
}

/// Threads keep the policies that they used last. Once `configure` has returned, none may use them.
#[test]
fn other_policies_decide_on_threads_that_used_the_ones_before() {
    let (gate, _clock) = gate([policy("first", "1/1m")]);
    let layer = verdicts(&gate).build().unwrap();
    let (ask, asked) = mpsc::channel::<()>();
    let (reply, replies) = mpsc::channel();
    let on_thread = layer.clone();
    let thread = thread::spawn(move || asked.iter().for_each(|()| reply.send(status(&on_thread)).unwrap()));
    let answers = || {
        ask.send(()).unwrap();
        (replies.recv().unwrap(), status(&layer))
    };
    assert_eq!(answers(), (200, 429));
    gate.configure(one("second", "3/1m")).unwrap();
    assert_eq!(answers(), (200, 200));
    assert_eq!(answers(), (200, 429));
    gate.configure(one("first", "1/1m")).unwrap();
    assert_eq!(answers(), (429, 429));
    drop(ask);
    thread.join().unwrap();
}

/// Two gates on one thread, one of which is asked while the other finds the value of an attribute.
#[test]
fn gates_on_one_thread_keep_their_own_policies() {
    let (outer, _clock) = gate([policy("outer", "2/1m").with_scope(["of"])]);
    let (inner, _clock) = gate([policy("inner", "3/1m")]);
    let inner = verdicts(&inner).build().unwrap();
    let asked = inner.clone();
    let outer = verdicts(&outer)
        .attribute("of", Attribute::read(move |_| (status(&asked) == 200).then(|| "everyone".into())));
    let outer = outer.build().unwrap();
    let mut statuses = Vec::new();
    for _ in 0..2 {
        statuses.push([status(&outer), status(&outer)]);
        statuses.push([status(&inner), status(&inner)]);
    }
    // The inner limit is used up by the two outer requests and one of its own. After that, the outer
    // policy does not apply, because its attribute is missing.
    assert_eq!(statuses, [[200, 200], [200, 429], [200, 200], [429, 429]]);
}
