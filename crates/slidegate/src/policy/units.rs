//! Units of cost: what a policy counts and what stores count.

use super::Policy;
use crate::cost::{CostUnit, Counts};
use crate::error::Error;
use crate::quota::Algorithm;

impl Policy {
    /// The policy with limits in millionths of a unit, if it counts millionths and its limits are
    /// in units.
    ///
    /// # Errors
    /// If the weights or a limit are out of range.
    pub(super) fn in_millionths(&self) -> Result<Option<Self>, Error> {
        let Counts::Weighted(weights) = &self.options.counts else { return Ok(None) };
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
        let mut counted = self.clone().map_quotas(|quota| self.options.counts.counted(quota));
        counted.keys.in_millionths = true;
        Ok(Some(counted))
    }

    /// Sets the unit of cost: a [`CostUnit`], or the name of another unit, such as `usd`, for explanations. Header
    /// styles with fields for each unit need a [`CostUnit`], see `XRateLimit::OpenAi`.
    #[must_use]
    pub fn with_unit(mut self, name: impl AsRef<str>) -> Self {
        self.unit = CostUnit::from_name(name.as_ref());
        self.options.unit = Some(name.as_ref().into());
        self
    }

    /// The name of the unit: as [set](Self::with_unit), or requests if the policy [counts them](Counts::Requests)
    /// against a rate.
    #[must_use]
    #[inline]
    pub fn unit_name(&self) -> Option<&str> {
        self.options.unit.as_deref().or(self.unit().map(CostUnit::name))
    }

    /// The unit for sentences about usage: its [name](Self::unit_name), unless it is requests.
    #[must_use]
    pub fn said_unit(&self) -> Option<&str> {
        self.options.unit.as_deref().filter(|name| *name != CostUnit::Requests.name())
    }

    /// The unit, if it is a [`CostUnit`].
    #[inline]
    pub(crate) fn unit(&self) -> Option<CostUnit> {
        let counts_requests = self.options.counts == Counts::Requests
            && self.options.unit.is_none()
            && self.quota.algorithm() != Algorithm::InFlight;
        self.unit.or(counts_requests.then_some(CostUnit::Requests))
    }
}
