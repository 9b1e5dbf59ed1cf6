//! The Redis store: usage that many instances share, with one script call per decision.
//!
//! A script evaluates and charges all keys of a request in one step and replies what it found; the
//! decisions are computed from that here. Checks that arrive while a call for the same keys is in
//! flight are batched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
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
use call::{HoldSupport, Reply, Subjects};
use denial_cache::DenialCache;
use examine::Seen;
use held_names::HeldNames;
use hold_places::HoldPlaces;
use invalidation::{Invalidations, PublisherId};
use names::Names;
use native::NativeTerms;
use scripts::Scripts;
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

/// The state that calls use, including calls whose caller has gone away.
#[derive(Debug)]
pub(crate) struct Calls {
    transport: Transport,
    scripts: [Scripts; 2],
    /// Whether a server was found that does not let scripts call `TIME`.
    reads_expiry: AtomicBool,
    times: ServerTimes,
    batcher: Option<Batcher>,
    denial_cache: Option<Arc<DenialCache>>,
    denials: DenialRates,
    held_names: HeldNames,
    hold_places: HoldPlaces,
    publisher: PublisherId,
    /// Notified when another instance publishes a change of the control document.
    control_document_changed: Notify,
    counts: Counts,
}

/// Counters since the store was created.
#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    batched: AtomicU64,
    cached_denials: AtomicU64,
    late: AtomicU64,
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

/// A check with an idempotency key.
struct Once<'a> {
    id: &'a str,
    cost: u64,
    slot: u16,
    names: &'a Names,
}

/// Pause before a call with an idempotency key is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The resolution of expiries, in microseconds.
const EXPIRY_US: u64 = 1000;

/// How often a call that reached the server too late is repeated within its deadline.
const MOST_LATE: u32 = 3;

impl Calls {
    /// Decides these requests with one script call. All keys are in one slot. One answer per cost.
    async fn call(
        &self,
        subjects: &Subjects,
        costs: &[u64],
        deadline: Instant,
        last_failure: &LastFailure,
    ) -> Result<Vec<Answers>, Failure> {
        let slot = self.slot(subjects);
        let mut late = 0;
        let if_held = subjects.hold_support(costs.len());
        let mut support = if self.has_holds(subjects) { if_held } else { HoldSupport::None };
        loop {
            let has_holds = support != HoldSupport::None;
            let keys = if has_holds { subjects.keys_with_holds() } else { subjects.keys() };
            let bound = subjects.reply_bound(false, has_holds);
            let latest = self.latest(slot, &keys, deadline).await?;
            let (script, args) = subjects.call(self.scripts(), costs, latest, support);
            self.counts.calls.fetch_add(1, Ordering::Relaxed);
            let sent = instant();
            let command = subjects.native_command(costs, has_holds);
            let terms = NativeTerms { costs, latest, has_holds, is_once: false };
            let argument = || command.map_or_else(Vec::new, |one| subjects.native_argument(one, terms));
            let native = command.map(|command| Native { command, argument: &argument });
            let call = Call { script, keys: &keys, args: &args, native };
            let replied = self.transport.run(call, bound, deadline, last_failure).await;
            let value = match replied {
                Err(failure) if failure.is_for_holds() && !has_holds => {
                    support = if_held;
                    continue;
                }
                replied => replied.map_err(explain)?,
            };
            let arrived = instant();
            let open = call::open_holds(&value).filter(|_| support == HoldSupport::OneKey);
            match subjects.read(costs, value, support) {
                Ok(Reply::NeedsFullSupport(now)) => {
                    self.observe_time(slot, now, sent, arrived);
                    support = HoldSupport::Full;
                }
                Ok(Reply::Done(answers, now)) => {
                    self.observe_time(slot, now, sent, arrived);
                    if let Some(last) = answers.last().filter(|_| has_holds) {
                        for (subject, decision) in subjects.0.iter().zip(last) {
                            self.held_names.note(&subject.name, decision.held > 0);
                            if let (Some(open), Some(hold)) = (open, &subject.hold)
                                && decision.is_allowed()
                            {
                                self.hold_places.note(&subject.name, hold.id, open, open + 1);
                            }
                        }
                    }
                    return Ok(answers);
                }
                Ok(Reply::Late(now)) => {
                    self.counts.late.fetch_add(1, Ordering::Relaxed);
                    self.observe_time(slot, now, sent, arrived);
                    late += 1;
                    if late >= MOST_LATE || arrived >= deadline {
                        let detail = "met the call past its deadline and charged nothing";
                        return Err(self.failed(slot, Executed::No, FailureKind::Late, detail));
                    }
                }
                Err(unreadable) => return Err(self.misread(slot, &unreadable)),
            }
        }
    }

