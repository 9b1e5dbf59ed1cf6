//! Snapshots while the service runs: restored at the start, written at an interval and at the end.

use std::sync::Arc;

use crate::admin::Admin;

/// Restores run-time changes, and usage under the policies that they result in.
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
        // It copies and writes for as long as there are keys.
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
