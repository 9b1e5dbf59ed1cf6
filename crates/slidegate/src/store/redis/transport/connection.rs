//! A link: one place for a connection to a node, and the connections that follow one another in it.
//!
//! Nobody connects in a caller's time: a task does, and callers wait for it no longer than their deadline. While
//! attempts fail, callers are told so at once and the task goes on trying.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::failure::{self, Executed, Failure, FailureKind};
use super::jitter;
use super::node::Node;
use crate::time::instant;

/// The most calls that may wait for an answer on one connection; later ones are turned away at once.
const MOST_IN_FLIGHT: usize = 2048;
/// The shortest and the longest wait between two attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Calls in a row without an answer after which a connection is given up: its server may be gone without a word.
const MOST_SILENCES: u32 = 3;
/// A connection that lasted less is followed by a wait: its server may be throwing clients out.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// One place for a connection.
pub(super) struct ManagedConnection {
    state: watch::Sender<ConnectionState>,
    /// Room for calls in flight.
    pub(super) room: Semaphore,
}

/// How things stand with the connection.
#[derive(Clone)]
enum ConnectionState {
    /// Nobody has asked for one yet.
    Idle,
    /// The first attempt is being made; whoever comes waits for it.
    Connecting,
    Up(Arc<Connection>),
    /// The last attempt failed for this reason; more are being made.
    Down(Arc<Outage>),
}

struct Outage {
    kind: FailureKind,
    detail: String,
}

/// One connection, from its greeting to its loss.
pub(super) struct Connection {
    pub(super) stream: MultiplexedConnection,
    /// When the last answer came, in the node's microseconds.
    answered_us: AtomicU64,
    /// Calls since then that waited in vain, all their time.
    silences: AtomicU32,
    /// Whether it is known to be lost.
    lost: Arc<AtomicBool>,
    /// Whether a call was on it when it was lost.
    missed: AtomicBool,
    since: Instant,
}

impl ManagedConnection {
    pub(super) fn new() -> Self {
        Self { state: watch::Sender::new(ConnectionState::Idle), room: Semaphore::new(MOST_IN_FLIGHT) }
    }

    /// Whether there is a connection now.
    pub(super) fn is_up(&self) -> bool {
        self.up().is_some()
    }

    /// Whether nobody has asked for a connection.
    pub(super) fn is_idle(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Idle)
    }

    fn up(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            ConnectionState::Up(connection) if !connection.is_lost() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection, or the one being made, if that takes no longer than the deadline.
    pub(super) async fn connection(
        &self,
        node: &Node,
        number: usize,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.up() {
            return Ok(connection);
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                ConnectionState::Up(connection) if !connection.is_lost() => return Ok(connection.clone()),
                ConnectionState::Down(outage) => {
                    return Err(node.failure(Executed::No, outage.kind, &outage.detail));
                }
                _ => {}
            }
            self.connect(node, number);
            match timeout_at(deadline, state.changed()).await {
                Ok(Ok(())) => {}
                // The sender is this link.
                Ok(Err(_)) => return Err(node.failure(Executed::No, FailureKind::Connection, "it is gone")),
                Err(_) => {
                    let detail = "no connection could be made within the deadline";
                    return Err(node.failure(Executed::No, FailureKind::Timeout, detail));
                }
            }
        }
    }

    /// Gives up a connection and makes another. Whether this is the first call to have lost it.
    pub(super) fn lose(&self, node: &Node, number: usize, connection: &Connection) -> bool {
        connection.lost.store(true, Ordering::Release);
        self.connect(node, number);
        !connection.missed.swap(true, Ordering::AcqRel)
    }

    /// Begins to connect, unless there is a connection or somebody is at it.
    pub(super) fn connect(&self, node: &Node, number: usize) {
        let mut failures = 0;
        let begun = self.state.send_if_modified(|state| {
            match state {
                ConnectionState::Idle => {}
                ConnectionState::Up(connection) if connection.is_lost() => {
                    failures = u32::from(instant().duration_since(connection.since) < SHORT_LIFE);
                    node.counts.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                _ => return false,
            }
            *state = ConnectionState::Connecting;
            true
        });
        if begun {
            let attempt = Attempt { node: node.itself(), number, over: false };
            // Outside a runtime the attempt is dropped here, and the link is idle again.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(attempt.until_connected(failures));
            }
        }
    }
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// An answer came.
    pub(super) fn answered(&self, now_us: u64) {
        self.answered_us.store(now_us, Ordering::Relaxed);
        self.silences.store(0, Ordering::Relaxed);
    }

    /// A call that was begun at `begun_us` had no answer. Whether the connection is to be given up for it.
    ///
    /// A server that is only slow answers others meanwhile: connecting to it anew would make it slower still.
    pub(super) fn is_silent(&self, begun_us: u64) -> bool {
        self.answered_us.load(Ordering::Relaxed) < begun_us
            && self.silences.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_SILENCES
    }
}

