//! The files of `deploy/` and the programs of `docs/`, run as they are by the programs they are for.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod envoy;
mod proxies;
mod snippets;

/// The servers of the library's own tests.
#[path = "../../../slidegate/tests/redis"]
mod library {
    // What only those tests need stands idle here.
    #[allow(dead_code)]
    pub(crate) mod support;
}
