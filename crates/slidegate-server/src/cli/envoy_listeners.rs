//! The listeners that envoyproxy/ratelimit has besides HTTP and gRPC: debugging, and metrics if they are asked for.
//!
//! They ask for no token, as there: who opens them says so by the environment.

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

/// Listeners that envoyproxy/ratelimit has besides, where its place is taken.
pub(super) struct EnvoyListeners {
    debug: Option<TcpListener>,
    /// And the path.
    prometheus: Option<(TcpListener, String)>,
}

impl EnvoyListeners {
    pub(super) async fn bind(settings: Option<&Settings>) -> Result<Self, Failure> {
        let bound = async |address: SocketAddr, variable: &str| {
            let failed = |error| {
                Failure(format!("cannot listen to {address}: {error}; choose another port with {variable}"))
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

    /// Where they are, for people.
    pub(super) fn places(&self) -> Vec<(&'static str, String)> {
        let place = |listener: &TcpListener, path: &str| {
            listener.local_addr().map(|address| format!("http://{address}{path}")).unwrap_or_default()
        };
        let debug = self.debug.as_ref().map(|listener| ("debug", place(listener, "/")));
        let prometheus = self.prometheus.as_ref();
        let prometheus = prometheus.map(|(listener, path)| ("metrics", place(listener, path)));
        debug.into_iter().chain(prometheus).collect()
    }

    /// The same for programs.
    pub(super) fn listeners(&self) -> Vec<Listener> {
        let debug = self.debug.as_ref().map(|listener| ("debug", listener));
        let prometheus = self.prometheus.as_ref().map(|(listener, _)| ("metrics", listener));
        let told = |(door, listener): (&'static str, &TcpListener)| {
            Some(Listener { door, address: listener.local_addr().ok()?.to_string(), tls: false })
        };
        debug.into_iter().chain(prometheus).filter_map(told).collect()
    }

    /// Serves what there is until `stopped` says so.
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
