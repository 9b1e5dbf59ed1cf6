//! The gate: many policies, one verdict.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::block::Blocks;
use crate::charge::Charges;
use crate::decision::Decision;
use crate::error::Error;
use crate::once::Once;
use crate::policy::{Policy, PolicySet};
use crate::policy_reset::{Done, Place, PolicyReset, ResetCursor};
use crate::request::Request;
use crate::store::memory::{MemoryStats, MemoryStore};
use crate::usage::KeyUse;
use crate::verb::Verb;

mod decisions;

use decisions::Answer;
pub use decisions::{Decisions, PolicyDecision};

/// A set of policies over one store. Decides a request under all that apply, in one atomic step.
///
/// ```
/// use slidegate::{Gate, Match, Policy, PolicySet, Quota, Request};
///
/// let gate = Gate::new(PolicySet::new([
///     Policy::new("per-user", Quota::per_minute(100))?.scope(["user"]),
///     Policy::new("login", Quota::per_minute(1))?.when("path", Match::equals("/login")).scope(["user"]),
/// ])?);
///
/// let login = Request::new().with("user", "alice").with("path", "/login");
/// assert!(gate.check(&login).is_allowed());
/// let again = gate.check(&login);
/// assert!(again.is_denied());
/// let strictest = again.strictest().unwrap();
/// assert_eq!((strictest.policy().name(), strictest.key().to_string()), ("login", "alice".into()));
/// // The denied request was charged nowhere.
/// assert_eq!(gate.peek(&login).iter().next().unwrap().remaining, 99);
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// A request that no policy applies to is allowed. One that is [`under`](Request::under) a policy which the gate does not
/// have is denied, with an [error](Decisions::error).
#[derive(Debug)]
pub struct Gate {
    store: MemoryStore,
    policies: ArcSwap<PolicySet>,
    numbers: Mutex<Numbers>,
    pub(crate) once: Once,
}

/// What a policy's usage is stored under. A number is given once and never to another policy.
#[derive(Debug, Default)]
pub(crate) struct Numbers(HashMap<(String, Vec<String>), u32>);

impl Numbers {
    /// Usage goes by the policy's name; another scope has other keys, so it starts afresh.
    pub(crate) fn number(&mut self, policies: &mut PolicySet) {
        policies.number(|policy| {
            let next = u32::try_from(self.0.len()).expect("names of policies are fewer than 2^32");
            assert!(next < 1 << 24, "a store tells 2^24 policies apart");
            let known = (policy.name().to_owned(), policy.scope_attributes().to_vec());
            *self.0.entry(known).or_insert(next)
        });
    }

    /// Every number that a policy of this name ever had: its usage under other scopes is stored as well.
    pub(crate) fn of(&self, policy: &str) -> Vec<u32> {
        self.0.iter().filter(|((name, _), _)| name == policy).map(|(_, number)| *number).collect()
    }
}

impl Gate {
    /// A gate with a store of its own, which holds up to [`MemoryStore::DEFAULT_MAX_KEYS`] keys.
    #[must_use]
    pub fn new(policies: PolicySet) -> Self {
        Self::with_store(policies, MemoryStore::new())
    }

    /// A gate with one policy, and a store of its own.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, Quota, Request};
    ///
    /// let gate = Gate::single(Policy::new("per-user", Quota::per_minute(1))?.scope(["user"]))?;
    /// let alice = Request::new().with("user", "alice");
    /// assert!(gate.check(&alice).is_allowed());
    /// assert!(gate.check(&alice).is_denied());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`PolicySet::new`]: an override or block does not fit the policy.
    pub fn single(policy: Policy) -> Result<Self, Error> {
        PolicySet::new([policy]).map(Self::new)
    }

    /// A gate on a store that was made with a clock or a number of keys of choice.
    #[must_use]
    pub fn with_store(mut policies: PolicySet, store: MemoryStore) -> Self {
        let mut numbers = Numbers::default();
        numbers.number(&mut policies);
        Self {
            store,
            policies: ArcSwap::from_pointee(policies),
            numbers: Mutex::new(numbers),
            once: Once::default(),
        }
    }

