//! The RESP port: `resp:` of the file, the environment, and `--resp`.
//!
//! It is open only if one of them says where. Its password may stand in a file of its own or in the environment, which wins,
//! and shows in no error and no log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slidegate::{ClientCertificate, Secret, parse_window};
use subtle::ConstantTimeEq;

use super::file::{Node, Shown};
use super::section::{Section, text, whole, wrong};
use super::shared::{certificate, read_file};
use super::{Findings, Outside};

/// Every key of `resp`.
pub(super) const KEYS: [&str; 7] =
    ["listen", "password", "password_file", "cert_file", "key_file", "idle_timeout", "max_connections"];

const LISTEN: &str = "give an address and a port, for example `listen: 127.0.0.1:6380`";
/// How long a client may be silent, unless told otherwise: pools keep connections for minutes.
const DEFAULT_IDLE: Duration = Duration::from_secs(600);
/// The shortest and the longest that it may be.
const IDLE_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(7 * 86_400);
/// Connections at once unless told otherwise: each has some 5 KB, at most some 200 KB while it is answered, and 512 KB
/// more while it queues commands after `MULTI`.
const DEFAULT_CONNECTIONS: usize = 10_000;
/// Most that may be configured: under the usual limit of 65,536 file descriptors.
const MAX_CONNECTIONS: u64 = 60_000;

/// The RESP port as configured.
#[derive(Debug, Clone)]
pub(crate) struct Resp {
    pub(crate) listen: SocketAddr,
    pub(crate) password: Option<Password>,
    /// Without it, nothing is encrypted.
    pub(crate) tls: Option<RespTls>,
    /// How long a client may be silent before it is cut off, and up to twice as long.
    pub(crate) idle_timeout: Duration,
    /// At least one.
    pub(crate) max_connections: usize,
}

/// What a client has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Password(Secret<String>);

/// The certificate that clients are shown.
#[derive(Debug, Clone)]
pub(crate) struct RespTls {
    /// What shows it.
    pub(crate) config: Arc<ServerConfig>,
    /// What the files held when it was made.
    pair: ClientCertificate,
}

/// Two are the same if they show the same certificate.
impl PartialEq for RespTls {
    fn eq(&self, other: &Self) -> bool {
        self.pair == other.pair
    }
}

impl Password {
    /// Longest password, in bytes.
    pub(super) const MAX: usize = 512;

    /// A password of 1 to [`MAX`](Self::MAX) bytes.
    pub(super) fn new(text: &str) -> Option<Self> {
        (1..=Self::MAX).contains(&text.len()).then(|| Self(Secret::new(text.to_owned())))
    }

    /// Whether this is it. The time it takes depends on the length of what is given and on nothing else: digests are
    /// compared, so that it does not tell the length of the password either.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let sha256 = |bytes| digest(&SHA256, bytes);
        sha256(self.0.expose().as_bytes()).as_ref().ct_eq(sha256(given).as_ref()).into()
    }
}

impl Resp {
    /// A port with nothing said but where, and what the environment says.
    pub(super) fn at(listen: SocketAddr, password: Option<Password>) -> Self {
        Self { listen, password, tls: None, idle_timeout: DEFAULT_IDLE, max_connections: DEFAULT_CONNECTIONS }
    }

