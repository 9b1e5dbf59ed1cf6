//! Changes of holds in memory.

use smallvec::SmallVec;

use super::shard::{Call, Shard};
use super::{MemoryStore, ShardData};
use crate::charge::Charge;
use crate::error::Error;
use crate::hold::HoldStatus;
use crate::key::KeyId;
use crate::quota::Quota;
use crate::store::{HeldCharge, HoldAnswer, HoldCall, HoldStore};
use crate::time::Moment;
use crate::verb::Verb;

impl HoldStore for MemoryStore {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<Vec<u8>> {
        let Charge { key, name, .. } = held.charge;
        Some(self.secret.masked(key.id(&self.secret), held.id, name).to_vec())
    }

    async fn change_holds(&self, changes: &[HoldCall<'_>]) -> Result<Vec<HoldAnswer>, Error> {
        Ok(self.change_holds(changes))
    }
}

impl MemoryStore {
    /// Changes holds, all of them or none: none if one is an extension that does not fit.
    pub(crate) fn change_holds(&self, changes: &[HoldCall<'_>]) -> Vec<HoldAnswer> {
        let now = self.clock.now();
        let quotas: Vec<Quota> =
            changes.iter().map(|one| one.quota(&self.secret, self.id_in_ticket(one))).collect();
        let calls = changes.iter().zip(&quotas).map(|(one, quota)| Call {
            verb: Verb::Peek,
            address: self.address(self.id_in_ticket(one), one.number),
            quota,
            cost: 0,
            reserve: None,
            now: Moment { at: now, wall: now },
            accounting: &self.accounting,
            secret: &self.secret,
        });
        let mut calls: SmallVec<[Call<'_>; 4]> = calls.collect();
        let mut locked = self.lock_all(&mut calls);
        let mut on_key = |call: &Call<'_>, run: &mut dyn FnMut(&mut Shard, &Call<'_>)| {
            let guard = self.guard_of(&locked, call);
            let ShardData { shard, inline_quotas, .. } = &mut *locked[guard].1;
            match inline_quotas.quota(&call.address) {
                Some(quota) => run(shard, &Call { quota: &quota, ..*call }),
                None => run(shard, call),
            }
        };
        let mut fits = true;
        for (call, one) in calls.iter().zip(changes).filter(|(_, one)| one.change.is_extension()) {
            on_key(call, &mut |shard, call| fits &= shard.change_fits(call, one.id, &one.change));
        }
        let mut answers = Vec::with_capacity(changes.len());
        for (call, one) in calls.iter().zip(changes) {
            on_key(call, &mut |shard, call| {
                let ended = one.ended(call.now.wall);
                let (status, decision) = match one.change_at(call.quota, call.now.wall) {
                    // Asks for what does not fit, so that the decision says how long to wait.
                    change if fits || !change.is_extension() || !shard.change_fits(call, one.id, &change) => {
                        shard.change(call, one.id, &change, &ended)
                    }
                    _ => (HoldStatus::Denied, shard.apply(call)),
                };
                answers.push(HoldAnswer { status, decision });
            });
        }
        answers
    }

    /// The identity of a key in a ticket.
    fn id_in_ticket(&self, change: &HoldCall<'_>) -> KeyId {
        self.secret.unmasked(change.key, change.id, change.policy)
    }
}
