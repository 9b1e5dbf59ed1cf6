//! Setting the overrides of a policy.

use super::Policy;
use super::overrides::{Override, OverridePart};
use crate::quota::Quota;
use crate::request::Value;

impl Policy {
    /// Adds an override: a quota for the key with these values, one per attribute of the scope. A
    /// value may be a [`Network`](crate::network::Network): each key with an address in it then
    /// gets the quota for itself. An exact override wins over networks, and a longer prefix over a
    /// shorter one; the first network of a key is compared first.
    ///
    /// The quota must have the policy's algorithm, or building the set fails. Adding or removing an
    /// override keeps the key's usage. A look-up costs one hash of the key, plus one per prefix
    /// length; policies without overrides pay nothing.
    ///
    /// ```
    /// use slidegate::network::Network;
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    /// use std::net::IpAddr;
    ///
    /// let office: Network = "10.0.0.0/8".parse()?;
    /// let robot: IpAddr = "10.0.0.9".parse().unwrap();
    /// let per_ip = Policy::new("per-ip", Quota::per_minute(5))?
    ///     .with_scope(["ip"])
    ///     .with_override([office], Quota::per_minute(50))
    ///     .with_unlimited([robot]);
    /// let gate = Gate::new(PolicySet::new([per_ip])?);
    /// let limit = |ip: &str| {
    ///     let ip: IpAddr = ip.parse().unwrap();
    ///     gate.peek(&Request::new().with("ip", ip)).strictest().map(|one| one.decision().limit())
    /// };
    /// assert_eq!((limit("192.0.2.1"), limit("10.0.0.1"), limit("10.0.0.9")), (Some(5), Some(50), None));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_override<P: Into<OverridePart>>(
        mut self,
        key: impl IntoIterator<Item = P>,
        quota: Quota,
    ) -> Self {
        self.options
            .overrides
            .push(Override { key: key.into_iter().map(Into::into).collect(), quota: Some(quota) });
        self
    }

    /// Exempts a key, or the keys in networks, like an [override](Self::with_override): the policy
    /// does not apply to them and counts nothing, unless a [block](Self::with_block) denies them.
    #[must_use]
    pub fn with_unlimited<P: Into<OverridePart>>(mut self, key: impl IntoIterator<Item = P>) -> Self {
        self.options.overrides.push(Override { key: key.into_iter().map(Into::into).collect(), quota: None });
        self
    }

    /// Removes the override of the key with these values, if any. Overrides of networks that
    /// contain the key stay.
    #[must_use]
    pub fn without_override<'v, V: Into<Value<'v>>>(mut self, key: impl IntoIterator<Item = V>) -> Self {
        let values: Vec<Value<'v>> = key.into_iter().map(Into::into).collect();
        let removed = self.key(&self.request_of(values)).canonical();
        let is_kept = |one: &Override| {
            !one.is_exact() || self.key(&self.request_of(one.values())).canonical() != removed
        };
        let kept: Vec<bool> = self.options.overrides.iter().map(is_kept).collect();
        let mut kept = kept.into_iter();
        self.options.overrides.retain(|_| kept.next().unwrap_or(true));
        self
    }
}
