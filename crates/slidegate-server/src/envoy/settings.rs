//! Settings: the reference's environment variables, for a service that takes its place.
//!
//! They are read only where `--envoy-env` asks for them: variables such as `PORT`, `HOST` and `LOG_LEVEL` are set on many
//! machines for other programs. `docs/envoy.md` lists those that are honoured, and those that are not with the reason.

mod idle;
mod reader;
mod redis;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use slidegate::{Algorithm, Excess};

use super::statistics::NEAR_LIMIT_RATIO;
use super::{Folder, Reading, Refusal};
use crate::config::{Grpc, GrpcTls};
use reader::Reader;
use redis::Redis;

const HTTP_PORT: u16 = 8080;
const GRPC_PORT: u16 = 8081;
const DEBUG_PORT: u16 = 6070;
const PROMETHEUS_PORT: u16 = 9090;
/// After so long a connection of Envoy's is asked to be made anew, so that new instances get their share.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(24 * 3600);
/// How long requests on such a connection may still take.
const MAX_CONNECTION_AGE_GRACE: Duration = Duration::from_secs(3600);

/// What the service does in the reference's place.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) folder: Folder,
    pub(crate) reading: Reading,
    /// Whether it may start with files that are missing or wrong.
    pub(crate) may_start_without: bool,
    /// Whether it is healthy only while there is a domain.
    pub(crate) needs_a_domain: bool,
    /// Whether no answer as a whole is over its limit.
    pub(crate) shadow_mode: bool,
    /// Whether every limit is one of `quota_mode`.
    pub(crate) quota_mode: bool,
    /// Headers to add to responses, if any.
    pub(crate) headers: Option<HeaderNames>,
    /// Whether answers carry the descriptors and metadata of limits.
    pub(crate) dynamic_metadata: bool,
    /// Where `/json` and `/healthcheck` are, besides the service's own address.
    pub(crate) http: Option<SocketAddr>,
    /// Where Envoy connects to, if anywhere.
    pub(crate) grpc: Grpc,
    /// Where `/rlconfig` and `/stats` are.
    pub(crate) debug: Option<SocketAddr>,
    /// Where metrics are besides, and their path.
    pub(crate) prometheus: Option<(SocketAddr, String)>,
    /// From which part of a limit on statistics call hits near it: 0 to 1.
    pub(crate) near_limit_ratio: f32,
    /// The store that the variables name.
    pub(crate) redis: Option<Redis>,
    /// The least severe lines to log, if said.
    pub(crate) log_level: Option<String>,
    /// Variables that are set and mean nothing here: a line for each.
    pub(crate) not_honoured: Vec<String>,
}

/// Names of response headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    pub(crate) limit: String,
    pub(crate) remaining: String,
    pub(crate) reset: String,
}

impl Settings {
    /// What holds where the environment is not asked.
    pub(crate) fn of_folder(path: PathBuf) -> Self {
        Self {
            folder: Folder { path, ignores_dotfiles: true },
            reading: Reading::default(),
            may_start_without: false,
            needs_a_domain: false,
            shadow_mode: false,
            quota_mode: false,
            headers: None,
            dynamic_metadata: false,
            http: None,
            grpc: Grpc::default(),
            debug: None,
            prometheus: None,
            near_limit_ratio: NEAR_LIMIT_RATIO,
            redis: None,
            log_level: None,
            not_honoured: Vec::new(),
        }
    }

