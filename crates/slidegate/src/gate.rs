//! The gate: many policies over a store, one verdict.

use std::slice;
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::charge::{Charge, Plan};
use crate::error::Error;
use crate::policy::PolicySet;
use crate::policy_reset::{PolicyKeys, PolicyReset, ResetCursor};
use crate::request::Request;
use crate::store::memory::{MemoryStore, snapshot::InMemory};
use crate::store::{LocalStore, Store, StoreDecisions, StoredPolicy, at_once};
use crate::usage::KeyUse;
use crate::verb::Verb;
use crate::waiting::{queue_key::QueueKey, queues::WaitQueues};

mod acquire;
mod blocks;
mod change;
pub(crate) mod configure;
mod decisions;
pub(crate) mod denial;
mod later;
mod numbers;
mod pending;
mod reserve;
mod settlement;
mod shared;
mod snapshot;
mod ticket_guard;

pub use acquire::{AcquireReservation, Ask, GateAcquire, NoTurn, Patience};
use blocks::Blocks;
pub use decisions::{Decisions, PolicyDecision};
use numbers::Numbers;
pub use pending::PendingStats;
pub use reserve::{Extension, Reserved};
pub use settlement::{SettledCost, SettledKey, Settlement};
pub use shared::SharedGate;
pub use ticket_guard::TicketGuard;

/// A set of policies over a store. Decides a request under all policies that apply, in one atomic
/// step.
///
/// ```
/// use slidegate::{Gate, Match, Policy, PolicySet, Quota, Request};
///
/// let gate = Gate::new(PolicySet::new([
///     Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"]),
///     Policy::new("login", Quota::per_minute(1))?.with_condition("path", Match::equals("/login")).with_scope(["user"]),
/// ])?);
///
/// let login = Request::new().with("user", "alice").with("path", "/login");
/// assert!(gate.check(&login).is_allowed());
/// let again = gate.check(&login);
/// assert!(again.is_denied());
/// let strictest = again.strictest().unwrap();
/// assert_eq!((strictest.policy().name(), strictest.key().to_string()), ("login", "alice".into()));
/// // The denied request was charged nowhere.
/// assert_eq!(gate.peek(&login).iter().next().unwrap().decision().remaining(), 99);
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// A request that no policy applies to is allowed. A request [`under`](Request::under) a policy
/// that the gate lacks is denied, with an [error](Decisions::error).
///
/// A gate over a [local](crate::store::LocalStore) store, such as [`MemoryStore`], decides at once.
/// A [`SharedGate`] has the same methods over any store; they return futures.
#[derive(Debug)]
pub struct Gate<S = MemoryStore> {
    store: S,
    policies: ArcSwap<PolicySet>,
    numbers: Mutex<Numbers>,
    queues: WaitQueues<QueueKey>,
    pending: pending::PendingSettlements,
}

/// [`Gate::reset_policy`] examines about this many keys per step.
const KEYS_PER_STEP: u64 = 1000;

impl Gate {
    /// A gate with its own store, which holds up to [`MemoryStore::DEFAULT_MAX_KEYS`] keys.
    #[must_use]
    pub fn new(policies: PolicySet) -> Self {
        Self::from_parts(policies, MemoryStore::new())
    }

    /// A gate over a memory store with another clock or number of keys.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota};
    ///
    /// let policies = PolicySet::new([Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"])])?;
    /// let gate = Gate::with_memory(policies, MemoryStore::builder().max_keys(10_000).build());
    /// assert_eq!(gate.store().stats().max_keys, 10_000);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_memory(policies: PolicySet, memory: MemoryStore) -> Self {
        Self::from_parts(policies, memory)
    }
}

impl<S: Store> Gate<S> {
    fn from_parts(mut policies: PolicySet, store: S) -> Self {
        let mut numbers = Numbers::default();
        numbers.number(&mut policies);
        Self {
            store,
            policies: ArcSwap::from_pointee(policies),
            numbers: Mutex::new(numbers),
            queues: WaitQueues::default(),
            pending: pending::PendingSettlements::default(),
        }
    }

