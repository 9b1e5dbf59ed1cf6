//! The shared store: combines several envoyproxy/ratelimit variables into one URL.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use slidegate::{Secret, clock::parse_window};
use slidegate_redis::{ClientCertificate, RedisOptions};

use super::reader::Reader;

/// The range of `REDIS_TIMEOUT`.
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// Maximum bytes of a certificate file.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// A Redis server, with options that its URL cannot express.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    /// The URL. It may contain a password.
    pub(crate) url: Secret<String>,
    /// Timeout of a decision, if set.
    pub(crate) deadline: Option<Duration>,
    ca_pem: Option<Vec<u8>>,
    certificate: Option<ClientCertificate>,
}

impl Redis {
    /// Applies settings that the URL cannot express.
    pub(crate) fn apply(self, mut options: RedisOptions) -> RedisOptions {
        if let Some(deadline) = self.deadline {
            options = options.with_deadline(deadline);
        }
        if let Some(pem) = self.ca_pem {
            options = options.with_ca_certificates(pem);
        }
        if let Some(certificate) = self.certificate {
            options = options.with_client_certificate(certificate);
        }
        options
    }
}

impl Reader<'_> {
    pub(super) fn redis(&mut self) -> Option<Redis> {
        let address = self.text("REDIS_URL")?;
        let url = self.redis_url(&address)?;
        if let Err(error) = RedisOptions::new(&url) {
            self.errors.push(format!("REDIS_URL: {error}"));
            return None;
        }
        let certificate_pem = self.pem("REDIS_TLS_CLIENT_CERT");
        let key_pem = self.pem("REDIS_TLS_CLIENT_KEY");
        let certificate = certificate_pem.zip(key_pem);
        Some(Redis {
            url: Secret::new(url),
            deadline: self.read("REDIS_TIMEOUT", |text| match parse_window(text) {
                Ok(span) if !DEADLINES.contains(&span) => {
                    Err(format!("invalid duration `{text}`: must be 1ms to 60s, for example `50ms`"))
                }
                Ok(span) => Ok(span),
                Err(error) => Err(error.to_string()),
            }),
            ca_pem: self.pem("REDIS_TLS_CACERT"),
            certificate: certificate
                .map(|(certificate_pem, key_pem)| ClientCertificate::new(certificate_pem, key_pem)),
        })
    }

    /// Builds the URL from several variables. Errors never repeat their values, which may be
    /// passwords.
    fn redis_url(&mut self, address: &str) -> Option<String> {
        let kind = self.text("REDIS_TYPE").unwrap_or_else(|| "SINGLE".into());
        let auth = self.text("REDIS_AUTH").map(|auth| Login::of(&auth)).unwrap_or_default();
        let is_socket = self.text("REDIS_SOCKET_TYPE").is_none_or(|kind| kind == "unix");
        let (kind, master, list) = match kind.to_ascii_uppercase().as_str() {
            "SINGLE" if is_socket && address.starts_with('/') => {
                // With a space it may be a path and a password.
                if address.contains(char::is_whitespace) && !Path::new(address).exists() {
                    return self.invalid_url("a path with spaces must be that of an existing socket; check it, and start Redis first");
                }
                let path = address.split('/').map(encoded).collect::<Vec<_>>().join("/");
                return Some(format!("unix://{path}{}", auth.parameters("user", "pass")));
            }
            "SINGLE" => ("", None, address),
            "CLUSTER" => ("+cluster", None, address),
            "SENTINEL" => match address.split_once(',') {
                Some((master, sentinels)) => ("+sentinel", Some(master), sentinels),
                None => {
                    return self.invalid_url(
                        "must be the master's name and the sentinels, for example `main,10.0.0.5:26379`",
                    );
                }
            },
            _ => {
                self.invalid("REDIS_TYPE", &kind, "must be `SINGLE`, `SENTINEL` or `CLUSTER`");
                return None;
            }
        };
        let Some(servers) = list.split(',').map(Server::of).collect::<Option<Vec<_>>>() else {
            return self.invalid_url(
                "must be addresses such as `10.0.0.5:6379` or `redis://:PASSWORD@10.0.0.5:6379/0`, or the path of a \
                 socket",
            );
        };
        let mut logins =
            servers.iter().map(|server| &server.login).filter(|login| **login != Login::default());
        let of_url = logins.next().cloned().unwrap_or_default();
        if logins.any(|login| *login != of_url) {
            return self
                .invalid_url("must have one user and password for all servers; give them in REDIS_AUTH");
        }
        let is_encrypted = self.bool("REDIS_TLS") || servers.iter().any(|server| server.is_encrypted);
        let scheme = if is_encrypted { "rediss" } else { "redis" };
        let hosts = servers.iter().map(|server| server.host.as_str()).collect::<Vec<_>>().join(",");
        let database = servers.iter().find_map(|server| server.database.as_ref());
        let database = database.map(|number| format!("/{number}")).unwrap_or_default();
        Some(match master {
            None => format!("{scheme}{kind}://{}{hosts}{database}", auth.or(of_url).prefix()),
            Some(master) => {
                // URLs of Sentinels contain the Sentinels' password.
                let own = self.text("REDIS_SENTINEL_AUTH").map(|auth| Login::of(&auth)).unwrap_or_default();
                let own = own.or(of_url).parameters("sentinel_user", "sentinel_pass");
                format!("{scheme}{kind}://{}{hosts}/{}{database}{own}", auth.prefix(), encoded(master))
            }
        })
    }

    fn invalid_url(&mut self, expected: &str) -> Option<String> {
        self.errors.push(format!("invalid REDIS_URL: {expected}"));
        None
    }

    fn pem(&mut self, name: &str) -> Option<Vec<u8>> {
        // Someone may set a key instead of its path: it must not be shown.
        let shown = |path: &str| {
            if path.starts_with("-----") { "the PEM text".to_owned() } else { format!("`{path}`") }
        };
        self.read(name, |path| {
            let length = std::fs::metadata(path).map(|file| file.len());
            match length.and_then(|length| Ok((length, std::fs::read(path)?))) {
                Ok((length, _)) if length > MAX_PEM_BYTES => {
                    Err(format!("{} is larger than {MAX_PEM_BYTES} bytes; give a PEM file", shown(path)))
                }
                Ok((_, pem)) => Ok(pem),
                Err(error) => Err(format!(
                    "{} cannot be read: {error}; check the path and its permissions",
                    shown(path)
                )),
            }
        })
    }
}

