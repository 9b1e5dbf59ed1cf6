//! A managed connection: connects to a node in the background and reconnects after a loss.
//!
//! Callers never connect themselves. They wait for the background task, at most until their
//! deadline. While attempts fail, callers get the error at once and the task keeps trying.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connector::{Connected, Connector, Driver};
use crate::error_reply;
use crate::failure::FailureKind;
use crate::reply_bound::AcceptedReplies;

/// Maximum calls in flight on one connection; further calls are rejected at once.
const MAX_IN_FLIGHT: usize = 2048;
/// Minimum and maximum wait between two connection attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Consecutive timeouts that close a connection: the server may have disappeared silently.
const MAX_TIMEOUTS: u32 = 3;
/// A connection shorter than this is followed by a backoff: the server may be closing clients.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// A connection to a node, re-established after a loss.
pub(crate) struct ManagedConnection {
    connector: Arc<Connector>,
    state: watch::Sender<ConnectionState>,
    /// Permits for calls in flight.
    pub(crate) room: Semaphore,
    /// Reconnects since the first call.
    pub(crate) reconnects: AtomicU64,
}

/// State of a managed connection.
#[derive(Clone)]
enum ConnectionState {
    /// No call has needed it yet.
    Idle,
    /// The first attempt is in progress; callers wait for it.
    Connecting,
    Up(Arc<Connection>),
    /// The last attempt failed for this reason; the task keeps trying.
    Down(Arc<Outage>),
}

/// Why there is no connection.
#[derive(Clone)]
pub(crate) struct Outage {
    pub(crate) kind: FailureKind,
    pub(crate) detail: String,
}

/// One established connection.
pub(crate) struct Connection {
    pub(crate) stream: MultiplexedConnection,
    /// Bounds its replies.
    pub(crate) accepted: Arc<AcceptedReplies>,
    _driver: Driver,
    since: Instant,
    /// Time of the last reply, in microseconds since `since`.
    answered_us: AtomicU64,
    /// Calls that have timed out since then.
    timeouts_in_a_row: AtomicU32,
    /// Whether the loss is known.
    lost: Arc<AtomicBool>,
    /// Whether a call was in flight when it was lost.
    missed: AtomicBool,
}

impl ManagedConnection {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        let (state, room) = (watch::Sender::new(ConnectionState::Idle), Semaphore::new(MAX_IN_FLIGHT));
        Arc::new(Self { connector, state, room, reconnects: AtomicU64::new(0) })
    }

    /// Whether it is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.up().is_some()
    }

    /// Whether no call has needed it yet.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Idle)
    }

    fn up(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            ConnectionState::Up(connection) if !connection.is_lost() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection. Waits for a connection attempt in progress, at most until the deadline.
    pub(crate) async fn connection(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Connection>, Outage> {
        if let Some(connection) = self.up() {
            return Ok(connection);
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                ConnectionState::Up(connection) if !connection.is_lost() => return Ok(connection.clone()),
                ConnectionState::Down(outage) => return Err(Outage::clone(outage)),
                _ => {}
            }
            self.connect();
            // `self` holds the sender, so only the deadline ends the wait.
            if !matches!(timeout_at(deadline, state.changed()).await, Ok(Ok(()))) {
                let detail = "not connected within the deadline".to_owned();
                return Err(Outage { kind: FailureKind::Timeout, detail });
            }
        }
    }

    /// Closes a lost connection and reconnects. Returns whether this call is the first to report
    /// the loss.
    pub(crate) fn lose(self: &Arc<Self>, connection: &Connection) -> bool {
        connection.lost.store(true, Ordering::Release);
        self.connect();
        !connection.missed.swap(true, Ordering::AcqRel)
    }

    /// Starts to connect, unless connected or already connecting.
    pub(crate) fn connect(self: &Arc<Self>) {
        let mut failures = 0;
        let begun = self.state.send_if_modified(|state| {
            match state {
                ConnectionState::Idle => {}
                ConnectionState::Up(connection) if connection.is_lost() => {
                    failures = u32::from(Instant::now().duration_since(connection.since) < SHORT_LIFE);
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                _ => return false,
            }
            *state = ConnectionState::Connecting;
            true
        });
        if begun {
            let attempt = Attempt { managed: Arc::downgrade(self), is_over: false };
            // Outside a runtime the attempt is dropped here, which resets the state to idle.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(attempt.until_connected(Arc::clone(&self.connector), failures));
            }
        }
    }
}

