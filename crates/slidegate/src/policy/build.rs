//! Setting the options of a policy.

use std::sync::Arc;
use std::time::Duration;

use super::Policy;
use super::matcher::Match;
use super::tiers::Tiers;
use crate::amount::Amount;
use crate::charge::{Excess, OnMissing, OnStoreError};
use crate::cost::Counts;
use crate::fold::Fold;
use crate::hold::Unsettled;
use crate::lease::LeaseLength;
use crate::network::Ipv6Prefix;
use crate::quota::Quota;

impl Policy {
    /// Sets whether denials deny the request. Default: true. Otherwise the policy is a shadow: it decides and reports
    /// but never denies.
    #[must_use]
    pub fn with_enforced(mut self, is_enforced: bool) -> Self {
        self.options.enforced = is_enforced;
        self
    }

    /// Adds a condition: the policy applies only to requests whose `attribute` matches. All
    /// conditions must hold.
    #[must_use]
    pub fn with_condition(mut self, attribute: impl Into<String>, condition: Match) -> Self {
        let attribute = attribute.into();
        let condition = condition.folded(self.fold_of(&attribute));
        self.options.conditions.push((attribute, condition));
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
        self.options.notify = percents.into();
        self
    }

    /// Sets whether a shared store keeps the total of each key when its [calendar](crate::Calendar) window ends,
    /// until it is [reported](crate::store::ServiceStore::closed_step). Default: false.
    #[must_use]
    pub fn with_notify_closed(mut self, is_reported: bool) -> Self {
        self.options.notify_closed = is_reported;
        self
    }

    /// Lets instances take leases: slices of what a hot key has left on a shared store, from which they admit without
    /// calling it. No window exceeds its limit; a request may be denied while others hold what is left, for at most a
    /// lease. Keys with less than four requests in a lease are decided as without. Default: none.
    ///
    /// Not for limits on what is [in flight](crate::Quota::in_flight), and only with [`Excess::Refuse`]: other costs are
    /// not known before they are used.
    #[must_use]
    pub fn with_lease(mut self, length: impl Into<Option<LeaseLength>>) -> Self {
        self.keys.lease = length.into();
        self
    }

    /// Sets what happens if a shared store does not reply in time. The memory store always does.
    #[must_use]
    pub fn with_on_store_error(mut self, then: OnStoreError) -> Self {
        self.options.on_store_error = then;
        self
    }

    /// Applies the policy only to requests that are [`under`](crate::Request::under) it. A set may have
    /// thousands of such policies, because other requests are not matched against them.
    #[must_use]
    pub fn with_only_when_named(mut self) -> Self {
        self.options.only_when_named = true;
        self
    }

    /// Sets what happens to a cost that exceeds what remains. Default: [`Excess::Refuse`].
    #[must_use]
    pub fn with_excess(mut self, then: Excess) -> Self {
        self.options.excess = then;
        self
    }

    /// Lets requests that a tower layer decides, or the service for a proxy, wait for their turn, for this long at most,
    /// instead of being denied at once. All policies that deny a request must let it wait. Programs wait by
    /// [`Gate::acquire`](crate::Gate::acquire). Default: none.
    #[must_use]
    pub fn with_wait(mut self, longest: impl Into<Option<Duration>>) -> Self {
        self.options.wait = longest.into();
        self
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
    /// assert_eq!(decisions.iter().map(|one| one.decision().used()).collect::<Vec<_>>(), [1, 4096]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_counts(mut self, what: Counts) -> Self {
        self.options.counts = what;
        self
    }

    /// Sets the amount held for a reservation without a cost, capped at the key's limit, so that an
    /// unused key can always be used. Default: 1.
    #[must_use]
    pub fn with_estimate(mut self, cost: impl Into<Amount>) -> Self {
        self.options.estimate = Some(cost.into());
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
    pub fn with_learned_estimate(mut self) -> Self {
        self.options.learns_estimate = true;
        self.settled_costs = Some(Arc::default());
        self
    }

    /// Sets what happens to holds that expire unsettled. Default: [`Unsettled::Charge`]. Permits of
    /// [`Quota::in_flight`] are returned.
    #[must_use]
    pub fn with_unsettled(mut self, then: Unsettled) -> Self {
        self.options.unsettled = then;
        self
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
    /// assert_eq!(gate.check(&request).strictest().unwrap().decision().remaining(), 99);
    /// assert_eq!(gate.check(&request.with("plan", "pro")).strictest().unwrap().decision().remaining(), 9_998);
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
        self.options.tiers = Some(tiers.folded(&attribute, fold));
        self
    }

    /// Sets the attribute with the day of the month, 1 to 31, on which [calendar](Quota::calendar)
    /// windows of a request begin, such as a customer's billing day. If it is missing or invalid,
    /// the quota's anchor is used. Clients must not be able to choose it.
    #[must_use]
    pub fn with_anchor_attribute(mut self, attribute: impl Into<String>) -> Self {
        self.options.anchor_attribute = Some(attribute.into());
        self
    }

    /// Sets what happens to a request that lacks an attribute of the scope. Default:
    /// [`OnMissing::Skip`], because policies of a set often cover different requests.
    ///
    /// ```
    /// use slidegate::{Gate, OnMissing, Policy, PolicySet, Quota, Request};
    ///
    /// let per_user = Policy::new("per-user", Quota::per_minute(1))?.with_scope(["user"]);
    /// let nobody = Request::new();
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.clone()])?);
    /// assert!(gate.check(&nobody).is_empty(), "the policy is skipped");
    /// assert_eq!(gate.policies().skipped(&nobody).count(), 1);
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.clone().with_on_missing(OnMissing::OneKey)])?);
    /// assert!(gate.check(&nobody).is_allowed() && gate.check(&nobody).is_denied());
    ///
    /// let gate = Gate::new(PolicySet::new([per_user.with_on_missing(OnMissing::Deny)])?);
    /// assert!(gate.check(&nobody).is_denied());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_on_missing(mut self, then: OnMissing) -> Self {
        self.options.on_missing = Some(then);
        self
    }

    /// Counts several spellings of an attribute's value as one: in conditions, keys, overrides,
    /// blocks and tiers. Repeated folds of an attribute combine. See [`Fold`].
    ///
    /// Keys that fold differently than before start afresh.
    #[must_use]
    pub fn with_fold(mut self, attribute: impl Into<String>, fold: Fold) -> Self {
        let attribute = attribute.into();
        let fold = self.fold_of(&attribute).and(fold);
        self.options.folds.retain(|(known, _)| *known != attribute);
        for (_, condition) in self.options.conditions.iter_mut().filter(|(name, _)| *name == attribute) {
            *condition = condition.clone().folded(fold);
        }
        self.options.tiers = self.options.tiers.map(|tiers| tiers.folded(&attribute, fold));
        if fold != Fold::NONE {
            self.options.folds.push((attribute, fold));
        }
        self.fold_keys();
        self
    }

    pub(super) fn fold_keys(&mut self) {
        let folds: Vec<_> = self.keys.scope.iter().map(|attribute| self.fold_of(attribute)).collect();
        let is_any = folds.iter().any(|fold| *fold != Fold::NONE);
        self.keys.folds = if is_any { folds.into() } else { Box::default() };
    }

    pub(super) fn fold_of(&self, attribute: &str) -> Fold {
        let known = self.options.folds.iter().find(|(known, _)| known == attribute);
        known.map_or(Fold::NONE, |(_, fold)| *fold)
    }
}
