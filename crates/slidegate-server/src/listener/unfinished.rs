//! Memory of incomplete requests, over all connections of one protocol.
//!
//! Client addresses share it by [`slidegate::shares`]. If an address lacks memory, the address that holds
//! most gives some back: its longest-waiting connection is closed. So an attacker makes room at its own cost
//! and others are served.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use super::budget::Slot;
use super::reasons::CloseReason;
use super::table::{OpenConnection, PeerKey};

/// Maximum bytes over all connections of a protocol: a hundred of the largest requests.
const MAX_BYTES: usize = 32 << 20;
/// Uncounted bytes per connection: typical requests take no lock.
const OWN_BYTES: usize = 4 << 10;

/// A part of a connection's memory; different tasks may hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Bytes read that belong to no request yet.
    Buffers,
    /// Requests that have begun.
    Requests,
}

/// The incomplete requests of one protocol.
#[derive(Debug)]
pub(super) struct UnfinishedRequests {
    held: Mutex<HeldBytes>,
    refused: AtomicU64,
}

/// An address. All Unix socket clients count as one.
type Owner = Option<PeerKey>;

#[derive(Debug)]
struct HeldBytes {
    shares: slidegate::shares::Shares<Owner>,
    /// By connection id: since when it holds memory (as a sequence number) and how many bytes.
    connections: HashMap<u64, (u64, usize)>,
    /// By owner; the longest-waiting connection first.
    by_wait: BTreeMap<(Owner, u64), Arc<OpenConnection>>,
    next: u64,
}

/// There is no room to keep a request until the rest arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMuch;

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "too many unfinished requests: those of all clients may hold {MAX_BYTES} bytes, and those of one address \
             half of what is free; send each request whole, and fewer at a time"
        )
    }
}

impl std::error::Error for TooMuch {}

impl Default for UnfinishedRequests {
    fn default() -> Self {
        let shares = slidegate::shares::Shares::new(MAX_BYTES);
        let held = HeldBytes { shares, connections: HashMap::new(), by_wait: BTreeMap::new(), next: 0 };
        Self { held: Mutex::new(held), refused: AtomicU64::new(0) }
    }
}

impl UnfinishedRequests {
    /// Bytes that connections hold beyond [`OWN_BYTES`].
    pub(super) fn bytes(&self) -> usize {
        self.held().shares.taken()
    }

    /// Requests dropped, with or without their connection.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a connection's current memory. Work is bounded: each connection that makes room holds more than
    /// [`OWN_BYTES`].
    #[cold]
    fn count(&self, entry: &Arc<OpenConnection>) -> Result<(), TooMuch> {
        let mut held = self.held();
        let counted = held.count(entry, &self.refused);
        if counted.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        counted
    }

    fn held(&self) -> MutexGuard<'_, HeldBytes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldBytes {
    fn count(&mut self, entry: &Arc<OpenConnection>, refused: &AtomicU64) -> Result<(), TooMuch> {
        let bytes = entry.unfinished_bytes();
        let bytes = if bytes > OWN_BYTES { bytes } else { 0 };
        let known = self.connections.get(&entry.id()).copied();
        let (since, before) = known.unwrap_or((self.next, 0));
        if bytes > before {
            if entry.closing().is_some() {
                return Err(TooMuch);
            }
            let mut lacking = self.shares.lacking(&entry.peer(), bytes - before);
            while lacking > 0 {
                let largest = *self.shares.largest().ok_or(TooMuch)?;
                let first = self.by_wait.range((largest, 0)..).next().ok_or(TooMuch)?.1;
                if first.id() == entry.id() {
                    return Err(TooMuch);
                }
                let first = Arc::clone(first);
                lacking = lacking.saturating_sub(self.forget(&first));
                refused.fetch_add(1, Ordering::Relaxed);
                first.close(CloseReason::Memory);
            }
            self.shares.add(&entry.peer(), bytes - before);
        } else {
            self.shares.give_back(&entry.peer(), before - bytes);
        }
        if bytes == 0 {
            self.forget(entry);
        } else {
            self.connections.insert(entry.id(), (since, bytes));
            if known.is_none() {
                self.next += 1;
                self.by_wait.insert((entry.peer(), since), Arc::clone(entry));
            }
        }
        Ok(())
    }

    /// Removes a connection. Returns the bytes it gave back.
    fn forget(&mut self, entry: &OpenConnection) -> usize {
        let Some((since, bytes)) = self.connections.remove(&entry.id()) else { return 0 };
        self.by_wait.remove(&(entry.peer(), since));
        self.shares.give_back(&entry.peer(), bytes);
        bytes
    }
}

impl Slot {
    /// Holds this many bytes of incomplete requests, in this part.
    ///
    /// # Errors
    /// There is no room for more than it held before, which it still holds.
    #[inline]
    pub(crate) fn hold(&self, part: Part, bytes: usize) -> Result<(), TooMuch> {
        let held = &self.entry.unfinished[part as usize];
        let before = held.load(Ordering::Relaxed);
        if before == bytes {
            return Ok(());
        }
        let old = self.entry.unfinished_bytes();
        held.store(bytes, Ordering::Relaxed);
        if old.max(self.entry.unfinished_bytes()) <= OWN_BYTES {
            return Ok(());
        }
        let counted = self.entry.protocol.unfinished.count(&self.entry);
        if counted.is_err() {
            held.store(before, Ordering::Relaxed);
        }
        counted
    }

