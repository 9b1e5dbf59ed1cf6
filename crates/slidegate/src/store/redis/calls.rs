//! Calls: sends what a decision needs to the server that has its keys, until it is known or too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::batch::Batcher;
use super::call::{self, Answers, HoldSupport, MOST, Reply, Subjects};
use super::denial_cache::DenialCache;
use super::held_names::HeldNames;
use super::hold_places::HoldPlaces;
use super::invalidation::{self, PublisherId};
use super::names::Names;
use super::native::NativeTerms;
use super::scripts::Scripts;
use super::server_time::ServerTimes;
use super::spread::DenialRates;
use super::transport::{
    self, Call, Executed, Failure, FailureKind, LastFailure, Native, ReplyBound, Transport,
};
use crate::quota::Quota;
use crate::time::instant;

/// The state that calls use, including calls whose caller has gone away.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(super) transport: Transport,
    /// Whether a server was found that does not let scripts call `TIME`.
    pub(super) reads_expiry: AtomicBool,
    pub(super) times: ServerTimes,
    pub(super) batcher: Option<Batcher>,
    pub(super) denial_cache: Option<Arc<DenialCache>>,
    pub(super) denials: DenialRates,
    pub(super) held_names: HeldNames,
    pub(super) hold_places: HoldPlaces,
    pub(super) publisher: PublisherId,
    /// Notified when another instance publishes a change of the control document.
    pub(super) control_document_changed: Notify,
    pub(super) counts: Counts,
}

/// Counters since the store was created.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) calls: AtomicU64,
    pub(super) batched: AtomicU64,
    pub(super) cached_denials: AtomicU64,
    pub(super) late: AtomicU64,
}

/// A check with an idempotency key.
pub(super) struct Once<'a> {
    pub(super) id: &'a str,
    pub(super) cost: u64,
    pub(super) slot: u16,
    pub(super) names: &'a Names,
}

/// Pause before a call with an idempotency key is repeated.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The resolution of expiries, in microseconds.
pub(super) const EXPIRY_US: u64 = 1000;

/// How often a call that reached the server too late is repeated within its deadline.
const MOST_LATE: u32 = 3;

impl Calls {
    /// Decides these requests with one script call. All keys are in one slot. One answer per cost.
    pub(super) async fn call(
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
    pub(super) async fn call_once(
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
    pub(super) fn scripts(&self) -> &'static Scripts {
        Scripts::of(self.reads_expiry())
    }

    /// Whether scripts read the clock by expiries, as they may not call `TIME`.
    pub(super) fn reads_expiry(&self) -> bool {
        self.reads_expiry.load(Ordering::Relaxed)
    }

    /// The quota by which to count. What is read of a clock lags by up to its resolution, so charges
    /// count for a window and that long: never too short.
    pub(super) fn counted(&self, quota: Quota) -> Quota {
        if self.reads_expiry() { quota.widened(EXPIRY_US) } else { quota }
    }

    /// Whether the script that knows holds is to be called.
    pub(super) fn has_holds(&self, subjects: &Subjects) -> bool {
        let names = || subjects.0.iter().map(|subject| subject.name.as_slice());
        subjects.need_holds() || self.held_names.has_one_of(names())
    }

    /// Clears the cached denials of all connected instances, because capacity was freed.
    pub(super) async fn invalidate_denials(&self, deadline: Instant) {
        self.clear_denials();
        if self.denial_cache.is_some() {
            // An instance that misses the message has lost its subscription and caches nothing.
            let _ = invalidation::publish(self, deadline).await;
        }
    }

    /// Clears the cached denials of this process, because capacity may have been freed.
    pub(super) fn clear_denials(&self) {
        if let Some(cache) = &self.denial_cache {
            cache.clear();
        }
    }

    /// Deletes a key, with its holds. Returns whether it existed.
    pub(super) async fn delete(&self, key: &[u8], deadline: Instant) -> Result<bool, Failure> {
        let mut delete = redis::cmd("DEL");
        delete.arg(key).arg(Names::usage(key));
        let deleted = self.transport.command(Some(key), &delete, deadline).await?;
        Ok(number(&deleted).is_some_and(|deleted| deleted > 0))
    }

    /// The latest server time at which a call may still charge. Asks the server for its time if it
    /// is not known yet.
    pub(super) async fn latest(
        &self,
        slot: u16,
        keys: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<u64, Failure> {
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
    pub(super) async fn server_time(&self, key: Option<&[u8]>, deadline: Instant) -> Result<Value, Failure> {
        if !self.reads_expiry() {
            return self.transport.command(key, &redis::cmd("TIME"), deadline).await;
        }
        let keys = [key.unwrap_or_default().to_vec()];
        let call = Call { script: self.scripts().server_time(), keys: &keys, args: &[], native: None };
        self.transport.run(call, ReplyBound::SMALL, deadline, &LastFailure::default()).await
    }

    /// Records the server time of a reply to a call of this slot.
    pub(super) fn observe_time(&self, slot: u16, server_us: u64, sent: Instant, arrived: Instant) {
        self.times.observe_time(slot, server_us, (sent, arrived), || self.transport.holder_name(slot));
    }

    /// The slot of the first key.
    pub(super) fn slot(&self, subjects: &Subjects) -> u16 {
        subjects.0.first().map_or(0, |subject| self.transport.slot(&subject.name))
    }

    /// Counts a failure found in a reply.
    pub(super) fn failed(&self, slot: u16, executed: Executed, kind: FailureKind, detail: &str) -> Failure {
        // It may show the reply.
        let detail = transport::line(detail);
        let failure = Failure { executed, kind, node: self.transport.holder_name(slot), detail };
        self.transport.count(&failure);
        failure
    }

    pub(super) fn misread(&self, slot: u16, unreadable: &call::Unreadable) -> Failure {
        let detail = format!("the script replied {}; is its key written by something else?", unreadable.0);
        self.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail)
    }
}

/// The microseconds of a reply to `TIME`.
pub(super) fn time_of(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let [secs, micros] = parts.as_slice() else { return None };
    number(secs)?.checked_mul(1_000_000)?.checked_add(number(micros)?).filter(|us| *us <= MOST)
}

pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Adds what a server's error means for the keys, and how to fix it.
pub(super) fn explain(mut failure: Failure) -> Failure {
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
