//! Reservations behind the layer: they live as long as the response body, and end with it however it
//! ends.
//!
//! Gate and runtime share one paused clock, so bodies of ten seconds take no time.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request as Asked};
use slidegate_http::layer::{RateLimitLayer, RateLimitLayerBuilder, Refund, Reservation, Reserves, Settle};
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, ServiceExt, service_fn};

use crate::{on_runtime_clock, request};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Requests a minute, tokens, and one permit with a lease of 3 s.
fn policies() -> PolicySet {
    PolicySet::new([
        Policy::new("requests", Quota::per_minute(10)).unwrap().with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_minute(10_000)).unwrap(),
        Policy::new("streams", Quota::in_flight(1, secs(3)).unwrap()).unwrap().with_counts(Counts::Requests),
    ])
    .unwrap()
}

fn gate() -> Arc<Gate> {
    on_runtime_clock(policies())
}

/// Reserves 4096 tokens.
fn reserves(gate: &Arc<Gate>) -> RateLimitLayerBuilder<Reserves> {
    RateLimitLayer::reserve(Arc::clone(gate), |_| 4096)
}

/// Requests and tokens that were charged, tokens that are held, and permits that are taken.
fn state(gate: &Gate) -> [u64; 4] {
    let request = Asked::new();
    let peeked = gate.peek(&request);
    let all: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
    [all[0].0, all[1].0, all[1].1, all[2].1]
}

/// A body of 100 bytes a second, which may fail at its end, or have trailers.
struct SlowBody {
    seconds: u32,
    sleep: Pin<Box<Sleep>>,
    end: Option<Result<HeaderMap, &'static str>>,
}

impl SlowBody {
    fn of(seconds: u32) -> Self {
        Self { seconds, sleep: Box::pin(sleep(secs(1))), end: None }
    }
}

impl Body for SlowBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        if self.seconds == 0 {
            return Poll::Ready(self.end.take().map(|end| end.map(Frame::trailers)));
        }
        ready!(self.sleep.as_mut().poll(cx));
        self.seconds -= 1;
        self.sleep = Box::pin(sleep(secs(1)));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 100])))))
    }
}

/// Reads a body until so many frames came, or to its end.
async fn read<B: Body<Data = Bytes> + Unpin>(body: &mut B, frames: usize) -> usize {
    for read in 0..frames {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return read,
        }
    }
    frames
}

/// Clients leave in the middle of an answer: what flowed is charged, and the permit is free at once.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_back_its_permit_and_pays_for_what_flowed() {
    let gate = gate();
    let stream =
        service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(SlowBody::of(10))) });
    let layer = reserves(&gate).settle(Settle::bytes()).build().unwrap();
    let Ok(response) = layer.layer(stream).oneshot(request(&[])).await;
    assert_eq!(state(&gate), [1, 0, 4096, 1]);
    // A second one at the same time is denied, and costs no rate.
    let Ok(denied) = layer.layer(stream).oneshot(request(&[])).await;
    assert_eq!((denied.status().as_u16(), state(&gate)), (429, [1, 0, 4096, 1]));
    let mut body = response.into_body();
    assert_eq!(read(&mut body, 3).await, 3);
    // Settled in part meanwhile.
    let [_, used, held, permits] = state(&gate);
    assert!((100..=300).contains(&used) && used + held == 4096 && permits == 1, "{used} {held} {permits}");
    drop(body);
    assert_eq!(state(&gate), [1, 300, 0, 0]);
}

/// The handler has returned long before its answer has been sent: the permit is for both, and longer
/// than its lease.
#[tokio::test(start_paused = true)]
async fn while_the_body_flows_the_permit_is_kept_and_it_ends_with_the_last_frame() {
    for settle in [Settle::bytes(), Settle::recorded(), Settle::header("x-usage-tokens")] {
        let gate = gate();
        let start = Instant::now();
        let stream = service_fn(|_: Request<String>| async {
            // Longer than the lease as well.
            sleep(secs(5)).await;
            let response = Response::builder().header("x-usage-tokens", "777");
            Ok::<_, Infallible>(response.body(SlowBody::of(10)).unwrap())
        });
        let layer = reserves(&gate).settle(settle.clone()).build().unwrap();
        let Ok(response) = layer.layer(stream).oneshot(request(&[])).await;
        let mut body = response.into_body();
        for second in 1..=10 {
            let before = state(&gate);
            assert_eq!((before[0], before[3]), (1, 1), "{settle:?}, second {second}");
            assert_eq!(read(&mut body, 1).await, 1);
        }
        assert_eq!(read(&mut body, 1).await, 0);
        let charged = match format!("{settle:?}").as_str() {
            "bytes" => 1000,
            "recorded" => 4096,
            _ => 777,
        };
        assert_eq!(state(&gate), [1, charged, 0, 0], "{settle:?}");
        assert_eq!(start.elapsed(), secs(15));
        drop(body);
        assert_eq!(state(&gate), [1, charged, 0, 0], "{settle:?}: settled once");
    }
}

