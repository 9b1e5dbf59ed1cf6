//! Random calls of several requests, each with its own verb and role. The tests of the Redis store
//! ask them too.

use proptest::prelude::*;
use slidegate::verb::{Role, Verb};
use slidegate::{Excess, Policy, PolicySet, Quota, Request};

/// Policies by position: name, excess, shadow, and whether requests have to name it.
pub(crate) const POLICIES: [(&str, Excess, bool, bool); 6] = [
    ("plain", Excess::Refuse, false, true),
    ("overdraft", Excess::Charge, false, true),
    ("counted", Excess::Count, false, true),
    ("shadow", Excess::Refuse, true, true),
    ("first", Excess::Refuse, false, false),
    ("second", Excess::Refuse, false, false),
];
pub(crate) const KEYS: [&str; 2] = ["a", "b"];
pub(crate) const REFUSED_KEYS: [&str; 2] = ["a refused", "b refused"];

/// One request of a call.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The policy that it names; without one, the last two apply.
    pub(crate) policy: Option<usize>,
    pub(crate) key: usize,
    pub(crate) verb: Verb,
    pub(crate) role: Role,
    pub(crate) cost: u64,
    pub(crate) over_limit: bool,
    /// The cost to count under a second key if it is refused.
    pub(crate) refusals: Option<u64>,
}

/// A call of so many requests.
pub(crate) fn call(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Asked>> {
    let verb = prop_oneof![
        5 => Just(Verb::Check),
        2 => Just(Verb::Peek),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Penalize),
    ];
    let role = prop_oneof![Just(Role::Deciding), Just(Role::Together)];
    let policy = proptest::option::weighted(0.8, 0usize..4);
    let refusals = proptest::option::weighted(0.3, 0u64..4);
    let asked = (policy, 0usize..2, verb, role, 0u64..4, any::<bool>(), refusals).prop_map(
        |(policy, key, verb, role, cost, over_limit, refusals)| Asked {
            policy,
            key,
            verb,
            role,
            cost,
            over_limit,
            refusals,
        },
    );
    proptest::collection::vec(asked, length)
}

/// [`KEYS`] and [`REFUSED_KEYS`], all of which begin with this.
pub(crate) fn keys(prefix: &str) -> [[String; 2]; 2] {
    [KEYS, REFUSED_KEYS].map(|keys| keys.map(|key| format!("{prefix}{key}")))
}

/// The requests of a call, refusals after the requests that they belong to.
pub(crate) fn requests<'r>(call: &[Asked], keys: &'r [[String; 2]; 2]) -> Vec<Request<'r>> {
    let request = |asked: &Asked, keys: &'r [String; 2]| {
        let request = Request::new().with("key", &keys[asked.key]).with_verb(asked.verb);
        asked.policy.iter().fold(request, |request, policy| request.under(POLICIES[*policy].0))
    };
    let both = |asked: &Asked| {
        let own = request(asked, &keys[0]).with_role(asked.role).with_cost(asked.cost);
        let own = if asked.over_limit { own.deny_over_limit() } else { own };
        let refused = |cost| request(asked, &keys[1]).with_role(Role::Refusals).with_cost(cost);
        [Some(own), asked.refusals.map(refused)].into_iter().flatten()
    };
    call.iter().flat_map(both).collect()
}

/// The limit of a policy, where that of the first is this.
pub(crate) fn limit_of(limit: u64, policy: usize) -> u64 {
    limit + policy as u64 % 3
}

/// The policies, with quotas by their position and limit.
pub(crate) fn policies(limit: u64, quota: impl Fn(usize, u64) -> Quota) -> PolicySet {
    let policies = POLICIES.iter().enumerate().map(|(at, (name, excess, is_shadow, is_named))| {
        let policy = Policy::new(*name, quota(at, limit_of(limit, at))).unwrap();
        let policy = policy.with_scope(["key"]).with_excess(*excess).with_enforced(!is_shadow);
        if *is_named { policy.with_only_when_named() } else { policy }
    });
    PolicySet::new(policies).unwrap()
}
