//! The debug and metrics ports of envoyproxy/ratelimit.
//!
//! As there, they require no token, because the environment must enable them explicitly.

use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;

use super::services::Services;
use crate::ports::{self, Listener, Port};
use crate::{listener, telemetry};
use slidegate_envoy::Settings;

/// Binds the configured ports.
///
/// # Errors
/// One line: an address cannot be bound.
pub(super) async fn bind(settings: Option<&Settings>) -> Result<Vec<Port<Services>>, String> {
    let mut bound = Vec::new();
    if let Some(address) = settings.and_then(|settings| settings.debug) {
        let (listener, _) = ports::bind(address, "port with DEBUG_PORT").await?;
        let routes = |services: Services| slidegate_envoy::debug_router(services.handler);
        bound.push(port("debug", "/", listener, routes));
    }
    if let Some((address, path)) = settings.and_then(|settings| settings.prometheus.clone()) {
        let (listener, _) = ports::bind(address, "port with PROMETHEUS_ADDR").await?;
        let metrics_path = path.clone();
        let routes =
            move |services: Services| telemetry::metrics_routes(Arc::clone(&services.app), &metrics_path);
        bound.push(port("metrics", &path, listener, routes));
    }
    Ok(bound)
}

fn port(
    protocol: &'static str,
    path: &str,
    listener: TcpListener,
    routes: impl FnOnce(Services) -> Router + Send + 'static,
) -> Port<Services> {
    let address = listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string());
    let url = format!("http://{address}{path}");
    let listeners = vec![Listener { protocol, address, tls: false }];
    Port::new((protocol, url), listeners, |services, shutdown| {
        let routes = routes(services);
        let grace = shutdown.grace;
        async move { listener::serve(listener, routes, shutdown.begun(), grace).await }
    })
}
