#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admin;
mod batch;
mod call;
mod calls;
mod denial_cache;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod held_keys;
mod holds;
mod invalidation;
mod last_quotas;
mod leases;
mod mixed;
mod names;
mod native;
mod options;
mod reply;
mod scripts;
mod server_time;
mod service;
mod spread;
mod store;
mod ticket_secret;
mod waiters;

pub use admin::servers::ServerInfo;
pub use options::RedisOptions;
pub use redis_once::{ClientCertificate, FailureKind};
pub use store::RedisStore;

/// A gate over Redis: `SharedGate::new(policies, RedisStore::new(options)?)`.
pub type RedisGate = slidegate::SharedGate<slidegate::store::FallbackStore<RedisStore>>;
