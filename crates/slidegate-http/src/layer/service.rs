//! The service of a layer, and its response future.
//!
//! With a local gate, `call` decides at once and never takes the request apart. With a shared gate,
//! the future decides first and then calls the inner service, a ready clone of which it keeps.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::attribute::RequestView;
use super::axum_request::PathParams;
use super::body::{ResponseBody, SameBody};
use super::config::Config;
use super::decide::{Outcome, Pass};
use super::pending_refund::{PendingRefund, RefundFuture};
use super::refund::Refund;

/// A service with a limit, created by a [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, A = SameBody> {
    inner: S,
    config: Arc<Config>,
    body: PhantomData<fn() -> A>,
}

impl<S, A> RateLimit<S, A> {
    pub(super) fn new(inner: S, config: &Arc<Config>) -> Self {
        Self { inner, config: Arc::clone(config), body: PhantomData }
    }
}

impl<S: Clone, A> Clone for RateLimit<S, A> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), &self.config)
    }
}

impl<S: fmt::Debug, A> fmt::Debug for RateLimit<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("config", &self.config).finish()
    }
}

impl<S, A, B, R> Service<Request<B>> for RateLimit<S, A>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    A: ResponseBody<R>,
{
    type Response = Response<A::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Not in a function of its own, because the request would have to be moved into it.
        let params = self.config.reads_params.then(|| PathParams::of(request.extensions_mut())).flatten();
        let view = RequestView { head: (&request).into(), params: params.as_ref() };
        let is_local = self.config.gate.0.is_local();
        let outcome = is_local.then(|| self.config.decide_now(&view)).flatten();
        let Some(outcome) = outcome else { return self.call_later(request) };
        // Stages are built where they are returned: moving one would add a tenth to this time.
        let body = PhantomData;
        match outcome {
            Outcome::Pass(pass, limited) => {
                if let Some(limited) = limited {
                    request.extensions_mut().insert(limited);
                }
                ResponseFuture { stage: Stage::Serving { future: self.inner.call(request), pass }, body }
            }
            Outcome::Deny(response) => {
                ResponseFuture { stage: Stage::Denied { response: Some(response) }, body }
            }
        }
    }
}

impl<S: Clone, A> RateLimit<S, A> {
    /// Decides with a gate that has to be awaited.
    #[inline(never)]
    fn call_later<B>(&mut self, request: Request<B>) -> ResponseFuture<S, B, A>
    where
        S: Service<Request<B>>,
    {
        let (head, body) = request.into_parts();
        let deciding = DecisionFuture::new(&self.config, head);
        // Call the instance that was polled for readiness, not its clone.
        let ready = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, ready);
        ResponseFuture { stage: Stage::Deciding { deciding, called: Some((ready, body)) }, body: PhantomData }
    }
}

pin_project! {
    /// The response of the inner service, or a denial.
    pub struct ResponseFuture<S, B, A>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, B>,
        body: PhantomData<fn() -> A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, B>
    where
        S: Service<Request<B>>,
    {
        Deciding { deciding: DecisionFuture, called: Option<(S, B)> },
        Serving { #[pin] future: S::Future, pass: Pass },
        Refunding { refunding: RefundFuture, response: Option<S::Response> },
        Denied { response: Option<Box<Response<String>>> },
    }
}

impl<S, B, A> fmt::Debug for ResponseFuture<S, B, A>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Panic message for a bug of the caller: polling a completed future.
const DONE: &str = "a response future is not polled after it has answered";

impl<S, A, B, R> Future for ResponseFuture<S, B, A>
where
    S: Service<Request<B>, Response = Response<R>>,
    A: ResponseBody<R>,
{
    type Output = Result<Response<A::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Deciding { deciding, called } => {
                    let (mut head, outcome) = ready!(deciding.poll(cx));
                    let mut serve = |head| {
                        let (mut inner, body) = called.take().expect(DONE);
                        inner.call(Request::from_parts(head, body))
                    };
                    match outcome {
                        Outcome::Pass(pass, limited) => {
                            if let Some(limited) = limited {
                                head.extensions.insert(limited);
                            }
                            Stage::Serving { future: serve(head), pass }
                        }
                        Outcome::Deny(response) => Stage::Denied { response: Some(response) },
                    }
                }
                StageProjection::Serving { future, pass } => {
                    let answer = ready!(future.poll(cx));
                    let refund = pass.refund.take();
                    // On an error the request is unanswered: dropping the pending refund settles
                    // it.
                    let mut response = answer?;
                    pass.fields.append_to(response.headers_mut());
                    let Some(refund) = refund else { return Poll::Ready(Ok(A::response(response))) };
                    let (response, refunding) = settle(*refund, response);
                    match refunding {
                        Some(refunding) => Stage::Refunding { refunding, response: Some(response) },
                        None => return Poll::Ready(Ok(A::response(response))),
                    }
                }
                StageProjection::Refunding { refunding, response } => {
                    ready!(refunding.as_mut().poll(cx));
                    return Poll::Ready(Ok(A::response(response.take().expect(DONE))));
                }
                StageProjection::Denied { response } => {
                    return Poll::Ready(Ok((*response.take().expect(DONE)).map(A::denied)));
                }
            };
            stage.set(next);
        }
    }
}

/// Starts the pending refund if the response asks for it, or else cancels it.
///
/// Not inlined, because few layers refund.
#[inline(never)]
fn settle<R>(refund: PendingRefund, response: Response<R>) -> (Response<R>, Option<RefundFuture>) {
    let (head, body) = response.into_parts();
    let refunding = if refund.rule().is_some_and(|refund| refund.answered(&head)) {
        refund.start()
    } else {
        refund.cancel();
        None
    };
    (Response::from_parts(head, body), refunding)
}

/// A decision in progress.
struct DecisionFuture {
    decision: Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>>,
    /// Completes the decision in the background if this future is dropped and the charge would be
    /// refunded. `None` once the decision has completed.
    runtime: Option<tokio::runtime::Handle>,
}

impl DecisionFuture {
    fn new(config: &Arc<Config>, mut head: Parts) -> Self {
        let is_refundable = config.refund.as_ref().is_some_and(Refund::is_for_unanswered);
        let config = Arc::clone(config);
        Self {
            decision: Box::pin(async move {
                let params = config.reads_params.then(|| PathParams::of(&mut head.extensions)).flatten();
                let view = RequestView { head: (&head).into(), params: params.as_ref() };
                let outcome = config.decide(&view).await;
                (head, outcome)
            }),
            runtime: is_refundable.then(tokio::runtime::Handle::try_current).and_then(Result::ok),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Parts, Outcome)> {
        let decided = ready!(self.decision.as_mut().poll(cx));
        self.runtime = None;
        Poll::Ready(decided)
    }
}

/// The client disconnected while the store was deciding, which may still charge it. The outcome is
/// awaited, and dropping it refunds the charge.
impl Drop for DecisionFuture {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let over: Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>> =
                Box::pin(std::future::pending());
            let decision = std::mem::replace(&mut self.decision, over);
            runtime.spawn(async move { drop(decision.await) });
        }
    }
}
