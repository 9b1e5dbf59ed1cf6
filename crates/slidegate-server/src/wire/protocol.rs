//! The HTTP listener's protocols: the API under `/v1`, and auth requests of proxies.
//!
//! Decisions, but for batches, are handled here, on the connection's worker. All other requests go to the router
//! on the shared runtime.

use std::future::ready;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, header};
use futures_util::{FutureExt, future};
use http_body_util::{Either, Full};

use crate::access::reject_repeated;
use crate::config::Auth;
use crate::engine::App;
use crate::listener::{Connection, Handler, SharedRoutes, TrackedBody};
use crate::wire::auth;
use crate::wire::http::{self, AnyResponse, Operation};
use crate::wire::routes::Routes;

/// Handles the requests of the HTTP listener.
pub(crate) struct HttpService {
    app: Arc<App>,
    auth: auth::AuthHandler,
    routes: SharedRoutes,
}

impl HttpService {
    /// The protocols, and `more` routes.
    pub(crate) fn new(app: Arc<App>, auth: Auth, more: Routes) -> Self {
        let routes = http::routes(Arc::clone(&app), more, &auth::PATHS);
        Self { app, auth: auth::AuthHandler::new(auth), routes: SharedRoutes::new(routes) }
    }

    /// Responds to this client's request. While the service drains, each response closes its
    /// connection, so clients connect to other instances.
    pub(crate) fn respond(
        &self,
        client: Connection,
        request: Request<TrackedBody>,
    ) -> impl Future<Output = AnyResponse> {
        self.route(client, request).map(|mut response| {
            if !self.app.readiness.is_ready() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        })
    }

    /// Most operations are not boxed. Neither this nor [`respond`](Self::respond) is `async`: each such function would
    /// contain the request once more, and its future is moved.
    fn route(&self, client: Connection, request: Request<TrackedBody>) -> impl Future<Output = AnyResponse> {
        if let Err(problem) = reject_repeated(request.headers()) {
            return future::Either::Right(ready(problem.response().map(Either::Left)).boxed());
        }
        let Some(operation) = Operation::of(request.uri().path()) else {
            return future::Either::Right(self.route_others(client, request).boxed());
        };
        future::Either::Left(http::perform(&self.app, &self.routes, operation, client, request))
    }

    async fn route_others(&self, client: Connection, mut request: Request<TrackedBody>) -> AnyResponse {
        if let Some(proxy) = auth::proxy(request.uri().path()) {
            if let Err(problem) = self.app.access.proxy(request.headers(), client) {
                return problem.response().map(Either::Left);
            }
            return self.auth.answer(&self.app, client, proxy, &request).await.map(Either::Left);
        }
        request.extensions_mut().insert(client);
        self.routes.call(request).await.map(Either::Right)
    }
}

impl Handler for Arc<HttpService> {
    type Body = Either<Full<Bytes>, Body>;

    fn handle(
        &self,
        client: Connection,
        request: Request<TrackedBody>,
    ) -> impl Future<Output = AnyResponse> + Send {
        HttpService::respond(self, client, request)
    }
}
