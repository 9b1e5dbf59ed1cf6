//! The section `grpc`: the listener of Envoy's rate-limit service.
//!
//! Certificate files are not read here. The listener reads them, and reloads them when they change.

use std::net::SocketAddr;

use lined_config::Section;
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate_config::values::Span;

use super::environment::Outside;
use super::grpc_settings::GrpcSettings;
use super::listener::ListenerKeys;

/// Envoy's rate-limit service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "listen: 127.0.0.1:8081"))]
pub(super) struct GrpcSection {
    /// Address and port. `serve --grpc` replaces it; the other keys of the section still apply.
    #[schemars(extend("format" = "address"))]
    listen: Option<SocketAddr>,
    #[serde(flatten)]
    listener: ListenerKeys,
    /// The age after which clients are asked to reconnect, so that new instances get their share. Default: never.
    max_connection_age: Option<Span<1000, 31_622_400_000>>,
    /// Whether every response has the fields of `headers`; otherwise only denials have `retry-after`.
    #[schemars(extend("default" = false))]
    response_headers: bool,
    /// Whether the health service reports `NOT_SERVING` while a shared store is unavailable.
    #[schemars(extend("default" = false))]
    health_follows_store: bool,
}

impl GrpcSection {
    /// The settings of the listener. Reports mistakes.
    pub(super) fn build(self, section: &Section<'_>, outside: &Outside) -> GrpcSettings {
        let has_listener = self.listen.is_some() || outside.has_other_grpc || section.has("listen");
        if !has_listener && !section.has("socket") {
            let why = "needs listen or socket; write for example `listen: 127.0.0.1:8081`, or give `--grpc`";
            if let Some(key) = section.entries().first().and_then(|(key, _)| key.scalar()) {
                section.invalid(key, why);
            }
        }
        let (tls, socket) = self.listener.build(section, has_listener);
        GrpcSettings {
            listen: self.listen,
            socket,
            tls,
            max_connection_age: self.max_connection_age.map(|age| age.0),
            // Only the variables of envoyproxy/ratelimit set it.
            max_connection_age_grace: None,
            response_headers: self.response_headers,
            health_follows_store: self.health_follows_store,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::tests::{outside, parse, parse_with};
    use crate::listener::{SocketFile, TlsFiles};

    /// A listener on the wrong address limits nothing: Envoy fails open by default.
    #[test]
    fn every_setting_arrives() {
        let read = |text: &str| parse(text).grpc;
        assert_eq!(read(""), GrpcSettings::default());
        assert!(!read("").is_served());
        assert_eq!(
            read(
                "grpc: {listen: '127.0.0.1:8081', socket: /run/g.sock, socket_mode: 0600, cert_file: a, key_file: b, client_ca_file: c,
                 client_name: envoy.example.com, max_connection_age: 24h, response_headers: true, health_follows_store: true}"
            ),
            GrpcSettings {
                listen: Some("127.0.0.1:8081".parse().unwrap()),
                socket: Some(SocketFile { path: "/run/g.sock".into(), mode: 0o600 }),
                tls: Some(TlsFiles {
                    cert_file: "a".into(),
                    key_file: "b".into(),
                    client_ca_file: Some("c".into()),
                    client_name: Some("envoy.example.com".into()),
                }),
                max_connection_age: Some(Duration::from_secs(86_400)),
                max_connection_age_grace: None,
                response_headers: true,
                health_follows_store: true,
            }
        );
    }

    /// Operators give the address on the command line and keep the certificate in the file.
    #[test]
    fn the_command_line_may_say_where_and_the_file_the_rest() {
        let outside = outside(&[("/grpc/listen", "127.0.0.1:1")]);
        let address = Some("127.0.0.1:1".parse().unwrap());
        let text = "grpc: {cert_file: a, key_file: b, max_connection_age: 1h}";
        let read = parse_with(text, &outside).grpc;
        assert_eq!(read.listen, address);
        assert_eq!(read.tls.map(|tls| tls.key_file), Some("b".into()));
        let elsewhere = Outside { has_other_grpc: true, ..Outside::default() };
        let read = parse_with(text, &elsewhere).grpc;
        assert!(!read.is_served());
        let theirs = GrpcSettings { listen: address, health_follows_store: true, ..GrpcSettings::default() };
        let both = read.over(&theirs);
        assert_eq!((both.listen, both.health_follows_store), (address, true));
        assert_eq!(both.max_connection_age, Some(Duration::from_secs(3600)));
        assert_eq!(both.tls.map(|tls| tls.cert_file), Some("a".into()));
        // A file with an address of its own keeps it.
        let socket = Some(SocketFile { path: "/run/g.sock".into(), mode: 0o600 });
        let own = GrpcSettings { socket: socket.clone(), ..GrpcSettings::default() };
        assert_eq!((own.clone().over(&theirs).listen, own.over(&theirs).socket), (None, socket));
    }
}
