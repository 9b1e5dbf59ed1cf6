//! The gate: many policies, one verdict.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;

use crate::block::{Block, Blocks, blocked};
use crate::charge::{Charge, Charges, Part, Plan};
#[cfg(feature = "redis")]
use crate::decision::Source;
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::key::Key;
use crate::once::Once;
use crate::policy::{Policy, PolicySet};
use crate::policy_reset::{Done, Place, PolicyReset, ResetCursor};
use crate::quota::Quota;
use crate::request::Request;
use crate::store::memory::{MemoryStats, MemoryStore};
#[cfg(feature = "redis")]
use crate::store::redis::StoreFailure;
use crate::time::Timestamp;
use crate::usage::{Found, KeyUse};
use crate::verb::{Role, Verb};

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
    /// assert_eq!((found.decision.used, found.charges.len(), found.room.len()), (2, 2, 2));
    /// assert_eq!(found.room[1].used, 0);
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

/// What every policy that applies says about a request, or about several, and what comes of it.
pub struct Decisions<'r> {
    /// Kept in force until the answer is written, whatever is configured meanwhile.
    policies: Guard<Arc<PolicySet>>,
    requests: &'r [Request<'r>],
    /// What was done with all of them; each of them says it where this does not.
    verb: Option<Verb>,
    answers: PlacedAnswers,
    /// Why a fallback made some of them, if one did.
    #[cfg(feature = "redis")]
    failure: Option<Arc<StoreFailure>>,
}

/// Decisions, each with what it is on.
pub(crate) type PlacedAnswers = SmallVec<[Answer; 4]>;

/// A decision, the request that it is on, and the place of its policy in the set.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    request: usize,
    policy: usize,
    role: Role,
    /// The request whose role that is, where two met on one key.
    link: usize,
    decision: Decision,
}

impl Answer {
    #[inline]
    fn of(charge: &Charge<'_>, decision: Decision) -> Self {
        let Part { role, link, .. } = charge.part;
        Self { request: charge.request, policy: charge.policy, role, link, decision }
    }
}

impl Plan<'_> {
    /// What was found on the charges' keys. `name_of` names a policy by its place.
    pub(crate) fn uses<'p>(&self, found: Vec<Found>, name_of: impl Fn(usize) -> &'p str) -> Vec<KeyUse> {
        let charges = self.charges.iter().zip(found);
        charges.map(|(charge, found)| found.of(name_of(charge.policy), &charge.key)).collect()
    }

    /// Shows the blocked keys among those that were found.
    pub(crate) fn lay_blocks_over(&self, found: &mut [Found], now: Timestamp) {
        for (charge, found) in self.charges.iter().zip(found) {
            if let Some(rest_us) = charge.block.and_then(|block| block.rest_us(now)) {
                found.decision = blocked(found.decision, rest_us, charge.part.cost > 0);
            }
        }
    }

    /// The decisions on the charges as answers to the requests, in the requests' order and that of the policies.
    pub(crate) fn answers(&self, decisions: impl IntoIterator<Item = Decision>) -> PlacedAnswers {
        let mut answers = PlacedAnswers::new();
        for (charge, decision) in self.charges.iter().zip(decisions) {
            answers.push(Answer::of(charge, decision));
        }
        if !self.met.is_empty() {
            for (request, position) in &self.met {
                answers.push(Answer { request: *request, ..answers[*position].clone() });
            }
            answers.sort_by_key(|answer| (answer.request, answer.policy));
        }
        answers.retain(|answer| answer.role != Role::Refusals);
        answers
    }
}

/// One policy's decision; derefs to [`Decision`].
#[derive(Debug, Clone, Copy)]
pub struct PolicyDecision<'d> {
    policies: &'d PolicySet,
    requests: &'d [Request<'d>],
    verb: Option<Verb>,
    answer: &'d Answer,
    #[cfg(feature = "redis")]
    failure: Option<&'d StoreFailure>,
}

impl<'r> Decisions<'r> {
    /// Answers of the policies of a set.
    #[cfg(feature = "redis")]
    pub(crate) fn new(
        policies: Guard<Arc<PolicySet>>,
        requests: &'r [Request<'r>],
        verb: Option<Verb>,
        answers: PlacedAnswers,
        failure: Option<Arc<StoreFailure>>,
    ) -> Self {
        Self { policies, requests, verb, answers, failure }
    }
}

