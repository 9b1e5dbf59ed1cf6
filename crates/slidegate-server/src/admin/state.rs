//! What the admin routes work on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use slidegate::{Clock, SystemClock, Timestamp};

use crate::app::App;
use crate::app::changes::Control;
use crate::ports::Listener;

/// What the routes stand on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) control: Control,
    /// Everywhere that it listens.
    pub(super) listeners: Vec<Listener>,
    loaded: Mutex<Loaded>,
    /// When the service started, by `clock`.
    pub(super) started_at: Timestamp,
    /// Its times become dates when they are reported: the wall clock may have been wrong when they were noted.
    pub(super) clock: SystemClock,
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
        let own = Listener { protocol: "http", address: listen.to_string(), tls: false };
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
