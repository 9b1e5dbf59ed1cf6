//! Limits that all instances of a service share through Redis.
//!
//! Start it twice: both instances count together. While Redis is down, each enforces half of the
//! limit in its own memory.
//!
//! ```sh
//! cargo run -p slidegate --example shared --features axum,redis
//! LISTEN=127.0.0.1:3001 cargo run -p slidegate --example shared --features axum,redis
//! curl -i http://127.0.0.1:3000/; curl -i http://127.0.0.1:3001/
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use slidegate::store::FallbackStore;
use slidegate::{Gate, Policy, PolicySet, Quota};
use slidegate_http::layer::{Attribute, Limited, RateLimitLayer};
use slidegate_redis::{RedisOptions, RedisStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let policies = PolicySet::new([Policy::new("per-ip", Quota::per_minute(10))?.with_scope(["ip"])])?;
    let redis =
        RedisOptions::new(&std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into()))?;
    let store = FallbackStore::new(RedisStore::new(redis)?).with_instances(2);
    let gate = Gate::with_store(policies, store)?;
    let limit = RateLimitLayer::builder(gate).attribute("ip", Attribute::client_addr()).build()?;
    let app = Router::new().route("/", get(home)).layer(limit);

    let listener = tokio::net::TcpListener::bind(listen_address()).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn home(limited: Limited) -> String {
    let Some(decision) = limited.strictest() else { return "no limit\n".into() };
    format!("{} more, says {}\n", decision.decision().remaining(), decision.decision().source().name())
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}
