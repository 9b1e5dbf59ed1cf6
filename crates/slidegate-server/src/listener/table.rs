//! The table of open connections, ordered by idle time.
//!
//! The order is corrected only during a search: until then a connection keeps the position of its
//! last examination. Connecting, closing and finding the longest-idle connection take O(log n),
//! amortized over a tick; requests cost nothing here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use futures_util::task::AtomicWaker;

use super::activity::{Activity, Phase, TICKS_PER_SECOND, Tick};
use super::counters::ProtocolConnections;
use super::reasons::{CloseReason, RefusalReason};
use super::timeouts::violated;

/// A connection active within this time is never closed to make room.
const MIN_IDLE: Tick = TICKS_PER_SECOND;
/// Maximum connections examined per admission, so an accept takes bounded time.
const MAX_EXAMINED: usize = 1024;

/// Identifies a peer: an IPv4 address, or the /56 network of an IPv6 address.
pub(super) type PeerKey = [u8; 16];

/// An open connection.
#[derive(Debug)]
pub(super) struct OpenConnection {
    id: u64,
    /// `None` on a Unix socket.
    peer: Option<PeerKey>,
    /// Bytes of incomplete requests, by [`Part`](super::unfinished::Part).
    pub(super) unfinished: [AtomicUsize; 2],
    pub(super) protocol: Arc<ProtocolConnections>,
    pub(super) activity: Activity,
    /// The reason if it is being closed, else 0.
    closing: AtomicU8,
    /// Wakes the connection's task when it is closed.
    pub(super) waker: AtomicWaker,
    /// Its position in the order. Changed only by the table.
    place: AtomicU32,
    /// Whether the table still contains it. Changed only by the table.
    is_listed: AtomicBool,
}

impl OpenConnection {
    /// Makes its next read or write fail. The first reason is kept.
    pub(super) fn close(&self, reason: CloseReason) {
        if self.closing.compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.protocol.closed(reason);
            self.waker.wake();
        }
    }

    /// Unique among all connections.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn peer(&self) -> Option<PeerKey> {
        self.peer
    }

    pub(super) fn unfinished_bytes(&self) -> usize {
        self.unfinished.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// The reason if it is being closed.
    pub(super) fn closing(&self) -> Option<CloseReason> {
        CloseReason::from_code(self.closing.load(Ordering::Acquire))
    }
}

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionCaps {
    /// Over all protocols.
    pub(crate) total: usize,
    /// Per peer address.
    pub(crate) per_peer: usize,
}

/// The open connections of all protocols.
#[derive(Debug, Default)]
pub(super) struct Table {
    by_idle: BTreeMap<(Tick, u64), Arc<OpenConnection>>,
    by_peer: BTreeSet<(PeerKey, Tick, u64)>,
    peers: HashMap<PeerKey, usize>,
    next_id: u64,
}

impl Table {
    /// Admits a connection. If there is no room, closes the longest-idle one, of the same peer if
    /// that is over its cap.
    pub(super) fn admit(
        &mut self,
        peer: Option<PeerKey>,
        protocol: &Arc<ProtocolConnections>,
        caps: ConnectionCaps,
        now: Tick,
    ) -> Result<Arc<OpenConnection>, RefusalReason> {
        let of_peer = peer.and_then(|peer| self.peers.get(&peer)).copied().unwrap_or(0);
        if of_peer >= caps.per_peer {
            self.shed(peer, now).ok_or(RefusalReason::Peer)?;
        } else if self.by_idle.len() >= caps.total {
            self.shed(None, now).ok_or(RefusalReason::Total)?;
        }
        self.next_id += 1;
        let entry = Arc::new(OpenConnection {
            id: self.next_id,
            peer,
            unfinished: Default::default(),
            protocol: Arc::clone(protocol),
            activity: Activity::new(now),
            closing: AtomicU8::new(0),
            waker: AtomicWaker::new(),
            place: AtomicU32::new(now),
            is_listed: AtomicBool::new(true),
        });
        self.insert(Arc::clone(&entry), now);
        if let Some(peer) = peer {
            *self.peers.entry(peer).or_default() += 1;
        }
        Ok(entry)
    }

    /// Closes the longest-idle connection, of this peer if given. `None` if none was idle for
    /// [`MIN_IDLE`].
    pub(super) fn shed(&mut self, peer: Option<PeerKey>, now: Tick) -> Option<()> {
        for _ in 0..MAX_EXAMINED {
            let (place, id) = match peer {
                None => *self.by_idle.first_key_value()?.0,
                Some(peer) => {
                    let first = self.by_peer.range((peer, 0, 0)..).next()?;
                    if first.0 != peer {
                        return None;
                    }
                    (first.1, first.2)
                }
            };
            let entry = Arc::clone(self.by_idle.get(&(place, id))?);
            let state = entry.activity.state();
            let active_at = if state.phase == Phase::Serving { now } else { state.since };
            if active_at > place {
                self.take(&entry);
                self.insert(entry, active_at);
                continue;
            }
            // All others follow it, so none has been idle longer.
            if now.saturating_sub(place) < MIN_IDLE {
                return None;
            }
            self.remove(&entry);
            entry.close(CloseReason::Evicted);
            return Some(());
        }
        None
    }

