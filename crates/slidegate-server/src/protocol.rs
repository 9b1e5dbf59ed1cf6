//! The doors: each turns its bytes into a request, asks the app, and answers in its own words.
//!
//! Behind the HTTP listener there are two. What decides is answered straight from here; the router,
//! which boxes bodies and futures on the way, has the rest.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use crate::access::{Action, Peer};
use crate::app::App;
use crate::config::Auth;
use crate::listener::Handler;
use crate::routes::Routes;
use crate::{auth, http};

/// What stands behind the HTTP listener.
pub(crate) struct HttpService {
    app: Arc<App>,
    auth: auth::Door,
    routes: TowerToHyperService<Router>,
}

/// A body that is there, or one from the router.
type Answer = Response<Either<Full<Bytes>, Body>>;

impl HttpService {
    /// The doors, and `more` routes.
    pub(crate) fn new(app: Arc<App>, auth: Auth, more: Routes) -> Self {
        let routes = http::routes(Arc::clone(&app), more, &auth::PATHS);
        Self { app, auth: auth::Door::new(auth), routes: TowerToHyperService::new(routes) }
    }

    /// Answers a request from this peer.
    pub(crate) async fn answer(&self, peer: IpAddr, mut request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if path == http::CHECK && request.method() == Method::POST {
            if let Err(problem) = self.app.access.decision(request.headers(), Action::Decide, Some(peer)) {
                return problem.response().map(Either::Left);
            }
            return http::check(&self.app, request).await.map(Either::Left);
        }
        if let Some(proxy) = auth::proxy(path) {
            if let Err(problem) = self.app.access.proxy(request.headers(), peer) {
                return problem.response().map(Either::Left);
            }
            return self.auth.answer(&self.app, peer, proxy, &request).await.map(Either::Left);
        }
        request.extensions_mut().insert(Peer(peer));
        let Ok(answer) = self.routes.call(request).await.map_err(|never: Infallible| match never {});
        answer.map(Either::Right)
    }
}

impl Handler for Arc<HttpService> {
    type Body = Either<Full<Bytes>, Body>;

    async fn handle(&self, peer: IpAddr, request: Request<Incoming>) -> Answer {
        HttpService::answer(self, peer, request).await
    }
}
