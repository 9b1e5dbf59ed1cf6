//! The policies of a gate: validated against its store, and replaced while it decides.

use std::sync::{Arc, PoisonError};

use crate::error::Error;
use crate::gate::Gate;
use crate::policy::{Policy, PolicySet};
use crate::store::{QuotaChanges, Store};

impl<S: Store> Gate<S> {
    /// A gate over any store. See [`store`](crate::store).
    ///
    /// # Errors
    /// If a limit is too large for the store. A [`MemoryStore`](crate::MemoryStore) takes any limit.
    pub fn with_store(policies: PolicySet, store: S) -> Result<Self, Error> {
        check(&policies, &store)?;
        Ok(Self::from_parts(policies, store))
    }

    /// Activates other policies. A request is decided under the old set or the new one, never a
    /// mix. Usage is kept by policy name. It counts by the old quota until now and by the new one
    /// from now on; in a shared store, from the next decision on a key. Usage starts afresh if the
    /// scope or the algorithm changes, or if the policy starts or stops
    /// [weighting](crate::Counts::Weighted) costs.
    ///
    /// Takes time proportional to the number of keys in this process's memory, while decisions
    /// continue.
    ///
    /// # Errors
    /// If a limit is too large for the store. The old set stays active. A [`MemoryStore`](crate::MemoryStore) takes any
    /// limit.
    pub fn configure(&self, mut policies: PolicySet) -> Result<(), Error> {
        check(&policies, &self.store)?;
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.number(&mut policies);
        policies.keep_learned(&self.policies.load());
        let new = Arc::new(policies);
        let old = self.policies.swap(Arc::clone(&new));
        self.store.quotas_changed(&QuotaChanges(&|seed| {
            let changes = new.changes_since(&old, seed);
            let policies = changes.policies();
            (Box::new(move |policy, key| changes.of(policy, key)), policies)
        }));
        self.queues.wake_all();
        Ok(())
    }

    /// The active policies.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }
}

fn check(policies: &PolicySet, store: &impl Store) -> Result<(), Error> {
    policies.iter().try_for_each(|policy| check_policy(policy, store))
}

/// Checks that a store can count the limits of a policy.
///
/// # Errors
/// If a limit is too large for the store.
pub fn check_policy(policy: &Policy, store: &impl Store) -> Result<(), Error> {
    let mut quotas = policy.quotas();
    let checked = quotas.try_for_each(|quota| store.check_quota(&policy.options().counts.counted(quota)));
    checked.map_err(|error| Error::policy(format!("policy `{}`: {error}", policy.name())))
}
