//! Admin: what operators see of the running service and change in it, under `/v1`.
//!
//! Everything here needs a token, or a listener that only this machine reaches. Off loopback and without a token, these
//! routes say so and do nothing, while decisions are served as ever.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use serde::Serialize;
use slidegate::{Clock, SystemClock, Timestamp};

use crate::access;
use crate::app::App;
use crate::app::changes::Control;
use crate::routes::Routes;
use crate::telemetry;

mod added;
mod keys;
mod policies;
mod reply;
mod reset;
mod shadows;
mod status;

/// What the routes stand on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) control: Control,
    /// Everywhere that it listens.
    listeners: Vec<Listener>,
    loaded: Mutex<Loaded>,
    /// When the service started, by `clock`.
    started_at: Timestamp,
    /// Its times become dates when they are reported: the wall clock may have been wrong when they were noted.
    clock: SystemClock,
}

/// Where the service listens, and for what.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Listener {
    /// `http`, `resp`, `grpc`, or `debug` and `metrics` for those ports of envoyproxy/ratelimit.
    pub(crate) door: &'static str,
    /// `127.0.0.1:7979`, or `unix:` and a path.
    pub(crate) address: String,
    pub(crate) tls: bool,
}

/// What is known of the configuration's file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    /// The file's path, `command line` or `default`.
    pub(crate) source: String,
    /// SHA-256 of the file.
    pub(crate) hash: String,
    /// When it was loaded, by the system's monotonic clock.
    pub(crate) at: Timestamp,
    /// How often it was loaded after the start.
    pub(crate) reloads: u64,
    /// Why the file as it is now is not in force, or what of it is not.
    pub(crate) error: Option<String>,
}

impl Admin {
    /// `others` are the listeners beside `listen`, which serves the routes.
    pub(crate) fn new(app: Arc<App>, listen: SocketAddr, others: Vec<Listener>, loaded: Loaded) -> Self {
        let clock = SystemClock::new();
        let own = Listener { door: "http", address: listen.to_string(), tls: false };
        app.observer().config_loaded(&loaded.hash);
        Self {
            control: Control::new(Arc::clone(&app)),
            app,
            listeners: [vec![own], others].concat(),
            loaded: Mutex::new(loaded),
            started_at: clock.now(),
            clock,
        }
    }

    /// What is known of the configuration's file, to be read or changed.
    pub(crate) fn loaded(&self) -> std::sync::MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// These routes behind what lets only those pass who may look.
pub(crate) fn for_readers(app: &Arc<App>, routes: Routes) -> Routes {
    let readers = Arc::clone(&app.access);
    routes.behind(|router| router.route_layer(from_fn_with_state(readers, access::may_read)))
}

/// The routes, those of the observer included.
pub(crate) fn routes(admin: &Arc<Admin>) -> Routes {
    let reading = [
        ("/v1/status", get(status::status)),
        ("/v1/policies", get(policies::list)),
        ("/v1/shadow", get(shadows::shadow)),
        ("/v1/keys/{policy}/{key}", get(keys::show)),
        ("/v1/changes", get(policies::changes)),
    ];
    let changing = [
        ("/v1/policies/{name}", delete(policies::unset).put(policies::set)),
        ("/v1/policies/{name}/promote", post(policies::promote)),
        ("/v1/policies/{name}/reset", post(reset::step)),
        ("/v1/keys/{policy}/{key}/{action}", post(keys::act)),
        ("/v1/changes/{id}/undo", post(policies::undo)),
    ];
    let writers = Arc::clone(&admin.app.access);
    let reading = Routes::over(Arc::clone(admin), reading).and(telemetry::routes(Arc::clone(&admin.app)));
    let reading = for_readers(&admin.app, reading);
    let changing = Routes::over(Arc::clone(admin), changing)
        .behind(|router| router.route_layer(from_fn_with_state(writers, access::may_write)));
    reading.and(changing)
}