    /// The store, for its statistics and connections.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The path of every unreserved request over a store that decides at once: plan, decide,
    /// answer. [`decide_async`](Self::decide_async) does the same over any store; used here, its
    /// future would take a third longer.
    #[doc(hidden)]
    pub fn decide_now<'r>(
        &self,
        store: &(impl LocalStore + ?Sized),
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
    ) -> Decisions<'r> {
        let mut decisions = Decisions::new(self.policies.load(), requests, verb);
        let mut plan = Plan::new(false);
        decisions.policies.plan_into(&mut plan, requests, verb);
        let mut decided = StoreDecisions::default();
        decide_now(store, &plan.charges, id, &mut decided);
        plan.place(&decided.decisions, &mut decisions.placed);
        decisions.failure = decided.failure;
        drop(plan);
        self.wake_refunded(&decisions);
        decisions
    }

    /// Decides requests over any store. `is_waiting` requests ask again until they are allowed.
    #[doc(hidden)]
    pub async fn decide_async<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
        is_waiting: bool,
    ) -> Decisions<'r> {
        if let Some(local) = self.store.as_local() {
            return self.decide_now(local, verb, requests, id);
        }
        let mut decisions = Decisions::new(self.policies.load(), requests, verb);
        let mut plan = decisions.policies.plan(requests, verb);
        if is_waiting {
            plan.set_waiting();
        }
        let StoreDecisions { decisions: decided, failure } = self.decide_charges(&plan.charges, id).await;
        decisions.failure = failure;
        plan.place(&decided, &mut decisions.placed);
        drop(plan);
        self.wake_refunded(&decisions);
        decisions
    }

    pub(super) async fn reset_keys(&self, request: &Request<'_>) -> Result<bool, Error> {
        let policies = self.policies.load();
        let plan = policies.plan_of_one(request)?;
        let reset = self.store.reset(&plan.charges).await;
        self.wake_charged(&plan);
        reset
    }

    pub(super) async fn reset_policy_whole(&self, policy: &str) -> Result<u64, Error> {
        let mut next = None;
        loop {
            let reset = self.reset_policy_keys(policy, next.as_ref(), KEYS_PER_STEP).await?;
            match reset.next {
                Some(cursor) => next = Some(cursor),
                None => return Ok(reset.forgotten),
            }
        }
    }

    pub(super) async fn reset_policy_keys(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let policy = StoredPolicy { name: policy, numbers: &numbers };
        let reset = self.store.reset_policy_step(&policy, from, keys).await;
        self.queues.wake_where(|queue| numbers.contains(&queue.policy));
        reset
    }

    pub(super) async fn inspect_keys(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        let policies = self.policies.load_full();
        let plan = policies.plan_of_one(request)?;
        let mut found = self.store.inspect(&plan.charges).await?;
        plan.lay_blocks_over(&mut found, self.store.wall_time());
        Ok(plan.uses(found))
    }

    /// Decides charges, some of which may be on blocked keys.
    async fn decide_charges(&self, charges: &[Charge<'_>], id: Option<&str>) -> StoreDecisions {
        if let Some(local) = self.store.as_local() {
            let mut decided = StoreDecisions::default();
            decide_now(local, charges, id, &mut decided);
            return decided;
        }
        let Some(blocks) = Blocks::of(charges, || self.store.wall_time()) else {
            return self.ask_store(charges, id).await;
        };
        let left = blocks.without_blocked(charges);
        let mut decided = if has_check(charges) && left.iter().all(|one| one.part.verb == Verb::Peek) {
            self.store.peek_blocked(&left).await
        } else {
            self.ask_store(&left, id).await
        };
        blocks.apply(charges, &mut decided.decisions);
        decided
    }

    /// Decides charges on keys that are not blocked.
    async fn ask_store(&self, charges: &[Charge<'_>], id: Option<&str>) -> StoreDecisions {
        let mut decided = StoreDecisions::default();
        match id.filter(|_| has_check(charges)) {
            Some(id) => self.store.check_once(charges, id).await,
            None if self.store.apply_now(charges, &mut decided) => decided,
            None => self.store.apply(charges).await,
        }
    }
}

impl<S: Store + InMemory> Gate<S> {
    /// One step of listing the keys of a policy that are in this process's memory, expired ones included: those in
    /// whole shards of about 1024 keys, until about `keys` were examined. Start without a cursor, then pass
    /// the one from the step before. Changes nothing, and locks one shard at a time.
    ///
    /// Named are keys of one attribute, if they are addresses or have at most 15 bytes: of the others, the
    /// store has a hash.
    ///
    /// # Errors
    /// If the cursor belongs to another store.
    pub fn list_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyKeys, Error> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let (memory, mut list) = (self.store.in_memory(), PolicyKeys::default());
        let step = PolicyReset::step(from, memory.stats().keys as u64, |shard| {
            memory.list_keys(&numbers, shard, keys, &mut list)
        })?;
        Ok(PolicyKeys { scanned: step.scanned, next: step.next, ..list })
    }
}

fn has_check(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|one| one.part.verb == Verb::Check)
}

