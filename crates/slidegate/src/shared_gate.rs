//! The shared gate: many policies, one verdict, limits that many instances share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::block::Blocks;
use crate::charge::{Charge, Charges};
use crate::error::Error;
use crate::gate::{Decisions, Numbers};
use crate::policy::PolicySet;
use crate::policy_reset::{Done, Place, PolicyReset, ResetCursor};
use crate::request::Request;
use crate::store::fallback::Fallback;
use crate::store::memory::MemoryStore;
use crate::store::redis::{
    Answers, ControlDocument, ControlDocumentId, Failure, FailureKind, MOST, NodeState, RedisOptions,
    RedisStats, RedisStore, StoreFailure, Undecided,
};
use crate::time::instant;
use crate::usage::KeyUse;
use crate::verb::Verb;
use recent_peeks::RecentPeeks;

mod recent_peeks;

/// A set of policies over Redis, Redis Cluster or a master that Sentinels name, and over other servers that speak its
/// protocol. Decides a request under all that apply, as [`Gate`](crate::Gate) does in memory.
///
/// It always answers within its deadline, and needs no Redis to be made: what a policy does while the store is away, it
/// says itself ([`Policy::on_store_error`](crate::Policy::on_store_error)), and every decision says
/// [where it comes from](crate::Decision::source). Works within a tokio runtime.
///
/// ```no_run
/// use slidegate::{Policy, PolicySet, Quota, RedisOptions, Request, SharedGate};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), slidegate::Error> {
/// let policies = PolicySet::new([Policy::new("per-user", Quota::per_minute(100))?.scope(["user"])])?;
/// let gate = SharedGate::new(policies, RedisOptions::new("redis://127.0.0.1:6379")?)?;
/// let request = Request::new().with("user", "alice");
/// if gate.check(&request).await.is_denied() { /* 429 */ }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedGate {
    store: RedisStore,
    fallback: Fallback,
    policies: ArcSwap<PolicySet>,
    numbers: Mutex<Numbers>,
    recent_peeks: RecentPeeks,
    fallbacks: AtomicU64,
    /// Not under a lock: while the store is away, every decision comes here.
    last_failure: ArcSwapOption<StoreFailure>,
}

/// How a [`SharedGate`] is made: `SharedGate::builder(policies, options).instances(3).build()?`.
#[derive(Debug)]
pub struct SharedGateBuilder {
    policies: PolicySet,
    options: RedisOptions,
    instances: u64,
    memory: MemoryStore,
}

/// How a [`SharedGate`] has been used since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SharedStats {
    /// Calls to the store, and those it was spared.
    pub store: RedisStats,
    /// Requests that were decided without the store, as it did not answer in time.
    pub fallbacks: u64,
    /// Why the store last did not answer, in one line. That its breaker is open since is no reason.
    pub last_failure: Option<String>,
    /// What kind of failure that was.
    pub last_failure_kind: Option<FailureKind>,
}

impl SharedGateBuilder {
    /// How many instances share the limits: while the store is away, each enforces that part of a limit in its own memory,
    /// rounded up. One unless said, which lets every instance have the whole limit then.
    #[must_use]
    pub fn instances(mut self, instances: u64) -> Self {
        self.instances = instances.max(1);
        self
    }

    /// The memory that decides while the store is away.
    #[must_use]
    pub fn memory(mut self, memory: MemoryStore) -> Self {
        self.memory = memory;
        self
    }

    /// Makes the gate. Connects to nothing yet.
    ///
    /// # Errors
    /// Options that no connection can be made with, and limits of 2^53 and more, which scripts cannot count.
    pub fn build(self) -> Result<SharedGate, Error> {
        let Self { mut policies, options, instances, memory } = self;
        check_limits(&policies)?;
        let mut numbers = Numbers::default();
        numbers.number(&mut policies);
        Ok(SharedGate {
            store: RedisStore::new(options)?,
            fallback: Fallback::new(memory, instances),
            policies: ArcSwap::from_pointee(policies),
            numbers: Mutex::new(numbers),
            recent_peeks: RecentPeeks::default(),
            fallbacks: AtomicU64::new(0),
            last_failure: ArcSwapOption::empty(),
        })
    }
}

/// Keys that a server looks at in one step of a reset: over in a moment.
const SCANNED: u64 = 1000;

/// Decisions on charges, in their order.
struct Decided {
    decisions: Answers,
    /// Why a fallback made some of them, if one did.
    failure: Option<Arc<StoreFailure>>,
}

