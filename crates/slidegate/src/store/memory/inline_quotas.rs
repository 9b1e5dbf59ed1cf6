//! Inline quotas: quotas that came with a request instead of from the policy.
//!
//! A state must be read with the quota under which it was written. Policies' quotas are known; an
//! inline quota is stored here while its key is stored. The first one seen for a policy, before any
//! other key of that policy, is stored once as its usual quota, and only keys under other quotas
//! are listed: most commands send the same inline quota for every key, and a second table would
//! cost a cache miss each.

use smallvec::SmallVec;

use super::Requote;
use super::accounting::allocated;
use super::shard::{Address, Call, PutBack, Shard};
use super::table::{Table, Tick, Value, table_bytes};
use crate::key::HashSeed;
use crate::quota::{Quota, QuotaFields};

/// The inline quotas of a shard's keys, allocated by the first one.
#[derive(Debug, Default)]
pub(super) struct InlineQuotas(Option<Box<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// The quotas of keys that are not under the usual one of their policy.
    quotas: Table<InlineQuota>,
    /// By policy, the usual inline quota of its keys; `None` where that is the policy's own.
    usual: SmallVec<[(u32, Option<QuotaFields>); MAX_USUAL]>,
    /// Number of quotas at which those of removed keys are dropped.
    clean_at: usize,
}

/// The quota of a slot that is in use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InlineQuota(QuotaFields);

/// A key that was converted for a call.
pub(super) struct Converted {
    old: Quota,
    is_inline: bool,
    put_back: PutBack,
}

impl Value for InlineQuota {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Minimum of `clean_at`.
const FEW: usize = 16;
/// Most policies with a usual inline quota. Protocols with inline quotas have one policy each.
const MAX_USUAL: usize = 2;

impl InlineQuotas {
    /// The last inline quota of a policy's key, if it has one.
    pub(super) fn quota(&self, address: &Address) -> Option<Quota> {
        self.fields(address)?.quota()
    }

    #[inline]
    pub(super) fn fields(&self, address: &Address) -> Option<QuotaFields> {
        self.0.as_ref()?.fields(address)
    }

    /// Whether all keys are under their policies' own quotas.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a key is under an inline quota, and not under its policy's own, which is this.
    pub(super) fn has_inline(&self, address: &Address, own: &Quota) -> bool {
        let Some(lists) = &self.0 else { return false };
        match lists.listed(address) {
            Some(listed) => listed != own.fields(),
            None => lists.usual_of(address.policy).flatten().is_some(),
        }
    }

    /// Changes the quotas of listed keys that are under their policies' own quotas.
    pub(super) fn requote(&mut self, requote: Requote<'_>, secret: &HashSeed) {
        let Some(lists) = &mut self.0 else { return };
        lists.quotas.retain(secret, |policy, id, slot| {
            if let Some((old, new)) = requote(policy, id)
                && slot.state.0 == old.fields()
            {
                slot.state.0 = new.fields();
            }
            true
        });
    }

    /// Converts a key to the quota of the call, if it was last under another inline quota or under
    /// the quota `instead_of`. Costs nothing if there are no inline quotas.
    #[inline]
    pub(super) fn before(
        &mut self,
        call: &Call<'_>,
        instead_of: Option<&Quota>,
        shard: &mut Shard,
    ) -> Option<Converted> {
        let may_differ = instead_of.is_some() || self.0.is_some();
        if !may_differ {
            return None;
        }
        shard.has_inline_quotas = true;
        self.refit(call, instead_of, shard)
    }

    fn refit(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) -> Option<Converted> {
        let stored = self.fields(&call.address).and_then(QuotaFields::quota);
        let old = stored.or(instead_of.copied()).filter(|old| old != call.quota)?;
        let put_back = shard.requote_one(call, &old);
        self.unlist(call);
        Some(Converted { old, is_inline: stored.is_some(), put_back: put_back? })
    }

    fn unlist(&mut self, call: &Call<'_>) {
        if let Some(lists) = &mut self.0
            && let Some(at) = lists.quotas.find(&call.address)
        {
            lists.quotas.remove(at, call.secret);
        }
    }

