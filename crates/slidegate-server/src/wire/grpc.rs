//! Envoy's rate-limit service over gRPC, and the HTTP paths of envoyproxy/ratelimit: listener, bounded HTTP/2
//! connections, services and call handler.

mod codec;
mod connection;
mod frame;
mod handler;
mod header_blocks;
mod incomplete;
mod json;
mod listener;
mod message;
mod received;
mod reflection;
mod services;
mod unread;

use std::time::Duration;

pub(crate) use handler::{ConfigFiles, RateLimitHandler};
pub(crate) use json::{config_routes, debug_router, routes};
pub(crate) use listener::{TLS, bind};

/// The rate-limit service's name in health checks and reflection.
const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// Maximum message of a rate-limit call: the default of gRPC servers, including envoyproxy/ratelimit. Envoy
/// accepts request heads of 60 KiB and may copy a whole one into each descriptor.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum message of other calls (health checks, reflection), which are decoded whole.
const MAX_OTHER_MESSAGE_BYTES: usize = 1 << 20;
/// A call whose body is not complete within this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
