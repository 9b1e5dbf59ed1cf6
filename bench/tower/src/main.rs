//! The cost that a limit adds to a request: slidegate's layer and `tower_governor` around the same
//! bare service.
//!
//! In each round every contender serves the same requests, one contender after the other, and the
//! time of the bare service is subtracted. A row is the median of its rounds. `bench/README.md`
//! describes the rows.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use cpu_time::ThreadTime;
use slidegate::{Algorithm, Gate, Policy, PolicySet, Quota};
use slidegate_http::headers::{Draft, HeaderOptions};
use slidegate_http::layer::{Attribute, RateLimitLayer, RateLimitLayerBuilder, Refund};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

const USAGE: &str = "usage: slidegate-tower-bench [--rounds N] [--requests N] [--clients N] [--filter TEXT]";

/// The command line.
struct Options {
    /// Odd, so that one of them is the median.
    rounds: usize,
    /// Requests per contender and round.
    requests: usize,
    /// Number of client addresses, used in turn.
    clients: u32,
    /// Only the row of this name, or if there is none, the rows whose name contains this.
    filter: String,
}

fn options() -> Result<Options, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { rounds: 51, requests: 100_000, clients: 1000, filter: String::new() };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("rounds") => options.rounds = arguments.value()?.parse::<usize>()?.max(1),
            Long("requests") => options.requests = arguments.value()?.parse::<usize>()?.max(1),
            Long("clients") => options.clients = arguments.value()?.parse::<u32>()?.clamp(1, 1 << 24),
            Long("filter") => options.filter = arguments.value()?.parse()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

fn main() {
    let options = options().unwrap_or_else(|error| {
        eprintln!("{error}\n{USAGE}");
        std::process::exit(2);
    });
    let mut rows = contenders();
    let is_name = rows.iter().any(|row| row.name == options.filter);
    let is_wanted =
        |name: &str| if is_name { name == options.filter } else { name.contains(&options.filter) };
    rows.retain(|row| row.name == BARE || is_wanted(row.name));
    for row in &mut rows {
        // Create the keys and warm up the memory before measuring.
        (row.serve)(&options);
    }
    for _ in 0..options.rounds {
        for row in &mut rows {
            let cost = (row.serve)(&options);
            row.costs_ns.push(cost);
        }
    }
    let bare = rows[0].costs_ns.clone();
    println!(
        "{} rounds of {} requests by {} clients; CPU ns for one request",
        options.rounds, options.requests, options.clients
    );
    println!("{:<44} {:>8} {:>8} {:>6}", "", "in all", "added", "±");
    for row in &rows {
        let added = row.costs_ns.iter().zip(&bare).map(|(cost, bare)| cost - bare).collect::<Vec<_>>();
        let [_, whole, _] = quartiles(row.costs_ns.clone());
        let [low, added, high] = quartiles(added);
        println!("{:<44} {whole:>8.0} {added:>8.0} {:>6.0}", row.name, (high - low) / 2.0);
    }
}

/// The first quarter, the median and the third quarter.
fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len() - 1;
    [last / 4, last / 2, last * 3 / 4].map(|at| numbers[at])
}

struct Row {
    name: &'static str,
    /// Serves all requests of a round; returns nanoseconds of CPU time per request.
    serve: Box<dyn FnMut(&Options) -> f64>,
    costs_ns: Vec<f64>,
}

const BARE: &str = "bare service";

/// The inner service: responds at once.
#[derive(Clone)]
struct Bare;

impl Service<Request> for Bare {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    // Not inlined, as no application is. Otherwise the compiler decides whether a layer copies the
    // request into it, which takes 5 ns.
    #[inline(never)]
    fn call(&mut self, _: Request) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

fn row<S>(name: &'static str, status: u16, mut service: S) -> Row
where
    S: Service<Request, Response = Response> + 'static,
    S::Error: Debug,
{
    let mut cx = Context::from_waker(Waker::noop());
    let serve = move |options: &Options| {
        let start = ThreadTime::now();
        let mut odd = 0;
        for number in 0..options.requests {
            let client = u32::try_from(number).unwrap_or(u32::MAX) % options.clients;
            let address = Ipv4Addr::from(0x0A00_0000 + client);
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 1000))));
            let Poll::Ready(Ok(())) = service.poll_ready(&mut cx) else { panic!("`{name}` is not ready") };
            let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut cx) else {
                panic!("`{name}` does not answer at once")
            };
            odd += usize::from(black_box(&response).status() != status);
        }
        let spent = start.elapsed();
        // The first round may fill keys that later ones find full.
        assert!(odd <= options.clients as usize, "`{name}` answered {odd} requests otherwise than {status}");
        #[allow(clippy::cast_precision_loss)]
        let each_ns = spent.as_secs_f64() * 1e9 / options.requests as f64;
        each_ns
    };
    Row { name, serve: Box::new(serve), costs_ns: Vec::new() }
}

