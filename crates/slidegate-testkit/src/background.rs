//! Threads that keep running while a test blocks: the runtime of proxies and fake servers.

use tokio::runtime::{Builder, Runtime};

/// A separate runtime that may be dropped anywhere, even inside another runtime. Its tasks end with
/// it.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    /// Starts one thread with sockets and timers.
    pub(crate) fn start() -> Self {
        Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()))
    }

    /// Runs a task until it ends or the runtime does.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.as_ref().unwrap().spawn(task);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
