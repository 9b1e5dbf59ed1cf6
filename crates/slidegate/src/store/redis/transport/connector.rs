//! Connector: opens connections to one server.
//!
//! If a server does not support RESP3, this is recorded and RESP2 is used from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError, TlsCertificates,
};

use super::failure;
use super::options::{Address, ConnectionOptions, Credentials};
use crate::error::Error;

/// Commands queued on one connection; more than may be in flight, so that no call waits for the
/// queue.
const PIPELINE_BUFFER: usize = 4096;
/// The client library name that `CLIENT LIST` shows.
const LIBRARY: &str = "slidegate";

/// What a server is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// Keys and scripts.
    Keys,
    /// Finding the master.
    Sentinel,
}

/// Opens connections to one server.
pub(crate) struct Connector {
    resp3: Client,
    resp2: Client,
    resp2_only: AtomicBool,
    timeout: Duration,
    tls: bool,
}

impl Connector {
    /// # Errors
    /// Certificates that cannot be read.
    pub(super) fn new(options: &ConnectionOptions, address: &Address, serves: Serves) -> Result<Self, Error> {
        let client = |protocol| client(options, address, serves, protocol);
        Ok(Self {
            resp3: client(ProtocolVersion::RESP3)?,
            resp2: client(ProtocolVersion::RESP2)?,
            resp2_only: AtomicBool::new(options.resp2_only),
            timeout: options.connect_timeout,
            tls: options.tls,
        })
    }

    /// Connects and authenticates. `lost` is called at most once, when the connection ends. Over
    /// RESP2 it is not called, and the next call finds out.
    pub(super) async fn connect(
        &self,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, RedisError> {
        let lost = Arc::new(lost);
        loop {
            let resp2 = self.resp2_only.load(Ordering::Relaxed);
            let mut config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.timeout))
                // Each call has its own deadline.
                .set_response_timeout(None)
                .set_pipeline_buffer_size(PIPELINE_BUFFER);
            if !resp2 {
                let lost = lost.clone();
                config = config.set_push_sender(move |push: PushInfo| -> Result<(), ()> {
                    if push.kind == PushKind::Disconnection {
                        lost();
                    }
                    Ok(())
                });
            }
            let client = if resp2 { &self.resp2 } else { &self.resp3 };
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Err(error) if !resp2 && failure::lacks_resp3(&error) => {
                    self.resp2_only.store(true, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
    }
}

impl Connector {
    /// Advice for a failed connection attempt whose cause is not obvious.
    pub(super) fn hint(&self, error: &RedisError) -> Option<&'static str> {
        let silent = (self.tls && error.is_timeout()).then_some(
            "if the server is well, it does not speak TLS at this address: use its `tls-port`, or a url without TLS",
        );
        failure::tls_hint(&failure::error_text(error)).or(silent)
    }

    /// A connection for pub/sub messages.
    pub(crate) async fn subscription(&self) -> Result<redis::aio::PubSub, RedisError> {
        let resp2 = self.resp2_only.load(Ordering::Relaxed);
        let client = if resp2 { &self.resp2 } else { &self.resp3 };
        match tokio::time::timeout(self.timeout, client.get_async_pubsub()).await {
            Ok(connected) => connected,
            Err(late) => Err(std::io::Error::from(late).into()),
        }
    }
}

fn client(
    options: &ConnectionOptions,
    address: &Address,
    serves: Serves,
    protocol: ProtocolVersion,
) -> Result<Client, Error> {
    let Credentials { user, password } = match serves {
        Serves::Keys => &options.credentials,
        Serves::Sentinel => &options.sentinel_credentials,
    };
    let mut greeting = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_lib_name(LIBRARY, env!("CARGO_PKG_VERSION"));
    if let Some(user) = user {
        greeting = greeting.set_username(user);
    }
    if let Some(password) = password {
        greeting = greeting.set_password(password.expose());
    }
    if serves == Serves::Keys {
        greeting = greeting.set_db(options.database.into());
    }
    let address_of = match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp { host, port } if options.tls => {
            ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
        }
        Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
    };
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(2));
    let wrong = |error: &RedisError| Error::store(format!("redis at {address}: {error}"));
    let info = address_of.into_connection_info().map_err(|error| wrong(&error))?;
    let info = info.set_tcp_settings(tcp).set_redis_settings(greeting);
    if !options.tls || matches!(address, Address::Unix(_)) {
        return Client::open(info).map_err(|error| wrong(&error));
    }
    // Only the first call in a process takes effect, and a program's own choice is kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: options.client_certificate.as_ref().map(|own| ClientTlsConfig {
            client_cert: own.certificate_pem.clone(),
            client_key: own.key_pem.expose().clone(),
        }),
        root_cert: options.ca_certificates.as_ref().map(|pem| pem.0.clone()),
    };
    if options.ca_certificates.as_ref().is_some_and(|pem| !holds_certificate(&pem.0)) {
        return Err(Error::store(
            "redis ca certificates hold no certificate; give PEM text that begins with `-----BEGIN CERTIFICATE-----`",
        ));
    }
    Client::build_with_tls(info, certificates).map_err(|error| {
        Error::store(format!(
            "redis certificates cannot be used: {error}; give PEM text that begins with `-----BEGIN`"
        ))
    })
}

/// Whether the text has a certificate. rustls accepts any other text as an empty list and then
/// trusts nobody.
fn holds_certificate(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    pem.windows(BEGIN.len()).any(|window| window == BEGIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::transport::options::Pem;

    /// A file of the wrong kind must be an error at start, not at the first connection.
    #[test]
    fn certificates_that_are_none_are_refused() {
        let address = Address::Tcp { host: "h".to_owned(), port: 1 };
        let ca_certificates = Some(Pem(b"no pem".to_vec()));
        let options =
            ConnectionOptions { ca_certificates, ..ConnectionOptions::parse("rediss://h:1").unwrap() };
        let error = Connector::new(&options, &address, Serves::Keys).err().unwrap();
        assert_eq!(
            error.to_string(),
            "redis ca certificates hold no certificate; give PEM text that begins with `-----BEGIN CERTIFICATE-----`"
        );
    }
}
