//! Events: why each denial was one.
//!
//! They are kept in a ring in memory, sent to who listens, and written to the log by a thread of their own, so that a log
//! that is slow or stuck never holds up a decision. A key that is denied again and again fills none of them: each has its
//! own rate, kept by a limiter of the library. What is left out is counted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use slidegate::{Block, Limiter, MemoryStore, PolicyDecision, Quota, Reason, Timestamp, millis_ceil};
use tokio::sync::broadcast;

use super::redaction::Redactor;
use crate::app::explanation;
use crate::caller::Protocol;
use crate::config::KeysShown;
use crate::key_text::KeyText;
use crate::log_limit::{LogLimit, LogRates};

/// Events that are kept, the newest; a megabyte or less.
pub(crate) const EVENTS_KEPT: usize = 1024;
/// Most events of one key in a second, in the ring and to listeners.
const OF_A_KEY: u64 = 10;
/// The log has a line for each key this often.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// Most lines of the log in a second, for all keys.
const LOGGED_A_SECOND: u64 = 20;
/// Lines that wait for a log that is slow.
const LOG_QUEUE: usize = 256;
/// Keys whose rates are known. With more than that denied at once some are told a little often.
const RATED_KEYS: usize = 4096;
/// Messages that a listener may be behind before it misses some.
const BEHIND: usize = 1024;

/// One denial.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    /// Counts events from 1, those that nobody kept not included.
    pub(super) seq: u64,
    #[serde(serialize_with = "as_text")]
    at: Timestamp,
    pub(super) policy: String,
    /// As the policy shows it.
    pub(super) key: String,
    /// The key's values by their attributes, likewise.
    attributes: serde_json::Map<String, serde_json::Value>,
    limit: u64,
    window_ms: u64,
    algorithm: &'static str,
    used: u64,
    cost: u64,
    /// `null`: it never fits.
    retry_after_ms: Option<u64>,
    /// Why it was denied: `over_limit`, `blocked` or `store_unavailable`.
    reason: &'static str,
    /// The key's block, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Blocked>,
    source: &'static str,
    /// Why the shared store did not decide, if a fallback did.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_failure: Option<String>,
    mode: &'static str,
    door: &'static str,
    verdict: &'static str,
    #[serde(skip)]
    keys_shown: KeysShown,
    /// The key itself, by which a link finds it. It never leaves this process.
    #[serde(skip)]
    raw: Raw,
}

/// Until when a key is blocked, and by whom.
#[derive(Debug, Clone, Serialize)]
struct Blocked {
    /// `null`: the block does not end by itself.
    until: Option<String>,
    by: Option<Box<str>>,
}

impl From<&Block> for Blocked {
    fn from(block: &Block) -> Self {
        Self { until: block.ends_at().map(explanation::time), by: block.blocked_by().map(Box::from) }
    }
}

/// A text that is not printed. Empty if it is longer than can be asked for.
#[derive(Clone)]
struct Raw(Box<str>);

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Raw")
    }
}

fn as_text<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&explanation::time(*at))
}

/// Which events are wanted: all that have these.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) policy: Option<String>,
    /// The key's text, as it is shown or as it is.
    pub(crate) key: Option<String>,
}

/// What listeners are sent.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Denial(Arc<Event>),
    /// JSON of what was decided in the last second.
    Rates(Arc<str>),
    /// Policies, configuration or changes moved.
    Changed,
    /// The service ends.
    End,
}

