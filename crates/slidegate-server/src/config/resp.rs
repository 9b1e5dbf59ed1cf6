//! The section `resp`: the port for clients of Redis.
//!
//! No error and no log shows the password.

use std::net::SocketAddr;
use std::time::Duration;

use ::ring::digest::{SHA256, digest};
use lined_config::{Form, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Secret;
use slidegate_config::values::{Parsed, Span, Text, form_of};
use subtle::ConstantTimeEq;

use super::listener::ListenerKeys;
use super::store::secret_in;
use crate::listener::{SocketFile, TlsFiles};

/// The port for clients of Redis.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "listen: 127.0.0.1:6380"))]
pub(super) struct RespSection {
    /// Address and port. `serve --resp` takes precedence. Default: required without `socket`.
    #[schemars(extend("format" = "address"))]
    listen: Option<SocketAddr>,
    /// The password that clients must send. `SLIDEGATE_RESP_PASSWORD` takes precedence.
    password: Option<Parsed<Password>>,
    /// A file that holds the password, instead of `password`.
    #[schemars(with = "Option<String>", extend("format" = "password-file"))]
    password_file: Option<Parsed<Password>>,
    #[serde(flatten)]
    listener: ListenerKeys,
    /// Idle time after which a client is disconnected, between once and twice that time.
    #[schemars(extend("default" = "10m"))]
    idle_timeout: Span<1000, 604_800_000>,
    /// Maximum number of connections.
    // Each takes about 5 KB, at most 200 KB while it is served, and 512 KB more in a transaction. The most is below
    // the usual limit of 65,536 file descriptors.
    #[schemars(range(min = 1, max = 60000), extend("default" = 10_000))]
    max_connections: usize,
}

/// The RESP port as configured.
#[derive(Debug, Clone)]
pub(crate) struct Resp {
    /// At least one of the address and the socket.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) socket: Option<SocketFile>,
    pub(crate) password: Option<Password>,
    /// Certificates of the address. `None`: no TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// Idle time after which a client is disconnected, between once and twice that time.
    pub(crate) idle_timeout: Duration,
    /// At least one.
    pub(crate) max_connections: usize,
}

/// The password of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Password(Secret<String>);

impl Password {
    /// Whether this is the password. Digests are compared in constant time, so the time depends only on
    /// the length of `given`.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let sha256 = |bytes| digest(&SHA256, bytes);
        sha256(self.0.expose().as_bytes()).as_ref().ct_eq(sha256(given).as_ref()).into()
    }
}

impl Text for Password {
    const FORM: Form = form_of::<Self>("resp-password", "a text of 1 to 512 bytes").secret();

    fn parse(text: &str) -> Result<Self, String> {
        let is_valid = (1..=512).contains(&text.len());
        if is_valid { Ok(Self(Secret::new(text.to_owned()))) } else { Err(String::new()) }
    }
}

/// The path of a file with a password. The text to keep is the password.
pub(super) const PASSWORD_FILE: Form =
    Form::new("password-file", "the path of a file", |path, _| secret_in::<Password>(path)).secret();

impl RespSection {
    /// The port. Reports mistakes and returns `None` if it is invalid.
    pub(super) fn build(self, section: &Section<'_>) -> Option<Resp> {
        if section.has("password") && section.has("password_file") {
            section.invalid("password_file", "conflicts with password; keep one");
        }
        let has_listen = self.listen.is_some() || section.has("listen");
        let (tls, socket) = self.listener.build(section, has_listen);
        if !has_listen && !section.has("socket") {
            let message = "missing listen: write it, for example `listen: 127.0.0.1:6380`, or give `--resp`";
            section.report("", message);
        }
        if self.listen.is_none() && socket.is_none() {
            return None;
        }
        Some(Resp {
            listen: self.listen,
            socket,
            password: self.password.or(self.password_file).map(|password| password.0),
            tls,
            idle_timeout: self.idle_timeout.0,
            max_connections: self.max_connections,
        })
    }
}

impl Resp {
    /// Whether clients need neither a password nor a certificate.
    pub(crate) fn is_open(&self) -> bool {
        let verifies_clients = self.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        self.password.is_none() && !verifies_clients
    }
}

#[cfg(test)]
mod tests {
    use super::{Resp, SocketFile};
    use crate::config::Outside;
    use crate::config::tests::{outside, parse, parse_with};

    fn resp(keys: &str, outside: &Outside) -> Resp {
        parse_with(&format!("resp: {{{keys}}}"), outside).resp.expect("a port is named")
    }

    /// A lost setting leaves the port open to everyone or closed to all.
    #[test]
    fn every_setting_of_the_port_arrives() {
        let said = resp(
            "listen: '[::1]:6380', password: 'open sesame', idle_timeout: 1h, max_connections: 5",
            &Outside::default(),
        );
        assert_eq!(said.listen, "[::1]:6380".parse().ok());
        let file = resp("socket: /run/r.sock, socket_mode: 0600", &Outside::default());
        assert_eq!(file.socket, Some(SocketFile { path: "/run/r.sock".into(), mode: 0o600 }));
        let secure = "listen: '[::1]:6380', cert_file: a, key_file: b, client_ca_file: c, client_name: d";
        let secure = resp(secure, &Outside::default());
        assert!(!secure.is_open() && secure.tls.is_some_and(|tls| tls.client_name.is_some()));
        assert_eq!((said.idle_timeout.as_secs(), said.max_connections), (3600, 5));
        let password = said.password.expect("a password is said");
        assert!(password.is(b"open sesame") && !password.is(b"open sesam") && !password.is(b""));
        assert_eq!(format!("{password:?}"), "Password(***)");
        let bare = resp("listen: 127.0.0.1:6380", &Outside::default());
        assert_eq!((bare.idle_timeout.as_secs(), bare.max_connections), (600, 10_000));
        assert!(bare.password.is_none() && bare.tls.is_none());
        assert!(parse("").resp.is_none(), "off unless it is named");
    }

    /// `--resp` and the environment win, and the rest of the file still applies.
    #[test]
    fn arguments_and_variables_take_precedence_over_the_file() {
        let outside = outside(&[("/resp/listen", "127.0.0.1:7000"), ("/resp/password", "outside")]);
        let both = resp("listen: 127.0.0.1:6380, password: inside, max_connections: 5", &outside);
        assert_eq!((both.listen.map(|at| at.port()), both.max_connections), (Some(7000), 5));
        assert!(both.password.is_some_and(|password| password.is(b"outside")));
        assert_eq!(resp("max_connections: 5", &outside).listen.map(|at| at.port()), Some(7000));
        let alone = parse_with("", &outside).resp.unwrap();
        assert!(alone.password.is_some_and(|password| password.is(b"outside")));
    }
}
