//! Policies: named rules with conditions, a scope and a quota.

use std::sync::Arc;

use crate::amount::Amount;
use crate::block::Block;
use crate::charge::OnMissing;
use crate::cost::CostUnit;
use crate::error::Error;
use crate::hold::Unsettled;
use crate::key::{HashSeed, Key, KeyId, KeySpace};
use crate::lease::LeaseLength;
use crate::network::Ipv6Prefix;
use crate::quota::{Algorithm, Quota};
use crate::request::{Request, Value};

mod build;
mod index;
mod last_quota;
mod learned_estimate;
mod matcher;
mod options;
mod overridden;
mod overrides;
mod plan;
mod rule;
mod set;
mod tiers;
mod units;

pub(crate) use learned_estimate::{SettledCosts, SettledSample};
pub use matcher::Match;
pub use options::PolicyOptions;
pub use overrides::OverridePart;
pub(crate) use rule::OwnOfKey;
pub use set::PolicySet;
pub use tiers::Tiers;

/// A named rule: when it applies, which attributes form its keys, its quota, and whether it is
/// enforced or a shadow.
///
/// ```
/// use slidegate::{Match, Policy, Quota};
///
/// let login = Policy::new("login-per-ip", Quota::per_minute(5))?
///     .with_condition("path", Match::equals("/login"))
///     .with_scope(["ip"]);
/// let plan = Policy::new("per-user", Quota::per_minute(100))?
///     .with_scope(["user"])
///     .with_override(["alice"], Quota::per_minute(1000));
/// assert_eq!(plan.name(), "per-user");
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Policy {
    keys: KeySpace,
    quota: Quota,
    options: PolicyOptions,
    /// The known unit of cost, by its name.
    unit: Option<CostUnit>,
    /// Settled costs, if the estimate is learned.
    settled_costs: Option<Arc<SettledCosts>>,
}

impl Policy {
    /// Longest name of a policy in bytes. Names are used in headers, metrics and the keys of shared
    /// stores.
    pub const MAX_NAME: usize = 64;

    /// An enforced policy that applies to every request and counts all requests together.
    ///
    /// # Errors
    /// If the name is empty, longer than [`MAX_NAME`](Self::MAX_NAME), or has characters other than
    /// `A-Z a-z 0-9 _ . -`, which header fields can contain without quoting.
    pub fn new(name: impl Into<String>, quota: Quota) -> Result<Self, Error> {
        let name = name.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if name.is_empty() || name.len() > Self::MAX_NAME || !name.chars().all(allowed) {
            return Err(Error::policy(format!(
                "invalid policy name `{}`: must be 1 to {} of the characters A-Z a-z 0-9 _ . -, for example `per-user`",
                name.escape_debug(),
                Self::MAX_NAME
            )));
        }
        Ok(Self {
            keys: KeySpace {
                policy: name,
                scope: Vec::new(),
                folds: Box::default(),
                ipv6_prefix: Ipv6Prefix::default(),
                in_millionths: false,
                lease: None,
            },
            quota,
            options: PolicyOptions::default(),
            unit: None,
            settled_costs: None,
        })
    }

    /// Sets the attributes whose values form the key, in this order. See
    /// [`with_on_missing`](Self::with_on_missing) for requests that lack one. Without a scope, all
    /// requests share one key.
    #[must_use]
    pub fn with_scope<A: Into<String>>(mut self, attributes: impl IntoIterator<Item = A>) -> Self {
        self.keys.scope = attributes.into_iter().map(Into::into).collect();
        self.fold_keys();
        self
    }

    /// The amount held now for a request without a cost: learned or configured.
    #[must_use]
    pub fn estimate(&self) -> Option<Amount> {
        let learned = self.settled_costs.as_ref().and_then(|costs| costs.percentile_90());
        learned.map(|learned| self.options.counts.amount(learned)).or(self.options.estimate)
    }

    /// The estimate in the unit that the policy counts.
    fn counted_estimate(&self) -> Option<u64> {
        self.estimate().map(|estimate| self.options.counts.count(estimate))
    }

