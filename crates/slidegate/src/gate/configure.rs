//! The policies of a gate: checked against its store, and changed while it decides.

use std::sync::{Arc, PoisonError};

use crate::error::Error;
use crate::gate::Gate;
use crate::policy::{Policy, PolicySet};
use crate::store::{QuotaChanges, Store};

impl<S: Store> Gate<S> {
    /// A gate over any store, see [`store`](crate::store).
    ///
    /// # Errors
    /// If a limit is too large for the store. A [`MemoryStore`](crate::MemoryStore) takes any limit.
    pub fn with_store(policies: PolicySet, store: S) -> Result<Self, Error> {
        check(&policies, &store)?;
        Ok(Self::from_parts(policies, store))
    }

    /// Activates other policies. A request is decided under the old set or the new one, never under
    /// parts of both. Usage is kept by policy name. It counts by the old quota until now and by the
    /// new one from now on. In a shared store that happens with the next decision on a key. It
    /// starts afresh if the scope or the algorithm changes.
    ///
    /// Takes time proportional to the number of keys in this process's memory, while decisions go
    /// on.
    ///
    /// # Errors
    /// If a limit is too large for the store, or a policy [weighs](crate::Counts::Weighted) costs and did not before,
    /// or the other way round: what its keys have used would be misread. The old set stays active. A
    /// [`MemoryStore`](crate::MemoryStore) takes any limit.
    pub fn configure(&self, mut policies: PolicySet) -> Result<(), Error> {
        check(&policies, &self.store)?;
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        same_units(&self.policies.load(), &policies)?;
        numbers.number(&mut policies);
        policies.keep_learned(&self.policies.load());
        let new = Arc::new(policies);
        let old = self.policies.swap(Arc::clone(&new));
        self.store.quotas_changed(&QuotaChanges(&|seed| {
            let changes = new.changes_since(&old, seed);
            Box::new(move |policy, key| changes.of(policy, key))
        }));
        self.queues.wake_all();
        Ok(())
    }

    /// Checks that the store can count the limits of a policy.
    ///
    /// # Errors
    /// If a limit is too large for the store.
    pub fn check_policy(&self, policy: &Policy) -> Result<(), Error> {
        check_policy(policy, &self.store)
    }

    /// The active policies.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }
}

/// Checks that the store can count the limits of these policies.
fn check(policies: &PolicySet, store: &impl Store) -> Result<(), Error> {
    policies.iter().try_for_each(|policy| check_policy(policy, store))
}

fn check_policy(policy: &Policy, store: &impl Store) -> Result<(), Error> {
    let mut quotas = policy.quotas();
    let checked = quotas.try_for_each(|quota| store.check_quota(&policy.counted(quota)));
    checked.map_err(|error| Error::policy(format!("policy `{}`: {error}", policy.name())))
}

/// Whether policies of one name count in one unit.
fn same_units(old: &PolicySet, new: &PolicySet) -> Result<(), Error> {
    let known = |policy: &&Policy| {
        let known = old.by_name(policy.name());
        known.is_some_and(|known| known.counts().is_weighted() != policy.counts().is_weighted())
    };
    let Some(changed) = new.iter().find(known) else { return Ok(()) };
    Err(Error::policy(format!(
        "policy `{}`: weights of costs cannot be added or removed, as what its keys have used would be misread; give \
         the policy another name",
        changed.name()
    )))
}
