//! Workers: threads that serve RESP connections.
//!
//! A connection stays on one thread. On the memory store a decision takes less time than moving a
//! task to another thread, so a work-stealing runtime, as used by the other protocols, would cost
//! more than it balances.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};

/// One thread per processor. They run until the process exits: connections to a shared store may
/// live on them.
#[derive(Debug)]
pub(super) struct Workers {
    threads: Vec<Handle>,
    /// Number of tasks assigned so far.
    assigned: AtomicUsize,
}

impl Workers {
    /// # Errors
    /// The system cannot create a thread.
    pub(super) fn start() -> io::Result<Self> {
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let run = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name(format!("resp-{number}")).spawn(run)?;
            Ok(handle)
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, assigned: AtomicUsize::new(0) })
    }

    /// Runs a task on the next thread, round robin.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let next = self.assigned.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[next].spawn(task);
    }
}
