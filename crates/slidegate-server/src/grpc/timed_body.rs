//! Request bodies that must arrive in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A client that does not send the whole body of a call within this time gets an error.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A body that fails with `DEADLINE_EXCEEDED` after [`BODY_TIMEOUT`]. A body that has arrived costs
/// no timer and no clock reading.
#[derive(Debug)]
pub(crate) struct TimedBody<B> {
    body: B,
    /// Runs from the first wait.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> TimedBody<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, deadline: None }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = B::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        deadline.as_mut().poll(cx).map(|()| {
            let late = format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs());
            Some(Err(Status::deadline_exceeded(late).into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
