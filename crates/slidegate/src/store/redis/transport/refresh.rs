//! Refresh: the background task that keeps a cluster's slot map or a Sentinel's master up to date.
//!
//! It runs periodically, earlier after an error, and ends when its owner is dropped.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Interval while there are errors.
const SUSPECT: Duration = Duration::from_secs(1);
/// Minimum interval, however many errors there are.
const GAP: Duration = Duration::from_millis(50);

/// What can be refreshed.
pub(super) trait Renew: Send + Sync + 'static {
    /// Interval while everything is healthy.
    const CALM: Duration;

    fn refresh(&self) -> &Refresh;

    /// Refreshes. Returns whether everything is healthy.
    fn renew(&self) -> impl Future<Output = bool> + Send;
}

/// Handle of the task: wakes it, and ends it when dropped.
#[derive(Debug, Default)]
pub(super) struct Refresh {
    wake: Arc<Notify>,
    running: Arc<AtomicBool>,
}

impl Refresh {
    /// Requests an early refresh.
    pub(super) fn refresh_soon(&self) {
        self.wake.notify_one();
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Starts the task unless it is running.
pub(super) fn start<T: Renew>(this: &Arc<T>) {
    let Refresh { wake, running } = this.refresh();
    if running.load(Ordering::Relaxed) || running.swap(true, Ordering::AcqRel) {
        return;
    }
    let ending = Ending(running.clone());
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(run(Arc::downgrade(this), wake.clone(), ending));
    }
}

async fn run<T: Renew>(this: Weak<T>, wake: Arc<Notify>, _ending: Ending) {
    loop {
        let Some(strong) = this.upgrade() else { return };
        let well = strong.renew().await;
        drop(strong);
        sleep(GAP).await;
        let _ = timeout(if well { T::CALM } else { SUSPECT }, wake.notified()).await;
    }
}

/// Allows a new task after this one has ended, as it does with its runtime.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
