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

/// Runs histories of different seeds: so many as `SLIDEGATE_MODULE_HISTORIES` says, from
/// `SLIDEGATE_MODULE_SEED` on.
fn each_seed(mut run: impl FnMut(u64)) {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("SLIDEGATE_MODULE_SEED", 1);
    (first..first + number("SLIDEGATE_MODULE_HISTORIES", 120)).for_each(&mut run);
}
