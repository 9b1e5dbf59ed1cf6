//! Drop-in replacement for envoyproxy/ratelimit: its config files, compiled to slidegate policies,
//! its environment variables and statistics, and its gRPC and HTTP services; and the gRPC service of
//! Kuadrant over the same limits.
//!
//! "envoyproxy/ratelimit" is the rate-limit service of the Envoy project. Its files, variables and
//! statistics are documented in its README; `docs/envoy.md` lists the differences. The crate knows
//! no store: a service that embeds it implements [`Host`].

#![forbid(unsafe_code)]

mod config;
mod debounce;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod grpc_settings;
mod handler;
mod host;
mod http;
pub mod kuadrant;
mod message;
mod settings;
mod statistics;
mod timed_body;
pub mod yaml;

pub use config::{
    ConfigError, ConfigWatcher, EnvoyConfig, Explanation, Folder, LiveConfig, Rate, ReadOptions, SCOPE,
    StatKey, Unit, denied_key,
};
pub use debounce::{Debounced, POLL_EVERY};
pub use grpc::{ConnectionError, GrpcServices, serve_connection, serve_unix_connection};
pub use grpc_settings::{GrpcSettings, GrpcTls};
pub use handler::{ConfigFiles, RateLimitHandler, removed_meanwhile};
pub use host::{Action, Client, Host};
pub use http::{config_routes, debug_router, routes};
pub use settings::{HeaderNames, Redis, Settings};
pub use statistics::{CallCounters, HitCounter, LimitCounters, NamedCounters, Statistics};
