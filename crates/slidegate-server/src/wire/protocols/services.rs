//! Shared services that protocols need to serve.

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::engine::App;
use crate::listener::Workers;
use crate::wire::grpc::RateLimitHandler;

#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) app: Arc<App>,
    pub(crate) workers: Workers,
    pub(crate) handler: Arc<RateLimitHandler>,
    /// The page of metrics, which the control plane serves.
    pub(crate) metrics: MethodRouter,
}