/// Scripts count with doubles: a limit has to be one that those can tell from the next.
fn check_limits(policies: &PolicySet) -> Result<(), Error> {
    for (policy, quota) in
        policies.iter().flat_map(|policy| policy.quotas().map(move |quota| (policy, quota)))
    {
        let largest = quota.limit().max(quota.capacity());
        if largest > MOST {
            return Err(Error::policy(format!(
                "policy `{}`: limit {largest} is more than a shared store can count; give at most {MOST}",
                policy.name()
            )));
        }
    }
    Ok(())
}

impl SharedGate {
    /// A gate of one instance among an unknown number, with a memory store of its own to fall back on.
    ///
    /// # Errors
    /// As [`SharedGateBuilder::build`].
    pub fn new(policies: PolicySet, options: RedisOptions) -> Result<Self, Error> {
        Self::builder(policies, options).build()
    }

    /// Says how many instances there are, and which memory to fall back on.
    #[must_use]
    pub fn builder(policies: PolicySet, options: RedisOptions) -> SharedGateBuilder {
        SharedGateBuilder { policies, options, instances: 1, memory: MemoryStore::new() }
    }

    /// Decides a request and charges its cost under every policy that applies, or under none if an enforced one denies.
    pub async fn check<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Check), std::slice::from_ref(request)).await
    }

    /// A check that is charged once however often it is asked with the same `id` within the longest window of its
    /// policies: asked again it gives the first answer again. A request of other keys or another cost is another one,
    /// whatever its id. So a client may send a request again when it does not know
    /// what became of it, and this call itself is made again when its connection is lost.
    ///
    /// A denial is not kept, as it has charged nothing: the same id asked again is decided anew. In a cluster the request's
    /// keys must lie in one slot, as [`RedisOptions::hash_tag`] makes them; otherwise this is a [`check`](Self::check).
    pub async fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        let policies = self.policies.load();
        let requests = std::slice::from_ref(request);
        let plan = policies.plan(requests, Some(Verb::Check));
        let Decided { decisions, failure } = self.decide(&plan.charges, Some(id)).await;
        let answers = plan.answers(decisions);
        drop(plan);
        Decisions::new(policies, requests, Some(Verb::Check), answers, failure)
    }

    /// What [`check`](Self::check) would say, without charging.
    pub async fn peek<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Peek), std::slice::from_ref(request)).await
    }

    /// Gives back the request's cost under every policy that applies, at most what was charged there and still counts.
    pub async fn refund<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Refund), std::slice::from_ref(request)).await
    }

    /// Charges the request's cost under every policy that applies, although it may exceed their limits. A key counts
    /// [`Quota::max_used`](crate::Quota::max_used) at most; each decision's `cost` says how much was charged.
    pub async fn penalize<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.run(Some(Verb::Penalize), std::slice::from_ref(request)).await
    }

    /// Carries out several requests in one step, as [`Gate::apply`](crate::Gate::apply) does.
    ///
    /// Where their keys lie in several slots of a cluster, there is a step for each slot and verb, and what
    /// a later denial would have prevented is refunded.
    pub async fn apply<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.run(None, requests).await
    }

    /// Does the same to several requests in one step, as [`Gate::apply_all`](crate::Gate::apply_all) does.
    pub async fn apply_all<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.run(Some(verb), requests).await
    }

    async fn run<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        let policies = self.policies.load();
        let plan = policies.plan(requests, verb);
        let Decided { decisions, failure } = self.decide(&plan.charges, None).await;
        let answers = plan.answers(decisions);
        drop(plan);
        Decisions::new(policies, requests, verb, answers, failure)
    }

    /// Forgets the request's keys under every policy that applies; says whether one of them was stored.
    ///
    /// # Errors
    /// The store did not answer in time: the keys may be forgotten or not. The request is [`under`](Request::under) a policy
    /// that cannot decide it: nothing is forgotten.
    pub async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let policies = self.policies.load();
        let plan = policies.plan_of_one(request)?;
        self.recent_peeks.forget_all();
        let local = self.fallback.memory().reset(&plan.charges);
        let stored = self
            .store
            .reset(&plan.charges)
            .await
            .map_err(|failure| Error::store(self.remember(failure).to_string()))?;
        Ok(stored || local)
    }

    /// What the request's keys have used under every policy that applies, charge by charge, and when that is free again, as
    /// the store has it. Changes nothing; one read of each key, which is as long as its charges are many.
    ///
    /// # Errors
    /// The store did not answer, or holds a value that slidegate did not write; or the request is
    /// [`under`](Request::under) a policy that cannot decide it.
    pub async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        let policies = self.policies.load_full();
        let plan = policies.plan_of_one(request)?;
        let mut found =
            self.store.inspect(&plan.charges).await.map_err(|failure| Error::store(failure.to_string()))?;
        plan.lay_blocks_over(&mut found, self.fallback.memory().wall_time());
        Ok(plan.uses(found, |at| policies.policy(at).name()))
    }

    /// The note that all instances on the store share, unless it still is the one that is `known`; see
    /// [`replace_control_document`](Self::replace_control_document). Where there is no note, its id [is absent](ControlDocumentId::is_absent) and its text is empty.
    ///
    /// # Errors
    /// The store did not answer, or holds a note that slidegate did not write.
    pub async fn note(&self, known: Option<ControlDocumentId>) -> Result<Option<ControlDocument>, Error> {
        self.store.note(known).await.map_err(|failure| Error::store(failure.to_string()))
    }

    /// Replaces the note `found`, or its absence, by `note`, in one step; false if something else is stored by now. It
    /// stays for as long as the store keeps it, and all instances [hear](Self::control_document_changed) of it.
    ///
    /// A store can lose a note, or bring an older one back. Give each write a new random `revision`, so that two notes
    /// of one version can be told apart, and a new random `epoch` after a loss.
    ///
    /// # Errors
    /// The note is larger than a mebibyte, its id has a part that is 0, or the store did not answer: it may be written
    /// or not.
    pub async fn replace_control_document(
        &self,
        found: ControlDocumentId,
        note: &ControlDocument,
    ) -> Result<bool, Error> {
        self.store
            .replace_control_document(found, note)
            .await
            .map_err(|failure| Error::store(failure.to_string()))
    }

    /// Waits until another instance has told that it wrote the note. It may be told in vain, and where the store's channel
    /// cannot be heard nobody is told: look at the note now and then besides.
    pub async fn control_document_changed(&self) {
        self.store.control_document_changed().await;
    }

    /// Forgets every key of a policy; returns how many were stored. Goes through all keys of the store, a thousand at a time,
    /// while decisions go on: keys that come meanwhile may stay. Remembered denials end in every instance.
    ///
    /// # Errors
    /// The store did not answer in time, or the user may not scan; some keys may be forgotten.
    pub async fn reset_policy(&self, policy: &str) -> Result<u64, Error> {
        let mut next = None;
        loop {
            let reset = self.reset_policy_step(policy, next.as_ref(), SCANNED).await?;
            match reset.next {
                Some(cursor) => next = Some(cursor),
                None => return Ok(reset.forgotten),
            }
        }
    }

    /// One step of [`reset_policy`](Self::reset_policy), which looks at about `keys` keys on one node of the store, and last
    /// in this process's memory, which decides while the store is away. Begins without a cursor, and goes on with that of
    /// the step before, in this instance or another one. When the store's nodes change meanwhile, the scan begins again.
    ///
    /// # Errors
    /// The store did not answer in time, or the user may not scan; some keys may be forgotten, and the step may be
    /// repeated.
    pub async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        self.recent_peeks.forget_all();
        let (place, mut done) = from.map_or((None, Done::default()), |from| (Some(from.place), from.done));
        let Some(Place::Memory { shard }) = place else {
            let stepped = self.store.reset_policy_step(policy, place, keys, &mut done).await;
            let next = stepped.map_err(|failure| Error::store(failure.to_string()))?;
            return Ok(PolicyReset::after(done, Some(next.unwrap_or(Place::Memory { shard: 0 }))));
        };
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(policy);
        let (forgot, next) = self.fallback.memory().forget_policies(&numbers, shard, keys);
        done.forgotten = done.forgotten.saturating_add(forgot.forgotten);
        Ok(PolicyReset::after(done, next.map(|shard| Place::Memory { shard })))
    }

    /// Looks for what silently breaks limits, where the store's user is permitted to: a server that evicts keys, keys that
    /// were evicted, history that was lost in a failover, a restart or a FLUSHALL, a clock that jumped. One line for
    /// each finding since the last look; call it now and then, such as once a minute.
    pub async fn examine(&self) -> Vec<String> {
        self.store.examine().await
    }

    /// Asks every node that takes writes whether it answers. Waits longer than a decision does, since connections may have
    /// to be made first.
    ///
    /// # Errors
    /// Why one of them did not.
    pub async fn ping(&self) -> Result<(), Error> {
        self.store.ping().await.map_err(|failure| Error::store(failure.to_string()))
    }

    /// Puts another set of policies in force at once. Usage is kept by policy name, and counts by the new quota from the
    /// next decision on its key. It starts afresh where the algorithm changes. Takes time proportional to the number of
    /// keys that the memory of this process holds, while decisions go on.
    ///
    /// # Errors
    /// Limits of 2^53 and more, which scripts cannot count; the old set stays in force.
    pub fn configure(&self, mut policies: PolicySet) -> Result<(), Error> {
        check_limits(&policies)?;
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.number(&mut policies);
        let new = Arc::new(policies);
        let old = self.policies.swap(Arc::clone(&new));
        self.store.forget_denials();
        let changes = new.changes_since(&old, self.fallback.memory().secret());
        self.fallback.requote(&|policy, key| changes.of(policy, key));
        Ok(())
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    /// Where the store is and how it is talked to.
    #[must_use]
    pub fn options(&self) -> &RedisOptions {
        self.store.options()
    }

    /// How the store has been used, and why it last was not.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        let last = self.last_failure.load();
        SharedStats {
            store: self.store.stats(),
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
            last_failure: last.as_ref().map(ToString::to_string),
            last_failure_kind: last.as_ref().map(|failure| failure.kind()),
        }
    }

    /// How things stand with each node of the store that is known now.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeState> {
        self.store.nodes()
    }

    /// The memory that decides while the store is away.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        self.fallback.memory()
    }

    /// Decisions on charges, of which some may be on blocked keys. With an id a check is charged once.
    async fn decide(&self, charges: &[Charge<'_>], id: Option<&str>) -> Decided {
        if charges.iter().any(|charge| !charge.part.verb.is_question()) {
            self.recent_peeks.forget_all();
        }
        let Some(blocks) = Blocks::of(charges, || self.fallback.memory().wall_time()) else {
            return self.ask(charges, id).await;
        };
        // Boxed, as blocks are rare and every decision would be as large.
        Box::pin(self.under_blocks(blocks, charges, id)).await
    }

    /// Decisions on charges of which a key is blocked. Where a block denies all of a check, its usage is
    /// that of a moment ago if the store was asked then.
    async fn under_blocks(&self, blocks: Blocks, charges: &[Charge<'_>], id: Option<&str>) -> Decided {
        let left = blocks.left(charges);
        let has = |charges: &[Charge<'_>], verb| charges.iter().any(|charge| charge.part.verb == verb);
        let only_peeks = left.iter().all(|charge| charge.part.verb == Verb::Peek);
        let (decisions, failure) = if !(only_peeks && has(charges, Verb::Check)) {
            let id = id.filter(|_| has(&left, Verb::Check));
            let Decided { decisions, failure } = self.ask(&left, id).await;
            (decisions, failure)
        } else {
            match self.recent_peeks.find(&left, self.fallback.memory(), instant()) {
                Ok(decisions) => (decisions, None),
                Err(pending) => {
                    let Decided { decisions, failure } = self.ask(&left, None).await;
                    if failure.is_none() {
                        self.recent_peeks.keep(pending, &decisions);
                    }
                    (decisions, failure)
                }
            }
        };
        Decided { decisions: blocks.lay_over(charges, decisions), failure }
    }

    /// Asks the store, and the fallback if that does not decide.
    async fn ask(&self, charges: &[Charge<'_>], id: Option<&str>) -> Decided {
        let decided = match id {
            Some(id) => self.store.check_once(charges, id).await,
            None => self.store.apply(charges).await,
        };
        let Undecided { failure, denied } = match decided {
            Ok(decisions) => return Decided { decisions, failure: None },
            Err(undecided) => undecided,
        };
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        let failure = Some(self.remember(failure));
        let decisions = match denied {
            None => self.fallback.apply(charges),
            // A denial stands whatever the others would have said, and nothing is charged for it.
            Some(known) => {
                let mut peeks: Charges<'_> = charges.iter().cloned().collect();
                peeks.iter_mut().for_each(|charge| charge.part.verb = Verb::Peek);
                let guessed = self.fallback.apply(&peeks);
                known.into_iter().zip(guessed).map(|(known, guessed)| known.unwrap_or(guessed)).collect()
            }
        };
        Decided { decisions, failure }
    }

    fn remember(&self, failure: Failure) -> Arc<StoreFailure> {
        let failure = Arc::new(StoreFailure(failure));
        if failure.kind() != FailureKind::BreakerOpen || self.last_failure.load().is_none() {
            self.last_failure.store(Some(Arc::clone(&failure)));
        }
        failure
    }
}
