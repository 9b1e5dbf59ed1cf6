//! The active policies of a gate, and what each thread read of them last.
//!
//! A read through `ArcSwap` is two locked instructions, a sixth of a check without a plan. Such
//! checks use the set that their thread used before, after one plain read that tells whether it is
//! still active.

#[cfg(feature = "tower")]
use std::cell::Cell;
#[cfg(feature = "tower")]
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use crate::error::Error;
use crate::policy::{Policy, PolicySet};
use crate::store::Store;

/// The number of the last revision of any gate.
static LAST_REVISION: AtomicU64 = AtomicU64::new(0);

/// The active policies.
#[derive(Debug)]
pub(super) struct ActivePolicies {
    set: ArcSwap<PolicySet>,
    /// Identifies `set` among the sets of all gates. Changes after `set` does.
    revision: AtomicU64,
}

impl ActivePolicies {
    pub(super) fn new(policies: PolicySet) -> Self {
        Self { set: ArcSwap::from_pointee(policies), revision: AtomicU64::new(next_revision()) }
    }

    #[inline]
    pub(super) fn load(&self) -> Guard<Arc<PolicySet>> {
        self.set.load()
    }

    pub(super) fn load_full(&self) -> Arc<PolicySet> {
        self.set.load_full()
    }

    /// Activates other policies. Returns the ones before. Calls must not overlap.
    pub(super) fn swap(&self, new: Arc<PolicySet>) -> Arc<PolicySet> {
        let old = self.set.swap(new);
        self.revision.store(next_revision(), Ordering::Release);
        old
    }
}

/// Checks that the store can count the limits of these policies.
pub(super) fn check(policies: &PolicySet, store: &impl Store) -> Result<(), Error> {
    policies.iter().try_for_each(|policy| check_policy(policy, store))
}

/// The same of one policy.
pub(super) fn check_policy(policy: &Policy, store: &impl Store) -> Result<(), Error> {
    let mut quotas = policy.quotas();
    let checked = quotas.try_for_each(|quota| store.check_quota(quota));
    checked.map_err(|error| Error::policy(format!("policy `{}`: {error}", policy.name())))
}

fn next_revision() -> u64 {
    LAST_REVISION.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(feature = "tower")]
thread_local! {
    /// The policies that this thread used last, and their revision. It keeps them in memory until it
    /// uses others.
    static LAST_USED: Cell<Option<(u64, Arc<PolicySet>)>> = const { Cell::new(None) };
}

/// Policies that are active, on their way from this thread's last use to its next.
#[cfg(feature = "tower")]
#[derive(Debug)]
pub(super) struct RecentPolicies(Option<(u64, Arc<PolicySet>)>);

#[cfg(feature = "tower")]
impl ActivePolicies {
    /// The policies, for a short use on this thread.
    #[inline]
    pub(super) fn recent(&self) -> RecentPolicies {
        // Before the set: a revision may only be kept with its set or a later one.
        let revision = self.revision.load(Ordering::Acquire);
        let last = LAST_USED.try_with(Cell::take).ok().flatten();
        RecentPolicies(match last {
            Some(last) if last.0 == revision => Some(last),
            _ => Some((revision, self.load_full())),
        })
    }
}

#[cfg(feature = "tower")]
impl RecentPolicies {
    pub(super) fn to_arc(&self) -> Arc<PolicySet> {
        let Some((_, set)) = &self.0 else { unreachable!("only dropping takes them") };
        Arc::clone(set)
    }
}

#[cfg(feature = "tower")]
impl Deref for RecentPolicies {
    type Target = PolicySet;

    #[inline]
    fn deref(&self) -> &PolicySet {
        let Some((_, set)) = &self.0 else { unreachable!("only dropping takes them") };
        set
    }
}

#[cfg(feature = "tower")]
impl Drop for RecentPolicies {
    #[inline]
    fn drop(&mut self) {
        // Without the variable, the thread is ending.
        let _ = LAST_USED.try_with(|last| last.set(self.0.take()));
    }
}