    /// What the environment says; `variable` gives the value of one.
    ///
    /// # Errors
    /// Every variable that has a value which means nothing.
    pub(crate) fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, Refusal> {
        let mut read = Reader { variable, mistakes: Vec::new() };
        let settings = read.settings();
        if read.mistakes.is_empty() { Ok(settings) } else { Err(Refusal::all(read.mistakes)) }
    }
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        self.refuse_what_cannot_be();
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
            folder: Folder { path, ignores_dotfiles: self.flag("RUNTIME_IGNOREDOTFILES") },
            reading: Reading {
                merge_domains: self.flag("MERGE_DOMAIN_CONFIG"),
                algorithm: self
                    .read("SLIDEGATE_ENVOY_ALGORITHM", str::parse::<Algorithm>)
                    .unwrap_or_default(),
                excess: self.excess(),
                key_prefix,
            },
            may_start_without: self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG"),
            needs_a_domain: self.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
            shadow_mode: self.flag("SHADOW_MODE"),
            quota_mode: self.flag("QUOTA_MODE"),
            headers: self.flag("LIMIT_RESPONSE_HEADERS_ENABLED").then_some(headers),
            dynamic_metadata: self.flag("RESPONSE_DYNAMIC_METADATA"),
            http: Some(self.address("HOST", "PORT", HTTP_PORT)),
            grpc: self.grpc(),
            debug: Some(self.address("DEBUG_HOST", "DEBUG_PORT", DEBUG_PORT)),
            prometheus: self.prometheus(),
            near_limit_ratio: self.near_limit_ratio(),
            redis: self.redis(),
            log_level: self.log_level(),
            not_honoured: self.not_honoured(),
        }
    }

    /// What would make another service of it than was asked for.
    fn refuse_what_cannot_be(&mut self) {
        for (name, only, way_out) in [
            ("BACKEND_TYPE", "redis", "set it to `redis`, or unset it: there is no memcached store"),
            (
                "CONFIG_TYPE",
                "FILE",
                "limits are read from files and not from a management server (xDS): put them into the folder that \
                 RUNTIME_ROOT or --envoy-config names, and set CONFIG_TYPE to `FILE` or unset it",
            ),
        ] {
            if let Some(value) = self.text(name)
                && !value.eq_ignore_ascii_case(only)
            {
                self.wrong(name, &value, way_out);
            }
        }
    }

    /// What becomes of refused hits. The reference's own variable for that can only say what is the default here.
    fn excess(&mut self) -> Excess {
        const NAME: &str = "SLIDEGATE_ENVOY_EXCESS";
        const WAY_OUT: &str = "write `refuse`, `charge` or `count`";
        let Some(name) = self.text(NAME) else { return Excess::default() };
        let excess = Excess::from_name(&name).unwrap_or_else(|| {
            self.wrong(NAME, &name, WAY_OUT);
            Excess::default()
        });
        if excess == Excess::Count && self.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") {
            self.wrong(
                NAME,
                &name,
                "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT asks for the opposite; unset one of them",
            );
        }
        excess
    }

    /// Where the reference's Prometheus would be, if it is asked for.
    fn prometheus(&mut self) -> Option<(SocketAddr, String)> {
        if !self.flag("USE_PROMETHEUS") {
            return None;
        }
        let address = self.go_address("PROMETHEUS_ADDR", PROMETHEUS_PORT);
        let path = self.text("PROMETHEUS_PATH").unwrap_or_else(|| "/metrics".to_owned());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '.');
        if !path.starts_with('/') || !path.chars().all(is_plain) {
            self.wrong("PROMETHEUS_PATH", &path, "give a path, for example `/metrics`");
        }
        Some((address, path))
    }

    fn near_limit_ratio(&mut self) -> f32 {
        let way_out = "give a part of the limit from 0 to 1, for example `0.8`";
        let ratio: f32 = self.parsed("NEAR_LIMIT_RATIO", way_out).unwrap_or(NEAR_LIMIT_RATIO);
        if !(0.0..=1.0).contains(&ratio) {
            self.wrong("NEAR_LIMIT_RATIO", &ratio.to_string(), way_out);
        }
        ratio
    }

    fn grpc(&mut self) -> Grpc {
        let socket = self.text("GRPC_UDS").map(PathBuf::from);
        let address = self.address("GRPC_HOST", "GRPC_PORT", GRPC_PORT);
        let mut tls = None;
        if self.flag("GRPC_SERVER_USE_TLS") {
            let file = |name: &str| self.text(name).map(PathBuf::from);
            match file("GRPC_SERVER_TLS_CERT").zip(file("GRPC_SERVER_TLS_KEY")) {
                Some((cert_file, key_file)) => {
                    let client_ca_file = file("GRPC_CLIENT_TLS_CACERT");
                    let client_name = self.text("GRPC_CLIENT_TLS_SAN");
                    tls = Some(GrpcTls { cert_file, key_file, client_ca_file, client_name });
                }
                None => {
                    let way_out = "give the files too, in GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY";
                    self.wrong("GRPC_SERVER_USE_TLS", "true", way_out);
                }
            }
        }
        Grpc {
            listen: socket.is_none().then_some(address),
            socket,
            tls,
            health_follows_store: self.flag("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
            max_connection_age: Some(self.span("GRPC_MAX_CONNECTION_AGE").unwrap_or(MAX_CONNECTION_AGE)),
            max_connection_age_grace: Some(
                self.span("GRPC_MAX_CONNECTION_AGE_GRACE").unwrap_or(MAX_CONNECTION_AGE_GRACE),
            ),
            response_headers: false,
        }
    }

    /// Their levels by our names.
    fn log_level(&mut self) -> Option<String> {
        let level = self.text("LOG_LEVEL")?;
        match level.to_ascii_lowercase().as_str() {
            known @ ("trace" | "debug" | "info" | "error") => Some(known.to_owned()),
            "warn" | "warning" => Some("warn".to_owned()),
            "fatal" | "panic" => Some("error".to_owned()),
            _ => {
                self.wrong("LOG_LEVEL", &level, "use error, warn, info, debug or trace");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use slidegate::RedisOptions;

    use super::idle::NOT_HONOURED;
    use super::*;
    use crate::config::SharedStore;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Settings::of_environment(&|name| variables.get(name).map(|value| (*value).to_owned()))
            .map_err(|refusal| refusal.to_string())
    }

    fn redis_url(variables: &[(&str, &str)]) -> String {
        let redis = read(variables).unwrap_or_else(|told| panic!("{told}")).redis.expect("a store is named");
        RedisOptions::new(redis.url.expose()).unwrap_or_else(|error| panic!("{error}"));
        redis.url.expose().clone()
    }

    /// Who only changes the image must get the same doors, folder and answers.
    #[test]
    fn without_variables_it_is_where_the_reference_is() {
        let settings = read(&[("CACHE_KEY_PREFIX", "")]).unwrap();
        assert_eq!(settings.folder.path, PathBuf::from("/srv/runtime_data/current/config"));
        assert!(!settings.folder.ignores_dotfiles);
        assert_eq!(settings.reading, Reading::default());
        assert_eq!(settings.http, Some("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(settings.grpc.listen, Some("0.0.0.0:8081".parse().unwrap()));
        assert_eq!(settings.debug, Some("0.0.0.0:6070".parse().unwrap()));
        assert_eq!((settings.headers, settings.redis.map(|redis| redis.url)), (None, None));
        assert!(!settings.shadow_mode && !settings.quota_mode && !settings.dynamic_metadata);
    }

    /// One that does not arrive is found out in production.
    #[test]
    fn every_variable_that_is_honoured_arrives() {
        let settings = read(&[
            ("RUNTIME_ROOT", "/r"),
            ("RUNTIME_SUBDIRECTORY", "s"),
            ("RUNTIME_APPDIRECTORY", "a"),
            ("RUNTIME_IGNOREDOTFILES", "1"),
            ("MERGE_DOMAIN_CONFIG", "T"),
            ("CACHE_KEY_PREFIX", "p"),
            ("SLIDEGATE_ENVOY_ALGORITHM", "fixed-window"),
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
        let reading = Reading {
            merge_domains: true,
            algorithm: Algorithm::FixedWindow,
            excess: Excess::Count,
            key_prefix: "p".into(),
        };
        assert_eq!(settings.reading, reading);
        assert!(settings.may_start_without && settings.needs_a_domain);
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
        let tls = GrpcTls {
            cert_file: "/c".into(),
            key_file: "/k".into(),
            client_ca_file: Some("/ca".into()),
            client_name: Some("envoy".into()),
        };
        let grpc = Grpc {
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
        let redis = settings.redis.unwrap();
        let store = SharedStore {
            options: RedisOptions::new(redis.url.expose()).unwrap(),
            deadline: Duration::from_millis(50),
            instances: 1,
        };
        assert_eq!(redis.complete(store).deadline, Duration::from_millis(200));
        let socket = read(&[("GRPC_UDS", "/run/grpc.sock")]).unwrap().grpc;
        assert_eq!((socket.listen, socket.socket), (None, Some("/run/grpc.sock".into())));
    }

    /// The reference says in four variables what is one URL here.
    #[test]
    fn every_kind_of_redis_becomes_a_url() {
        assert_eq!(
            redis_url(&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")]),
            "redis://redis:6379"
        );
        assert_eq!(redis_url(&[("REDIS_URL", "/run/redis.sock")]), "unix:///run/redis.sock");
        assert_eq!(
            redis_url(&[("REDIS_URL", "/run/redis.sock"), ("REDIS_AUTH", "me:p w")]),
            "unix:///run/redis.sock?user=me&pass=p%20w"
        );
        assert_eq!(
            redis_url(&[("REDIS_URL", "h:1"), ("REDIS_AUTH", "p@ss"), ("REDIS_TLS", "true")]),
            "rediss://:p%40ss@h:1"
        );
        assert_eq!(
            redis_url(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2"), ("REDIS_AUTH", "u:p")]),
            "redis+cluster://u:p@a:1,b:2"
        );
        assert_eq!(
            redis_url(&[
                ("REDIS_TYPE", "SENTINEL"),
                ("REDIS_URL", "main,a:1,b:2"),
                ("REDIS_AUTH", "u:p"),
                ("REDIS_SENTINEL_AUTH", "su:sp"),
            ]),
            "redis+sentinel://u:p@a:1,b:2/main?sentinel_user=su&sentinel_pass=sp"
        );
    }

    /// A service that starts on half of its settings is another one than was wanted.
    #[test]
    fn values_that_mean_nothing_are_told_all_at_once() {
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
                ("USE_PROMETHEUS", "true"),
                ("PROMETHEUS_ADDR", "9090"),
                ("PROMETHEUS_PATH", "/{all}"),
                ("NEAR_LIMIT_RATIO", "80"),
            ])
            .unwrap_err()
            .lines()
            .collect::<Vec<_>>(),
            [
                "CONFIG_TYPE is `GRPC_XDS_SOTW`; limits are read from files and not from a management server (xDS): put \
                 them into the folder that RUNTIME_ROOT or --envoy-config names, and set CONFIG_TYPE to `FILE` or unset it",
                "RUNTIME_IGNOREDOTFILES is `maybe`; write `true` or `false`",
                "HOST is `here`; give an IP address, for example `0.0.0.0` or `127.0.0.1`",
                "GRPC_SERVER_USE_TLS is `true`; give the files too, in GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
                "GRPC_MAX_CONNECTION_AGE: window `long` has the unknown unit `long`; use ms, s, m, h, d or w, for \
                 example `30s`",
                "PROMETHEUS_ADDR is `9090`; give a port or an address with one, for example `:9090`",
                "PROMETHEUS_PATH is `/{all}`; give a path, for example `/metrics`",
                "NEAR_LIMIT_RATIO is `80`; give a part of the limit from 0 to 1, for example `0.8`",
                "REDIS_TYPE is `MANY`; write `SINGLE`, `SENTINEL` or `CLUSTER`",
                "LOG_LEVEL is `loud`; use error, warn, info, debug or trace",
            ]
        );
        assert_eq!(
            read(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main")]).unwrap_err(),
            "REDIS_URL is `main`; write the master's name and the sentinels, for example `main,10.0.0.5:26379`"
        );
        assert_eq!(
            read(&[("REDIS_URL", "h:1"), ("REDIS_TIMEOUT", "0s")]).unwrap_err(),
            "REDIS_TIMEOUT: `0s` is not within 1ms to 60s"
        );
        assert_eq!(
            read(&[("SLIDEGATE_ENVOY_EXCESS", "free")]).unwrap_err(),
            "SLIDEGATE_ENVOY_EXCESS is `free`; write `refuse`, `charge` or `count`"
        );
        assert_eq!(
            read(&[("SLIDEGATE_ENVOY_EXCESS", "count"), ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")])
                .unwrap_err(),
            "SLIDEGATE_ENVOY_EXCESS is `count`; STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT asks for the opposite; unset one \
             of them"
        );
        let told = read(&[("REDIS_URL", "h:1"), ("REDIS_TLS_CACERT", "/no/such.pem")]).unwrap_err();
        assert_eq!(
            told,
            "REDIS_TLS_CACERT: `/no/such.pem` cannot be read: No such file or directory (os error 2); check the path and \
             who may read it"
        );
    }

    /// Who relies on a setting must hear that it does nothing.
    #[test]
    fn what_is_not_honoured_is_told_and_documented() {
        let settings = read(&[("USE_STATSD", "false"), ("REDIS_PERSECOND", "true")]).unwrap();
        assert_eq!(
            settings.not_honoured,
            [
                "REDIS_PERSECOND is set and means nothing here: all limits live in one store, so that a request is \
                 charged on all or none"
            ]
        );
        let page = include_str!("../../../../docs/envoy.md");
        for (name, _) in NOT_HONOURED {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
        // Every variable that the code asks for by name.
        let code = [
            include_str!("settings.rs").split("#[cfg(test)]").next().unwrap_or_default(),
            include_str!("settings/idle.rs"),
            include_str!("settings/redis.rs"),
        ]
        .concat();
        let in_capitals = |part: &str| part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let is_name =
            |part: &&str| in_capitals(part) && (part.contains('_') || ["HOST", "PORT"].contains(part));
        let names: Vec<_> = code.split('"').filter(is_name).collect();
        assert!(names.len() > 100, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
