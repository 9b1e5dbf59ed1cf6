//! The gRPC listener, with clients that are generated from Envoy's own definitions.

mod calls;
pub(crate) mod client;
mod hostile;
mod listener;
mod reference;
mod statistics;
mod tokens;
