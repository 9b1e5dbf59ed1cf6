//! The gate: many policies over a store, one verdict.

use std::slice;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::charge::{Charge, Plan};
use crate::error::Error;
use crate::policy::{Policy, PolicySet};
use crate::policy_reset::{PolicyReset, ResetCursor};
use crate::request::Request;
#[cfg(feature = "redis")]
use crate::store::fallback::FallbackStore;
use crate::store::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::store::redis::{RedisOptions, RedisStore};
use crate::store::{ManagedStore, Mode, Reply, Store, StoreDecisions, StoredPolicy, ready};
use crate::usage::KeyUse;
use crate::verb::Verb;
#[cfg(feature = "wait")]
use crate::waiting::{queue_key::QueueKey, queues::Queues};

#[cfg(feature = "wait")]
mod acquire;
mod active;
mod blocks;
mod configure;
mod decisions;
#[cfg(feature = "redis")]
mod later;
mod numbers;
#[cfg(feature = "redis")]
mod pending;
#[cfg(feature = "tower")]
pub(crate) mod plain;
mod reserve;
mod settlement;
#[cfg(feature = "snapshot")]
mod snapshot;
mod ticket_guard;

#[cfg(feature = "wait")]
pub use acquire::{AcquireReservation, GateAcquire};
use active::{ActivePolicies, check};
use blocks::Blocks;
use decisions::Answer;
pub use decisions::{Decisions, PolicyDecision};
use numbers::Numbers;
#[cfg(feature = "redis")]
pub use pending::PendingStats;
pub use reserve::{Extension, Reserved};
pub use settlement::{SettledCost, SettledKey, Settlement};
pub use ticket_guard::TicketGuard;

/// A set of policies over a store. Decides a request under all policies that apply, in one atomic
/// step.
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
/// assert_eq!(gate.peek(&login).iter().next().unwrap().remaining(), 99);
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// A request that no policy applies to is allowed. One that is [`under`](Request::under) a policy
/// that the gate does not have is denied, with an [error](Decisions::error).
///
/// The methods of a gate over a [local](crate::store::Local) store, such as [`MemoryStore`], return
/// their result. Those of a gate over a [remote](crate::store::Remote) store, such as a
/// [`SharedGate`](crate::SharedGate), return a future of it.
#[derive(Debug)]
pub struct Gate<S = MemoryStore> {
    store: S,
    policies: ActivePolicies,
    numbers: Mutex<Numbers>,
    #[cfg(feature = "wait")]
    queues: Queues<QueueKey>,
    #[cfg(feature = "redis")]
    pending: pending::PendingSettlements,
}

/// A gate over Redis, Redis Cluster or a master that Sentinels name, and over other servers that
/// speak its protocol: limits that many instances share.
///
/// It always answers within its deadline, and needs no Redis to be created. While Redis does not
/// reply, each policy decides by its [fallback](crate::Policy::on_store_error), and every decision
/// says [who made it](crate::Decision::source). Works within a tokio runtime. In a cluster, a call
/// whose keys are in several slots takes one step for each slot and verb, and what a later denial
/// would have prevented is refunded.
///
/// ```no_run
/// use slidegate::{Policy, PolicySet, Quota, RedisOptions, Request, SharedGate};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), slidegate::Error> {
/// let policies = PolicySet::new([Policy::new("per-user", Quota::per_minute(100))?.scope(["user"])])?;
/// let gate = SharedGate::redis(policies, RedisOptions::new("redis://127.0.0.1:6379")?)?;
/// let request = Request::new().with("user", "alice");
/// if gate.check(&request).await.is_denied() { /* 429 */ }
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "redis")]
pub type SharedGate = Gate<FallbackStore<RedisStore>>;

/// About so many keys are examined in one step of [`Gate::reset_policy`].
const KEYS_PER_STEP: u64 = 1000;

impl Gate {
    /// A gate with a store of its own, which holds up to [`MemoryStore::DEFAULT_MAX_KEYS`] keys.
    #[must_use]
    pub fn new(policies: PolicySet) -> Self {
        Self::from_parts(policies, MemoryStore::new())
    }