    /// Decides a request and charges its cost under every policy that applies, or under none if an enforced one denies.
    ///
    /// A shadow policy that would deny says so in its decision, charges nothing to itself, and does not deny.
    pub fn check<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Check), std::slice::from_ref(request))
    }

    /// A check that is charged once however often it is asked with the same `id` within the longest window of its
    /// policies: asked again it gives the first answer again. A request of other keys or another cost is another one,
    /// whatever its id.
    ///
    /// A denial is not kept, as it has charged nothing: the same id asked again is decided anew. Of the last 65,536
    /// answers each is kept for its window; a check that comes again later is charged again.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(5))?.scope(["user"])])?);
    /// let request = Request::new().with("user", "alice");
    /// for _attempt in 0..3 {
    ///     assert_eq!(gate.check_once(&request, "order-1001").strictest().unwrap().remaining, 4);
    /// }
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        let policies = self.policies.load();
        let requests = std::slice::from_ref(request);
        let plan = policies.plan(requests, Some(Verb::Check));
        let decided = self.decided(&plan.charges, |charges| self.once.check(&self.store, charges, id));
        let answers = plan.answers(decided);
        drop(plan);
        Decisions {
            policies,
            requests,
            verb: Some(Verb::Check),
            answers,
            #[cfg(feature = "redis")]
            failure: None,
        }
    }

    /// What [`check`](Self::check) would say, without charging.
    pub fn peek<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Peek), std::slice::from_ref(request))
    }

    /// Gives back the request's cost under every policy that applies, at most what was charged there and still counts.
    pub fn refund<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Refund), std::slice::from_ref(request))
    }

    /// Charges the request's cost under every policy that applies, although it may exceed their limits. A key counts
    /// [`Quota::max_used`](crate::Quota::max_used) at most; each decision's `cost` says how much was charged.
    pub fn penalize<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Penalize), std::slice::from_ref(request))
    }

    /// Carries out several requests, each with its own [verb](Request::verb), [role](Request::role) and
    /// cost, in one atomic step.
    ///
    /// If an enforced policy denies one check or peek, the call is denied and no check is charged on any
    /// policy. Penalties and refunds are never denied, and always carried out. [`Role`](crate::Role)
    /// lists the requests that take part in another way.
    ///
    /// All is decided on the usage before the call. Then checks are charged, then penalties, and refunds
    /// come last. Where two checks or two peeks meet on one key, their costs are asked together and both
    /// get that answer. Takes time in the square of the charges, as each is compared with those before:
    /// meant for a few dozen.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, Role, Verb};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("calls", Quota::per_minute(100))?.scope(["user"]),
    ///     Policy::new("tokens", Quota::per_minute(5000))?.scope(["user", "model"]),
    /// ])?);
    /// let requests = [
    ///     Request::new().with("user", "alice").under("calls"),
    ///     Request::new().with("user", "alice").with("model", "small").under("tokens").cost(6000),
    ///     Request::new().with("user", "bob").under("calls").verb(Verb::Refund).role(Role::IfAllowed),
    /// ];
    /// let decisions = gate.apply(&requests);
    /// assert!(decisions.is_denied());
    /// let denied = decisions.strictest().unwrap();
    /// assert_eq!((denied.request(), denied.policy().name()), (1, "tokens"));
    /// assert_eq!(gate.peek(&requests[0]).strictest().unwrap().used, 0);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn apply<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.run(None, requests)
    }

    /// Does the same to several requests in one atomic step, whatever their own verbs are: see
    /// [`apply`](Self::apply).
    pub fn apply_all<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.run(Some(verb), requests)
    }

    fn run<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        // Made where it is returned and filled there, as moving it takes as long as a decision.
        let mut decisions = Decisions {
            policies: self.policies.load(),
            requests,
            verb,
            answers: SmallVec::new(),
            #[cfg(feature = "redis")]
            failure: None,
        };
        if let [request] = requests
            && let Some(charge) = decisions.policies.single_charge(request, verb)
            && charge.block.is_none()
        {
            let decision = self.store.apply_single(&charge);
            decisions.answers.push(Answer::of(&charge, decision));
        } else {
            let plan = decisions.policies.plan(requests, verb);
            let decided = self.decided(&plan.charges, |charges| self.store.apply(charges));
            decisions.answers = plan.answers(decided);
        }
        decisions
    }

    /// Decisions on charges, of which some may be on blocked keys. `apply` decides what blocks leave.
    fn decided(
        &self,
        charges: &Charges<'_>,
        apply: impl FnOnce(&Charges<'_>) -> SmallVec<[Decision; 4]>,
    ) -> SmallVec<[Decision; 4]> {
        match Blocks::of(charges, || self.store.wall_time()) {
            None => apply(charges),
            Some(blocks) => {
                let decisions = apply(&blocks.left(charges));
                blocks.lay_over(charges, decisions)
            }
        }
    }

    /// Forgets the request's keys under every policy that applies; says whether anything counted on one of them.
    ///
    /// # Errors
    /// The request is [`under`](Request::under) a policy that cannot decide it; nothing is forgotten.
    pub fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let policies = self.policies.load();
        let plan = policies.plan_of_one(request)?;
        Ok(self.store.reset(&plan.charges))
    }

    /// Forgets every key of a policy; returns how many there were. Goes through all keys of the store while decisions go on:
    /// keys that come meanwhile may stay.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(1))?.scope(["user"])])?);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// assert!(gate.check(&Request::new().with("user", "bob")).is_allowed());
    /// assert_eq!(gate.reset_policy("per-user"), 2);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn reset_policy(&self, policy: &str) -> u64 {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        self.store.forget_policies(&numbers, 0, u64::MAX).0.forgotten
    }

    /// One step of [`reset_policy`](Self::reset_policy), which looks at about `keys` keys: at whole shards of about 1024.
    /// Begins without a cursor, and goes on with that of the step before.
    ///
    /// # Errors
    /// The cursor is that of a shared store.
    pub fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let (shard, mut done) = match from.map(|from| (from.place, from.done)) {
            None => (0, Done { keys: Some(self.stats().keys as u64), ..Done::default() }),
            Some((Place::Memory { shard }, done)) => (shard, done),
            Some((Place::Node { .. }, _)) => {
                return Err(Error::policy(
                    "the cursor is that of a shared store, and this one is in memory; give none to begin",
                ));
            }
        };
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let (forgot, next) = self.store.forget_policies(&numbers, shard, keys);
        done.forgotten = done.forgotten.saturating_add(forgot.forgotten);
        done.scanned = done.scanned.saturating_add(forgot.scanned);
        Ok(PolicyReset::after(done, next.map(|shard| Place::Memory { shard })))
    }

    /// What the request's keys have used under every policy that applies, charge by charge, and when that is free again.
    /// Changes nothing, and takes time and memory in proportion to the charges that count.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(3))?.scope(["user"])])?);
    /// let alice = Request::new().with("user", "alice");
    /// gate.check(&alice);
    /// gate.check(&alice);
    /// let found = &gate.inspect(&alice)?[0];
    /// assert_eq!((found.decision.used, found.charges.len(), found.forecast.len()), (2, 2, 2));
    /// assert_eq!(found.forecast[1].used, 0);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// The request is [`under`](Request::under) a policy that cannot decide it.
    pub fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        let policies = self.policies.load();
        let plan = policies.plan_of_one(request)?;
        let mut found = self.store.inspect(&plan.charges);
        plan.lay_blocks_over(&mut found, self.store.wall_time());
        Ok(plan.uses(found, |at| policies.policy(at).name()))
    }

    /// Puts another set of policies in force at once. A request is decided under the old set or the new one, never
    /// under parts of both. Usage is kept by policy name: it counts by the old quota until now and by the new one from
    /// now on. It starts afresh where the scope or the algorithm changes.
    ///
    /// Takes time proportional to the number of keys, while decisions go on.
    pub fn configure(&self, mut policies: PolicySet) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.number(&mut policies);
        let new = Arc::new(policies);
        let old = self.policies.swap(Arc::clone(&new));
        let changes = new.changes_since(&old, self.store.secret());
        self.store.requote(&|policy, key| changes.of(policy, key));
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    /// How full the store is.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        self.store.stats()
    }

    /// Removes expired keys; see [`MemoryStore::sweep`].
    pub fn sweep(&self, slots: usize) -> usize {
        self.store.sweep(slots)
    }
}
