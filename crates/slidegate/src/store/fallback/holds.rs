//! Holds in a fallback store: of the shared store and of its fallbacks.
//!
//! The first byte of a key in a ticket tells them apart. A fallback's hold is settled in the memory
//! of the process that made it; elsewhere it ends when its time is over.

use smallvec::SmallVec;

use super::FallbackStore;
use crate::decision::DecisionSource;
use crate::error::Error;
use crate::key::Key;
use crate::store::{HeldCharge, HoldAnswers, HoldCall, HoldStore, SharedHoldStore, TicketKeyBytes};
use crate::ticket::{Ticket, TicketSecret};

/// First byte of keys in this process's memory.
const LOCAL: u8 = 0;
/// First byte of keys in the shared store.
const SHARED: u8 = 1;

impl<S: SharedHoldStore> HoldStore for FallbackStore<S> {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        let (kind, key) = match held.decision.source {
            DecisionSource::Store => (SHARED, self.primary.key_for_ticket(held).into()),
            DecisionSource::Local => (LOCAL, self.local.memory.key_for_ticket(held)?),
            _ => return None,
        };
        Some(of_kind(kind, &key))
    }

    fn ids_in_tickets(&self, key: &Key<'_>) -> SmallVec<[TicketKeyBytes; 2]> {
        let local = self.local.memory.ids_in_tickets(key).into_iter().map(|id| of_kind(LOCAL, &id));
        local.chain([of_kind(SHARED, &self.primary.id_of_key(key))]).collect()
    }

    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes {
        match key.split_first() {
            Some((&LOCAL, key)) => of_kind(LOCAL, &self.local.memory.id_in_ticket(key)),
            Some((&kind, key)) => of_kind(kind, &self.primary.id_in_ticket(key)),
            None => TicketKeyBytes::new(),
        }
    }

    fn seal(&self, ticket: &mut Ticket) {
        if is_local(ticket) {
            self.local.memory.seal(ticket);
        } else {
            self.primary.seal(ticket);
        }
    }

    fn ticket_secret(&self) -> TicketSecret {
        self.primary.ticket_secret().unwrap_or_else(|| self.local.memory.ticket_secret())
    }

    async fn prepare_to_seal(&self) {
        self.primary.prepare_to_seal().await;
    }

    async fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> Result<Option<HoldAnswers>, Error> {
        let without_kind = |share_of| changes.iter().map(move |one| without_kind(one, share_of));
        if is_local(ticket) {
            let changes: Vec<_> = without_kind(self.local.instances()).collect();
            return Ok(self.local.memory.change_holds(ticket, &changes));
        }
        let changes: Vec<_> = without_kind(1).collect();
        let changed = self.primary.change_holds(ticket, &changes).await;
        let changed = changed.map_err(|failure| Error::store(self.remember(failure).to_string()))?;
        Ok(changed.map(HoldAnswers::from_vec))
    }
}

fn of_kind(kind: u8, key: &[u8]) -> TicketKeyBytes {
    std::iter::once(kind).chain(key.iter().copied()).collect()
}

/// Whether a fallback made the ticket. Either fallbacks or the shared store decide a call, so all
/// its keys are of one kind.
fn is_local(ticket: &Ticket) -> bool {
    ticket.keys().next().is_some_and(|(_, key)| key.key.first() == Some(&LOCAL))
}

/// The change for the store that knows the key.
fn without_kind<'a>(change: &HoldCall<'a>, share_of: u64) -> HoldCall<'a> {
    HoldCall { key: change.key.get(1..).unwrap_or_default(), share_of, ..*change }
}
