//! Calls whose message has not arrived, and the memory they hold.
//!
//! A message is passed on when complete: until then nothing is decoded, and no buffer is allocated for the
//! announced length. A call that arrives at once, as from proxies, is not counted.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::BoxError;
use hyper::Request;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderMap;
use prost::bytes::{Buf, Bytes};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::{BODY_TIMEOUT, MAX_MESSAGE_BYTES};
use crate::listener::{Part, Slot};

/// Memory of a call besides its message: its state here and in the HTTP/2 library, measured (6.3 kB).
pub(super) const CALL_BYTES: usize = 7 * 1024;
/// Uncounted memory for the calls of one connection: two calls.
pub(super) const OWN_BYTES: usize = 2 * CALL_BYTES;
/// Length of a message's prefix.
const PREFIX_BYTES: usize = 5;
/// The field that tonic reads.
const ENCODING: &str = "grpc-encoding";

/// Memory held by the calls of one connection.
#[derive(Debug)]
pub(super) struct IncompleteCalls {
    bytes: AtomicUsize,
    slot: Arc<Slot>,
}

impl IncompleteCalls {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self { bytes: AtomicUsize::new(0), slot }
    }

    /// Holds this many more bytes. All calls of a connection run in one task, so nothing runs in between.
    fn take(&self, bytes: usize) -> Result<(), Status> {
        let held = self.bytes.load(Ordering::Relaxed) + bytes;
        let counted = self.slot.hold(Part::Requests, held.saturating_sub(OWN_BYTES));
        counted.map_err(|too_much| Status::resource_exhausted(too_much.to_string()))?;
        self.bytes.store(held, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let held = self.bytes.load(Ordering::Relaxed) - bytes;
        // A smaller amount is always granted.
        let _ = self.slot.hold(Part::Requests, held.saturating_sub(OWN_BYTES));
        self.bytes.store(held, Ordering::Relaxed);
    }
}

/// A call's message: one frame once it has arrived. Fails if it takes too long or too much memory.
#[derive(Debug)]
pub(super) struct MessageBody<B> {
    body: B,
    /// Deadline for the message. The timer starts at the first wait, so a message that has arrived costs
    /// none.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes of an incomplete message.
    message: Vec<u8>,
    calls: Arc<IncompleteCalls>,
    /// Its share of the held bytes. 0 until it waits.
    held: usize,
}

/// The call reduced to what decoding needs, so neither headers nor their read buffers stay while the message
/// arrives.
pub(super) fn message_of<B>(request: Request<B>, calls: &Arc<IncompleteCalls>) -> Request<MessageBody<B>> {
    let (head, body) = request.into_parts();
    let mut headers = HeaderMap::new();
    if let Some(encoding) = head.headers.get(ENCODING).filter(|encoding| *encoding != "identity") {
        headers.insert(ENCODING, encoding.clone());
    }
    let calls = Arc::clone(calls);
    let body = MessageBody { body, deadline: None, message: Vec::new(), calls, held: 0 };
    let mut request = Request::new(body);
    *request.headers_mut() = headers;
    request
}

impl<B> MessageBody<B> {
    /// Updates the held bytes.
    fn hold(&mut self) -> Result<(), Status> {
        let bytes = CALL_BYTES + self.message.capacity();
        self.calls.take(bytes.saturating_sub(self.held))?;
        self.held = self.held.max(bytes);
        Ok(())
    }

    /// Waits for more bytes. Completes if that takes too long or too much memory.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.held == 0
            && let Err(too_much) = self.hold()
        {
            return Poll::Ready(too_much);
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        let late = || format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs());
        deadline.as_mut().poll(cx).map(|()| Status::deadline_exceeded(late()))
    }
}

impl<B> Drop for MessageBody<B> {
    fn drop(&mut self) {
        self.calls.give_back(self.held);
    }
}

