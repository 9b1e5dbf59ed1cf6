//! Workers: threads that serve the connections of HTTP and RESP.
//!
//! A connection stays on one thread. On the memory store a decision takes less time than moving a
//! task to another thread, so a work-stealing runtime would cost more than it balances.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};

use super::stream::TrackedStream;
use crate::log_limit::log_limited;

/// One thread per processor. They run until the process exits: connections to a shared store may
/// live on them.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Vec<Handle>,
    /// Number of connections assigned so far.
    assigned: AtomicUsize,
}

impl Workers {
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn start() -> io::Result<Self> {
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let run = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name(format!("worker-{number}")).spawn(run)?;
            Ok(handle)
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, assigned: AtomicUsize::new(0) })
    }

    /// Serves a connection on the next thread, round robin.
    pub(crate) fn serve<F>(
        &self,
        stream: TrackedStream,
        peer: Option<IpAddr>,
        serve: impl FnOnce(TrackedStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let failed = move |error| log_limited!(WARN, peer, %error, "cannot move a connection to its thread");
        // The socket leaves the runtime of this thread.
        let stream = match stream.detach() {
            Ok(stream) => stream,
            Err(error) => return failed(error),
        };
        let next = self.assigned.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[next].spawn(async move {
            match stream.attach() {
                Ok(stream) => serve(stream).await,
                Err(error) => failed(error),
            }
        });
    }
}
