//! Sets of policies, built and validated once.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::Policy;
use super::index::{Places, PolicyIndex};
use super::rule::{OwnOfKey, Rule};
use crate::block::Block;
use crate::charge::{MetQuota, OnMissing};
use crate::cost::{Cost, Counts};
use crate::error::Error;
use crate::key::{HashSeed, Key, KeyId, TicketKeyBytes};
use crate::quota::{Calendar, ChangedPolicy, Quota};
use crate::request::Request;

/// A validated list of policies with distinct names.
///
/// ```
/// use slidegate::{Policy, PolicySet, Quota};
///
/// let login = || Policy::new("login", Quota::per_minute(5));
/// assert_eq!(PolicySet::new([login()?])?.iter().count(), 1);
/// assert_eq!(
///     PolicySet::new([login()?, login()?]).unwrap_err().to_string(),
///     "duplicate policy `login`: names must be unique; rename one"
/// );
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    pub(super) rules: Vec<Rule>,
    /// Positions by name. Callers choose the names to look up but not those stored, so they cannot
    /// force collisions.
    places: HashMap<String, usize, RandomState>,
    /// Positions of policies that apply without being named.
    unnamed: Vec<usize>,
    /// The costs that policies count by name.
    cost_names: Vec<String>,
    /// Attributes that every request must have; see [`PolicySet::require`].
    pub(super) required: Vec<String>,
    /// Whether any policy weights costs.
    pub(super) weighs: bool,
    /// The unnamed policies by requirement, if there are too many to test each.
    index: Option<PolicyIndex>,
    /// The attributes without which a policy is skipped, each once.
    skipped_without: Vec<String>,
    /// The unnamed policies by condition, if there are too many to test each.
    by_conditions: Option<PolicyIndex>,
}

/// Above this number of policies, an index is used. Below it, testing each is faster.
const MOST_ASKED: usize = 8;

impl PolicySet {
    /// Most policies in a set.
    ///
    /// A request finds its policies by looking up its attributes: the values, networks and prefixes
    /// of conditions, the literal starts of globs, and the attributes of scopes. So a decision
    /// costs about the same for any size of the set. Policies whose only conditions cannot be
    /// indexed, such as a glob that begins with `*`, are tested one by one, if the request has
    /// their scope.
    pub const MAX_POLICIES: usize = 16_384;

