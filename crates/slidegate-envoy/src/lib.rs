//! Drop-in replacement for envoyproxy/ratelimit: its config files, compiled to slidegate policies, its environment
//! variables and statistics.
//!
//! "envoyproxy/ratelimit" is the rate-limit service of the Envoy project. Its files, variables and statistics are
//! documented in its README; `docs/envoy.md` lists the differences.

mod config;
mod debounce;
mod grpc_settings;
mod settings;
mod statistics;

pub use config::{
    ConfigError, ConfigWatcher, EnvoyConfig, Explanation, Folder, LimitMatch, LiveConfig, Lookup, Rate,
    ReadOptions, Rule, SCOPE, StatKey, Unit, denied_key, replaced,
};
pub use debounce::{Debounced, POLL_EVERY};
pub use grpc_settings::{GrpcSettings, GrpcTls};
pub use settings::{HeaderNames, Redis, Settings};
pub use statistics::{CallCounters, HitCounter, LimitCounters, NamedCounters, RecordedHits, Statistics};
