//! Settings of the gRPC listener, from the config file or the environment variables of
//! envoyproxy/ratelimit.

use std::net::SocketAddr;
use std::time::Duration;

use crate::listener::{SocketFile, TlsFiles};

/// Where and how the gRPC services are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GrpcSettings {
    /// The TCP address, with TLS if `tls` is set.
    pub(crate) listen: Option<SocketAddr>,
    /// A Unix socket, without TLS.
    pub(crate) socket: Option<SocketFile>,
    /// Certificates of the TCP listener.
    pub(crate) tls: Option<TlsFiles>,
    /// The age at which clients are asked to reconnect, so that new instances get their share.
    /// `None`: never.
    pub(crate) max_connection_age: Option<Duration>,
    /// How long open calls on such a connection may take. `None`: no limit.
    pub(crate) max_connection_age_grace: Option<Duration>,
    /// Whether responses have the configured headers. Otherwise a denial has only `Retry-After`.
    pub(crate) response_headers: bool,
    /// Whether the health service reports `NOT_SERVING` while the shared store is unavailable.
    pub(crate) health_follows_store: bool,
}

impl GrpcSettings {
    /// These settings, completed by `other`. Both addresses come from the same source; the certificate
    /// may come from either, so that it is never lost.
    pub(crate) fn over(self, other: &Self) -> Self {
        let is_served = self.is_served();
        Self {
            listen: if is_served { self.listen } else { other.listen },
            socket: if is_served { self.socket } else { other.socket.clone() },
            tls: self.tls.or_else(|| other.tls.clone()),
            max_connection_age: self.max_connection_age.or(other.max_connection_age),
            max_connection_age_grace: self.max_connection_age_grace.or(other.max_connection_age_grace),
            response_headers: self.response_headers || other.response_headers,
            health_follows_store: self.health_follows_store || other.health_follows_store,
        }
    }

    /// Whether there is a listener.
    pub(crate) fn is_served(&self) -> bool {
        self.listen.is_some() || self.socket.is_some()
    }
}
