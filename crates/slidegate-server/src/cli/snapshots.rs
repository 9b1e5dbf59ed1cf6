//! Snapshots at run time: restored at startup, written at an interval and at shutdown.

use std::sync::Arc;

use crate::control::state::Admin;

/// Restores run-time changes, then usage under the resulting policies.
pub(super) fn restore(admin: &Admin) {
    let Some(snapshots) = &admin.app.snapshots else { return };
    if let Some(changes) = snapshots.changes()
        && let Err(error) = admin.control.restore(&changes)
    {
        tracing::error!(error, "the run-time changes of the snapshot cannot be restored");
    }
    snapshots.restore(admin.app.store());
}

/// Writes snapshots until the process ends.
pub(super) async fn run(admin: Arc<Admin>) {
    let Some(snapshots) = &admin.app.snapshots else { return };
    loop {
        snapshots.due().await;
        let admin = Arc::clone(&admin);
        // The duration grows with the number of keys.
        let saved = tokio::task::spawn_blocking(move || save(&admin)).await;
        if let Err(error) = saved {
            tracing::error!(%error, "a snapshot was not written");
        }
    }
}

/// Writes a snapshot, if one is configured.
pub(super) fn save(admin: &Admin) {
    if let Some(snapshots) = &admin.app.snapshots {
        snapshots.save(admin.app.store(), &admin.control.saved());
    }
}
