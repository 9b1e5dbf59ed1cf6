//! What a request costs, the part of it that a policy counts, and its unit.

use crate::amount::{Amount, MILLION};
use crate::quota::Quota;

/// The part of a request's cost that a policy counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Counts {
    /// Its [cost](crate::Request::with_cost), or the sum of its costs by name.
    #[default]
    Cost,
    /// The request itself: 1, whatever it costs, and 0 if its cost is 0. Known at once, so it is
    /// charged and never held.
    Requests,
    /// The cost of this name; 0 if the request has only others. A cost without a name counts for
    /// every policy. A request that lacks the cost that counts, and has one by a name that no
    /// policy counts, is [not decided](crate::Decisions::error): a typo must not lift a limit.
    Named(String),
    /// The sum of the costs of these names, each times its weight: one to 16 names with weights of at most a
    /// million, zero included. Such a policy counts millionths of a unit, so sums are exact. A cost without a name
    /// counts in whole units. The policy's limits are whole units, at most [`Counts::MAX_WEIGHTED_LIMIT`].
    ///
    /// ```
    /// use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let usd = Counts::Weighted(vec![("input".into(), "0.000002".parse()?), ("output".into(), "0.00001".parse()?)]);
    /// let spend = Policy::new("spend", Quota::per_day(5))?.with_scope(["user"]).with_counts(usd);
    /// let gate = Gate::new(PolicySet::new([spend])?);
    /// let request = Request::new().with("user", "alice").with_cost([("input", 90_000), ("output", 4_000)]);
    /// let decisions = gate.check(&request);
    /// let spent = decisions.strictest().unwrap();
    /// assert_eq!(spent.decision().amounts().used.to_string(), "0.22");
    /// assert_eq!((spent.decision().limit(), spent.decision().remaining()), (5, 4));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    Weighted(Vec<(String, Amount)>),
}

impl Counts {
    /// The largest limit and burst of a policy that weights costs, in whole units, so that every
    /// store and a double can count its millionths.
    pub const MAX_WEIGHTED_LIMIT: u64 = 8_000_000_000;
    /// Maximum number of costs that a policy weights.
    pub const MAX_WEIGHTS: usize = 16;
    /// The largest weight.
    pub const MAX_WEIGHT: u64 = 1_000_000;

    /// Whether usage is counted in millionths of a unit.
    #[must_use]
    pub fn is_weighted(&self) -> bool {
        matches!(self, Self::Weighted(_))
    }

    /// The cost of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named(name.into())
    }

    /// A quota in the units that stores count: millionths if costs are [weighted](Self::Weighted).
    #[must_use]
    pub fn counted(&self, quota: &Quota) -> Quota {
        if self.is_weighted() { quota.times(MILLION) } else { *quota }
    }

    /// Converts a store's count to an amount.
    #[must_use]
    pub fn amount(&self, count: u64) -> Amount {
        Amount::counted(count, self.is_weighted())
    }

    /// Converts an amount to a store's count: whole units, rounded up, or millionths if costs are
    /// [weighted](Self::Weighted).
    #[must_use]
    pub fn count(&self, amount: Amount) -> u64 {
        amount.count(self.is_weighted())
    }

    /// The names of the costs that count, if some count by name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let (name, weights) = match self {
            Self::Named(name) => (Some(name), &[][..]),
            Self::Weighted(weights) => (None, &weights[..]),
            Self::Cost | Self::Requests => (None, &[][..]),
        };
        name.into_iter().chain(weights.iter().map(|(name, _)| name)).map(String::as_str)
    }
}

/// The unit of cost, for header styles that state it. It does not
/// change what [counts](Counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CostUnit {
    /// A request.
    Requests,
    /// A token of a language model.
    Tokens,
    /// A token of a prompt.
    InputTokens,
    /// A token of an answer.
    OutputTokens,
}

impl CostUnit {
    /// Parses the name used in configurations: `requests`, `tokens`, `input-tokens` or
    /// `output-tokens`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Requests, Self::Tokens, Self::InputTokens, Self::OutputTokens]
            .into_iter()
            .find(|unit| unit.name() == name)
    }

    /// The name: `requests`, `tokens`, `input-tokens` or `output-tokens`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input-tokens",
            Self::OutputTokens => "output-tokens",
        }
    }
}

