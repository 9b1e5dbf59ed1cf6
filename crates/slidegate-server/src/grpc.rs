//! Envoy's rate-limit service and Kuadrant's over gRPC, and the HTTP paths of envoyproxy/ratelimit:
//! the listener, the HTTP/2 connections and their bounds, the services, and the handler of calls.

mod authority;
mod codec;
mod connection;
mod handler;
mod incomplete;
mod json;
mod kuadrant;
mod listener;
mod received;
mod reflection;
mod services;
mod unread;

use std::time::Duration;

pub(crate) use handler::{ConfigFiles, RateLimitHandler};
pub(crate) use json::{config_routes, debug_router, routes};
pub(crate) use listener::{TLS, bind};

/// Largest message of a call: 64 descriptors of a kilobyte each.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// A client that does not send the whole body of a call within this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
