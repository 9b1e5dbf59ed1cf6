//! Envoy's rate-limit service over gRPC, and the HTTP paths of envoyproxy/ratelimit: the listener, the HTTP/2 connections and their bounds, the services, and the handler of calls.

mod codec;
mod connection;
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

/// Largest message of a call, as gRPC servers have by default, that of envoyproxy/ratelimit included. Envoy
/// accepts request heads of 60 KiB, and may copy all of one into each descriptor.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Largest message of other calls, health checks and reflection, which are decoded whole.
const MAX_OTHER_MESSAGE_BYTES: usize = 1 << 20;
/// A client that does not send the whole body of a call within this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
