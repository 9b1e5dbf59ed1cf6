//! The tower layer: around plain services, around axum routes, and over a shared store.
// A test that cannot continue panics.
#![allow(clippy::unwrap_used)]

mod axum;
mod examples;
mod plain;
mod refunds;
mod reserves;
mod shared;
mod waits;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::{Request, Response};
use slidegate::{
    Gate, MemoryStore, Policy, PolicySet,
    clock::{Clock, ManualClock, Timestamp},
};
use slidegate_http::layer::{Limited, RateLimitLayer};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A gate and its clock, which starts at 1,000,000,000 seconds.
fn gate(policies: impl IntoIterator<Item = Policy>) -> (Arc<Gate>, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (Arc::new(Gate::with_memory(PolicySet::new(policies).unwrap(), store)), clock)
}

/// Tokio's clock, as a gate reads it.
#[derive(Debug)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000_000_000) + self.0.elapsed()
    }
}

/// A gate whose clock is that of the runtime, which tests pause.
fn on_runtime_clock(policies: PolicySet) -> Arc<Gate> {
    let store = MemoryStore::builder().clock(RuntimeClock(Instant::now())).build();
    Arc::new(Gate::with_memory(policies, store))
}

fn policy(name: &str, quota: &str) -> Policy {
    Policy::new(name, quota.parse().unwrap()).unwrap()
}

/// A request from 203.0.113.7 for `/items?page=2`.
fn request(headers: &[(&str, &str)]) -> Request<String> {
    let mut request = Request::get("/items?page=2");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer: SocketAddr = "203.0.113.7:50000".parse().unwrap();
    request.extension(peer).body(String::new()).unwrap()
}

/// Sends a request through a layer to a service that responds with the decisions it received.
async fn ask(layer: &RateLimitLayer, request: Request<String>) -> Response<String> {
    let found = service_fn(|request: Request<String>| async move {
        let limited = request.extensions().get::<Limited>().expect("the layer says what was decided");
        let decisions =
            limited.iter().map(|one| format!("{}:{}", one.policy().name(), one.decision().remaining()));
        Ok::<_, Infallible>(Response::new(decisions.collect::<Vec<_>>().join(" ")))
    });
    let Ok(response) = layer.layer(found).ready().await.unwrap().call(request).await;
    response
}

/// `name: value` of each header field, sorted by name.
fn fields<B>(response: &Response<B>) -> Vec<String> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().unwrap())
    };
    let mut lines: Vec<_> = response.headers().iter().map(line).collect();
    lines.sort();
    lines
}

/// Polls once and returns whether the future is still pending.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}
