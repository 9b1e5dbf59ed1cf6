//! Events: a denial, an expired reservation, a key that reached a share of its limit, a key blocked by
//! escalation, or a total of a closed period.
//!
//! Events go to a ring buffer in memory, to subscribers, and to the log. A separate thread writes
//! the log, so a slow or stuck log never delays a decision. A library limiter limits each output
//! per key, so one key cannot flood it. Suppressed events are counted.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use slidegate::{
    Amount, DecisionSource, Limiter, MemoryStore, Policy, PolicyDecision, Quota, Reason, Secret,
    clock::Timestamp,
};
use slidegate_config::policy::KeysShown;
use slidegate_http::headers::millis_ceil;
use tokio::sync::broadcast;

use super::event_parts::{Blocked, ClosedPeriod, Expired, Period};
use super::notifications::Crossing;
use super::redaction::Redactor;
use crate::caller::Protocol;
use crate::engine::explanation;
use crate::log_limit::{LogLimit, LogRates};
use crate::wire::key_text::KeyText;

/// Capacity of the ring buffer: at most a megabyte.
pub(crate) const EVENTS_KEPT: usize = 1024;
/// Maximum events per key and second in the ring buffer and for subscribers.
const OF_A_KEY: u64 = 10;
/// Minimum interval between two log lines about one key.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// Maximum log lines per second, for all keys.
const LOGGED_A_SECOND: u64 = 20;
/// Capacity of the queue to the log.
const LOG_QUEUE: usize = 256;
/// Maximum keys with a tracked rate. With more keys denied at once, some are reported too often.
const RATED_KEYS: usize = 4096;
/// Messages a subscriber may lag behind before it misses some.
const BEHIND: usize = 1024;

/// One denial, a reservation that was not settled in time, or a key near its limit or blocked for
/// its denials.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Event {
    /// Sequence number of recorded events, from 1.
    pub(crate) seq: u64,
    #[schemars(with = "String")]
    #[serde(serialize_with = "as_text")]
    at: Timestamp,
    pub(crate) policy: String,
    /// The key, redacted as its policy configures.
    pub(crate) key: String,
    /// The key's values by attribute, redacted likewise.
    attributes: serde_json::Map<String, serde_json::Value>,
    limit: u64,
    window_ms: u64,
    algorithm: &'static str,
    #[schemars(with = "f64", range(min = 0))]
    used: Amount,
    /// Cost that open reservations hold.
    #[schemars(with = "f64", range(min = 0))]
    #[serde(skip_serializing_if = "is_zero")]
    held: Amount,
    #[schemars(with = "f64", range(min = 0))]
    cost: Amount,
    /// `null`: the cost never fits.
    retry_after_ms: Option<u64>,
    /// The reason: `over_limit`, `blocked`, `too_many_holds`, `store_full`, `queue_full` or `store_unavailable`;
    /// `expired`; `threshold`; `escalated`; `closed`.
    reason: &'static str,
    /// The share of the limit that was reached, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u8>,
    /// The period of which `used` is the total.
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<Box<Period>>,
    /// When the reservation ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// The block of the key, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Blocked>,
    source: &'static str,
    /// Why the shared store did not decide, if a fallback did.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_failure: Option<String>,
    mode: &'static str,
    protocol: &'static str,
    /// `deny`, `expired` or `notify`.
    verdict: &'static str,
    #[serde(skip)]
    keys_shown: KeysShown,
    /// The unredacted key, for lookups by links. It never leaves this process. Empty if it is
    /// longer than a lookup accepts.
    #[serde(skip)]
    raw: Secret<Box<str>>,
}

