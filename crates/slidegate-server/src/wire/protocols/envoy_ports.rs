//! The debug and metrics ports of envoyproxy/ratelimit.
//!
//! They require no token, as in envoyproxy/ratelimit, because the environment must enable them
//! explicitly.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;

use super::services::Services;
use crate::envoy::Settings;
use crate::listener::{BoundSocket, HttpListener, SharedRoutes};
use crate::wire::grpc;
use crate::wire::ports::{Port, listed};

/// Binds the configured ports.
///
/// # Errors
/// One line: an address cannot be bound.
pub(super) fn bind(
    settings: Option<&Settings>,
    idle_timeout: Duration,
) -> Result<Vec<Port<Services>>, String> {
    let mut bound = Vec::new();
    let listener =
        |protocol, socket| HttpListener { protocol, sockets: vec![socket], certificates: None, idle_timeout };
    if let Some(address) = settings.and_then(|settings| settings.debug) {
        let socket = BoundSocket::tcp(address, 1, "port with DEBUG_PORT")?;
        let routes = |services: Services| grpc::debug_router(services.handler);
        bound.push(port("/", listener("debug", socket), routes));
    }
    if let Some((address, path)) = settings.and_then(|settings| settings.prometheus.clone()) {
        let socket = BoundSocket::tcp(address, 1, "port with PROMETHEUS_ADDR")?;
        let metrics_path = path.clone();
        let routes = move |services: Services| Router::new().route(&metrics_path, services.metrics);
        bound.push(port(&path, listener("metrics", socket), routes));
    }
    Ok(bound)
}

fn port(
    path: &str,
    listener: HttpListener,
    routes: impl FnOnce(Services) -> Router + Send + 'static,
) -> Port<Services> {
    let protocol = listener.protocol;
    let (mut url, listeners) = listed(protocol, &listener.sockets, "http");
    url.push_str(path);
    Port::new((protocol, url), listeners, move |services: Services, shutdown| {
        let (budget, workers) = (Arc::clone(&services.app.connections), services.workers.clone());
        let routes = SharedRoutes::new(routes(services));
        let grace = shutdown.grace;
        listener.serve(routes, &workers, budget, shutdown.begun(), grace)
    })
}
