//! Routes of the HTTP listener, with a list of their paths.
//!
//! An axum router cannot list its paths, so they are recorded here: 404 errors list them, and a
//! test compares them with `openapi.json`.

use axum::Router;
use axum::routing::MethodRouter;

/// A router that knows its paths.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    router: Router,
    paths: Vec<&'static str>,
}

impl Routes {
    /// Routes with shared state.
    pub(crate) fn over<S: Clone + Send + Sync + 'static>(
        state: S,
        table: impl IntoIterator<Item = (&'static str, MethodRouter<S>)>,
    ) -> Self {
        let (mut router, mut paths) = (Router::new(), Vec::new());
        for (path, methods) in table {
            router = router.route(path, methods);
            paths.push(path);
        }
        Self { router: router.with_state(state), paths }
    }

    /// Adds other routes.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.paths.extend(others.paths);
        Self { router: self.router.merge(others.router), paths: self.paths }
    }

    /// Applies `guard` to the router.
    pub(crate) fn behind(self, guard: impl FnOnce(Router) -> Router) -> Self {
        Self { router: guard(self.router), paths: self.paths }
    }

    /// The router and its paths.
    pub(crate) fn into_parts(self) -> (Router, Vec<&'static str>) {
        (self.router, self.paths)
    }
}