/// The verdict of an event about a denial.
const DENY: &str = "deny";
/// The verdict and reason of an expired reservation.
const EXPIRED: &str = "expired";
/// The verdict of a key that reached a share of its limit, was blocked by escalation or whose period closed; then
/// the reasons.
const NOTIFY: &str = "notify";
const THRESHOLD: &str = "threshold";
const ESCALATED: &str = "escalated";
const CLOSED: &str = "closed";
/// The webhook's message types for these reasons.
const THRESHOLD_REACHED: &str = "limit.threshold_reached";
const KEY_BLOCKED: &str = "key.blocked";
const PERIOD_CLOSED: &str = "period.closed";

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn is_zero(amount: &Amount) -> bool {
    *amount == Amount::default()
}

fn as_text<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&explanation::time(*at))
}

/// Matches events that have all given fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) policy: Option<String>,
    /// The key, redacted or not.
    pub(crate) key: Option<String>,
    /// Whether `key` is unredacted. Different keys may have one redacted text.
    pub(crate) is_exact: bool,
    /// Whether only denials match.
    pub(crate) only_denials: bool,
}

/// A message to subscribers.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Denial(Arc<Event>),
    /// The decisions of the last second, as JSON.
    Rates(Arc<str>),
    /// Policies, the config or run-time changes have changed.
    Changed,
    /// The service is shutting down.
    End,
}

/// The outputs of events.
#[derive(Debug)]
pub(crate) struct Events {
    ring: Mutex<Ring>,
    rates: Limiter,
    log_limit: LogLimit,
    log: Option<SyncSender<LogLine>>,
    listeners: broadcast::Sender<Message>,
    redactor: Arc<Redactor>,
    left_out: AtomicU64,
}

#[derive(Debug, Default)]
struct Ring {
    last_seq: u64,
    /// Oldest first.
    events: VecDeque<Arc<Event>>,
}

impl Events {
    /// `logged`: also writes events to the log.
    pub(crate) fn new(redactor: Arc<Redactor>, logged: bool) -> Self {
        let limiter = |quota| Limiter::with_store(quota, MemoryStore::builder().max_keys(RATED_KEYS).build());
        let every = Quota::new(1, LOGGED_EVERY).expect("a positive interval is a window");
        Self {
            ring: Mutex::default(),
            rates: limiter(Quota::per_second(OF_A_KEY)),
            log_limit: LogLimit::new(
                LogRates { each: every, all: Quota::per_second(LOGGED_A_SECOND), max_clients: RATED_KEYS },
                &MemoryStore::builder(),
            ),
            log: logged.then(start_log).flatten(),
            listeners: broadcast::channel(BEHIND).0,
            redactor,
            left_out: AtomicU64::new(0),
        }
    }

    /// Records, publishes and logs a denial, within its key's rate. `denies`: it denied the
    /// request.
    pub(crate) fn record(
        &self,
        protocol: Protocol,
        one: &PolicyDecision<'_>,
        key: &str,
        keys_shown: KeysShown,
        denies: bool,
    ) {
        let Some(rated) = self.rated(one.policy(), key) else { return };
        self.publish(self.of_denial(protocol, one, key, keys_shown, denies), &rated);
    }

    pub(crate) fn of_denial(
        &self,
        protocol: Protocol,
        one: &PolicyDecision<'_>,
        key: &str,
        keys_shown: KeysShown,
        denies: bool,
    ) -> Event {
        let (policy, quota) = (one.policy(), one.quota());
        // A peek of cost 0 always fits, so report the time until the key is unused.
        let (reason, wait) = match one.decision().reason() {
            Some(reason) => (reason, one.decision().retry_after()),
            None if one.decision().is_blocked() => (Reason::Blocked, one.decision().frees_after()),
            None => (Reason::OverLimit, Some(one.decision().reset_after())),
        };
        Event {
            at: one.decision().at(),
            limit: one.decision().limit(),
            window_ms: millis_ceil(quota.window()),
            algorithm: quota.algorithm().name(),
            used: one.decision().amounts().used,
            held: one.decision().amounts().held,
            cost: one.asked(),
            retry_after_ms: wait.map(millis_ceil),
            reason: reason.name(),
            block: one.block().map(Blocked::from),
            store_failure: one.store_failure().map(ToString::to_string),
            source: one.decision().source().name(),
            mode: if denies { "enforce" } else { "shadow" },
            protocol: protocol.name(),
            verdict: DENY,
            ..self.of_key(policy, key, keys_shown)
        }
    }

