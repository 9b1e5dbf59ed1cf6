//! Shared services that protocols need to serve.

use std::sync::Arc;

use crate::app::App;
use crate::grpc::RateLimitHandler;
use crate::listener::Workers;

#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) app: Arc<App>,
    pub(crate) workers: Workers,
    pub(crate) handler: Arc<RateLimitHandler>,
}
