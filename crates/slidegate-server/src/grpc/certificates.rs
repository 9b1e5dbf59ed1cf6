//! Certificates of the gRPC listener, with hot reload.
//!
//! The files are read every second and compared by content, which also detects swapped links. Open
//! connections keep their certificate.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use slidegate_envoy::GrpcTls;

use crate::listener::TrackedStream;

/// Largest certificate file. All authorities that browsers trust take a fifth of it.
const MAX_PEM_BYTES: u64 = 1 << 20;
/// gRPC needs HTTP/2.
const ALPN: &[u8] = b"h2";

/// The certificates in use, and the last contents of their files.
#[derive(Debug)]
pub(super) struct Certificates {
    files: GrpcTls,
    current: ArcSwap<ServerConfig>,
    /// The last contents, valid or not, so that errors are logged once.
    read: Mutex<Pems>,
}

/// The contents of the three files, or why they could not be read.
type Pems = [Result<Vec<u8>, String>; 3];

impl Certificates {
    /// Loads the files.
    ///
    /// # Errors
    /// A file is invalid, in one line.
    pub(super) fn load(files: GrpcTls) -> Result<Self, String> {
        let pems = read(&files);
        let config = config(&files, &pems)?;
        Ok(Self { files, current: ArcSwap::from_pointee(config), read: Mutex::new(pems) })
    }

    /// Reloads the files if they have changed. Invalid files are logged, and the old certificates
    /// stay in use.
    pub(super) fn poll(&self) {
        let pems = read(&self.files);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == pems {
            return;
        }
        match config(&self.files, &pems) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!("reloaded the grpc certificate");
            }
            Err(error) => {
                tracing::error!(error, "invalid grpc certificate; the old one stays in use");
            }
        }
        *read = pems;
    }

    /// Accepts a TLS connection.
    ///
    /// # Errors
    /// The client does not use TLS, or has no valid certificate.
    pub(super) async fn handshake(
        &self,
        stream: TrackedStream,
        peer: IpAddr,
    ) -> Result<TlsStream<TrackedStream>, String> {
        let accepted = TlsAcceptor::from(self.current.load_full()).accept(stream).await;
        let stream = accepted.map_err(|error| format!("{peer}: {error}"))?;
        if let Some(name) = &self.files.client_name {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let is_it = certificate.is_some_and(|certificate| is_for(certificate, name));
            if !is_it {
                return Err(format!("{peer}: its certificate is not valid for `{name}`"));
            }
        }
        stream.get_ref().0.handshake_done();
        Ok(stream)
    }
}

/// Whether a certificate is valid for this name.
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

/// The certificates of a file, at least one.
fn parsed(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}