    /// Removes a connection that has ended, or is about to.
    pub(super) fn remove(&mut self, entry: &OpenConnection) {
        if !entry.is_listed.swap(false, Ordering::Relaxed) {
            return;
        }
        self.take(entry);
        if let Some(peer) = entry.peer
            && let Some(count) = self.peers.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// Closes every connection beyond a timeout of its protocol. O(n).
    pub(super) fn sweep(&self, now: Tick) {
        for entry in self.by_idle.values() {
            if let Some(reason) = violated(&entry.protocol.timeouts, entry.activity.state(), now) {
                entry.close(reason);
            }
        }
    }

    /// Wakes the tasks of this protocol's connections. O(n).
    pub(super) fn wake(&self, protocol: &Arc<ProtocolConnections>) {
        let of_protocol = self.by_idle.values().filter(|entry| Arc::ptr_eq(&entry.protocol, protocol));
        of_protocol.for_each(|entry| entry.waker.wake());
    }

    /// Open connections.
    pub(super) fn len(&self) -> usize {
        self.by_idle.len()
    }

    fn insert(&mut self, entry: Arc<OpenConnection>, place: Tick) {
        entry.place.store(place, Ordering::Relaxed);
        if let Some(peer) = entry.peer {
            self.by_peer.insert((peer, place, entry.id));
        }
        self.by_idle.insert((place, entry.id), entry);
    }

    fn take(&mut self, entry: &OpenConnection) {
        let place = entry.place.load(Ordering::Relaxed);
        self.by_idle.remove(&(place, entry.id));
        if let Some(peer) = entry.peer {
            self.by_peer.remove(&(peer, place, entry.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::ConnectionSpec;
    use super::super::timeouts::Timeouts;
    use super::*;

    const SECOND: Tick = TICKS_PER_SECOND;

    fn protocol() -> Arc<ProtocolConnections> {
        Arc::new(ProtocolConnections::new(ConnectionSpec {
            protocol: "test",
            max: None,
            timeouts: Timeouts::default(),
            refusal: b"",
        }))
    }

    fn peer(number: u8) -> Option<PeerKey> {
        Some([number; 16])
    }

    const CAPS: ConnectionCaps = ConnectionCaps { total: 3, per_peer: 2 };

    /// Silent sockets must not lock everyone else out permanently.
    #[test]
    fn the_longest_idle_connection_makes_room() {
        let (mut table, protocol) = (Table::default(), protocol());
        let mut admit = |from, now| table.admit(peer(from), &protocol, CAPS, now);
        let first = admit(1, 0).unwrap();
        let second = admit(2, 1).unwrap();
        let third = admit(3, 2).unwrap();
        // The first is the oldest but was just served.
        first.activity.received(3 * SECOND);
        first.activity.sent(3 * SECOND);
        assert!(admit(4, 3 * SECOND).is_ok());
        assert_eq!(second.closing(), Some(CloseReason::Evicted));
        assert_eq!((first.closing(), third.closing()), (None, None));
        assert_eq!(table.len(), 3);
    }

    /// A burst of connections must not close those in use.
    #[test]
    fn active_connections_are_not_closed_and_the_new_one_is_refused() {
        let (mut table, protocol) = (Table::default(), protocol());
        let entries: Vec<_> =
            (1..=3).map(|from| table.admit(peer(from), &protocol, CAPS, 0).unwrap()).collect();
        let now = 10 * SECOND;
        entries[0].activity.sent(now);
        entries[1].activity.sent(now);
        // A long request is being served, not idle.
        entries[2].activity.serving(1);
        assert_eq!(table.admit(peer(4), &protocol, CAPS, now).unwrap_err(), RefusalReason::Total);
        assert!(entries.iter().all(|entry| entry.closing().is_none()));
        assert!(table.admit(peer(4), &protocol, CAPS, now + MIN_IDLE).is_ok());
    }

    /// One client with too many connections is its own problem.
    #[test]
    fn a_peer_over_its_cap_loses_its_own_connections_only() {
        let (mut table, protocol) = (Table::default(), protocol());
        let caps = ConnectionCaps { total: 100, ..CAPS };
        let mut admit = |from, now| table.admit(from, &protocol, caps, now);
        let other = admit(peer(1), 0).unwrap();
        let greedy = [admit(peer(2), 1).unwrap(), admit(peer(2), 2).unwrap()];
        assert_eq!(admit(peer(2), 3).unwrap_err(), RefusalReason::Peer);
        let third = admit(peer(2), 2 * SECOND).unwrap();
        assert_eq!(greedy[0].closing(), Some(CloseReason::Evicted));
        assert_eq!((other.closing(), greedy[1].closing()), (None, None));
        table.remove(&greedy[0]);
        table.remove(&greedy[1]);
        table.remove(&third);
        assert_eq!(table.peers.get(&[2; 16]), None);
        // Unix socket clients have no address to count by.
        for _ in 0..5 {
            table.admit(None, &protocol, caps, 0).unwrap();
        }
    }

    /// The work of one accept is bounded, whatever all connections did meanwhile.
    #[test]
    fn a_busy_table_is_examined_in_parts() {
        let (mut table, protocol) = (Table::default(), protocol());
        let caps = ConnectionCaps { total: 3 * MAX_EXAMINED, per_peer: usize::MAX };
        let entries: Vec<_> =
            (0..caps.total).map(|_| table.admit(peer(1), &protocol, caps, 0).unwrap()).collect();
        let now = 10 * SECOND;
        let (idle, busy) = entries.split_last().unwrap();
        busy.iter().for_each(|entry| entry.activity.sent(now));
        let refused = (0..4).take_while(|_| table.admit(peer(2), &protocol, caps, now).is_err()).count();
        assert_eq!(refused, 2);
        assert_eq!(idle.closing(), Some(CloseReason::Evicted));
        assert!(busy.iter().all(|entry| entry.closing().is_none()));
    }
}