    /// Learns from a request that was settled.
    pub(crate) fn learn(&self, settled: impl FnOnce() -> SettledSample) {
        if let Some(costs) = &self.settled_costs {
            costs.add(settled());
        }
    }

    /// Whether the policy is meant for requests that [reserve](crate::Gate::reserve): it limits
    /// requests in flight, has an estimate, or drops unsettled holds.
    #[must_use]
    pub fn expects_reservations(&self) -> bool {
        self.quota.algorithm() == Algorithm::InFlight
            || self.options.estimate.is_some()
            || self.options.learns_estimate
            || self.unsettled() == Unsettled::Forget
    }

    /// Handling of holds that expire unsettled.
    #[must_use]
    pub fn unsettled(&self) -> Unsettled {
        if self.quota.algorithm() == Algorithm::InFlight { Unsettled::Forget } else { self.options.unsettled }
    }

    /// The day on which a request's windows begin, if an attribute sets it.
    fn anchor_of(&self, request: &Request<'_>) -> Option<u8> {
        match request.value(self.options.anchor_attribute.as_deref()?)? {
            Value::Bytes(day) => std::str::from_utf8(day).ok()?.parse().ok(),
            Value::Address(_) => None,
        }
    }

    /// The quota of a request's tier, if it has one.
    fn tier_of(&self, request: &Request<'_>) -> Option<&Quota> {
        self.options.tiers.as_ref()?.of(request).map(|(_, quota)| quota)
    }

    /// Blocks the key with these values, one per attribute of the scope: until the block ends,
    /// every cost above 0 is denied and nothing is charged. A later block of the same key replaces
    /// an earlier one. The key keeps its quota and its usage.
    ///
    /// A policy that is not [enforced](Self::with_enforced) reports the block but denies nothing. Looking up a block
    /// costs one hash of the key; policies without blocks pay nothing.
    #[must_use]
    pub fn with_block<'v, V: Into<Value<'v>>>(
        mut self,
        key: impl IntoIterator<Item = V>,
        block: Block,
    ) -> Self {
        self.options.blocks.push((key.into_iter().map(|value| value.into().into()).collect(), block));
        self
    }

    /// Replaces the quota. Tiers and overrides keep their limits and get the algorithm of `quota`.
    #[must_use]
    pub fn with_quota(mut self, quota: Quota) -> Self {
        self.quota = quota;
        self.special_quotas().for_each(|own| *own = own.with_algorithm(quota.algorithm()));
        self
    }

    /// The quotas of tiers and overrides.
    fn special_quotas(&mut self) -> impl Iterator<Item = &mut Quota> {
        let tiers = self.options.tiers.iter_mut().flat_map(|tiers| tiers.quotas.values_mut());
        tiers.chain(self.options.overrides.iter_mut().filter_map(|one| one.quota.as_mut()))
    }

    /// Maps each quota: its own and those of its tiers and overrides. All of them must keep one
    /// algorithm, or building the set fails.
    #[must_use]
    pub(crate) fn map_quotas(mut self, change: impl Fn(&Quota) -> Quota) -> Self {
        self.quota = change(&self.quota);
        self.special_quotas().for_each(|own| *own = change(own));
        self
    }