    /// Records, publishes and logs an expired reservation, within its key's rate.
    pub(crate) fn record_expired(&self, one: &Expired, policy: &Policy, keys_shown: KeysShown) {
        let Some(rated) = self.rated(policy, &one.key) else { return };
        let event = Event {
            at: one.until,
            limit: one.limit,
            window_ms: millis_ceil(one.quota.window()),
            algorithm: one.quota.algorithm().name(),
            used: one.used + policy.options().counts.amount(one.cost),
            held: policy.options().counts.amount(one.held),
            cost: policy.options().counts.amount(one.cost),
            reason: EXPIRED,
            until: Some(explanation::time(one.until)),
            protocol: one.protocol.name(),
            verdict: EXPIRED,
            ..self.of_key(policy, &one.key, keys_shown)
        };
        self.publish(event, &rated);
    }

    pub(crate) fn of_crossing(&self, one: &Crossing, policy: &Policy, keys_shown: KeysShown) -> Event {
        Event {
            at: one.at,
            limit: one.limit,
            window_ms: millis_ceil(one.window),
            algorithm: one.algorithm,
            used: one.used,
            held: one.held,
            cost: one.cost,
            threshold: Some(one.threshold),
            source: one.source,
            mode: if one.is_enforced { "enforce" } else { "shadow" },
            protocol: one.protocol.name(),
            ..self.of_key(policy, &one.key, keys_shown)
        }
    }

    pub(crate) fn of_closed(&self, one: &ClosedPeriod<'_>, keys_shown: KeysShown) -> Event {
        Event {
            at: one.ended,
            limit: one.limit,
            window_ms: millis_ceil(one.ended - one.begins()),
            used: one.used,
            reason: CLOSED,
            period: Some(Box::new(one.period())),
            ..self.of_key(one.policy, one.key, keys_shown)
        }
    }

    /// A notification about a key, without its numbers.
    fn of_key(&self, policy: &Policy, key: &str, keys_shown: KeysShown) -> Event {
        Event {
            seq: 0,
            at: Timestamp::EPOCH,
            policy: policy.name().to_owned(),
            key: self.redactor.show(key, keys_shown).into_owned(),
            attributes: self.attributes(policy, key, keys_shown),
            limit: 0,
            window_ms: 0,
            algorithm: policy.quota().algorithm().name(),
            used: Amount::default(),
            held: Amount::default(),
            cost: Amount::default(),
            retry_after_ms: None,
            reason: THRESHOLD,
            threshold: None,
            period: None,
            until: None,
            block: None,
            source: DecisionSource::Store.name(),
            store_failure: None,
            mode: if policy.options().enforced { "enforce" } else { "shadow" },
            protocol: "none",
            verdict: NOTIFY,
            keys_shown,
            raw: raw(key),
        }
    }

    /// Records, publishes and logs a total, within its policy's rate: all keys of a policy close at once.
    pub(crate) fn record_closed(&self, event: Event) {
        let rated = format!("{}:{CLOSED}", event.policy);
        if self.rates.check(&rated).is_denied() {
            return self.leave_out();
        }
        self.publish(event, &rated);
    }

    /// Records, publishes and logs a crossing. Its log limit is separate from that of the key's
    /// denials.
    pub(crate) fn record_crossing(&self, event: Event, one: &Crossing) {
        let rated = format!("{}:{}:{}", one.policy, one.threshold, one.key);
        self.publish(event, &rated);
    }

    /// The key to rate-limit events by; `None` if this key has too many.
    fn rated(&self, policy: &Policy, key: &str) -> Option<String> {
        let rated = [policy.name(), ":", key].concat();
        if self.rates.check(&rated).is_denied() {
            self.leave_out();
            return None;
        }
        Some(rated)
    }

