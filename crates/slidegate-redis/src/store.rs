//! The Redis store: usage that many instances share, with one script call per decision.
//!
//! A script evaluates and charges all keys of a request in one step and replies their state, from
//! which decisions are computed here. Checks that arrive while a call for the same keys is in
//! flight are batched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis_once::{Client, Failure, FailureCounts, LastFailure, NodeState, ReplyBound, slot};
use slidegate::internal::{ResetCounts, instant};
use slidegate::reserve::{HoldStatus, Ticket};
use slidegate::store::{
    Charge, DecideError, HeldCharge, HoldAnswer, HoldCall, KeyInspection, PolicyReset, ResetCursor,
    SharedHoldStore, SharedStore, StoreFailure, TicketKeyBytes, TicketSecret,
};
use slidegate::{Error, Key, Quota, verb::Verb};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::admin::control_document::{ControlDocument, ControlDocumentId};
use crate::admin::examine::LastCounts;
use crate::admin::instances::InstanceRecord;
use crate::admin::servers::ServerInfo;
use crate::admin::{claim, control_document, inspect, instances, scan, self_test, servers};
use crate::batch::Batcher;
use crate::call::{Answers, MOST, Subjects};
use crate::calls::{Calls, Counts, EXPIRY_US};
use crate::denial_cache::DenialTicket;
use crate::held_keys::HeldKeys;
use crate::invalidation::Denials;
use crate::names::Names;
use crate::options::{RedisOptions, invalid_options};
use crate::server_time::{ClockJumps, ServerTimes};
use crate::spread::{DenialRates, SpreadRequest, Undecided};
use crate::ticket_secret::TicketSecrets;
use crate::{holds, mixed};

/// Usage in Redis, Redis Cluster or a master found through Sentinel, shared by many instances.
///
/// It connects on first use. Calls can fail, so a gate needs it within a
/// [`FallbackStore`](slidegate::store::FallbackStore). Requires a tokio runtime.
///
/// ```no_run
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
    seen: LastCounts,
    tickets: TicketSecrets,
    options: RedisOptions,
}

