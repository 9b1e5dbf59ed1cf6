//! The Redis store: usage that many instances share, with one script call per decision.
//!
//! A script evaluates and charges all keys of a request in one step and replies their state, from
//! which decisions are computed here. Checks that arrive while a call for the same keys is in
//! flight are batched.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use redis_once::{Client, Failure, LastFailure, slot};
use slidegate::internal::{HoldChange, ResetCounts};
use slidegate::reserve::{HoldStatus, Ticket};
use slidegate::store::{
    Charge, DecideError, HeldCharge, HoldAnswer, HoldCall, KeyInspection, OnFreed, PolicyReset, ResetCursor,
    SharedHoldStore, SharedStore, StoreFailure, TicketKeyBytes, TicketSecret, Watch,
};
use slidegate::{Error, Key, Quota, verb::Verb};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::admin::examine::LastCounts;
use crate::admin::{inspect, scan};
use crate::batch::Batcher;
use crate::call::{Answers, MOST, Subjects};
use crate::calls::{Calls, Counts};
use crate::denial_cache::DenialTicket;
use crate::held_keys::HeldKeys;
use crate::invalidation::Denials;
use crate::last_quotas::LastQuotas;
use crate::names::Names;
use crate::options::{RedisOptions, invalid_options};
use crate::server_time::ServerTimes;
use crate::spread::{DenialRates, SpreadRequest, Undecided};
use crate::ticket_secret::TicketSecrets;
use crate::{holds, mixed};

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
    pub(crate) batcher: Batcher,
    denial_rates: Arc<DenialRates>,
    pub(crate) seen: LastCounts,
    last_quotas: Arc<LastQuotas>,
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
        let denials = Denials::new(Arc::clone(&client), options.caches_denials);
        let calls = Arc::new_cyclic(|own| Calls {
            leases: Arc::clone(&denials.leases),
            own: Weak::clone(own),
            denials,
            client,
            patience: options.connection.deadline,
            reads_expiry: AtomicBool::new(false),
            times: ServerTimes::new(slots),
            held: HeldKeys::default(),
            counts: Counts::default(),
        });
        Ok(Self {
            batcher: Batcher::new(Arc::clone(&calls), options.batches_checks),
            denial_rates: Arc::default(),
            calls,
            seen: LastCounts::default(),
            last_quotas: Arc::default(),
            tickets: TicketSecrets::new(options.names.ticket_key()),
            options,
        })
    }

    /// Decides subjects by calls.
    async fn decide(&self, subjects: &Subjects, cost: u64, deadline: Instant) -> Result<Answers, Undecided> {
        match self.spread(subjects, cost, deadline) {
            None => Ok(self.batcher.decide(subjects, cost, deadline).await?),
            Some(request) => mixed::decide(request, subjects).await,
        }
    }

    fn subjects(&self, charges: &[Charge<'_>]) -> Subjects {
        let mut subjects = Subjects::of(charges, &self.options.names);
        if !self.options.takes_leases || self.calls.reads_expiry() {
            // Whole milliseconds are too coarse for the ends of leases.
            subjects.0.iter_mut().for_each(|subject| subject.lease_us = 0);
        }
        if subjects.0.iter().any(|subject| subject.lease_us > 0) {
            self.calls.denials.listen();
        }
        subjects.0.iter_mut().for_each(|subject| subject.quota = self.calls.counted(subject.quota));
        subjects
    }

    /// The cached answer to a check, or to a peek at blocked keys; otherwise the ticket for the
    /// answer of its call.
    fn cached(&self, subjects: &Subjects, cost: u64) -> Result<Answers, DenialTicket> {
        let denials = &self.calls.denials;
        denials.subscribe();
        let answers = denials.cache.answer(subjects, cost, self.calls.now())?;
        self.calls.counts.cached_denials.fetch_add(1, Ordering::Relaxed);
        Ok(answers)
    }

    /// The request, if its keys are in several slots.
    fn spread(&self, subjects: &Subjects, cost: u64, deadline: Instant) -> Option<SpreadRequest> {
        if self.calls.are_in_one_slot(subjects) {
            return None;
        }
        let (batcher, denial_rates) = (self.batcher.clone(), Arc::clone(&self.denial_rates));
        Some(SpreadRequest { batcher, denial_rates, cost, deadline })
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
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        self.require_ticket_secret(charges).await.map_err(undecided)?;
        let deadline = self.calls.deadline();
        let subjects = self.subjects(charges);
        let denials = &self.calls.denials;
        if charges.iter().any(|charge| charge.reserve.is_some()) {
            // A settlement is announced to the instances that wait, so this one has to hear which do.
            denials.listen();
        }
        let is_refund = charges.iter().any(|charge| charge.part.verb == Verb::Refund);
        if is_refund {
            // Denials cached before the refund arrives must not outlive it.
            denials.cache.clear();
        }
        // Waiters must notice settlements by other instances.
        let is_waiting = || charges.iter().any(|charge| charge.is_waiting);
        let is_cached = self.options.caches_denials && subjects.may_be_cached() && !is_waiting();
        let ticket = match is_cached.then(|| self.cached(&subjects, cost)) {
            Some(Ok(answers)) => return Ok(answers),
            Some(Err(ticket)) => Some(ticket),
            None => None,
        };
        let decided = self.decide(&subjects, cost, deadline).await;
        let decided = decided.map_err(undecided);
        let decided = decided.map(|mut answers| {
            self.calls.leases.add_own(&subjects, cost, &mut answers);
            answers
        });
        if let (Some(ticket), Ok(answers)) = (ticket, &decided) {
            denials.cache.insert(&subjects, cost, answers, ticket);
        }
        if let Ok(answers) = &decided {
            self.last_quotas.note(&self.calls, charges, &subjects, answers);
        }
        for subject in subjects.0.iter().filter(|subject| subject.part.verb == Verb::Penalize) {
            denials.cache.release(&subject.name, self.calls.now());
        }
        if is_refund {
            denials.refunded(&subjects.keys(), deadline).await;
        }
        decided
    }

    fn apply_now(&self, charges: &[Charge<'_>], decided: &mut Answers) -> bool {
        self.calls.leases.admit(charges, &self.options.names, decided)
    }

    /// The call is repeated if its connection is lost. Keys in several slots of a cluster are
    /// checked without the idempotency key.
    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> Result<Answers, DecideError> {
        let subjects = self.subjects(charges);
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        if !self.calls.are_in_one_slot(&subjects) {
            return self.apply(charges).await;
        }
        self.require_ticket_secret(charges).await.map_err(undecided)?;
        let once = self.options.names.once(&subjects.keys(), &subjects.what(cost), id);
        let (deadline, unread) = (self.calls.deadline(), LastFailure::default());
        let answers = self.calls.call(&subjects, &[cost], Some(&once), deadline, &unread).await;
        let answers = answers.map_err(undecided)?.into_iter().next().unwrap_or_default();
        self.last_quotas.note(&self.calls, charges, &subjects, &answers);
        Ok(answers)
    }

    fn watch(&self, charge: &Charge<'_>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        self.calls.denials.watch(self.options.names.name(&charge.key), on_freed)
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> Result<Answers, DecideError> {
        let deadline = self.calls.deadline();
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        let subjects = self.subjects(charges);
        let ticket = match self.cached(&subjects, cost) {
            Ok(answers) => return Ok(answers),
            Err(ticket) => ticket,
        };
        let answers = self.decide(&subjects, cost, deadline).await.map_err(undecided)?;
        self.calls.denials.cache.insert(&subjects, cost, &answers, ticket);
        Ok(answers)
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        let deadline = self.calls.deadline();
        self.calls.denials.cache.clear();
        let subjects = self.subjects(charges);
        let names = subjects.keys();
        self.calls.leases.end(Some(&names));
        let deleted = async {
            let mut was_stored = false;
            for subject in &subjects.0 {
                was_stored |= self.calls.delete(&subject.name, deadline).await?;
            }
            Ok::<_, Failure>(was_stored)
        };
        let was_stored = deleted.await;
        self.calls.denials.invalidate(Some(&names), deadline).await;
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
        self.calls.leases.end(None);
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
        let freed = changes.iter().zip(&answers).filter(|(call, answer)| {
            let frees = !matches!(
                call.change,
                HoldChange::Settle { ttl_us: Some(_), .. } | HoldChange::Extend { total: None, .. }
            );
            frees && answer.status == HoldStatus::Changed
        });
        self.calls.denials.settled(freed.filter_map(|(call, _)| holds::name(call)), self.calls.deadline());
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