impl Connection {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Records a reply.
    pub(crate) fn answered(&self, now: Instant) {
        self.answered_us.store(self.us(now), Ordering::Relaxed);
        self.timeouts_in_a_row.store(0, Ordering::Relaxed);
    }

    /// Records the timeout of a call sent at `begun`. Returns whether to close the connection.
    ///
    /// A slow server still replies to other calls. Reconnecting would slow it down further.
    pub(crate) fn is_silent(&self, begun: Instant) -> bool {
        self.answered_us.load(Ordering::Relaxed) < self.us(begun)
            && self.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_TIMEOUTS
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX)
    }
}

/// A connection attempt. If dropped before it succeeds, for example because a runtime ends, the
/// state becomes idle.
struct Attempt {
    managed: Weak<ManagedConnection>,
    is_over: bool,
}

impl Attempt {
    async fn until_connected(mut self, connector: Arc<Connector>, mut failures: u32) {
        loop {
            if failures > 0 {
                sleep(backoff(failures)).await;
            }
            if self.managed.strong_count() == 0 {
                return;
            }
            let lost = Arc::new(AtomicBool::new(false));
            let answer = connector.connect(self.losing(lost.clone())).await;
            let Some(managed) = self.managed.upgrade() else { return };
            match answer {
                Ok(Connected { stream, accepted, driver }) => {
                    self.is_over = true;
                    let connection = Connection {
                        stream,
                        accepted,
                        _driver: driver,
                        since: Instant::now(),
                        answered_us: AtomicU64::new(0),
                        timeouts_in_a_row: AtomicU32::new(0),
                        lost: lost.clone(),
                        missed: AtomicBool::new(false),
                    };
                    managed.state.send_replace(ConnectionState::Up(Arc::new(connection)));
                    // It may have been lost before `losing` could find it.
                    if lost.load(Ordering::Acquire) {
                        managed.connect();
                    }
                    return;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let kind = error_reply::kind_of_connect_error(&error);
                    let hint = connector.hint(&error).map(|hint| format!("; {hint}")).unwrap_or_default();
                    let detail = format!("cannot connect: {}{hint}", error_reply::error_text(&error));
                    managed.state.send_replace(ConnectionState::Down(Arc::new(Outage { kind, detail })));
                }
            }
        }
    }

    /// Returns the callback for a connection that ends.
    fn losing(&self, lost: Arc<AtomicBool>) -> impl Fn() + Send + Sync + 'static {
        let managed = self.managed.clone();
        move || {
            lost.store(true, Ordering::Release);
            if let Some(managed) = managed.upgrade() {
                managed.connect();
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(managed) = self.managed.upgrade().filter(|_| !self.is_over) {
            managed.state.send_replace(ConnectionState::Idle);
        }
    }
}

/// The wait before the next attempt: exponential, minus a random part.
fn backoff(failures: u32) -> Duration {
    let (shortest, longest) = BACKOFF;
    let wait = shortest.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    crate::between((wait / 2).max(shortest), wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Synchronised attempts of all instances would keep a server from recovering.
    #[test]
    fn waits_between_attempts_grow_from_10_to_500_ms() {
        assert_eq!(backoff(1), Duration::from_millis(10));
        for failures in 2..100 {
            assert!((BACKOFF.0..=BACKOFF.1).contains(&backoff(failures)));
        }
        assert!(backoff(50) >= BACKOFF.1 / 2);
    }
}
