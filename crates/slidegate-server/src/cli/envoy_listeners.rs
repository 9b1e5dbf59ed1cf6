//! The debug and Prometheus listeners of envoyproxy/ratelimit, enabled by its environment
//! variables.
//!
//! They require no token, as in envoyproxy/ratelimit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::failure::Failure;
use crate::admin::Listener;
use crate::app::App;
use crate::protocol::rls;
use crate::{listener, telemetry};
use slidegate_envoy::Settings;

/// The additional listeners, if enabled.
pub(super) struct EnvoyListeners {
    debug: Option<TcpListener>,
    /// The listener and the path of the metrics.
    prometheus: Option<(TcpListener, String)>,
}

impl EnvoyListeners {
    pub(super) async fn bind(settings: Option<&Settings>) -> Result<Self, Failure> {
        let bound = async |address: SocketAddr, variable: &str| {
            let failed = |error| {
                Failure(format!("cannot listen on {address}: {error}; choose another port with {variable}"))
            };
            TcpListener::bind(address).await.map_err(failed)
        };
        let debug = match settings.and_then(|settings| settings.debug) {
            Some(address) => Some(bound(address, "DEBUG_PORT").await?),
            None => None,
        };
        let prometheus = match settings.and_then(|settings| settings.prometheus.clone()) {
            Some((address, path)) => Some((bound(address, "PROMETHEUS_ADDR").await?, path)),
            None => None,
        };
        Ok(Self { debug, prometheus })
    }

    /// Their names and URLs, for the greeting.
    pub(super) fn urls(&self) -> Vec<(&'static str, String)> {
        let url = |listener: &TcpListener, path: &str| {
            listener.local_addr().map(|address| format!("http://{address}{path}")).unwrap_or_default()
        };
        let debug = self.debug.as_ref().map(|listener| ("debug", url(listener, "/")));
        let prometheus = self.prometheus.as_ref();
        let prometheus = prometheus.map(|(listener, path)| ("metrics", url(listener, path)));
        debug.into_iter().chain(prometheus).collect()
    }

    /// The listeners for `/v1/status`.
    pub(super) fn listeners(&self) -> Vec<Listener> {
        let debug = self.debug.as_ref().map(|listener| ("debug", listener));
        let prometheus = self.prometheus.as_ref().map(|(listener, _)| ("metrics", listener));
        let describe = |(door, listener): (&'static str, &TcpListener)| {
            Some(Listener { door, address: listener.local_addr().ok()?.to_string(), tls: false })
        };
        debug.into_iter().chain(prometheus).filter_map(describe).collect()
    }

    /// Serves until `stopped` is true.
    pub(super) fn serve(
        self,
        app: &Arc<App>,
        limits: &Arc<rls::Limits>,
        stopped: &watch::Receiver<bool>,
        grace: Duration,
    ) -> Vec<JoinHandle<usize>> {
        let debug = self.debug.map(|listener| (listener, rls::debug_routes(Arc::clone(limits))));
        let prometheus = self
            .prometheus
            .map(|(listener, path)| (listener, telemetry::metrics_routes(Arc::clone(app), &path)));
        let serve = |(listener, routes)| {
            let mut stopped = stopped.clone();
            let stop = async move { stopped.wait_for(|stop| *stop).await.map(drop) };
            tokio::spawn(listener::serve(listener, routes, stop, grace))
        };
        debug.into_iter().chain(prometheus).map(serve).collect()
    }
}
