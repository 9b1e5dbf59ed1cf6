//! Calls: send a decision's script to the server of its keys, and retry until the result is known
//! or the deadline has passed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use redis_once::{Call, Client, Executed, Failure, FailureKind, LastFailure, Native, ReplyBound};
use slidegate::Quota;
use slidegate::clock::Timestamp;
use slidegate::internal::instant;
use slidegate::store::BoxFuture;
use tokio::time::Instant;

use crate::call::{Answers, CallTerms, MOST, Subjects};
use crate::held_keys::HeldKeys;
use crate::invalidation::Denials;
use crate::leases::Leases;
use crate::names::Names;
use crate::native::NativeCommand;
use crate::reply::{Grant, Reply, Unreadable, number, read};
use crate::scripts::Scripts;
use crate::server_time::ServerTimes;

/// The answers on each request of a call, the server's time in microseconds, and the leases that it was granted.
type Decided = (Vec<Answers>, u64, Vec<Grant>);

/// The state of calls, including those whose caller is gone.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(super) client: Arc<Client>,
    /// Maximum duration of a decision.
    pub(super) patience: Duration,
    /// Whether a server was found that does not let scripts call `TIME`.
    pub(super) reads_expiry: AtomicBool,
    pub(super) times: ServerTimes,
    pub(super) denials: Arc<Denials>,
    pub(super) held: HeldKeys,
    pub(super) leases: Arc<Leases>,
    /// This, for tasks that must not keep it alive.
    pub(super) own: Weak<Self>,
    pub(super) counts: Counts,
}

/// Counters since the store was created.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) calls: AtomicU64,
    pub(super) batched: AtomicU64,
    pub(super) cached_denials: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) instances_replaced: AtomicU64,
}

/// Pause before a safe call is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The resolution of expiries, in microseconds.
pub(super) const EXPIRY_US: u64 = 1000;

/// Interval at which leases that calls in flight have brought are looked for at the end.
const RETURNS: Duration = Duration::from_millis(1);

/// Maximum retries, within the deadline, of a call that reached the server too late.
const MOST_LATE: u32 = 3;

