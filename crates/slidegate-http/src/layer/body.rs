//! Response bodies: the inner service's own type if it can hold a denial, or else an enum of both.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// Combines the bodies of an inner service, of type `R`, with the bodies of denials.
pub trait ResponseBody<R> {
    /// The combined body type.
    type Body;

    /// The body of the inner service's response.
    fn served(body: R) -> Self::Body;

    /// The inner service's response.
    #[inline]
    fn response(response: Response<R>) -> Response<Self::Body> {
        response.map(Self::served)
    }

    /// The body of a denial.
    fn denied(text: String) -> Self::Body;
}

/// Uses the inner service's body type, which can be created from text.
#[derive(Debug, Clone, Copy)]
pub struct SameBody;

impl<R: From<String>> ResponseBody<R> for SameBody {
    type Body = R;

    fn served(body: R) -> R {
        body
    }

    /// Moves it once, not in parts.
    #[inline]
    fn response(response: Response<R>) -> Response<R> {
        response
    }

    fn denied(text: String) -> R {
        text.into()
    }
}

/// Supports any body type by wrapping it in [`LimitedBody`].
#[derive(Debug, Clone, Copy)]
pub struct AnyBody;

impl<R: Body<Data = Bytes>> ResponseBody<R> for AnyBody {
    type Body = LimitedBody<R>;

    fn served(body: R) -> LimitedBody<R> {
        LimitedBody::served(body)
    }

    fn denied(text: String) -> LimitedBody<R> {
        LimitedBody::denied(text)
    }
}

pin_project! {
    /// The body of a response or of a denial; see
    /// [`RateLimitLayer::any_body`](super::RateLimitLayer::any_body).
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
        /// From the inner service, unchanged.
        Served { #[pin] body: R },
        /// A denial: the text that is still to be sent.
        Denied { text: Option<Bytes> },
    }
}

impl<R> LimitedBody<R> {
    pub(super) fn served(body: R) -> Self {
        Self { of: Of::Served { body } }
    }

    pub(super) fn denied(text: String) -> Self {
        let text = (!text.is_empty()).then(|| text.into());
        Self { of: Of::Denied { text } }
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