/// A failure must neither lock a user out nor be free of what it used.
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_or_is_dropped_gives_back_its_permit() {
    // With bytes nothing flowed; otherwise the cost is not known, and what was held is charged.
    for (settle, charged) in [(Settle::bytes(), 0), (Settle::header("x-usage-tokens"), 4096)] {
        for failure in ["panic", "error", "drop"] {
            let gate = gate();
            let fails = service_fn(move |_: Request<String>| async move {
                assert_ne!(failure, "panic", "a handler's own bug");
                if failure == "drop" {
                    std::future::pending::<()>().await;
                }
                Err::<Response<SlowBody>, _>("down")
            });
            let layer = reserves(&gate).settle(settle.clone()).build().unwrap();
            let task = tokio::spawn(layer.layer(fails).oneshot(request(&[])));
            if failure == "drop" {
                sleep(secs(7)).await;
                assert_eq!(state(&gate)[3], 1, "it still runs");
                task.abort();
            }
            assert!(task.await.is_ok_and(|answer| answer.is_err()) || failure != "error");
            assert_eq!(state(&gate), [1, charged, 0, 0], "{settle:?} {failure}");
        }
    }
}

/// A handler knows what its stream costs while it flows.
#[tokio::test(start_paused = true)]
async fn a_handler_settles_so_far_and_its_stream_records_what_flows() {
    let gate = gate();
    let stream = service_fn(|request: Request<String>| async move {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        assert!(reservation.settle_so_far(50).await.is_ok());
        assert!(reservation.extend_to(6000).await.is_ok());
        let mut response = Response::new(SlowBody::of(4));
        response.extensions_mut().insert(reservation);
        Ok::<_, Infallible>(response)
    });
    let layer = reserves(&gate).build().unwrap();
    let Ok(mut response) = layer.layer(stream).oneshot(request(&[])).await;
    assert_eq!(state(&gate), [1, 50, 5950, 1]);
    let reservation = response.extensions_mut().remove::<Reservation>().unwrap();
    let mut body = response.into_body();
    reservation.record(120);
    assert_eq!(read(&mut body, 2).await, 2);
    assert_eq!(state(&gate), [1, 120, 5880, 1]);
    reservation.record(130);
    drop(body);
    assert_eq!(state(&gate), [1, 130, 0, 0]);
    // Over: nothing more is charged.
    reservation.record(5000);
    let over = reservation.settle_so_far(5000).await.unwrap_err();
    assert_eq!(over.to_string(), "the reservation is over: the response body that it was for has ended");
    assert!(reservation.ticket().is_none());
    assert_eq!(state(&gate), [1, 130, 0, 0]);
}

/// gRPC and others say it after the body; other middleware says it beside the response.
#[tokio::test(start_paused = true)]
async fn the_true_cost_is_found_in_trailers_and_in_extensions() {
    #[derive(Clone)]
    struct Usage(u64);
    let answer = |_: Request<String>| async {
        let mut body = SlowBody::of(2);
        body.end =
            Some(Ok(HeaderMap::from_iter([("x-usage-tokens".parse().unwrap(), "55".parse().unwrap())])));
        let mut response = Response::new(body);
        response.extensions_mut().insert(Usage(66));
        Ok::<_, Infallible>(response)
    };
    let by_extension = Settle::extension(|usage: &Usage| Some(usage.0));
    for (settle, charged) in [(Settle::header("x-usage-tokens"), 55), (by_extension, 66)] {
        let gate = gate();
        let layer = reserves(&gate).settle(settle).build().unwrap();
        let Ok(response) = layer.layer(service_fn(answer)).oneshot(request(&[])).await;
        assert_eq!(read(&mut response.into_body(), 9).await, 3);
        assert_eq!(state(&gate), [1, charged, 0, 0]);
    }
}

