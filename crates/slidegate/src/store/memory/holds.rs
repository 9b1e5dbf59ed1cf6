//! Changes of holds in memory.

use smallvec::{SmallVec, smallvec};

use super::shard::{Call, Shard};
use super::{LockedKeys, MemoryStore, ShardData};
use crate::charge::{MetQuota, PerCharge};
use crate::error::Error;
use crate::hold::HoldStatus;
use crate::key::{Key, KeyId};
use crate::quota::Quota;
use crate::secret::Secret;
use crate::store::{HeldCharge, HoldAnswer, HoldAnswers, HoldCall, HoldStore, TicketKeyBytes};
use crate::ticket::{Ticket, TicketSecret};

impl HoldStore for MemoryStore {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        Some(held.charge.key.id(&self.secret).bytes().as_slice().into())
    }

    fn ids_in_tickets(&self, key: &Key<'_>) -> SmallVec<[TicketKeyBytes; 2]> {
        smallvec![key.id(&self.secret).bytes().as_slice().into()]
    }

    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes {
        key.into()
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
    /// Changes holds, all or none: none if one is an extension that does not fit. `None` if this
    /// store did not make the ticket.
    pub(crate) fn change_holds(&self, ticket: &Ticket, changes: &[HoldCall<'_>]) -> Option<HoldAnswers> {
        let is_ours = ticket.is_sealed_by(&self.ticket_secret());
        is_ours.then(|| if changes.is_empty() { HoldAnswers::new() } else { self.change_all(changes) })
    }

    fn change_all(&self, changes: &[HoldCall<'_>]) -> HoldAnswers {
        let mut answers = HoldAnswers::new();
        let with_quota = |one: &HoldCall<'_>| (KeyId::from_bytes(one.key), one.quota(MetQuota::OfPolicy));
        let keys: PerCharge<(KeyId, Quota)> = changes.iter().map(with_quota).collect();
        let ids = changes.iter().zip(&keys).map(|(one, (id, _))| (*id, one.number));
        let mut locked = LockedKeys::new(self);
        locked.lock(ids);
        let mut fits = true;
        for (at, one) in changes.iter().enumerate().filter(|(_, one)| one.change.is_extension()) {
            let (data, call) = locked.key(at, &keys[at].1);
            fits &= data.on_key_of(one, &call, |shard, call| shard.change_fits(call, one.id, &one.change));
        }
        for (at, one) in changes.iter().enumerate() {
            let (data, call) = locked.key(at, &keys[at].1);
            answers.push(data.on_key_of(one, &call, |shard, call| {
                // Asks for the part that does not fit, so that the decision has the wait.
                if fits || !one.change.is_extension() || !shard.change_fits(call, one.id, &one.change) {
                    return shard.change_alone(call, one);
                }
                HoldAnswer { status: HoldStatus::Denied, decision: shard.apply(call) }
            }));
        }
        answers
    }
}

impl ShardData {
    /// Runs a change of a hold under the quota that its key has. An extension runs under the one that
    /// binds the key now, which may have changed since; it charges nothing, so that the key is then
    /// put back.
    fn on_key_of<T>(
        &mut self,
        one: &HoldCall<'_>,
        call: &Call<'_>,
        run: impl FnOnce(&mut Shard, &Call<'_>) -> T,
    ) -> T {
        let stored = self.inline_quotas.quota(&call.address).filter(|_| one.is_of_whole_limit());
        let now = stored.map(|stored| (stored, one.quota(MetQuota::Listed(stored))));
        let Some((stored, now)) = now.filter(|(stored, now)| one.change.is_extension() && now != stored)
        else {
            return self.on_key(call, run);
        };
        let call = Call { quota: &now, ..*call };
        let converted = self.inline_quotas.before(&call, None, &mut self.shard);
        let outcome = run(&mut self.shard, &call);
        match converted {
            Some(converted) => self.inline_quotas.undo(&call, converted, &mut self.shard),
            None => self.inline_quotas.after(&Call { quota: &stored, ..call }, true, &mut self.shard),
        }
        outcome
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
