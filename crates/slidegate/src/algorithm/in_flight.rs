//! In flight: nothing is used, and what counts is what is held.
//!
//! A policy that limits what runs at once has no window and no log: its requests hold permits, see
//! `hold.rs`, and give them back.

use super::saved::{Ages, SavedState};
use super::state::State;
use crate::quota::{Quota, format_window};
use crate::usage::RecordedCharge;

/// No bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlight;

impl State for InFlight {
    type Forecast = Self;

    fn forecast(&self) -> Self {
        *self
    }

    fn settle(&mut self, _quota: &Quota, now: u64) -> u64 {
        now
    }

    fn adopt(&mut self, _old: &Quota, _quota: &Quota, _now: u64) {}

    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        0
    }

    fn wait_us(&self, _quota: &Quota, _now: u64, _target: u64) -> u64 {
        0
    }

    /// An ended request is no longer in flight.
    fn charge(&mut self, _quota: &Quota, _now: u64, _cost: u64) {}

    fn refund(&mut self, _quota: &Quota, _now: u64, _cost: u64) -> u64 {
        0
    }

    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        Vec::new()
    }
}

impl SavedState for InFlight {
    type Saved = ();

    fn save(&self, _ages: Ages) {}

    fn load(_saved: (), _ages: Ages, _quota: &Quota, _now: u64) -> Option<Self> {
        Some(Self)
    }

    fn most_used(&self) -> u64 {
        0
    }

    fn charged_by(_quota: &Quota, _cost: u64, _after: u64, by: u64, now: u64) -> u64 {
        by.min(now)
    }

    fn counts_still(_quota: &Quota, _cost: u64, _made: u64, _now: u64) -> u64 {
        0
    }

    fn describe(quota: &Quota) -> String {
        format!("released when settled, or {} after the last heartbeat", format_window(quota.window()))
    }
}
