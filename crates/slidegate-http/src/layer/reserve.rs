//! The layer that reserves: its service, and the path from a request to its reservation.
//!
//! The reservation moves into the response body, because that is what runs after the handler has
//! returned.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use slidegate::Cost;
use tower_layer::Layer;
use tower_service::Service;

use super::Limited;
use super::attribute::RequestView;
use super::axum_request::PathParams;
use super::config::{Config, requests};
use super::denied::Denied;
use super::head::Head;
use super::hold_gate::AnyHoldGate;
use super::reservation::OpenReservation;
use super::reserved_body::ReservedBody;
use super::settle::Settle;
use crate::headers::FieldBuffer;

/// Reserves the cost of requests, and settles it when their response bodies have ended. Created by
/// [`RateLimitLayer::reserve`](super::RateLimitLayer::reserve).
#[derive(Debug, Clone)]
pub struct ReserveLayer {
    pub(super) settings: Arc<Settings>,
}

/// The settings of a layer that reserves.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) config: Arc<Config>,
    pub(super) reserves: Reserves,
}

/// How a layer reserves; see [`RateLimitLayer::reserve`](super::RateLimitLayer::reserve).
#[derive(Clone)]
pub struct Reserves {
    pub(super) gate: AnyHoldGate,
    pub(super) estimate: Arc<Estimate>,
    pub(super) settle: Settle,
}

pub(super) type Estimate = dyn Fn(&Head<'_>) -> Cost<'static> + Send + Sync;

impl fmt::Debug for Reserves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserves").field("settle", &self.settle).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for ReserveLayer {
    type Service = ReserveService<S>;

    fn layer(&self, inner: S) -> ReserveService<S> {
        ReserveService { inner, settings: Arc::clone(&self.settings) }
    }
}

/// A service whose requests are reserved, created by a [`ReserveLayer`].
#[derive(Debug, Clone)]
pub struct ReserveService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for ReserveService<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Body,
{
    type Response = Response<ReservedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Call the instance that was polled for readiness, not its clone.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let (mut head, outcome) = decide(settings, head).await;
            let HeldPass { mut fields, limited, mut open } = match outcome {
                Ok(pass) => pass,
                Err(denial) => return Ok((*denial).map(ReservedBody::denied)),
            };
            if let Some(limited) = limited {
                head.extensions.insert(limited);
            }
            if let Some(open) = &mut open {
                head.extensions.insert(open.handle());
                open.begin();
            }
            // If this fails, panics or is dropped, so is the reservation, which settles.
            let response = inner.call(Request::from_parts(head, body)).await?;
            let (mut head, body) = response.into_parts();
            if let Some(open) = &mut open {
                open.answered(&head);
            }
            fields.append_to(&mut head.headers);
            Ok(Response::from_parts(head, ReservedBody::served(body, open)))
        })
    }
}

/// State that an allowed request carries.
#[derive(Default)]
struct HeldPass {
    fields: FieldBuffer,
    limited: Option<Limited>,
    open: Option<OpenReservation>,
}

type HeldOutcome = Result<HeldPass, Box<Response<String>>>;

/// Decides a request. If the client disconnects while a shared store decides, the outcome is awaited
/// in the background, and its reservation cancelled.
async fn decide(settings: Arc<Settings>, mut head: Parts) -> (Parts, HeldOutcome) {
    let is_local = settings.reserves.gate.0.is_local();
    let deciding = async move {
        let params = settings.config.reads_params.then(|| PathParams::of(&mut head.extensions)).flatten();
        let view = RequestView { head: (&head).into(), params: params.as_ref() };
        let outcome = settings.reserve(&view).await;
        (head, outcome)
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_local => match runtime.spawn(deciding).await {
            Ok(decided) => decided,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and drops this future too.
                Err(_) => std::future::pending().await,
            },
        },
        _ => deciding.await,
    }
}

impl Settings {
    async fn reserve(&self, view: &RequestView<'_>) -> HeldOutcome {
        let Self { config, reserves } = self;
        if config.skips(view) {
            let limited = config.sets_extension.then(Limited::default);
            return Ok(HeldPass { limited, ..HeldPass::default() });
        }
        let (client, owned);
        let mut request = config.base_request(0).with_cost((reserves.estimate)(&view.head));
        client = config.client_of(view);
        owned = config.set_attributes(&mut request, view, client.as_ref());
        request.extend(owned.iter().map(|(name, bytes)| (*name, &**bytes)));
        let several = config.named_requests(&request);
        let reserved = reserves.gate.0.reserve(requests(&request, &several)).await;
        let (decisions, ticket) = reserved.into_parts();
        let mut fields = FieldBuffer::default();
        config.headers.write_all(&decisions, &mut fields);
        if decisions.is_denied() {
            let denied = Denied { decisions: &decisions, request: view.head };
            return Err(Box::new(config.denial(&denied, fields)));
        }
        let limited = config.sets_extension.then(|| Limited::new(&decisions, client));
        let open = ticket.map(|ticket| {
            let (settle, refund) = (reserves.settle.clone(), config.refund.clone());
            OpenReservation::new(&reserves.gate.0, ticket, settle, refund)
        });
        Ok(HeldPass { fields, limited, open })
    }
}
