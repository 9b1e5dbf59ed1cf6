//! The environment variables of envoyproxy/ratelimit, for a service that replaces it.
//!
//! They are read only with `--envoy-env`: variables such as `PORT`, `HOST` and `LOG_LEVEL` are
//! often set for other programs. `docs/envoy-ratelimit.md` lists the supported variables, and the ignored
//! ones with the reason.

mod ignored;
mod reader;
mod redis;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use reader::Reader;
use slidegate::{Algorithm, Excess};

use super::statistics::NEAR_LIMIT_RATIO;
use super::{ConfigError, Folder, ReadOptions};
use crate::config::GrpcSettings;
use crate::listener::{SocketFile, TlsFiles};
pub(crate) use redis::Redis;

const HTTP_PORT: u16 = 8080;
const GRPC_PORT: u16 = 8081;
const DEBUG_PORT: u16 = 6070;
const PROMETHEUS_PORT: u16 = 9090;
/// Age at which Envoy is asked to reconnect, so that new instances get their share of connections.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(24 * 3600);
/// Grace period for open calls on such a connection.
const MAX_CONNECTION_AGE_GRACE: Duration = Duration::from_secs(3600);

/// Settings for replacing envoyproxy/ratelimit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// The folder of config files.
    pub(crate) folder: Folder,
    /// Options for reading them.
    pub(crate) options: ReadOptions,
    /// Whether it may start with missing or invalid files.
    pub(crate) may_start_without_config: bool,
    /// Whether health requires at least one domain.
    pub(crate) needs_a_domain: bool,
    /// Whether no call is ever denied.
    pub(crate) shadow_mode: bool,
    /// Whether every limit has `quota_mode`.
    pub(crate) quota_mode: bool,
    /// Response headers, if enabled.
    pub(crate) headers: Option<HeaderNames>,
    /// Whether responses contain the descriptors and the metadata of limits.
    pub(crate) dynamic_metadata: bool,
    /// The HTTP address, for `/json` and `/healthcheck`.
    pub(crate) http: Option<SocketAddr>,
    /// The gRPC listener.
    pub(crate) grpc: GrpcSettings,
    /// The address of the debug port, for `/rlconfig` and `/stats`.
    pub(crate) debug: Option<SocketAddr>,
    /// An additional address for metrics, with the path.
    pub(crate) prometheus: Option<(SocketAddr, String)>,
    /// Statistics count hits above this fraction of a limit, 0 to 1, as near the limit.
    pub(crate) near_limit_ratio: f32,
    /// The shared store, if set.
    pub(crate) redis: Option<Redis>,
    /// The log level, if set.
    pub(crate) log_level: Option<String>,
    /// Warnings about variables that are set but have no effect.
    pub(crate) ignored_variables: Vec<String>,
}

/// Names of response headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    /// The header with the limit.
    pub(crate) limit: String,
    /// The header with the remaining amount.
    pub(crate) remaining: String,
    /// The header with the seconds until the reset.
    pub(crate) reset: String,
}

impl Settings {
    /// Defaults for a folder, without the environment.
    pub(crate) fn of_folder(path: PathBuf) -> Self {
        Self {
            folder: Folder { path, ignores_dotfiles: true },
            near_limit_ratio: NEAR_LIMIT_RATIO,
            ..Self::default()
        }
    }

