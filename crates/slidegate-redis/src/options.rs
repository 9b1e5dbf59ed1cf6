//! Options: where Redis is and how to talk to it.
//!
//! Passwords appear in no error and no `Debug` output.

use std::fmt;
use std::time::Duration;

use redis_once::{Application, ClientCertificate, InvalidOptions, Options, Pem};
use slidegate::Error;

use crate::names::Names;
use crate::native::NativeCommand;

const APPLICATION: Application = Application {
    name: "slidegate",
    version: env!("CARGO_PKG_VERSION"),
    script_error: "SLIDEGATE",
    native: NativeCommand::NAMES,
};

#[allow(clippy::needless_pass_by_value)] // for `map_err`
pub(crate) fn invalid_options(error: InvalidOptions) -> Error {
    Error::store(error.to_string())
}

/// Where Redis is and how to talk to it: one server, a cluster, or the master that Sentinels name.
///
/// | URL | meaning |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | one server; default port 6379 |
/// | `unix:///path/to.sock[?db=N&user=NAME&pass=PASSWORD]` | one server, over a socket file; also `redis+unix://` |
/// | `redis+cluster://[user:password@]host:port,host:port` | a cluster; some of its nodes are enough |
/// | `redis+sentinel://[user:password@]host:port,host:port/master[/db]` | the master of that name; default port of Sentinels 26379; optionally `?sentinel_user=NAME&sentinel_pass=PASSWORD` |
///
/// `rediss`, `rediss+cluster` and `rediss+sentinel` are the same over TLS. Characters with a
/// meaning in URLs are written `%40` in names and passwords.
///
/// ```
/// use slidegate_redis::RedisOptions;
/// use std::time::Duration;
///
/// let options = RedisOptions::new("redis://127.0.0.1:6379")?
///     .with_deadline(Duration::from_millis(20))
///     .with_connections(2);
///
/// let error = RedisOptions::new("redis://me:secret@10.0.0.5:port").unwrap_err();
/// assert!(error.is_store());
/// assert_eq!(
///     error.to_string(),
///     "redis url: a port must be a number from 1 to 65535; give for example `redis://127.0.0.1:6379`"
/// );
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// Equality includes passwords, keys and certificates. No `Debug` output shows those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    pub(crate) connection: Options,
    /// Whether checks of the same keys are batched.
    pub(crate) batches_checks: bool,
    /// Whether denials are cached while they are true.
    pub(crate) caches_denials: bool,
    /// Whether this process takes leases, of policies that have them.
    pub(crate) takes_leases: bool,
    pub(crate) names: Names,
}

impl RedisOptions {
    /// Options for the servers in a URL, all else at its default.
    ///
    /// # Errors
    /// An unknown scheme, a missing host or master name, a port or database that is no number, a
    /// parameter that the scheme does not have.
    pub fn new(url: &str) -> Result<Self, Error> {
        Ok(Self {
            connection: Options {
                application: APPLICATION,
                ..Options::from_url(url).map_err(invalid_options)?
            },
            batches_checks: true,
            caches_denials: true,
            takes_leases: true,
            names: Names { secret: Names::NO_SECRET, always_hashed: false, hash_tag: None },
        })
    }

    /// Makes one call for each check.
    ///
    /// By default, checks that arrive while a call for the same keys is in flight wait for it and
    /// go as one call, which decides them in their order of arrival.
    #[must_use]
    pub fn without_batching(self) -> Self {
        Self { batches_checks: false, ..self }
    }

    /// Calls the server for every check.
    ///
    /// By default, a denial is cached in this process for as long as it is certainly true.
    #[must_use]
    pub fn without_denial_cache(self) -> Self {
        Self { caches_denials: false, ..self }
    }

    /// Takes no leases, whatever policies say.
    ///
    /// By default, this process leases slices of the hot keys of policies [with a
    /// lease](slidegate::Policy::with_lease).
    #[must_use]
    pub fn without_leases(self) -> Self {
        Self { takes_leases: false, ..self }
    }

    /// Hashes every id in key names, not only long or unusual ones: for clusters, where clients
    /// must not choose slots, and for personal data.
    #[must_use]
    pub fn hashed_keys(self) -> Self {
        Self { names: Names { always_hashed: true, ..self.names }, ..self }
    }

    /// Sets the key of the id hash. Use the same text in every instance and keep it from clients.
    /// Without it, anyone can compute the slot of an id.
    #[must_use]
    pub fn with_key_secret(self, secret: &str) -> Self {
        Self { names: Names { secret: Names::secret_of(secret), ..self.names }, ..self }
    }

    /// Puts all keys of requests that share this attribute's value in one cluster slot, so that one
    /// step decides them. Without the attribute, the keys decide the slots.
    #[must_use]
    pub fn with_hash_tag(self, attribute: impl Into<String>) -> Self {
        Self { names: Names { hash_tag: Some(attribute.into()), ..self.names }, ..self }
    }

    /// The attribute of [`hash_tag`](Self::hash_tag), if there is one.
    #[must_use]
    pub fn hash_tag(&self) -> Option<&str> {
        self.names.hash_tag.as_deref()
    }