/// Counters of a shared store since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RedisStats {
    /// Script calls made.
    pub calls: u64,
    /// Checks that joined another check's call.
    pub batched: u64,
    /// Checks denied by a cached denial, without a call.
    pub cached_denials: u64,
    /// Calls that reached the server after their deadline and charged nothing.
    pub late: u64,
    /// Detected clock jumps of the servers.
    pub errors: FailureCounts,
    /// How often the clocks of the servers were seen to jump.
    pub clock_jumps: ClockJumps,
    /// Resolution of the clock that scripts read, in microseconds: 1, or 1000 if
    /// [`self_test`](RedisStore::self_test) found that scripts may not call `TIME`.
    pub clock_resolution_us: u64,
    /// Keys evicted by the servers, as found by [`examine`](RedisStore::examine).
    pub evicted_keys: u64,
    /// How often the table of instances contained foreign data and was replaced.
    pub instances_replaced: u64,
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
            batcher: Batcher::new(Arc::clone(&calls), options.batches_checks),
            denial_rates: Arc::default(),
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

    /// The cached answer to a check, or to a peek at blocked keys; otherwise the ticket for the
    /// answer of its call.
    fn cached(&self, subjects: &Subjects, cost: u64) -> Result<Answers, DenialTicket> {
        let denials = &self.calls.denials;
        denials.subscribe();
        let answers = denials.cache.answer(subjects, cost, instant())?;
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

    /// Pings every node that accepts writes. Waits longer than a decision, because connections may
    /// have to be opened first.
    ///
    /// # Errors
    /// If a node did not reply.
    pub async fn ping(&self) -> Result<(), Error> {
        self.ping_masters().await.map_err(|failure| error_of(&failure))
    }

    async fn ping_masters(&self) -> Result<(), Failure> {
        let deadline = self.calls.deadline() + self.options.connection.connect_timeout;
        let ping = |_: &str| Some(redis::cmd("PING"));
        let answers = self.calls.client.on_each_master(ping, ReplyBound::SMALL, deadline).await;
        let counted = |failure: &Failure| self.calls.client.count(failure);
        answers.into_iter().try_for_each(|(_, answer)| answer.map(|_| ()).inspect_err(counted))
    }

    /// Tests that limits are shared: makes the calls of a check, of a reservation and of a reset, on
    /// a key of its own on every master, and calls each command that scripts call.
    ///
    /// If scripts may not call `TIME` but may read a key's expiry, they use that as their clock
    /// from then on, in whole milliseconds: see
    /// [`clock_resolution_us`](RedisStats::clock_resolution_us). Charges then count for the window
    /// plus a millisecond, so that no more is admitted.
    ///
    /// Without replies it ends within about four seconds per master.
    ///
    /// # Errors
    /// If a server is unreachable or refuses a call: the text names the server and the call.
    pub async fn self_test(&self) -> Result<(), Failure> {
        self.ping_masters().await?;
        self_test::test_masters(&self.calls).await
    }

    /// Looks for conditions that silently break limits, within the rights of the store's user: a
    /// server that evicts keys, evicted keys, history lost in a failover, a restart or a
    /// `FLUSHALL`, and clock jumps. Returns one line per finding since the last call, and clears
    /// the cached denials of all instances if usage was lost. Call it from a timer, for example
    /// once per minute.
    pub async fn examine(&self) -> Vec<String> {
        self.seen.examine(&self.calls).await
    }

    /// Information about every master, sorted by address, without those that do not reply. Needs
    /// the rights to `INFO` and `TIME`.
    pub async fn servers(&self) -> Vec<ServerInfo> {
        servers::ask(&self.calls).await
    }

    /// How often to [count](Self::count_instances).
    pub const COUNT_INTERVAL: Duration = Duration::from_secs(3);

    /// The number of instances on the store, including this one: those that called this within the
    /// last ten seconds of the server's clock. 1000 means 1000 or more. Call it every
    /// [`COUNT_INTERVAL`](Self::COUNT_INTERVAL), and pass the result to
    /// [`FallbackStore::share_among`](slidegate::store::FallbackStore::share_among).
    ///
    /// # Errors
    /// If the store did not reply, or holds a table that slidegate did not write.
    pub async fn count_instances(&self) -> Result<u64, Error> {
        instances::count(&self.calls, None).await.map_err(|failure| error_of(&failure))
    }

    /// Like [`count_instances`](Self::count_instances), and publishes a record of this instance for
    /// as long as it counts. See [`instance_records`](Self::instance_records).
    ///
    /// # Errors
    /// If the record has more than 4096 bytes; otherwise as
    /// [`count_instances`](Self::count_instances).
    pub async fn publish_instance(&self, record: &[u8]) -> Result<u64, Error> {
        instances::count(&self.calls, Some(record)).await.map_err(|failure| error_of(&failure))
    }

    /// The [published](Self::publish_instance) records of live instances, including this one,
    /// unordered. At most 1000.
    ///
    /// # Errors
    /// If the store did not reply.
    pub async fn instance_records(&self) -> Result<Vec<InstanceRecord>, Error> {
        instances::records(&self.calls).await.map_err(|failure| error_of(&failure))
    }

    /// How many bytes of the table of instances were not written by instances, at most 32,000. The
    /// next [count](Self::count_instances) replaces them.
    ///
    /// # Errors
    /// If the store does not reply, or the table is not a string.
    pub async fn foreign_instances(&self) -> Result<usize, Error> {
        instances::foreign(&self.calls).await.map_err(|failure| error_of(&failure))
    }

    /// The id of this instance in [`instance_records`](Self::instance_records).
    #[must_use]
    pub fn instance_id(&self) -> &str {
        &self.calls.denials.instance
    }

    /// Claims `what` for a duration, by the server's clock. Returns whether it was unclaimed:
    /// exactly one of the instances that ask gets true.
    ///
    /// # Errors
    /// If the store did not reply; it may or may not be claimed.
    pub async fn claim(&self, what: &[u8], duration: Duration) -> Result<bool, Error> {
        let key = self.options.names.claim(what);
        claim::claim(&self.calls, &key, duration).await.map_err(|failure| error_of(&failure))
    }

    /// The control document, or `None` if it is still the `known` one; see
    /// [`replace_control_document`](Self::replace_control_document). If there is none, its id [is
    /// absent](ControlDocumentId::is_absent) and its text is empty.
    ///
    /// # Errors
    /// If the store did not reply, or holds a document that slidegate did not write.
    pub async fn control_document(
        &self,
        known: Option<ControlDocumentId>,
    ) -> Result<Option<ControlDocument>, Error> {
        control_document::read_document(&self.calls, known).await.map_err(|failure| error_of(&failure))
    }

    /// Replaces the control document `found`, or its absence, in one step. Returns false if another
    /// one is stored by now. It never expires, and all instances are
    /// [notified](Self::control_document_changed).
    ///
    /// A store can lose a document, or restore an older one. Give each write a new random
    /// `revision`, so that two documents of one version differ, and a new random `epoch` after a
    /// loss.
    ///
    /// # Errors
    /// If the document is larger than a mebibyte or a part of its id is 0. If the store did not
    /// reply; it may or may not be written.
    pub async fn replace_control_document(
        &self,
        found: ControlDocumentId,
        document: &ControlDocument,
    ) -> Result<bool, Error> {
        control_document::write_document(&self.calls, found, document)
            .await
            .map_err(|failure| error_of(&failure))
    }

    /// Waits until another instance announces a new control document. Announcements can be lost or
    /// repeated, so also read the document from a timer.
    pub async fn control_document_changed(&self) {
        self.calls.denials.control_document_changed().await;
    }

    /// Counters since the store was created.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let Counts { calls, batched, cached_denials, late, instances_replaced } = &self.calls.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RedisStats {
            calls: of(calls),
            batched: of(batched),
            cached_denials: of(cached_denials),
            late: of(late),
            errors: self.calls.client.errors(),
            clock_jumps: self.calls.times.counts(),
            clock_resolution_us: if self.calls.reads_expiry() { EXPIRY_US } else { 1 },
            evicted_keys: self.seen.evicted_keys(),
            instances_replaced: of(instances_replaced),
        }
    }

    /// The options it was created with.
    #[must_use]
    pub fn options(&self) -> &RedisOptions {
        &self.options
    }

    /// The state of each known node.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeState> {
        self.calls.client.state()
    }
}