    /// The settings in which two ports differ, by their names.
    pub(super) fn differences(old: Option<&Self>, new: Option<&Self>) -> Vec<&'static str> {
        let (Some(old), Some(new)) = (old, new) else {
            return if old.is_some() == new.is_some() { Vec::new() } else { vec!["resp"] };
        };
        let settings = [
            ("resp: listen", old.listen != new.listen),
            ("resp: password", old.password != new.password),
            ("resp: cert_file", old.tls != new.tls),
            ("resp: idle_timeout", old.idle_timeout != new.idle_timeout),
            ("resp: max_connections", old.max_connections != new.max_connections),
        ];
        settings.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

/// Reads the port. `None` if there is none, or a wrong one, which was found.
pub(super) fn resp(section: &Section<'_>, outside: &Outside, findings: &mut Findings) -> Option<Resp> {
    let listen = section.read("listen", findings, |node| {
        text("listen", node, LISTEN)?.parse().map_err(|_| wrong("listen", node, LISTEN))
    });
    let password = password(section, findings);
    let tls = tls(section, findings);
    let idle_timeout = section.read("idle_timeout", findings, idle_timeout);
    let max_connections = section.read("max_connections", findings, |node| {
        let way_out = format!("give 1 to {MAX_CONNECTIONS}, for example `max_connections: 1000`");
        let number = whole("max_connections", node, &way_out)?;
        let number = usize::try_from(number).ok().filter(|_| (1..=MAX_CONNECTIONS).contains(&number));
        number.ok_or_else(|| wrong("max_connections", node, &way_out))
    });
    let Some(listen) = outside.resp.or(listen) else {
        if section.get("listen").is_none() && !section.is_misspelt("listen") {
            let message = format_args!("listen is missing; {LISTEN}, or give `--resp`");
            section.find(section.line_of("listen"), message, findings);
        }
        return None;
    };
    let default = Resp::at(listen, outside.resp_password.clone().or(password));
    Some(Resp {
        tls,
        idle_timeout: idle_timeout.unwrap_or(default.idle_timeout),
        max_connections: max_connections.unwrap_or(default.max_connections),
        ..default
    })
}

fn idle_timeout(node: &Node) -> Result<Duration, String> {
    let way_out = "give 1s to 7d, for example `idle_timeout: 10m`";
    let span = parse_window(text("idle_timeout", node, way_out)?).ok();
    span.filter(|span| IDLE_RANGE.contains(span)).ok_or_else(|| wrong("idle_timeout", node, way_out))
}

fn password(section: &Section<'_>, findings: &mut Findings) -> Option<Password> {
    let here = section.read("password", findings, |node| {
        node.scalar().and_then(Password::new).ok_or_else(|| {
            let most = Password::MAX;
            format!("password is not a text of 1 to {most} bytes; give one, or `password_file`")
        })
    });
    let elsewhere = section.read("password_file", findings, |node| {
        let bytes = read_file("password_file", node)?;
        let text = String::from_utf8(bytes).ok();
        // Editors end a file with a line end.
        text.and_then(|text| Password::new(text.trim_end_matches(['\r', '\n']))).ok_or_else(|| {
            let path = node.scalar().unwrap_or_default();
            let most = Password::MAX;
            format!(
                "password_file `{}` does not hold a text of 1 to {most} bytes; write one there",
                Shown(path)
            )
        })
    });
    if let (Some(_), Some(node)) = (section.get("password"), section.get("password_file")) {
        section.find(node.line, "password and password_file both stand; keep one", findings);
    }
    here.or(elsewhere)
}

fn tls(section: &Section<'_>, findings: &mut Findings) -> Option<RespTls> {
    let pair = certificate(section, findings)?;
    let built = server_config(&pair.certificate_pem, pair.key_pem.expose());
    let config =
        built.map_err(|(key, message)| section.find(section.line_of(key), message, findings)).ok()?;
    Some(RespTls { config, pair })
}

/// What shows this certificate. An error says which key of the file is wrong.
fn server_config(
    certificate_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<ServerConfig>, (&'static str, String)> {
    let certificates = CertificateDer::pem_slice_iter(certificate_pem).collect::<Result<Vec<_>, _>>();
    let certificates =
        certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(|| {
            ("cert_file", "cert_file holds no certificate that can be read; give PEM".to_owned())
        })?;
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|_| ("key_file", "key_file holds no key that can be read; give PEM".to_owned()))?;
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map(Arc::new)
        .map_err(|error| {
            (
                "cert_file",
                format!("cert_file and key_file are no pair: {error}; give a certificate and its key"),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::{KEYS, Password, Resp};
    use crate::config::tests::{error, errors};
    use crate::config::{Config, Outside};

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    fn resp(keys: &str, outside: &Outside) -> Resp {
        let config = Config::parse_with(&format!("resp: {{{keys}}}{POLICY}"), "slidegate.yaml", outside);
        config.unwrap_or_else(|errors| panic!("{errors}")).resp.expect("a port is named")
    }

    /// What does not arrive is a port that is open to everyone, or closed to all.
    #[test]
    fn every_setting_of_the_port_arrives() {
        let said = resp(
            "listen: '[::1]:6380', password: 'open sesame', idle_timeout: 1h, max_connections: 5",
            &Outside::default(),
        );
        assert_eq!(said.listen.to_string(), "[::1]:6380");
        assert_eq!((said.idle_timeout.as_secs(), said.max_connections), (3600, 5));
        let password = said.password.expect("a password is said");
        assert!(password.is(b"open sesame") && !password.is(b"open sesam") && !password.is(b""));
        assert_eq!(format!("{password:?}"), "Password(***)");
        let bare = resp("listen: 127.0.0.1:6380", &Outside::default());
        assert_eq!((bare.idle_timeout.as_secs(), bare.max_connections), (600, 10_000));
        assert!(bare.password.is_none() && bare.tls.is_none());
        assert!(Config::parse(POLICY, "slidegate.yaml").unwrap().resp.is_none(), "off unless it is named");
    }

    /// `--resp` and the environment win, and the rest of the file still counts.
    #[test]
    fn what_is_outside_the_file_wins_over_it() {
        let outside = Outside {
            resp: Some("127.0.0.1:7000".parse().unwrap()),
            resp_password: Password::new("outside"),
            ..Outside::default()
        };
        let both = resp("listen: 127.0.0.1:6380, password: inside, max_connections: 5", &outside);
        assert_eq!((both.listen.port(), both.max_connections), (7000, 5));
        assert!(both.password.is_some_and(|password| password.is(b"outside")));
        assert_eq!(resp("max_connections: 5", &outside).listen.port(), 7000);
        let alone = Config::parse_with(POLICY, "slidegate.yaml", &outside).unwrap().resp.unwrap();
        assert!(alone.password.is_some_and(|password| password.is(b"outside")));
    }

    /// Each is a port that would be somewhere else, or guarded by something else, than was meant.
    #[test]
    fn each_wrong_setting_of_the_port_names_its_value_and_the_way_out() {
        let listen = "give an address and a port, for example `listen: 127.0.0.1:6380`";
        let here = "listen: 127.0.0.1:6380";
        let connections = "give 1 to 60000, for example `max_connections: 1000`";
        let idle = "give 1s to 7d, for example `idle_timeout: 10m`";
        for (keys, expected) in [
            ("listen: 6380".to_owned(), format!("listen is 6380; {listen}")),
            ("password: x".into(), format!("listen is missing; {listen}, or give `--resp`")),
            (
                format!("{here}, password: "),
                "password is not a text of 1 to 512 bytes; give one, or `password_file`".into(),
            ),
            (
                format!("{here}, password_file: /dev/null"),
                "password_file `/dev/null` does not hold a text of 1 to 512 bytes; write one there".into(),
            ),
            (
                format!("{here}, password_file: no/such"),
                "password_file `no/such` cannot be read: No such file or directory (os error 2); check the path and who \
                 may read it"
                    .into(),
            ),
            (
                format!("{here}, cert_file: /dev/null"),
                "cert_file stands without key_file; a certificate is shown with its key, so give both".into(),
            ),
            (
                format!("{here}, cert_file: /dev/null, key_file: /dev/null"),
                "cert_file holds no certificate that can be read; give PEM".into(),
            ),
            (format!("{here}, idle_timeout: 10"), format!("idle_timeout is 10; {idle}")),
            (format!("{here}, idle_timeout: 8d"), format!("idle_timeout is `8d`; {idle}")),
            (format!("{here}, max_connections: 0"), format!("max_connections is 0; {connections}")),
            (format!("{here}, max_connections: 60001"), format!("max_connections is 60001; {connections}")),
            (format!("{here}, pasword: x"), "unknown key `pasword`; did you mean `password`?".into()),
        ] {
            let told = error(&format!("resp: {{{keys}}}{POLICY}"));
            assert_eq!(told, format!("slidegate.yaml:1: resp: {expected}"), "{keys}");
        }
        let both =
            error(&format!("resp: {{{here}, password: x, password_file: /proc/sys/kernel/ostype}}{POLICY}"));
        assert_eq!(both, "slidegate.yaml:1: resp: password and password_file both stand; keep one");
    }

    /// Usage of the commands would be counted under a policy of their name.
    #[test]
    fn no_policy_is_called_like_a_command() {
        let way_out = "keys of the RESP command of this name are kept under it; give the policy another";
        let text = "policies:\n  - {name: THROTTLE, quota: 1/1s}\n  - {name: CL.THROTTLE, quota: 1/1s}\n";
        let expected = [
            format!("slidegate.yaml:2: policy `THROTTLE`: {way_out}"),
            format!("slidegate.yaml:3: policy `CL.THROTTLE`: {way_out}"),
        ];
        assert_eq!(errors(text), expected);
        let flag = ["1/1s named THROTTLE".to_owned()];
        let told = Config::from_sources(None, &flag, &Outside::default()).unwrap_err().to_string();
        assert_eq!(told, format!("--policy `1/1s named THROTTLE`: {way_out}"));
    }

    /// A key that no document mentions is one that nobody sets.
    #[test]
    fn every_key_of_the_port_is_documented_and_the_example_says_the_defaults() {
        let reference = include_str!("../../../../docs/config.md");
        let example = include_str!("../../../../docs/slidegate.example.yaml");
        let section = example.split("# Clients of Redis").nth(1).expect("the example has the port");
        for key in KEYS {
            let rows = reference.lines().filter(|line| line.starts_with("| `"));
            let mut keys = rows.filter_map(|line| line.split(" | ").next());
            assert!(keys.any(|first| first.contains(&format!("`{key}`"))), "{key} is not in the reference");
            assert!(section.contains(&format!("#   {key}: ")), "{key} is not in the example");
        }
        let lines = section.lines().skip(1).take_while(|line| !line.starts_with("# Unless"));
        let lines: Vec<_> = lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        let said = Config::parse(&format!("{}{POLICY}", lines.join("\n")), "").unwrap().resp;
        let bare = resp("listen: 127.0.0.1:6380", &Outside::default());
        assert_eq!(format!("{:?}", said.unwrap()), format!("{bare:?}"));
    }
}
