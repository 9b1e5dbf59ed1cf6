//! The Redis store: usage that many instances share, with one script call per decision.
//!
//! A script evaluates and charges all keys of a request in one step and replies their state, from
//! which decisions are computed here. Checks that arrive while a call for the same keys is in
//! flight are batched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_once::{Client, Failure, LastFailure, slot};
use slidegate::internal::{ResetCounts, instant};
use slidegate::reserve::{HoldStatus, Ticket};
use slidegate::store::{
    Charge, DecideError, HeldCharge, HoldAnswer, HoldCall, KeyInspection, PolicyReset, ResetCursor,
    SharedHoldStore, SharedStore, StoreFailure, TicketKeyBytes, TicketSecret,
};
use slidegate::{Error, Key, Quota, Verb};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::admin::examine::LastCounts;
use crate::admin::{inspect, scan};
use crate::batch::Batcher;
use crate::call::{Answers, MOST, Subjects};
use crate::calls::{Calls, Counts};
use crate::held_keys::HeldKeys;
use crate::invalidation::Denials;
use crate::names::Names;
use crate::options::{RedisOptions, invalid_options};
use crate::server_time::ServerTimes;
use crate::spread::check::Undecided;
use crate::spread::{DenialRates, SlotCalls};
use crate::ticket_secret::TicketSecrets;
use crate::{holds, mixed, spread};

/// Usage in Redis, Redis Cluster or a master found through Sentinel, shared by many instances.
///
/// It connects on first use. Calls can fail, so a gate needs it within a
/// [`FallbackStore`](slidegate::store::FallbackStore). Requires a tokio runtime.
///
/// ```no_run
/// use slidegate::store::ServiceStore;
/// use slidegate::{Policy, PolicySet, Quota, Request, SharedGate};
/// use slidegate_redis::{RedisOptions, RedisStore};
///
/// # async fn run() -> Result<(), slidegate::Error> {
/// let store = RedisStore::new(RedisOptions::new("redis://127.0.0.1:6379")?)?;
/// store.ping().await?;
/// let per_user = Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"]);
/// let gate = SharedGate::new(PolicySet::new([per_user])?, store)?;
/// assert!(gate.check(&Request::new().with("user", "alice")).await.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) calls: Arc<Calls>,
    slots: Arc<SlotCalls>,
    pub(crate) seen: LastCounts,
    tickets: TicketSecrets,
    pub(crate) options: RedisOptions,
}

impl RedisStore {
    /// Creates the store, without a connection.
    ///
    /// # Errors
    /// If no connection can be made with these options, such as with an unreadable certificate.
    pub fn new(options: RedisOptions) -> Result<Self, Error> {
        let client = Arc::new(Client::new(&options.connection).map_err(invalid_options)?);
        let slots = if client.is_cluster() { usize::from(slot::SLOTS) } else { 1 };
        let calls = Arc::new(Calls {
            denials: Denials::new(Arc::clone(&client), options.caches_denials),
            client,
            patience: options.connection.deadline,
            reads_expiry: AtomicBool::new(false),
            times: ServerTimes::new(slots, instant()),
            held: HeldKeys::default(),
            counts: Counts::default(),
        });
        Ok(Self {
            slots: Arc::new(SlotCalls {
                calls: Arc::clone(&calls),
                batcher: options.batches_checks.then(Batcher::default),
                denials: DenialRates::default(),
            }),
            calls,
            seen: LastCounts::default(),
            tickets: TicketSecrets::new(options.names.ticket_key()),
            options,
        })
    }

