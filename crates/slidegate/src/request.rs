//! Requests: borrowed attributes and a cost.

use std::net::IpAddr;
use std::sync::Arc;

use crate::amount::{Amount, MILLION};
use crate::quota::Quota;
use crate::verb::{Role, Verb};

/// The value of an attribute.
///
/// Created with `From` from text, bytes or an [`IpAddr`]. Addresses are matched by network and
/// counted by group; bytes are compared as they are, and text that looks like an address is not
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'r> {
    /// Bytes of any content and length.
    Bytes(&'r [u8]),
    /// A network address.
    Address(IpAddr),
}

impl<'r> From<&'r str> for Value<'r> {
    fn from(text: &'r str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'r> From<&'r String> for Value<'r> {
    fn from(text: &'r String) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'r> From<&'r [u8]> for Value<'r> {
    fn from(bytes: &'r [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'r, const N: usize> From<&'r [u8; N]> for Value<'r> {
    fn from(bytes: &'r [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<IpAddr> for Value<'_> {
    fn from(ip: IpAddr) -> Self {
        Self::Address(ip)
    }
}

/// A value that outlives its request.
///
/// ```
/// use slidegate::{OwnedValue, Request};
///
/// let kept = Request::new().with("user", "alice").value("user").map(OwnedValue::from).unwrap();
/// assert_eq!(Request::new().with("user", kept.value()).value("user"), Some("alice".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedValue(OwnedRepr);

#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnedRepr {
    Bytes(Box<[u8]>),
    Address(IpAddr),
}

impl OwnedValue {
    /// The value.
    #[must_use]
    pub fn value(&self) -> Value<'_> {
        match &self.0 {
            OwnedRepr::Bytes(bytes) => Value::Bytes(bytes),
            OwnedRepr::Address(ip) => Value::Address(*ip),
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        Self(match value {
            Value::Bytes(bytes) => OwnedRepr::Bytes(bytes.into()),
            Value::Address(ip) => OwnedRepr::Address(ip),
        })
    }
}

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
    /// assert_eq!(spent.amounts().used.to_string(), "0.22");
    /// assert_eq!((spent.limit(), spent.remaining()), (5, 4));
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
    pub(crate) fn is_weighted(&self) -> bool {
        matches!(self, Self::Weighted(_))
    }

    /// The cost of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named(name.into())
    }

    /// A request's cost in what counts.
    #[must_use]
    pub fn cost_of(&self, request: &Request<'_>) -> Amount {
        self.amount(request.cost_of(self))
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

/// A request as seen by policies: named attributes and a cost.
///
/// ```
/// use slidegate::Request;
/// use std::net::Ipv4Addr;
///
/// let peer = std::net::IpAddr::from(Ipv4Addr::LOCALHOST);
/// let request = Request::new().with("user", "alice").with("ip", peer).with_cost(3);
/// assert_eq!(request.value("user"), Some("alice".into()));
/// assert_eq!(request.value("token"), None);
/// ```
#[derive(Debug, Clone)]
pub struct Request<'r> {
    /// The first attributes, inline. A `SmallVec` would tie every borrow of a request to its own
    /// lifetime.
    few: [Option<Attribute<'r>>; 6],
    /// All others.
    more: Vec<Attribute<'r>>,
    /// `None` if not set.
    cost: Option<Cost<'r>>,
    verb: Verb,
    role: Role,
    over_limit: bool,
    under: Option<&'r str>,
    /// Whether a named policy is skipped, instead of an error, if the request lacks an attribute of
    /// its scope.
    may_lack_attributes: bool,
    /// Shared, because a quota is five times the size of the rest of a usual request.
    quota: Option<Arc<Quota>>,
}

/// A name and its value.
type Attribute<'r> = (&'r str, Value<'r>);

impl<'r> Request<'r> {
    /// A request without attributes, of cost 1.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self {
            few: [None; 6],
            more: Vec::new(),
            cost: None,
            verb: Verb::Check,
            role: Role::Deciding,
            over_limit: false,
            under: None,
            may_lack_attributes: false,
            quota: None,
        }
    }

    /// A request from a layer, without attributes. A policy that the layer names is skipped if the
    /// request lacks an attribute of its scope: for example, a client without an API key. Built
    /// where it is returned, because moving one takes half as long as a decision.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn asking(cost: u64, under: Option<&'r str>) -> Self {
        Self { cost: Some(cost.into()), under, may_lack_attributes: true, ..Self::new() }
    }

    /// Adds an attribute. Of two with the same name, the first counts. More than six allocate.
    #[must_use]
    pub fn with(mut self, name: &'r str, value: impl Into<Value<'r>>) -> Self {
        self.add((name, value.into()));
        self
    }

    #[inline]
    fn add(&mut self, attribute: Attribute<'r>) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(attribute),
            None => self.more.push(attribute),
        }
    }

    /// Sets the cost: a number, or [costs by name](Cost). Zero is allowed everywhere and charges
    /// nothing.
    #[must_use]
    #[inline]
    pub fn with_cost(mut self, cost: impl Into<Cost<'r>>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    /// Sets how [`Gate::apply`](crate::Gate::apply) applies its cost. Default: a check.
    #[must_use]
    #[inline]
    pub fn with_verb(mut self, verb: Verb) -> Self {
        self.verb = verb;
        self
    }

    /// Sets its role in a call of several requests. See [`Gate::apply`](crate::Gate::apply).
    #[must_use]
    #[inline]
    pub fn with_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Also denies its check or peek while the key is over its limit, which a cost of 0 is
    /// otherwise not: usage above the limit, as after a penalty or a lowered limit, or the whole
    /// limit used under a policy that admits [overdrafts](crate::Excess::Charge).
    ///
    /// The wait of such a denial lasts until nothing is used.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, verb::Verb};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(10))?.with_scope(["user"])])?);
    /// let alice = Request::new().with("user", "alice");
    /// let _ = gate.penalize(&alice.clone().with_cost(11));
    /// assert!(gate.peek(&alice.clone().with_cost(0)).is_allowed());
    /// assert!(gate.peek(&alice.with_cost(0).deny_over_limit()).is_denied());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn deny_over_limit(mut self) -> Self {
        self.over_limit = true;
        self
    }

    /// Only the policy of this name decides, whether or not its conditions hold.
    ///
    /// If the gate has no such policy, or the request lacks an attribute of the policy's scope, the
    /// request is denied, nothing is charged, and [`Decisions::error`](crate::Decisions::error) has
    /// the reason: a typo must not lift a limit.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("login", Quota::per_minute(5))?.with_scope(["user"])])?);
    /// let request = Request::new().with("user", "alice").under("logn");
    /// let decisions = gate.check(&request);
    /// assert!(decisions.is_denied());
    /// let error = decisions.error().unwrap();
    /// assert!(error.is_unknown_policy());
    /// assert_eq!(error.to_string(), "unknown policy `logn`: the gate has `login`");
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn under(mut self, policy: &'r str) -> Self {
        self.under = Some(policy);
        self
    }

    /// Decides by this quota instead of the policies' own and of overrides. Later calls for the
    /// same keys may use another one: usage is kept, and starts afresh only if the algorithm
    /// changes.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("inline", Quota::per_minute(0))?.with_scope(["key"])])?);
    /// let alice = Request::new().with("key", "alice").under("inline");
    /// assert!(gate.check(&alice.clone().with_quota(Quota::per_minute(2)).with_cost(2)).is_allowed());
    /// assert!(gate.check(&alice.clone().with_quota(Quota::per_minute(2))).is_denied());
    /// assert!(gate.check(&alice.with_quota(Quota::per_minute(3))).is_allowed());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// A plain [`Quota`] is allocated; keep one that is reused in an [`Arc`].
    #[must_use]
    #[inline]
    pub fn with_quota(mut self, quota: impl Into<Arc<Quota>>) -> Self {
        self.quota = Some(quota.into());
        self
    }

    /// The value of an attribute, if the request has it. A linear search, as there are few.
    #[must_use]
    #[inline]
    pub fn value(&self, name: &str) -> Option<Value<'r>> {
        // The places of `few` are taken in their order, so the first free one ends the search.
        let few = self.few.iter().map_while(Option::as_ref).find(|(known, _)| *known == name);
        few.or_else(|| self.more.iter().find(|(known, _)| *known == name)).map(|(_, value)| *value)
    }

    /// Every attribute, in the order given.
    pub fn attributes(&self) -> impl Iterator<Item = (&'r str, Value<'r>)> {
        self.few.iter().flatten().chain(&self.more).copied()
    }

    /// The total cost: 1 unless set by [`with_cost`](Self::with_cost).
    #[must_use]
    #[inline]
    pub fn cost(&self) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost.under(&Counts::Cost))
    }

    /// The explicit cost. `None` makes a reservation hold estimates.
    #[must_use]
    pub fn own_cost(&self) -> Option<&Cost<'r>> {
        self.cost.as_ref()
    }

    /// The cost under a policy that counts this, in the policy's unit.
    #[inline]
    pub(crate) fn cost_of(&self, counts: &Counts) -> u64 {
        let unsaid = || if counts.is_weighted() { MILLION } else { 1 };
        self.cost.as_ref().map_or_else(unsaid, |cost| cost.under(counts))
    }

    /// Whether it has costs by name.
    #[inline]
    pub(crate) fn names_costs(&self) -> bool {
        matches!(self.cost, Some(Cost(Costs::Named(_))))
    }

    /// Whether it has a cost.
    pub(crate) fn says_cost(&self) -> bool {
        self.cost.is_some()
    }

    /// Its verb: a check unless set by [`with_verb`](Self::with_verb).
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Its role in a call of several requests: deciding unless set by
    /// [`with_role`](Self::with_role).
    #[must_use]
    #[inline]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether its check or peek is denied while the key is over its limit. See
    /// [`deny_over_limit`](Self::deny_over_limit).
    #[must_use]
    pub fn is_denied_over_limit(&self) -> bool {
        self.over_limit
    }

    /// The policy set by [`under`](Self::under), which alone decides.
    #[must_use]
    pub fn named_policy(&self) -> Option<&'r str> {
        self.under
    }

    /// Whether a named policy is skipped if the request lacks an attribute of its scope.
    pub(crate) fn may_lack_attributes(&self) -> bool {
        self.may_lack_attributes
    }

    #[doc(hidden)]
    #[must_use]
    pub fn inline_quota(&self) -> Option<&Quota> {
        self.quota.as_deref()
    }
}

/// Adds attributes in place, like [`with`](Request::with). Of two with the same name, the first
/// counts.
///
/// ```
/// use slidegate::Request;
///
/// let mut request = Request::new().with("user", "alice");
/// request.extend([("path", "/login"), ("user", "bob")]);
/// assert_eq!(request.value("path"), Some("/login".into()));
/// assert_eq!(request.value("user"), Some("alice".into()));
/// ```
impl<'r, V: Into<Value<'r>>> Extend<(&'r str, V)> for Request<'r> {
    fn extend<I: IntoIterator<Item = (&'r str, V)>>(&mut self, attributes: I) {
        attributes.into_iter().for_each(|(name, value)| self.add((name, value.into())));
    }
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self::new()
    }
}
