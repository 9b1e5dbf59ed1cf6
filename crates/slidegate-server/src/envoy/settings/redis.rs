//! The store that the variables name: what the reference says in several is one URL here.

use std::ops::RangeInclusive;
use std::time::Duration;

use slidegate::{ClientCertificate, RedisOptions, Secret, parse_window};

use super::reader::Reader;
use crate::config::SharedStore;

/// How long a decision may take at most: with no time none is made, and past a minute it is none.
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// Largest file of certificates.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// A store, and what its URL cannot say.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    /// It may have a password in it.
    pub(crate) url: Secret<String>,
    deadline: Option<Duration>,
    ca_pem: Option<Vec<u8>>,
    certificate: Option<ClientCertificate>,
}

impl Redis {
    /// Puts what the URL does not say into a store made of it.
    pub(crate) fn complete(self, mut store: SharedStore) -> SharedStore {
        if let Some(deadline) = self.deadline {
            store.deadline = deadline;
            store.options = store.options.deadline(deadline);
        }
        if let Some(pem) = self.ca_pem {
            store.options = store.options.ca_certificates(pem);
        }
        if let Some(certificate) = self.certificate {
            store.options = store.options.client_certificate(certificate);
        }
        store
    }
}

impl Reader<'_> {
    pub(super) fn redis(&mut self) -> Option<Redis> {
        let place = self.text("REDIS_URL")?;
        let url = self.redis_url(&place)?;
        if let Err(error) = RedisOptions::new(&url) {
            self.mistakes.push(format!("REDIS_URL: {error}"));
            return None;
        }
        let certificate_pem = self.pem("REDIS_TLS_CLIENT_CERT");
        let key_pem = self.pem("REDIS_TLS_CLIENT_KEY");
        let certificate = certificate_pem.zip(key_pem);
        Some(Redis {
            url: Secret::new(url),
            deadline: self.read("REDIS_TIMEOUT", |text| match parse_window(text) {
                Ok(span) if !DEADLINES.contains(&span) => Err(format!("`{text}` is not within 1ms to 60s")),
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

    /// Our URL of what the reference has in several variables.
    fn redis_url(&mut self, place: &str) -> Option<String> {
        let scheme = if self.flag("REDIS_TLS") { "rediss" } else { "redis" };
        let login = self.text("REDIS_AUTH").map(|auth| Login::of(&auth));
        let at =
            login.as_ref().map(|login| format!("{}:{}@", login.user, login.password)).unwrap_or_default();
        let kind = self.text("REDIS_TYPE").unwrap_or_else(|| "SINGLE".into());
        match kind.to_ascii_uppercase().as_str() {
            "SINGLE"
                if self.text("REDIS_SOCKET_TYPE").is_none_or(|kind| kind == "unix")
                    && place.starts_with('/') =>
            {
                let query = login.map(|login| format!("?user={}&pass={}", login.user, login.password));
                Some(format!("unix://{place}{}", query.unwrap_or_default()))
            }
            "SINGLE" => Some(format!("{scheme}://{at}{place}")),
            "CLUSTER" => Some(format!("{scheme}+cluster://{at}{place}")),
            "SENTINEL" => {
                let Some((master, sentinels)) = place.split_once(',') else {
                    let way_out =
                        "write the master's name and the sentinels, for example `main,10.0.0.5:26379`";
                    self.wrong("REDIS_URL", place, way_out);
                    return None;
                };
                let query = self.text("REDIS_SENTINEL_AUTH").map(|auth| Login::of(&auth));
                let query = query
                    .map(|login| format!("?sentinel_user={}&sentinel_pass={}", login.user, login.password))
                    .unwrap_or_default();
                Some(format!("{scheme}+sentinel://{at}{sentinels}/{}{query}", encoded(master)))
            }
            _ => {
                self.wrong("REDIS_TYPE", &kind, "write `SINGLE`, `SENTINEL` or `CLUSTER`");
                None
            }
        }
    }

    fn pem(&mut self, name: &str) -> Option<Vec<u8>> {
        self.read(name, |path| {
            let length = std::fs::metadata(path).map(|file| file.len());
            match length.and_then(|length| Ok((length, std::fs::read(path)?))) {
                Ok((length, _)) if length > MAX_PEM_BYTES => {
                    Err(format!("`{path}` is larger than {MAX_PEM_BYTES} bytes; give PEM"))
                }
                Ok((_, pem)) => Ok(pem),
                Err(error) => {
                    Err(format!("`{path}` cannot be read: {error}; check the path and who may read it"))
                }
            }
        })
    }
}

/// `user:password`, or a password alone, as they stand in URLs.
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

/// Percent-encoded but for what is harmless everywhere in a URL.
fn encoded(text: &str) -> String {
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let one = |byte: u8| if harmless(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}