    /// A key's values by attribute. Without a scope the key is `*` and has none.
    fn attributes(
        &self,
        policy: &Policy,
        key: &str,
        keys_shown: KeysShown,
    ) -> serde_json::Map<String, serde_json::Value> {
        let values = key.split(',').map(|value| self.redactor.show(value, keys_shown).into());
        policy.scope().iter().cloned().zip(values).collect()
    }

    fn publish(&self, event: Event, rated: &str) {
        let event = self.keep(event);
        if let Some(log) = &self.log
            && let Some(suppressed) = self.log_limit.admit_key(rated.as_bytes())
        {
            // A stuck log loses lines; it never delays decisions.
            let _ = log.try_send(LogLine { event, suppressed });
        }
    }

    /// Records and publishes an event, without logging it.
    pub(crate) fn keep(&self, mut event: Event) -> Arc<Event> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last_seq += 1;
        event.seq = ring.last_seq;
        let event = Arc::new(event);
        let oldest = if ring.events.len() == EVENTS_KEPT { ring.events.pop_front() } else { None };
        ring.events.push_back(Arc::clone(&event));
        // Under the lock, so that subscribers receive events in order.
        self.send(Message::Denial(Arc::clone(&event)));
        drop(ring);
        drop(oldest);
        event
    }

    /// Counts an event that is not recorded.
    pub(crate) fn leave_out(&self) {
        self.left_out.fetch_add(1, Relaxed);
    }

    /// Events not recorded because of rate limits.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// The newest events, newest first.
    pub(crate) fn recent(&self, filter: &Filter, limit: usize) -> Vec<Arc<Event>> {
        let (events, _) = self.kept();
        events.into_iter().rev().filter(|event| self.matches(event, filter)).take(limit).collect()
    }

    /// The recorded events, oldest first, and the last sequence number. Copied, because callers
    /// hash keys and denials must not wait for that.
    fn kept(&self) -> (Vec<Arc<Event>>, u64) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        (ring.events.iter().cloned().collect(), ring.last_seq)
    }

    /// The recorded events after `seq`, oldest first. A future `seq` is from before a restart and
    /// returns all.
    pub(crate) fn after(&self, seq: u64, filter: &Filter) -> Vec<Arc<Event>> {
        let (events, last_seq) = self.kept();
        let seq = if seq > last_seq { 0 } else { seq };
        events.into_iter().filter(|event| event.seq > seq && self.matches(event, filter)).collect()
    }

    pub(crate) fn matches(&self, event: &Event, filter: &Filter) -> bool {
        let is_key = |key: &String| {
            if filter.is_exact {
                return **event.raw.expose() == **key;
            }
            *key == event.key || self.redactor.show(key, event.keys_shown) == event.key
        };
        filter.policy.as_ref().is_none_or(|policy| *policy == event.policy)
            && (event.verdict == DENY || !filter.only_denials)
            && filter.key.as_ref().is_none_or(is_key)
    }

    /// The unredacted keys of a policy's recorded events that are shown as this text.
    pub(crate) fn keys_shown_as(&self, policy: &str, shown: &str) -> Vec<Box<str>> {
        let (events, _) = self.kept();
        let same = events.iter().filter(|event| event.policy == policy && event.key == shown);
        same.map(|event| event.raw.expose().clone()).filter(|raw| !raw.is_empty()).collect()
    }

    /// Drops a policy's events, because its redaction changed.
    pub(crate) fn forget(&self, policy: &str) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.retain(|event| event.policy != policy);
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Message> {
        self.listeners.subscribe()
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners.receiver_count() > 0
    }

    pub(crate) fn send(&self, message: Message) {
        // Fails without subscribers.
        let _ = self.listeners.send(message);
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The unredacted key, kept for lookups.
fn raw(key: &str) -> Secret<Box<str>> {
    Secret::new(if key.len() > KeyText::MAX { "" } else { key }.into())
}

impl Event {
    /// The event's name in streams.
    pub(crate) fn name(&self) -> &'static str {
        match self.verdict {
            EXPIRED => EXPIRED,
            NOTIFY => "notification",
            _ => "denial",
        }
    }

    /// The event of the block that this denial earned.
    pub(crate) fn escalated(&self, until_ms: u64, by: &str) -> Self {
        let until = Timestamp::from_micros(until_ms.saturating_mul(1000));
        Self {
            retry_after_ms: Some(until_ms.saturating_sub(self.at.as_micros() / 1000)),
            reason: ESCALATED,
            block: Some(Blocked { until: Some(explanation::time(until)), by: Some(by.into()) }),
            verdict: NOTIFY,
            ..self.clone()
        }
    }

    /// The id and body of the webhook message.
    pub(crate) fn message(&self) -> (String, String) {
        let id = format!("msg_{:016x}{:016x}", random(), random());
        let kind = match self.reason {
            ESCALATED => KEY_BLOCKED,
            CLOSED => PERIOD_CLOSED,
            _ => THRESHOLD_REACHED,
        };
        let body = json!({ "type": kind, "timestamp": explanation::time(self.at), "data": self });
        (id, body.to_string())
    }
}

