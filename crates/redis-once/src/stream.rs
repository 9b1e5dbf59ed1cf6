//! Streams to servers: TCP, TLS or a Unix socket, with bounded replies.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

use crate::options::{Address, ClientCertificate, Options, Pem};
use crate::reply_bound::{AcceptedReplies, ReplyScanner};

/// A connection silent for this long is probed, then again at this interval.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));
/// Bytes not acknowledged by the other side within this time end the connection.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// Settings for opening a stream to one server.
#[derive(Debug, Clone)]
pub(crate) struct Opener {
    address: Address,
    /// `None` without TLS.
    tls: Option<Tls>,
}

/// TLS trust and client certificate.
#[derive(Debug, Clone)]
struct Tls {
    /// `None`: the system's.
    ca_certificates: Option<Pem>,
    client_certificate: Option<ClientCertificate>,
}

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

impl Opener {
    /// # Errors
    /// Certificates that cannot be used.
    pub(crate) fn new(options: &Options, address: &Address) -> io::Result<Self> {
        let is_encrypted = options.tls && matches!(address, Address::Tcp { .. });
        let tls = is_encrypted.then(|| Tls {
            ca_certificates: options.ca_certificates.clone(),
            client_certificate: options.client_certificate.clone(),
        });
        // The system's certificates are read when connecting.
        if let Some(tls) = tls.as_ref().filter(|tls| tls.ca_certificates.is_some()) {
            tls.config()?;
        }
        Ok(Self { address: address.clone(), tls })
    }

    /// Opens a stream. All addresses of a name are tried at once; the first that responds is used.
    pub(crate) async fn open(&self, accepted: Arc<AcceptedReplies>) -> io::Result<impl Duplex + 'static> {
        let inner: Box<dyn Duplex> = match (&self.address, &self.tls) {
            (Address::Unix(path), _) => unix(path).await?,
            (Address::Tcp { host, port }, None) => Box::new(tcp(host, *port).await?),
            (Address::Tcp { host, port }, Some(tls)) => {
                let config = Arc::new(tls.config()?);
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                Box::new(tokio_rustls::TlsConnector::from(config).connect(name, stream).await?)
            }
        };
        Ok(BoundedStream { inner, accepted, scanner: ReplyScanner::default() })
    }
}

impl Tls {
    fn config(&self) -> io::Result<ClientConfig> {
        // Only the first call in a process takes effect, so a program's own choice is kept.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = RootCertStore::empty();
        match &self.ca_certificates {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(&pem.0) {
                    roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
                }
            }
            None => {
                // An unreadable certificate is no reason to distrust the others.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some(ClientCertificate { certificate_pem, key_pem }) = &self.client_certificate else {
            return Ok(config.with_no_client_auth());
        };
        let chain = CertificateDer::pem_slice_iter(certificate_pem).collect::<Result<_, _>>();
        let key = PrivateKeyDer::from_pem_slice(key_pem);
        let (chain, key) = (chain.map_err(io::Error::other)?, key.map_err(io::Error::other)?);
        config.with_client_auth_cert(chain, key).map_err(io::Error::other)
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                let (idle, interval) = KEEPALIVE;
                socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
                #[cfg(target_os = "linux")]
                socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

#[cfg(unix)]
async fn unix(path: &Path) -> io::Result<Box<dyn Duplex>> {
    Ok(Box::new(tokio::net::UnixStream::connect(path).await?))
}

#[cfg(not(unix))]
async fn unix(_path: &Path) -> io::Result<Box<dyn Duplex>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets; use `redis://`"))
}

/// A stream that ends at an oversized reply, before it reaches the parser.
struct BoundedStream {
    inner: Box<dyn Duplex>,
    accepted: Arc<AcceptedReplies>,
    scanner: ReplyScanner,
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut stream.inner).poll_read(context, buffer))?;
        let checked = stream.accepted.check(&mut stream.scanner, &buffer.filled()[before..]);
        // This kind tells the client that the connection is over.
        Poll::Ready(checked.map_err(|why| io::Error::new(io::ErrorKind::ConnectionAborted, why)))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
