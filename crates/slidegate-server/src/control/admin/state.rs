//! The state of the admin routes.

use std::sync::Arc;

use crate::control::changes::Control;
use crate::engine::App;
use crate::wire::ports::Listener;

#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) control: Control,
    /// All listeners of the service. The first serves these routes.
    pub(super) listeners: Vec<Listener>,
    /// The path of the config file, `command line` or `default`.
    pub(super) config_source: String,
}

impl Admin {
    pub(crate) fn new(app: Arc<App>, listeners: Vec<Listener>, config_source: String) -> Self {
        Self { control: Control::new(Arc::clone(&app)), app, listeners, config_source }
    }
}
