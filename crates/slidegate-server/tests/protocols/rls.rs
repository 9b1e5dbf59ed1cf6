//! The gRPC door, with a client that is generated from Envoy's own definitions.

mod calls;
mod client;
mod door;
mod reference;
mod statistics;
mod tokens;
