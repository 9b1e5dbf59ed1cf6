//! The gRPC door, with a client that is generated from Envoy's own definitions.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod calls;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod door;
mod reference;
