//! The service as a process: its routes, commands, configuration, logs and metrics.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod cli;
mod evidence;
mod explain;
mod health;
mod presets;
mod readme;
mod secrets;
mod serve;
mod service_manager;

mod envoy_config;
mod reload;
mod reload_storm;
mod snapshots;

mod blocked;
mod calendar_windows;
mod escalation;
mod hidden_keys;
mod holds;
mod http;
mod listeners;
mod memory_bound;
mod waiting_figures;
mod wall_clock;
mod workers;

mod access;
mod added;
mod admin;

mod log_lines;
mod matching;
mod observe;
mod traces;
mod weighted;

mod replay;
mod replay_outcome;
