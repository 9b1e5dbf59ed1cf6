//! Changes of holds in memory.

use super::MemoryStore;
use super::shard::{Call, Shard};
use crate::charge::PerCharge;
use crate::error::Error;
use crate::hold::HoldStatus;
use crate::key::KeyId;
use crate::quota::Quota;
use crate::secret::Secret;
use crate::store::{HeldCharge, HoldAnswer, HoldAnswers, HoldCall, HoldStore, TicketKeyBytes};
use crate::ticket::{Ticket, TicketSecret};

impl HoldStore for MemoryStore {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        Some(held.charge.key.id(&self.secret).bytes().as_slice().into())
    }

    fn seal(&self, ticket: &mut Ticket) {
        ticket.seal(&self.ticket_secret());
    }

    fn ticket_secret(&self) -> TicketSecret {
        TicketSecret { key: Secret::new(self.secret.key_for(b"tickets")), incarnation: 0 }
    }

    async fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> Result<Option<HoldAnswers>, Error> {
        Ok(self.change_holds(ticket, changes))
    }
}

impl MemoryStore {
    /// Changes holds, all of them or none: none if one is an extension that does not fit. `None` if
    /// the ticket is not one of this store.
    pub(crate) fn change_holds(&self, ticket: &Ticket, changes: &[HoldCall<'_>]) -> Option<HoldAnswers> {
        let is_ours = ticket.is_sealed_by(&self.ticket_secret());
        is_ours.then(|| if changes.is_empty() { HoldAnswers::new() } else { self.change_all(changes) })
    }

    fn change_all(&self, changes: &[HoldCall<'_>]) -> HoldAnswers {
        let mut answers = HoldAnswers::new();
        let with_quota = |one: &HoldCall<'_>| {
            let id = KeyId::from_bytes(one.key);
            (id, one.quota(&self.secret, id))
        };
        let keys: PerCharge<(KeyId, Quota)> = changes.iter().map(with_quota).collect();
        let ids = changes.iter().zip(&keys).map(|(one, (id, _))| (*id, one.number));
        let mut locked = self.lock_keys(ids);
        let mut fits = true;
        for (at, one) in changes.iter().enumerate().filter(|(_, one)| one.change.is_extension()) {
            let (data, call) = locked.key(at, &keys[at].1);
            fits &= data.on_key(&call, |shard, call| shard.change_fits(call, one.id, &one.change));
        }
        for (at, one) in changes.iter().enumerate() {
            let (data, call) = locked.key(at, &keys[at].1);
            answers.push(data.on_key(&call, |shard, call| {
                // Asks for what does not fit, so that the decision says how long to wait.
                if fits || !one.change.is_extension() || !shard.change_fits(call, one.id, &one.change) {
                    return shard.change_alone(call, one);
                }
                HoldAnswer { status: HoldStatus::Denied, decision: shard.apply(call) }
            }));
        }
        answers
    }
}

impl Shard {
    /// Changes a hold, regardless of others.
    fn change_alone(&mut self, call: &Call<'_>, one: &HoldCall<'_>) -> HoldAnswer {
        let ended = one.ended(call.now.wall);
        let change = one.change_at(call.quota, call.now.wall);
        let (status, decision) = self.change(call, one.id, &change, &ended);
        HoldAnswer { status, decision }
    }
}