impl Decisions<'_> {
    /// Those in force when it was decided.
    #[cfg(feature = "tower")]
    pub(crate) fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// Takes what `usage` says is used into account as well, in every decision on the request at this place: for usage
    /// of one policy and key that is kept under another key. Verdicts stay as they are.
    pub fn add_usage(&mut self, request: usize, usage: &Decision) {
        for answer in self.answers.iter_mut().filter(|answer| answer.request == request) {
            answer.decision.add_usage(usage);
        }
    }

    /// Whether the request may pass, or all of several: no enforced policy denies, and there is no [error](Self::error).
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let denies = |one: PolicyDecision<'_>| {
            one.is_denied() && one.policy().is_enforced() && one.role() == Role::Deciding
        };
        if self.iter().any(denies) || self.denies_together() || self.cannot_decide() {
            Verdict::Deny
        } else {
            Verdict::Allow
        }
    }

    /// Whether the requests that deny only [together](Role::Together) do.
    fn denies_together(&self) -> bool {
        let mut together = self.answers.iter().filter(|answer| answer.role == Role::Together).peekable();
        let is_request_denied = |of: &Answer| {
            let others = self.iter().filter(|one| one.role() == of.role && one.answer.link == of.link);
            others.into_iter().any(|one| one.is_denied() && one.policy().is_enforced())
        };
        together.peek().is_some() && together.all(is_request_denied)
    }

    /// Keeps the decisions that `keep` selects: for answers that describe a part of a call only. The
    /// [verdict](Self::verdict) is that of the rest from then on.
    pub fn retain(&mut self, mut keep: impl FnMut(&PolicyDecision<'_>) -> bool) {
        let kept: SmallVec<[bool; 4]> = self.iter().map(|one| keep(&one)).collect();
        let mut kept = kept.into_iter();
        self.answers.retain(|_| kept.next().unwrap_or(true));
    }

    /// Why nothing was decided: a request is [`under`](Request::under) a policy that the gate does not have, or lacks an
    /// attribute that the policy counts by. The verdict is to deny then, no policy has a decision, and nothing was charged.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if !self.answers.is_empty() {
            return None;
        }
        self.requests.iter().find_map(|request| self.policies.error_of(request))
    }

    /// Why the shared store did not decide every policy, if a fallback decided one.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn store_failure(&self) -> Option<&StoreFailure> {
        self.failure.as_deref()
    }

    /// Whether there is an [error](Self::error). A plan with one has no charge, so most answers are told apart by that.
    fn cannot_decide(&self) -> bool {
        self.answers.is_empty() && self.requests.iter().any(|request| self.policies.cannot_decide(request))
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict() == Verdict::Allow
    }

    /// Whether the request may not pass.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.verdict() == Verdict::Deny
    }

    /// Every decision, in the order of the policies, shadow ones included.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.answers.iter().map(|answer| PolicyDecision {
            policies: &self.policies,
            requests: self.requests,
            verb: self.verb,
            answer,
            #[cfg(feature = "redis")]
            failure: self.failure.as_deref(),
        })
    }

    /// The decision that binds: the [strictest](Decision::is_stricter_than) of the enforced policies, the
    /// first of those that are even. A denial that denies nothing, see [`Role`], does not bind. `None` when
    /// no enforced policy applies.
    #[must_use]
    pub fn strictest(&self) -> Option<PolicyDecision<'_>> {
        let denies_together = self.denies_together();
        let binds = |one: &PolicyDecision<'_>| {
            let role = one.role();
            let may_deny = role == Role::Deciding || role == Role::Together && denies_together;
            one.policy().is_enforced() && (one.is_allowed() || may_deny)
        };
        self.iter()
            .filter(binds)
            .reduce(|strictest, one| if one.is_stricter_than(&strictest) { one } else { strictest })
    }
}

impl fmt::Debug for Decisions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'d> PolicyDecision<'d> {
    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> &'d Policy {
        self.policies.policy(self.answer.policy)
    }

    /// Where the policy stands in its set, from 0.
    #[must_use]
    pub fn position(&self) -> usize {
        self.answer.policy
    }

    /// Which of the requests it is on, from 0.
    #[must_use]
    pub fn request(&self) -> usize {
        self.answer.request
    }

    /// What was to be done with its request's cost.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb.unwrap_or(self.requests[self.answer.request].own_verb())
    }

    /// How it takes part in the call: the role of its request, or of another one that it met on its key.
    #[must_use]
    pub fn role(&self) -> Role {
        self.answer.role
    }

    /// What its request asked for, charged or not.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.requests[self.answer.request].asked_cost()
    }

    /// The key that it decided on.
    #[must_use]
    pub fn key(&self) -> Key<'d> {
        self.policy().key(&self.requests[self.answer.request])
    }

    /// The quota that it decided by: what the request told, the key's override, or the policy's own.
    #[must_use]
    pub fn quota(&self) -> &'d Quota {
        let told = self.requests[self.answer.request].told_quota();
        told.unwrap_or_else(|| self.policies.quota_of(self.answer.policy, &self.key()))
    }

    /// The block of its key, if the key [is blocked](Decision::is_blocked).
    #[must_use]
    pub fn block(&self) -> Option<&'d Block> {
        let block = || self.policies.block_of(self.answer.policy, &self.key());
        self.answer.decision.is_blocked().then(block).flatten()
    }

    /// Why the shared store did not decide, if the policy's fallback did.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn store_failure(&self) -> Option<&'d StoreFailure> {
        let is_fallback = !matches!(self.answer.decision.source, Source::Store | Source::Remembered);
        self.failure.filter(|_| is_fallback)
    }

    /// The decision itself.
    #[must_use]
    pub fn decision(&self) -> &'d Decision {
        &self.answer.decision
    }
}

impl std::ops::Deref for PolicyDecision<'_> {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.answer.decision
    }
}