    /// A gate over a memory store with another clock or number of keys.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota};
    ///
    /// let policies = PolicySet::new([Policy::new("per-user", Quota::per_minute(100))?.scope(["user"])])?;
    /// let gate = Gate::with_memory(policies, MemoryStore::builder().max_keys(10_000).build());
    /// assert_eq!(gate.store().stats().max_keys, 10_000);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_memory(policies: PolicySet, memory: MemoryStore) -> Self {
        Self::from_parts(policies, memory)
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
}

#[cfg(feature = "redis")]
impl SharedGate {
    /// A gate over Redis of one instance among an unknown number, with a memory store of its own as
    /// the fallback. For other settings, see [`FallbackStore`] and [`Gate::with_store`].
    ///
    /// # Errors
    /// If no connection can be made with these options, or a limit is 2^53 or more, which scripts
    /// cannot count.
    pub fn redis(policies: PolicySet, options: RedisOptions) -> Result<Self, Error> {
        Self::with_store(policies, FallbackStore::new(RedisStore::new(options)?))
    }
}

impl<S: Store> Gate<S> {
    /// A gate over any store, see [`store`](crate::store).
    ///
    /// # Errors
    /// If a limit is too large for the store. A [`MemoryStore`] takes any limit.
    pub fn with_store(policies: PolicySet, store: S) -> Result<Self, Error> {
        check(&policies, &store)?;
        Ok(Self::from_parts(policies, store))
    }

    fn from_parts(mut policies: PolicySet, store: S) -> Self {
        let mut numbers = Numbers::default();
        numbers.number(&mut policies);
        Self {
            store,
            policies: ActivePolicies::new(policies),
            numbers: Mutex::new(numbers),
            #[cfg(feature = "wait")]
            queues: Queues::default(),
            #[cfg(feature = "redis")]
            pending: pending::PendingSettlements::default(),
        }
    }

