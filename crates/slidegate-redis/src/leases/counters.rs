//! Counts of leases by policy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slidegate::store::LeaseStats;

use crate::names::Names;

/// Counts of one policy since the store was created.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) granted: AtomicU64,
    pub(super) renewed: AtomicU64,
    pub(super) settled: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) admitted: AtomicU64,
}

/// Those of the policies that have had a lease.
#[derive(Debug, Default)]
pub(super) struct CountersByPolicy(Mutex<BTreeMap<String, Arc<Counters>>>);

impl CountersByPolicy {
    /// The counters of the policy of a key with this name.
    pub(super) fn of(&self, name: &[u8]) -> Arc<Counters> {
        Arc::clone(self.all().entry(policy_of(name).to_owned()).or_default())
    }

    /// What was counted, without what is open now.
    pub(super) fn stats(&self) -> BTreeMap<String, LeaseStats> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = |counters: &Counters| LeaseStats {
            granted: of(&counters.granted),
            renewed: of(&counters.renewed),
            returned: of(&counters.settled).saturating_sub(of(&counters.renewed)),
            expired: of(&counters.expired),
            admitted: of(&counters.admitted),
            ..LeaseStats::default()
        };
        self.all().iter().map(|(policy, counters)| (policy.clone(), counts(counters))).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Counters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policy of a key with this name.
pub(super) fn policy_of(name: &[u8]) -> &str {
    let untagged = Names::untagged(name);
    let end = untagged.iter().position(|byte| *byte == b':').unwrap_or(untagged.len());
    std::str::from_utf8(&untagged[..end]).unwrap_or_default()
}