    /// Sets the maximum duration of a decision, including connecting and queueing.
    ///
    /// 1 ms to 60 s. Default: 50 ms.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { connection: Options { deadline, ..self.connection }, ..self }
    }

    /// Sets the maximum duration of connecting. Decisions do not wait for it past their own
    /// deadline. Sentinels and cluster nodes have as long to answer who holds the keys: at
    /// least 200 ms, at most one second.
    ///
    /// 1 ms to 60 s. Default: 250 ms, or the deadline if that is longer.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connection: Options { connect_timeout: Some(connect_timeout), ..self.connection }, ..self }
    }

    /// Sets the number of connections per node, used in turn.
    ///
    /// 1 to 16. Default: 1, which many concurrent calls share well.
    #[must_use]
    pub fn with_connections(self, connections: u8) -> Self {
        Self { connection: Options { connections, ..self.connection }, ..self }
    }

    /// Speaks RESP2 without trying RESP3 first.
    ///
    /// Servers without RESP3 are detected anyway; this saves one refused command.
    #[must_use]
    pub fn resp2_only(self) -> Self {
        Self { connection: Options { resp2_only: true, ..self.connection }, ..self }
    }

    /// Trusts only servers with certificates signed by these authorities, in PEM form.
    ///
    /// Default: the public authorities that browsers trust. A server's name is always checked
    /// as well.
    #[must_use]
    pub fn with_ca_certificates(self, pem: Vec<u8>) -> Self {
        let ca_certificates = Some(Pem(pem));
        Self { connection: Options { ca_certificates, ..self.connection }, ..self }
    }

    /// Presents this certificate to servers.
    #[must_use]
    pub fn with_client_certificate(self, certificate: ClientCertificate) -> Self {
        let client_certificate = Some(certificate);
        Self { connection: Options { client_certificate, ..self.connection }, ..self }
    }

    /// Replaces the servers by those of another URL: addresses, TLS, database, names and passwords.
    #[must_use]
    pub fn with_url_of(self, other: &Self) -> Self {
        let Options { servers, tls, credentials, sentinel_credentials, database, .. } =
            other.connection.clone();
        let connection =
            Options { servers, tls, credentials, sentinel_credentials, database, ..self.connection };
        Self { connection, ..self }
    }
}

/// The servers as a URL without user names and passwords: `redis://10.0.0.5:6379/2`.
impl fmt::Display for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong number must be met at the start, not as a limiter that never answers.
    #[test]
    fn numbers_out_of_range_are_refused() {
        let options = RedisOptions::new("redis://h").unwrap();
        let error = |options: RedisOptions| options.connection.check().unwrap_err().to_string();
        assert_eq!(options.connection.check(), Ok(()));
        assert_eq!(
            error(options.clone().with_connections(0)),
            "redis connections is 0; give 1 to 16 for each node"
        );
        assert_eq!(
            error(options.clone().with_deadline(Duration::ZERO)),
            "redis deadline is 0ns; give 1ms to 60s, for example 50ms"
        );
        assert_eq!(
            error(options.clone().with_connect_timeout(Duration::from_secs(61))),
            "redis connect timeout is 61s; give 1ms to 60s, for example 250ms"
        );
        assert_eq!(
            error(options.with_ca_certificates(vec![1])),
            "redis has certificates but its url does not encrypt; give a url that begins with `rediss`"
        );
    }

    /// A start-up screen names the store; it must name the right one, and nobody's password.
    #[test]
    fn options_are_shown_as_their_url_without_secrets() {
        for (url, shown) in [
            ("redis://me:hidden@h/2", "redis://h:6379/2"),
            ("rediss://[::1]:80", "rediss://[::1]:80"),
            ("unix:///run/redis.sock?db=3&pass=hidden", "unix:///run/redis.sock?db=3"),
            ("redis+cluster://me:hidden@a,b:7", "redis+cluster://a:6379,b:7"),
            ("rediss+sentinel://me:hidden@a/m/1?sentinel_pass=hidden", "rediss+sentinel://a:26379/m/1"),
        ] {
            assert_eq!(RedisOptions::new(url).map_or_else(|e| e.to_string(), |o| o.to_string()), shown);
        }
    }

    /// What prints options must not print what they keep secret.
    #[test]
    fn debug_shows_no_secret() {
        let url = "rediss+sentinel://me:hidden-pass@h/m?sentinel_pass=hidden-pass";
        let of = |url: &str, key_pem: &[u8], key_secret| {
            let certificate_pem = b"public".to_vec();
            let key = ClientCertificate::new(certificate_pem, key_pem.to_vec());
            RedisOptions::new(url).unwrap().with_client_certificate(key).with_key_secret(key_secret)
        };
        let options = of(url, b"hidden-key", "hidden-secret");
        let shown = format!("{options:?}");
        assert!(shown.contains("***"));
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(!shown.contains(&format!("{:?}", b"hidden-key")), "{shown}");
        // Whatever a secret is kept as: if it were shown, another one would look otherwise.
        let (other_url, other) = (url.replace("hidden", "others"), of(url, b"hidden-key", "other"));
        assert_eq!(format!("{other:?}"), shown);
        assert_eq!(format!("{:?}", of(&other_url, b"others-key", "other")), shown);
    }

    /// A changed password that nobody notices is an outage at the next restart.
    #[test]
    fn options_that_differ_in_a_secret_are_not_equal() {
        let url = "rediss://me:one@h";
        let options = || RedisOptions::new(url).unwrap();
        let certificate = |key: &[u8]| ClientCertificate::new(b"public".to_vec(), key.to_vec());
        assert_eq!(options(), options());
        assert_ne!(options(), RedisOptions::new("rediss://me:two@h").unwrap());
        assert_eq!(options().with_key_secret("a"), options().with_key_secret("a"));
        assert_ne!(options().with_key_secret("a"), options().with_key_secret("b"));
        assert_ne!(options().with_key_secret("a"), options());
        let with = |key| options().with_client_certificate(certificate(key));
        assert_eq!(with(b"one"), with(b"one"));
        assert_ne!(with(b"one"), with(b"two"));
        assert_ne!(
            options().with_ca_certificates(b"one".to_vec()),
            options().with_ca_certificates(b"two".to_vec())
        );
    }
}
