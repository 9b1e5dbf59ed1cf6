//! Calls for operators and timers: scans, inspection, self-tests, the control document, instances.

use std::time::Duration;

pub(super) mod claim;
pub(super) mod closed;
pub(super) mod control_document;
pub(super) mod examine;
pub(super) mod inspect;
pub(super) mod instances;
pub(super) mod scan;
pub(super) mod self_test;
pub(super) mod servers;

/// The deadline of one call. No decision waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