impl AsRef<str> for CostUnit {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

/// The cost of a request: a number, or named numbers, of which a policy
/// [counts](crate::Policy::with_counts) one. Policies that count no name count their sum. A number
/// may be an [`Amount`]; its decimals count under policies that [weight](Counts::Weighted) costs,
/// and others round up.
///
/// ```
/// use slidegate::Request;
///
/// let request = Request::new().with_cost([("input", 900), ("output", 4096)]);
/// assert_eq!(request.cost(), 4996);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost<'r>(Costs<'r>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Costs<'r> {
    Bare(u64),
    Exact(Amount),
    /// Boxed, because requests are moved and few have any.
    Named(Box<[(&'r str, u64)]>),
}

impl Cost<'_> {
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.0, Costs::Named(_))
    }

    /// The numbers by name; empty if it is one number.
    #[must_use]
    pub fn named(&self) -> &[(&str, u64)] {
        match &self.0 {
            Costs::Bare(_) | Costs::Exact(_) => &[],
            Costs::Named(costs) => costs,
        }
    }

    /// The sum of its numbers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.under(&Counts::Cost)
    }

    /// The part that counts, in the policy's unit.
    #[inline]
    pub(crate) fn under(&self, counts: &Counts) -> u64 {
        let sum = |sum: u64, (_, cost): &(&str, u64)| sum.saturating_add(*cost);
        match (counts, &self.0) {
            (Counts::Cost | Counts::Named(_), Costs::Bare(cost)) => *cost,
            (Counts::Requests, Costs::Bare(cost)) => 1.min(*cost),
            (Counts::Requests, Costs::Exact(cost)) => 1.min(cost.ceil()),
            (counts, Costs::Exact(cost)) => cost.count(counts.is_weighted()),
            (Counts::Requests, Costs::Named(_)) => 1,
            (Counts::Cost, Costs::Named(costs)) => costs.iter().fold(0, sum),
            (Counts::Weighted(_), Costs::Bare(cost)) => cost.saturating_mul(MILLION),
            (Counts::Weighted(weights), Costs::Named(costs)) => weighted(weights, costs),
            (Counts::Named(name), Costs::Named(costs)) => {
                costs.iter().filter(|(known, _)| known == name).fold(0, sum)
            }
        }
    }
}

/// The sum of the costs times their weights, in millionths.
fn weighted(weights: &[(String, Amount)], costs: &[(&str, u64)]) -> u64 {
    let weight_of = |name: &str| weights.iter().find(|(known, _)| known == name).map(|(_, weight)| *weight);
    let millionths = |(name, cost): &(&str, u64)| {
        weight_of(name).map_or(0, |weight| weight.millionths().saturating_mul(u128::from(*cost)))
    };
    let sum = costs.iter().map(millionths).fold(0, u128::saturating_add);
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// An owned [`Cost`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnedCost {
    Bare(u64),
    Exact(Amount),
    Named(Box<[(Box<str>, u64)]>),
}

impl Cost<'_> {
    pub(crate) fn to_owned_cost(&self) -> OwnedCost {
        match &self.0 {
            Costs::Bare(cost) => OwnedCost::Bare(*cost),
            Costs::Exact(cost) => OwnedCost::Exact(*cost),
            Costs::Named(costs) => {
                OwnedCost::Named(costs.iter().map(|(name, cost)| (Box::from(*name), *cost)).collect())
            }
        }
    }
}

impl OwnedCost {
    pub(crate) fn as_cost(&self) -> Cost<'_> {
        match self {
            Self::Bare(cost) => Cost::from(*cost),
            Self::Exact(cost) => Cost::from(*cost),
            Self::Named(costs) => {
                Cost(Costs::Named(costs.iter().map(|(name, cost)| (&**name, *cost)).collect()))
            }
        }
    }
}

impl From<u64> for Cost<'_> {
    #[inline]
    fn from(cost: u64) -> Self {
        Self(Costs::Bare(cost))
    }
}

impl From<Amount> for Cost<'_> {
    fn from(cost: Amount) -> Self {
        Self(Costs::Exact(cost))
    }
}

/// Two costs with the same name both count.
impl<'r> From<&[(&'r str, u64)]> for Cost<'r> {
    fn from(costs: &[(&'r str, u64)]) -> Self {
        Self(Costs::Named(costs.into()))
    }
}

impl<'r, const N: usize> From<[(&'r str, u64); N]> for Cost<'r> {
    fn from(costs: [(&'r str, u64); N]) -> Self {
        Self(Costs::Named(costs.into()))
    }
}
