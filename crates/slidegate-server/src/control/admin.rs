//! Admin routes under `/v1`: inspect and change the running service.
//!
//! They require a token or a loopback listener. Without either they return an error, and decisions
//! are still served.

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};

use crate::access;
use crate::config::Right;
use crate::control::pages;
use crate::control::state::Admin;
use crate::engine::App;
use crate::wire::routes::Routes;

mod added;
pub(crate) mod apply;
mod history;
pub(crate) mod key_state;
pub(crate) mod keys;
pub(crate) mod policies;
mod reply;
pub(crate) mod reset;
pub(crate) mod shadows;
pub(crate) mod status;

/// Restricts these routes to callers with the right to read.
pub(crate) fn for_readers(app: &Arc<App>, routes: Routes) -> Routes {
    let readers = (Arc::clone(&app.access), Right::Read);
    routes.behind(|router| router.route_layer(from_fn_with_state(readers, access::may_operate)))
}

/// The routes, including the observer's.
pub(crate) fn routes(admin: &Arc<Admin>) -> Routes {
    let reading = [
        ("/v1/status", get(status::status)),
        ("/v1/policies", get(policies::list)),
        ("/v1/shadow", get(shadows::shadow)),
        ("/v1/keys/{policy}/{key}", get(keys::show)),
        ("/v1/changes", get(policies::changes)),
        ("/v1/history", get(history::history)),
    ];
    let changing = [
        ("/v1/policies/{name}", delete(policies::unset).put(policies::set)),
        ("/v1/policies/{name}/promote", post(policies::promote)),
        ("/v1/policies/{name}/reset", post(reset::step)),
        ("/v1/keys/{policy}/{key}/{action}", post(keys::act)),
        ("/v1/changes/{id}/undo", post(policies::undo)),
    ];
    let writers = (Arc::clone(&admin.app.access), Right::Write);
    let reading = Routes::over(Arc::clone(admin), reading).and(pages::routes(Arc::clone(admin)));
    let reading = for_readers(&admin.app, reading);
    let changing = Routes::over(Arc::clone(admin), changing)
        .behind(|router| router.route_layer(from_fn_with_state(writers, access::may_operate)));
    reading.and(changing)
}
