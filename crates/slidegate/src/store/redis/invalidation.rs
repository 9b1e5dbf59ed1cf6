//! Invalidations: what other instances tell, so that a remembered denial ends in all of them.
//!
//! Whoever gives back or forgets usage publishes so, on a channel of the store itself. While an instance does not hear that
//! channel, it remembers nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, timeout};

use super::denial_cache::DenialCache;
use super::{Calls, Failure, jitter};
use crate::store::redis::transport::Connector;

/// The channel, named as all keys are.
const CHANNEL: &str = "sg1:forget";
/// What follows the teller's number where the note is told of.
const NOTE: &str = ":control";
/// How often the connection is tried with a ping. What is published while it is dead is missed for as long, twice at most.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The shortest and the longest pause before the channel is subscribed to again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Listens for as long as the store lives.
#[derive(Debug, Default)]
pub(crate) struct Invalidations {
    listens: Arc<AtomicBool>,
}

impl Invalidations {
    /// Has the listening task started, if it does not run.
    pub(crate) fn keep(&self, calls: &Arc<Calls>, remembered: &Arc<DenialCache>) {
        if self.listens.load(Ordering::Relaxed) || self.listens.swap(true, Ordering::SeqCst) {
            return;
        }
        let ear = Ear { listens: self.listens.clone(), remembered: remembered.clone() };
        tokio::spawn(listen(ear, Arc::downgrade(calls)));
    }
}

/// Who tells, so that nobody takes his own words for news.
#[derive(Debug)]
pub(crate) struct Teller(String);

impl Teller {
    /// Another one than any before, in any process.
    pub(crate) fn new() -> Self {
        Self(format!("{:016x}", jitter::below(u64::MAX)))
    }
}

/// Tells that usage was given back or forgotten.
pub(crate) async fn publish(calls: &Calls, deadline: Instant) -> Result<(), Failure> {
    let mut command = Cmd::new();
    command.arg("PUBLISH").arg(CHANNEL).arg(&calls.teller.0);
    calls.transport.command(None, &command, deadline).await.map(|_| ())
}

/// Tells that there is another note, which may have changed limits.
pub(crate) async fn publish_note(calls: &Calls, deadline: Instant) -> Result<(), Failure> {
    let mut command = Cmd::new();
    command.arg("PUBLISH").arg(CHANNEL).arg(format!("{}{NOTE}", calls.teller.0));
    calls.transport.command(None, &command, deadline).await.map(|_| ())
}

/// A listening task. However it ends, nothing is remembered from then on, and another one may be started.
struct Ear {
    listens: Arc<AtomicBool>,
    remembered: Arc<DenialCache>,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.remembered.hears(false);
        self.listens.store(false, Ordering::SeqCst);
    }
}

async fn listen(ear: Ear, calls: Weak<Calls>) {
    loop {
        let Some(connector) = calls.upgrade().map(|calls| calls.transport.connector()) else { return };
        if let Some(connector) = connector {
            // It failed, or was lost: both are met by trying again.
            let _ = hear(&ear.remembered, &connector, &calls).await;
            ear.remembered.hears(false);
        }
        tokio::time::sleep(jitter::between(PAUSE.0, PAUSE.1)).await;
    }
}

/// Subscribes, and forgets at every message, until the connection or the store is gone.
async fn hear(
    remembered: &DenialCache,
    connector: &Connector,
    calls: &Weak<Calls>,
) -> Result<(), redis::RedisError> {
    let (mut sink, mut messages) = connector.subscription().await?.split();
    sink.subscribe(CHANNEL).await?;
    remembered.hears(true);
    while calls.strong_count() > 0 {
        match timeout(HEARTBEAT, next(&mut messages)).await {
            Ok(Some(message)) => {
                let Some(calls) = calls.upgrade() else { return Ok(()) };
                let told = message.get_payload_bytes();
                if !told.starts_with(calls.teller.0.as_bytes()) {
                    remembered.forget_all();
                    if told.ends_with(NOTE.as_bytes()) {
                        calls.control_document_changed.notify_one();
                    }
                }
            }
            Ok(None) => return Ok(()),
            // Silence: is anybody there?
            Err(_) => {
                if timeout(HEARTBEAT, sink.ping::<redis::Value>()).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The next message.
async fn next(messages: &mut redis::aio::PubSubStream) -> Option<redis::Msg> {
    let mut messages = std::pin::pin!(messages);
    std::future::poll_fn(|context| futures_core::Stream::poll_next(messages.as_mut(), context)).await
}
