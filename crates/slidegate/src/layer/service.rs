//! The service of a layer, and the future of its responses.
//!
//! Over a gate in memory everything is decided when the service is called, and the request is never taken apart; over a
//! shared one the inner service is called when the decision has come, so a clone of it is kept ready until then.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::attribute::Seen;
#[cfg(feature = "axum")]
use super::axum::PathParams;
use super::body::{Answers, SameBody};
use super::config::{AnyGate, Config, Outcome, Pass};
#[cfg(feature = "redis")]
use super::refund::Refund;
use super::refund::{Owed, Paying};
use crate::gate::Gate;
#[cfg(feature = "redis")]
use crate::shared_gate::SharedGate;

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
        let stage = match &self.config.gate {
            AnyGate::Memory(gate) => serve(&self.config, gate, &mut self.inner, request),
            #[cfg(feature = "redis")]
            AnyGate::Shared(gate) => {
                let (head, body) = request.into_parts();
                let deciding = Deciding::new(&self.config, gate, head);
                // The one that was asked whether it is ready is the one to call.
                let ready = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, ready);
                Stage::Deciding { deciding, called: Some((ready, body)) }
            }
        };
        ResponseFuture { stage, answers: PhantomData }
    }
}

/// The road over a gate in memory.
fn serve<S, B>(config: &Arc<Config>, gate: &Gate, inner: &mut S, mut request: Request<B>) -> Stage<S, B>
where
    S: Service<Request<B>>,
{
    #[cfg(feature = "axum")]
    let params = config.reads_params.then(|| PathParams::of(request.extensions_mut())).flatten();
    let seen = Seen {
        head: (&request).into(),
        #[cfg(feature = "axum")]
        params: params.as_ref(),
    };
    match config.decide(gate, &seen) {
        Outcome::Pass(pass, limited) => {
            if let Some(limited) = limited {
                request.extensions_mut().insert(limited);
            }
            Stage::Serving { future: inner.call(request), pass: Some(pass) }
        }
        Outcome::Deny(response) => Stage::Denied { response: Some(response) },
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
                    let (mut head, outcome) = ready!(deciding.poll(cx));
                    match outcome {
                        Outcome::Pass(pass, limited) => {
                            if let Some(limited) = limited {
                                head.extensions.insert(limited);
                            }
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
                    return Poll::Ready(Ok((*response.take().expect(DONE)).map(A::denied)));
                }
            };
            stage.set(next);
        }
    }
}

/// Pays what is owed if the answer wants that, and keeps it otherwise.
fn settle<R>(owed: Option<Box<Owed>>, response: Response<R>) -> (Response<R>, Option<Paying>) {
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
#[cfg(feature = "redis")]
struct Deciding {
    decision: Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>>,
    /// What sees it through if nobody waits for it any more and its charge would be owed; nothing once it has come.
    after: Option<tokio::runtime::Handle>,
}

#[cfg(feature = "redis")]
impl Deciding {
    fn new(config: &Arc<Config>, gate: &Arc<SharedGate>, head: Parts) -> Self {
        let is_owed = config.refund.as_ref().is_some_and(Refund::is_for_unanswered);
        let (config, gate) = (Arc::clone(config), Arc::clone(gate));
        Self {
            decision: Box::pin(async move {
                #[cfg(feature = "axum")]
                let mut head = head;
                #[cfg(feature = "axum")]
                let params = config.reads_params.then(|| PathParams::of(&mut head.extensions)).flatten();
                let seen = Seen {
                    head: (&head).into(),
                    #[cfg(feature = "axum")]
                    params: params.as_ref(),
                };
                let outcome = config.decide_shared(&gate, &seen).await;
                (head, outcome)
            }),
            after: is_owed.then(tokio::runtime::Handle::try_current).and_then(Result::ok),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Parts, Outcome)> {
        let decided = ready!(self.decision.as_mut().poll(cx));
        self.after = None;
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

/// Without shared gates nothing is ever on its way.
#[cfg(not(feature = "redis"))]
enum Deciding {}

#[cfg(not(feature = "redis"))]
impl Deciding {
    fn poll(&mut self, _: &mut Context<'_>) -> Poll<(Parts, Outcome)> {
        match *self {}
    }
}
