//! Requests: borrowed attributes and a cost.

use std::net::IpAddr;
use std::sync::Arc;

use crate::amount::{Amount, MILLION};
use crate::cost::{Cost, Counts};
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

    /// The cost in what a policy counts.
    #[must_use]
    pub fn counted_cost(&self, counts: &Counts) -> Amount {
        counts.amount(self.cost_of(counts))
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
        self.cost.as_ref().is_some_and(Cost::is_named)
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
