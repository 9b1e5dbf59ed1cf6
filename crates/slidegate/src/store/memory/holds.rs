//! Changes of holds in memory.

use super::shard::{Call, Shard};
use super::{MemoryStore, ShardData};
use crate::charge::PerCharge;
use crate::error::Error;
use crate::hold::HoldStatus;
use crate::key::KeyId;
use crate::quota::Quota;
use crate::secret::Secret;
use crate::store::{HeldCharge, HoldAnswer, HoldAnswers, HoldCall, HoldStore, TicketKeyBytes};
use crate::ticket::{Ticket, TicketSecret};
use crate::time::{Moment, Timestamp};
use crate::verb::Verb;

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
        let now = self.clock.now();
        let mut answers = HoldAnswers::new();
        if let [one] = changes {
            // Without the lists of shards and locks, which would cost as much as the change.
            let id = KeyId::from_bytes(one.key);
            let quota = one.quota(&self.secret, id);
            let mut call = self.call_for(one, id, &quota, now);
            let kept = &mut *self.lock(self.shard_of(call.address.place));
            call.now = kept.shard.arrive(now, &self.clock);
            answers.push(kept.on_key(&call, |shard, call| shard.change_alone(call, one)));
            return answers;
        }
        let with_quota = |one: &HoldCall<'_>| {
            let id = KeyId::from_bytes(one.key);
            (id, one.quota(&self.secret, id))
        };
        let keys: PerCharge<(KeyId, Quota)> = changes.iter().map(with_quota).collect();
        let calls = changes.iter().zip(&keys).map(|(one, (id, quota))| self.call_for(one, *id, quota, now));
        let mut calls: PerCharge<Call<'_>> = calls.collect();
        let mut locked = self.lock_all(&mut calls);
        let mut fits = true;
        for (call, one) in calls.iter().zip(changes).filter(|(_, one)| one.change.is_extension()) {
            let guard = self.guard_of(&locked, call);
            fits &= locked[guard].1.on_key(call, |shard, call| shard.change_fits(call, one.id, &one.change));
        }
        for (call, one) in calls.iter().zip(changes) {
            let guard = self.guard_of(&locked, call);
            answers.push(locked[guard].1.on_key(call, |shard, call| {
                // Asks for what does not fit, so that the decision says how long to wait.
                if fits || !one.change.is_extension() || !shard.change_fits(call, one.id, &one.change) {
                    return shard.change_alone(call, one);
                }
                HoldAnswer { status: HoldStatus::Denied, decision: shard.apply(call) }
            }));
        }
        answers
    }

    fn call_for<'c>(
        &'c self,
        change: &HoldCall<'_>,
        id: KeyId,
        quota: &'c Quota,
        now: Timestamp,
    ) -> Call<'c> {
        Call {
            verb: Verb::Peek,
            address: self.address(id, change.number),
            quota,
            cost: 0,
            reserve: None,
            // Set again under the lock.
            now: Moment { at: now, wall: now },
            accounting: &self.accounting,
            secret: &self.secret,
        }
    }
}

impl ShardData {
    /// Runs this on a key, under the inline quota that it has.
    fn on_key<T>(&mut self, call: &Call<'_>, run: impl FnOnce(&mut Shard, &Call<'_>) -> T) -> T {
        match self.inline_quotas.quota(&call.address) {
            Some(quota) => run(&mut self.shard, &Call { quota: &quota, ..*call }),
            None => run(&mut self.shard, call),
        }
    }
}

impl Shard {
    /// Changes a hold, whatever becomes of others.
    fn change_alone(&mut self, call: &Call<'_>, one: &HoldCall<'_>) -> HoldAnswer {
        let ended = one.ended(call.now.wall);
        let change = one.change_at(call.quota, call.now.wall);
        let (status, decision) = self.change(call, one.id, &change, &ended);
        HoldAnswer { status, decision }
    }
}
