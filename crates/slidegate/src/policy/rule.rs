//! A policy in a set, with its overrides and blocks by key.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::OnceLock;

use smallvec::SmallVec;

use super::Policy;
use super::options::PolicyOptions;
use super::overrides::{OverridePart, Overrides};
use crate::block::Block;
use crate::charge::{Excess, MetQuota, OnMissing};
use crate::error::Error;
use crate::key::{Key, TicketKeyBytes};
use crate::lease::LeaseLength;
use crate::quota::{Algorithm, Calendar, Quota, format_window};
use crate::request::{OwnedValue, Request};

/// A policy with the look-ups that decisions need.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) policy: Policy,
    /// The number that the policy's usage is stored under; see [`PolicySet::number`].
    pub(super) number: u32,
    overrides: Overrides,
    /// Blocks by the canonical bytes of keys.
    blocks: HashMap<Box<[u8]>, Block>,
    /// Each quota with windows from day 1 to 31 of the month, if an attribute selects the day.
    anchored: HashMap<Quota, [Quota; 31]>,
    /// Configuration of keys, by their identity in tickets.
    pub(super) of_tickets: OnceLock<HashMap<TicketKeyBytes, OwnOfKey>>,
    /// The rule with limits in millionths of a unit, for stores, if the policy weights costs.
    pub(super) counted: Option<Box<Self>>,
}

