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
