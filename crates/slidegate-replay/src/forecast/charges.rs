//! What counts on one key.

use slidegate::Quota;

/// Requests that count on one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charges {
    /// Their number, at least 1.
    pub(super) charges: u64,
    /// The cost of each.
    pub(super) cost: u64,
}

impl Charges {
    /// The entries of a log and the cost of each: charges of one step share an entry.
    pub(super) fn entries(self, quota: &Quota) -> (u64, u64) {
        let slots = u64::from(quota.slots());
        let entries = self.charges.min(slots);
        (entries, self.charges.saturating_mul(self.cost).div_ceil(entries.max(1)))
    }
}