/// Somebody who is making a connection. Dropped before it is made, as when a runtime ends, it leaves the link idle.
struct Attempt {
    node: Weak<Node>,
    number: usize,
    over: bool,
}

impl Attempt {
    async fn until_connected(mut self, mut failures: u32) {
        loop {
            if failures > 0 {
                sleep(backoff(failures)).await;
            }
            let Some(connector) = self.node.upgrade().map(|node| node.connector()) else { return };
            let lost = Arc::new(AtomicBool::new(false));
            let answer = connector.connect(self.losing(lost.clone())).await;
            let Some(node) = self.node.upgrade() else { return };
            let Some(managed) = node.connection(self.number) else { return };
            match answer {
                Ok(stream) => {
                    self.over = true;
                    let connection = Connection {
                        stream,
                        answered_us: AtomicU64::new(node.since_us()),
                        silences: AtomicU32::new(0),
                        lost: lost.clone(),
                        missed: AtomicBool::new(false),
                        since: instant(),
                    };
                    managed.state.send_replace(ConnectionState::Up(Arc::new(connection)));
                    // It may have gone before it was there for `losing` to find.
                    if lost.load(Ordering::Acquire) {
                        managed.connect(&node, self.number);
                    }
                    return;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let kind = failure::of_connecting(&error);
                    let hint = connector.hint(&error).map(|hint| format!("; {hint}")).unwrap_or_default();
                    let detail = format!("cannot connect: {}{hint}", failure::words_of(&error));
                    managed.state.send_replace(ConnectionState::Down(Arc::new(Outage { kind, detail })));
                }
            }
        }
    }

    /// What is done when the connection ends by itself.
    fn losing(&self, lost: Arc<AtomicBool>) -> impl Fn() + Send + Sync + 'static {
        let (node, number) = (self.node.clone(), self.number);
        move || {
            lost.store(true, Ordering::Release);
            if let Some(node) = node.upgrade()
                && let Some(managed) = node.connection(number)
            {
                managed.connect(&node, number);
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.over
            && let Some(node) = self.node.upgrade()
            && let Some(managed) = node.connection(self.number)
        {
            managed.state.send_replace(ConnectionState::Idle);
        }
    }
}

/// The wait before the next attempt: doubled with each failure, and a random part of it taken off.
fn backoff(failures: u32) -> Duration {
    let (shortest, longest) = BACKOFF;
    let wait = shortest.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    jitter::between((wait / 2).max(shortest), wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attempts in step by every instance are what keeps a server from coming back.
    #[test]
    fn waits_between_attempts_grow_from_10_to_500_ms() {
        assert_eq!(backoff(1), Duration::from_millis(10));
        for failures in 2..100 {
            assert!((BACKOFF.0..=BACKOFF.1).contains(&backoff(failures)));
        }
        assert!(backoff(50) >= BACKOFF.1 / 2);
    }
}
