//! Units of cost: what a policy counts and what stores count.

use super::Policy;
use crate::amount::{Amount, MILLION};
use crate::error::Error;
use crate::quota::{Algorithm, Quota};
use crate::request::{CostUnit, Counts, Request};

impl Policy {
    /// A request's cost in what this policy [counts](Self::counts).
    #[must_use]
    pub fn cost_of(&self, request: &Request<'_>) -> Amount {
        self.amount(request.cost_of(&self.counts))
    }

    /// A quota of the policy in the units that stores count: millionths if it
    /// [weights](Counts::Weighted) costs.
    #[must_use]
    pub fn counted(&self, quota: &Quota) -> Quota {
        if self.counts.is_weighted() { quota.times(MILLION) } else { *quota }
    }

    /// Converts a store's count to an amount.
    #[must_use]
    pub fn amount(&self, count: u64) -> Amount {
        Amount::counted(count, self.counts.is_weighted())
    }

    /// Converts an amount to a store's count: whole units, rounded up, or millionths if the policy
    /// [weights](Counts::Weighted) costs.
    #[must_use]
    pub fn count(&self, amount: Amount) -> u64 {
        amount.count(self.counts.is_weighted())
    }

    /// The policy with limits in millionths of a unit, if it counts millionths and its limits are
    /// in units.
    ///
    /// # Errors
    /// If the weights or a limit are out of range.
    pub(super) fn in_millionths(&self) -> Result<Option<Self>, Error> {
        let Counts::Weighted(weights) = &self.counts else { return Ok(None) };
        if self.keys.in_millionths {
            return Ok(None);
        }
        let invalid = |what: String| Err(Error::policy(format!("policy `{}`: invalid {what}", self.name())));
        if weights.is_empty() || weights.len() > Counts::MAX_WEIGHTS {
            let most = Counts::MAX_WEIGHTS;
            return invalid(format!("weights ({} of them): must be 1 to {most}", weights.len()));
        }
        for (at, (name, weight)) in weights.iter().enumerate() {
            if *weight > Counts::MAX_WEIGHT.into() {
                let most = Counts::MAX_WEIGHT;
                return invalid(format!(
                    "weight `{weight}` of `{name}`: must be 0 to {most}, for example `0.25`"
                ));
            }
            if weights[..at].iter().any(|(other, _)| other == name) {
                return invalid(format!("weights: `{name}` has two; remove one"));
            }
        }
        let most = Counts::MAX_WEIGHTED_LIMIT;
        let largest = self.quotas().map(|quota| quota.limit().max(quota.burst())).max().unwrap_or(0);
        if largest > most {
            return invalid(format!(
                "limit `{largest}`: a policy that weighs costs counts millionths; must be at most {most}"
            ));
        }
        let mut counted = self.clone().map_quotas(|quota| self.counted(quota));
        counted.keys.in_millionths = true;
        Ok(Some(counted))
    }

    /// Sets the unit of cost. Header styles with fields for each unit need it, see
    /// `XRateLimit::OpenAi`.
    #[must_use]
    pub fn with_unit(mut self, unit: CostUnit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Names a unit of cost that is not a [`CostUnit`], such as `usd`, for explanations.
    #[must_use]
    pub fn with_unit_name(mut self, name: impl Into<Box<str>>) -> Self {
        self.unit_name = Some(name.into());
        self
    }

    /// The name of the unit, from here or [`with_unit`](Self::with_unit).
    #[must_use]
    #[inline]
    pub fn unit_name(&self) -> Option<&str> {
        self.unit_name.as_deref().or(self.unit().map(CostUnit::name))
    }

    /// The unit of cost: as [set](Self::unit), or requests if the policy [counts
    /// them](Counts::Requests) against a rate.
    #[must_use]
    #[inline]
    pub fn unit(&self) -> Option<CostUnit> {
        let counts_requests =
            self.counts == Counts::Requests && self.quota.algorithm() != Algorithm::InFlight;
        self.unit.or(counts_requests.then_some(CostUnit::Requests))
    }
}
