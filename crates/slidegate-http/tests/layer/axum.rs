//! Around axum routes, over real sockets: attributes from axum, and extractors for handlers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use ::axum::Router;
use ::axum::body::Body;
use ::axum::extract::ConnectInfo;
use ::axum::routing::{get, post};
use slidegate_http::client_addr::{ClientAddr, Resolved, Source, Trust, TrustedProxies};
use slidegate_http::layer::{Attribute, Limited, NotLimited, RateLimitLayer};
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::{gate, policy};

/// Serves an application on a free port of 127.0.0.1 until the test's runtime ends.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { ::axum::serve(listener, service).await });
    address
}

/// Status and body of a response.
async fn fetch(address: SocketAddr, method: &'static str, path: &str) -> (u16, String) {
    fetch_with(address, method, path, "").await
}

/// The same, with a header line in the request.
async fn fetch_with(address: SocketAddr, method: &str, path: &str, line: &'static str) -> (u16, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{line}\r\n");
    let answer = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = answer.await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The handler's view of the strictest policy.
async fn left(limited: Limited) -> String {
    let left = limited.iter().map(|one| format!("{}:{}", one.policy().name(), one.decision().remaining()));
    left.collect::<Vec<_>>().join(" ")
}

/// Applications usually have per-route limits on one gate.
#[tokio::test]
async fn one_gate_limits_many_routes_each_its_own_way() {
    let (gate, _clock) = gate([
        policy("per-ip", "10/1m").with_scope(["ip"]),
        policy("login", "2/1m").with_scope(["ip"]),
        policy("per-team", "2/1m").with_scope(["team", "route"]),
    ]);
    let limits = RateLimitLayer::builder(gate)
        .attribute("ip", Attribute::client_addr())
        .attribute("team", Attribute::path_param("team"))
        .attribute("route", Attribute::matched_path());
    let layer = |policies: &[&str]| limits.clone().under(policies.iter().copied()).build().unwrap();
    let app = Router::new()
        .route("/login", post(left).layer(layer(&["per-ip", "login"])))
        .route("/teams/{team}/items/{item}", get(left).layer(layer(&["per-team"])))
        .nest("/nested/{team}", Router::new().route("/x", get(left)).layer(layer(&["per-team"])))
        .route("/", get(left).layer(layer(&["per-ip"])));
    let address = serve(app).await;
    let ask = |method, path| fetch(address, method, path);
    assert_eq!(ask("GET", "/").await, (200, "per-ip:9".into()));
    assert_eq!(ask("POST", "/login").await, (200, "per-ip:8 login:1".into()));
    assert_eq!(ask("POST", "/login").await, (200, "per-ip:7 login:0".into()));
    let (status, problem) = ask("POST", "/login").await;
    assert!(status == 429 && problem.contains(r#""violated-policies":["login"]"#), "{problem}");
    assert_eq!(ask("GET", "/").await, (200, "per-ip:6".into()));
    // The item is part of the path but not of the pattern. The team is percent-decoded.
    assert_eq!(ask("GET", "/teams/red/items/1").await, (200, "per-team:1".into()));
    assert_eq!(ask("GET", "/teams/r%65d/items/2").await, (200, "per-team:0".into()));
    let (status, problem) = ask("GET", "/teams/red/items/3").await;
    assert_eq!(status, 429);
    assert!(problem.contains("key `red,/teams/{team}/items/{item}` has used 2 of 2"), "{problem}");
    assert_eq!(ask("GET", "/teams/blue/items/3").await, (200, "per-team:1".into()));
    assert_eq!(ask("GET", "/nested/red/x").await, (200, "per-team:1".into()));
    // A path that is not UTF-8 has no parameters, and axum does not serve it either.
    assert_eq!(ask("GET", "/teams/%ff/items/1").await.0, 200);
}

/// A layer around the whole router sees requests before routing, including unrouted ones.
#[tokio::test]
async fn a_layer_around_the_router_limits_what_no_route_takes() {
    let (gate, _clock) =
        gate([policy("per-ip", "2/1m").with_scope(["ip"]), policy("p", "0/1m").with_scope(["param"])]);
    let layer = RateLimitLayer::builder(gate)
        .attribute("ip", Attribute::client_addr())
        .attribute("param", Attribute::path_param("param").or(Attribute::never()));
    let app = Router::new().route("/", get(left)).layer(layer.build().unwrap());
    let address = serve(Router::new().merge(app).fallback(|| async { "unlimited" })).await;
    assert_eq!(fetch(address, "GET", "/").await, (200, "per-ip:1".into()));
    assert_eq!(fetch(address, "GET", "/none").await, (200, "unlimited".into()));
    assert_eq!(fetch(address, "GET", "/").await.0, 200);
    assert_eq!(fetch(address, "GET", "/").await.0, 429);
}

/// Handlers report what is left and log the client.
#[tokio::test]
async fn handlers_can_ask_for_the_decision_and_the_client() {
    async fn show(limited: Limited, client: Resolved) -> String {
        let one = limited.strictest().unwrap();
        let client = client.addr.unwrap();
        format!(
            "{client} has {} of {} left under {}",
            one.decision().remaining(),
            one.decision().limit(),
            one.policy().name()
        )
    }
    let (gate, _clock) = gate([policy("per-ip", "5/1m").with_scope(["ip"]), policy("everyone", "9/1m")]);
    let loopback = Trust::Networks(TrustedProxies::new(["loopback"]).unwrap());
    let layer = RateLimitLayer::builder(gate)
        .attribute("ip", Attribute::client_addr())
        .client_addr(ClientAddr::new(Source::XForwardedFor, loopback));
    let address = serve(Router::new().route("/", get(show)).layer(layer.build().unwrap())).await;
    let (_, body) = fetch(address, "GET", "/").await;
    assert_eq!(body, "127.0.0.1 has 4 of 5 left under per-ip");
    let (_, body) = fetch_with(address, "GET", "/", "x-forwarded-for: 203.0.113.9\r\n").await;
    assert_eq!(body, "203.0.113.9 has 4 of 5 left under per-ip");
}

/// An application that is set up incorrectly should say so on the first request.
#[tokio::test]
async fn a_handler_without_a_layer_is_told_what_is_missing() {
    async fn optional(limited: Option<Limited>) -> String {
        limited.is_some().to_string()
    }
    async fn client(client: Result<Resolved, NotLimited>) -> String {
        client.map_or_else(|error| error.to_string(), |client| client.addr.unwrap().to_string())
    }
    let (gate, _clock) = gate([policy("everyone", "9/1m")]);
    let limits = RateLimitLayer::builder(gate);
    let app = Router::new()
        .route("/limited", get(optional))
        .route("/limited/client", get(client))
        .layer(limits.clone().build().unwrap())
        .route("/without", get(left).layer(limits.without_extension().build().unwrap()))
        .route("/left", get(left))
        .route("/optional", get(optional))
        .route("/client", get(client));
    let address = serve(app).await;
    let no_layer = "no rate limit decision in the request: the route has no `RateLimitLayer`, or it has \
                    `.without_extension()`; add the layer";
    assert_eq!(fetch(address, "GET", "/left").await, (500, no_layer.into()));
    assert_eq!(fetch(address, "GET", "/without").await, (500, no_layer.into()));
    assert_eq!(fetch(address, "GET", "/client").await, (200, no_layer.into()));
    assert_eq!(fetch(address, "GET", "/optional").await, (200, "false".into()));
    assert_eq!(fetch(address, "GET", "/limited").await, (200, "true".into()));
    assert_eq!(
        fetch(address, "GET", "/limited/client").await.1,
        "no client address in the request: the `RateLimitLayer` of the route has no rule for it; add \
         `.client_addr(...)`"
    );
}

/// What the layers of this thread log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An application that forgets the connection info has one limit for all of its clients together, and
/// notices when the first customer is denied for the requests of another.
#[tokio::test]
async fn a_layer_without_peer_addresses_warns_once_that_all_clients_share_a_limit() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _log = tracing::subscriber::set_default(subscriber);
    let app = || {
        let (gate, _clock) = gate([policy("per-ip", "2/1m").with_scope(["ip"])]);
        let limits = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build().unwrap();
        Router::new().route("/", get(|| async {})).layer(limits)
    };
    let ask = async |app: &Router, request: ::axum::http::Request<Body>| {
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let request = || ::axum::http::Request::get("/").body(Body::empty()).unwrap();

    let known = app();
    for client in ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"] {
        let client: SocketAddr = client.parse().unwrap();
        let mut request = request();
        request.extensions_mut().insert(ConnectInfo(client));
        assert_eq!(ask(&known, request).await, 200);
    }
    assert_eq!(String::from_utf8_lossy(&log.0.lock().unwrap()), "");

    let unknown = app();
    let statuses =
        [ask(&unknown, request()).await, ask(&unknown, request()).await, ask(&unknown, request()).await];
    assert_eq!(statuses, [200, 200, 429]);
    let lines = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(
        lines.ends_with(
            " WARN slidegate_http::layer::config: a request has no client address; all such requests share the key \
             `unknown`, and so one limit; with axum, serve `into_make_service_with_connect_info::<SocketAddr>()`\n"
        ),
        "{lines}"
    );
}
