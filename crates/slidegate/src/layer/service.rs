//! The service of a layer, and the future of its responses.
//!
//! Over a gate in memory everything is decided when the service is called; over a shared one the inner service is called
//! when the decision has come, so a clone of it is kept ready until then.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Answers, SameBody};
use super::config::{Config, Outcome, Pass, at_once};
#[cfg(feature = "redis")]
use super::refund::Refund;
use super::refund::{Owed, Paying};

/// A service behind a limit, made by a [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, A = SameBody> {
    inner: S,
    config: Arc<Config>,
    answers: PhantomData<fn() -> A>,
}

impl<S, A> RateLimit<S, A> {
    pub(super) fn new(inner: S, config: &Arc<Config>) -> Self {
        Self { inner, config: Arc::clone(config), answers: PhantomData }
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
    A: Answers<R>,
{
    type Response = Response<A::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let stage = if self.config.gate.is_local() {
            match at_once(self.config.decide(&mut head)) {
                Outcome::Pass(pass) => Stage::Serving {
                    future: self.inner.call(Request::from_parts(head, body)),
                    pass: Some(pass),
                },
                Outcome::Deny(response) => Stage::Denied { response: Some(response) },
            }
        } else {
            // The one that was asked whether it is ready is the one to call.
            let ready = self.inner.clone();
            let ready = std::mem::replace(&mut self.inner, ready);
            Stage::Deciding { deciding: Deciding::new(&self.config, head), called: Some((ready, body)) }
        };
        ResponseFuture { stage, answers: PhantomData }
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
        answers: PhantomData<fn() -> A>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, B>
    where
        S: Service<Request<B>>,
    {
        Deciding { deciding: Deciding, called: Option<(S, B)> },
        Serving { #[pin] future: S::Future, pass: Option<Pass> },
        Refunding { paying: Paying, response: Option<S::Response> },
        Denied { response: Option<Response<String>> },
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

/// What is polled after it is done is a mistake of who polls it.
const DONE: &str = "a response future is not polled after it has answered";

impl<S, A, B, R> Future for ResponseFuture<S, B, A>
where
    S: Service<Request<B>, Response = Response<R>>,
    A: Answers<R>,
{
    type Output = Result<Response<A::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Deciding { deciding, called } => {
                    let (head, outcome) = ready!(deciding.poll(cx));
                    match outcome {
                        Outcome::Pass(pass) => {
                            let (mut inner, body) = called.take().expect(DONE);
                            let future = inner.call(Request::from_parts(head, body));
                            Stage::Serving { future, pass: Some(pass) }
                        }
                        Outcome::Deny(response) => Stage::Denied { response: Some(response) },
                    }
                }
                StageProjection::Serving { future, pass } => {
                    let answer = ready!(future.poll(cx));
                    let Pass { fields, owed } = pass.take().expect(DONE);
                    // An error leaves the request unanswered: what is owed goes with it.
                    let (mut response, paying) = settle(owed, answer?);
                    fields.put_into(response.headers_mut());
                    match paying {
                        Some(paying) => Stage::Refunding { paying, response: Some(response) },
                        None => return Poll::Ready(Ok(response.map(A::served))),
                    }
                }
                StageProjection::Refunding { paying, response } => {
                    ready!(paying.as_mut().poll(cx));
                    return Poll::Ready(Ok(response.take().expect(DONE).map(A::served)));
                }
                StageProjection::Denied { response } => {
                    return Poll::Ready(Ok(response.take().expect(DONE).map(A::denied)));
                }
            };
            stage.set(next);
        }
    }
}

/// Pays what is owed if the answer wants that, and keeps it otherwise.
fn settle<R>(owed: Option<Owed>, response: Response<R>) -> (Response<R>, Option<Paying>) {
    let Some(owed) = owed else { return (response, None) };
    let (head, body) = response.into_parts();
    let paying = if owed.refund().is_some_and(|refund| refund.answered(&head)) {
        owed.pay()
    } else {
        owed.keep();
        None
    };
    (Response::from_parts(head, body), paying)
}

/// A decision of a shared gate, on its way.
struct Deciding {
    decision: Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>>,
    /// What sees it through if nobody waits for it any more and its charge would be owed; nothing once it has come.
    #[cfg(feature = "redis")]
    after: Option<tokio::runtime::Handle>,
}

impl Deciding {
    fn new(config: &Arc<Config>, mut head: Parts) -> Self {
        #[cfg(feature = "redis")]
        let is_owed = config.refund.as_ref().is_some_and(Refund::is_for_unanswered);
        let config = Arc::clone(config);
        Self {
            decision: Box::pin(async move {
                let outcome = config.decide(&mut head).await;
                (head, outcome)
            }),
            #[cfg(feature = "redis")]
            after: is_owed.then(tokio::runtime::Handle::try_current).and_then(Result::ok),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Parts, Outcome)> {
        let decided = ready!(self.decision.as_mut().poll(cx));
        #[cfg(feature = "redis")]
        {
            self.after = None;
        }
        Poll::Ready(decided)
    }
}

/// The client is gone while the store is asked, which may charge it yet: the outcome is waited for, and its drop refunds.
#[cfg(feature = "redis")]
impl Drop for Deciding {
    fn drop(&mut self) {
        if let Some(runtime) = self.after.take() {
            let over: Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>> =
                Box::pin(std::future::pending());
            let decision = std::mem::replace(&mut self.decision, over);
            runtime.spawn(async move { drop(decision.await) });
        }
    }
}
