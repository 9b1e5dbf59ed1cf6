//! The HTTP client that commands and the trace exporter use: `http://` and `https://`, blocking.
//!
//! It trusts the certificate authorities of the machine. `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A client for one URL. Statuses above 399 are answers, not errors, and redirects are not followed: what is sent along
/// may be a token for this server and for no other.
///
/// # Errors
/// When the URL begins with `https:` and the machine trusts no certificate authority.
pub(crate) fn agent(url: &str, timeout: Duration) -> Result<ureq::Agent, io::Error> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .allow_non_standard_methods(true)
        .max_redirects(0);
    // Loading the certificates takes tens of milliseconds.
    let is_https = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let config = if is_https { config.tls_config(tls()?) } else { config };
    Ok(config.build().into())
}

/// TLS that trusts the authorities of this machine.
fn tls() -> Result<TlsConfig, io::Error> {
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<_> = found.certs.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    if roots.is_empty() {
        return Err(io::Error::other(
            "this machine trusts no certificate authority; install its ca-certificates, name a file of certificates with \
             the variable SSL_CERT_FILE, or give an `http://` URL",
        ));
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}
