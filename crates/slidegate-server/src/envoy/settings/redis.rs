//! The shared store: several variables of envoyproxy/ratelimit become one URL.

use std::ops::RangeInclusive;
use std::time::Duration;

use slidegate::{RedisOptions, Secret, parse_window, redis::ClientCertificate};

use super::reader::Reader;

/// The range of `REDIS_TIMEOUT`.
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// Largest certificate file, in bytes.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// A Redis server, with options that its URL cannot express.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    /// The URL. It may contain a password.
    pub(crate) url: Secret<String>,
    /// The longest time for a decision, if set.
    pub(crate) deadline: Option<Duration>,
    ca_pem: Option<Vec<u8>>,
    certificate: Option<ClientCertificate>,
}

impl Redis {
    /// Applies what the URL cannot express.
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
            certificate: certificate.map(|(certificate_pem, key_pem)| ClientCertificate {
                certificate_pem,
                key_pem: key_pem.into(),
            }),
        })
    }

    /// The URL for several variables.
    fn redis_url(&mut self, address: &str) -> Option<String> {
        let scheme = if self.bool("REDIS_TLS") { "rediss" } else { "redis" };
        let login = self.text("REDIS_AUTH").map(|auth| Login::of(&auth));
        let at =
            login.as_ref().map(|login| format!("{}:{}@", login.user, login.password)).unwrap_or_default();
        let kind = self.text("REDIS_TYPE").unwrap_or_else(|| "SINGLE".into());
        match kind.to_ascii_uppercase().as_str() {
            "SINGLE"
                if self.text("REDIS_SOCKET_TYPE").is_none_or(|kind| kind == "unix")
                    && address.starts_with('/') =>
            {
                let query = login.map(|login| format!("?user={}&pass={}", login.user, login.password));
                Some(format!("unix://{address}{}", query.unwrap_or_default()))
            }
            "SINGLE" => Some(format!("{scheme}://{at}{address}")),
            "CLUSTER" => Some(format!("{scheme}+cluster://{at}{address}")),
            "SENTINEL" => {
                let Some((master, sentinels)) = address.split_once(',') else {
                    let fix =
                        "must be the master's name and the sentinels, for example `main,10.0.0.5:26379`";
                    self.invalid("REDIS_URL", address, fix);
                    return None;
                };
                let query = self.text("REDIS_SENTINEL_AUTH").map(|auth| Login::of(&auth));
                let query = query
                    .map(|login| format!("?sentinel_user={}&sentinel_pass={}", login.user, login.password))
                    .unwrap_or_default();
                Some(format!("{scheme}+sentinel://{at}{sentinels}/{}{query}", encoded(master)))
            }
            _ => {
                self.invalid("REDIS_TYPE", &kind, "must be `SINGLE`, `SENTINEL` or `CLUSTER`");
                None
            }
        }
    }

    fn pem(&mut self, name: &str) -> Option<Vec<u8>> {
        self.read(name, |path| {
            let length = std::fs::metadata(path).map(|file| file.len());
            match length.and_then(|length| Ok((length, std::fs::read(path)?))) {
                Ok((length, _)) if length > MAX_PEM_BYTES => {
                    Err(format!("`{path}` is larger than {MAX_PEM_BYTES} bytes; give a PEM file"))
                }
                Ok((_, pem)) => Ok(pem),
                Err(error) => {
                    Err(format!("`{path}` cannot be read: {error}; check the path and its permissions"))
                }
            }
        })
    }
}

/// `user:password` or only a password, percent-encoded.
struct Login {
    user: String,
    password: String,
}

impl Login {
    fn of(auth: &str) -> Self {
        let (user, password) = auth.split_once(':').unwrap_or(("", auth));
        Self { user: encoded(user), password: encoded(password) }
    }
}

/// Percent-encodes everything but unreserved characters.
fn encoded(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let one =
        |byte: u8| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}
