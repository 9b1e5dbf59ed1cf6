//! Envoy's rate-limit service over gRPC: the listener, its certificates, and the service behind the
//! handlers.
//!
//! The handlers themselves are in the crate `slidegate-envoy`.

mod certificates;
mod host;
mod listener;

pub(crate) use listener::bind;

/// Handles the calls of gRPC and of `/json`.
pub(crate) type RateLimitHandler = slidegate_envoy::RateLimitHandler<crate::app::App>;