impl Calls {
    /// Decides one request by a call of its own.
    pub(super) async fn decide_alone(
        &self,
        subjects: &Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let last_failure = LastFailure::default();
        // Boxed, because rustc limits how deep futures may nest in those of a caller.
        let answers = Box::pin(self.call(subjects, &[cost], None, deadline, &last_failure)).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// Decides these requests with one script call. All keys are in one slot. One answer per cost.
    ///
    /// With an idempotency key, the first reply is stored under the name `once`, in the slot of the
    /// keys. Then the call is repeated if its connection is lost.
    pub(super) async fn call(
        &self,
        subjects: &Subjects,
        costs: &[u64],
        once: Option<&[u8]>,
        deadline: Instant,
        last_failure: &LastFailure,
    ) -> Result<Vec<Answers>, Failure> {
        let slot = self.slot(subjects);
        let (mut late, mut executed) = (0, Executed::No);
        let is_once = once.is_some();
        let mut asked =
            (!is_once).then(|| self.leases.ask(subjects, costs, self.denials.cache.is_subscribed()));
        let has_leases = asked.as_ref().is_some_and(|asked| !asked.terms.is_empty());
        if costs.is_empty() && !has_leases {
            return Ok(Vec::new());
        }
        let mut has_holds = has_leases || self.has_holds(subjects);
        loop {
            let mut keys = if has_holds { subjects.keys_with_holds() } else { subjects.keys() };
            let latest = self.latest(slot, &keys, deadline).await?;
            keys.extend(once.map(<[u8]>::to_vec));
            let leases = asked.as_ref().map_or(&[][..], |asked| &asked.terms);
            let terms = CallTerms { costs, latest, has_holds, is_once, leases };
            let (script, args) = subjects.call(self.scripts(), terms);
            self.counts.calls.fetch_add(1, Ordering::Relaxed);
            let command = subjects.native_command(terms);
            let build = || {
                let command = command.unwrap_or(NativeCommand::Decide);
                command.call(&keys, &args, subjects.native_argument(command, terms))
            };
            let native = command.map(|command| Native { command: command as usize, build: &build });
            let call = Call { script, keys: &keys, args: &args, native };
            let bound = subjects.reply_bound(is_once, has_holds);
            let sent = self.now();
            let value = match self.reply(self.client.run(call, bound, deadline, last_failure).await) {
                Err(failure) if is_for_holds(&failure) && !has_holds => {
                    has_holds = true;
                    continue;
                }
                Err(failure) if failure.kind == FailureKind::ConnectionLost && is_once => {
                    executed = Executed::Maybe;
                    self.pause(slot, deadline).await?;
                    continue;
                }
                replied => replied?,
            };
            if let Some((answers, executed_us, grants)) = self.answers(slot, subjects, terms, value, sent)? {
                let moments = (sent, executed_us, self.now());
                for lease in asked.iter_mut().flat_map(|asked| asked.granted(subjects, &grants, moments)) {
                    tokio::spawn(renew(Weak::clone(&self.own), lease));
                }
                return Ok(answers);
            }
            late += 1;
            if late >= MOST_LATE || instant() >= deadline {
                let detail = "met the call past its deadline and charged nothing";
                return Err(self.failed(slot, executed, FailureKind::Late, detail));
            }
        }
    }

    /// Settles the lease of a key, and asks for another one if that pays. If it fails, the store charges all of it at
    /// its end.
    async fn settle(&self, subjects: &Subjects) {
        let _ = Box::pin(self.call(subjects, &[], None, self.deadline(), &LastFailure::default())).await;
    }

    /// Settles all leases, and takes no others from now on. Returns when no call about leases is in flight.
    pub(super) async fn return_leases(&self) {
        self.leases.close();
        loop {
            let is_last = !self.leases.is_called();
            for subject in self.leases.open() {
                self.settle(&subject).await;
            }
            if is_last {
                return;
            }
            tokio::time::sleep(RETURNS).await;
        }
    }

    /// The answers in the reply to a call that was sent at this time: `None` if the call came too
    /// late and has charged nothing.
    fn answers(
        &self,
        slot: u16,
        subjects: &Subjects,
        terms: CallTerms<'_>,
        reply: Value,
        sent: Timestamp,
    ) -> Result<Option<Decided>, Failure> {
        let arrived = self.now();
        match read(subjects, terms, reply).map_err(|unreadable| self.misread(slot, &unreadable))? {
            // Its time is the first reply's, not the server's current one.
            Reply::Done(answers, now, _) if terms.is_once => Ok(Some((answers, now, Vec::new()))),
            Reply::Done(answers, now, grants) => {
                self.observe_time(slot, now, sent, arrived);
                if let Some(last) = answers.last().filter(|_| terms.has_holds) {
                    for ((at, subject), decision) in subjects.0.iter().enumerate().zip(last) {
                        let has_holds = decision.held > 0 || grants.iter().any(|grant| grant.subject == at);
                        self.held.note(&subject.name, has_holds, arrived);
                    }
                }
                Ok(Some((answers, now, grants)))
            }
            Reply::Late(now) => {
                self.counts.late.fetch_add(1, Ordering::Relaxed);
                self.observe_time(slot, now, sent, arrived);
                Ok(None)
            }
        }
    }

    /// The reply to a script, or to the command of the module instead. Counts and explains a failure.
    pub(super) fn reply(&self, reply: Result<Value, Failure>) -> Result<Value, Failure> {
        reply
            .inspect_err(|failure| {
                if !is_for_holds(failure) {
                    self.client.count(failure);
                }
            })
            .map_err(explain)
    }

    /// Pauses before retrying a call that is safe to execute twice.
    ///
    /// # Errors
    /// If the deadline is too near.
    pub(super) async fn pause(&self, slot: u16, deadline: Instant) -> Result<(), Failure> {
        if instant() + RETRY_PAUSE >= deadline {
            let detail = "gave no answer to a call that was made again until its deadline";
            return Err(self.failed(slot, Executed::Maybe, FailureKind::Timeout, detail));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        Ok(())
    }

    /// The deadline of a decision that starts now.
    pub(super) fn deadline(&self) -> Instant {
        instant() + self.patience
    }

    /// The scripts that the servers let run.
    pub(super) fn scripts(&self) -> &'static Scripts {
        Scripts::of(self.reads_expiry())
    }

    /// Whether scripts read the clock from expiries, because they may not call `TIME`.
    pub(super) fn reads_expiry(&self) -> bool {
        self.reads_expiry.load(Ordering::Relaxed)
    }

    /// The quota to count by. A clock read from expiries lags by up to its resolution, so charges
    /// count for the window plus that: never too short.
    pub(super) fn counted(&self, quota: Quota) -> Quota {
        if self.reads_expiry() { quota.widened(EXPIRY_US) } else { quota }
    }

    /// Whether to call the script for holds.
    fn has_holds(&self, subjects: &Subjects) -> bool {
        let names = || subjects.0.iter().map(|subject| subject.name.as_slice());
        subjects.need_holds() || self.held.have_one_of(names())
    }

    /// Deletes a key, with its holds. Returns whether it existed.
    pub(super) async fn delete(&self, key: &[u8], deadline: Instant) -> Result<bool, Failure> {
        let mut delete = redis::cmd("DEL");
        delete.arg(key).arg(Names::usage(key));
        let deleted = self.client.command(Some(key), &delete, deadline).await?;
        Ok(number(&deleted).is_some_and(|deleted| deleted > 0))
    }

    /// The latest server time at which a call may still charge. Asks the server for its time if it
    /// is not known.
    pub(super) async fn latest(
        &self,
        slot: u16,
        keys: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<u64, Failure> {
        let (sent, left) = (self.now(), deadline.saturating_duration_since(instant()));
        if let Some(latest) = self.times.latest(slot, sent + left) {
            return Ok(latest);
        }
        let us = self.server_time(keys.first().map_or(&[], Vec::as_slice), deadline).await?;
        self.observe_time(slot, us, sent, self.now());
        // If the clock was set back meanwhile, this call is late and is repeated.
        Ok(self.times.latest(slot, sent + left).unwrap_or(MOST))
    }

    /// The time of the server that has this key, in microseconds.
    pub(super) async fn server_time(&self, key: &[u8], deadline: Instant) -> Result<u64, Failure> {
        let time = if self.reads_expiry() {
            let keys = [key.to_vec()];
            let call = Call { script: &self.scripts().server_time, keys: &keys, args: &[], native: None };
            self.reply(self.client.run(call, ReplyBound::SMALL, deadline, &LastFailure::default()).await)?
        } else {
            self.client.command(Some(key), &redis::cmd("TIME"), deadline).await?
        };
        time_of(&time).ok_or_else(|| {
            let (slot, detail) = (self.client.slot(key), format!("answered TIME with {time:?}"));
            self.failed(slot, Executed::No, FailureKind::Malformed, &detail)
        })
    }

    /// The time by a clock that goes on while the machine is suspended, as that of the servers does.
    pub(super) fn now(&self) -> Timestamp {
        self.leases.now()
    }

    /// Records the server time of a reply to a call of this slot.
    pub(super) fn observe_time(&self, slot: u16, server_us: u64, sent: Timestamp, arrived: Timestamp) {
        self.times.observe_time(slot, server_us, (sent, arrived), || self.client.holder_name(slot));
    }

    /// The slot of the first key.
    pub(super) fn slot(&self, subjects: &Subjects) -> u16 {
        subjects.0.first().map_or(0, |subject| self.client.slot(&subject.name))
    }

    /// Whether one call can decide them.
    pub(super) fn are_in_one_slot(&self, subjects: &Subjects) -> bool {
        let slot = self.slot(subjects);
        subjects.0.iter().skip(1).all(|subject| self.client.slot(&subject.name) == slot)
    }

    /// Counts a failure found in a reply.
    pub(super) fn failed(&self, slot: u16, executed: Executed, kind: FailureKind, detail: &str) -> Failure {
        // It may show the reply.
        let detail = redis_once::line(detail);
        let failure = Failure { executed, kind, node: self.client.holder_name(slot), detail };
        self.client.count(&failure);
        failure
    }

    /// A failure of a reply that cannot be read. The next call asks for the server's time.
    pub(super) fn misread(&self, slot: u16, unreadable: &Unreadable) -> Failure {
        self.times.doubt(slot);
        let detail = format!("the script replied {}; is its key written by something else?", unreadable.0);
        self.failed(slot, Executed::Maybe, FailureKind::Malformed, &detail)
    }
}

/// Renews a lease of this key and id after a time, before its end, or settles it, if it is still open by then. Boxed,
/// because the call that renews it spawns the next.
fn renew(calls: Weak<Calls>, (key, id, after): (u128, u64, Duration)) -> BoxFuture<'static, ()> {
    // Not when the task first runs, which may be late.
    let at = instant() + after;
    Box::pin(async move {
        tokio::time::sleep_until(at).await;
        let Some(calls) = calls.upgrade() else { return };
        if let Some(subject) = calls.leases.due(key, id) {
            calls.settle(&subject).await;
        }
    })
}

/// The microseconds of a reply to `TIME`.
pub(super) fn time_of(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let [secs, micros] = parts.as_slice() else { return None };
    number(secs)?.checked_mul(1_000_000)?.checked_add(number(micros)?).filter(|us| *us <= MOST)
}

/// Whether a script that knows no holds has read a key that has some. The call is repeated with the script that
/// knows them.
fn is_for_holds(failure: &Failure) -> bool {
    failure.kind == FailureKind::ForeignValue && failure.detail.contains("its first byte is 21")
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
