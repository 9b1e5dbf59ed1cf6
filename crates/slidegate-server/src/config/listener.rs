//! Keys of every listener section beside the address: certificates and a Unix socket.
//!
//! Certificate files are not read here. The listener reads them, and reloads them when they change.

use std::path::PathBuf;

use lined_config::{Form, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate_config::values::{Parsed, Text, form_of};

use crate::listener::{SocketFile, TlsFiles};

/// Permissions of a Unix socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketMode(pub(super) u32);

impl Text for SocketMode {
    const FORM: Form =
        form_of::<Self>("socket-mode", "three octal digits, for example `\"0660\"`").pattern("^0?[0-7]{3}$");

    fn parse(text: &str) -> Result<Self, String> {
        let digits = if text.len() == 4 { text.strip_prefix('0') } else { Some(text) };
        let digits = digits.filter(|digits| digits.len() == 3 && !digits.starts_with('+'));
        let mode = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok());
        mode.map(Self).ok_or_else(String::new)
    }
}

/// The keys, to be flattened into a section.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ListenerKeys {
    /// Path of a Unix socket, without TLS. A stale socket is replaced. Its clients have the rights of clients on
    /// loopback.
    socket: Option<PathBuf>,
    /// Permissions of the socket's file, in octal. Clients need write permission. Default: `"0660"`.
    socket_mode: Option<Parsed<SocketMode>>,
    /// The server certificate, in PEM. Hot-reloaded; an invalid one is logged and the old one stays in use. With it,
    /// the address accepts TLS only.
    cert_file: Option<PathBuf>,
    /// The key of `cert_file`, in PEM.
    key_file: Option<PathBuf>,
    /// CAs, in PEM: a client must present a certificate from one of them. It then needs no token for decisions, and
    /// no password for Redis commands.
    client_ca_file: Option<PathBuf>,
    /// A DNS name that the client certificate must list; a wildcard does not count.
    client_name: Option<String>,
}

impl ListenerKeys {
    /// The certificates of the TCP listener, and the Unix socket. Reports incomplete keys.
    pub(super) fn build(
        self,
        section: &Section<'_>,
        has_address: bool,
    ) -> (Option<TlsFiles>, Option<SocketFile>) {
        if !has_address && section.has("socket") && section.has("cert_file") {
            let why = "needs listen; a socket file has no TLS, so give an address or leave it out";
            section.invalid("cert_file", why);
        }
        for (key, other, why) in [
            ("cert_file", "key_file", "give both"),
            ("key_file", "cert_file", "give both"),
            ("client_ca_file", "cert_file", "clients show certificates over TLS only, so give both"),
            ("client_name", "client_ca_file", "only an authority makes a name trustworthy, so give both"),
        ] {
            section.check_pair(key, other, why);
        }
        section.check_pair("socket_mode", "socket", "it is the mode of the socket's file, so give both");
        let Self { socket, socket_mode, cert_file, key_file, client_ca_file, client_name } = self;
        let files = cert_file.zip(key_file);
        let tls =
            files.map(|(cert_file, key_file)| TlsFiles { cert_file, key_file, client_ca_file, client_name });
        let mode = socket_mode.map_or(SocketFile::DEFAULT_MODE, |mode| mode.0.0);
        (tls, socket.map(|path| SocketFile { path, mode }))
    }
}
