//! Settings of the gRPC listener.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where and how the gRPC services are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrpcSettings {
    /// The TCP address, with TLS if `tls` is set.
    pub listen: Option<SocketAddr>,
    /// The path of a Unix socket, without TLS.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket's file. `None`: the service's default.
    pub socket_mode: Option<u32>,
    /// Certificates of the TCP listener.
    pub tls: Option<GrpcTls>,
    /// After this time clients are asked to reconnect, so that new instances get their share.
    /// `None`: never.
    pub max_connection_age: Option<Duration>,
    /// How long open calls on such a connection may still take. `None`: until they are done.
    pub max_connection_age_grace: Option<Duration>,
    /// Whether responses have the configured headers. Otherwise a denial has only `Retry-After`.
    pub response_headers: bool,
    /// Whether the health service reports `NOT_SERVING` while the shared store is unavailable.
    pub health_follows_store: bool,
}

/// Certificate files of the gRPC listener, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcTls {
    /// The certificate chain, the server's own certificate first.
    pub cert_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
    /// Certificate authorities that must have signed client certificates. `None`: clients need no
    /// certificate.
    pub client_ca_file: Option<PathBuf>,
    /// A DNS name that client certificates must be valid for.
    pub client_name: Option<String>,
}

impl GrpcSettings {
    /// These settings, completed by `other`. The addresses are taken together from one of them; the
    /// certificate may come from either, so that it is never lost.
    pub fn over(self, other: &Self) -> Self {
        let is_served = self.is_served();
        Self {
            listen: if is_served { self.listen } else { other.listen },
            socket: if is_served { self.socket } else { other.socket.clone() },
            socket_mode: self.socket_mode.or(other.socket_mode),
            tls: self.tls.or_else(|| other.tls.clone()),
            max_connection_age: self.max_connection_age.or(other.max_connection_age),
            max_connection_age_grace: self.max_connection_age_grace.or(other.max_connection_age_grace),
            response_headers: self.response_headers || other.response_headers,
            health_follows_store: self.health_follows_store || other.health_follows_store,
        }
    }

    /// Whether there is any listener.
    pub fn is_served(&self) -> bool {
        self.listen.is_some() || self.socket.is_some()
    }
}
