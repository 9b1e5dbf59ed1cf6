//! The state of the control plane: one instance's run-time changes and its fleet, over its data plane.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::control::changes::{Base, Control, initial};
use crate::control::fleet::{Fleet, FleetView};
use crate::engine::App;
use crate::record::HistoryReport;
use crate::wire::ports::Listener;

/// The state of the control plane's routes.
pub(super) type AdminState = axum::extract::State<Arc<Admin>>;

#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) app: Arc<App>,
    pub(crate) control: Control,
    /// The instances that share the store, unless disabled.
    fleet: Option<Fleet>,
    /// All listeners of the service. The first serves the admin routes.
    pub(super) listeners: Vec<Listener>,
    /// The path of the config file, `command line` or `default`.
    pub(super) config_source: String,
}

impl Admin {
    /// Starts the data plane under the configured policies, and the control plane over it.
    ///
    /// # Errors
    /// One line: the policies and their candidates are too many, or [`App::new`] fails.
    pub(crate) fn new(
        mut config: Config,
        listeners: Vec<Listener>,
        config_source: String,
    ) -> Result<Self, String> {
        let base = Base {
            policies: config.policies,
            candidates: std::mem::take(&mut config.candidates),
            escalations: std::mem::take(&mut config.escalations),
        };
        let has_inline = config.resp.is_some();
        config.policies =
            initial(&base, &config.address_attributes, has_inline).map_err(|error| error.to_string())?;
        let port = config.listen.port();
        let has_fleet = config.shared.as_ref().is_some_and(|shared| shared.fleet);
        let app = Arc::new(App::new(config)?);
        app.observer().escalations.follow(&base.escalations);
        let control = Control::new(Arc::clone(&app), base, has_inline);
        let fleet = has_fleet.then(|| Fleet::new(Arc::clone(&app), port));
        Ok(Self { app, control, fleet, listeners, config_source })
    }

    /// Counts the instances that share the store and publishes this one's record, if configured.
    pub(crate) async fn count_instances(&self) {
        let Some(shared) = self.app.shared() else { return };
        match &self.fleet {
            Some(fleet) => fleet.publish(&self.control.document(), shared).await,
            None => shared.count_instances(None).await,
        }
    }

    /// The instances that share the store: all, or the one with this name or id. `None` without a fleet.
    ///
    /// # Errors
    /// The fleet has no instance with this name or id.
    pub(crate) async fn fleet(&self, instance: Option<&str>) -> Result<Option<FleetView>, String> {
        match (&self.fleet, self.app.shared()) {
            (Some(fleet), Some(shared)) => {
                fleet.view(&self.control.document(), shared, instance).await.map(Some)
            }
            _ if instance.is_some() => {
                Err("there is no fleet: instances show each other only with a shared store \
                                            and `store.fleet: true`; leave `instance` out"
                    .to_owned())
            }
            _ => Ok(None),
        }
    }

    /// All instances, as last read some seconds ago. `None` without a fleet.
    pub(crate) fn known_fleet(&self) -> Option<FleetView> {
        Some(self.fleet.as_ref()?.known(&self.control.document(), self.app.shared()?))
    }

    /// Adds the decisions of other instances to this one's history.
    pub(crate) fn add_other_instances(&self, history: &mut HistoryReport) {
        if let Some(fleet) = &self.fleet {
            history.add_others(fleet.other_counts(&history.times_ms()));
        }
    }

    /// How long the instances have differed in version or configuration. `None` without a fleet.
    pub(crate) fn fleet_differs_for(&self) -> Option<Duration> {
        self.fleet.as_ref().map(|fleet| fleet.differs_for().unwrap_or_default())
    }
}