/// Where events go.
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
    /// `logged` says whether the log has them too.
    pub(super) fn new(redactor: Arc<Redactor>, logged: bool) -> Self {
        let limiter = |quota| Limiter::with_store(quota, MemoryStore::builder().max_keys(RATED_KEYS).build());
        let every = Quota::new(1, LOGGED_EVERY).expect("a minute is a window");
        Self {
            ring: Mutex::default(),
            rates: limiter(Quota::per_second(OF_A_KEY)),
            log_limit: LogLimit::new(LogRates {
                each: every,
                all: Quota::per_second(LOGGED_A_SECOND),
                max_clients: RATED_KEYS,
            }),
            log: logged.then(start_log).flatten(),
            listeners: broadcast::channel(BEHIND).0,
            redactor,
            left_out: AtomicU64::new(0),
        }
    }

    /// Keeps, sends and logs a denial, as far as its key's rate goes. `denies` says whether it denied the request.
    pub(super) fn record(
        &self,
        door: Protocol,
        one: &PolicyDecision<'_>,
        key: &str,
        keys_shown: KeysShown,
        denies: bool,
    ) {
        let policy = one.policy();
        let rated = [policy.name(), ":", key].concat();
        if self.rates.check(&rated).is_denied() {
            self.leave_out();
            return;
        }
        // A scope of nothing has the key `*`, and no attribute.
        let values = key.split(',').map(|value| self.redactor.show(value, keys_shown).into());
        let quota = one.quota();
        // A look asks for nothing, which always fits; it fits for certain when the key is as new.
        let (reason, wait) = match one.reason() {
            Some(reason) => (reason, one.retry_after()),
            None if one.is_blocked() => (Reason::Blocked, one.frees_after()),
            None => (Reason::OverLimit, Some(one.reset_after())),
        };
        let mut event = Event {
            seq: 0,
            at: one.at,
            policy: policy.name().to_owned(),
            attributes: policy.scope_attributes().iter().cloned().zip(values).collect(),
            key: self.redactor.show(key, keys_shown),
            limit: one.limit,
            window_ms: millis_ceil(quota.window()),
            algorithm: quota.algorithm().name(),
            used: one.used,
            cost: one.asked(),
            retry_after_ms: wait.map(millis_ceil),
            reason: reason.name(),
            block: one.block().map(Blocked::from),
            store_failure: one.store_failure().map(ToString::to_string),
            source: one.source.name(),
            mode: if denies { "enforce" } else { "shadow" },
            door: door.name(),
            verdict: "deny",
            keys_shown,
            raw: Raw(if key.len() > KeyText::MAX { "" } else { key }.into()),
        };
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last_seq += 1;
        event.seq = ring.last_seq;
        let event = Arc::new(event);
        let oldest = if ring.events.len() == EVENTS_KEPT { ring.events.pop_front() } else { None };
        ring.events.push_back(Arc::clone(&event));
        // Under the lock, so that listeners get them in their order.
        self.send(Message::Denial(Arc::clone(&event)));
        drop(ring);
        drop(oldest);
        if let Some(log) = &self.log
            && let Some(suppressed) = self.log_limit.admit_key(rated.as_bytes())
        {
            // A log that is stuck loses lines, not decisions.
            let _ = log.try_send(LogLine { event, suppressed });
        }
    }

    /// Counts a denial that is not recorded.
    pub(super) fn leave_out(&self) {
        self.left_out.fetch_add(1, Relaxed);
    }

    /// Denials that were not recorded, as they were too many.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// The newest events, newest first.
    pub(crate) fn recent(&self, filter: &Filter, limit: usize) -> Vec<Arc<Event>> {
        let (events, _) = self.kept();
        events.into_iter().rev().filter(|event| self.matches(event, filter)).take(limit).collect()
    }

    /// The events that are kept, oldest first, and the number of the last one. A copy, since who looks through them hashes
    /// keys, and denials must not wait for that.
    fn kept(&self) -> (Vec<Arc<Event>>, u64) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        (ring.events.iter().cloned().collect(), ring.last_seq)
    }

    /// The events that are kept and come after this one, oldest first. All, if there is no such event yet: its number was
    /// given before a restart.
    pub(super) fn after(&self, seq: u64, filter: &Filter) -> Vec<Arc<Event>> {
        let (events, last_seq) = self.kept();
        let seq = if seq > last_seq { 0 } else { seq };
        events.into_iter().filter(|event| event.seq > seq && self.matches(event, filter)).collect()
    }

    /// Whether an event is one of those that are wanted.
    pub(super) fn matches(&self, event: &Event, filter: &Filter) -> bool {
        let is_key =
            |key: &String| *key == event.key || self.redactor.show(key, event.keys_shown) == event.key;
        filter.policy.as_ref().is_none_or(|policy| *policy == event.policy)
            && filter.key.as_ref().is_none_or(is_key)
    }

    /// Keys of a policy that are shown as this text, among those of the events that are kept.
    pub(super) fn keys_shown_as(&self, policy: &str, shown: &str) -> Vec<Box<str>> {
        let (events, _) = self.kept();
        let same = events.iter().filter(|event| event.policy == policy && event.key == shown);
        same.filter(|event| !event.raw.0.is_empty()).map(|event| event.raw.0.clone()).collect()
    }

    /// Forgets the events of a policy, whose keys must no longer be shown as they were.
    pub(super) fn forget(&self, policy: &str) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.retain(|event| event.policy != policy);
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<Message> {
        self.listeners.subscribe()
    }

    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.receiver_count() > 0
    }

    pub(super) fn send(&self, message: Message) {
        // Nobody may be listening.
        let _ = self.listeners.send(message);
    }
}

/// A denial on its way to the log.
#[derive(Debug)]
struct LogLine {
    event: Arc<Event>,
    /// Denials since the last line that have none.
    suppressed: u64,
}

/// Starts the thread that writes denials to the log. It ends with the queue.
fn start_log() -> Option<SyncSender<LogLine>> {
    let (sender, receiver) = sync_channel(LOG_QUEUE);
    let thread = std::thread::Builder::new().name("denials".to_owned()).spawn(move || write_log(&receiver));
    thread
        .inspect_err(
            |error| tracing::warn!(%error, "cannot start the thread that logs denials; they are not logged"),
        )
        .ok()
        .map(|_| sender)
}

fn write_log(lines: &Receiver<LogLine>) {
    for LogLine { event, suppressed } in lines {
        tracing::info!(
            target: "slidegate::denials",
            policy = event.policy,
            // Texts that clients choose are quoted and escaped by the form of the log.
            key = event.key,
            limit = event.limit,
            window_ms = event.window_ms,
            used = event.used,
            cost = event.cost,
            retry_after_ms = event.retry_after_ms,
            reason = event.reason,
            blocked_until = event.block.as_ref().and_then(|block| block.until.as_deref()),
            blocked_by = event.block.as_ref().and_then(|block| block.by.as_deref()),
            store_failure = event.store_failure,
            source = event.source,
            mode = event.mode,
            door = event.door,
            at = explanation::time(event.at),
            suppressed = (suppressed > 0).then_some(suppressed),
            "denied"
        );
    }
}