/// A denial queued for the log.
#[derive(Debug)]
struct LogLine {
    event: Arc<Event>,
    /// Denials not logged since the last line.
    suppressed: u64,
}

/// Starts the log thread, which stops when the queue closes.
fn start_log() -> Option<SyncSender<LogLine>> {
    let (sender, receiver) = sync_channel(LOG_QUEUE);
    let thread = std::thread::Builder::new().name("denials".to_owned()).spawn(move || write_log(&receiver));
    thread
        .inspect_err(
            |error| tracing::warn!(%error, "cannot start the logging thread; denials are not logged"),
        )
        .ok()
        .map(|_| sender)
}

fn write_log(lines: &Receiver<LogLine>) {
    for LogLine { event, suppressed } in lines {
        if event.verdict == EXPIRED {
            tracing::info!(
                target: "slidegate::reservations",
                policy = event.policy,
                key = event.key,
                held = event.held.ceil(),
                cost = event.cost.ceil(),
                until = event.until,
                mode = event.mode,
                protocol = event.protocol,
                suppressed = (suppressed > 0).then_some(suppressed),
                "expired"
            );
            continue;
        }
        if let Some(period) = &event.period {
            tracing::info!(
                target: "slidegate::notifications",
                policy = event.policy,
                key = event.key,
                begins = period.begins,
                ends = period.ends,
                limit = event.limit,
                used = %event.used,
                mode = event.mode,
                suppressed = (suppressed > 0).then_some(suppressed),
                "period closed"
            );
            continue;
        }
        if event.verdict == NOTIFY {
            tracing::info!(
                target: "slidegate::notifications",
                policy = event.policy,
                key = event.key,
                threshold_percent = event.threshold,
                limit = event.limit,
                window_ms = event.window_ms,
                used = event.used.ceil(),
                held = (event.held > Amount::default()).then_some(event.held.ceil()),
                mode = event.mode,
                protocol = event.protocol,
                suppressed = (suppressed > 0).then_some(suppressed),
                "threshold reached"
            );
            continue;
        }
        tracing::info!(
            target: "slidegate::denials",
            policy = event.policy,
            // The log format quotes and escapes client-chosen text.
            key = event.key,
            limit = event.limit,
            window_ms = event.window_ms,
            used = event.used.ceil(),
            held = (event.held > Amount::default()).then_some(event.held.ceil()),
            cost = event.cost.ceil(),
            retry_after_ms = event.retry_after_ms,
            reason = event.reason,
            blocked_until = event.block.as_ref().and_then(|block| block.until.as_deref()),
            blocked_by = event.block.as_ref().and_then(|block| block.by.as_deref()),
            store_failure = event.store_failure,
            source = event.source,
            mode = event.mode,
            protocol = event.protocol,
            at = explanation::time(event.at),
            suppressed = (suppressed > 0).then_some(suppressed),
            "denied"
        );
    }
}
