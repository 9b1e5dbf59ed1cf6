//! Connection options: which servers to connect to, and how.
//!
//! Passwords and keys appear in no error and in no `Debug` output.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::secret::Secret;

/// The largest number of connections to one node.
const MAX_CONNECTIONS: u8 = 16;
/// The longest deadline and connect timeout. A limiter that takes longer delays requests instead of
/// limiting them.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Which servers to connect to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionOptions {
    pub(crate) servers: Servers,
    pub(crate) tls: bool,
    /// User and password of the servers that hold keys.
    pub(crate) credentials: Credentials,
    /// User and password of the Sentinels.
    pub(crate) sentinel_credentials: Credentials,
    /// The database's number; 0 in a cluster.
    pub(crate) database: u32,
    /// The longest a whole call may take, queueing included.
    pub(crate) deadline: Duration,
    /// The longest one connection attempt may take, TLS and greeting included.
    pub(crate) connect_timeout: Duration,
    /// Connections to each node, 1 to 16.
    pub(crate) connections: u8,
    /// Whether to use RESP2 without trying RESP3 first.
    pub(crate) resp2_only: bool,
    pub(crate) ca_certificates: Option<Pem>,
    pub(crate) client_certificate: Option<ClientCertificate>,
}

/// The servers that a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    /// One server.
    Node(Address),
    /// Some nodes of a cluster, at least one.
    Cluster(Vec<Address>),
    /// Sentinels, at least one, and the master's name.
    Sentinel { sentinels: Vec<Address>, master: String },
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// A host name, or an IP address without brackets, and a port.
    Tcp { host: String, port: u16 },
    /// The path of a socket.
    Unix(PathBuf),
}

/// A user name and a password. Without a password, no `AUTH` is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret<String>>,
}

/// Certificates in PEM form; `Debug` prints their size.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pem(pub(crate) Vec<u8>);

/// The certificate and private key that this client presents to servers.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate and its intermediates, in PEM form.
    pub certificate_pem: Vec<u8>,
    /// Its private key in PEM form.
    pub key_pem: Secret<Vec<u8>>,
}

impl ConnectionOptions {
    /// The default options for these servers.
    pub(super) fn new(servers: Servers, tls: bool) -> Self {
        Self {
            servers,
            tls,
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            database: 0,
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(250),
            connections: 1,
            resp2_only: false,
            ca_certificates: None,
            client_certificate: None,
        }
    }

    /// Validates ranges, and that certificates are given only with TLS.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let waits = [("deadline", self.deadline, "50ms"), ("connect timeout", self.connect_timeout, "250ms")];
        for (name, wait, example) in waits {
            if wait < Duration::from_millis(1) || wait > MAX_TIMEOUT {
                return Err(Error::store(format!(
                    "redis {name} is {wait:?}; give 1ms to 60s, for example {example}"
                )));
            }
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return Err(Error::store(format!(
                "redis connections is {}; give 1 to {MAX_CONNECTIONS} for each node",
                self.connections
            )));
        }
        if !self.tls && (self.ca_certificates.is_some() || self.client_certificate.is_some()) {
            return Err(Error::store(
                "redis has certificates but its url does not encrypt; give a url that begins with `rediss`",
            ));
        }
        Ok(())
    }
}

/// The URL without user names and passwords: `redis://10.0.0.5:6379/2`.
impl fmt::Display for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let scheme = if self.tls { "rediss" } else { "redis" };
        match &self.servers {
            Servers::Node(Address::Unix(path)) => write!(f, "unix://{}", path.display())?,
            Servers::Node(address) => write!(f, "{scheme}://{address}")?,
            Servers::Cluster(seeds) => write!(f, "{scheme}+cluster://{}", list(seeds))?,
            Servers::Sentinel { sentinels, master } => {
                write!(f, "{scheme}+sentinel://{}/{master}", list(sentinels))?;
            }
        }
        match (&self.servers, self.database) {
            (_, 0) => Ok(()),
            (Servers::Node(Address::Unix(_)), database) => write!(f, "?db={database}"),
            (_, database) => write!(f, "/{database}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificate({} bytes, key {:?})", self.certificate_pem.len(), self.key_pem)
    }
}