    /// Puts a key back under the quota of before the call, which charged nothing.
    pub(super) fn undo(&mut self, call: &Call<'_>, converted: Converted, shard: &mut Shard) {
        let Converted { old, is_inline, put_back } = converted;
        let by_old = Call { quota: &old, ..*call };
        put_back(shard, &by_old);
        self.unlist(&by_old);
        self.after(&by_old, is_inline, shard);
    }

    /// Moves a key back to the quota of before the call, which refunded: a refund does not choose a quota.
    pub(super) fn convert_back(&mut self, call: &Call<'_>, converted: &Converted, shard: &mut Shard) {
        let by_old = Call { quota: &converted.old, ..*call };
        // What it was is not needed.
        let _ = shard.requote_one(&by_old, call.quota);
        self.unlist(&by_old);
        self.after(&by_old, converted.is_inline, shard);
    }

    /// Stores the quota of a key, if the key is stored and under another one than it would be taken
    /// for. Costs nothing if there are no inline quotas.
    #[inline]
    pub(super) fn after(&mut self, call: &Call<'_>, is_inline: bool, shard: &mut Shard) {
        let usual = self.0.as_ref().and_then(|lists| lists.usual_of(call.address.policy));
        match usual {
            None | Some(None) if !is_inline => {}
            Some(Some(usual)) if usual == call.quota.fields() => {}
            usual => {
                let lists = self.0.get_or_insert_with(|| {
                    shard.changed_bytes(0, allocated(size_of::<Lists>()), call);
                    Box::default()
                });
                lists.list(call, usual.is_none(), shard);
            }
        }
    }
}

impl Lists {
    #[inline]
    fn listed(&self, address: &Address) -> Option<QuotaFields> {
        self.quotas.find(address).map(|at| self.quotas.get(at).0)
    }

    #[inline]
    fn fields(&self, address: &Address) -> Option<QuotaFields> {
        self.listed(address).or_else(|| self.usual_of(address.policy)?)
    }

    /// The usual inline quota of a policy; the outer `None` if it has had no inline quota.
    #[inline]
    fn usual_of(&self, policy: u32) -> Option<Option<QuotaFields>> {
        self.usual.iter().find(|(of, _)| *of == policy).map(|(_, usual)| *usual)
    }

    fn list(&mut self, call: &Call<'_>, is_first: bool, shard: &mut Shard) {
        let is_listed = self.quotas.find(&call.address).is_some();
        if is_listed || !shard.holds(&call.address, call.quota.algorithm()) {
            return;
        }
        if is_first && self.usual.len() < MAX_USUAL {
            let is_usual = !shard.has_others(&call.address);
            self.usual.push((call.address.policy, is_usual.then(|| call.quota.fields())));
            if is_usual {
                return;
            }
        }
        if self.quotas.len() >= self.clean_at.max(FEW) {
            self.clean(call.secret, shard);
            self.clean_at = self.quotas.len() * 2;
            if let Some(slots) = self.quotas.shrinks_to() {
                shard.give(self.quotas.bytes() - table_bytes::<InlineQuota>(slots), call.accounting);
                self.quotas.resize(slots, call.secret);
            }
        }
        self.insert(call, shard);
    }

    /// Stores a quota, and evicts keys if there are no bytes for it.
    fn insert(&mut self, call: &Call<'_>, shard: &mut Shard) {
        if let Some(slots) = self.quotas.grows_to() {
            let more = table_bytes::<InlineQuota>(slots) - self.quotas.bytes();
            if !shard.take(more, call.accounting) {
                // The quotas of keys that are evicted now make room for this one.
                shard.evict_some(call);
                self.clean(call.secret, shard);
                if self.quotas.grows_to().is_some() {
                    shard.force(more, call.accounting);
                }
            }
        }
        // Not in use otherwise: an inline quota is no part of what is evicted, so it has no rank.
        let quota = InlineQuota(call.quota.fields());
        self.quotas.insert(&call.address, quota, 0, Tick::default(), call.secret);
    }

    /// Drops the quotas of keys that are no longer stored.
    fn clean(&mut self, secret: &HashSeed, shard: &mut Shard) {
        self.quotas.retain(secret, |policy, id, slot| {
            let address = Address { id, policy, place: secret.place_of(id, policy) };
            shard.holds(&address, slot.state.0.algorithm)
        });
    }
}
