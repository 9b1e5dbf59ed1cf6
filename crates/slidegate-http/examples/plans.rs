//! Several plans with their own limits, and one customer with individual limits.
//!
//! Another middleware identifies the customer and puts the account into the request's extensions.
//! The limit behind it counts by that account.
//!
//! ```sh
//! cargo run -p slidegate --example plans --features axum
//! curl -i -H 'authorization: Bearer free-1' http://127.0.0.1:3000/reports
//! ```

use std::error::Error;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use slidegate::{Gate, Match, Policy, PolicySet, Quota};
use slidegate_http::layer::{Attribute, RateLimitLayer};

#[derive(Clone)]
struct Account {
    name: &'static str,
    plan: &'static str,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new(PolicySet::new([
        Policy::new("free", Quota::per_minute(3))?
            .with_condition("plan", Match::equals("free"))
            .with_scope(["account"]),
        Policy::new("pro", Quota::per_minute(10))?
            .with_condition("plan", Match::equals("pro"))
            .with_scope(["account"])
            .with_override(["initech"], Quota::per_minute(12)),
        // On top of every plan: reports are expensive.
        Policy::new("reports", Quota::per_hour(100))?.with_condition("path", Match::equals("/reports")),
    ])?);
    let limit = RateLimitLayer::builder(gate)
        .attribute("account", Attribute::extension(|account: &Account| Some(account.name.into())))
        .attribute("plan", Attribute::extension(|account: &Account| Some(account.plan.into())))
        .attribute("path", Attribute::path())
        .cost(|request| if request.uri.path() == "/reports" { 2 } else { 1 })
        .build()?;
    let app = Router::new()
        .route("/", get(|| async { "home\n" }))
        .route("/reports", get(|| async { "report\n" }))
        // The layer that is added last runs first.
        .layer(limit)
        .layer(from_fn(authenticate));

    let listener = tokio::net::TcpListener::bind(listen_address()).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token =
        request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let account = match token {
        Some("free-1") => Account { name: "hooli", plan: "free" },
        Some("pro-1") => Account { name: "globex", plan: "pro" },
        Some("pro-2") => Account { name: "initech", plan: "pro" },
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}
