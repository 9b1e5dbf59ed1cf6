//! A policy in a set, with what decisions need besides: its overrides and blocks by their keys.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::OnceLock;

use smallvec::SmallVec;

use super::Policy;
use crate::block::Block;
use crate::charge::MetQuota;
use crate::error::Error;
use crate::key::{Key, TicketKeyBytes};
use crate::quota::Quota;
use crate::request::{OwnedValue, Request};

/// A policy and what decisions need besides.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) policy: Policy,
    /// What the policy's usage is stored under; see [`PolicySet::number`].
    pub(super) number: u32,
    /// Quotas by the canonical bytes of keys.
    overrides: HashMap<Box<[u8]>, Quota>,
    /// Blocks by the canonical bytes of keys.
    blocks: HashMap<Box<[u8]>, Block>,
    /// The policy's quotas with windows from the first day of the month to the 31st, if an attribute says which.
    anchored: HashMap<Quota, [Quota; 31]>,
    /// What is set for keys, by what tickets know them by.
    pub(super) of_tickets: OnceLock<HashMap<TicketKeyBytes, OwnOfKey>>,
    /// The rule with limits in millionths of a unit, which stores get instead, of a policy that weighs costs.
    pub(super) counted: Option<Box<Self>>,
}

impl Rule {
    pub(super) fn new(policy: Policy) -> Result<Self, Error> {
        let name = policy.name();
        let fits = |what: &str, values: &[OwnedValue]| {
            if values.len() == policy.keys.scope.len() {
                return Ok(());
            }
            Err(Error::policy(format!(
                "policy `{name}`: invalid {what}: has {} values, the scope has {} attributes; give one value for each",
                values.len(),
                policy.keys.scope.len()
            )))
        };
        let counts_alike = |what: &str, whose: &dyn Display, quota: &Quota| {
            let (own, algorithm) = (quota.algorithm(), policy.quota.algorithm());
            if own == algorithm {
                return Ok(());
            }
            Err(Error::policy(format!(
                "policy `{name}`: invalid {what} `{whose}`: its algorithm is {own}, that of the policy {algorithm}; use one algorithm"
            )))
        };
        policy.tiers().try_for_each(|(value, quota)| counts_alike("tier", &value, quota))?;
        let mut overrides = HashMap::with_capacity(policy.overrides.len());
        for (values, quota) in &policy.overrides {
            fits("override", values)?;
            let request = policy.request_of(values);
            let key = policy.key(&request);
            counts_alike("override", &key, quota)?;
            if overrides.insert(key.canonical().into_boxed_slice(), *quota).is_some() {
                return Err(Error::policy(format!(
                    "policy `{name}`: duplicate override `{key}`: must be given once; remove one"
                )));
            }
        }
        let mut blocks = HashMap::with_capacity(policy.blocks.len());
        for (values, block) in &policy.blocks {
            fits("block", values)?;
            let key = policy.key(&policy.request_of(values)).canonical();
            blocks.insert(key.into_boxed_slice(), block.clone());
        }
        let anchored = match policy.anchor_attribute() {
            Some(_) => policy.quotas().filter_map(|quota| Some((*quota, by_anchor(quota)?))).collect(),
            None => HashMap::new(),
        };
        let counted = policy.in_millionths()?.map(Self::new).transpose()?.map(Box::new);
        Ok(Self { policy, number: 0, overrides, blocks, anchored, of_tickets: OnceLock::new(), counted })
    }

    /// The rule as stores get it.
    #[inline]
    pub(super) fn counted(&self) -> &Self {
        self.counted.as_deref().unwrap_or(self)
    }

    /// The override of a key, and its block.
    pub(super) fn own(&self, key: &Key<'_>) -> (Option<&Quota>, Option<&Block>) {
        if self.overrides.is_empty() && self.blocks.is_empty() {
            return (None, None);
        }
        let key = &*key.canonical();
        (self.overrides.get(key), self.blocks.get(key))
    }