/// A percent-encoded user and password. Without a user, `AUTH` sends only the password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Login {
    user: Option<String>,
    password: Option<String>,
}

impl Login {
    /// Parses `user:password`, or only a password.
    fn of(auth: &str) -> Self {
        let (user, password) = auth.split_once(':').unwrap_or(("", auth));
        Self { user: given(user).map(encoded), password: Some(encoded(password)) }
    }

    /// Fills missing parts from the other login.
    fn or(self, other: Self) -> Self {
        Self { user: self.user.or(other.user), password: self.password.or(other.password) }
    }

    /// The part before the address.
    fn prefix(&self) -> String {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        if *self == Self::default() {
            return String::new();
        }
        format!("{}:{}@", text(&self.user), text(&self.password))
    }

    /// The login as parameters with these names.
    fn parameters(&self, user: &str, password: &str) -> String {
        let pairs = [(user, &self.user), (password, &self.password)].into_iter();
        let pairs = pairs.filter_map(|(name, part)| Some(format!("{name}={}", part.as_ref()?)));
        let pairs = pairs.collect::<Vec<_>>().join("&");
        if pairs.is_empty() { pairs } else { format!("?{pairs}") }
    }
}

/// One address of `REDIS_URL`: `host:port`, or a URL as envoyproxy/ratelimit's client parses it:
/// `redis://user:password@host:port/database?username=...&password=...&db=...`.
struct Server {
    host: String,
    is_encrypted: bool,
    login: Login,
    database: Option<String>,
}

impl Server {
    /// `None`: another scheme, or an unknown parameter.
    fn of(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once("://").unwrap_or(("redis", text.trim()));
        if !["redis", "rediss"].contains(&scheme) {
            return None;
        }
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        // `redis:/` is not a scheme.
        if !text.contains("://") && login.contains('/') {
            return None;
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut of_query = Login::default();
        let mut database = given(path).map(str::to_owned);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            let value = given(value).map(|value| escaped(&value.replace('+', " ")));
            match name {
                "username" => of_query.user = value,
                "password" => of_query.password = value,
                "db" => database = database.or(value),
                _ => return None,
            }
        }
        let login = Login { user: given(user).map(escaped), password: given(password).map(escaped) };
        Some(Self {
            host: host.to_owned(),
            is_encrypted: scheme == "rediss",
            login: login.or(of_query),
            database,
        })
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A URL part, percent-encoded where it is not yet.
fn escaped(text: &str) -> String {
    text.split('%').map(encoded).collect::<Vec<_>>().join("%")
}

/// Percent-encodes everything but unreserved characters.
fn encoded(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let one =
        |byte: u8| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}
