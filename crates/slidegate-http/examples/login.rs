//! Limit logins by address, by user, and by both together. Correct passwords cost nothing.
//!
//! The user name is in the body, which no layer reads, so the handler calls the gate itself. An
//! attacker with one address is stopped by the limit per address, an attacker with many addresses
//! by the limit per user. Neither locks the user out of their own address for long.
//!
//! ```sh
//! cargo run -p slidegate --example login --features axum
//! curl -i -d 'user=alice&password=wrong' http://127.0.0.1:3000/login
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use slidegate::{Decisions, Gate, Policy, PolicySet, Quota, Request};
use slidegate_http::client_addr::{ClientAddr, Source, Trust, TrustedProxies};
use slidegate_http::headers::{HeaderOptions, Problem};

struct Login {
    gate: Gate,
    client: ClientAddr,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new(PolicySet::new([
        Policy::new("login-per-address-and-user", Quota::per_minute(3))?.with_scope(["ip", "user"]),
        Policy::new("login-per-address", Quota::per_minute(10))?.with_scope(["ip"]),
        Policy::new("login-per-user", Quota::per_hour(20))?.with_scope(["user"]),
    ])?);
    // Trust proxies on this machine and in private networks.
    let proxies = Trust::Networks(TrustedProxies::new(["private"])?);
    let login = Login { gate, client: ClientAddr::new(Source::XForwardedFor, proxies) };
    let app = Router::new().route("/login", post(log_in)).with_state(Arc::new(login));

    let listener = tokio::net::TcpListener::bind(listen_address()).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn log_in(
    State(login): State<Arc<Login>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Form(form): Form<HashMap<String, String>>,
) -> Response {
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let client: IpAddr = login.client.resolve(Some(peer.ip()), lines).addr.unwrap_or(peer.ip());
    let user = form.get("user").map_or("", |name| name.trim()).to_lowercase();
    let attempt = Request::new().with("ip", client).with("user", &user);

    // One step: charged under all three policies or, if one denies, under none.
    let decisions = login.gate.check(&attempt);
    if decisions.is_denied() {
        return denial(&decisions);
    }
    if form.get("password").is_some_and(|password| is_right(&user, password)) {
        login.gate.refund(&attempt);
        return "welcome\n".into_response();
    }
    (StatusCode::UNAUTHORIZED, "wrong user or password\n").into_response()
}

/// Status, header fields and body, as a `RateLimitLayer` would send them.
fn denial(decisions: &Decisions<'_>) -> Response {
    let problem = Problem::of(decisions).expect("a denial has a reason");
    // 429, or 500 if the gate does not have the named policy.
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = (status, problem.to_json()).into_response();
    let mut fields = HeaderOptions::default().headers(decisions);
    fields.push(("content-type", "application/problem+json".into()));
    for (name, value) in fields {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn is_right(user: &str, password: &str) -> bool {
    user == "alice" && password == "open sesame"
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}
