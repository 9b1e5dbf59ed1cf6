//! The active policies of a gate, and what each thread read of them last.
//!
//! A read through `ArcSwap` is two locked instructions, a sixth of a check without a plan. Decisions
//! use the set that their thread used before, after one plain read that tells whether it is still
//! active.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
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

/// The policies that a thread used last. They stay in memory until it uses others often enough.
struct LastUsed {
    /// Their revision, or [`TAKEN`](Self::TAKEN). Apart from them, because one load of both would
    /// wait for the two stores before it.
    revision: Cell<u64>,
    set: Cell<Option<Arc<PolicySet>>>,
    /// How often the thread has asked for other policies.
    misses: Cell<u32>,
}

impl LastUsed {
    /// The thread is using them, or another thread has finished using them. Revisions begin at 1.
    const TAKEN: u64 = 0;
    /// Other policies replace them after so many misses. A thread that serves two gates in turns
    /// would count references to both sets otherwise, at counters that all threads share.
    const MISSES: u32 = 64;

    /// An unused one, which the first policies replace.
    const fn new() -> Self {
        Self { revision: Cell::new(u64::MAX), set: Cell::new(None), misses: Cell::new(Self::MISSES - 1) }
    }

    /// The policies of this revision, or `Some(None)` if they are to replace the ones before.
    #[inline]
    fn take(&self, revision: u64) -> Option<Option<Arc<PolicySet>>> {
        let last = self.revision.get();
        if last != revision {
            if last == Self::TAKEN {
                return None;
            }
            let misses = (self.misses.get() + 1) % Self::MISSES;
            self.misses.set(misses);
            if misses != 0 {
                return None;
            }
            self.set.set(None);
        }
        self.revision.set(Self::TAKEN);
        Some(self.set.take())
    }
}

thread_local! {
    static LAST_USED: LastUsed = const { LastUsed::new() };
}

/// Policies in use, which were active when their use began.
pub(super) struct UsedPolicies {
    /// `None` only while they are dropped.
    set: Option<Guard<Arc<PolicySet>>>,
    /// Their revision, if the thread that drops them keeps them for its next use.
    revision: Option<NonZeroU64>,
}

impl ActivePolicies {
    /// The policies, for one decision. Executes no locked instruction if this thread has used them
    /// before and has no other decisions.
    #[inline]
    pub(super) fn used(&self) -> UsedPolicies {
        // Before the set: a revision may only be kept with its set or a later one.
        let revision = self.revision.load(Ordering::Acquire);
        // Without the variable, the thread is ending.
        let (set, is_kept) = match LAST_USED.try_with(|last| last.take(revision)).unwrap_or_default() {
            Some(Some(set)) => (Guard::from_inner(set), true),
            Some(None) => (Guard::from_inner(self.load_full()), true),
            None => (self.load(), false),
        };
        UsedPolicies { set: Some(set), revision: NonZeroU64::new(revision).filter(|_| is_kept) }
    }
}

impl UsedPolicies {
    pub(super) fn as_arc(&self) -> &Arc<PolicySet> {
        self.set.as_ref().unwrap_or_else(|| unreachable!("only dropping takes them"))
    }
}

impl From<Arc<PolicySet>> for UsedPolicies {
    fn from(set: Arc<PolicySet>) -> Self {
        Self { set: Some(Guard::from_inner(set)), revision: None }
    }
}

impl Deref for UsedPolicies {
    type Target = PolicySet;

    #[inline]
    fn deref(&self) -> &PolicySet {
        self.as_arc()
    }
}

impl fmt::Debug for UsedPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Drop for UsedPolicies {
    #[inline]
    fn drop(&mut self) {
        if let (Some(revision), Some(set)) = (self.revision, self.set.take()) {
            let set = Guard::into_inner(set);
            // Without the variable, the thread is ending.
            let _ = LAST_USED.try_with(|last| {
                last.revision.set(revision.get());
                last.set.set(Some(set));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    fn active(name: &str) -> ActivePolicies {
        ActivePolicies::new(named(name))
    }

    fn named(name: &str) -> PolicySet {
        PolicySet::new([Policy::new(name, Quota::per_second(1)).unwrap()]).unwrap()
    }

    fn name_of(used: &UsedPolicies) -> &str {
        used.policy(0).name()
    }

    #[test]
    fn a_change_is_in_use_from_the_next_decision_on() {
        let active = active("before");
        let before = active.used();
        active.swap(Arc::new(named("after")));
        assert_eq!(name_of(&before), "before", "a decision keeps its policies");
        assert_eq!(name_of(&active.used()), "after");
        drop(before);
        for _ in 0..3 * LastUsed::MISSES {
            assert_eq!(name_of(&active.used()), "after");
        }
    }

    #[test]
    fn gates_that_decide_in_turns_keep_their_own_policies() {
        let (one, two) = (active("one"), active("two"));
        for _ in 0..3 * LastUsed::MISSES {
            let (of_one, of_two) = (one.used(), two.used());
            assert_eq!((name_of(&of_one), name_of(&of_two)), ("one", "two"));
            drop((of_one, of_two));
            assert_eq!(name_of(&two.used()), "two");
        }
    }

    /// Otherwise a thread would keep every set that it ever used.
    #[test]
    fn replaced_policies_leave_memory_once_others_are_used() {
        let active = active("before");
        let before = Arc::downgrade(&active.load_full());
        drop(active.used());
        active.swap(Arc::new(named("after")));
        assert!(before.upgrade().is_some(), "this thread used them last");
        for _ in 0..LastUsed::MISSES {
            active.used();
        }
        assert!(before.upgrade().is_none());
    }

    #[test]
    fn policies_may_be_dropped_by_another_thread() {
        let active = active("one");
        for _ in 0..3 {
            let used = active.used();
            std::thread::scope(|scope| scope.spawn(move || drop(used)).join().unwrap());
            assert_eq!(name_of(&active.used()), "one");
        }
    }
}
