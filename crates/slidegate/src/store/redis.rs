//! The Redis store: usage that many instances share, with one script call per decision.
//!
//! A script evaluates and charges all keys of a request in one step and replies what it found; the
//! decisions are computed from that here. Checks that arrive while a call for the same keys is in
//! flight are batched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::charge::Charge;
use crate::error::Error;
use crate::policy_reset::{Done, PolicyReset, ResetCursor};
use crate::quota::Quota;
use crate::store::shared::{SharedStore, Undecided};
use crate::time::instant;
use crate::usage::KeyInspection;
use crate::verb::Verb;

mod batch;
mod call;
mod calls;
mod control_document;
mod denial_cache;
mod examine;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod held_names;
mod hold_places;
mod holds;
mod inspect;
mod instances;
mod invalidation;
mod key_reply;
mod mixed;
mod names;
mod native;
mod options;
mod scan;
mod scripts;
mod self_test;
mod server_time;
mod spread;
mod ticket_secret;
mod transport;

pub(crate) use call::{Answers, MOST};
pub use control_document::{ControlDocument, ControlDocumentId};
pub use options::RedisOptions;
pub use server_time::ClockJumps;
pub use transport::{BreakerState, ClientCertificate, FailureKind, NodeState, StoreErrors, StoreFailure};

use batch::Batcher;
use call::Subjects;
use calls::{Calls, Counts, EXPIRY_US, Once, RETRY_PAUSE, explain, number, time_of};
use examine::Seen;
use held_names::HeldNames;
use hold_places::HoldPlaces;
use invalidation::{Invalidations, PublisherId};
use names::Names;
use server_time::ServerTimes;
use spread::DenialRates;
use ticket_secret::TicketSecrets;
use transport::{Call, Executed, Failure, LastFailure, Native, ReplyBound, Transport};

/// Usage in Redis, Redis Cluster or a master found through Sentinel, shared by many instances.
///
/// It connects on first use. Calls can fail, so a gate needs it within a
/// [`FallbackStore`](crate::FallbackStore). Requires a tokio runtime.
///
/// ```no_run
/// use slidegate::{FallbackStore, Gate, Policy, PolicySet, Quota, RedisOptions, RedisStore, Request};
///
/// # async fn run() -> Result<(), slidegate::Error> {
/// let store = RedisStore::new(RedisOptions::new("redis://127.0.0.1:6379")?)?;
/// store.ping().await?;
/// let per_user = Policy::new("per-user", Quota::per_minute(100))?.scope(["user"]);
/// let gate = Gate::with_store(PolicySet::new([per_user])?, FallbackStore::new(store))?;
/// assert!(gate.check(&Request::new().with("user", "alice")).await.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    calls: Arc<Calls>,
    invalidations: Invalidations,
    seen: Seen,
    tickets: TicketSecrets,
    names: Names,
    options: RedisOptions,
}

/// How a shared store has been used since it was created.
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
    /// Calls that failed, by kind, after all retries.
    pub errors: StoreErrors,
    /// How often the clocks of the servers were seen to jump.
    pub clock_jumps: ClockJumps,
    /// The resolution of the servers' clocks as scripts read them, in microseconds: 1, or 1000 where
    /// [`self_test`](RedisStore::self_test) found that scripts may not call `TIME`.
    pub clock_resolution_us: u64,
    /// Keys that the servers have evicted, as far as [`examine`](RedisStore::examine) has found.
    pub evicted_keys: u64,
}

impl From<Failure> for Undecided {
    fn from(failure: Failure) -> Self {
        Self { failure: failure.into(), denied: None }
    }
}

impl RedisStore {
    /// Creates the store, without a connection.
    ///
    /// # Errors
    /// If no connection can be made with these options, such as with an unreadable certificate.
    pub fn new(options: RedisOptions) -> Result<Self, Error> {
        let transport = Transport::new(&options.connection)?;
        let slots = if transport.is_cluster() { usize::from(transport::slot::SLOTS) } else { 1 };
        let calls = Calls {
            transport,
            reads_expiry: AtomicBool::new(false),
            times: ServerTimes::new(slots, instant()),
            batcher: options.batches_checks.then(Batcher::default),
            denial_cache: options.caches_denials.then(Arc::default),
            denials: DenialRates::default(),
            held_names: HeldNames::default(),
            hold_places: HoldPlaces::default(),
            publisher: PublisherId::new(),
            control_document_changed: Notify::new(),
            counts: Counts::default(),
        };
        Ok(Self {
            calls: Arc::new(calls),
            invalidations: Invalidations::default(),
            seen: Seen::default(),
            tickets: TicketSecrets::default(),
            names: options.names.clone(),
            options,
        })
    }

