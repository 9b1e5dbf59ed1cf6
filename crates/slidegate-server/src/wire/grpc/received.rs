//! A client's input: frames are counted and read in short turns.
//!
//! Frames that belong to no call, such as PING, SETTINGS and `WINDOW_UPDATE`, cost the client
//! nothing but make the service work, so their number is bounded per connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::frame::{CONTINUATION, HEAD_BYTES, HEADERS, PREFACE, payload_bytes};

/// Bytes read per turn, before calls are handled and other connections have their turn: about 500
/// frames.
const TURN_BYTES: usize = 8 * 1024;
/// Frames granted per call: its message, room for its response, and one or two PINGs that measure
/// bandwidth.
const FRAMES_PER_CALL: u32 = 8;
/// Maximum frames that a client can save up.
const MAX_FRAMES: u32 = 8 * 1024;
/// Frames granted per period in any case.
const FRAMES_PER_PERIOD: u32 = 1024;
const PERIOD: Duration = Duration::from_secs(10);
/// A part of a header block with at least this many bytes does not count as a frame.
const LONG_FRAME_BYTES: usize = 1024;

/// A connection's turn, shared by its task and its socket.
#[derive(Debug, Default)]
pub(super) struct ReadTurn {
    bytes: AtomicUsize,
    is_flooded: AtomicBool,
}

impl ReadTurn {
    pub(super) fn begin(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Whether the client has sent more frames than allowed.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }
}

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct Received<I> {
    inner: I,
    turn: Arc<ReadTurn>,
    frames: Frames,
}

#[derive(Debug)]
struct Frames {
    /// Bytes until the next frame header.
    passing: usize,
    /// An incomplete frame header.
    head: [u8; HEAD_BYTES],
    head_length: usize,
    /// Frames that the client may still send.
    allowed: u32,
    period: Instant,
}

impl<I> Received<I> {
    pub(super) fn new(inner: I, turn: Arc<ReadTurn>) -> Self {
        Self { inner, turn, frames: Frames::new(Instant::now()) }
    }
}

impl Frames {
    fn new(now: Instant) -> Self {
        Self {
            passing: PREFACE.len(),
            head: [0; HEAD_BYTES],
            head_length: 0,
            allowed: FRAMES_PER_PERIOD,
            period: now,
        }
    }

    /// Counts frames whose header ends in these bytes. `false` if there are too many.
    fn count(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) -> bool {
        loop {
            let passing = self.passing.min(bytes.len());
            self.passing -= passing;
            bytes = &bytes[passing..];
            let more = bytes.len().min(HEAD_BYTES - self.head_length);
            self.head[self.head_length..][..more].copy_from_slice(&bytes[..more]);
            self.head_length += more;
            bytes = &bytes[more..];
            if self.head_length < HEAD_BYTES {
                return true;
            }
            self.head_length = 0;
            let [a, b, c, kind, ..] = self.head;
            self.passing = payload_bytes([a, b, c]);
            if kind == HEADERS {
                self.allowed = (self.allowed + FRAMES_PER_CALL).min(MAX_FRAMES);
            } else if kind == CONTINUATION && self.passing >= LONG_FRAME_BYTES {
                // A long header block from the proxy's client: its cost is its bytes.
            } else if !self.allow(&now) {
                return false;
            }
        }
    }

    fn allow(&mut self, now: impl Fn() -> Instant) -> bool {
        if self.allowed == 0 {
            let now = now();
            if now.duration_since(self.period) < PERIOD {
                return false;
            }
            (self.allowed, self.period) = (FRAMES_PER_PERIOD, now);
        }
        self.allowed -= 1;
        true
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Received<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let so_far = this.turn.bytes.load(Ordering::Relaxed);
        if so_far >= TURN_BYTES {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
        let bytes = &buffer.filled()[before..];
        this.turn.bytes.store(so_far + bytes.len(), Ordering::Relaxed);
        if !this.frames.count(bytes, Instant::now) {
            this.turn.is_flooded.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("too many frames that belong to no call")));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;
    const PING: u8 = 6;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], &vec![HEADERS; length.into()]].concat()
    }

    /// How many of these frames are read, in pieces of `each`, at one time.
    fn read(frames: &mut Frames, each: &[u8], pieces: usize, now: Instant) -> u32 {
        let is_read = |_: &u32| each.chunks(pieces).all(|piece| frames.count(piece, || now));
        (0..100_000).take_while(is_read).count().try_into().unwrap()
    }

    /// Otherwise a client whose PINGs are all answered takes a whole processor.
    #[test]
    fn frames_that_belong_to_no_call_are_bounded_however_they_are_cut() {
        for pieces in [1, 5, 17, 1000] {
            let begun = Instant::now();
            let mut frames = Frames::new(begun);
            assert!(PREFACE.chunks(pieces).all(|piece| frames.count(piece, || begun)));
            assert_eq!(read(&mut frames, &frame(PING, 8), pieces, begun), FRAMES_PER_PERIOD);
            assert!(!frames.allow(|| begun + PERIOD / 2));
        }
    }

    /// A connection with occasional pings must survive for months.
    #[test]
    fn each_period_allows_as_many_again() {
        let mut now = Instant::now();
        let mut frames = Frames::new(now);
        frames.count(PREFACE, || now);
        for _ in 0..100 {
            for _ in 0..FRAMES_PER_PERIOD {
                assert!(frames.count(&frame(PING, 8), || now));
            }
            now += PERIOD;
        }
    }

    /// A proxy that calls without pause and measures bandwidth must stay connected.
    #[test]
    fn each_call_allows_its_own_frames() {
        let begun = Instant::now();
        let mut frames = Frames::new(begun);
        frames.count(PREFACE, || begun);
        let call = [frame(HEADERS, 20), frame(DATA, 100), frame(PING, 8).repeat(7)].concat();
        assert_eq!(read(&mut frames, &call, 8192, begun), 100_000);
        // Saved-up frames are bounded.
        assert!(read(&mut frames, &frame(HEADERS, 20), 8192, begun) == 100_000);
        assert_eq!(read(&mut frames, &frame(PING, 8), 8192, begun), MAX_FRAMES);
    }
}
