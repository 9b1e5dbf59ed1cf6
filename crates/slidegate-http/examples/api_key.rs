//! Limit each API key in axum, and show in handlers what is left.
//!
//! ```sh
//! cargo run -p slidegate --example api_key --features axum
//! curl -i -H 'x-api-key: k1' http://127.0.0.1:3000/
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use slidegate::{Gate, Policy, PolicySet, Quota};
use slidegate_http::layer::{Attribute, Limited, RateLimitLayer, Refund};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate =
        Gate::new(PolicySet::new([Policy::new("per-key", Quota::per_minute(5))?.with_scope(["key"])])?);
    let limit = RateLimitLayer::builder(gate)
        // Requests without a key are counted by address, so omitting the key does not bypass the
        // limit.
        .attribute("key", Attribute::header("x-api-key").or(Attribute::client_addr()))
        // Server errors are refunded.
        .refund(Refund::server_errors())
        .build()?;
    let app = Router::new().route("/", get(home)).route("/broken", get(broken)).layer(limit);

    let listener = tokio::net::TcpListener::bind(listen_address()).await?;
    println!("listening on {}", listener.local_addr()?);
    // Required for the client's address.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn home(limited: Limited) -> String {
    match limited.strictest() {
        Some(one) => format!("{} more under {}\n", one.decision().remaining(), one.policy().name()),
        None => "no limit\n".into(),
    }
}

async fn broken() -> axum::http::StatusCode {
    axum::http::StatusCode::INTERNAL_SERVER_ERROR
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}
