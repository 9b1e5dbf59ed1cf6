//! Variables of envoyproxy/ratelimit that have no effect here, with the reason. Each one that is
//! set is warned about.

use super::reader::Reader;

const XDS: &str = "limits are read from files and not from a management server (xDS)";
const NO_STATSD: &str = "there is no statsd; collect /metrics, which has the same counters";
const NO_TRACING: &str =
    "spans are set up by `observe: traces:` of the config file, or by the standard OTEL_ variables";
const ONE_STORE: &str = "all limits live in one store, so that a request is charged on all or none";
const NO_MEMCACHED: &str = "there is no memcached store: it cannot decide and charge in one step";
const ONE_CONNECTION: &str = "all calls share a pipelined connection to each node";

/// Variables without effect, each with the reason.
pub(super) const IGNORED: [(&str, &str); 54] = [
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", XDS),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", XDS),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", XDS),
    ("CONFIG_GRPC_XDS_NODE_ID", XDS),
    ("CONFIG_GRPC_XDS_NODE_METADATA", XDS),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", XDS),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", XDS),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", XDS),
    ("CONFIG_GRPC_XDS_SERVER_URL", XDS),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", XDS),
    (
        "DISABLE_STATS",
        "the counters are too cheap to be switched off separately; `observe: {metrics: false}` switches all metrics off",
    ),
    ("EXPIRATION_JITTER_MAX_SECONDS", "expiry is garbage collection here and part of no decision"),
    ("EXTRA_TAGS", NO_STATSD),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "denials are cached while they are valid, in bounded memory"),
    ("LOG_FORMAT", "messages are JSON with --log-json"),
    ("MEMCACHE_HOST_PORT", NO_MEMCACHED),
    ("MEMCACHE_MAX_IDLE_CONNS", NO_MEMCACHED),
    ("MEMCACHE_SRV", NO_MEMCACHED),
    ("MEMCACHE_SRV_REFRESH", NO_MEMCACHED),
    ("MEMCACHE_TLS", NO_MEMCACHED),
    ("PROMETHEUS_MAPPER_YAML", "metrics have the labels of the default mapper of envoyproxy/ratelimit"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "commands to one node are always pipelined"),
    ("REDIS_PERSECOND", ONE_STORE),
    ("REDIS_PERSECOND_AUTH", ONE_STORE),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", ONE_STORE),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", ONE_STORE),
    ("REDIS_PERSECOND_POOL_SIZE", ONE_STORE),
    ("REDIS_PERSECOND_SOCKET_TYPE", ONE_STORE),
    ("REDIS_PERSECOND_TLS", ONE_STORE),
    ("REDIS_PERSECOND_TYPE", ONE_STORE),
    ("REDIS_PERSECOND_URL", ONE_STORE),
    ("REDIS_PIPELINE_LIMIT", ONE_CONNECTION),
    ("REDIS_PIPELINE_WINDOW", ONE_CONNECTION),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", ONE_CONNECTION),
    ("REDIS_POOL_SIZE", ONE_CONNECTION),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "certificates are always verified"),
    ("RUNTIME_WATCH_ROOT", "both the folder and its parent are polled"),
    ("STATSD_HOST", NO_STATSD),
    ("STATSD_PORT", NO_STATSD),
    ("STATS_FLUSH_INTERVAL", NO_STATSD),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "denied hits are not charged on any limit of the request, unless SLIDEGATE_ENVOY_EXCESS or a limit sets `count`",
    ),
    ("TRACING_ENABLED", NO_TRACING),
    ("TRACING_EXPORTER_PROTOCOL", NO_TRACING),
    ("TRACING_SAMPLING_RATE", NO_TRACING),
    ("TRACING_SERVICE_INSTANCE_ID", NO_TRACING),
    ("TRACING_SERVICE_NAME", NO_TRACING),
    ("TRACING_SERVICE_NAMESPACE", NO_TRACING),
    ("USE_DOG_STATSD", NO_STATSD),
    ("USE_DOG_STATSD_MOGRIFIERS", NO_STATSD),
    ("USE_STATSD", NO_STATSD),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", XDS),
    ("XDS_CLIENT_BACKOFF_JITTER", XDS),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", XDS),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", XDS),
];

impl Reader<'_> {
    /// A warning for each such variable that is set.
    pub(super) fn ignored_variables(&self) -> Vec<String> {
        let is_off = |value: &String| ["0", "f", "false"].contains(&value.to_ascii_lowercase().as_str());
        let set = IGNORED.iter().filter(|(name, _)| self.text(name).is_some_and(|value| !is_off(&value)));
        set.map(|(name, why)| format!("{name} is set but has no effect: {why}")).collect()
    }
}
