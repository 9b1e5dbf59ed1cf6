//! Requests: what is known about one, borrowed, and what it costs.

use std::net::IpAddr;
use std::sync::Arc;

use crate::quota::Quota;
use crate::verb::{Role, Verb};

/// The value of an attribute.
///
/// Made by `From` from text, bytes or an [`IpAddr`]. An address is matched by network and counted
/// by group, bytes are taken as they are: text that looks like an address is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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

/// A request as policies see it: named attributes and a cost.
///
/// ```
/// use slidegate::Request;
/// use std::net::Ipv4Addr;
///
/// let peer = std::net::IpAddr::from(Ipv4Addr::LOCALHOST);
/// let request = Request::new().with("user", "alice").with("ip", peer).cost(3);
/// assert_eq!(request.value("user"), Some("alice".into()));
/// assert_eq!(request.value("token"), None);
/// ```
#[derive(Debug, Clone)]
pub struct Request<'r> {
    /// The first attributes, on the stack. A `SmallVec` would tie every borrow of a request to its
    /// own lifetime.
    few: [Option<Attribute<'r>>; 6],
    /// All others.
    more: Vec<Attribute<'r>>,
    cost: u64,
    verb: Verb,
    role: Role,
    over_limit: bool,
    under: Option<&'r str>,
    /// Whether a named policy is left out, instead of being an error, where an attribute of its
    /// scope is missing.
    #[cfg(feature = "tower")]
    may_lack_attributes: bool,
    /// Shared, as it is five times as large as all else that most requests have.
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
            cost: 1,
            verb: Verb::Check,
            role: Role::Deciding,
            over_limit: false,
            under: None,
            #[cfg(feature = "tower")]
            may_lack_attributes: false,
            quota: None,
        }
    }

    /// A request of a layer, without attributes. A policy that the layer names is left out where
    /// the request lacks an attribute of its scope: who sends no API key is not counted by one.
    /// Made where it is returned, as moving one takes as long as half a decision.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn asking(cost: u64, under: Option<&'r str>) -> Self {
        Self { cost, under, may_lack_attributes: true, ..Self::new() }
    }

    /// Adds an attribute. Of two with one name the first counts. More than six allocate.
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

    /// Sets the cost. Zero is allowed everywhere and charges nothing.
    #[must_use]
    #[inline]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets what [`Gate::apply`](crate::Gate::apply) does with it: a check unless set.
    #[must_use]
    #[inline]
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verb = verb;
        self
    }

    /// Sets how it takes part in a call of several requests, see
    /// [`Gate::apply`](crate::Gate::apply).
    #[must_use]
    #[inline]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Makes its check or peek denied as well while the key is over its limit, which a cost of 0
    /// otherwise never is: more is used than the limit, as after a penalty or a lowered limit, or
    /// all of it under a policy that admits [overdrafts](crate::Excess::Charge).
    ///
    /// The wait of such a denial lasts until nothing is used any more.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, Verb};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(10))?.scope(["user"])])?);
    /// let alice = Request::new().with("user", "alice");
    /// let _ = gate.penalize(&alice.clone().cost(11));
    /// assert!(gate.peek(&alice.clone().cost(0)).is_allowed());
    /// assert!(gate.peek(&alice.cost(0).deny_over_limit()).is_denied());
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
    /// If the gate has no policy of this name, or the request lacks an attribute of the policy's
    /// scope, the request is denied, nothing is charged, and
    /// [`Decisions::error`](crate::Decisions::error) says why: a typo must not lift a limit.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("login", Quota::per_minute(5))?.scope(["user"])])?);
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

    /// This quota decides instead of the policies' own and of overrides. Another one may be given
    /// for the same keys next time: usage is kept, and starts afresh only where the algorithm is
    /// another.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("inline", Quota::per_minute(0))?.scope(["key"])])?);
    /// let alice = Request::new().with("key", "alice").under("inline");
    /// assert!(gate.check(&alice.clone().quota(Quota::per_minute(2)).cost(2)).is_allowed());
    /// assert!(gate.check(&alice.clone().quota(Quota::per_minute(2))).is_denied());
    /// assert!(gate.check(&alice.quota(Quota::per_minute(3))).is_allowed());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// A [`Quota`] itself is allocated; so keep one that is used again in an [`Arc`].
    #[must_use]
    #[inline]
    pub fn quota(mut self, quota: impl Into<Arc<Quota>>) -> Self {
        self.quota = Some(quota.into());
        self
    }

    /// The value of an attribute, if the request has it. Looks through all of them: they are few.
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

    /// What it costs: 1 unless [`cost`](Self::cost) said otherwise.
    #[must_use]
    #[inline]
    pub fn asked_cost(&self) -> u64 {
        self.cost
    }

    /// Its own verb: a check unless [`verb`](Self::verb) said otherwise.
    #[must_use]
    pub fn own_verb(&self) -> Verb {
        self.verb
    }

    /// How it takes part in a call of several requests: it decides unless [`role`](Self::role) said
    /// otherwise.
    #[must_use]
    #[inline]
    pub fn own_role(&self) -> Role {
        self.role
    }

    pub(crate) fn is_denied_over_limit(&self) -> bool {
        self.over_limit
    }

    /// The only policy that decides, if [`under`](Self::under) named one.
    #[must_use]
    pub fn named_policy(&self) -> Option<&'r str> {
        self.under
    }

    /// Whether a named policy is left out where an attribute of its scope is missing.
    pub(crate) fn may_lack_attributes(&self) -> bool {
        #[cfg(feature = "tower")]
        return self.may_lack_attributes;
        #[cfg(not(feature = "tower"))]
        return false;
    }

    pub(crate) fn inline_quota(&self) -> Option<&Quota> {
        self.quota.as_deref()
    }
}

/// Adds attributes in place, as [`with`](Request::with) does one by one. Of two with one name the
/// first counts.
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
