//! Certificates of TLS listeners, with hot reload.
//!
//! Files are read every second and compared by content, which also detects swapped links. Open
//! connections keep their certificate. With client certificates, sessions are not resumed: a
//! resumed session would not be verified again, even after the certificate expired.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use super::stream::TrackedStream;
use crate::log_limit::log_limited;

/// Maximum size of a certificate file: five times all authorities that browsers trust.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// Interval between polls of the files.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The files of a TLS listener, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificate chain, the server's own certificate first.
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
    /// Authorities that must have signed client certificates. `None`: no client certificate is
    /// required.
    pub(crate) client_ca_file: Option<PathBuf>,
    /// A DNS name that client certificates must have. A wildcard does not match.
    pub(crate) client_name: Option<String>,
}

/// TLS parameters of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TlsProfile {
    /// The config section with the files, for messages.
    pub(crate) section: &'static str,
    /// The protocol that clients must request, if they request any. Empty: not negotiated.
    pub(crate) alpn: &'static str,
}

/// The certificates in use, and the last contents of their files.
#[derive(Debug)]
pub(crate) struct Certificates {
    profile: TlsProfile,
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
    /// The last contents, valid or not, so errors are logged once.
    read: Mutex<Pems>,
}

/// The contents of the three files, or why they could not be read.
type Pems = [Result<Vec<u8>, String>; 3];

impl Certificates {
    /// Loads the files.
    ///
    /// # Errors
    /// A file is invalid, in one line.
    pub(crate) fn load(files: TlsFiles, profile: TlsProfile) -> Result<Self, String> {
        let pems = read(&files);
        let config = config(&files, profile, &pems)?;
        Ok(Self { profile, files, current: ArcSwap::from_pointee(config), read: Mutex::new(pems) })
    }

    /// Whether clients must present a certificate.
    pub(super) fn verifies_clients(&self) -> bool {
        self.files.client_ca_file.is_some()
    }

    /// Hot-reloads the files until dropped.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            sleep(POLL_EVERY).await;
            self.poll();
        }
    }

    /// Reloads changed files. Invalid files are logged and the old certificates stay in use.
    fn poll(&self) {
        let pems = read(&self.files);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == pems {
            return;
        }
        let section = self.profile.section;
        match config(&self.files, self.profile, &pems) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!("reloaded the {section} certificate");
            }
            Err(error) => {
                tracing::error!(error, "invalid {section} certificate; the old one stays in use");
            }
        }
        *read = pems;
    }

    /// Accepts a TLS connection. `None` if the client does not use TLS, has no valid certificate or
    /// is too slow, which is logged and counted.
    pub(crate) async fn accept(
        &self,
        stream: TrackedStream,
        peer: Option<IpAddr>,
    ) -> Option<TlsStream<TrackedStream>> {
        let slot = Arc::clone(stream.slot());
        let section = self.profile.section;
        let error = match timeout(HANDSHAKE_TIMEOUT, self.handshake(stream)).await {
            Ok(Ok(stream)) => {
                slot.restart();
                return Some(stream);
            }
            Ok(Err(error)) => error,
            Err(_) => format!("not complete after {} seconds", HANDSHAKE_TIMEOUT.as_secs()),
        };
        slot.handshake_failed();
        log_limited!(
            WARN,
            peer,
            peer = peer.map(tracing::field::display),
            "rejected a {section} connection: TLS handshake: {error}"
        );
        None
    }

    async fn handshake(&self, stream: TrackedStream) -> Result<TlsStream<TrackedStream>, String> {
        let accepted = TlsAcceptor::from(self.current.load_full()).accept(stream).await;
        let stream = accepted.map_err(|error| error.to_string())?;
        if let Some(name) = &self.files.client_name {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let is_it = certificate.is_some_and(|certificate| is_for(certificate, name));
            if !is_it {
                return Err(format!("the client's certificate is not valid for `{name}`"));
            }
        }
        Ok(stream)
    }
}

/// Whether a certificate has this name. A wildcard is rejected, because it stands for any number of
/// clients.
fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let (Ok(certificate), Ok(subject)) = (EndEntityCert::try_from(certificate), ServerName::try_from(name))
    else {
        return false;
    };
    let is_listed = || certificate.valid_dns_names().any(|one| one.eq_ignore_ascii_case(name));
    certificate.verify_is_valid_for_subject_name(&subject).is_ok()
        && (!matches!(subject, ServerName::DnsName(_)) || is_listed())
}

fn read(files: &TlsFiles) -> Pems {
    let read = |path: &Path| {
        let mut pem = Vec::new();
        let count = File::open(path).and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut pem));
        match count {
            Ok(count) if count as u64 > MAX_PEM_BYTES => Err(format!("larger than {MAX_PEM_BYTES} bytes")),
            Ok(_) => Ok(pem),
            Err(error) => Err(error.to_string()),
        }
    };
    let authorities = files.client_ca_file.as_deref().map_or(Ok(Vec::new()), read);
    [read(&files.cert_file), read(&files.key_file), authorities]
}

fn config(
    files: &TlsFiles,
    profile: TlsProfile,
    [chain, key, authorities]: &Pems,
) -> Result<ServerConfig, String> {
    let section = profile.section;
    let failed = |key: &str, path: &Path, error: &dyn std::fmt::Display| {
        format!("{section}: {key} `{}` cannot be used: {error}; give a file in PEM", path.display())
    };
    let (cert_file, key_file) = (&files.cert_file, &files.key_file);
    let chain = chain.as_ref().map_err(|error| failed("cert_file", cert_file, error))?;
    let chain = parsed(chain).map_err(|error| failed("cert_file", cert_file, &error))?;
    let key = key.as_ref().map_err(|error| failed("key_file", key_file, error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| failed("key_file", key_file, &error))?;

    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring knows the versions of TLS");
    let builder = match &files.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| failed("client_ca_file", path, error);
            let mut roots = RootCertStore::empty();
            for authority in parsed(authorities.as_ref().map_err(|error| failed(error))?)
                .map_err(|error| failed(&error))?
            {
                roots.add(authority).map_err(|error| failed(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| failed(&error))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| failed("key_file", key_file, &format_args!("{error}, with the certificate")))?;
    if files.client_ca_file.is_some() {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    if !profile.alpn.is_empty() {
        config.alpn_protocols = vec![profile.alpn.as_bytes().to_vec()];
    }
    Ok(config)
}

/// Parses the certificates of a file, at least one.
fn parsed(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}
