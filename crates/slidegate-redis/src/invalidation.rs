//! Cached denials, and their invalidation in every instance by publish/subscribe.
//!
//! An instance that refunds or resets usage publishes a message on a channel of the store. An
//! instance that is not subscribed to the channel caches no denials and takes no leases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use redis_once::{Client, Connector};
use slidegate::clock::SystemClock;
use slidegate::internal::{instant, jitter};
use slidegate::store::{OnFreed, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::denial_cache::DenialCache;
use crate::leases::Leases;
use crate::waiters::{Announcements, Waiters};

/// The channel, named as all keys are.
const CHANNEL: &str = "sg1:forget";
/// Follows the publisher's id in messages about the control document.
const CONTROL_DOCUMENT: &str = ":control";
/// Follows the publisher's id in messages that say which keys were reset: then come their names in hexadecimal digits,
/// each after a colon. Instances of earlier releases clear their cache.
const KEYS: &str = ":keys";
/// Follows the publisher's id where cost of keys was freed, with their names as after [`KEYS`].
const FREED: &str = ":freed";
/// Follows the publisher's id where it waits for cost of keys, with their names as after [`KEYS`].
const WAITS: &str = ":waits";
/// Follows the publisher's id where it does not wait for cost of keys any more, with their names as after [`KEYS`].
const LEAVES: &str = ":leaves";
/// The most names in a message. More are all keys.
const MAX_KEYS: usize = 64;
/// The longest that an announcement may take.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(1);
/// How often a process that begins to wait looks whether it is subscribed.
const SUBSCRIPTION_POLL: Duration = Duration::from_millis(5);
/// Interval of pings on an idle connection. A dead connection is noticed within two intervals.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The shortest and longest pause before subscribing again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// The cached denials of a store, and its subscription.
#[derive(Debug)]
pub(crate) struct Denials {
    client: Arc<Client>,
    pub(super) cache: DenialCache,
    pub(super) leases: Arc<Leases>,
    pub(super) waiters: Arc<Waiters>,
    /// Whether denials are cached, not only peeks at blocked keys.
    are_cached: bool,
    /// The id of this instance, so that it ignores its own messages and is counted once. Random.
    pub(super) instance: String,
    /// Notified when another instance publishes a change of the control document.
    control_document_changed: Notify,
    /// Whether the subscriber task runs.
    is_subscribing: AtomicBool,
}

impl Denials {
    pub(super) fn new(client: Arc<Client>, are_cached: bool) -> Arc<Self> {
        let instance = format!("{:016x}", fastrand::u64(..));
        Arc::new(Self {
            client,
            cache: DenialCache::default(),
            leases: Arc::new(Leases::new(&instance, SystemClock::new())),
            waiters: Arc::default(),
            are_cached,
            instance,
            control_document_changed: Notify::new(),
            is_subscribing: AtomicBool::new(false),
        })
    }

    /// Starts the subscriber task, if denials are cached and it is not running.
    pub(super) fn subscribe(self: &Arc<Self>) {
        if self.are_cached {
            self.listen();
        }
    }

    /// Starts the subscriber task, if it is not running.
    pub(super) fn listen(self: &Arc<Self>) {
        let is_missing = !self.is_subscribing.load(Ordering::Relaxed);
        if is_missing && !self.is_subscribing.swap(true, Ordering::SeqCst) {
            tokio::spawn(Subscriber(Arc::downgrade(self)).run());
        }
    }

    /// Clears the cached denials of all connected instances, because capacity was freed. The keys with these names were
    /// reset, or any without names: their leases end.
    pub(super) async fn invalidate(&self, names: Option<&[Vec<u8>]>, deadline: Instant) {
        self.cache.clear();
        self.leases.end(names);
        let message = match names.filter(|names| names.len() <= MAX_KEYS) {
            Some(names) => self.message(KEYS, names),
            None => self.instance.clone(),
        };
        self.publish(message, deadline).await;
    }

    /// Clears the cached denials of all connected instances, and wakes their waiters, because cost of the keys with these
    /// names was refunded.
    pub(super) async fn refunded(&self, names: &[Vec<u8>], deadline: Instant) {
        self.cache.clear();
        for names in names.chunks(MAX_KEYS) {
            self.publish(self.message(FREED, names), deadline).await;
        }
    }

    /// Wakes the waiters of other instances, because reservations of the keys with these names were settled.
    pub(super) fn settled(self: &Arc<Self>, names: impl IntoIterator<Item = Vec<u8>>, deadline: Instant) {
        let names = self.waiters.of_others(names);
        if !names.is_empty() {
            let denials = Arc::clone(self);
            tokio::spawn(async move {
                for names in names.chunks(MAX_KEYS) {
                    denials.publish(denials.message(FREED, names), deadline).await;
                }
            });
        }
    }

    /// Watches a key, and says to the other instances that this one waits for it. Needs a tokio runtime.
    pub(super) fn watch(self: &Arc<Self>, name: Vec<u8>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        self.listen();
        let watch = self.waiters.watch(name, on_freed)?;
        if !self.waiters.is_announcing.swap(true, Ordering::SeqCst) {
            tokio::spawn(announce(Arc::downgrade(self)));
        }
        Some(watch)
    }

    fn message(&self, what: &str, names: &[Vec<u8>]) -> String {
        let mut message = format!("{}{what}", self.instance);
        for name in names {
            message.push(':');
            message.extend(name.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit));
        }
        message
    }

    /// Like [`invalidate`](Self::invalidate), because the control document was replaced, which may
    /// have changed limits. An instance that misses the message polls within seconds.
    pub(super) async fn publish_control_document(&self, deadline: Instant) {
        self.cache.clear();
        self.publish(format!("{}{CONTROL_DOCUMENT}", self.instance), deadline).await;
    }

    /// Waits until another instance announces a new control document.
    pub(super) async fn control_document_changed(self: &Arc<Self>) {
        self.subscribe();
        self.control_document_changed.notified().await;
    }

    /// An instance that misses the message has lost its subscription and caches nothing.
    async fn publish(&self, message: String, deadline: Instant) {
        let mut command = Cmd::new();
        command.arg("PUBLISH").arg(CHANNEL).arg(message);
        let _ = self.client.command(None, &command, deadline).await;
    }

    fn receive(&self, message: &[u8]) {
        if !message.starts_with(self.instance.as_bytes()) {
            let instance = String::from_utf8_lossy(&message[..message.len().min(self.instance.len())]);
            if let Some(names) = names_in(message, WAITS) {
                return self.waiters.note(&instance, names);
            }
            if let Some(names) = names_in(message, LEAVES) {
                return self.waiters.note_left(&instance, &names);
            }
            self.cache.clear();
            if let Some(names) = names_in(message, FREED) {
                return self.waiters.freed(Some(&names));
            }
            let names = names_in(message, KEYS);
            self.leases.end(names.as_deref());
            // Without names: a check over several slots put back what it had taken, and whoever waits for it would do the
            // same in turn.
            self.waiters.freed(names.as_deref());
            if message.ends_with(CONTROL_DOCUMENT.as_bytes()) {
                self.control_document_changed.notify_one();
            }
        }
    }
}

