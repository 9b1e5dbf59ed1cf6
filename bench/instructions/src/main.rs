//! One case, a number of times, for `bench/instructions/run`, which counts its instructions.
//!
//! `slidegate-instructions CASE TIMES [REDIS_URL | LOG]`

use std::convert::Infallible;
use std::error::Error;
use std::future::ready;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use slidegate::{DecisionSource, Gate, LeaseLength, Limiter, Policy, PolicySet, Quota, SharedGate};
use slidegate_http::headers::HeaderOptions;
use slidegate_http::layer::{Attribute, RateLimitLayer};
use slidegate_redis::{RedisOptions, RedisStore};
use slidegate_replay::{LogOptions, LogReader, Options, PlainWording, Plan, Replay, Wording};
use tower::{Layer, Service};

/// Never reached.
const LIMIT: u64 = 1_000_000_000;
const KEY: &str = "user-0000001";

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let (Some(case), Some(times)) = (arguments.next(), arguments.next()) else {
        return Err("usage: slidegate-instructions CASE TIMES [REDIS_URL | LOG]".into());
    };
    let times: u32 = times.parse()?;
    match (case.as_str(), arguments.next()) {
        ("limiter", _) => limiter(times),
        ("gate-1", _) => gate(1, times),
        ("gate-2", _) => gate(2, times),
        ("gate-4", _) => gate(4, times),
        ("gate-16", _) => gate(16, times),
        ("layer-plain", _) => layer(HeaderOptions::OFF, times),
        ("layer-fields", _) => layer(HeaderOptions::default(), times),
        ("redis", Some(url)) => redis(&url, times),
        ("leased", Some(url)) => leased(&url, times),
        ("replay", Some(log)) => replay(log.into(), times),
        _ => Err(format!("invalid case `{case}`: is none of this program").into()),
    }
}

fn limiter(times: u32) -> Outcome {
    let limiter = Limiter::new(Quota::per_hour(LIMIT));
    for _ in 0..times {
        assert!(black_box(limiter.check(black_box(KEY))).is_allowed());
    }
    Ok(())
}

fn policies(number: u32) -> Result<PolicySet, slidegate::Error> {
    let policy = |at| Ok(Policy::new(format!("p{at}"), Quota::per_hour(LIMIT))?.with_scope(["user"]));
    PolicySet::new((0..number).map(policy).collect::<Result<Vec<_>, slidegate::Error>>()?)
}

fn gate(number: u32, times: u32) -> Outcome {
    let gate = Gate::new(policies(number)?);
    let request = slidegate::Request::new().with("user", KEY).with("path", "/service/10009");
    for _ in 0..times {
        let decisions = gate.check(black_box(&request));
        assert!(black_box(&decisions).is_allowed());
    }
    Ok(())
}

fn layer(headers: HeaderOptions, times: u32) -> Outcome {
    let policy = Policy::new("per-ip", Quota::per_hour(LIMIT))?.with_scope(["ip"]);
    let builder = RateLimitLayer::builder(Gate::new(PolicySet::new([policy])?));
    let builder = builder.attribute("ip", Attribute::client_addr()).headers(headers);
    let respond = |_: axum::extract::Request| ready(Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = builder.build()?.layer(tower::service_fn(respond));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..times {
        let mut request = axum::extract::Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((Ipv4Addr::LOCALHOST, 1000))));
        let Poll::Ready(Ok(())) = service.poll_ready(&mut cx) else { return Err("not ready".into()) };
        let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else {
            return Err("no answer at once".into());
        };
        assert_eq!(black_box(&response).status(), 200);
    }
    Ok(())
}

fn redis(url: &str, times: u32) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let gate = SharedGate::new(policies(1)?, RedisStore::new(RedisOptions::new(url)?)?)?;
        let request = slidegate::Request::new().with("user", KEY);
        for _ in 0..times {
            assert!(gate.check(&request).await.is_allowed());
        }
        Ok(())
    })
}

/// Decisions from a lease, which the first requests bring. They ask for so much that it lasts for the others.
fn leased(url: &str, times: u32) -> Outcome {
    const SLICE: u64 = 100_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let policies =
            PolicySet::new(policies(1)?.iter().map(|one| one.clone().with_lease(LeaseLength::OfWindow)))?;
        let gate = SharedGate::new(policies, RedisStore::new(RedisOptions::new(url)?)?)?;
        let [large, small] = [SLICE, 1].map(|cost| {
            slidegate::Request::new().with("user", KEY).with("path", "/service/10009").with_cost(cost)
        });
        let is_leased = async |request| {
            let decisions = gate.check(black_box(request)).await;
            assert!(black_box(&decisions).is_allowed());
            decisions.iter().all(|one| one.decision().source() == DecisionSource::Leased)
        };
        while !is_leased(&large).await {}
        for _ in 0..times {
            assert!(is_leased(&small).await, "the lease lasts a second");
        }
        Ok(())
    })
}

/// A log of this many lines.
fn replay(log: PathBuf, lines: u32) -> Outcome {
    let mut reader = LogReader::open_all(&[log], LogOptions { threads: 1, ..LogOptions::default() })?;
    let policies = [&["ip"][..], &["ip", "method"], &["user_agent"]].map(|scope| {
        let policy = Policy::new(scope.join("-"), Quota::per_minute(100))?;
        Ok(policy.with_scope(scope.iter().copied()))
    });
    let policies = PolicySet::new(policies.into_iter().collect::<Result<Vec<_>, slidegate::Error>>()?)?;
    let wording: Arc<dyn Wording> = Arc::new(PlainWording);
    let mut replay = Replay::new(Plan::of(policies, Options { threads: 0, ..Options::default() }), &wording)?;
    while let Some(entry) = reader.next_entry()? {
        replay.push(&entry)?;
    }
    replay.finish(reader.stats())?;
    assert_eq!(reader.stats().lines, u64::from(lines));
    Ok(())
}
