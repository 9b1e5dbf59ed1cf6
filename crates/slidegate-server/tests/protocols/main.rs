//! The protocols besides HTTP, spoken by their own clients: RESP and Envoy's gRPC services.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod resp;
mod rls;

/// The servers of the library's own tests.
#[path = "../../../slidegate/tests/redis"]
mod library {
    // What only those tests need stands idle here.
    #[allow(dead_code)]
    pub(crate) mod support;
}