    fn subjects(&self, charges: &[Charge<'_>]) -> Subjects {
        let mut subjects = Subjects::of(charges, &self.names);
        subjects.0.iter_mut().for_each(|subject| subject.quota = self.calls.counted(subject.quota));
        subjects
    }

    async fn apply_charges(&self, charges: &[Charge<'_>]) -> Result<Answers, Undecided> {
        let deadline = instant() + self.options.connection.deadline;
        let Some(cost) = charges.first().map(|charge| charge.part.cost) else { return Ok(SmallVec::new()) };
        let subjects = self.subjects(charges);
        if charges.iter().any(|charge| charge.part.verb == Verb::Refund) {
            // Denials cached before the refund arrives must not outlive it.
            self.calls.clear_denials();
            let answers = self.calls.decide(&subjects, cost, deadline).await;
            self.calls.invalidate_denials(deadline).await;
            return answers;
        }
        // Waiters must find out what other instances settle.
        let may_be_cached = subjects.may_be_cached() && !charges.iter().any(|charge| charge.is_waiting);
        let cache = self.calls.denial_cache.as_ref().filter(|_| may_be_cached);
        let Some(cache) = cache else {
            return self.calls.decide(&subjects, cost, deadline).await;
        };
        self.invalidations.keep(&self.calls, cache);
        let sent = instant();
        match cache.answer(&subjects, cost, sent) {
            Ok(answers) => {
                self.calls.counts.cached_denials.fetch_add(1, Ordering::Relaxed);
                Ok(answers)
            }
            Err(ticket) => {
                let answers = self.calls.decide(&subjects, cost, deadline).await?;
                if subjects.denies(&answers) {
                    cache.insert(&subjects, cost, &answers, ticket);
                }
                Ok(answers)
            }
        }
    }

    /// The call is repeated if its connection is lost. Keys in several slots of a cluster are
    /// checked without the idempotency key.
    async fn check_charges_once(&self, charges: &[Charge<'_>], id: &str) -> Result<Answers, Undecided> {
        let deadline = instant() + self.options.connection.deadline;
        let subjects = self.subjects(charges);
        let slots: SmallVec<[u16; 4]> =
            subjects.0.iter().map(|subject| self.calls.transport.slot(&subject.name)).collect();
        let (Some(cost), [slot, others @ ..]) =
            (charges.first().map(|charge| charge.part.cost), slots.as_slice())
        else {
            return Ok(SmallVec::new());
        };
        if others.iter().any(|other| other != slot) {
            return self.apply_charges(charges).await;
        }
        let once = Once { id, cost, slot: *slot, names: &self.names };
        Ok(self.calls.call_once(&subjects, &once, deadline).await?)
    }

    async fn reset_charges(&self, charges: &[Charge<'_>]) -> Result<bool, Failure> {
        let deadline = instant() + self.options.connection.deadline;
        self.calls.clear_denials();
        let counted = self.delete(&self.subjects(charges), deadline).await;
        self.calls.invalidate_denials(deadline).await;
        counted
    }

    async fn delete(&self, subjects: &Subjects, deadline: Instant) -> Result<bool, Failure> {
        let mut counted = false;
        for key in subjects.keys() {
            counted |= self.calls.delete(&key, deadline).await?;
        }
        Ok(counted)
    }

    /// Pings every node that accepts writes. Waits longer than a decision, because connections may
    /// have to be opened first.
    ///
    /// # Errors
    /// If a node did not reply.
    pub async fn ping(&self) -> Result<(), Error> {
        self.ping_masters().await.map_err(|failure| Error::store(failure.to_string()))
    }

    async fn ping_masters(&self) -> Result<(), Failure> {
        let deadline = instant() + self.options.connection.deadline + self.options.connection.connect_timeout;
        let ping = |_: &str| Some(redis::cmd("PING"));
        let answers = self.calls.transport.on_each_master(ping, ReplyBound::SMALL, deadline).await;
        let counted = |failure: &Failure| self.calls.transport.count(failure);
        answers.into_iter().try_for_each(|(_, answer)| answer.map(|_| ()).inspect_err(counted))
    }

    /// How the store has been used since it was created.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let Counts { calls, batched, cached_denials, late } = &self.calls.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RedisStats {
            calls: of(calls),
            batched: of(batched),
            cached_denials: of(cached_denials),
            late: of(late),
            errors: self.calls.transport.errors(),
            clock_jumps: self.calls.times.counts(),
            clock_resolution_us: if self.calls.reads_expiry() { EXPIRY_US } else { 1 },
            evicted_keys: self.seen.evicted_keys(),
        }
    }

    /// The options it was created with.
    #[must_use]
    pub fn options(&self) -> &RedisOptions {
        &self.options
    }

    /// The state of each node that is known now.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeState> {
        self.calls.transport.state()
    }
}

impl SharedStore for RedisStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> Result<Answers, Undecided> {
        self.require_ticket_secret(charges).await?;
        self.apply_charges(charges).await
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> Result<Answers, Undecided> {
        self.require_ticket_secret(charges).await?;
        self.check_charges_once(charges, id).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        Ok(self.reset_charges(charges).await?)
    }

    async fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, StoreFailure> {
        Ok(self.inspect_charges(charges).await?)
    }

    async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, StoreFailure> {
        let (place, mut done) = from.map_or((None, Done::default()), |from| (Some(from.place), from.done));
        let next = self.scan_policy(policy, place, keys, &mut done).await?;
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
        self.calls.clear_denials();
    }
}
