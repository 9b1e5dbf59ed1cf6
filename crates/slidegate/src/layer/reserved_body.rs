//! The body of a response whose request is reserved: it owns the reservation.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::reservation::OpenReservation;

pin_project! {
    /// The body of a [`ReserveLayer`](super::ReserveLayer)'s response. When it has ended, fails or
    /// is dropped, its reservation is settled.
    pub struct ReservedBody<R> {
        #[pin]
        body: Option<R>,
        // A denial: the text that is still to be sent.
        denial: Option<Bytes>,
        open: Option<OpenReservation>,
    }
}

impl<R: Body> ReservedBody<R> {
    pub(super) fn served(body: R, open: Option<OpenReservation>) -> Self {
        let open = open.filter(|_| !body.is_end_stream());
        Self { body: Some(body), denial: None, open }
    }

    pub(super) fn denied(text: String) -> Self {
        Self { body: None, denial: (!text.is_empty()).then(|| text.into()), open: None }
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
        let Some(mut body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(this.denial.take().map(Frame::data).map(Ok));
        };
        let frame = ready!(body.as_mut().poll_frame(cx));
        if let (Some(Ok(frame)), Some(open)) = (&frame, &mut *this.open) {
            if let Some(data) = frame.data_ref() {
                open.flowed(data.remaining());
            } else if let Some(trailers) = frame.trailers_ref() {
                open.trailers(trailers);
            }
        }
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            drop(this.open.take());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().map_or(self.denial.is_none(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let denied = || SizeHint::with_exact(self.denial.as_ref().map_or(0, |text| text.len() as u64));
        self.body.as_ref().map_or_else(denied, Body::size_hint)
    }
}

impl<R> fmt::Debug for ReservedBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedBody").field("is_reserved", &self.open.is_some()).finish_non_exhaustive()
    }
}