impl SharedStore for RedisStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> Result<Answers, DecideError> {
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        self.require_ticket_secret(charges).await.map_err(undecided)?;
        let deadline = self.calls.deadline();
        let subjects = self.subjects(charges);
        let denials = &self.calls.denials;
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
        let decided = match self.spread(&subjects, cost, deadline) {
            None => self.batcher.decide(&subjects, cost, deadline).await.map_err(undecided),
            Some(request) => mixed::decide(request, &subjects).await.map_err(undecided),
        };
        if let (Some(ticket), Ok(answers)) = (ticket, &decided) {
            denials.cache.insert(&subjects, cost, answers, ticket);
        }
        for subject in subjects.0.iter().filter(|subject| subject.part.verb == Verb::Penalize) {
            denials.cache.release(&subject.name, instant());
        }
        if is_refund {
            denials.invalidate(deadline).await;
        }
        decided
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
        Ok(answers.map_err(undecided)?.into_iter().next().unwrap_or_default())
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> Result<Answers, DecideError> {
        let deadline = self.calls.deadline();
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        let subjects = self.subjects(charges);
        let ticket = match self.cached(&subjects, cost) {
            Ok(answers) => return Ok(answers),
            Err(ticket) => ticket,
        };
        let answers = match self.spread(&subjects, cost, deadline) {
            None => self.batcher.decide(&subjects, cost, deadline).await.map_err(undecided)?,
            Some(request) => mixed::decide(request, &subjects).await.map_err(undecided)?,
        };
        self.calls.denials.cache.insert(&subjects, cost, &answers, ticket);
        Ok(answers)
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
fn store_failure(failure: Failure) -> StoreFailure {
    StoreFailure::new(failure.kind.name(), failure.to_string())
}

fn undecided(undecided: impl Into<Undecided>) -> DecideError {
    let Undecided { failure, denied } = undecided.into();
    DecideError { failure: store_failure(failure), denied }
}

fn error_of(failure: &Failure) -> Error {
    Error::store(failure.to_string())
}
