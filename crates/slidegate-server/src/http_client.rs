//! Blocking HTTP client of the commands and the trace exporter, with TLS.
//!
//! Trusts the system's certificate authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A client for one URL. Error statuses are not `Err`. Redirects are not followed: the request may
/// carry a token meant for this server only.
///
/// # Errors
/// The URL begins with `https:`, and `ca_file` cannot be read or the system trusts no certificate
/// authority.
pub(crate) fn agent(url: &str, timeout: Duration, ca_file: Option<&Path>) -> Result<ureq::Agent, io::Error> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .allow_non_standard_methods(true)
        .max_redirects(0);
    // Loading the certificates takes tens of milliseconds.
    let is_https = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let config = if is_https { config.tls_config(tls(ca_file)?) } else { config };
    Ok(config.build().into())
}

/// TLS with the certificate authorities of a file, or else the system's.
fn tls(ca_file: Option<&Path>) -> Result<TlsConfig, io::Error> {
    let certificates = match ca_file {
        Some(file) => read_certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let roots: Vec<_> = certificates.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    if roots.is_empty() {
        return Err(io::Error::other(
            "no trusted certificate authority found; install ca-certificates, set SSL_CERT_FILE to a file of \
             certificates, or use an `http://` URL",
        ));
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

/// TLS that does not check the server's certificate, for a server on this machine that is sent no
/// secret.
pub(crate) fn unchecked_tls() -> TlsConfig {
    TlsConfig::builder()
        .disable_verification(true)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

/// The certificates of a PEM file, at least one.
fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, io::Error> {
    let failed = |why: &dyn std::fmt::Display| {
        io::Error::other(format!("--ca-file {}: {why}; give a file of certificates in PEM", file.display()))
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(failed(&"it holds no certificate")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(failed(&error)),
    }
}
