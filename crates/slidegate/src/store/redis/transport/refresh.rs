//! Refreshing: the background task that keeps what is known of a cluster or of a master up to date.
//!
//! It looks again every so often, sooner after somebody met trouble, and ends when nobody needs it any more.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Between two looks while anything is in doubt.
const SUSPECT: Duration = Duration::from_secs(1);
/// Between two looks at the least, however much trouble is met.
const GAP: Duration = Duration::from_millis(50);

/// What can be looked at again.
pub(super) trait Renew: Send + Sync + 'static {
    /// Between two looks while all is well.
    const CALM: Duration;

    fn refresh(&self) -> &Refresh;

    /// Looks again. Whether all is well.
    fn renew(&self) -> impl Future<Output = bool> + Send;
}

/// The task's string: wakes it, and ends it when dropped.
#[derive(Debug, Default)]
pub(super) struct Refresh {
    wake: Arc<Notify>,
    running: Arc<AtomicBool>,
}

impl Refresh {
    /// Somebody met trouble: look again soon.
    pub(super) fn suspect(&self) {
        self.wake.notify_one();
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Starts the task unless it runs.
pub(super) fn keep<T: Renew>(this: &Arc<T>) {
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

/// Lets another task be started when this one has ended, as it does with its runtime.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
