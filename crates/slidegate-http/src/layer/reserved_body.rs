//! The body of a response whose request is reserved: it owns the reservation.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::body::LimitedBody;
use super::reservation::OpenReservation;

pin_project! {
    /// The body of a [`ReserveLayer`](super::ReserveLayer)'s response. When it has ended, fails or
    /// is dropped, its reservation is settled.
    pub struct ReservedBody<R> {
        #[pin]
        body: LimitedBody<R>,
        open: Option<OpenReservation>,
    }
}

impl<R: Body> ReservedBody<R> {
    pub(super) fn served(body: R, open: Option<OpenReservation>) -> Self {
        let open = open.filter(|_| !body.is_end_stream());
        Self { body: LimitedBody::served(body), open }
    }

    pub(super) fn denied(text: String) -> Self {
        Self { body: LimitedBody::denied(text), open: None }
    }
}

impl<R: Body<Data = Bytes>> Body for ReservedBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if let (Some(Ok(frame)), Some(open)) = (&frame, &mut *this.open) {
            if let Some(data) = frame.data_ref() {
                open.flowed(data.remaining());
            } else if let Some(trailers) = frame.trailers_ref() {
                open.trailers(trailers);
            }
        }
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            drop(this.open.take());
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

impl<R> fmt::Debug for ReservedBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedBody").field("is_reserved", &self.open.is_some()).finish_non_exhaustive()
    }
}
