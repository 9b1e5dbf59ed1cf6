//! The connection budget: the maximum number of connections over all protocols.
//!
//! A lock is taken when a connection opens or closes, never for a request.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::activity::{TICKS_PER_SECOND, Tick};
use super::counters::{ConnectionSpec, ProtocolConnections};
use super::descriptors::Descriptors;
use super::reasons::{CloseReason, RefusalReason};
use super::refusal::Refusals;
use super::table::{ConnectionCaps, OpenConnection, Table};
use crate::log_limit::group_key;

/// Minimum cap, however few file descriptors there are: enough to inspect and shut down.
const MIN_CONNECTIONS: usize = 8;

/// A longer time between two ticks is one in which the process was stopped.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// The connections of all protocols.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    configured: ConnectionCaps,
    total: AtomicUsize,
    per_peer: AtomicUsize,
    now: AtomicU32,
    table: Mutex<Table>,
    protocols: Mutex<Vec<Arc<ProtocolConnections>>>,
    pub(super) descriptors: Descriptors,
    pub(super) refusals: Refusals,
}

/// A place in the budget. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(super) entry: Arc<OpenConnection>,
    budget: Arc<ConnectionBudget>,
}

impl ConnectionBudget {
    pub(crate) fn new(caps: ConnectionCaps) -> Self {
        Self {
            configured: caps,
            total: AtomicUsize::new(caps.total),
            per_peer: AtomicUsize::new(caps.per_peer),
            now: AtomicU32::new(0),
            table: Mutex::default(),
            protocols: Mutex::default(),
            descriptors: Descriptors::default(),
            refusals: Refusals::default(),
        }
    }

