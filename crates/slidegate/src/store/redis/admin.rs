//! What operators and timers ask of the store: scans, inspection, self-tests, the control document.

use std::time::Duration;

pub(super) mod control_document;
pub(super) mod examine;
pub(super) mod inspect;
pub(super) mod instances;
pub(super) mod scan;
pub(super) mod self_test;

/// The deadline of one call. No decision waits for it.
const PATIENCE: Duration = Duration::from_secs(2);