    /// Checks these subjects of one slot with an idempotency key. Repeats the call until the answer
    /// is known or the deadline has passed.
    async fn call_once(
        &self,
        subjects: &Subjects,
        once: &Once<'_>,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let named = subjects.keys();
        let mut has_holds = self.has_holds(subjects);
        loop {
            let bound = subjects.reply_bound(true, has_holds);
            let latest = self.latest(once.slot, &named, deadline).await?;
            let name = once.names.once(&named, &subjects.what(once.cost), once.id);
            let (keys, script, args) = subjects.call_once(self.scripts(), name, once.cost, latest, has_holds);
            self.counts.calls.fetch_add(1, Ordering::Relaxed);
            let sent = instant();
            let unread = LastFailure::default();
            let costs = &[once.cost];
            let command = subjects.native_command(costs, true);
            let terms = NativeTerms { costs, latest, has_holds, is_once: true };
            let argument = || command.map_or_else(Vec::new, |one| subjects.native_argument(one, terms));
            let native = command.map(|command| Native { command, argument: &argument });
            let call = Call { script, keys: &keys, args: &args, native };
            let replied = self.transport.run(call, bound, deadline, &unread).await;
            match replied.map_err(explain) {
                Ok(value) => match subjects.read_once(once.cost, value) {
                    // Its time is that of the first reply, not of the server's clock now.
                    Ok(Reply::Done(answers, _)) => return Ok(answers.into_iter().next().unwrap_or_default()),
                    Err(unreadable) => return Err(self.misread(once.slot, &unreadable)),
                    Ok(Reply::Late(now) | Reply::NeedsFullSupport(now)) => {
                        self.counts.late.fetch_add(1, Ordering::Relaxed);
                        self.observe_time(once.slot, now, sent, instant());
                    }
                },
                Err(failure) if failure.is_for_holds() && !has_holds => {
                    has_holds = true;
                    continue;
                }
                Err(failure) if failure.kind == FailureKind::ConnectionLost => {}
                Err(failure) => return Err(failure),
            }
            if instant() + RETRY_PAUSE >= deadline {
                let detail = "gave no answer to a call that was made again until its deadline";
                return Err(self.failed(once.slot, Executed::Maybe, FailureKind::Timeout, detail));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// The scripts that the servers let run.
    fn scripts(&self) -> &Scripts {
        &self.scripts[usize::from(self.reads_expiry())]
    }

    /// Whether scripts read the clock by expiries, as they may not call `TIME`.
    fn reads_expiry(&self) -> bool {
        self.reads_expiry.load(Ordering::Relaxed)
    }

    /// The quota by which to count. What is read of a clock lags by up to its resolution, so charges
    /// count for a window and that long: never too short.
    fn counted(&self, quota: Quota) -> Quota {
        if self.reads_expiry() { quota.widened(EXPIRY_US) } else { quota }
    }

    /// Whether the script that knows holds is to be called.
    fn has_holds(&self, subjects: &Subjects) -> bool {
        let names = || subjects.0.iter().map(|subject| subject.name.as_slice());
        subjects.need_holds() || self.held_names.has_one_of(names())
    }

    /// Clears the cached denials of all connected instances, because capacity was freed.
    async fn invalidate_denials(&self, deadline: Instant) {
        self.clear_denials();
        if self.denial_cache.is_some() {
            // An instance that misses the message has lost its subscription and caches nothing.
            let _ = invalidation::publish(self, deadline).await;
        }
    }

    /// Clears the cached denials of this process, because capacity may have been freed.
    fn clear_denials(&self) {
        if let Some(cache) = &self.denial_cache {
            cache.clear();
        }
    }

    /// Deletes a key, with its holds. Returns whether it existed.
    async fn delete(&self, key: &[u8], deadline: Instant) -> Result<bool, Failure> {
        let mut delete = redis::cmd("DEL");
        delete.arg(key).arg(Names::usage(key));
        let deleted = self.transport.command(Some(key), &delete, deadline).await?;
        Ok(number(&deleted).is_some_and(|deleted| deleted > 0))
    }

    /// The latest server time at which a call may still charge. Asks the server for its time if it
    /// is not known yet.
    async fn latest(&self, slot: u16, keys: &[Vec<u8>], deadline: Instant) -> Result<u64, Failure> {
        if let Some(latest) = self.times.latest(slot, deadline) {
            return Ok(latest);
        }
        let key = keys.first().map(Vec::as_slice);
        let sent = instant();
        let time = self.server_time(key, deadline).await?;
        let arrived = instant();
        let Some(us) = time_of(&time) else {
            let detail = format!("answered TIME with {time:?}");
            return Err(self.failed(slot, Executed::No, FailureKind::Malformed, &detail));
        };
        self.observe_time(slot, us, sent, arrived);
        // If the clock was set back meanwhile, this call is late and is repeated.
        Ok(self.times.latest(slot, deadline).unwrap_or(MOST))
    }

    /// The time of the server that has this key.
    async fn server_time(&self, key: Option<&[u8]>, deadline: Instant) -> Result<Value, Failure> {
        if !self.reads_expiry() {
            return self.transport.command(key, &redis::cmd("TIME"), deadline).await;
        }
        let keys = [key.unwrap_or_default().to_vec()];
        let call = Call { script: self.scripts().server_time(), keys: &keys, args: &[], native: None };
        self.transport.run(call, ReplyBound::SMALL, deadline, &LastFailure::default()).await
    }

    /// Records the server time of a reply to a call of this slot.
    fn observe_time(&self, slot: u16, server_us: u64, sent: Instant, arrived: Instant) {
        self.times.observe_time(slot, server_us, (sent, arrived), || self.transport.holder_name(slot));
    }

    /// The slot of the first key.
    fn slot(&self, subjects: &Subjects) -> u16 {
        subjects.0.first().map_or(0, |subject| self.transport.slot(&subject.name))
    }

    /// Counts a failure found in a reply.
    fn failed(&self, slot: u16, executed: Executed, kind: FailureKind, detail: &str) -> Failure {
        // It may show the reply.
        let detail = transport::line(detail);
        let failure = Failure { executed, kind, node: self.transport.holder_name(slot), detail };
        self.transport.count(&failure);
        failure
    }

    fn misread(&self, slot: u16, unreadable: &call::Unreadable) -> Failure {
        let detail = format!("the script replied {}; is its key written by something else?", unreadable.0);
        self.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail)
    }
}

/// The microseconds of a reply to `TIME`.
fn time_of(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let [secs, micros] = parts.as_slice() else { return None };
    number(secs)?.checked_mul(1_000_000)?.checked_add(number(micros)?).filter(|us| *us <= MOST)
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Adds what a server's error means for the keys, and how to fix it.
fn explain(mut failure: Failure) -> Failure {
    if matches!(failure.kind, FailureKind::ForeignValue | FailureKind::WrongType) {
        failure.executed = Executed::No;
        failure.detail += "; another program writes keys that begin with `sg1:`, or a newer slidegate does: give this one a \
                           database of its own, or upgrade";
    }
    // Redis 7.0 does not say which; newer ones do.
    if failure.kind == FailureKind::NoPermission && failure.detail.contains("can't run this command") {
        failure.detail += "; scripts call time, get, set, getrange, setrange, strlen, exists, rename, pexpire and del, \
                           and pttl and pexpiretime where one server refuses time: allow its user all of them";
    }
    failure
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
            scripts: [Scripts::new(false), Scripts::new(true)],
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
        // Who waits must find out what other instances settle.
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