/// Decides charges, some of which may be on blocked keys, over a store that decides at once.
#[inline]
fn decide_now(
    store: &(impl LocalStore + ?Sized),
    charges: &[Charge<'_>],
    id: Option<&str>,
    decided: &mut StoreDecisions,
) {
    let blocks = Blocks::of(charges, || store.wall_time());
    let left = blocks.as_ref().map(|blocks| blocks.without_blocked(charges));
    let left = left.as_deref().unwrap_or(charges);
    match id.filter(|_| has_check(left)) {
        Some(id) => store.check_once(left, id, decided),
        None => store.apply(left, decided),
    }
    if let Some(blocks) = blocks {
        blocks.apply(charges, &mut decided.decisions);
    }
}

impl<S: LocalStore> Gate<S> {
    /// Decides a request. Charges its cost under every policy that applies, or under none if an
    /// enforced one denies.
    ///
    /// A shadow policy that would deny reports this in its decision, charges nothing to itself and
    /// does not deny the request.
    #[must_use = "a denied request must not be served"]
    pub fn check<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_now(&self.store, Some(Verb::Check), slice::from_ref(request), None)
    }

    /// A check with an idempotency key: a repeated check with the same `id`, keys and cost, within
    /// the longest window of its policies, gets the first decisions again and is not charged. A
    /// client can thus safely repeat a request when it does not know whether the first one was
    /// counted. Requests on a lost connection to a shared store are also repeated.
    ///
    /// A denial is decided again, because it charged nothing. A [`MemoryStore`] keeps the last
    /// 65,536 checks; an older one is charged again.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(5))?.with_scope(["user"])])?);
    /// let request = Request::new().with("user", "alice");
    /// for _attempt in 0..3 {
    ///     assert_eq!(gate.check_once(&request, "order-1001").strictest().unwrap().decision().remaining(), 4);
    /// }
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use = "a denied request must not be served"]
    pub fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        self.decide_now(&self.store, Some(Verb::Check), slice::from_ref(request), Some(id))
    }

    /// Decides as [`check`](Self::check) would, without charging.
    pub fn peek<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_now(&self.store, Some(Verb::Peek), slice::from_ref(request), None)
    }

    /// Refunds the request's cost under every policy that applies: at most what was charged and
    /// still counts.
    pub fn refund<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_now(&self.store, Some(Verb::Refund), slice::from_ref(request), None)
    }

    /// Charges the request's cost under every policy that applies, even above their limits. A key
    /// counts at most [`Quota::max_used`](crate::Quota::max_used); each decision's `cost` is what
    /// was charged.
    pub fn penalize<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.decide_now(&self.store, Some(Verb::Penalize), slice::from_ref(request), None)
    }

    /// Applies several requests in one atomic step, each with its own [verb](Request::with_verb),
    /// [role](Request::with_role) and cost.
    ///
    /// If an enforced policy denies one check or peek, the call is denied and no check is charged
    /// on any policy. Penalties and refunds are never denied and always applied.
    /// [`Role`](crate::verb::Role) lists the exceptions.
    ///
    /// Every decision is based on the usage before the call. Then checks are charged, then
    /// penalties, and refunds come last. If two checks or two peeks share a key, their costs are
    /// added up and both get the answer for the sum. Takes time proportional to the number of
    /// charges.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, verb::Verb};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("calls", Quota::per_minute(100))?.with_scope(["user"]),
    ///     Policy::new("tokens", Quota::per_minute(5000))?.with_scope(["user", "model"]),
    /// ])?);
    /// let requests = [
    ///     Request::new().with("user", "alice").under("calls"),
    ///     Request::new().with("user", "alice").with("model", "small").under("tokens").with_cost(6000),
    ///     Request::new().with("user", "bob").under("calls").with_verb(Verb::Penalize),
    /// ];
    /// let decisions = gate.apply(&requests);
    /// assert!(decisions.is_denied());
    /// let denied = decisions.strictest().unwrap();
    /// assert_eq!((denied.request(), denied.policy().name()), (1, "tokens"));
    /// assert_eq!(gate.peek(&requests[0]).strictest().unwrap().decision().used(), 0);
    /// assert_eq!(gate.peek(&requests[2]).strictest().unwrap().decision().used(), 1);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn apply<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.decide_now(&self.store, None, requests, None)
    }

    /// Applies one verb to several requests in one atomic step and ignores their own verbs. See
    /// [`apply`](Self::apply).
    pub fn apply_all<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.decide_now(&self.store, Some(verb), requests, None)
    }

    /// Removes the request's keys under every policy that applies. Returns whether any of them had
    /// usage.
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it: nothing is
    /// removed.
    pub fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        at_once(self.reset_keys(request))
    }

    /// Removes every key of a policy and returns their number. Scans all keys of the store while
    /// decisions continue; keys created meanwhile may stay. Cached denials end in every instance.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(1))?.with_scope(["user"])])?);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// assert!(gate.check(&Request::new().with("user", "bob")).is_allowed());
    /// assert_eq!(gate.reset_policy("per-user")?, 2);
    /// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the store cannot find the keys of a policy. [`MemoryStore`] can.
    pub fn reset_policy(&self, policy: &str) -> Result<u64, Error> {
        at_once(self.reset_policy_whole(policy))
    }

    /// One step of [`reset_policy`](Self::reset_policy), which examines about `keys` keys: whole
    /// shards of about 1024 in memory; keys of one node in Redis, then those in this process's
    /// memory. Start without a cursor, then pass the one from the step before; any instance on a
    /// shared store can continue. If the nodes change meanwhile, the scan restarts.
    ///
    /// # Errors
    /// If the cursor belongs to another store.
    pub fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        at_once(self.reset_policy_keys(policy, from, keys))
    }

    /// The usage of the request's keys under every policy that applies: each charge and when it
    /// expires. Changes nothing. Takes time and memory proportional to the charges that count; a
    /// shared store reads each key once.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("per-user", Quota::per_minute(3))?.with_scope(["user"])])?);
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
    /// If the request is [`under`](Request::under) a policy that cannot decide it.
    pub fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        at_once(self.inspect_keys(request))
    }
}
