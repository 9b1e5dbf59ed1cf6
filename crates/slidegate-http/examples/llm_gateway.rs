//! A gateway for a language model: tokens a minute and streams at once, for each user.
//!
//! A request reserves the most that it can take: its prompt, estimated, and `max_tokens`. While the
//! answer streams, the layer settles once a second what has flowed, by the usage in the stream, so
//! that the rest of the limit is free for others. A client that disconnects pays for what flowed.
//!
//! The model is a stub at the end of this file: it streams words as server-sent events, one every
//! 20 ms, each with the usage so far.
//!
//! ```sh
//! cargo run -p slidegate --example llm_gateway --features axum
//! curl -N -H 'x-user: alice' http://127.0.0.1:3000/v1/complete -d '{"prompt": "hello", "max_tokens": 50}'
//! curl -H 'x-user: alice' http://127.0.0.1:3000/usage
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body::Frame;
use serde_json::{Value, json};
use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request};
use slidegate_http::layer::{Attribute, RateLimitLayer, Reservation, Settle};
use tokio::time::{Interval, interval};

/// The longest body of a request that is read.
const MAX_BODY: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Arc::new(Gate::new(PolicySet::new([
        Policy::new("requests", Quota::per_minute(60))?.with_scope(["user"]).with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_minute(2000))?.with_scope(["user"]),
        // The permit of a gateway that crashed is free after 30 s.
        Policy::new("streams", Quota::in_flight(2, Duration::from_secs(30))?)?
            .with_scope(["user"])
            .with_counts(Counts::Requests),
    ])?));
    let limit = RateLimitLayer::reserve(Arc::clone(&gate), |head| {
        head.extensions.get::<Completion>().map_or(0, Completion::most_tokens)
    })
    .attribute("user", Attribute::header("x-user").or(Attribute::value("anonymous")))
    .settle(Settle::recorded())
    .build()?;
    let app = Router::new()
        // The layer that is added last runs first.
        .route("/v1/complete", post(complete).layer(limit).layer(from_fn(read_completion)))
        .route("/usage", get(usage))
        .with_state(gate);

    let listener = tokio::net::TcpListener::bind(listen_address()).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// What a client asks the model.
#[derive(Clone)]
struct Completion {
    prompt: String,
    max_tokens: u64,
}

impl Completion {
    fn parse(body: &[u8]) -> Option<Self> {
        let asked: Value = serde_json::from_slice(body).ok()?;
        Some(Self { prompt: asked["prompt"].as_str()?.to_owned(), max_tokens: asked["max_tokens"].as_u64()? })
    }

    /// Four bytes a token, rounded up.
    fn prompt_tokens(&self) -> u64 {
        (self.prompt.len() as u64).div_ceil(4)
    }

    fn most_tokens(&self) -> u64 {
        self.prompt_tokens().saturating_add(self.max_tokens)
    }
}

/// Reads the body before the limit, which depends on it.
async fn read_completion(request: axum::extract::Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    head.extensions.insert(Completion::parse(&body).ok_or(StatusCode::BAD_REQUEST)?);
    Ok(next.run(axum::extract::Request::from_parts(head, Body::empty())).await)
}

async fn complete(
    reservation: Reservation,
    Extension(completion): Extension<Completion>,
) -> impl IntoResponse {
    let stream = MeteredStream { model: Model::answer(&completion), reservation };
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(stream))
}

/// The model's stream, whose usage is recorded as it passes.
struct MeteredStream {
    model: Model,
    reservation: Reservation,
}

impl HttpBody for MeteredStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(event) = ready!(self.model.poll_event(cx)) else { return Poll::Ready(None) };
        if let Some(total) = total_tokens(&event) {
            self.reservation.record(total);
        }
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

/// The usage in an event.
fn total_tokens(event: &str) -> Option<u64> {
    let data: Value = serde_json::from_str(event.strip_prefix("data: ")?.trim_end()).ok()?;
    data["usage"]["total_tokens"].as_u64()
}

/// What a user has used, and what the open streams hold.
async fn usage(State(gate): State<Arc<Gate>>, headers: HeaderMap) -> String {
    let user = headers.get("x-user").map_or(b"anonymous".as_slice(), |user| user.as_bytes());
    let request = Request::new().with("user", user);
    let policies = gate.peek(&request);
    let of = |name: &str| policies.iter().find(|one| one.policy().name() == name).map(|one| *one.decision());
    let [tokens, streams] = ["tokens", "streams"].map(of);
    json!({
        "tokens": tokens.map(|tokens| tokens.used()),
        "held": tokens.map(|tokens| tokens.held()),
        "streams": streams.map(|streams| streams.held()),
    })
    .to_string()
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}

/// A stub of a model that streams.
struct Model {
    every: Interval,
    prompt_tokens: u64,
    sent: u64,
    max_tokens: u64,
}

impl Model {
    fn answer(completion: &Completion) -> Self {
        let every = interval(Duration::from_millis(20));
        let (prompt_tokens, max_tokens) = (completion.prompt_tokens(), completion.max_tokens);
        Self { every, prompt_tokens, sent: 0, max_tokens }
    }

    /// The next server-sent event; `None` at the end.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        if self.sent == self.max_tokens {
            return Poll::Ready(None);
        }
        ready!(self.every.poll_tick(cx));
        self.sent += 1;
        let usage = json!({"total_tokens": self.prompt_tokens + self.sent});
        let event = json!({"text": format!("word{} ", self.sent), "usage": usage});
        Poll::Ready(Some(format!("data: {event}\n\n")))
    }
}
