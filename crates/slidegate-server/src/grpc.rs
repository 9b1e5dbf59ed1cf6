//! Envoy's rate-limit service over gRPC: the listener, and the service behind the
//! handlers.
//!
//! The handlers themselves are in the crate `slidegate-envoy`.

mod host;
mod listener;

pub(crate) use listener::{TLS, bind, tls_files};

/// Handles the calls of gRPC and of `/json`.
pub(crate) type RateLimitHandler = slidegate_envoy::RateLimitHandler<crate::app::App>;
