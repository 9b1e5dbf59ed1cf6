//! The gRPC door: `grpc:` of the file, made into where it listens and whom it trusts.
//!
//! Files of certificates are named here and read by the door, which reads them again when they change.

use std::path::PathBuf;
use std::time::Duration;

use slidegate::{Quota, parse_window};

use super::file::Node;
use super::section::{Section, flag, text, wrong};
use super::{Findings, Outside};

/// Every key of `grpc`.
pub(super) const KEYS: [&str; 9] = [
    "listen",
    "socket",
    "cert_file",
    "key_file",
    "client_ca_file",
    "client_name",
    "max_connection_age",
    "response_headers",
    "health_follows_store",
];
/// The shortest age: below it a proxy would do little else than connect.
const SHORTEST_AGE: Duration = Duration::from_secs(1);
/// What to write where nothing is.
pub(super) const EXAMPLE: &str = "listen: 127.0.0.1:8081";

pub(crate) use slidegate_envoy::{GrpcSettings as Grpc, GrpcTls};

/// Reads the section. What is outside the file may say where to listen.
pub(super) fn grpc(section: &Section<'_>, outside: &Outside, findings: &mut Findings) -> Grpc {
    let is_served_elsewhere = outside.grpc.is_some() || outside.has_other_grpc;
    const LISTEN: &str = "give an address and a port, for example `127.0.0.1:8081` or `[::]:8081`";
    let listen = section.read("listen", findings, |node| {
        text("listen", node, LISTEN)?.parse().map_err(|_| wrong("listen", node, LISTEN))
    });
    let socket = section.read("socket", findings, |node| path("socket", node, "/run/slidegate/grpc.sock"));
    for key in KEYS {
        let stands_alone =
            !is_served_elsewhere && section.get("listen").is_none() && section.get("socket").is_none();
        if let Some(node) = section.get(key).filter(|_| stands_alone && !section.is_misspelt("listen")) {
            let message = format_args!(
                "{key} stands without listen and socket; write for example `{EXAMPLE}`, or give `--grpc`"
            );
            section.find(node.line, message, findings);
            break;
        }
    }
    Grpc {
        listen: outside.grpc.or(listen),
        socket,
        tls: tls(section, is_served_elsewhere, findings),
        max_connection_age: section.read("max_connection_age", findings, |node| {
            const AGE: &str = "give 1s to 366d, for example `max_connection_age: 24h`";
            let span = parse_window(text("max_connection_age", node, AGE)?).ok();
            let in_range = |span: &Duration| (SHORTEST_AGE..=Quota::MAX_WINDOW).contains(span);
            span.filter(in_range).ok_or_else(|| wrong("max_connection_age", node, AGE))
        }),
        // Only envoyproxy/ratelimit has a name for it.
        max_connection_age_grace: None,
        response_headers: section
            .read("response_headers", findings, |node| flag("response_headers", node))
            .unwrap_or_default(),
        health_follows_store: section
            .read("health_follows_store", findings, |node| flag("health_follows_store", node))
            .unwrap_or_default(),
    }
}

fn tls(section: &Section<'_>, is_served_elsewhere: bool, findings: &mut Findings) -> Option<GrpcTls> {
    let cert_file =
        section.read("cert_file", findings, |node| path("cert_file", node, "/etc/slidegate/tls.crt"));
    let key_file =
        section.read("key_file", findings, |node| path("key_file", node, "/etc/slidegate/tls.key"));
    let client_ca_file = section
        .read("client_ca_file", findings, |node| path("client_ca_file", node, "/etc/slidegate/ca.crt"));
    let client_name = section.read("client_name", findings, |node| {
        text("client_name", node, "give a DNS name, for example `envoy.example.com`").map(str::to_owned)
    });
    let needs = [
        ("cert_file", "key_file", "a certificate is shown with its key, so give both"),
        ("key_file", "cert_file", "a certificate is shown with its key, so give both"),
        ("client_ca_file", "cert_file", "clients show certificates over TLS only, so give both"),
        ("client_name", "client_ca_file", "who has signed the name has to be known, so give both"),
        ("cert_file", "listen", "a socket file has no TLS, so give an address or leave it out"),
    ];
    for (one, other, why) in needs {
        let is_missing = section.get(other).is_none() && !section.is_misspelt(other);
        // Without any place to listen that was found already.
        let is_found = other == "listen" && (is_served_elsewhere || section.get("socket").is_none());
        if let Some(node) = section.get(one).filter(|_| is_missing && !is_found) {
            section.find(node.line, format_args!("{one} stands without {other}; {why}"), findings);
        }
    }
    Some(GrpcTls { cert_file: cert_file?, key_file: key_file?, client_ca_file, client_name })
}