/// A layer with one policy per address.
fn slidegate(quota: Quota, headers: HeaderOptions) -> RateLimitLayerBuilder {
    let policy = Policy::new("per-ip", quota).expect("the name is one").with_scope(["ip"]);
    let gate = Gate::new(PolicySet::new([policy]).expect("there is one policy"));
    RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).headers(headers)
}

fn built(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("the policy has its attribute")
}

fn contenders() -> Vec<Row> {
    /// A limit that no run reaches, because it is free again after a millisecond at most.
    const MUCH: u32 = 9000;
    let much = || {
        let quota = Quota::new(MUCH.into(), Duration::from_millis(1)).expect("a millisecond is allowed");
        // As tower_governor's.
        quota.with_algorithm(Algorithm::TokenBucket)
    };
    let exact = Quota::per_second(1_000_000);
    let x_ratelimit = HeaderOptions { draft: Draft::Off, retry_after: true, ..HeaderOptions::default() };
    let every = Duration::from_nanos(1);
    let hour = Duration::from_secs(3600);

    let governor =
        Arc::new(GovernorConfigBuilder::default().period(every).burst_size(MUCH).finish().expect("valid"));
    let told = Arc::new(
        GovernorConfigBuilder::default()
            .period(every)
            .burst_size(MUCH)
            .use_headers()
            .finish()
            .expect("valid"),
    );
    let full = Arc::new(GovernorConfigBuilder::default().period(hour).burst_size(1).finish().expect("valid"));
    let full_told = Arc::new(
        GovernorConfigBuilder::default().period(hour).burst_size(1).use_headers().finish().expect("valid"),
    );

    vec![
        row(BARE, 200, Bare),
        row("tower_governor", 200, GovernorLayer::new(governor).layer(Bare)),
        row(
            "slidegate, no fields, no extension",
            200,
            built(slidegate(much(), HeaderOptions::OFF).without_extension()).layer(Bare),
        ),
        row("slidegate, no fields", 200, built(slidegate(much(), HeaderOptions::OFF)).layer(Bare)),
        row(
            "slidegate, no fields, sliding log",
            200,
            built(slidegate(exact, HeaderOptions::OFF)).layer(Bare),
        ),
        row("tower_governor, use_headers", 200, GovernorLayer::new(told).layer(Bare)),
        row(
            "slidegate, X-RateLimit fields, no extension",
            200,
            built(slidegate(much(), x_ratelimit).without_extension()).layer(Bare),
        ),
        row("slidegate, X-RateLimit fields", 200, built(slidegate(much(), x_ratelimit)).layer(Bare)),
        row("slidegate, default fields", 200, built(slidegate(much(), HeaderOptions::default())).layer(Bare)),
        row(
            "slidegate, default fields, refund not due",
            200,
            built(slidegate(much(), HeaderOptions::default()).refund(Refund::server_errors())).layer(Bare),
        ),
        row("tower_governor, denied", 429, GovernorLayer::new(full).layer(Bare)),
        row("tower_governor, denied, use_headers", 429, GovernorLayer::new(full_told).layer(Bare)),
        row(
            "slidegate, denied, no fields, text",
            429,
            built(slidegate(Quota::per_hour(1), HeaderOptions::OFF).denied(|_| {
                let mut response = axum::http::Response::new("Too Many Requests".to_owned());
                *response.status_mut() = axum::http::StatusCode::TOO_MANY_REQUESTS;
                response
            }))
            .layer(Bare),
        ),
        row(
            "slidegate, denied, default fields and problem",
            429,
            built(slidegate(Quota::per_hour(1), HeaderOptions::default())).layer(Bare),
        ),
    ]
}