impl<B> Body for MessageBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            let frame = match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) if !this.message.is_empty() => {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.message).into()))));
                }
                Poll::Pending => return this.poll_late(cx).map(|status| Some(Err(status.into()))),
                Poll::Ready(end) => return Poll::Ready(end.map(|frame| frame.map_err(Into::into))),
            };
            // Trailers of a call are not read.
            let Ok(data) = frame.into_data() else { continue };
            if this.message.is_empty() && this.body.is_end_stream() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if this.message.len() + data.remaining() > PREFIX_BYTES + MAX_MESSAGE_BYTES {
                let detail = format!("message too large: must be at most {MAX_MESSAGE_BYTES} bytes");
                return Poll::Ready(Some(Err(Status::out_of_range(detail).into())));
            }
            this.message.extend_from_slice(&data);
            if let Err(too_much) = this.hold() {
                return Poll::Ready(Some(Err(too_much.into())));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http_body_util::BodyExt;
    use tokio::time::timeout;

    use super::*;
    use crate::listener::{ConnectionBudget, ConnectionCaps, ConnectionSpec, ProtocolConnections, Timeouts};

    /// A body of these frames that then ends or waits.
    struct Pieces {
        pieces: VecDeque<Bytes>,
        ends: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match self.pieces.pop_front() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }

        fn is_end_stream(&self) -> bool {
            self.ends && self.pieces.is_empty()
        }
    }

    /// The listener's connections.
    struct All(Arc<ConnectionBudget>, Arc<ProtocolConnections>);

    fn all() -> All {
        let budget = ConnectionBudget::new(ConnectionCaps { total: 1000, per_peer: 1000 });
        let spec =
            ConnectionSpec { protocol: "grpc", max: None, timeouts: Timeouts::default(), refusal: b"" };
        let protocol = budget.protocol(spec);
        All(Arc::new(budget), protocol)
    }

    /// The calls of a new connection from this address.
    fn calls(All(budget, protocol): &All, host: u8) -> Arc<IncompleteCalls> {
        let slot = budget.admit(protocol, Some([192, 0, 2, host].into())).unwrap();
        Arc::new(IncompleteCalls::new(Arc::new(slot)))
    }

    fn body(calls: &Arc<IncompleteCalls>, pieces: &[&'static [u8]], ends: bool) -> MessageBody<Pieces> {
        let pieces = pieces.iter().copied().map(Bytes::from_static).collect();
        message_of(Request::new(Pieces { pieces, ends }), calls).into_body()
    }

    /// Polls a body that waits for more. Returns it, because it holds memory until dropped.
    async fn waiting(mut body: MessageBody<Pieces>) -> Result<MessageBody<Pieces>, String> {
        match timeout(std::time::Duration::ZERO, body.frame()).await {
            Ok(Some(Err(error))) => Err(error.to_string()),
            Ok(_) => panic!("it waits"),
            Err(_) => Ok(body),
        }
    }

    /// Clients and proxies split messages anywhere, and a message is decoded once.
    #[tokio::test]
    async fn a_message_is_one_frame_however_it_arrives() {
        let calls = calls(&all(), 1);
        let cuts: [&[&'static [u8]]; 3] = [&[], &[b"abc"], &[b"a", b"", b"bc"]];
        for pieces in cuts {
            let mut body = body(&calls, pieces, true);
            if !pieces.is_empty() {
                assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
            }
            assert!(body.frame().await.is_none());
        }
        let large: &'static [u8] = &[0; PREFIX_BYTES + MAX_MESSAGE_BYTES];
        assert!(body(&calls, &[large], true).frame().await.unwrap().is_ok());
        let mut too_large = body(&calls, &[large, b"x"], true);
        let error = too_large.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("message too large: must be at most 4194304 bytes"), "{error}");
    }

    /// A client that stops within a message must not keep its memory.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_late_ends_its_call() {
        let begun = tokio::time::Instant::now();
        let error = body(&calls(&all(), 1), &[b"a"], false).frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("the body did not arrive within 10 seconds"), "{error}");
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }

    /// An attacker who holds the shared memory must not make others' calls fail.
    #[tokio::test(start_paused = true)]
    async fn an_address_holds_a_bounded_part_and_leaves_room_for_others() {
        let all = all();
        let attacker = calls(&all, 1);
        let (mut held, mut refused) = (Vec::new(), String::new());
        let sizes: [&[&'static [u8]]; 3] = [&[&[0; MAX_MESSAGE_BYTES]], &[&[0; 60_000]], &[]];
        for pieces in sizes {
            refused = loop {
                match waiting(body(&attacker, pieces, false)).await {
                    Ok(body) => held.push(body),
                    Err(error) => break error,
                }
            };
        }
        let bytes: usize = held.iter().map(|body| body.held).sum();
        assert!(((16 << 20) - CALL_BYTES..=(16 << 20) + OWN_BYTES).contains(&bytes), "{bytes}");
        assert!(refused.contains("too many unfinished requests"), "{refused}");
        // A message that has arrived is never refused.
        assert!(body(&attacker, &[b"abc"], true).frame().await.unwrap().is_ok());

        // Another connection of this address takes the first one's place.
        let other = calls(&all, 1);
        assert!(waiting(body(&other, &[&[0; 60_000]], false)).await.is_ok());
        assert!(waiting(body(&attacker, &[], false)).await.is_err(), "it is closed");
        drop((held, attacker, other));
        assert_eq!(all.1.unfinished_bytes(), 0);
    }
}
