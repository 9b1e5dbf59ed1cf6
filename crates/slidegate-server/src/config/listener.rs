//! Keys that the sections of listeners share: certificates and Unix sockets.
//!
//! Certificate files are not read here. The listener reads them, and reloads them when they change.

use std::path::PathBuf;

use super::check::Section;
use super::values::{Form, Parsed, Text};
use crate::listener::{SocketFile, TlsFiles};

/// Permissions of a Unix socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketMode(pub(super) u32);

impl Text for SocketMode {
    const FORM: Form =
        Form::of::<Self>("socket-mode", "three octal digits, for example `\"0660\"`").pattern("^0?[0-7]{3}$");

    fn parse(text: &str) -> Result<Self, String> {
        let digits = if text.len() == 4 { text.strip_prefix('0') } else { Some(text) };
        let digits = digits.filter(|digits| digits.len() == 3 && !digits.starts_with('+'));
        let mode = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok());
        mode.map(Self).ok_or_else(String::new)
    }
}

/// The keys of a section about TLS.
pub(super) struct TlsKeys {
    pub(super) cert_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) client_ca_file: Option<PathBuf>,
    pub(super) client_name: Option<String>,
}

impl TlsKeys {
    /// The files, if there are any. Incomplete ones are reported.
    pub(super) fn build(self, section: &Section<'_>) -> Option<TlsFiles> {
        for (key, other, why) in [
            ("cert_file", "key_file", "give both"),
            ("key_file", "cert_file", "give both"),
            ("client_ca_file", "cert_file", "clients show certificates over TLS only, so give both"),
            ("client_name", "client_ca_file", "only an authority makes a name trustworthy, so give both"),
        ] {
            section.check_pair(key, other, why);
        }
        let Self { cert_file, key_file, client_ca_file, client_name } = self;
        let (cert_file, key_file) = cert_file.zip(key_file)?;
        Some(TlsFiles { cert_file, key_file, client_ca_file, client_name })
    }
}

/// The Unix socket of a section, if there is one.
pub(super) fn socket(
    path: Option<PathBuf>,
    mode: Option<Parsed<SocketMode>>,
    section: &Section<'_>,
) -> Option<SocketFile> {
    section.check_pair("socket_mode", "socket", "it is the mode of the socket's file, so give both");
    let mode = mode.map_or(SocketFile::DEFAULT_MODE, |mode| mode.0.0);
    path.map(|path| SocketFile { path, mode })
}

/// Reports a certificate without a TCP address: Unix sockets have no TLS.
pub(super) fn check_address_for_tls(has_address: bool, section: &Section<'_>) {
    if section.has("socket") && !has_address {
        section.check_pair(
            "cert_file",
            "listen",
            "a socket file has no TLS, so give an address or leave it out",
        );
    }
}