    /// Releases a connection's memory at its end.
    pub(super) fn hold_nothing(&self) {
        let has_held =
            self.entry.unfinished.iter().fold(0, |sum, held| sum | held.swap(0, Ordering::Relaxed));
        if has_held > 0 {
            self.entry.protocol.unfinished.held().forget(&self.entry);
        }
    }

    /// Marks a connection that needs more memory than there is and is about to end.
    pub(crate) fn too_much(&self) {
        self.entry.close(CloseReason::Memory);
    }
}

/// A request body that counts its bytes until complete.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: Incoming,
    slot: Arc<Slot>,
    arrived: usize,
}

impl TrackedBody {
    pub(super) fn new(body: Incoming, slot: &Arc<Slot>) -> Self {
        Self { body, slot: Arc::clone(slot), arrived: 0 }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.arrived) > 0 {
            let _ = self.slot.hold(Part::Requests, 0);
        }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.end();
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) if !self.body.is_end_stream() => {
                self.arrived += frame.data_ref().map_or(0, Bytes::len);
                // The reader collects it in a buffer that doubles.
                if let Err(too_much) = self.slot.hold(Part::Requests, self.arrived.next_power_of_two()) {
                    return Poll::Ready(Some(Err(too_much.into())));
                }
            }
            Poll::Ready(_) => self.end(),
            Poll::Pending => {}
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::counters::{ConnectionSpec, ProtocolConnections};
    use super::super::timeouts::Timeouts;
    use super::super::{ConnectionBudget, ConnectionCaps};
    use super::*;

    const KIB: usize = 1 << 10;

    fn protocol() -> (Arc<ConnectionBudget>, Arc<ProtocolConnections>) {
        let budget = ConnectionBudget::new(ConnectionCaps { total: 100_000, per_peer: 100_000 });
        let spec =
            ConnectionSpec { protocol: "test", max: None, timeouts: Timeouts::default(), refusal: b"" };
        let protocol = budget.protocol(spec);
        (Arc::new(budget), protocol)
    }

    fn connect((budget, protocol): &(Arc<ConnectionBudget>, Arc<ProtocolConnections>), peer: u8) -> Slot {
        budget.admit(protocol, Some(IpAddr::from([192, 0, 2, peer]))).unwrap()
    }

    fn is_closed(slot: &Slot) -> bool {
        slot.entry.closing() == Some(CloseReason::Memory)
    }

    /// An attacker must lose its own connections, oldest first, and nobody else's.
    #[test]
    fn the_address_that_holds_most_makes_room() {
        let all = protocol();
        let patient = connect(&all, 1);
        patient.hold(Part::Requests, 200 * KIB).unwrap();
        let attacking: Vec<_> = (0..300).map(|_| connect(&all, 2)).collect();
        attacking.iter().for_each(|slot| slot.hold(Part::Requests, 256 * KIB).unwrap());
        assert!(all.1.unfinished.bytes() <= MAX_BYTES / 2 + 300 * KIB);
        let closed = attacking.iter().take_while(|slot| is_closed(slot)).count();
        assert_eq!(attacking.iter().filter(|slot| is_closed(slot)).count(), closed, "the oldest ones");
        assert_eq!((closed as u64, is_closed(&patient)), (all.1.unfinished.refused(), false));
        // Many addresses at once also leave room for the next one.
        let crowd: Vec<_> = (3..200).map(|peer| [connect(&all, peer), connect(&all, peer)]).collect();
        crowd.iter().flatten().for_each(|slot| slot.hold(Part::Requests, 256 * KIB).unwrap());
        assert!(all.1.unfinished.bytes() <= MAX_BYTES);
        let late = connect(&all, 250);
        late.hold(Part::Buffers, 60 * KIB).unwrap();
        late.hold(Part::Requests, 190 * KIB).unwrap();
        assert!(!is_closed(&late));
        drop((patient, attacking, crowd, late));
        assert_eq!(all.1.unfinished.bytes(), 0, "all is given back");
        let held = all.1.unfinished.held();
        assert!(held.connections.is_empty() && held.by_wait.is_empty());
    }

    /// A connection that alone holds its address's whole share is refused more and keeps what it has.
    #[test]
    fn a_connection_that_holds_most_is_refused_more() {
        let all = protocol();
        let one = connect(&all, 1);
        one.hold(Part::Requests, MAX_BYTES / 2).unwrap();
        assert_eq!(one.hold(Part::Requests, MAX_BYTES / 2 + 1), Err(TooMuch));
        assert_eq!(one.hold(Part::Buffers, 1), Err(TooMuch));
        assert_eq!((all.1.unfinished.bytes(), all.1.unfinished.refused()), (MAX_BYTES / 2, 2));
        one.hold(Part::Requests, OWN_BYTES).unwrap();
        assert_eq!(all.1.unfinished.bytes(), 0, "usual requests are not counted");
    }
}
