//! envoyproxy/ratelimit variables that have no effect here, with the reason. Each one set causes a
//! warning.

use super::reader::Reader;

/// Variables without effect, by reason.
pub(super) const IGNORED: [(&str, &str); 15] = [
    (
        "limits are read from files and not from a management server (xDS)",
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_CLIENT_TLS_CERT \
         CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA \
         CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_SERVER_TLS_CACERT \
         CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_USE_TLS \
         XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_BACKOFF_MAX_INTERVAL \
         XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    ),
    (
        "the counters are too cheap to be switched off separately; `observe: {metrics: false}` switches all metrics off",
        "DISABLE_STATS",
    ),
    ("expiry is garbage collection here and part of no decision", "EXPIRATION_JITTER_MAX_SECONDS"),
    (
        "there is no statsd; collect /metrics, which has the same counters",
        "EXTRA_TAGS STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL USE_DOG_STATSD \
         USE_DOG_STATSD_MOGRIFIERS USE_STATSD",
    ),
    ("denials are cached while they are valid, in bounded memory", "LOCAL_CACHE_SIZE_IN_BYTES"),
    ("messages are JSON with --log-json", "LOG_FORMAT"),
    (
        "there is no memcached store: it cannot decide and charge in one step",
        "MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS",
    ),
    ("metrics have the labels of the default mapper of envoyproxy/ratelimit", "PROMETHEUS_MAPPER_YAML"),
    ("commands to one node are always pipelined", "REDIS_CLUSTER_PIPELINE_PARALLELISM"),
    (
        "all limits live in one store, so that a request is charged on all or none",
        "REDIS_PERSECOND REDIS_PERSECOND_AUTH REDIS_PERSECOND_PIPELINE_LIMIT \
         REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_SOCKET_TYPE \
         REDIS_PERSECOND_TLS REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL",
    ),
    (
        "all calls share a pipelined connection to each node",
        "REDIS_PIPELINE_LIMIT REDIS_PIPELINE_WINDOW REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_SIZE",
    ),
    ("certificates are always verified", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
    ("both the folder and its parent are polled", "RUNTIME_WATCH_ROOT"),
    (
        "denied hits are not charged on any limit of the request, unless SLIDEGATE_ENVOY_EXCESS or a limit sets `count`",
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    ),
    (
        "spans are set up by `observe: traces:` of the config file, or by the standard OTEL_ variables",
        "TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE TRACING_SERVICE_INSTANCE_ID \
         TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE",
    ),
];

impl Reader<'_> {
    /// Warns about each such variable that is set.
    pub(super) fn ignored_variables(&self) -> Vec<String> {
        let is_off = |value: &String| ["0", "f", "false"].contains(&value.to_ascii_lowercase().as_str());
        let names = IGNORED.iter().flat_map(|(why, names)| names.split(' ').map(move |name| (name, why)));
        let set = names.filter(|(name, _)| self.text(name).is_some_and(|value| !is_off(&value)));
        set.map(|(name, why)| format!("{name} is set but has no effect: {why}")).collect()
    }
}
