//! Certificates of the gRPC door, which change while it is open.
//!
//! The files are read again each second and compared by content, which also notices links that were turned elsewhere.
//! Connections that are open keep the certificate they began with.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use crate::config::GrpcTls;

/// Largest file of certificates: all authorities that browsers trust are a fifth of it.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// HTTP/2 is all that gRPC speaks.
const ALPN: &[u8] = b"h2";

/// What the files say, and what they said when they last could be used.
#[derive(Debug)]
pub(super) struct Certificates {
    files: GrpcTls,
    current: ArcSwap<ServerConfig>,
    /// What was read last, usable or not: nothing is said twice of the same files.
    read: Mutex<Pems>,
}

/// Contents of the three files; an error's text where one could not be read.
type Pems = [Result<Vec<u8>, String>; 3];

impl Certificates {
    /// # Errors
    /// One line that names the file that cannot be used.
    pub(super) fn load(files: GrpcTls) -> Result<Self, String> {
        let pems = read(&files);
        let config = config(&files, &pems)?;
        Ok(Self { files, current: ArcSwap::from_pointee(config), read: Mutex::new(pems) })
    }

    /// Takes the files into use if they have changed and can be used, and is loud when they cannot.
    pub(super) fn look(&self) {
        let pems = read(&self.files);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == pems {
            return;
        }
        match config(&self.files, &pems) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!("new grpc connections are shown the changed certificate");
            }
            Err(error) => {
                tracing::error!(error, "the changed certificate cannot be used; the old one stays in use");
            }
        }
        *read = pems;
    }

    /// The TLS connection that a stream becomes.
    ///
    /// # Errors
    /// A client that speaks no TLS, or shows no certificate that is good enough.
    pub(super) async fn handshake(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let peer = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |peer| peer.to_string());
        let accepted = TlsAcceptor::from(self.current.load_full()).accept(stream).await;
        let stream = accepted.map_err(|error| format!("{peer}: {error}"))?;
        if let Some(name) = &self.files.client_name {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let is_it = certificate.is_some_and(|certificate| is_for(certificate, name));
            if !is_it {
                return Err(format!("{peer}: its certificate is not for `{name}`"));
            }
        }
        Ok(stream)
    }
}

/// Whether a certificate is for this name.
fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(name) = ServerName::try_from(name) else { return false };
    EndEntityCert::try_from(certificate).is_ok_and(|it| it.verify_is_valid_for_subject_name(&name).is_ok())
}

fn read(files: &GrpcTls) -> Pems {
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

fn config(files: &GrpcTls, [chain, key, authorities]: &Pems) -> Result<ServerConfig, String> {
    let failed = |key: &str, path: &Path, error: &dyn std::fmt::Display| {
        format!("grpc: {key} `{}` cannot be used: {error}; give a file in PEM", path.display())
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
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Every certificate of a file, of which there must be one.
fn parsed(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}
