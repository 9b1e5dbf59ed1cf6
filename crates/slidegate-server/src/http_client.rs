//! Blocking HTTP client of the commands and the trace exporter, with TLS.
//!
//! Trusts the system's certificate authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. Only TLS to
//! another machine uses the environment's proxy, as a tunnel, in which the proxy cannot read the token.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::Proxy;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A client for one URL. Error statuses are not `Err`. Redirects are not followed: the request may carry a
/// token meant for this server only.
///
/// # Errors
/// The URL begins with `https:`, and `ca_file` cannot be read or the system trusts no certificate
/// authority.
pub(crate) fn agent(url: &str, timeout: Duration, ca_file: Option<&Path>) -> Result<ureq::Agent, io::Error> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .allow_non_standard_methods(true)
        .max_redirects(0)
        .proxy(Proxy::try_from_env().filter(|_| may_use_proxy(url)));
    // Loading the certificates takes tens of milliseconds.
    let is_https = url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let config = if is_https { config.tls_config(tls(ca_file)?) } else { config };
    Ok(config.build().into())
}

/// A URL's scheme, host and port, for messages: its path, query, user name and password may be secret.
pub(crate) fn origin(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?.as_str())));
    let Some((scheme, authority)) = parts else { return "an invalid URL".to_owned() };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// A URL without user name and password, for messages.
pub(crate) fn without_login(url: &str) -> String {
    let Some((before, rest)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    let scheme = if scheme.chars().all(|c| c.is_ascii_alphabetic()) { scheme } else { "" };
    format!("{scheme}{}***@{rest}", if scheme.is_empty() { "" } else { "://" })
}

/// The error in words, without the numbers of the operating system.
pub(crate) fn reason(error: &ureq::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("io: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or(text).to_owned()
}

/// The error's text without the URL that it may repeat.
pub(crate) fn without_url(error: &ureq::Error, url: &str) -> String {
    hidden(&error.to_string(), url)
}

fn hidden(error: &str, url: &str) -> String {
    let path = url.parse::<Uri>().ok().and_then(|uri| Some(uri.path_and_query()?.as_str().to_owned()));
    let error = error.replace(url, "the URL");
    match path.filter(|path| path.len() > 1) {
        Some(path) => error.replace(&path, "/..."),
        None => error,
    }
}

/// Whether a URL may use the proxy of `ALL_PROXY`, `HTTPS_PROXY` or `HTTP_PROXY`, which still bypasses
/// `NO_PROXY` hosts.
fn may_use_proxy(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    uri.scheme_str() == Some("https") && !is_loopback
}

/// TLS with a file's certificate authorities, or else the system's.
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

/// TLS without verification of the server's certificate, for a local server that receives no secret.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers of messages may not be entitled to a URL's secrets.
    #[test]
    fn messages_about_a_url_have_no_secret_of_it() {
        for (url, of_url, shown) in [
            ("https://hooks.example.com/T0/hidden?key=hidden", "https://hooks.example.com", None),
            ("http://me:hidden@[::1]:80/x", "http://[::1]:80", Some("http://***@[::1]:80/x")),
            ("http://hid@hidden@h", "http://h", Some("http://***@h")),
            ("me:hidden@h", "an invalid URL", Some("***@h")),
        ] {
            assert_eq!(origin(url), of_url);
            assert_eq!(shown.map(|_| without_login(url)).as_deref(), shown);
            let error = format!("Bad uri: {url}: no such thing");
            assert!(!hidden(&error, url).contains("hidden"), "{url}");
        }
        assert_eq!(without_login("http://h/x"), "http://h/x");
    }

    /// A proxy must never read a token, and local requests must not use one.
    #[test]
    fn only_tls_to_other_machines_goes_through_a_proxy() {
        for url in ["https://limits.example.com", "HTTPS://10.0.0.1:7979/v1", "https://[2001:db8::1]:1"] {
            assert!(may_use_proxy(url), "{url}");
        }
        for url in [
            "http://limits.example.com",
            "http://10.0.0.1:7979",
            "https://localhost:7979",
            "https://LocalHost",
            "https://127.0.0.1:7979",
            "https://127.1.2.3",
            "https://[::1]:7979",
            "https://[::ffff:127.0.0.1]",
            "limits.example.com",
            "no url",
        ] {
            assert!(!may_use_proxy(url), "{url}");
        }
    }
}
