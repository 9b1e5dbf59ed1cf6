//! The gRPC door, with a client that is generated from Envoy's own definitions.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod calls;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod door;
mod reference;
mod statistics;
mod tokens;

/// The servers of the library's own tests.
#[path = "../../../slidegate/tests/redis"]
mod library {
    // What only those tests need stands idle here.
    #[allow(dead_code)]
    pub(crate) mod support;
}