impl Rule {
    pub(super) fn new(mut policy: Policy) -> Result<Self, Error> {
        let keeps_totals = policy.options.notify_closed;
        policy = policy.map_quotas(|quota| quota.keeping_totals(keeps_totals));
        let name = policy.name();
        if keeps_totals && policy.quotas().any(|quota| quota.keeps_totals_us().is_none()) {
            return Err(Error::policy(format!(
                "policy `{name}`: invalid notify `closed`: only calendar windows are closed; give it and its overrides windows \
                 such as `month`, or leave `closed` out"
            )));
        }
        if policy.keys.lease.is_some() && policy.options.excess != Excess::Refuse {
            return Err(Error::policy(format!(
                "policy `{name}`: invalid lease: it has an `excess`, whose costs may exceed what a lease holds; leave one of \
                 both out"
            )));
        }
        if let Some(LeaseLength::Fixed(length)) = policy.keys.lease
            && !(LeaseLength::RANGE.0..=LeaseLength::RANGE.1).contains(&length)
        {
            return Err(Error::policy(format!(
                "policy `{name}`: invalid lease `{}`: must be from 10ms to 1s",
                format_window(length)
            )));
        }
        if policy.keys.lease.is_some() && policy.quota.algorithm() == Algorithm::InFlight {
            return Err(Error::policy(format!(
                "policy `{name}`: invalid lease: a limit on what is in flight has no usage to lease; leave it out"
            )));
        }
        let fits = |what: &str, values: usize| {
            if values == policy.keys.scope.len() {
                return Ok(());
            }
            Err(Error::policy(format!(
                "policy `{name}`: invalid {what}: has {values} values, the scope has {} attributes; give one value for each",
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
        policy
            .options
            .tiers
            .iter()
            .flat_map(|tiers| &tiers.quotas)
            .try_for_each(|(value, quota)| counts_alike("tier", &value, quota))?;
        let mut overrides = Overrides::default();
        for one in &policy.options.overrides {
            fits("override", one.key.len())?;
            let groups = policy.keys.ipv6_prefix.bits();
            let networks = one.key.iter().filter_map(OverridePart::network);
            if let Some(network) =
                networks.into_iter().find(|net| !net.addr().is_ipv4() && net.prefix_len() > groups)
            {
                return Err(Error::policy(format!(
                    "policy `{name}`: invalid override `{network}`: the policy counts IPv6 addresses by their first {groups} \
                     bits; write a network of at most these, or a longer `ipv6_prefix`"
                )));
            }
            let request = policy.request_of(one.values());
            let key = policy.key(&request);
            let shown: &dyn Display = if one.is_exact() { &key } else { one };
            one.quota.iter().try_for_each(|quota| counts_alike("override", shown, quota))?;
            if overrides.add(one, &key) {
                return Err(Error::policy(format!(
                    "policy `{name}`: duplicate override `{shown}`: must be given once; remove one"
                )));
            }
        }
        let mut blocks = HashMap::with_capacity(policy.options.blocks.len());
        for (values, block) in &policy.options.blocks {
            fits("block", values.len())?;
            let key = policy.key(&policy.request_of(values.iter().map(OwnedValue::value))).canonical();
            blocks.insert(key.into_boxed_slice(), block.clone());
        }
        let anchored = match policy.options.anchor_attribute {
            Some(_) => policy.quotas().filter_map(|quota| Some((*quota, by_anchor(quota)?))).collect(),
            None => HashMap::new(),
        };
        let counted = policy.in_millionths()?.map(Self::new).transpose()?.map(Box::new);
        Ok(Self { policy, number: 0, overrides, blocks, anchored, of_tickets: OnceLock::new(), counted })
    }

    /// Whether the quota of a key depends on attributes of the request.
    #[inline]
    pub(super) fn has_plans(&self) -> bool {
        self.policy.options.tiers.is_some() || !self.anchored.is_empty()
    }

    /// The rule in the units that stores count.
    #[inline]
    pub(super) fn counted(&self) -> &Self {
        self.counted.as_deref().unwrap_or(self)
    }

    /// The key's own configuration.
    #[inline]
    pub(super) fn own(&self, key: &Key<'_>) -> Own<'_> {
        if self.overrides.is_empty()
            && self.blocks.is_empty()
            && self.policy.options.when_missing() != OnMissing::Deny
        {
            return Own::default();
        }
        self.look_up(key)
    }

    fn look_up(&self, key: &Key<'_>) -> Own<'_> {
        let canonical = &*key.canonical();
        let exact = self.overrides.exact(canonical);
        let special = exact.or_else(|| self.overrides.of_networks(key));
        let denies = self.policy.options.when_missing() == OnMissing::Deny && key.missing().is_some();
        Own {
            quota: exact.flatten(),
            of_network: special.flatten().filter(|_| exact.is_none()),
            is_unlimited: special == Some(None),
            block: if denies { Some(&MISSING) } else { self.blocks.get(canonical) },
        }
    }

    /// Whether the policy applies to a request.
    #[inline]
    pub(super) fn applies_to(&self, request: &Request<'_>) -> bool {
        self.policy.applies_to(request)
    }

    /// Whether the policy applies and the key is not unlimited.
    #[inline]
    pub(super) fn binds(&self, request: &Request<'_>) -> bool {
        self.applies_to(request) && !self.exempts(request)
    }

    /// Whether a request is exempt from an otherwise applicable policy.
    #[inline]
    pub(super) fn exempts(&self, request: &Request<'_>) -> bool {
        self.overrides.exempts && request.inline_quota().is_none() && {
            let own = self.look_up(&self.policy.key(request));
            own.is_unlimited && own.block.is_none()
        }
    }

    /// The configuration of the key with this id in tickets. `ids_of` returns a key's ids.
    pub(super) fn own_of_ticket(
        &self,
        ids_of: impl Fn(&Key<'_>) -> SmallVec<[TicketKeyBytes; 2]>,
        id: impl FnOnce() -> TicketKeyBytes,
    ) -> Option<&OwnOfKey> {
        let PolicyOptions { overrides, blocks, .. } = &self.policy.options;
        if overrides.is_empty() && blocks.is_empty() {
            return None;
        }
        let of_tickets = self.of_tickets.get_or_init(|| {
            let mut all = HashMap::<_, OwnOfKey>::new();
            let mut each = |request: &Request<'_>, set: &dyn Fn(&mut OwnOfKey)| {
                let ids = ids_of(&self.policy.key(request));
                ids.into_iter().for_each(|id| set(all.entry(id).or_default()));
            };
            for one in overrides.iter().filter(|one| one.is_exact()) {
                each(&self.policy.request_of(one.values()), &|own| own.quota = one.quota);
            }
            for (values, block) in blocks {
                let request = self.policy.request_of(values.iter().map(OwnedValue::value));
                each(&request, &|own| own.block = Some(block.clone()));
            }
            all
        });
        of_tickets.get(&id())
    }

    /// The quota of a ticket's key now. Like [`quota_met`](Self::quota_met), but the requests are
    /// no longer known: if their tier's quota changed since, the largest tier is the bound.
    pub(super) fn quota_now(&self, own: Option<&OwnOfKey>, met: MetQuota) -> Quota {
        // A ticket names a calendar by its text.
        self.bounded_quota(own, met).keeping_totals(self.policy.options.notify_closed)
    }

    fn bounded_quota(&self, own: Option<&OwnOfKey>, met: MetQuota) -> Quota {
        let of_networks =
            || self.policy.options.overrides.iter().filter(|one| !one.is_exact()).filter_map(|one| one.quota);
        let has_plans = self.has_plans() || of_networks().next().is_some();
        let met = match met {
            MetQuota::Inline(inline) => return inline,
            MetQuota::Listed(inline) if !has_plans => return inline,
            MetQuota::Listed(met) => Some(met),
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
        let plans = || {
            self.policy
                .options
                .tiers
                .iter()
                .flat_map(|tiers| tiers.quotas.values().copied())
                .chain(of_networks())
                .chain([quota])
        };
        let is_plan =
            |quota: Quota| quota == met || self.anchored.get(&quota).is_some_and(|days| days.contains(&met));
        let largest = plans().max_by_key(Quota::capacity).unwrap_or(quota);
        if plans().any(is_plan) || met.capacity() <= largest.capacity() { met } else { largest }
    }

    /// The quota of a request on a key: its inline quota, the key's override, the request's tier,
    /// or the policy's own quota.
    pub(super) fn quota_met<'a>(&'a self, request: &'a Request<'_>, own: &Own<'a>) -> &'a Quota {
        if let Some(inline) = request.inline_quota() {
            return inline;
        }
        let overridden = own.quota.or(own.of_network);
        let quota = overridden.or_else(|| self.policy.tier_of(request)).unwrap_or(&self.policy.quota);
        if self.anchored.is_empty() {
            return quota;
        }
        let day = self.policy.anchor_of(request).and_then(|day| day.checked_sub(1));
        let anchored = self.anchored.get(quota).zip(day);
        anchored.and_then(|(by_day, day)| by_day.get(usize::from(day))).unwrap_or(quota)
    }

    /// The calendars of its quotas. May contain duplicates.
    pub(super) fn calendars(&self) -> impl Iterator<Item = Calendar> {
        let all = self.policy.quotas().chain(self.anchored.values().flatten());
        all.filter_map(Quota::calendar_window)
    }
}

/// Configuration of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnOfKey {
    pub(crate) quota: Option<Quota>,
    pub(crate) block: Option<Block>,
}

/// A key's own configuration under a policy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Own<'a> {
    /// The quota of its exact override.
    pub(super) quota: Option<&'a Quota>,
    /// The quota of a network that contains it. Stores treat it like a tier's.
    pub(super) of_network: Option<&'a Quota>,
    pub(super) is_unlimited: bool,
    pub(super) block: Option<&'a Block>,
}

/// Blocks requests that lack an attribute.
static MISSING: Block = Block::PERMANENT;

/// The quota with windows from each day of the month, if it has windows of months.
pub(super) fn by_anchor(quota: &Quota) -> Option<[Quota; 31]> {
    let calendar = quota.calendar_window()?;
    calendar.anchor()?;
    let from = |day: usize| {
        let from = u8::try_from(day + 1).ok().and_then(|day| calendar.with_anchor(day).ok());
        let from = from.map_or(*quota, |from| Quota::calendar(quota.limit(), from));
        from.keeping_totals(quota.keeps_totals_us().is_some())
    };
    Some(std::array::from_fn(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicySet;

    /// A bill must have every customer, whatever their plan and billing day, also after a change at run time.
    #[test]
    fn all_windows_of_a_policy_keep_totals_or_none_does() {
        let monthly = |limit| Quota::calendar(limit, Calendar::month());
        let mut policy = Policy::new("p", monthly(1))
            .unwrap()
            .with_scope(["user"])
            .with_tiers("plan", [("pro".to_owned(), monthly(2))])
            .with_override(["vip"], monthly(3))
            .with_anchor_attribute("day");
        for keeps in [true, false, true] {
            let set = PolicySet::new([policy.with_notify_closed(keeps)]).unwrap();
            policy = set.by_name("p").unwrap().clone();
            assert_eq!(
                policy.quotas().map(|quota| quota.keeps_totals_us().is_some()).collect::<Vec<_>>(),
                [keeps; 3]
            );
            let calendars: Vec<_> = set.calendars_of("p").collect();
            assert_eq!(calendars.len(), 3 + 3 * 31);
            assert!(calendars.iter().all(|one| Calendar::code_keeps_totals(one.code()) == keeps));
            assert!(calendars.contains(&Calendar::month()), "it is the same calendar");
        }
        let error = PolicySet::new([policy.with_quota(Quota::per_day(1))]).unwrap_err().to_string();
        assert!(
            error.starts_with("policy `p`: invalid notify `closed`: only calendar windows are closed;"),
            "{error}"
        );
    }
}
