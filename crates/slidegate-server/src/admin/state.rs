//! The state of the admin routes.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::app::App;
use crate::app::changes::Control;
use crate::ports::Listener;

/// The state of the admin routes.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) control: Control,
    /// All listeners of the service.
    pub(super) listeners: Vec<Listener>,
    /// The path of the config file, `command line` or `default`.
    pub(super) config_source: String,
}

impl Admin {
    /// `others` are the listeners beside `listen`, which serves the routes.
    pub(crate) fn new(
        app: Arc<App>,
        listen: SocketAddr,
        others: Vec<Listener>,
        config_source: String,
    ) -> Self {
        let own = Listener { protocol: "http", address: listen.to_string(), tls: false };
        let listeners = [vec![own], others].concat();
        Self { control: Control::new(Arc::clone(&app)), app, listeners, config_source }
    }
}
