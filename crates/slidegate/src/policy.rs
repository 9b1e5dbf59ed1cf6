//! Policies: named rules with conditions, a scope and a quota.

use std::sync::Arc;
use std::time::Duration;

use crate::amount::Amount;
use crate::block::Block;
use crate::charge::{Excess, OnMissing, OnStoreError};
use crate::error::Error;
use crate::fold::Fold;
use crate::hold::Unsettled;
use crate::key::{HashSeed, Key, KeyId, KeySpace};
use crate::network::Ipv6Prefix;
use crate::quota::{Algorithm, Quota};
use crate::request::{CostUnit, Counts, OwnedValue, Request, Value};

mod folds;
mod index;
mod learned_estimate;
mod matcher;
mod missing;
mod overridden;
mod overrides;
mod rule;
mod set;
mod tiers;
mod units;

pub(crate) use learned_estimate::{SettledCosts, SettledSample};
pub use matcher::Match;
use overrides::Override;
pub use overrides::OverridePart;
pub(crate) use rule::OwnOfKey;
pub use set::PolicySet;
use tiers::Tiers;

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
    when: Vec<(String, Match)>,
    quota: Quota,
    enforced: bool,
    on_store_error: OnStoreError,
    excess: Excess,
    counts: Counts,
    estimate: Option<Amount>,
    /// Settled costs, if the estimate is learned.
    settled_costs: Option<Arc<SettledCosts>>,
    unsettled: Unsettled,
    unit: Option<CostUnit>,
    /// The name of a unit that is not a [`CostUnit`].
    unit_name: Option<Box<str>>,
    /// Shares of the limit, in percent, whose crossing is reported. Ascending.
    notify: Box<[u8]>,
    only_when_named: bool,
    /// `None` for the default.
    on_missing: Option<OnMissing>,
    /// Folds by attribute.
    folds: Vec<(String, Fold)>,
    tiers: Option<Tiers>,
    /// The attribute with the day of the month on which windows begin.
    anchor_attribute: Option<String>,
    overrides: Vec<Override>,
    blocks: Vec<(Vec<OwnedValue>, Block)>,
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
            },
            when: Vec::new(),
            quota,
            enforced: true,
            on_store_error: OnStoreError::default(),
            excess: Excess::default(),
            counts: Counts::default(),
            estimate: None,
            settled_costs: None,
            unsettled: Unsettled::default(),
            unit: None,
            unit_name: None,
            only_when_named: false,
            on_missing: None,
            folds: Vec::new(),
            tiers: None,
            anchor_attribute: None,
            notify: Box::default(),
            overrides: Vec::new(),
            blocks: Vec::new(),
        })
    }

    /// Adds a condition: the policy applies only to requests whose `attribute` matches. All
    /// conditions must hold.
    #[must_use]
    pub fn with_condition(mut self, attribute: impl Into<String>, condition: Match) -> Self {
        let attribute = attribute.into();
        let condition = condition.folded(self.fold_of(&attribute));
        self.when.push((attribute, condition));
        self
    }

    /// A policy of at most `limit` requests in flight for each key; see [`Quota::in_flight`].
    ///
    /// # Errors
    /// Same as [`new`](Self::new), or if the lease is not one second to one hour.
    pub fn in_flight(name: impl Into<String>, limit: u64, lease: Duration) -> Result<Self, Error> {
        Self::new(name, Quota::in_flight(limit, lease)?)
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

    /// Makes the policy a shadow: it decides and reports but never denies.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.enforced = false;
        self
    }

    /// Sets the shares of a key's limit, in percent, that
    /// [`PolicyDecision::crossed`](crate::PolicyDecision::crossed) reports, for notifications
    /// before a key is denied. Default: none.
    #[must_use]
    pub fn with_notify(mut self, percents: impl IntoIterator<Item = u8>) -> Self {
        let mut percents: Vec<_> = percents.into_iter().collect();
        percents.sort_unstable();
        percents.dedup();
        self.notify = percents.into();
        self
    }

    /// The shares of a key's limit, in percent, whose crossing is reported, in ascending order.
    #[must_use]
    #[inline]
    pub fn notify(&self) -> &[u8] {
        &self.notify
    }

    /// Sets what happens if a shared store does not reply in time. The memory store always does.
    #[must_use]
    pub fn with_on_store_error(mut self, then: OnStoreError) -> Self {
        self.on_store_error = then;
        self
    }

    /// How the policy decides if a shared store does not reply in time.
    #[must_use]
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Applies the policy only to requests that are [`under`](Request::under) it. A set may have
    /// thousands of such policies, because other requests are not matched against them.
    #[must_use]
    pub fn only_when_named(mut self) -> Self {
        self.only_when_named = true;
        self
    }

    /// Whether the policy applies only to requests that name it.
    #[must_use]
    pub fn is_only_when_named(&self) -> bool {
        self.only_when_named
    }

    /// Sets what happens to a cost that exceeds what remains. Default: [`Excess::Refuse`].
    #[must_use]
    pub fn with_excess(mut self, then: Excess) -> Self {
        self.excess = then;
        self
    }

    /// Handling of a cost that exceeds what remains.
    #[must_use]
    pub fn excess(&self) -> Excess {
        self.excess
    }

    /// Sets what the policy counts. Default: [`Counts::Cost`].
    ///
    /// ```
    /// use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("requests", Quota::per_minute(60))?.with_scope(["user"]).with_counts(Counts::Requests),
    ///     Policy::new("output", Quota::per_minute(9000))?.with_scope(["user"]).with_counts(Counts::Named("output".into())),
    /// ])?);
    /// let request = Request::new().with("user", "alice").with_cost([("input", 900), ("output", 4096)]);
    /// let decisions = gate.check(&request);
    /// assert_eq!(decisions.iter().map(|one| one.used()).collect::<Vec<_>>(), [1, 4096]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_counts(mut self, what: Counts) -> Self {
        self.counts = what;
        self
    }

    /// The part of a request's cost that the policy counts.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sets the amount held for a reservation without a cost, capped at the key's limit, so that an
    /// unused key can always be used. Default: 1.
    #[must_use]
    pub fn with_estimate(mut self, cost: impl Into<Amount>) -> Self {
        self.estimate = Some(cost.into());
        self
    }

    /// Learns the estimate: the 90th percentile of the last 1,024 costs that reservations were
    /// settled to under this policy, in this process. Until there are 1,024, the
    /// [`estimate`](Self::estimate) is used. Learned costs survive a new
    /// [configuration](crate::Gate::configure).
    ///
    /// A request contributes at most four times its hold, and at most its key's limit. One key
    /// contributes at most a sixteenth of the costs, if there are others.
    ///
    /// Nine in ten requests then hold at least their cost. Any excess over a hold is charged when
    /// it is settled; see [the bounds](crate::Gate::reserve).
    #[must_use]
    pub fn learn_estimate(mut self) -> Self {
        self.settled_costs = Some(Arc::default());
        self
    }

    /// Whether the estimate is learned.
    #[must_use]
    pub fn learns_estimate(&self) -> bool {
        self.settled_costs.is_some()
    }

    /// The amount held now for a request without a cost: learned or configured.
    #[must_use]
    pub fn estimate(&self) -> Option<Amount> {
        let learned = self.settled_costs.as_ref().and_then(|costs| costs.percentile_90());
        learned.map(|learned| self.amount(learned)).or(self.estimate)
    }

    /// The estimate in the unit that the policy counts.
    fn counted_estimate(&self) -> Option<u64> {
        self.estimate().map(|estimate| self.count(estimate))
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
            || self.estimate.is_some()
            || self.learns_estimate()
            || self.unsettled() == Unsettled::Forget
    }

    /// Sets what happens to holds that expire unsettled. Default: [`Unsettled::Charge`]. Permits of
    /// [`Quota::in_flight`] are returned.
    #[must_use]
    pub fn with_unsettled(mut self, then: Unsettled) -> Self {
        self.unsettled = then;
        self
    }

    /// Handling of holds that expire unsettled.
    #[must_use]
    pub fn unsettled(&self) -> Unsettled {
        if self.quota.algorithm() == Algorithm::InFlight { Unsettled::Forget } else { self.unsettled }
    }

    /// Groups IPv6 addresses of the scope by this prefix length. Default: /56.
    #[must_use]
    pub fn with_ipv6_prefix(mut self, prefix: Ipv6Prefix) -> Self {
        self.keys.ipv6_prefix = prefix;
        self
    }

    /// Sets tiers: quotas by the value of an attribute that clients cannot choose, such as their
    /// plan. Other requests use [`quota`](Self::quota); keys with an
    /// [override](Self::with_override) use the override. A key keeps its usage when its tier
    /// changes. The quotas must have the policy's algorithm, or building the set fails.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let per_user = Policy::new("per-user", Quota::per_hour(100))?
    ///     .with_scope(["user"])
    ///     .with_tiers("plan", [("pro", Quota::per_hour(10_000))]);
    /// let gate = Gate::new(PolicySet::new([per_user])?);
    /// let request = Request::new().with("user", "alice");
    /// assert_eq!(gate.check(&request).strictest().unwrap().remaining(), 99);
    /// assert_eq!(gate.check(&request.with("plan", "pro")).strictest().unwrap().remaining(), 9_998);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_tiers<V: Into<String>>(
        mut self,
        attribute: impl Into<String>,
        quotas: impl IntoIterator<Item = (V, Quota)>,
    ) -> Self {
        let attribute = attribute.into();
        let fold = self.fold_of(&attribute);
        let quotas = quotas.into_iter().map(|(value, quota)| (value.into(), quota)).collect();
        let tiers = Tiers { attribute: attribute.clone(), quotas, fold: Fold::NONE };
        self.tiers = Some(tiers.folded(&attribute, fold));
        self
    }

    /// Sets the attribute with the day of the month, 1 to 31, on which [calendar](Quota::calendar)
    /// windows of a request begin, such as a customer's billing day. If it is missing or invalid,
    /// the quota's anchor is used. Clients must not be able to choose it.
    #[must_use]
    pub fn with_anchor_attribute(mut self, attribute: impl Into<String>) -> Self {
        self.anchor_attribute = Some(attribute.into());
        self
    }

    /// The attribute with the day of the month on which windows begin.
    #[must_use]
    pub fn anchor_attribute(&self) -> Option<&str> {
        self.anchor_attribute.as_deref()
    }

    /// The day on which a request's windows begin, if an attribute sets it.
    fn anchor_of(&self, request: &Request<'_>) -> Option<u8> {
        match request.value(self.anchor_attribute.as_deref()?)? {
            Value::Bytes(day) => std::str::from_utf8(day).ok()?.parse().ok(),
            Value::Address(_) => None,
        }
    }

    /// The attribute that chooses the tier, if there are tiers.
    #[must_use]
    pub fn tier_attribute(&self) -> Option<&str> {
        self.tiers.as_ref().map(|tiers| &*tiers.attribute)
    }

    /// The tiers: values of [`tier_attribute`](Self::tier_attribute), in their order, with their quotas.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, &Quota)> {
        let quotas = self.tiers.iter().flat_map(|tiers| &tiers.quotas);
        quotas.map(|(value, quota)| (&**value, quota))
    }

    /// The quota of a request's tier, if it has one.
    fn tier_of(&self, request: &Request<'_>) -> Option<&Quota> {
        self.tiers.as_ref()?.of(request)
    }

    /// Blocks the key with these values, one per attribute of the scope: until the block ends,
    /// every cost above 0 is denied and nothing is charged. A later block of the same key replaces
    /// an earlier one. The key keeps its quota and its usage.
    ///
    /// A [`shadow`](Self::shadow) policy reports the block but denies nothing. Looking up a block
    /// costs one hash of the key; policies without blocks pay nothing.
    #[must_use]
    pub fn with_block<'v, V: Into<Value<'v>>>(
        mut self,
        key: impl IntoIterator<Item = V>,
        block: Block,
    ) -> Self {
        self.blocks.push((key.into_iter().map(|value| value.into().into()).collect(), block));
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
        let tiers = self.tiers.iter_mut().flat_map(|tiers| tiers.quotas.values_mut());
        tiers.chain(self.overrides.iter_mut().filter_map(|one| one.quota.as_mut()))
    }

    /// Maps each quota: its own and those of its tiers and overrides. All of them must keep one
    /// algorithm, or building the set fails.
    ///
    /// ```
    /// use slidegate::{Policy, Quota};
    ///
    /// let policy = Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"]);
    /// let policy = policy.with_override(["alice"], Quota::per_minute(500));
    /// let doubled = policy.map_quotas(|quota| Quota::new(2 * quota.limit(), quota.window()).unwrap());
    /// assert_eq!(doubled.quotas().map(Quota::limit).collect::<Vec<_>>(), [200, 1000]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn map_quotas(mut self, change: impl Fn(&Quota) -> Quota) -> Self {
        self.quota = change(&self.quota);
        self.special_quotas().for_each(|own| *own = change(own));
        self
    }

    /// Renames the policy. Usage is stored by name, so it starts afresh.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn renamed(self, name: impl Into<String>) -> Result<Self, Error> {
        let policy = Self::new(name, self.quota)?.keys.policy;
        Ok(Self { keys: KeySpace { policy, ..self.keys }, ..self })
    }

    /// Makes the policy enforced, which is the default; undoes [`shadow`](Self::shadow).
    #[must_use]
    pub fn enforced(mut self) -> Self {
        self.enforced = true;
        self
    }

    /// The prefix by which IPv6 addresses of its scope are grouped.
    #[must_use]
    pub fn ipv6_prefix(&self) -> Ipv6Prefix {
        self.keys.ipv6_prefix
    }

    /// The name in responses, headers and metrics. Usage is stored under it.
    #[must_use]
    #[inline]
    pub fn name(&self) -> &str {
        &self.keys.policy
    }

    /// The quota of keys without an override, and of requests without a tier.
    #[must_use]
    #[inline]
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The attributes that form a key.
    #[must_use]
    #[inline]
    pub fn scope(&self) -> &[String] {
        &self.keys.scope
    }

    /// The conditions with their attributes. All must hold.
    #[must_use]
    pub fn conditions(&self) -> &[(String, Match)] {
        &self.when
    }

    /// Whether its denials deny the request.
    #[must_use]
    #[inline]
    pub fn is_enforced(&self) -> bool {
        self.enforced
    }

    /// The attributes that the policy reads: those of its scope, conditions, tiers and anchor. May
    /// contain duplicates.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let conditions = self.when.iter().map(|(attribute, _)| attribute);
        let special = self.tier_attribute().into_iter().chain(self.anchor_attribute());
        self.keys.scope.iter().chain(conditions).map(String::as_str).chain(special)
    }

    /// Every quota of this policy: its own and those of its tiers and overrides.
    pub fn quotas(&self) -> impl Iterator<Item = &Quota> {
        let overrides = self.overrides.iter().filter_map(|one| one.quota.as_ref());
        std::iter::once(&self.quota).chain(self.tiers().map(|(_, quota)| quota)).chain(overrides)
    }

    /// The quotas of overrides for single keys, by key identity.
    pub(crate) fn override_ids(&self, secret: &HashSeed) -> impl Iterator<Item = (KeyId, &Quota)> {
        let exact = self.overrides.iter().filter(|one| one.is_exact());
        exact.filter_map(|one| {
            let request = self.request_of(one.values());
            Some((self.key(&request).id(secret), one.quota.as_ref()?))
        })
    }

    /// Number of overrides.
    #[must_use]
    pub fn override_count(&self) -> usize {
        self.overrides.len()
    }

    /// Number of blocks, including expired ones.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the policy applies to a request: its conditions hold and the request has all
    /// attributes of the scope, or [`on_missing`](Self::on_missing) is not [`OnMissing::Skip`]. For a request that is [`under`](Request::under) a policy, that
    /// policy's conditions are ignored and no other policy applies.
    #[must_use]
    pub fn applies_to(&self, request: &Request<'_>) -> bool {
        request.named_policy().map_or_else(|| self.is_meant_for(request), |name| name == self.keys.policy)
            && (self.has_scope(request) || self.when_missing() != OnMissing::Skip)
    }

    /// Whether the conditions hold for a request that names no policy.
    fn is_meant_for(&self, request: &Request<'_>) -> bool {
        let mut conditions = self.when.iter();
        !self.only_when_named
            && conditions.all(|(attribute, condition)| condition.holds(request.value(attribute)))
    }

    fn has_scope(&self, request: &Request<'_>) -> bool {
        self.keys.scope.iter().all(|attribute| request.value(attribute).is_some())
    }

    /// The key of a request under this policy; `None` if the policy does not
    /// [apply](Self::applies_to) to it.
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
