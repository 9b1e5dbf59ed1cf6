//! What the library does in one process: no network, no server, and time moved by hand.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod calendar;
mod cases;
mod configure;
mod gate;
mod gate_waiting;
mod holds;
mod inline_quotas;
mod matching;
mod mixed;
mod refunds;
mod tiers;
mod unknown_cost;
mod unknown_policy;
mod waiting;
mod weighted;

mod blocks;
mod inspect;

mod clock_steps;
mod wall_clock;

mod concurrency;
mod oracle;

mod counting;

mod allocation;
mod evicted;
mod figures;
mod memory;
mod memory_bytes;
mod snapshots;
