//! The module in real servers, against the scripts.
//!
//! Every test starts the servers it needs, on loopback, and ends them. They are Redis or whatever
//! `REDIS_SERVER` names.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

#[path = "../../../slidegate-redis/src/scripts/assemble.rs"]
#[allow(dead_code)]
mod assemble;
mod calls;
mod commands;
mod damaged;
mod decide;
mod effects;
mod histories;
mod holds;
mod rights;

use std::sync::LazyLock;

use crate::assemble::Assembled;

/// The scripts that the module takes the place of.
static SCRIPTS: LazyLock<Assembled> = LazyLock::new(Assembled::new);

/// Runs histories of different seeds: a share of them with `SLIDEGATE_TEST_HISTORIES=4`, as the tests of
/// the store do.
fn each_seed(run: impl FnMut(u64)) {
    let share = std::env::var("SLIDEGATE_TEST_HISTORIES").map_or(1, |text| text.parse().unwrap());
    (1..=120u64.div_ceil(share)).for_each(run);
}
