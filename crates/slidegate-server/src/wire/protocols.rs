//! Registers the protocols other than HTTP, one line each in [`bind`].

use std::sync::Arc;

use crate::config::Config;
use crate::envoy::Settings;
use crate::listener::{BoundSocket, Certificates, HttpListener, TlsProfile, Workers};
use crate::wire::grpc;
use crate::wire::ports::Port;
use crate::wire::resp;

mod envoy_ports;
mod services;

pub(crate) use services::Services;

/// The HTTP listener's TLS profile.
const HTTP_TLS: TlsProfile = TlsProfile { section: "server", alpn: "http/1.1" };

/// Binds the HTTP listener: its TCP address first, then its Unix socket, if any.
///
/// # Errors
/// One line: an address cannot be bound, or certificates cannot be read.
pub(crate) fn bind_http(config: &Config) -> Result<HttpListener, String> {
    let certificates = config.tls.clone().map(|files| Certificates::load(files, HTTP_TLS)).transpose()?;
    let options = ("server", "address with --listen");
    Ok(HttpListener {
        protocol: "http",
        sockets: BoundSocket::bind(Some(config.listen), config.socket.as_ref(), Workers::count(), options)?,
        certificates: certificates.map(Arc::new),
        idle_timeout: config.idle_timeout,
    })
}

/// Reads the certificates of all listeners, to validate them.
///
/// # Errors
/// One line: certificates cannot be read.
pub(crate) fn check_certificates(config: &Config) -> Result<(), String> {
    let http = config.tls.clone().map(|files| (files, HTTP_TLS));
    let resp = config.resp.as_ref().and_then(|resp| resp.tls.clone()).map(|files| (files, resp::TLS));
    let grpc = config.grpc.tls.clone().map(|files| (files, grpc::TLS));
    let mut all = http.into_iter().chain(resp).chain(grpc);
    all.try_for_each(|(files, profile)| Certificates::load(files, profile).map(drop))
}

/// Binds the ports of all configured protocols.
///
/// # Errors
/// One line: a port cannot be bound, or certificates cannot be read.
pub(crate) fn bind(config: &Config, envoy: Option<&Settings>) -> Result<Vec<Port<Services>>, String> {
    let mut ports = Vec::new();
    ports.extend(resp::bind(config.resp.clone(), |services: Services| (services.app, services.workers))?);
    ports.extend(grpc::bind(config.grpc.clone(), |services: Services| {
        (services.handler, Arc::clone(&services.app.connections))
    })?);
    ports.extend(envoy_ports::bind(envoy, config.idle_timeout)?);
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::MethodRouter;
    use slidegate::MemoryStore;
    use slidegate_testkit::TempDir;
    use tokio::sync::watch;

    use super::*;
    use crate::config;
    use crate::engine::App;
    use crate::wire::grpc::RateLimitHandler;
    use crate::wire::ports::Shutdown;

    /// Whoever reads the metrics after the start sees all protocols, also those whose tasks have not run yet.
    #[tokio::test]
    async fn protocols_are_in_the_metrics_before_they_serve() {
        let config = config::tests::parse("resp: {listen: '127.0.0.1:0'}\ngrpc: {listen: '127.0.0.1:0'}");
        let folder = TempDir::new("protocols");
        let mut settings = Settings::of_folder(folder.path().to_owned());
        let address = "127.0.0.1:0".parse().unwrap();
        (settings.debug, settings.prometheus) = (Some(address), Some((address, "/metrics".to_owned())));
        let ports = bind(&config, Some(&settings)).unwrap();
        let grpc = config.grpc.clone();
        let app = Arc::new(App::over(config, MemoryStore::new(), None).unwrap());
        let handler = Arc::new(RateLimitHandler::new(Arc::clone(&app), &grpc, None));
        let (workers, metrics) = (Workers::start().unwrap(), MethodRouter::new());
        let services = Services { app: Arc::clone(&app), workers, handler, metrics };
        let [(_drain, draining), (_stop, stopped)] = [(); 2].map(|()| watch::channel(false));
        let shutdown = Shutdown { draining, drain_delay: Duration::ZERO, stopped, grace: Duration::ZERO };
        let serving = ports.into_iter().map(|port| port.serve(services.clone(), shutdown.clone()));
        let _never_polled: Vec<_> = serving.collect();
        let known: Vec<_> = app.connections.protocols().iter().map(|one| one.protocol).collect();
        assert_eq!(known, ["resp", "grpc", "debug", "metrics"]);
    }
}