    /// The store, for everything but decisions: its statistics, its connections.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides a request and charges its cost under every policy that applies, or under none if an
    /// enforced one denies.
    ///
    /// A shadow policy that would deny says so in its decision, charges nothing to itself, and does
    /// not deny.
    pub fn check<'r>(
        &self,
        request: &'r Request<'r>,
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(Some(Verb::Check), slice::from_ref(request))
    }

    /// A check with an idempotency key: a repeated check with the same `id`, within the longest
    /// window of its policies, gets the first decisions again and is not charged. With other keys
    /// or another cost it is another check, whatever its id. So a client can repeat a request when
    /// it does not know whether the first one was counted, and a lost connection to a shared store
    /// is repeated.
    ///
    /// A denial is decided anew, because it has charged nothing. A [`MemoryStore`] keeps the last
    /// 65,536 checks; an earlier one is charged again. In a Redis cluster the request's keys must
    /// be in one slot, as [`RedisOptions::hash_tag`](crate::RedisOptions::hash_tag) ensures;
    /// otherwise this is a [`check`](Self::check).
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(5))?.scope(["user"])])?);
    /// let request = Request::new().with("user", "alice");
    /// for _attempt in 0..3 {
    ///     assert_eq!(gate.check_once(&request, "order-1001").strictest().unwrap().remaining(), 4);
    /// }
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn check_once<'r>(
        &self,
        request: &'r Request<'r>,
        id: &str,
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        let check = async move || {
            let mut decisions = self.begin(Some(Verb::Check), slice::from_ref(request));
            self.fill(&mut decisions, Some(id), |_| ()).await;
            decisions
        };
        S::Mode::reply(|| ready(check()), check)
    }

    /// What [`check`](Self::check) would decide, without charging.
    pub fn peek<'r>(&self, request: &'r Request<'r>) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(Some(Verb::Peek), slice::from_ref(request))
    }

    /// Refunds the request's cost under every policy that applies: at most what was charged there
    /// and still counts.
    pub fn refund<'r>(
        &self,
        request: &'r Request<'r>,
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(Some(Verb::Refund), slice::from_ref(request))
    }

    /// Charges the request's cost under every policy that applies, although it may exceed their
    /// limits. A key counts [`Quota::max_used`](crate::Quota::max_used) at most; each decision's
    /// `cost` says how much was charged.
    pub fn penalize<'r>(
        &self,
        request: &'r Request<'r>,
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(Some(Verb::Penalize), slice::from_ref(request))
    }

    /// Carries out several requests, each with its own [verb](Request::verb), [role](Request::role)
    /// and cost, in one atomic step.
    ///
    /// If an enforced policy denies one check or peek, the call is denied and no check is charged
    /// on any policy. Penalties and refunds are never denied, and always carried out.
    /// [`Role`](crate::Role) lists the requests that take part in another way.
    ///
    /// All is decided on the usage before the call. Then checks are charged, then penalties, and
    /// refunds come last. Where two checks or two peeks meet on one key, their costs are asked
    /// together and both get that answer. Takes time in the square of the charges, as each is
    /// compared with those before: meant for a few dozen.
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
    /// assert_eq!(gate.peek(&requests[0]).strictest().unwrap().used(), 0);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn apply<'r>(
        &self,
        requests: &'r [Request<'r>],
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(None, requests)
    }

    /// Does the same to several requests in one atomic step, whatever their own verbs are: see
    /// [`apply`](Self::apply).
    pub fn apply_all<'r>(
        &self,
        verb: Verb,
        requests: &'r [Request<'r>],
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        self.run(Some(verb), requests)
    }

    /// Does what [`apply`](Self::apply) or, with a verb, [`apply_all`](Self::apply_all) does, if
    /// the store [decides at once](Store::is_immediate). Otherwise does nothing and returns `None`.
    #[inline]
    pub fn try_apply<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Option<Decisions<'r>> {
        self.store.is_immediate().then(|| self.run_now(verb, requests))
    }

    #[inline]
    fn run<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
    ) -> Reply<S, impl Future<Output = Decisions<'r>> + Send> {
        S::Mode::reply(|| self.run_now(verb, requests), || self.run_later(verb, requests))
    }

    pub(crate) async fn run_later<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
    ) -> Decisions<'r> {
        let mut decisions = self.begin(verb, requests);
        self.fill(&mut decisions, None, |_| ()).await;
        #[cfg(feature = "wait")]
        self.wake_refunded(&decisions);
        decisions
    }

    /// Checks requests that ask again until they are allowed.
    #[cfg(feature = "wait")]
    pub(crate) async fn run_waiting<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        let mut decisions = self.begin(Some(Verb::Check), requests);
        self.fill(&mut decisions, None, |plan| {
            plan.set_waiting();
        })
        .await;
        decisions
    }

    /// Only of an [immediate](Store::is_immediate) store.
    pub(crate) fn run_now<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        // Created where it is returned, because moving it takes as long as a decision.
        let mut decisions = self.begin(verb, requests);
        if let [request] = requests
            && let Some(charge) = decisions.policies.single_charge(request, verb, None)
            && charge.block.is_none()
        {
            let decision = self.store.apply_single(&charge);
            decisions.answers.push(Answer::of(&charge, decision));
        } else {
            self.fill_now(&mut decisions);
        }
        #[cfg(feature = "wait")]
        self.wake_refunded(&decisions);
        decisions
    }

    #[inline(never)] // so that the usual call with one charge has a small stack frame
    fn fill_now(&self, decisions: &mut Decisions<'_>) {
        ready(self.fill(decisions, None, |_| ()));
    }

    #[inline]
    fn begin<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        Decisions {
            policies: self.policies.used(),
            requests,
            verb,
            answers: SmallVec::new(),
            #[cfg(feature = "redis")]
            failure: None,
        }
    }

    async fn fill(
        &self,
        decisions: &mut Decisions<'_>,
        id: Option<&str>,
        prepare: impl FnOnce(&mut Plan<'_>),
    ) {
        let mut plan = decisions.policies.plan(decisions.requests, decisions.verb);
        prepare(&mut plan);
        let decided = self.decide(&plan.charges, id).await;
        let answers = plan.answers(decided.decisions);
        drop(plan);
        decisions.answers = answers;
        #[cfg(feature = "redis")]
        {
            decisions.failure = decided.failure;
        }
    }

    /// Decides charges, of which some may be on blocked keys.
    async fn decide(&self, charges: &[Charge<'_>], id: Option<&str>) -> StoreDecisions {
        let blocks = Blocks::of(charges, || self.store.wall_time());
        let left = blocks.as_ref().map(|blocks| blocks.without_blocked(charges));
        let asked = left.as_deref().unwrap_or(charges);
        let has_check = |charges: &[Charge<'_>]| charges.iter().any(|one| one.part.verb == Verb::Check);
        let is_peek = |charge: &Charge<'_>| charge.part.verb == Verb::Peek;
        let mut decided = if blocks.is_some() && has_check(charges) && asked.iter().all(is_peek) {
            self.store.peek_blocked(asked).await
        } else if let Some(id) = id.filter(|_| has_check(asked)) {
            self.store.check_once(asked, id).await
        } else {
            self.store.apply(asked).await
        };
        if let Some(blocks) = blocks {
            decided.decisions = blocks.apply(charges, decided.decisions);
        }
        decided
    }

    /// Removes the request's keys under every policy that applies. Returns whether one of them had
    /// usage.
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it: nothing is
    /// removed. If a shared store did not reply in time: the keys may or may not be removed.
    pub fn reset(&self, request: &Request<'_>) -> Reply<S, impl Future<Output = Result<bool, Error>> + Send> {
        let reset = async move || {
            let policies = self.policies.load();
            let plan = policies.plan_of_one(request)?;
            let reset = self.store.reset(&plan.charges).await;
            #[cfg(feature = "wait")]
            self.wake_charged(&plan);
            reset
        };
        S::Mode::reply(|| ready(reset()), reset)
    }
}

impl<S: ManagedStore> Gate<S> {
    /// Removes every key of a policy. Returns how many there were. Goes through all keys of the
    /// store while decisions go on; keys that are created meanwhile may stay. Cached denials end in
    /// every instance.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(1))?.scope(["user"])])?);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// assert!(gate.check(&Request::new().with("user", "bob")).is_allowed());
    /// assert_eq!(gate.reset_policy("per-user")?, 2);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a shared store did not reply in time, or its user may not scan; some keys may be removed.
    pub fn reset_policy(&self, policy: &str) -> Reply<S, impl Future<Output = Result<u64, Error>> + Send> {
        let reset = async move || {
            let mut next = None;
            loop {
                let reset = self.reset_step(policy, next.as_ref(), KEYS_PER_STEP).await?;
                match reset.next {
                    Some(cursor) => next = Some(cursor),
                    None => return Ok(reset.forgotten),
                }
            }
        };
        S::Mode::reply(|| ready(reset()), reset)
    }

    /// One step of [`reset_policy`](Self::reset_policy), which examines about `keys` keys: whole
    /// shards of about 1024 in memory, keys of one node in Redis and then of this process's memory.
    /// Begins without a cursor, and continues with that of the step before, which any instance on a
    /// shared store can do. If its nodes change meanwhile, the scan begins again.
    ///
    /// # Errors
    /// If the cursor belongs to another store, or a shared store did not reply in time, or its user
    /// may not scan. Some keys may be removed, and the step can be repeated.
    pub fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Reply<S, impl Future<Output = Result<PolicyReset, Error>> + Send> {
        S::Mode::reply(|| ready(self.reset_step(policy, from, keys)), || self.reset_step(policy, from, keys))
    }

    async fn reset_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let policy = StoredPolicy { name: policy, numbers: &numbers };
        let reset = self.store.reset_policy_step(&policy, from, keys).await;
        #[cfg(feature = "wait")]
        self.queues.wake_where(|queue| numbers.contains(&queue.policy));
        reset
    }

    /// The usage of the request's keys under every policy that applies, charge by charge, and when
    /// it is freed. Changes nothing. Takes time and memory in proportion to the charges that count;
    /// a shared store reads each key once.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(3))?.scope(["user"])])?);
    /// let alice = Request::new().with("user", "alice");
    /// gate.check(&alice);
    /// gate.check(&alice);
    /// let found = &gate.inspect(&alice)?[0];
    /// assert_eq!((found.decision.used(), found.charges.len(), found.forecast.len()), (2, 2, 2));
    /// assert_eq!(found.forecast[1].used, 0);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it, or a shared
    /// store did not reply or holds a value that slidegate did not write.
    pub fn inspect(
        &self,
        request: &Request<'_>,
    ) -> Reply<S, impl Future<Output = Result<Vec<KeyUse>, Error>> + Send> {
        let inspect = async move || {
            let policies = self.policies.load_full();
            let plan = policies.plan_of_one(request)?;
            let mut found = self.store.inspect(&plan.charges).await?;
            plan.lay_blocks_over(&mut found, self.store.wall_time());
            Ok(plan.uses(found, |at| policies.policy(at).name()))
        };
        S::Mode::reply(|| ready(inspect()), inspect)
    }
}
