//! The webhook: notifications are sent to a URL, signed as Standard Webhooks specifies.
//!
//! A dedicated thread sends them one by one, so a slow receiver delays nothing else. Messages that do not fit
//! the queue are dropped and counted; messages that wait when the process ends are lost. Who keeps a message until
//! it is received [delivers](Webhook::deliver) it instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{self, HMAC_SHA256};
use slidegate::Secret;

use crate::http_client;
use crate::log_limit::LogLimit;
use crate::shares::{Bound, Share};

/// Maximum messages that wait: about 200 kB.
const QUEUE: usize = 256;
/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between attempts. After the last attempt the message is dropped.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(15)];
/// Minimum interval between log lines about failures.
const REPORT_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Webhook {
    queue: SyncSender<WebhookMessage>,
    /// Policies share the queue.
    queued: Bound<String>,
    sending: Arc<Sending>,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct WebhookCounts {
    pub(crate) sent: AtomicU64,
    /// Dropped after the last attempt.
    pub(crate) failed: AtomicU64,
    /// Dropped because the queue was full.
    pub(crate) dropped: AtomicU64,
    /// Attempts after the first.
    pub(crate) retries: AtomicU64,
}

#[derive(Debug)]
struct WebhookMessage {
    /// Unique; the same in each attempt.
    id: String,
    body: String,
    /// `None` in tests.
    _place: Option<Share<String>>,
}

/// What sending takes.
#[derive(Debug)]
struct Sending {
    agent: ureq::Agent,
    url: String,
    key: Secret<Vec<u8>>,
    counts: WebhookCounts,
    log_limit: LogLimit,
}

impl Webhook {
    /// # Errors
    /// One line: the system trusts no certificate authority or cannot start a thread.
    pub(crate) fn start(url: &str, key: Secret<Vec<u8>>) -> Result<Self, String> {
        let agent = http_client::agent(url, TIMEOUT, None).map_err(|error| format!("webhook: {error}"))?;
        let (queue, messages) = sync_channel(QUEUE);
        let (url, counts) = (url.to_owned(), WebhookCounts::default());
        let sending = Arc::new(Sending { agent, url, key, counts, log_limit: LogLimit::every(REPORT_EVERY) });
        let running = Arc::clone(&sending);
        let thread = std::thread::Builder::new().name("webhook".to_owned());
        thread
            .spawn(move || running.run(&messages))
            .map_err(|error| format!("webhook: cannot start a thread: {error}"))?;
        Ok(Self { queue, queued: Bound::new(QUEUE), sending })
    }

    /// Queues a message about a policy: its id and body.
    pub(crate) fn send(&self, policy: &String, (id, body): (String, String)) {
        let place = self.queued.take(policy);
        if place.is_none() || self.queue.try_send(WebhookMessage { id, body, _place: place }).is_err() {
            self.sending.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Sends a body once, from this thread, and returns whether it was received. The message's id is that of every
    /// message about `what`, from all instances with this secret.
    pub(crate) fn deliver(&self, what: &[u8], body: String) -> bool {
        let sending = &self.sending;
        let hash = hmac::sign(&hmac::Key::new(HMAC_SHA256, sending.key.expose()), what);
        let hash: String = hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let message = WebhookMessage { id: format!("msg_{hash}"), body, _place: None };
        match sending.attempt(&message) {
            Ok(()) => {
                sending.counts.sent.fetch_add(1, Relaxed);
                true
            }
            Err(failure) => {
                sending.counts.retries.fetch_add(1, Relaxed);
                sending.warn(&failure, "the message is sent again");
                false
            }
        }
    }

    pub(crate) fn counts(&self) -> &WebhookCounts {
        &self.sending.counts
    }
}

impl Sending {
    /// Sends until the queue closes.
    fn run(&self, messages: &Receiver<WebhookMessage>) {
        for message in messages {
            let mut pauses = PAUSES.iter();
            let failure = loop {
                let Err(failure) = self.attempt(&message) else { break None };
                let Some(pause) = pauses.next() else { break Some(failure) };
                std::thread::sleep(*pause);
                self.counts.retries.fetch_add(1, Relaxed);
            };
            let Some(failure) = failure else {
                self.counts.sent.fetch_add(1, Relaxed);
                continue;
            };
            self.counts.failed.fetch_add(1, Relaxed);
            self.warn(&failure, "the notification is given up");
        }
    }

    fn warn(&self, failure: &str, outcome: &str) {
        if self.log_limit.admit_key(b"").is_some() {
            let receiver = http_client::origin(&self.url);
            tracing::warn!(receiver, failure, "the webhook failed; {outcome}");
        }
    }

    /// Sends a message once. Any status but 2xx is a failure.
    fn attempt(&self, message: &WebhookMessage) -> Result<(), String> {
        let seconds = jiff::Timestamp::now().as_second().to_string();
        let request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("slidegate/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", &seconds)
            .header("webhook-signature", signature(&self.key, message, &seconds));
        let response =
            request.send(&message.body).map_err(|error| http_client::without_url(&error, &self.url))?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("the receiver returned {status}")) }
    }
}

/// The message's signature at this time, in seconds since the epoch.
fn signature(key: &Secret<Vec<u8>>, message: &WebhookMessage, seconds: &str) -> String {
    let WebhookMessage { id, body, .. } = message;
    let key = hmac::Key::new(HMAC_SHA256, key.expose());
    let signed = hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receivers verify with the Standard Webhooks libraries, so the specification's example must be
    /// reproduced.
    #[test]
    fn messages_are_signed_as_the_specification_has_it() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let message = WebhookMessage {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned(),
            body: r#"{"test": 2432232314}"#.to_owned(),
            _place: None,
        };
        let signed = signature(&Secret::new(key), &message, "1614265330");
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
