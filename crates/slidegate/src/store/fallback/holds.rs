//! Holds in a fallback store: those of the shared store, and those that its fallbacks made.
//!
//! The first byte of a key in a ticket says which. A hold that a fallback made is settled in the
//! memory of the process that made it; elsewhere it ends by its time.

use super::FallbackStore;
use crate::decision::DecisionSource;
use crate::error::Error;
use crate::store::{HeldCharge, HoldAnswers, HoldCall, HoldStore, SharedHoldStore, TicketKeyBytes};

/// The first byte of keys that the memory of this process knows.
const LOCAL: u8 = 0;
/// The first byte of keys that the shared store knows.
const SHARED: u8 = 1;

impl<S: SharedHoldStore> HoldStore for FallbackStore<S> {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        let (kind, key) = match held.decision.source {
            DecisionSource::Store => (SHARED, self.primary.key_for_ticket(held).into()),
            DecisionSource::Local => (LOCAL, self.local.memory.key_for_ticket(held)?),
            DecisionSource::Allow | DecisionSource::Deny | DecisionSource::CachedDenial => return None,
        };
        let mut bytes = TicketKeyBytes::new();
        bytes.push(kind);
        bytes.extend_from_slice(&key);
        Some(bytes)
    }

    async fn change_holds(&self, changes: &[HoldCall<'_>]) -> Result<HoldAnswers, Error> {
        let is_local = |change: &HoldCall<'_>| change.key.first() == Some(&LOCAL);
        let instances = self.local.instances();
        let local: Vec<_> =
            changes.iter().filter(|one| is_local(one)).map(|one| without_kind(one, instances)).collect();
        let shared: Vec<_> =
            changes.iter().filter(|one| !is_local(one)).map(|one| without_kind(one, 1)).collect();
        shared.iter().try_for_each(|change| self.primary.check_ticket(change))?;
        // The shared store first: if it does not reply, the call is repeated.
        let shared = match shared.as_slice() {
            [] => Vec::new(),
            shared => {
                let changed = self.primary.change_holds(shared).await;
                changed.map_err(|failure| Error::store(self.remember(failure).to_string()))?
            }
        };
        let local = self.local.memory.change_holds(&local);
        let (mut local, mut shared) = (local.into_iter(), shared.into_iter());
        let next = |change| if is_local(change) { local.next() } else { shared.next() };
        Ok(changes.iter().filter_map(next).collect())
    }
}

/// The change for the store that knows the key.
fn without_kind<'a>(change: &HoldCall<'a>, share_of: u64) -> HoldCall<'a> {
    HoldCall { key: change.key.get(1..).unwrap_or_default(), share_of, ..*change }
}