    /// The settings from the environment; `variable` returns a variable's value.
    ///
    /// # Errors
    /// Every variable with an invalid value.
    pub(crate) fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut read = Reader { variable, errors: Vec::new() };
        let settings = read.settings();
        if read.errors.is_empty() { Ok(settings) } else { Err(ConfigError::new(read.errors)) }
    }
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        self.reject_unsupported();
        let text = |name: &str, default: &str| self.text(name).unwrap_or_else(|| default.to_owned());
        let path = PathBuf::from(text("RUNTIME_ROOT", "/srv/runtime_data/current"))
            .join(text("RUNTIME_SUBDIRECTORY", ""))
            .join(text("RUNTIME_APPDIRECTORY", "config"));
        let key_prefix = text("CACHE_KEY_PREFIX", "");
        let headers = HeaderNames {
            limit: text("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            remaining: text("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            reset: text("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        };
        Settings {
            folder: Folder { path, ignores_dotfiles: self.bool("RUNTIME_IGNOREDOTFILES") },
            options: ReadOptions {
                merge_domains: self.bool("MERGE_DOMAIN_CONFIG"),
                algorithm: self
                    .read("SLIDEGATE_ENVOY_ALGORITHM", str::parse::<Algorithm>)
                    .unwrap_or_default(),
                calendar: self.read("SLIDEGATE_ENVOY_CALENDAR", str::parse),
                excess: self.excess(),
                key_prefix,
            },
            may_start_without_config: self.bool("FORCE_START_WITHOUT_INITIAL_CONFIG"),
            needs_a_domain: self.bool("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
            shadow_mode: self.bool("SHADOW_MODE"),
            quota_mode: self.bool("QUOTA_MODE"),
            headers: self.bool("LIMIT_RESPONSE_HEADERS_ENABLED").then_some(headers),
            dynamic_metadata: self.bool("RESPONSE_DYNAMIC_METADATA"),
            http: Some(self.address("HOST", "PORT", HTTP_PORT)),
            grpc: self.grpc(),
            debug: Some(self.address("DEBUG_HOST", "DEBUG_PORT", DEBUG_PORT)),
            prometheus: self.prometheus(),
            near_limit_ratio: self.near_limit_ratio(),
            redis: self.redis(),
            log_level: self.log_level(),
            ignored_variables: self.ignored_variables(),
        }
    }

    /// Rejects values that request something unsupported.
    fn reject_unsupported(&mut self) {
        for (name, only, fix) in [
            ("BACKEND_TYPE", "redis", "set it to `redis` or unset it; memcached is not supported"),
            (
                "CONFIG_TYPE",
                "FILE",
                "set it to `FILE` or unset it, and put the limits into the folder that RUNTIME_ROOT or --envoy-config \
                 names; a management server (xDS) is not supported",
            ),
        ] {
            if let Some(value) = self.text(name)
                && !value.eq_ignore_ascii_case(only)
            {
                self.invalid(name, &value, fix);
            }
        }
    }

    /// The treatment of denied hits. The variable of envoyproxy/ratelimit can only select the default.
    fn excess(&mut self) -> Excess {
        const NAME: &str = "SLIDEGATE_ENVOY_EXCESS";
        const FIX: &str = "must be `refuse`, `charge` or `count`";
        let Some(name) = self.text(NAME) else { return Excess::default() };
        let excess = Excess::from_name(&name).unwrap_or_else(|| {
            self.invalid(NAME, &name, FIX);
            Excess::default()
        });
        if excess == Excess::Count && self.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
            self.invalid(
                NAME,
                &name,
                "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT contradicts it; unset one of them",
            );
        }
        excess
    }

    /// The address and path of the Prometheus endpoint, if enabled.
    fn prometheus(&mut self) -> Option<(SocketAddr, String)> {
        if !self.bool("USE_PROMETHEUS") {
            return None;
        }
        let address = self.go_address("PROMETHEUS_ADDR", PROMETHEUS_PORT);
        let path = self.text("PROMETHEUS_PATH").unwrap_or_else(|| "/metrics".to_owned());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '.');
        if !path.starts_with('/') || !path.chars().all(is_plain) {
            self.invalid("PROMETHEUS_PATH", &path, "must be a path, for example `/metrics`");
        }
        Some((address, path))
    }

    fn near_limit_ratio(&mut self) -> f32 {
        let fix = "must be a part of the limit from 0 to 1, for example `0.8`";
        let ratio: f32 = self.parsed("NEAR_LIMIT_RATIO", fix).unwrap_or(NEAR_LIMIT_RATIO);
        if !(0.0..=1.0).contains(&ratio) {
            self.invalid("NEAR_LIMIT_RATIO", &ratio.to_string(), fix);
        }
        ratio
    }

    fn grpc(&mut self) -> GrpcSettings {
        let socket = self
            .text("GRPC_UDS")
            .map(|path| SocketFile { path: path.into(), mode: SocketFile::DEFAULT_MODE });
        let address = self.address("GRPC_HOST", "GRPC_PORT", GRPC_PORT);
        let mut tls = None;
        if self.bool("GRPC_SERVER_USE_TLS") {
            let file = |name: &str| self.text(name).map(PathBuf::from);
            match file("GRPC_SERVER_TLS_CERT").zip(file("GRPC_SERVER_TLS_KEY")) {
                Some((cert_file, key_file)) => {
                    let client_ca_file = file("GRPC_CLIENT_TLS_CACERT");
                    let client_name = self.text("GRPC_CLIENT_TLS_SAN");
                    tls = Some(TlsFiles { cert_file, key_file, client_ca_file, client_name });
                }
                None => {
                    let fix = "set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY too";
                    self.invalid("GRPC_SERVER_USE_TLS", "true", fix);
                }
            }
        }
        GrpcSettings {
            listen: socket.is_none().then_some(address),
            socket,
            tls,
            health_follows_store: self.bool("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
            max_connection_age: Some(self.duration("GRPC_MAX_CONNECTION_AGE").unwrap_or(MAX_CONNECTION_AGE)),
            max_connection_age_grace: Some(
                self.duration("GRPC_MAX_CONNECTION_AGE_GRACE").unwrap_or(MAX_CONNECTION_AGE_GRACE),
            ),
            response_headers: false,
        }
    }

    /// The log level, translated to `--log-level` names.
    fn log_level(&mut self) -> Option<String> {
        let level = self.text("LOG_LEVEL")?;
        match level.to_ascii_lowercase().as_str() {
            known @ ("trace" | "debug" | "info" | "error") => Some(known.to_owned()),
            "warn" | "warning" => Some("warn".to_owned()),
            "fatal" | "panic" => Some("error".to_owned()),
            _ => {
                self.invalid("LOG_LEVEL", &level, "must be error, warn, info, debug or trace");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use slidegate_redis::RedisOptions;

    use super::ignored::IGNORED;
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Settings::of_environment(&|name| variables.get(name).map(|value| (*value).to_owned()))
            .map_err(|error| error.to_string())
    }

    fn redis_url(variables: &[(&str, &str)]) -> String {
        let redis =
            read(variables).unwrap_or_else(|error| panic!("{error}")).redis.expect("a store is named");
        RedisOptions::new(redis.url.expose()).unwrap_or_else(|error| panic!("{error}"));
        redis.url.expose().clone()
    }

    /// Replacing only the image must keep the same ports and folder.
    #[test]
    fn the_defaults_are_those_of_envoyproxy_ratelimit() {
        let settings = read(&[("CACHE_KEY_PREFIX", "")]).unwrap();
        assert_eq!(settings.folder.path, PathBuf::from("/srv/runtime_data/current/config"));
        assert!(!settings.folder.ignores_dotfiles);
        assert_eq!(settings.options, ReadOptions::default());
        assert_eq!(settings.http, Some("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(settings.grpc.listen, Some("0.0.0.0:8081".parse().unwrap()));
        assert_eq!(settings.debug, Some("0.0.0.0:6070".parse().unwrap()));
        assert_eq!((settings.headers, settings.redis.map(|redis| redis.url)), (None, None));
        assert!(!settings.shadow_mode && !settings.quota_mode && !settings.dynamic_metadata);
    }

    /// A variable without effect would be noticed only in production.
    #[test]
    fn every_supported_variable_has_its_effect() {
        let settings = read(&[
            ("RUNTIME_ROOT", "/r"),
            ("RUNTIME_SUBDIRECTORY", "s"),
            ("RUNTIME_APPDIRECTORY", "a"),
            ("RUNTIME_IGNOREDOTFILES", "1"),
            ("MERGE_DOMAIN_CONFIG", "T"),
            ("CACHE_KEY_PREFIX", "p"),
            ("SLIDEGATE_ENVOY_ALGORITHM", "fixed-window"),
            ("SLIDEGATE_ENVOY_CALENDAR", "Europe/Berlin"),
            ("SLIDEGATE_ENVOY_EXCESS", "count"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
            ("SHADOW_MODE", "TRUE"),
            ("QUOTA_MODE", "t"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_LIMIT_HEADER", "X-L"),
            ("LIMIT_RESET_HEADER", "X-T"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
            ("HOST", "127.0.0.1"),
            ("PORT", "1"),
            ("GRPC_HOST", "::1"),
            ("GRPC_PORT", "2"),
            ("DEBUG_HOST", "localhost"),
            ("DEBUG_PORT", "3"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "localhost:4"),
            ("PROMETHEUS_PATH", "/m"),
            ("NEAR_LIMIT_RATIO", "0.5"),
            ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "5s"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/c"),
            ("GRPC_SERVER_TLS_KEY", "/k"),
            ("GRPC_CLIENT_TLS_CACERT", "/ca"),
            ("GRPC_CLIENT_TLS_SAN", "envoy"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("LOG_LEVEL", "WARNING"),
            ("REDIS_URL", "h:1"),
            ("REDIS_TIMEOUT", "200ms"),
        ])
        .unwrap();
        assert_eq!(settings.folder, Folder { path: "/r/s/a".into(), ignores_dotfiles: true });
        let options = ReadOptions {
            merge_domains: true,
            algorithm: Algorithm::FixedWindow,
            calendar: Some("Europe/Berlin".parse().unwrap()),
            excess: Excess::Count,
            key_prefix: "p".into(),
        };
        assert_eq!(settings.options, options);
        assert!(settings.may_start_without_config && settings.needs_a_domain);
        assert!(settings.shadow_mode && settings.quota_mode && settings.dynamic_metadata);
        let headers =
            HeaderNames { limit: "X-L".into(), remaining: "RateLimit-Remaining".into(), reset: "X-T".into() };
        assert_eq!(settings.headers, Some(headers));
        assert_eq!(settings.http, Some("127.0.0.1:1".parse().unwrap()));
        assert_eq!(settings.debug, Some("127.0.0.1:3".parse().unwrap()));
        assert_eq!(settings.prometheus, Some(("127.0.0.1:4".parse().unwrap(), "/m".into())));
        assert_eq!(settings.near_limit_ratio.to_string(), "0.5");
        let prometheus = read(&[("USE_PROMETHEUS", "true")]).unwrap().prometheus;
        assert_eq!(prometheus, Some(("0.0.0.0:9090".parse().unwrap(), "/metrics".into())));
        let tls = TlsFiles {
            cert_file: "/c".into(),
            key_file: "/k".into(),
            client_ca_file: Some("/ca".into()),
            client_name: Some("envoy".into()),
        };
        let grpc = GrpcSettings {
            listen: Some("[::1]:2".parse().unwrap()),
            socket: None,
            tls: Some(tls),
            health_follows_store: true,
            max_connection_age: Some(Duration::from_secs(5400)),
            max_connection_age_grace: Some(Duration::from_secs(5)),
            response_headers: false,
        };
        assert_eq!(settings.grpc, grpc);
        assert_eq!(settings.log_level.as_deref(), Some("warn"));
        assert_eq!(settings.redis.unwrap().deadline, Some(Duration::from_millis(200)));
        let socket = read(&[("GRPC_UDS", "/run/grpc.sock")]).unwrap().grpc;
        let file = SocketFile { path: "/run/grpc.sock".into(), mode: SocketFile::DEFAULT_MODE };
        assert_eq!((socket.listen, socket.socket), (None, Some(file)));
    }

    /// envoyproxy/ratelimit has several variables in place of one URL, and its client accepts URLs in each.
    #[test]
    fn every_kind_of_redis_becomes_a_url() {
        for (variables, expected) in [
            ("REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379", "redis://redis:6379"),
            ("REDIS_URL=/run/redis.sock", "unix:///run/redis.sock"),
            ("REDIS_URL=/my%run?/ü.sock", "unix:///my%25run%3F/%C3%BC.sock"),
            ("REDIS_URL=/run/r.sock REDIS_AUTH=secret", "unix:///run/r.sock?pass=secret"),
            ("REDIS_URL=/run/r.sock REDIS_AUTH=:secret", "unix:///run/r.sock?pass=secret"),
            ("REDIS_URL=/run/r.sock REDIS_AUTH=me:p&w", "unix:///run/r.sock?user=me&pass=p%26w"),
            ("REDIS_URL=h:1 REDIS_AUTH=p@ss REDIS_TLS=true", "rediss://:p%40ss@h:1"),
            ("REDIS_URL=h:1 REDIS_AUTH=:p", "redis://:p@h:1"),
            ("REDIS_URL=h:1 REDIS_AUTH=me:p:q", "redis://me:p%3Aq@h:1"),
            ("REDIS_URL=[::1]:1 REDIS_AUTH=p", "redis://:p@[::1]:1"),
            ("REDIS_URL=redis://h:1", "redis://h:1"),
            ("REDIS_URL=redis://h", "redis://h"),
            ("REDIS_URL=redis://:pw@h:1", "redis://:pw@h:1"),
            ("REDIS_URL=redis://me:p%40w@h:1/2", "redis://me:p%40w@h:1/2"),
            ("REDIS_URL=redis://me:p@w@h:1/", "redis://me:p%40w@h:1"),
            ("REDIS_URL=redis://h:1?db=3&password=a+b&username=me", "redis://me:a%20b@h:1/3"),
            ("REDIS_URL=redis://:theirs@h:1 REDIS_AUTH=ours", "redis://:ours@h:1"),
            ("REDIS_URL=redis://me:theirs@h:1 REDIS_AUTH=ours", "redis://me:ours@h:1"),
            ("REDIS_URL=rediss://h:1", "rediss://h:1"),
            ("REDIS_URL=redis://h:1 REDIS_TLS=1", "rediss://h:1"),
            ("REDIS_TYPE=cluster REDIS_URL=a:1,b:2 REDIS_AUTH=u:p", "redis+cluster://u:p@a:1,b:2"),
            ("REDIS_TYPE=CLUSTER REDIS_URL=a:1,b:2 REDIS_AUTH=p", "redis+cluster://:p@a:1,b:2"),
            ("REDIS_TYPE=CLUSTER REDIS_URL=redis://:p@a:1,redis://:p@b:2", "redis+cluster://:p@a:1,b:2"),
            ("REDIS_TYPE=CLUSTER REDIS_URL=redis://:p@a:1,b:2", "redis+cluster://:p@a:1,b:2"),
            ("REDIS_TYPE=SENTINEL REDIS_URL=main,a:1,b:2", "redis+sentinel://a:1,b:2/main"),
            (
                "REDIS_TYPE=SENTINEL REDIS_URL=main,a:1,b:2 REDIS_AUTH=u:p REDIS_SENTINEL_AUTH=su:sp",
                "redis+sentinel://u:p@a:1,b:2/main?sentinel_user=su&sentinel_pass=sp",
            ),
            (
                "REDIS_TYPE=SENTINEL REDIS_URL=main,a:1 REDIS_AUTH=p REDIS_SENTINEL_AUTH=sp",
                "redis+sentinel://:p@a:1/main?sentinel_pass=sp",
            ),
            (
                "REDIS_TYPE=SENTINEL REDIS_URL=main,redis://:sp@a:1 REDIS_AUTH=p",
                "redis+sentinel://:p@a:1/main?sentinel_pass=sp",
            ),
        ] {
            let variables: Vec<_> =
                variables.split(' ').map(|one| one.split_once('=').expect("a variable")).collect();
            assert_eq!(redis_url(&variables), expected, "{variables:?}");
        }
    }

    /// An unreadable value may be a password, whatever it looks like.
    #[test]
    fn no_error_about_redis_repeats_what_was_given() {
        for (kind, url) in [
            ("SINGLE", "h:1,password=hidden,ssl=True"),
            ("SINGLE", "redis://:hidden@h:x"),
            ("SINGLE", "redis:/:hidden@h:1"),
            ("SINGLE", "http://:hidden@h:1"),
            ("SINGLE", "redis://h:1/hidden"),
            ("SINGLE", "redis://h:1?pass=hidden"),
            ("SINGLE", "redis-cli -a hidden -h h"),
            ("SINGLE", "/r.sock hidden"),
            ("CLUSTER", "redis://:hidden@a:1,redis://:hidden2@b:1"),
            ("CLUSTER", "a:1,password=hidden"),
            ("SENTINEL", "hidden"),
            ("SENTINEL", "hidden main,a:1"),
            ("SENTINEL", "main,http://hidden"),
        ] {
            let error = read(&[("REDIS_TYPE", kind), ("REDIS_URL", url)]).unwrap_err();
            assert!(!error.contains("hidden") && error.contains("REDIS_URL: "), "{url}: {error}");
        }
        let pem = "-----BEGIN PRIVATE KEY-----\nhidden";
        let error = read(&[("REDIS_URL", "h:1"), ("REDIS_TLS_CLIENT_KEY", pem)]).unwrap_err();
        assert!(!error.contains("hidden"), "{error}");
    }

    /// Invalid values must stop the start, and all of them must be reported.
    #[test]
    fn invalid_values_are_reported_all_at_once() {
        assert_eq!(
            read(&[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("RUNTIME_IGNOREDOTFILES", "maybe"),
                ("HOST", "here"),
                ("GRPC_SERVER_USE_TLS", "true"),
                ("GRPC_MAX_CONNECTION_AGE", "long"),
                ("REDIS_TYPE", "MANY"),
                ("REDIS_URL", "h:1"),
                ("LOG_LEVEL", "loud"),
                ("SLIDEGATE_ENVOY_CALENDAR", "Mars"),
                ("USE_PROMETHEUS", "true"),
                ("PROMETHEUS_ADDR", "9090"),
                ("PROMETHEUS_PATH", "/{all}"),
                ("NEAR_LIMIT_RATIO", "80"),
            ])
            .unwrap_err()
            .lines()
            .collect::<Vec<_>>(),
            [
                "invalid CONFIG_TYPE `GRPC_XDS_SOTW`: set it to `FILE` or unset it, and put the limits into the folder that \
                 RUNTIME_ROOT or --envoy-config names; a management server (xDS) is not supported",
                "invalid RUNTIME_IGNOREDOTFILES `maybe`: must be `true` or `false`",
                "SLIDEGATE_ENVOY_CALENDAR: invalid time zone `Mars`: must be a name of the IANA time zone database, for \
                 example `Europe/Berlin`",
                "invalid HOST `here`: must be an IP address, for example `0.0.0.0` or `127.0.0.1`",
                "invalid GRPC_SERVER_USE_TLS `true`: set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY too",
                "GRPC_MAX_CONNECTION_AGE: invalid window `long`: unknown unit `long`; use ms, s, m, h, d or w, for \
                 example `30s`",
                "invalid PROMETHEUS_ADDR `9090`: must be a port or an address with one, for example `:9090`",
                "invalid PROMETHEUS_PATH `/{all}`: must be a path, for example `/metrics`",
                "invalid NEAR_LIMIT_RATIO `80`: must be a part of the limit from 0 to 1, for example `0.8`",
                "invalid REDIS_TYPE `MANY`: must be `SINGLE`, `SENTINEL` or `CLUSTER`",
                "invalid LOG_LEVEL `loud`: must be error, warn, info, debug or trace",
            ]
        );
        assert_eq!(
            read(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main")]).unwrap_err(),
            "invalid REDIS_URL: must be the master's name and the sentinels, for example `main,10.0.0.5:26379`"
        );
        assert_eq!(
            read(&[("REDIS_URL", "h:1"), ("REDIS_TIMEOUT", "0s")]).unwrap_err(),
            "REDIS_TIMEOUT: invalid duration `0s`: must be 1ms to 60s, for example `50ms`"
        );
        assert_eq!(
            read(&[("SLIDEGATE_ENVOY_EXCESS", "free")]).unwrap_err(),
            "invalid SLIDEGATE_ENVOY_EXCESS `free`: must be `refuse`, `charge` or `count`"
        );
        assert_eq!(
            read(&[("SLIDEGATE_ENVOY_EXCESS", "count"), ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")])
                .unwrap_err(),
            "invalid SLIDEGATE_ENVOY_EXCESS `count`: STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT contradicts it; unset one of \
             them"
        );
        let error = read(&[("REDIS_URL", "h:1"), ("REDIS_TLS_CACERT", "/no/such.pem")]).unwrap_err();
        assert_eq!(
            error,
            "REDIS_TLS_CACERT: `/no/such.pem` cannot be read: No such file or directory (os error 2); check the path and \
             its permissions"
        );
    }

    /// Someone may rely on a variable that has no effect.
    #[test]
    fn ignored_variables_are_warned_about_and_documented() {
        let settings = read(&[("USE_STATSD", "false"), ("REDIS_PERSECOND", "true")]).unwrap();
        assert_eq!(
            settings.ignored_variables,
            ["REDIS_PERSECOND is set but has no effect: all limits live in one store, so that a request is \
                 charged on all or none"]
        );
        let page = include_str!("../../../../docs/envoy-ratelimit.md");
        for name in IGNORED.iter().flat_map(|(_, names)| names.split(' ')) {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
        // Every variable name in the code.
        let code = [
            include_str!("settings.rs").split("#[cfg(test)]").next().unwrap_or_default(),
            include_str!("settings/ignored.rs"),
            include_str!("settings/redis.rs"),
        ]
        .concat();
        let in_capitals = |part: &str| part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let is_name =
            |part: &&str| in_capitals(part) && (part.contains('_') || ["HOST", "PORT"].contains(part));
        // One text may contain several, on several lines.
        let words = |text: &'static str| text.split_whitespace().filter(|word| *word != "\\");
        let texts = code.leak().split('"').filter(|text| words(text).all(|word| is_name(&word)));
        let names: Vec<_> = texts.flat_map(words).collect();
        assert!(names.len() > 100, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
