//! Bodies of responses: the inner service's own type where that can hold a denial, else one that can be either.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// How answers of an inner service with bodies of type `R`, and denials, become one type.
pub trait Answers<R> {
    /// The body of both.
    type Body;

    /// The body of an answer.
    fn served(body: R) -> Self::Body;

    /// The body of a denial.
    fn denied(text: String) -> Self::Body;
}

/// The inner service's type of body, which can be made of text.
#[derive(Debug, Clone, Copy)]
pub struct SameBody;

impl<R: From<String>> Answers<R> for SameBody {
    type Body = R;

    fn served(body: R) -> R {
        body
    }

    fn denied(text: String) -> R {
        text.into()
    }
}

/// Any type of body: that of denials is put beside it.
#[derive(Debug, Clone, Copy)]
pub struct AnyBody;

impl<R: Body<Data = Bytes>> Answers<R> for AnyBody {
    type Body = LimitedBody<R>;

    fn served(body: R) -> LimitedBody<R> {
        LimitedBody { of: Of::Served { body } }
    }

    fn denied(text: String) -> LimitedBody<R> {
        let text = (!text.is_empty()).then(|| text.into());
        LimitedBody { of: Of::Denied { text } }
    }
}

pin_project! {
    /// The body of an answer or of a denial; see [`RateLimitLayer::any_body`](super::RateLimitLayer::any_body).
    #[derive(Debug)]
    pub struct LimitedBody<R> {
        #[pin]
        of: Of<R>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = OfProjection]
    enum Of<R> {
        /// The inner service, as it is.
        Served { #[pin] body: R },
        /// The limit: what is still to be sent.
        Denied { text: Option<Bytes> },
    }
}

impl<R: Body<Data = Bytes>> Body for LimitedBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().of.project() {
            OfProjection::Served { body } => body.poll_frame(cx),
            OfProjection::Denied { text } => Poll::Ready(text.take().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.of {
            Of::Served { body } => body.is_end_stream(),
            Of::Denied { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.of {
            Of::Served { body } => body.size_hint(),
            Of::Denied { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