    fn subjects(&self, charges: &[Charge<'_>]) -> Subjects {
        let mut subjects = Subjects::of(charges, &self.options.names);
        subjects.0.iter_mut().for_each(|subject| subject.quota = self.calls.counted(subject.quota));
        subjects
    }

    async fn apply_charges(&self, charges: &[Charge<'_>]) -> Result<Answers, Undecided> {
        let deadline = self.calls.deadline();
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        let subjects = self.subjects(charges);
        let denials = &self.calls.denials;
        if charges.iter().any(|charge| charge.part.verb == Verb::Refund) {
            // Denials cached before the refund arrives must not outlive it.
            denials.cache.clear();
            let answers = self.decide(&subjects, cost, deadline).await;
            denials.invalidate(deadline).await;
            return answers;
        }
        // Waiters must notice settlements by other instances.
        let is_waiting = || charges.iter().any(|charge| charge.is_waiting);
        if self.options.caches_denials && subjects.may_be_cached() && !is_waiting() {
            return self.decide_cached(&subjects, cost, deadline).await;
        }
        let answers = self.decide(&subjects, cost, deadline).await;
        for subject in subjects.0.iter().filter(|subject| subject.part.verb == Verb::Penalize) {
            denials.cache.release(&subject.name, instant());
        }
        answers
    }

    async fn decide_cached(
        &self,
        subjects: &Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Undecided> {
        let Denials { cache, .. } = &*self.calls.denials;
        self.calls.denials.subscribe();
        match cache.answer(subjects, cost, instant()) {
            Ok(answers) => {
                self.calls.counts.cached_denials.fetch_add(1, Ordering::Relaxed);
                Ok(answers)
            }
            Err(ticket) => {
                let answers = self.decide(subjects, cost, deadline).await?;
                cache.insert(subjects, cost, &answers, ticket);
                Ok(answers)
            }
        }
    }

    /// Decides subjects in any slots.
    ///
    /// With several slots, a separate task makes the charges: a caller who gives up must not leave
    /// only some of them charged.
    async fn decide(&self, subjects: &Subjects, cost: u64, deadline: Instant) -> Result<Answers, Undecided> {
        let parts = self.slots.parts(subjects);
        if parts.len() == 1 {
            return Ok(self.slots.decide_part(subjects.clone(), cost, deadline).await?);
        }
        let slots = Arc::clone(&self.slots);
        let decided = match subjects.only_verb() {
            Some(Verb::Peek | Verb::Refund | Verb::Penalize) => {
                return Ok(slots.on_each_slot(subjects, cost, deadline).await?);
            }
            Some(Verb::Check) => tokio::spawn(async move { slots.check_parts(parts, cost, deadline).await }),
            None => {
                let subjects = subjects.clone();
                tokio::spawn(async move { mixed::in_steps(&slots, &subjects, cost, deadline).await })
            }
        };
        decided.await.unwrap_or_else(|_| Err(spread::ended().into()))
    }

    /// The call is repeated if its connection is lost. Keys in several slots of a cluster are
    /// checked without the idempotency key.
    async fn check_charges_once(&self, charges: &[Charge<'_>], id: &str) -> Result<Answers, Undecided> {
        let deadline = self.calls.deadline();
        let subjects = self.subjects(charges);
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        let slot = self.calls.slot(&subjects);
        if subjects.0.iter().any(|subject| self.calls.client.slot(&subject.name) != slot) {
            return self.apply_charges(charges).await;
        }
        let once = self.options.names.once(&subjects.keys(), &subjects.what(cost), id);
        let unread = LastFailure::default();
        let answers = self.calls.call(&subjects, &[cost], Some(&once), deadline, &unread).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// A hold without a ticket could never be settled.
    async fn require_ticket_secret(&self, charges: &[Charge<'_>]) -> Result<(), Failure> {
        if charges.iter().any(|charge| charge.reserve.is_some()) {
            self.tickets.sealing(&self.calls).await?;
        }
        Ok(())
    }

    /// The options it was created with.
    #[must_use]
    pub fn options(&self) -> &RedisOptions {
        &self.options
    }
}

impl SharedStore for RedisStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> Result<Answers, DecideError> {
        self.require_ticket_secret(charges).await.map_err(undecided)?;
        self.apply_charges(charges).await.map_err(undecided)
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> Result<Answers, DecideError> {
        self.require_ticket_secret(charges).await.map_err(undecided)?;
        self.check_charges_once(charges, id).await.map_err(undecided)
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> Result<Answers, DecideError> {
        let deadline = self.calls.deadline();
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        self.decide_cached(&self.subjects(charges), cost, deadline).await.map_err(undecided)
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        let deadline = self.calls.deadline();
        self.calls.denials.cache.clear();
        let subjects = self.subjects(charges);
        let deleted = async {
            let mut was_stored = false;
            for subject in &subjects.0 {
                was_stored |= self.calls.delete(&subject.name, deadline).await?;
            }
            Ok::<_, Failure>(was_stored)
        };
        let was_stored = deleted.await;
        self.calls.denials.invalidate(deadline).await;
        was_stored.map_err(store_failure)
    }

    async fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, StoreFailure> {
        inspect::inspect(&self.calls, &self.options.names, charges).await.map_err(store_failure)
    }

    async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, StoreFailure> {
        let (place, mut done) =
            from.map_or((None, ResetCounts::default()), |from| (Some(from.place), from.done));
        let next = scan::step(&self.calls, policy, place, keys, &mut done).await.map_err(store_failure)?;
        Ok(PolicyReset::after(done, next))
    }

    /// Scripts count in floating-point numbers, which represent integers up to 2^53 exactly.
    fn check_quota(&self, quota: &Quota) -> Result<(), Error> {
        let largest = quota.limit().max(quota.capacity());
        if largest > MOST {
            return Err(Error::quota(format!(
                "invalid limit {largest}: a shared store can count at most {MOST}"
            )));
        }
        Ok(())
    }

    fn quotas_changed(&self) {
        self.calls.denials.cache.clear();
    }
}

impl SharedHoldStore for RedisStore {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Vec<u8> {
        holds::key_for_ticket(held, &self.options.names)
    }

    fn id_of_key(&self, key: &Key<'_>) -> TicketKeyBytes {
        Names::untagged(&self.options.names.name(key)).into()
    }

    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes {
        holds::id_in_ticket(key)
    }

    fn seal(&self, ticket: &mut Ticket) {
        if let Some(secret) = self.tickets.current() {
            ticket.seal(&secret);
        }
    }

    fn ticket_secret(&self) -> Option<TicketSecret> {
        self.tickets.current()
    }

    async fn prepare_to_seal(&self) {
        // A failure fails the reservation as well.
        let _ = self.tickets.sealing(&self.calls).await;
    }

    async fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> Result<Option<Vec<HoldAnswer>>, StoreFailure> {
        if !self.tickets.has_sealed(&self.calls, ticket).await.map_err(store_failure)? {
            return Ok(None);
        }
        let mut answers = holds::change(&self.calls, changes).await.map_err(store_failure)?;
        let is_settled = |one: &HoldAnswer| one.status == HoldStatus::AlreadySettled;
        if answers.iter().any(is_settled)
            && self.tickets.has_lost(&self.calls, ticket).await.map_err(store_failure)?
        {
            answers.iter_mut().filter(|one| is_settled(one)).for_each(|one| one.status = HoldStatus::Unknown);
        }
        Ok(Some(answers))
    }
}

/// A failure as the library knows it.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
pub(crate) fn store_failure(failure: Failure) -> StoreFailure {
    StoreFailure::new(failure.kind.name(), failure.to_string())
}

fn undecided(undecided: impl Into<Undecided>) -> DecideError {
    let Undecided { failure, denied } = undecided.into();
    DecideError { failure: store_failure(failure), denied }
}
