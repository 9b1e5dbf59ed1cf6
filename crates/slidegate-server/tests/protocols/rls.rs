//! The gRPC listener, with a client that is generated from Envoy's own definitions.

mod calls;
pub(crate) mod client;
mod listener;
mod recorded;
mod reference;
mod statistics;
mod tokens;
