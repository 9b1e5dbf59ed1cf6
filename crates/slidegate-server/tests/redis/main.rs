//! The service over a shared store: Redis servers of its own, and their failures.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod control;
mod shared_store;
mod unavailable;

/// The servers of the library's own tests.
#[path = "../../../slidegate/tests/redis"]
mod library {
    // What only those tests need stands idle here.
    #[allow(dead_code)]
    pub(crate) mod support;
}
