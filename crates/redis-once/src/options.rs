//! Connection options: the servers and how to connect to them.
//!
//! Passwords and keys appear in no error and no `Debug` output.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum connections to one node.
const MAX_CONNECTIONS: u8 = 16;
/// Maximum deadline and connect timeout. A slower limiter delays requests instead of limiting them.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The servers and how to connect to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The servers.
    pub servers: Servers,
    /// Whether to use TLS.
    pub tls: bool,
    /// User and password for the servers that hold keys.
    pub credentials: Credentials,
    /// User and password for the Sentinels.
    pub sentinel_credentials: Credentials,
    /// The database number; 0 in a cluster.
    pub database: u32,
    /// Maximum duration of a whole call, including queueing.
    pub deadline: Duration,
    /// Maximum duration of one connection attempt, including TLS and greeting. `None`: 250 ms, or `deadline` if
    /// that is longer. A node that is asked for the topology has as long to answer:
    /// at least 200 ms, at most one second.
    pub connect_timeout: Option<Duration>,
    /// Connections to each node, 1 to 16.
    pub connections: u8,
    /// Whether to use RESP2 without trying RESP3 first.
    pub resp2_only: bool,
    /// Certificate authorities to trust instead of the system's.
    pub ca_certificates: Option<Pem>,
    /// The client certificate for servers that require one.
    pub client_certificate: Option<ClientCertificate>,
    /// The calling program.
    pub application: Application,
}

/// The calling program, with its scripts' error code and module commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Application {
    /// Its name, as `CLIENT LIST` shows it.
    pub name: &'static str,
    /// Its version, as `CLIENT LIST` shows it.
    pub version: &'static str,
    /// The code of errors that its scripts raise for unreadable values; they have the kind
    /// [`FailureKind::ForeignValue`](crate::FailureKind::ForeignValue).
    pub script_error: &'static str,
    /// At most eight commands of its module, which servers may have; see [`Native`](crate::Native). Each
    /// server is asked every 30 s, in the background, which ones it has.
    pub native: &'static [&'static str],
}

impl Default for Application {
    fn default() -> Self {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        Self { name, version, script_error: "", native: &[] }
    }
}

/// The servers named by a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Node(Address),
    /// At least one node of a cluster.
    Cluster(Vec<Address>),
    /// At least one Sentinel, and the master's name.
    Sentinel {
        /// Addresses of Sentinels.
        sentinels: Vec<Address>,
        /// The name of the watched master.
        master: String,
    },
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name, or an IP address without brackets, and a port.
    Tcp {
        /// The host name or IP address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A user name and a password. Without a password, no `AUTH` is sent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The user, unless it is the default user.
    pub user: Option<String>,
    /// The password. It appears in no error and no `Debug` output.
    pub password: Option<String>,
}

/// Certificates in PEM form; `Debug` prints their size.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem(pub Vec<u8>);

/// The certificate and private key that this client presents to servers.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    pub(crate) certificate_pem: Vec<u8>,
    pub(crate) key_pem: Vec<u8>,
}

/// Why options are invalid: one line with what is invalid, what was given and what is expected. Contains no
/// password and no part of an unreadable URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOptions(String);

impl InvalidOptions {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOptions {}

impl Options {
    /// The default options for these servers.
    pub(crate) fn new(servers: Servers, tls: bool) -> Self {
        Self {
            servers,
            tls,
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            database: 0,
            deadline: Duration::from_millis(50),
            connect_timeout: None,
            connections: 1,
            resp2_only: false,
            ca_certificates: None,
            client_certificate: None,
            application: Application::default(),
        }
    }

    /// [`connect_timeout`](Self::connect_timeout) or its default.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.deadline.max(Duration::from_millis(250)))
    }

    /// Validates ranges, and that certificates are only used with TLS. [`Client::new`](crate::Client::new)
    /// does this too.
    ///
    /// # Errors
    /// A time or number out of its range, or certificates without TLS.
    pub fn check(&self) -> Result<(), InvalidOptions> {
        let waits =
            [("deadline", self.deadline, "50ms"), ("connect timeout", self.connect_timeout(), "250ms")];
        for (name, wait, example) in waits {
            if wait < Duration::from_millis(1) || wait > MAX_TIMEOUT {
                return Err(InvalidOptions::new(format!(
                    "redis {name} is {wait:?}; give 1ms to 60s, for example {example}"
                )));
            }
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return Err(InvalidOptions::new(format!(
                "redis connections is {}; give 1 to {MAX_CONNECTIONS} for each node",
                self.connections
            )));
        }
        if !self.tls && (self.ca_certificates.is_some() || self.client_certificate.is_some()) {
            return Err(InvalidOptions::new(
                "redis has certificates but its url does not encrypt; give a url that begins with `rediss`",
            ));
        }
        Ok(())
    }
}

/// The URL without user names and passwords: `redis://10.0.0.5:6379/2`.
impl fmt::Display for Options {
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

impl ClientCertificate {
    /// A certificate with its intermediates and its private key, in PEM form. They are parsed when a client
    /// is created.
    #[must_use]
    pub fn new(certificate_pem: Vec<u8>, key_pem: Vec<u8>) -> Self {
        Self { certificate_pem, key_pem }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Credentials").field("user", &self.user).field("password", &password).finish()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificate({} bytes, key ***)", self.certificate_pem.len())
    }
}