fn digit(number: u8) -> char {
    char::from_digit(number.into(), 16).unwrap_or('0')
}

/// Announces the keys that this process waits for, while it does.
async fn announce(denials: Weak<Denials>) {
    // Only a subscribed process hears the answers.
    let is_subscribed = || denials.upgrade().is_none_or(|denials| denials.cache.is_subscribed());
    let begun = instant();
    while !is_subscribed() && begun.elapsed() < ANNOUNCED_WITHIN {
        tokio::time::sleep(SUBSCRIPTION_POLL).await;
    }
    let Some(waiters) = denials.upgrade().map(|denials| Arc::clone(&denials.waiters)) else { return };
    while let Some(Announcements { waits, leaves }) = waiters.next().await {
        let Some(denials) = denials.upgrade() else { return };
        for (what, names) in [(WAITS, waits), (LEAVES, leaves)] {
            for names in names.chunks(MAX_KEYS) {
                denials.publish(denials.message(what, names), instant() + ANNOUNCED_WITHIN).await;
            }
        }
    }
}

/// The names in a message that says this of keys. `None` if it says something else, or does not say of which.
fn names_in(message: &[u8], what: &str) -> Option<Vec<Vec<u8>>> {
    let (_, names) = std::str::from_utf8(message).ok()?.split_once(what)?;
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let name = |name: &str| name.as_bytes().chunks(2).map(byte).collect();
    names.split(':').skip(1).map(name).collect()
}

/// The subscriber task. When it ends, however it ends, nothing is cached any more, and another one
/// may be started.
struct Subscriber(Weak<Denials>);

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(denials) = self.0.upgrade() {
            denials.cache.set_subscribed(false);
            denials.is_subscribing.store(false, Ordering::SeqCst);
        }
    }
}

impl Subscriber {
    async fn run(self) {
        while let Some(denials) = self.0.upgrade() {
            let connector = denials.client.connector();
            drop(denials);
            if let Some(connector) = connector {
                // Whether it failed or the connection was lost, it is tried again.
                let _ = self.receive(&connector).await;
                let Some(denials) = self.0.upgrade() else { return };
                denials.cache.set_subscribed(false);
            }
            tokio::time::sleep(jitter(PAUSE.0, PAUSE.1)).await;
        }
    }

    /// Subscribes, and invalidates at every message, until the connection or the store is gone.
    async fn receive(&self, connector: &Connector) -> Result<(), redis::RedisError> {
        let (mut sink, mut messages) = connector.subscription().await?.split();
        sink.subscribe(CHANNEL).await?;
        if let Some(denials) = self.0.upgrade() {
            denials.cache.set_subscribed(true);
            // What was freed meanwhile was not heard.
            denials.waiters.freed(None);
        }
        while self.0.strong_count() > 0 {
            match timeout(HEARTBEAT, next(&mut messages)).await {
                Ok(Some(message)) => {
                    let Some(denials) = self.0.upgrade() else { return Ok(()) };
                    denials.receive(message.get_payload_bytes());
                }
                Ok(None) => return Ok(()),
                // No message: is the server alive?
                Err(_) => {
                    if timeout(HEARTBEAT, sink.ping::<redis::Value>()).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// The next message.
async fn next(messages: &mut redis::aio::PubSubStream) -> Option<redis::Msg> {
    let mut messages = std::pin::pin!(messages);
    std::future::poll_fn(|context| futures_core::Stream::poll_next(messages.as_mut(), context)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_which_keys_were_reset() {
        let keys = |message: &str| names_in(message.as_bytes(), KEYS);
        assert_eq!(keys("00ff"), None, "any: also as earlier releases say it");
        assert_eq!(keys("00ff:control"), None);
        assert_eq!(keys("00ff:keys"), Some(Vec::new()));
        assert_eq!(keys("00ff:keys:7331:00fe"), Some(vec![b"s1".to_vec(), vec![0, 254]]));
        assert_eq!(keys("00ff:keys:73x1"), None);
    }
}
