//! The files of `deploy/` and the programs of `docs/`, run as they are by the programs they are
//! for.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod ci;
mod envoy;
mod helm;
mod hostile_inputs;
mod image;
mod kubernetes;
mod prometheus;
mod proxies;
mod snippets;
mod systemd;
