//! The gRPC listener, with clients that are generated from Envoy's own definitions and from those of
//! Kuadrant's service.

mod calls;
pub(crate) mod client;
mod hostile;
mod kuadrant;
mod listener;
mod reference;
mod statistics;
mod tokens;
