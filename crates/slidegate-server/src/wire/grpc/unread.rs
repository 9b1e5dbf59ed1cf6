//! Responses that wait for flow control: the client has granted no room for them.
//!
//! Such a client may read every frame, so its socket never fills up. hyper polls a body again only when there
//! was room for its previous frame. So a body that is not polled again after a frame was taken is waiting for
//! the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// A response that waits for room for one to two of these periods ends its connection, as with a client that
/// does not read at all.
const PERIOD: Duration = Duration::from_secs(10);

/// The waiting responses of one connection. A response that is sent at once costs no timer and no clock read.
#[derive(Debug, Default)]
pub(super) struct UnreadResponses {
    waiting: Arc<Waiting>,
    /// Runs while responses wait.
    period: Option<Pin<Box<Sleep>>>,
}

/// Number of waiting responses, by the parity of the period in which they began to wait. All belong to one
/// task.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    period: AtomicUsize,
    counts: [AtomicUsize; 2],
}

impl UnreadResponses {
    /// Shared with the bodies of the connection's responses.
    pub(super) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// Completes when a response has waited too long. Call after polling the calls.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.waiting.total() == 0 {
                self.period = None;
                return Poll::Pending;
            }
            let period = self.period.get_or_insert_with(|| Box::pin(sleep(PERIOD)));
            ready!(period.as_mut().poll(cx));
            self.period = None;
            if self.waiting.end_period() {
                return Poll::Ready(());
            }
        }
    }
}

impl Waiting {
    fn total(&self) -> usize {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn begin(&self) -> usize {
        let parity = self.period.load(Ordering::Relaxed);
        self.counts[parity].fetch_add(1, Ordering::Relaxed);
        parity
    }

    fn end(&self, parity: usize) {
        self.counts[parity].fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins the next period. Returns whether a response has waited since before the one that ends.
    fn end_period(&self) -> bool {
        let before = 1 - self.period.load(Ordering::Relaxed);
        let is_overdue = self.counts[before].load(Ordering::Relaxed) > 0;
        self.period.store(before, Ordering::Relaxed);
        is_overdue
    }
}

/// A response body that is counted while it waits.
#[derive(Debug)]
pub(super) struct CountedBody<B> {
    body: B,
    waiting: Arc<Waiting>,
    /// Parity of the period in which it began to wait. `None` while it is polled or waits for its source.
    since: Option<usize>,
}

impl<B> CountedBody<B> {
    pub(super) fn new(body: B, waiting: Arc<Waiting>) -> Self {
        let since = Some(waiting.begin());
        Self { body, waiting, since }
    }

    fn end_wait(&mut self) {
        if let Some(parity) = self.since.take() {
            self.waiting.end(parity);
        }
    }
}

impl<B> Drop for CountedBody<B> {
    fn drop(&mut self) {
        self.end_wait();
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.end_wait();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            self.since = Some(self.waiting.begin());
        }
        Poll::Ready(frame)
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
    use std::future::poll_fn;
    use std::pin::pin;

    use http_body_util::{BodyExt, Full};
    use tokio::time::{Instant, timeout};

    use super::*;

    /// A health watch stream without changes.
    struct Silent;

    impl Body for Silent {
        type Data = &'static [u8];
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
            Poll::Pending
        }
    }

    fn body(unread: &UnreadResponses) -> CountedBody<Full<&'static [u8]>> {
        CountedBody::new(Full::new(b"reply"), unread.waiting())
    }

    async fn overdue(unread: &mut UnreadResponses) {
        poll_fn(|cx| unread.poll_overdue(cx)).await;
    }

    /// A client that grants no room holds its responses for a bounded time.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_waits_for_room_ends_its_connection() {
        let mut unread = UnreadResponses::default();
        let asked = Instant::now();
        let waiting = body(&unread);
        overdue(&mut unread).await;
        assert!((PERIOD..=2 * PERIOD).contains(&asked.elapsed()), "{:?}", asked.elapsed());
        drop(waiting);
        assert!(timeout(10 * PERIOD, overdue(&mut unread)).await.is_err(), "nothing waits any more");
    }

    /// Progress of one response must not hide another that makes none.
    #[tokio::test(start_paused = true)]
    async fn progress_of_other_responses_does_not_renew_the_wait() {
        let mut unread = UnreadResponses::default();
        let _stuck = body(&unread);
        let mut ended = false;
        for _ in 0..5 {
            let mut other = body(&unread);
            other.frame().await.expect("a frame").expect("no error");
            ended |= timeout(PERIOD / 2, overdue(&mut unread)).await.is_ok();
        }
        assert!(ended);
    }

    /// A client that watches the health may be quiet for hours: it waits for the service.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_waits_for_its_source_may_wait() {
        let mut unread = UnreadResponses::default();
        let mut watched = CountedBody::new(Silent, unread.waiting());
        let mut frame = pin!(watched.frame());
        assert!(poll_fn(|cx| Poll::Ready(frame.as_mut().poll(cx))).await.is_pending());
        assert!(timeout(100 * PERIOD, overdue(&mut unread)).await.is_err());
    }

    /// A slow reader makes progress with each frame sent.
    #[tokio::test(start_paused = true)]
    async fn a_slow_response_is_no_waiting_one() {
        let mut unread = UnreadResponses::default();
        for _ in 0..10 {
            let mut slow = body(&unread);
            assert!(timeout(PERIOD - Duration::from_millis(1), overdue(&mut unread)).await.is_err());
            slow.frame().await.expect("a frame").expect("no error");
        }
    }
}
