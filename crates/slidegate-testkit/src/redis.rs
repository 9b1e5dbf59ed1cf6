//! Redis servers: single, with Sentinel, and as a cluster; and a fake server with scripted replies.

mod cluster;
mod fake;
mod module;
mod offer;
mod resp;
mod sentinel;
mod server;

pub mod acl;

pub use cluster::{Migration, RedisCluster, Shape};
pub use fake::{FakeRedis, FakeReply};
pub use module::module;
pub use offer::{Offer, OfferRules};
pub use resp::{Command, Connection, Reply};
pub use sentinel::RedisSentinels;
pub use server::{Builder, CommandStats, RedisServer};
