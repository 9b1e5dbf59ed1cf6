//! Metrics of calls that wait for their turn.

use std::fmt;

use super::page::Page;
use crate::record::{TurnOutcome, Waits};

pub(super) fn waits(page: &mut Page<'_>, waits: &Waits) -> fmt::Result {
    let (waiting, oldest) = waits.now();
    page.value("waiting", "Calls that wait for their turn", waiting as u64)?;
    page.seconds("waiting_oldest", "How long the oldest of them has waited", oldest.as_secs_f64())?;
    let help = "Calls that might wait: admitted in their turn, without a turn in time, refused because as many waited as \
                may, or given up by their client";
    let outcomes = TurnOutcome::ALL.map(|one| ([("outcome", one.name())], waits.count_of(one)));
    page.counter("waits", help, outcomes)?;
    page.histogram("wait_duration", "How long admitted calls waited for their turn", &waits.time.read())
}