    /// Validates the policies as a set.
    ///
    /// # Errors
    /// If there are too many, two share a name, or an override or block does not fit its policy: it
    /// has another number of values than the scope, or an override has another algorithm or repeats
    /// a key.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, Error> {
        let rules = policies.into_iter().map(Rule::new).collect::<Result<Vec<_>, _>>()?;
        if rules.len() > Self::MAX_POLICIES {
            return Err(Error::policy(format!(
                "invalid policies ({} of them): must be at most {}; merge some",
                rules.len(),
                Self::MAX_POLICIES
            )));
        }
        let mut places = HashMap::with_capacity_and_hasher(rules.len(), RandomState::default());
        for (at, rule) in rules.iter().enumerate() {
            let name = rule.policy.name();
            if places.insert(name.to_owned(), at).is_some() {
                return Err(Error::policy(format!(
                    "duplicate policy `{name}`: names must be unique; rename one"
                )));
            }
        }
        let mut cost_names: Vec<_> =
            rules.iter().flat_map(|rule| rule.policy.options.counts.names()).collect();
        cost_names.sort_unstable();
        cost_names.dedup();
        let cost_names = cost_names.into_iter().map(str::to_owned).collect();
        let needs_no_name = |at: &usize| !rules[*at].policy.options.only_when_named;
        let unnamed: Vec<_> = (0..rules.len()).filter(needs_no_name).collect();
        let listed = || PolicyIndex::new(unnamed.iter().map(|at| (*at, &rules[*at].policy)));
        let index = (unnamed.len() > MOST_ASKED).then(listed);
        let skips = |at: &&usize| rules[**at].policy.options.when_missing() == OnMissing::Skip;
        let skipping = || unnamed.iter().filter(skips).map(|at| (*at, &rules[*at].policy));
        let mut skipped_without: Vec<_> =
            skipping().flat_map(|(_, policy)| policy.scope()).cloned().collect();
        skipped_without.sort_unstable();
        skipped_without.dedup();
        let by_conditions = (unnamed.len() > MOST_ASKED).then(|| PolicyIndex::by_conditions(skipping()));
        let weighs = rules.iter().any(|rule| rule.counted.is_some());
        Ok(Self {
            rules,
            places,
            unnamed,
            cost_names,
            required: Vec::new(),
            weighs,
            index,
            skipped_without,
            by_conditions,
        })
    }

    /// Denies requests that lack one of these attributes, with an [error](crate::Decisions::error).
    /// Otherwise a policy does not apply to a request that lacks an attribute of its scope, so a
    /// misspelt name lifts its limit.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let per_user = Policy::new("per-user", Quota::per_minute(5))?.with_scope(["user"]);
    /// let gate = Gate::new(PolicySet::new([per_user])?.require(["user"]));
    /// let request = Request::new().with("usr", "alice");
    /// let misspelt = gate.check(&request);
    /// assert!(misspelt.is_denied());
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// assert_eq!(
    ///     misspelt.error().unwrap().to_string(),
    ///     "missing attribute `user`: every request must have it; set it, or do not require it"
    /// );
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn require<A: Into<String>>(mut self, attributes: impl IntoIterator<Item = A>) -> Self {
        self.required = attributes.into_iter().map(Into::into).collect();
        self
    }

    /// The policies, in the order given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.rules.iter().map(|rule| &rule.policy)
    }

    /// The policy of this name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Policy> {
        self.places.get(name).map(|at| self.policy(*at))
    }

    /// The key of a request under the policy of this name, as stores get it: it differs from [`Policy::key_of`] if
    /// the policy [weights](crate::Counts::Weighted) costs.
    #[must_use]
    pub fn stored_key<'r>(&'r self, name: &str, request: &'r Request<'r>) -> Option<Key<'r>> {
        self.rules[*self.places.get(name)?].counted().policy.key_of(request)
    }

    /// The policies that [apply](Policy::key_of) to a request, in their order.
    ///
    /// ```
    /// use slidegate::{Match, Policy, PolicySet, Quota, Request};
    ///
    /// let login = Policy::new("login", Quota::per_minute(5))?.with_condition("path", Match::equals("/login"));
    /// let set = PolicySet::new([login, Policy::new("all", Quota::per_minute(100))?])?;
    /// let names: Vec<_> = set.applying_to(&Request::new().with("path", "/")).map(Policy::name).collect();
    /// assert_eq!(names, ["all"]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn applying_to<'s>(&'s self, request: &Request<'_>) -> impl Iterator<Item = &'s Policy> {
        let mut found = Places::new();
        let places = self.rules_for(request, &mut found).iter();
        let applying: Places = places.filter(|at| self.policy(**at).applies_to(request)).copied().collect();
        applying.into_iter().map(|at| self.policy(at))
    }

    /// The policies whose conditions hold for a request but that [do not
    /// apply](crate::OnMissing::Skip) because it lacks an attribute of their scope, in policy
    /// order. None if the request [names](Request::under) a policy.
    ///
    /// ```
    /// use slidegate::{Policy, PolicySet, Quota, Request};
    ///
    /// let per_ip = Policy::new("per-ip", Quota::per_minute(5))?.with_scope(["ip"]);
    /// let set = PolicySet::new([per_ip])?;
    /// let request = Request::new().with("user", "alice");
    /// assert_eq!(set.skipped(&request).map(Policy::name).collect::<Vec<_>>(), ["per-ip"]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn skipped<'s>(&'s self, request: &Request<'_>) -> impl Iterator<Item = &'s Policy> + use<'s> {
        self.skipped_places(request).into_iter().map(|at| self.policy(at))
    }

    /// The policies that would apply to a request if its key were not
    /// [unlimited](Policy::with_unlimited), in their order.
    pub fn exempting<'s>(&'s self, request: &Request<'_>) -> impl Iterator<Item = &'s Policy> + use<'s> {
        let mut found = Places::new();
        let places = self.rules_for(request, &mut found).iter().copied();
        let exempting: Places = places
            .filter(|at| self.rules[*at].applies_to(request) && self.rules[*at].exempts(request))
            .collect();
        exempting.into_iter().map(|at| self.policy(at))
    }

    pub(crate) fn skipped_places(&self, request: &Request<'_>) -> Places {
        let mut found = Places::new();
        let lacks = |attribute: &String| request.value(attribute).is_none();
        if request.named_policy().is_some() || !self.skipped_without.iter().any(lacks) {
            return found;
        }
        match &self.by_conditions {
            Some(index) => index.find(request, &mut found),
            None => found.extend_from_slice(&self.unnamed),
        }
        found.retain(|at| self.policy(*at).skips(request));
        found
    }

    #[doc(hidden)]
    #[must_use]
    pub fn policy(&self, at: usize) -> &Policy {
        &self.rules[at].policy
    }

    /// The policy at a position, with limits in the units that stores count.
    pub(crate) fn counted_policy(&self, at: usize) -> &Policy {
        &self.rules[at].counted().policy
    }

    pub(crate) fn quota_of<'a>(&'a self, at: usize, key: &Key<'_>, request: &'a Request<'_>) -> &'a Quota {
        let rule = &self.rules[at];
        rule.quota_met(request, &rule.own(key))
    }

    pub(crate) fn block_of(&self, at: usize, key: &Key<'_>) -> Option<&Block> {
        self.rules[at].own(key).block
    }

    /// Keeps the costs that the former set's policies learned, unless the unit changed.
    pub(crate) fn keep_learned(&mut self, before: &Self) {
        for rule in &mut self.rules {
            let known = before
                .by_name(rule.policy.name())
                .filter(|known| known.options.counts == rule.policy.options.counts);
            let known = known.and_then(|known| known.settled_costs.as_ref());
            let policies = rule.counted.as_mut().map(|counted| &mut counted.policy);
            for policy in policies.into_iter().chain([&mut rule.policy]) {
                if let (Some(learned), Some(known)) = (&mut policy.settled_costs, known) {
                    *learned = Arc::clone(known);
                }
            }
        }
    }

    /// Assigns the numbers that policies' usage is stored under.
    pub(crate) fn number(&mut self, mut number_of: impl FnMut(&Policy) -> u32) {
        for rule in &mut self.rules {
            rule.number = number_of(&rule.policy);
            rule.of_tickets = OnceLock::new();
            if let Some(counted) = &mut rule.counted {
                counted.number = rule.number;
                counted.of_tickets = OnceLock::new();
            }
        }
    }

    /// The quota of every key, by policy number and key id.
    pub(crate) fn quotas<'a>(&'a self, secret: &HashSeed) -> Quotas<'a> {
        let by_policy = self.rules.iter().map(Rule::counted).map(|rule| {
            let overrides = rule.policy.override_ids(secret).collect();
            (rule.number, (&rule.policy.quota, overrides))
        });
        Quotas(by_policy.collect())
    }

    /// The number and the position of the policy with this name.
    pub(crate) fn numbered_place(&self, name: &str) -> Option<(u32, usize)> {
        let at = *self.places.get(name)?;
        Some((self.rules[at].number, at))
    }

    /// The configuration of the key with this id in tickets. `ids_of` returns a key's ids.
    pub(crate) fn own_of_ticket(
        &self,
        at: usize,
        ids_of: impl Fn(&Key<'_>) -> SmallVec<[TicketKeyBytes; 2]>,
        id: impl FnOnce() -> TicketKeyBytes,
    ) -> Option<&OwnOfKey> {
        self.rules[at].counted().own_of_ticket(ids_of, id)
    }

    /// The quota of a ticket's key now; `met` is the quota at the time of the reservation.
    pub(crate) fn quota_now(&self, at: usize, own: Option<&OwnOfKey>, met: MetQuota) -> Quota {
        self.rules[at].counted().quota_now(own, met)
    }

    /// The calendars that the keys of a policy may count by: those of its quotas, from each day of the month if
    /// an attribute sets it. May contain duplicates.
    pub fn calendars_of(&self, policy: &str) -> impl Iterator<Item = Calendar> {
        let rule = self.places.get(policy).map(|at| &self.rules[*at]);
        rule.into_iter().flat_map(Rule::calendars)
    }

    /// The policies as stores get them, with their numbers, and the quotas of keys with an override.
    pub(crate) fn numbered(
        &self,
        secret: &HashSeed,
    ) -> impl ExactSizeIterator<Item = (u32, &Policy, Vec<(KeyId, &Quota)>)> {
        self.rules
            .iter()
            .map(Rule::counted)
            .map(move |rule| (rule.number, &rule.policy, rule.policy.override_ids(secret).collect()))
    }

    /// The keys whose quota differs from the former set.
    pub(crate) fn changes_since<'a>(&'a self, before: &'a Self, seed: &HashSeed) -> Changes<'a> {
        Changes { old: before.quotas(seed), new: self.quotas(seed) }
    }

    /// Whether a request cannot be decided.
    pub(crate) fn cannot_decide(&self, request: &Request<'_>) -> bool {
        self.obstacle(request).is_some()
    }

    /// Why a request cannot be decided, as the [error](crate::Decisions::error) of its decisions:
    /// it names a policy that is not in the set, lacks an attribute of that policy's scope, or has
    /// a named cost that no policy counts, without the one that a policy [counts](Counts::Named).
    /// `None` if it can be decided.
    #[must_use]
    pub fn error_of(&self, request: &Request<'_>) -> Option<Error> {
        let name = request.named_policy().unwrap_or_default();
        Some(match self.obstacle(request)? {
            Obstacle::UnknownPolicy => Error::unknown_policy(name, self.iter().map(Policy::name)),
            Obstacle::MissingAttribute(attribute) => Error::missing_attribute(name, attribute),
            Obstacle::MissingRequired(attribute) => Error::policy(format!(
                "missing attribute `{attribute}`: every request must have it; set it, or do not require it"
            )),
            Obstacle::UnknownCost(error) => error,
            Obstacle::OwnQuota(policy) => Error::policy(format!(
                "policy `{policy}`: the request has a quota of its own, which does not say its unit, and the policy \
                 weighs costs; leave the quota out, or name another policy"
            )),
        })
    }

    fn obstacle(&self, request: &Request<'_>) -> Option<Obstacle<'_>> {
        if let Some(required) = self.required.iter().find(|attribute| request.value(attribute).is_none()) {
            return Some(Obstacle::MissingRequired(required));
        }
        if let Some(name) = request.named_policy() {
            let Some(policy) = self.by_name(name) else { return Some(Obstacle::UnknownPolicy) };
            let missing = policy.keys.scope.iter().find(|attribute| request.value(attribute).is_none());
            if let Some(missing) = missing.filter(|_| policy.options.when_missing() == OnMissing::Skip) {
                return (!request.may_lack_attributes()).then_some(Obstacle::MissingAttribute(missing));
            }
        }
        if request.inline_quota().is_some()
            && let Some(weighing) =
                self.applying_to(request).find(|policy| policy.options.counts.is_weighted())
        {
            return Some(Obstacle::OwnQuota(weighing.name()));
        }
        let cost = request.own_cost().filter(|_| request.names_costs())?;
        self.unknown_cost(cost, self.applying_to(request)).map(Obstacle::UnknownCost)
    }

    /// The error of a named cost that no policy counts, if one of these policies counts a name that
    /// the cost lacks: it would be charged 0, most likely for a typo. A policy that sums all costs
    /// counts every name.
    pub(crate) fn unknown_cost<'p>(
        &self,
        cost: &Cost<'_>,
        applying: impl IntoIterator<Item = &'p Policy>,
    ) -> Option<Error> {
        let is_unknown = |name: &&str| !self.cost_names.iter().any(|known| known == name);
        let unknown = cost.named().iter().map(|(name, _)| *name).find(is_unknown)?;
        let mut lacking = None;
        for policy in applying {
            match &policy.options.counts {
                Counts::Cost => return None,
                Counts::Named(name) if cost.named().iter().all(|(one, _)| one != name) => {
                    lacking = lacking.or(Some((policy, name.as_str())));
                }
                Counts::Weighted(_) => {
                    let is_missing = |one: &&str| cost.named().iter().all(|(name, _)| name != one);
                    let missing = policy.options.counts.names().find(is_missing);
                    lacking = lacking.or(missing.map(|missing| (policy, missing)));
                }
                Counts::Named(_) | Counts::Requests => {}
            }
        }
        lacking.map(|(policy, missing)| Error::unknown_cost(unknown, policy.name(), missing))
    }

    /// The positions of the rules that may apply to a request, written to `found` if an index is
    /// used.
    #[inline]
    pub(super) fn rules_for<'f>(&'f self, request: &Request<'_>, found: &'f mut Places) -> &'f [usize] {
        match (request.named_policy(), &self.index) {
            (Some(name), _) => self.places.get(name).map_or(&[], std::slice::from_ref),
            (None, None) => &self.unnamed,
            (None, Some(index)) => {
                index.find(request, found);
                found
            }
        }
    }
}

