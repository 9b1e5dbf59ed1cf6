//! Blocking HTTP client of the commands and the trace exporter, with TLS.
//!
//! Trusts the system's certificate authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A client for one URL. Error statuses are not `Err`. Redirects are not followed: the request may
/// carry a token meant for this server only.
///
/// # Errors
/// The URL begins with `https:` and the system trusts no certificate authority.
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

/// TLS with the system's certificate authorities.
fn tls() -> Result<TlsConfig, io::Error> {
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<_> = found.certs.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
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