/// A body that breaks off has cost what it has cost.
#[tokio::test(start_paused = true)]
async fn a_body_that_fails_settles_what_flowed() {
    let gate = gate();
    let stream = service_fn(|_: Request<String>| async {
        let mut body = SlowBody::of(2);
        body.end = Some(Err("broken"));
        Ok::<_, Infallible>(Response::new(body))
    });
    let layer = reserves(&gate).settle(Settle::bytes()).build().unwrap();
    let Ok(response) = layer.layer(stream).oneshot(request(&[])).await;
    let mut body = response.into_body();
    assert_eq!(read(&mut body, 9).await, 2);
    assert_eq!(state(&gate), [1, 200, 0, 0]);
}

/// Failures of ours are not the client's, not even the request that was counted.
#[tokio::test(start_paused = true)]
async fn responses_that_are_refunded_cancel_the_reservation() {
    let ours = || Refund::server_errors().or_unanswered();
    for (status, left) in [(200, [1, 100, 0, 0]), (503, [0, 0, 0, 0])] {
        let gate = gate();
        let answer = service_fn(move |_: Request<String>| async move {
            Ok::<_, Infallible>(Response::builder().status(status).body(SlowBody::of(1)).unwrap())
        });
        let layer = reserves(&gate).settle(Settle::bytes()).refund(ours()).build().unwrap();
        let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
        assert_eq!(state(&gate)[3], 1, "the body is not sent yet");
        read(&mut response.into_body(), 9).await;
        assert_eq!(state(&gate), left, "{status}");
    }
    let gate = gate();
    let never =
        service_fn(|_: Request<String>| std::future::pending::<Result<Response<SlowBody>, Infallible>>());
    let layer = reserves(&gate).refund(ours()).build().unwrap();
    let task = tokio::spawn(layer.layer(never).oneshot(request(&[])));
    sleep(secs(1)).await;
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(state(&gate), [0, 0, 0, 0]);
}

/// Some requests bypass the limit, and some layers are under single policies.
#[tokio::test(start_paused = true)]
async fn requests_are_skipped_and_reserved_under_named_policies() {
    let gate = gate();
    let answer = service_fn(|request: Request<String>| async move {
        let is_reserved = request.extensions().get::<Reservation>().is_some();
        let response = Response::builder().header("reserved", is_reserved.to_string());
        Ok::<_, Infallible>(response.body(SlowBody::of(1)).unwrap())
    });
    let layer = reserves(&gate).skip(|_| true).build().unwrap();
    let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
    assert_eq!((response.headers()["reserved"].to_str().unwrap(), state(&gate)), ("false", [0, 0, 0, 0]));
    let layer = reserves(&gate).under(["tokens", "streams"]).build().unwrap();
    let Ok(response) = layer.layer(answer).oneshot(request(&[])).await;
    assert_eq!((response.headers()["reserved"].to_str().unwrap(), state(&gate)), ("true", [0, 0, 4096, 1]));
    assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    drop(response);
    assert_eq!(state(&gate), [0, 4096, 0, 0]);
    let error = reserves(&gate).under(["tokns"]).build().unwrap_err();
    assert!(error.is_unknown_policy());
}

/// The same over sockets: a server finds out that a client is gone when it writes.
#[cfg(feature = "axum")]
#[tokio::test]
async fn a_client_that_closes_its_connection_gives_back_its_permit() {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Endless, and fast.
    struct Endless(tokio::time::Interval);
    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            ready!(self.0.poll_tick(cx));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"0123456789")))))
        }
    }

    let gate = Arc::new(Gate::new(policies()));
    let limit = reserves(&gate).settle(Settle::bytes()).build().unwrap();
    let stream = || async {
        let every = tokio::time::interval(Duration::from_millis(5));
        axum::body::Body::new(Endless(every))
    };
    let app: Router = Router::new().route("/", get(stream)).layer(limit);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    while received.len() < 400 {
        assert!(client.read_buf(&mut received).await.unwrap() > 0);
    }
    assert_eq!(state(&gate)[3], 1);
    drop(client);
    for _ in 0..2000 {
        if state(&gate)[3] == 0 {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let [requests, used, held, permits] = state(&gate);
    assert_eq!((requests, held, permits), (1, 0, 0));
    assert!(used >= 20 && used % 10 == 0, "{used}");
    server.abort();
}