/// Why a request cannot be decided.
enum Obstacle<'a> {
    /// It names a policy that is not in the set.
    UnknownPolicy,
    /// It lacks an attribute of the named policy's scope.
    MissingAttribute(&'a str),
    /// It lacks an attribute that every request must have.
    MissingRequired(&'a str),
    /// It has a cost by a name that no policy counts.
    UnknownCost(Error),
    /// It has an inline quota under this policy, which counts millionths of a unit.
    OwnQuota(&'a str),
}

/// See [`PolicySet::quotas`].
pub(crate) struct Quotas<'a>(HashMap<u32, (&'a Quota, HashMap<KeyId, &'a Quota>)>);

impl Quotas<'_> {
    /// The quota of a key, if its policy is in the set.
    pub(crate) fn of(&self, policy: u32, key: KeyId) -> Option<Quota> {
        let (quota, overrides) = self.0.get(&policy)?;
        Some(**overrides.get(&key).unwrap_or(quota))
    }
}

/// See [`PolicySet::changes_since`].
pub(crate) struct Changes<'a> {
    old: Quotas<'a>,
    new: Quotas<'a>,
}

impl Changes<'_> {
    /// The former and the new quota of a policy's key, if they differ.
    pub(crate) fn of(&self, policy: u32, key: KeyId) -> Option<(Quota, Quota)> {
        let change = self.old.of(policy, key).zip(self.new.of(policy, key));
        change.filter(|(old, new)| old != new)
    }

    /// The policies with keys whose quota changed.
    pub(crate) fn policies(&self) -> Vec<ChangedPolicy> {
        let changed = self.new.0.iter().filter_map(|(number, new)| {
            let old = self.old.0.get(number).filter(|old| *old != new)?;
            let all = |(quota, overrides): &(&Quota, HashMap<KeyId, &Quota>)| -> Vec<Quota> {
                std::iter::once(**quota).chain(overrides.values().map(|quota| **quota)).collect()
            };
            Some(ChangedPolicy { number: *number, old: all(old), new: all(new) })
        });
        changed.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::{Algorithm, Match};

    fn policy(name: &str) -> Policy {
        Policy::new(name, Quota::per_minute(5)).unwrap()
    }

    fn names<'a>(set: &'a PolicySet, request: &'a Request<'a>) -> Vec<&'a str> {
        set.plan(std::slice::from_ref(request), None)
            .charges
            .iter()
            .map(crate::charge::Charge::policy_name)
            .collect()
    }

    /// A request without the attribute must not be counted under an empty key that all strangers
    /// share.
    #[test]
    fn a_policy_concerns_only_requests_with_all_of_its_scope() {
        let set = PolicySet::new([
            policy("everyone"),
            policy("per-user").with_scope(["user"]),
            policy("per-user-and-path").with_scope(["user", "path"]),
            policy("login").with_condition("path", Match::equals("/login")).with_scope(["ip"]),
        ])
        .unwrap();
        assert_eq!(names(&set, &Request::new()), ["everyone"]);
        assert_eq!(names(&set, &Request::new().with("user", "a")), ["everyone", "per-user"]);
        let full = Request::new().with("user", "a").with("path", "/login").with("ip", "1.2.3.4");
        assert_eq!(names(&set, &full), ["everyone", "per-user", "per-user-and-path", "login"]);
    }

    /// One paying customer must get her own limit and nobody else's.
    #[test]
    fn an_override_binds_one_key_only() {
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let set = PolicySet::new([
            policy("per-user").with_scope(["user"]).with_override(["alice"], Quota::per_minute(1000)),
            policy("per-ip").with_scope(["ip"]).with_override([address], Quota::per_minute(50)),
        ])
        .unwrap();
        let limits = |user: &str, ip: &str| {
            let ip: IpAddr = ip.parse().unwrap();
            let request = Request::new().with("user", user).with("ip", ip);
            set.plan(std::slice::from_ref(&request), None)
                .charges
                .iter()
                .map(|charge| charge.quota.limit())
                .collect::<Vec<_>>()
        };
        assert_eq!(limits("alice", "2001:db8::ff:2"), [1000, 50]);
        assert_eq!(limits("bob", "2001:db9::1"), [5, 5]);
    }

    /// A set that cannot mean what was written is refused whole, by name.
    #[test]
    fn a_wrong_set_is_refused_with_the_policy_named() {
        let error = |policies: Vec<Policy>| PolicySet::new(policies).unwrap_err().to_string();
        assert_eq!(
            error(vec![policy("a"), policy("a")]),
            "duplicate policy `a`: names must be unique; rename one"
        );
        assert_eq!(
            error(vec![policy("a").with_scope(["user"]).with_override(["x", "y"], Quota::per_minute(1))]),
            "policy `a`: invalid override: has 2 values, the scope has 1 attributes; give one value for each"
        );
        let other = Quota::per_minute(1).with_algorithm(Algorithm::TokenBucket);
        assert_eq!(
            error(vec![policy("a").with_scope(["user"]).with_override(["x"], other)]),
            "policy `a`: invalid override `x`: its algorithm is token-bucket, that of the policy sliding-log; use one algorithm"
        );
        let twice = policy("a").with_scope(["user"]).with_override(["x"], Quota::per_minute(1));
        assert_eq!(
            error(vec![twice.with_override(["x"], Quota::per_minute(2))]),
            "policy `a`: duplicate override `x`: must be given once; remove one"
        );
        let many: Vec<_> = (0..16_385).map(|n| policy(&format!("p{n}"))).collect();
        assert_eq!(error(many), "invalid policies (16385 of them): must be at most 16384; merge some");
    }
}
