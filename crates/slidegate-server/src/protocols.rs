//! Registration of the protocols beside HTTP, one line each in [`bind`].

use std::sync::Arc;

use crate::config::Config;
use crate::grpc;
use crate::ports::Port;
use crate::resp;
use slidegate_envoy::Settings;

mod envoy_ports;
mod services;

pub(crate) use services::Services;

/// Binds the ports of all configured protocols.
///
/// # Errors
/// One line: a port cannot be bound, or certificates cannot be read.
pub(crate) fn bind(config: &Config, envoy: Option<&Settings>) -> Result<Vec<Port<Services>>, String> {
    let mut ports = Vec::new();
    ports.extend(resp::bind(config.resp.clone(), |services: Services| services.app)?);
    ports.extend(grpc::bind(config.grpc.clone(), |services: Services| {
        (services.handler, Arc::clone(&services.app.connections))
    })?);
    ports.extend(envoy_ports::bind(envoy, config.idle_timeout)?);
    Ok(ports)
}