    /// Renames the policy. Usage is stored by name, so it starts afresh.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn with_name(self, name: impl Into<String>) -> Result<Self, Error> {
        let policy = Self::new(name, self.quota)?.keys.policy;
        Ok(Self { keys: KeySpace { policy, ..self.keys }, ..self })
    }

    /// The name in responses, headers and metrics. Usage is stored under it.
    #[must_use]
    #[inline]
    pub fn name(&self) -> &str {
        &self.keys.policy
    }

    /// How long instances lease slices of a key's limit; `None` if they do not.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseLength> {
        self.keys.lease
    }

    /// The quota of keys without an override, and of requests without a tier.
    #[must_use]
    #[inline]
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// What it does besides its quota.
    #[must_use]
    #[inline]
    pub fn options(&self) -> &PolicyOptions {
        &self.options
    }

    /// The attributes that form a key.
    #[must_use]
    #[inline]
    pub fn scope(&self) -> &[String] {
        &self.keys.scope
    }

    /// The attributes that the policy reads: those of its scope, conditions, tiers and anchor. May
    /// contain duplicates.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let conditions = self.options.conditions.iter().map(|(attribute, _)| attribute);
        let tiers = self.options.tiers.iter().map(|tiers| &tiers.attribute);
        let special = tiers.chain(&self.options.anchor_attribute);
        self.keys.scope.iter().chain(conditions).chain(special).map(String::as_str)
    }

    /// Every quota of this policy: its own and those of its tiers and overrides.
    pub fn quotas(&self) -> impl Iterator<Item = &Quota> {
        let overrides = self.options.overrides.iter().filter_map(|one| one.quota.as_ref());
        std::iter::once(&self.quota)
            .chain(self.options.tiers.iter().flat_map(|tiers| tiers.quotas.values()))
            .chain(overrides)
    }

    /// The quotas of overrides for single keys, by key identity.
    pub(crate) fn override_ids(&self, secret: &HashSeed) -> impl Iterator<Item = (KeyId, &Quota)> {
        let exact = self.options.overrides.iter().filter(|one| one.is_exact());
        exact.filter_map(|one| {
            let request = self.request_of(one.values());
            Some((self.key(&request).id(secret), one.quota.as_ref()?))
        })
    }

    /// Whether the conditions hold for a request that names no policy.
    fn is_meant_for(&self, request: &Request<'_>) -> bool {
        let mut conditions = self.options.conditions.iter();
        !self.options.only_when_named
            && conditions.all(|(attribute, condition)| condition.holds(request.value(attribute)))
    }

    fn has_scope(&self, request: &Request<'_>) -> bool {
        self.keys.scope.iter().all(|attribute| request.value(attribute).is_some())
    }

    /// Whether the policy skips a request only because it lacks an attribute of the scope.
    fn skips(&self, request: &Request<'_>) -> bool {
        self.options.when_missing() == OnMissing::Skip
            && !self.has_scope(request)
            && self.is_meant_for(request)
    }

    /// Whether the policy applies to a request, see [`key_of`](Self::key_of).
    pub(crate) fn applies_to(&self, request: &Request<'_>) -> bool {
        request.named_policy().map_or_else(|| self.is_meant_for(request), |name| name == self.keys.policy)
            && (self.has_scope(request) || self.options.when_missing() != OnMissing::Skip)
    }

    /// The key of a request under this policy; `None` if the policy does not apply to it.
    ///
    /// It applies if its conditions hold and the request has all attributes of the scope, or
    /// [`with_on_missing`](Self::with_on_missing) is not [`OnMissing::Skip`]. For a request that is
    /// [`under`](Request::under) a policy, that policy's conditions are ignored and no other policy applies.
    #[must_use]
    pub fn key_of<'r>(&'r self, request: &'r Request<'r>) -> Option<Key<'r>> {
        self.applies_to(request).then(|| self.key(request))
    }

    fn request_of<'r>(&'r self, values: impl IntoIterator<Item = Value<'r>>) -> Request<'r> {
        let attributes = self.keys.scope.iter().zip(values);
        attributes.fold(Request::new(), |request, (name, value)| request.with(name, value))
    }

    /// The key of a request that the policy applies to.
    pub(crate) fn key<'r>(&'r self, request: &'r Request<'r>) -> Key<'r> {
        Key { space: &self.keys, request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are used in response headers; a quote or a newline would make them malformed.
    #[test]
    fn names_are_safe_in_headers() {
        let error = |name: &str| Policy::new(name, Quota::per_minute(1)).unwrap_err().to_string();
        assert_eq!(
            error("a\"b"),
            "invalid policy name `a\\\"b`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`"
        );
        for name in ["", "a b", "a\n", &"x".repeat(65), "é"] {
            assert!(Policy::new(name, Quota::per_minute(1)).is_err(), "{name:?}");
        }
    }
}