    /// What is set for the key that a store knows by this id in tickets. `ids_of` says by which ids it
    /// knows a key.
    pub(super) fn own_of_ticket(
        &self,
        ids_of: impl Fn(&Key<'_>) -> SmallVec<[TicketKeyBytes; 2]>,
        id: impl FnOnce() -> TicketKeyBytes,
    ) -> Option<&OwnOfKey> {
        let Policy { overrides, blocks, .. } = &self.policy;
        if overrides.is_empty() && blocks.is_empty() {
            return None;
        }
        let of_tickets = self.of_tickets.get_or_init(|| {
            let mut all = HashMap::<_, OwnOfKey>::new();
            let mut each = |values: &[OwnedValue], set: &dyn Fn(&mut OwnOfKey)| {
                let ids = ids_of(&self.policy.key(&self.policy.request_of(values)));
                ids.into_iter().for_each(|id| set(all.entry(id).or_default()));
            };
            overrides.iter().for_each(|(values, quota)| each(values, &|own| own.quota = Some(*quota)));
            blocks.iter().for_each(|(values, block)| each(values, &|own| own.block = Some(block.clone())));
            all
        });
        of_tickets.get(&id())
    }

    /// The quota that binds the key of a ticket now. As [`quota_met`](Self::quota_met), but the requests
    /// are not known any more: where the quota of their tier was changed since, the largest of all tiers
    /// bounds it.
    pub(super) fn quota_now(&self, own: Option<&OwnOfKey>, met: MetQuota) -> Quota {
        let has_plans = self.policy.tier_attribute().is_some() || !self.anchored.is_empty();
        let met = match met {
            #[cfg(feature = "redis")]
            MetQuota::Inline(inline) => return inline,
            MetQuota::Listed(inline) if !has_plans => return inline,
            MetQuota::Listed(met) => Some(met),
            #[cfg(feature = "redis")]
            MetQuota::Other(met) => Some(met),
            MetQuota::OfPolicy => None,
        };
        if let Some(overridden) = own.and_then(|own| own.quota) {
            return overridden;
        }
        let quota = self.policy.quota;
        let Some(met) = met.filter(|met| has_plans && met.algorithm() == quota.algorithm()) else {
            return quota;
        };
        let plans = || self.policy.tiers().map(|(_, quota)| *quota).chain([quota]);
        let is_plan =
            |quota: Quota| quota == met || self.anchored.get(&quota).is_some_and(|days| days.contains(&met));
        let largest = plans().max_by_key(Quota::capacity).unwrap_or(quota);
        if plans().any(is_plan) || met.capacity() <= largest.capacity() { met } else { largest }
    }

    /// What binds a request on a key: its inline quota, the key's override, the request's tier, or the
    /// policy's own quota.
    pub(super) fn quota_met<'a>(
        &'a self,
        request: &'a Request<'_>,
        overridden: Option<&'a Quota>,
    ) -> &'a Quota {
        if let Some(inline) = request.inline_quota() {
            return inline;
        }
        let quota = overridden.or_else(|| self.policy.tier_of(request)).unwrap_or(&self.policy.quota);
        if self.anchored.is_empty() {
            return quota;
        }
        let day = self.policy.anchor_of(request).and_then(|day| day.checked_sub(1));
        let anchored = self.anchored.get(quota).zip(day);
        anchored.and_then(|(by_day, day)| by_day.get(usize::from(day))).unwrap_or(quota)
    }
}

/// What is set for one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnOfKey {
    pub(crate) quota: Option<Quota>,
    pub(crate) block: Option<Block>,
}

/// The quota with windows from each day of the month, if it has windows of months.
fn by_anchor(quota: &Quota) -> Option<[Quota; 31]> {
    let calendar = quota.calendar_window()?;
    calendar.anchor()?;
    let from = |day: usize| {
        let from = u8::try_from(day + 1).ok().and_then(|day| calendar.with_anchor(day).ok());
        from.map_or(*quota, |from| Quota::calendar(quota.limit(), from))
    };
    Some(std::array::from_fn(from))
}
