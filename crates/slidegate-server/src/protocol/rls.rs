//! Envoy's rate-limit service over gRPC: `envoy.service.ratelimit.v3.RateLimitService`, health and reflection.
//!
//! All descriptors of a request are decided in one step: either each of them is charged or none, so a descriptor that is
//! refused burns nothing of another. Envoy passes requests on when this service fails or is slow, unless it is told
//! otherwise; docs/envoy.md says where.

mod answer;
mod ask;
mod authority;
mod certificates;
mod connection;
mod door;
mod json;
mod limits;
mod metadata;
mod reflection;
mod refused;
mod service;
mod tally;

pub(crate) use door::bind;
pub(crate) use json::{config_routes, debug_routes, routes};
pub(crate) use limits::{Files, Limits};
