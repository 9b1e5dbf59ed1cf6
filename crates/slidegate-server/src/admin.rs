//! Admin: what operators see of the running service and change in it, under `/v1`.
//!
//! Everything here needs a token, or a listener that only this machine reaches. Off loopback and without a token, these
//! routes say so and do nothing, while decisions are served as ever.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};

use crate::config::Token;
use crate::control::Control;
use crate::front::Front;
use crate::observe;

mod guard;
mod keys;
mod policies;
mod reply;
mod shadows;
mod status;
pub(crate) mod tokens;

/// Every path, for who looks for one.
pub(crate) const PATHS: [&str; 13] = [
    "/v1/status",
    "/v1/policies",
    "/v1/policies/{name}",
    "/v1/policies/{name}/promote",
    "/v1/shadow",
    "/v1/keys/{policy}/{key}",
    "/v1/keys/{policy}/{key}/{action}",
    "/v1/changes",
    "/v1/changes/{id}/undo",
    "/v1/events",
    "/v1/top",
    "/v1/live",
    "/metrics",
];

/// What the routes stand on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) front: Arc<Front>,
    pub(crate) control: Control,
    /// Where the service listens.
    listen: SocketAddr,
    tokens: Mutex<Arc<[Token]>>,
    loaded: Mutex<Loaded>,
    /// When the service started, in milliseconds since the epoch.
    started_ms: u64,
}

/// What is known of the configuration's file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    /// The file's path, `command line` or `default`.
    pub(crate) source: String,
    /// SHA-256 of the file.
    pub(crate) hash: String,
    /// In milliseconds since the epoch.
    pub(crate) at_ms: u64,
    /// How often it was loaded after the start.
    pub(crate) reloads: u64,
    /// Why the file as it is now is not in force, or what of it is not.
    pub(crate) error: Option<String>,
}

impl Admin {
    pub(crate) fn new(front: Arc<Front>, listen: SocketAddr, tokens: Vec<Token>, loaded: Loaded) -> Self {
        front.observer().config_loaded(&loaded.hash);
        Self {
            control: Control::new(Arc::clone(&front)),
            front,
            listen,
            tokens: Mutex::new(tokens.into()),
            loaded: Mutex::new(loaded),
            started_ms: crate::control::now_ms(),
        }
    }

    /// Whether anybody can use the routes: with a token, or from this machine.
    pub(crate) fn is_open(&self) -> bool {
        self.listen.ip().is_loopback() || !self.tokens().is_empty()
    }

    /// Other tokens from now on.
    pub(crate) fn set_tokens(&self, tokens: Vec<Token>) {
        *self.tokens.lock().unwrap_or_else(PoisonError::into_inner) = tokens.into();
    }

    fn tokens(&self) -> Arc<[Token]> {
        Arc::clone(&self.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known of the configuration's file, to be read or changed.
    pub(crate) fn loaded(&self) -> std::sync::MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The routes, those of the observer included.
pub(crate) fn routes(admin: &Arc<Admin>) -> Router {
    let reading = Router::new()
        .route("/v1/status", get(status::status))
        .route("/v1/policies", get(policies::list))
        .route("/v1/shadow", get(shadows::shadow))
        .route("/v1/keys/{policy}/{key}", get(keys::show))
        .route("/v1/changes", get(policies::changes))
        .with_state(Arc::clone(admin))
        .merge(observe::routes(Arc::clone(&admin.front)))
        .route_layer(from_fn_with_state(Arc::clone(admin), guard::may_read));
    let changing = Router::new()
        .route("/v1/policies/{name}", delete(policies::unset).put(policies::set))
        .route("/v1/policies/{name}/promote", post(policies::promote))
        .route("/v1/keys/{policy}/{key}/{action}", post(keys::act))
        .route("/v1/changes/{id}/undo", post(policies::undo))
        .with_state(Arc::clone(admin))
        .route_layer(from_fn_with_state(Arc::clone(admin), guard::may_write));
    reading.merge(changing)
}