fn path(key: &str, node: &Node, example: &str) -> Result<PathBuf, String> {
    text(key, node, &format!("give a path, for example `{key}: {example}`")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tests::error;

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    /// A door that is not where it was meant to be lets everything pass: Envoy fails open unless told otherwise.
    #[test]
    fn every_setting_arrives() {
        let read = |text: &str| Config::parse(&format!("{text}{POLICY}"), "slidegate.yaml").unwrap().grpc;
        assert_eq!(read(""), Grpc::default());
        assert!(!read("").is_served());
        assert_eq!(
            read(
                "grpc: {listen: '127.0.0.1:8081', socket: /run/g.sock, cert_file: a, key_file: b, client_ca_file: c,
                 client_name: envoy.example.com, max_connection_age: 24h, response_headers: true, health_follows_store: true}"
            ),
            Grpc {
                listen: Some("127.0.0.1:8081".parse().unwrap()),
                socket: Some("/run/g.sock".into()),
                tls: Some(GrpcTls {
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

    /// An operator gives the address on the command line and keeps the certificate in the file: both must hold.
    #[test]
    fn the_command_line_may_say_where_and_the_file_the_rest() {
        let outside = Outside { grpc: Some("127.0.0.1:1".parse().unwrap()), ..Outside::default() };
        let text = format!("grpc: {{cert_file: a, key_file: b, max_connection_age: 1h}}{POLICY}");
        let read = Config::parse_with(&text, "slidegate.yaml", &outside).unwrap().grpc;
        assert_eq!(read.listen, outside.grpc);
        assert_eq!(read.tls.map(|tls| tls.key_file), Some("b".into()));
        let elsewhere = Outside { has_other_grpc: true, ..Outside::default() };
        let read = Config::parse_with(&text, "slidegate.yaml", &elsewhere).unwrap().grpc;
        assert!(!read.is_served());
        let theirs = Grpc { listen: outside.grpc, health_follows_store: true, ..Grpc::default() };
        let both = read.over(&theirs);
        assert_eq!((both.listen, both.health_follows_store), (outside.grpc, true));
        assert_eq!(both.max_connection_age, Some(Duration::from_secs(3600)));
        assert_eq!(both.tls.map(|tls| tls.cert_file), Some("a".into()));
        // Where the file says it all, its address stays its own.
        let own = Grpc { socket: Some("/run/g.sock".into()), ..Grpc::default() };
        assert_eq!(
            (own.clone().over(&theirs).listen, own.over(&theirs).socket),
            (None, Some("/run/g.sock".into()))
        );
    }

    /// A certificate that is named and not used is a door that everybody believes is locked.
    #[test]
    fn each_wrong_setting_names_its_value_and_the_way_out() {
        for (text, expected) in [
            (
                "{listen: 8081}",
                "listen is 8081; give an address and a port, for example `127.0.0.1:8081` or `[::]:8081`",
            ),
            ("{socket: []}", "socket is a list; give a path, for example `socket: /run/slidegate/grpc.sock`"),
            (
                "{response_headers: true}",
                "response_headers stands without listen and socket; write for example `listen: 127.0.0.1:8081`, or give \
                 `--grpc`",
            ),
            (
                "{listen: '[::]:1', cert_file: a}",
                "cert_file stands without key_file; a certificate is shown with its key, so give both",
            ),
            (
                "{listen: '[::]:1', client_ca_file: a}",
                "client_ca_file stands without cert_file; clients show certificates over TLS only, so give both",
            ),
            (
                "{listen: '[::]:1', cert_file: a, key_file: b, client_name: x}",
                "client_name stands without client_ca_file; who has signed the name has to be known, so give both",
            ),
            (
                "{socket: s, cert_file: a, key_file: b}",
                "cert_file stands without listen; a socket file has no TLS, so give an address or leave it out",
            ),
            (
                "{listen: '[::]:1', max_connection_age: 500ms}",
                "max_connection_age is `500ms`; give 1s to 366d, for example `max_connection_age: 24h`",
            ),
            ("{listen: '[::]:1', lissten: x}", "unknown key `lissten`; did you mean `listen`?"),
        ] {
            assert_eq!(
                error(&format!("grpc: {text}{POLICY}")),
                format!("slidegate.yaml:1: grpc: {expected}"),
                "{text}"
            );
        }
    }
}
