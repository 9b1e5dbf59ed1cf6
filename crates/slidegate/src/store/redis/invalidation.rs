//! Invalidation of cached denials in every instance, by publish/subscribe.
//!
//! An instance that refunds or resets usage publishes a message on a channel of the store. An
//! instance that is not subscribed to the channel caches no denials.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, timeout};

use super::denial_cache::DenialCache;
use super::{Calls, Failure};
use crate::jitter;
use crate::store::redis::transport::Connector;

/// The channel, named as all keys are.
const CHANNEL: &str = "sg1:forget";
/// Follows the publisher's id in messages about the control document.
const CONTROL_DOCUMENT: &str = ":control";
/// Interval of pings on an idle connection. A dead connection is noticed within two intervals.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The shortest and longest pause before subscribing again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// The subscription of a store.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    running: Arc<AtomicBool>,
}

impl Invalidations {
    /// Starts the subscriber task, if it is not running.
    pub(crate) fn keep(&self, calls: &Arc<Calls>, cache: &Arc<DenialCache>) {
        if self.running.load(Ordering::Relaxed) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let subscriber = Subscriber { running: self.running.clone(), cache: cache.clone() };
        tokio::spawn(subscriber.run(Arc::downgrade(calls)));
    }
}

/// The id of an instance, so that it ignores its own messages and is counted once.
#[derive(Debug)]
pub(crate) struct PublisherId(String);

impl PublisherId {
    /// A random id.
    pub(crate) fn new() -> Self {
        Self(format!("{:016x}", jitter::below(u64::MAX)))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Publishes that usage was refunded or reset.
pub(crate) async fn publish(calls: &Calls, deadline: Instant) -> Result<(), Failure> {
    let mut command = Cmd::new();
    command.arg("PUBLISH").arg(CHANNEL).arg(&calls.publisher.0);
    calls.transport.command(None, &command, deadline).await.map(|_| ())
}

/// Publishes that the control document was replaced, which may have changed limits.
pub(crate) async fn publish_control_document(calls: &Calls, deadline: Instant) -> Result<(), Failure> {
    let mut command = Cmd::new();
    command.arg("PUBLISH").arg(CHANNEL).arg(format!("{}{CONTROL_DOCUMENT}", calls.publisher.0));
    calls.transport.command(None, &command, deadline).await.map(|_| ())
}

/// The subscriber task. When it ends, however it ends, nothing is cached any more, and another one
/// may be started.
struct Subscriber {
    running: Arc<AtomicBool>,
    cache: Arc<DenialCache>,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.cache.set_subscribed(false);
        self.running.store(false, Ordering::SeqCst);
    }
}

impl Subscriber {
    async fn run(self, calls: Weak<Calls>) {
        loop {
            let Some(connector) = calls.upgrade().map(|calls| calls.transport.connector()) else { return };
            if let Some(connector) = connector {
                // Whether it failed or the connection was lost, it is tried again.
                let _ = self.subscribe(&connector, &calls).await;
                self.cache.set_subscribed(false);
            }
            tokio::time::sleep(jitter::between(PAUSE.0, PAUSE.1)).await;
        }
    }

    /// Subscribes, and invalidates at every message, until the connection or the store is gone.
    async fn subscribe(&self, connector: &Connector, calls: &Weak<Calls>) -> Result<(), redis::RedisError> {
        let (mut sink, mut messages) = connector.subscription().await?.split();
        sink.subscribe(CHANNEL).await?;
        self.cache.set_subscribed(true);
        while calls.strong_count() > 0 {
            match timeout(HEARTBEAT, next(&mut messages)).await {
                Ok(Some(message)) => {
                    let Some(calls) = calls.upgrade() else { return Ok(()) };
                    let message = message.get_payload_bytes();
                    if !message.starts_with(calls.publisher.0.as_bytes()) {
                        self.cache.clear();
                        if message.ends_with(CONTROL_DOCUMENT.as_bytes()) {
                            calls.control_document_changed.notify_one();
                        }
                    }
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