    /// Registers a protocol.
    pub(crate) fn protocol(&self, spec: ConnectionSpec) -> Arc<ProtocolConnections> {
        let protocol = Arc::new(ProtocolConnections::new(spec));
        self.protocols.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&protocol));
        protocol
    }

    /// The registered protocols.
    pub(crate) fn protocols(&self) -> Vec<Arc<ProtocolConnections>> {
        self.protocols.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shrinks the caps to the file descriptors left for connections. Call once all listeners and the store
    /// have theirs.
    ///
    /// # Errors
    /// One line for the log: the limit is below what the configured caps need.
    pub(crate) fn fit(&self) -> Result<(), String> {
        let ConnectionCaps { total, per_peer } = self.configured;
        let Some(available) = self.descriptors.available() else { return Ok(()) };
        if available >= total {
            return Ok(());
        }
        let fitting = available.max(MIN_CONNECTIONS);
        // In proportion, so one peer still leaves room for others.
        let of_peer = (fitting * per_peer.min(total)).div_ceil(total);
        self.total.store(fitting, Ordering::Relaxed);
        self.per_peer.store(of_peer, Ordering::Relaxed);
        let limit = self.descriptors.limit().unwrap_or_default();
        let needed = limit.saturating_add((total - available) as u64);
        Err(format!(
            "the limit of {limit} file descriptors allows {fitting} connections instead of {total}; raise the hard \
             limit to {needed} (`ulimit -Hn`, or LimitNOFILE= in systemd), or lower server.max_connections"
        ))
    }

    /// The current caps, which may be lower than configured.
    pub(crate) fn caps(&self) -> ConnectionCaps {
        ConnectionCaps {
            total: self.total.load(Ordering::Relaxed),
            per_peer: self.per_peer.load(Ordering::Relaxed),
        }
    }

    /// Open connections of all protocols.
    pub(crate) fn open(&self) -> usize {
        self.table().len()
    }

    /// The limit of file descriptors and the number open. `None` if the system does not report it.
    pub(crate) fn descriptors(&self) -> (Option<u64>, Option<usize>) {
        (self.descriptors.limit(), Descriptors::open())
    }

    /// Advances the clock of connections and closes those beyond their timeouts. While this process was stopped, the
    /// clock stands: nobody could be served meanwhile.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut last, mut running) = (Instant::now(), Duration::ZERO);
        let mut ticks = interval(Duration::from_millis(1000 / u64::from(TICKS_PER_SECOND)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = 0;
        loop {
            let tick = ticks.tick().await;
            running += (tick - last).min(LONGEST_TICK);
            last = tick;
            let now = running.as_millis() * u128::from(TICKS_PER_SECOND) / 1000;
            let now = Tick::try_from(now).unwrap_or(Tick::MAX);
            self.now.store(now, Ordering::Relaxed);
            if now - swept >= TICKS_PER_SECOND {
                swept = now;
                self.table().sweep(now);
            }
        }
    }

    /// Reserves a place for this peer's connection. If there is no room, closes the longest-idle connection.
    pub(crate) fn admit(
        self: &Arc<Self>,
        protocol: &Arc<ProtocolConnections>,
        peer: Option<IpAddr>,
    ) -> Result<Slot, RefusalReason> {
        if !protocol.begin() {
            return Err(RefusalReason::Protocol);
        }
        let admitted = self.table().admit(peer.map(group_key), protocol, self.caps(), self.now());
        match admitted {
            Ok(entry) => {
                protocol.admitted();
                Ok(Slot { entry, budget: Arc::clone(self) })
            }
            Err(reason) => {
                protocol.end();
                Err(reason)
            }
        }
    }

    /// Ends the connections of a protocol: idle ones at once, others after their current request. O(open
    /// connections).
    pub(super) fn end(&self, protocol: &Arc<ProtocolConnections>) {
        protocol.begin_ending();
        self.table().wake(protocol);
    }

    /// Closes the longest-idle connection, because file descriptors ran out.
    pub(super) fn shed(&self) {
        self.table().shed(None, self.now());
    }

    #[inline]
    fn now(&self) -> Tick {
        self.now.load(Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Records that a complete request arrived, whose response may take long.
    pub(crate) fn serving(&self) {
        self.entry.activity.serving(self.budget.now());
    }

    /// Whether the connection must end after its current request. Its task is woken when this changes.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.entry.protocol.is_ending()
    }

    #[inline]
    pub(super) fn received(&self) {
        self.entry.activity.received(self.budget.now());
    }

    #[inline]
    pub(super) fn sent(&self) {
        self.entry.activity.sent(self.budget.now());
    }

    pub(super) fn blocked(&self) {
        self.entry.activity.blocked(self.budget.now());
    }

    /// Records a failed TLS handshake; the connection is about to end.
    pub(super) fn handshake_failed(&self) {
        self.entry.close(CloseReason::Handshake);
    }

    /// Records that the client grants no room for a reply; the connection is about to end.
    pub(crate) fn unread(&self) {
        self.entry.close(CloseReason::Write);
    }

    /// Records that the client sends too many frames that belong to no call; the connection is about to end.
    pub(crate) fn flooded(&self) {
        self.entry.close(CloseReason::Flood);
    }

    /// Records the end of the TLS handshake: the protocol begins.
    pub(super) fn restart(&self) {
        self.entry.activity.restart(self.budget.now());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.hold_nothing();
        self.budget.table().remove(&self.entry);
        self.entry.protocol.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process accepts when it goes on would be closed for the time that it was stopped.
    #[tokio::test(start_paused = true)]
    async fn the_clock_of_connections_stands_while_the_process_is_stopped() {
        let budget = Arc::new(ConnectionBudget::new(ConnectionCaps { total: 8, per_peer: 8 }));
        let running = tokio::spawn(Arc::clone(&budget).run());
        tokio::time::sleep(Duration::from_millis(5100)).await;
        assert_eq!(budget.now(), 5 * TICKS_PER_SECOND);
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let passed = budget.now() - 5 * TICKS_PER_SECOND;
        assert!((TICKS_PER_SECOND..=3 * TICKS_PER_SECOND).contains(&passed), "{passed}");
        running.abort();
    }
}
