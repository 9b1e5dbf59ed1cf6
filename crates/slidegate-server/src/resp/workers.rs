//! Workers: threads that serve connections, each those that it was given.
//!
//! A connection stays where it began. On the memory store a decision takes less than passing a task from thread to thread
//! does, so work that wanders, as on the runtime of the other interfaces, would cost more than it balances.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};

/// As many threads as there are processors. They end with the process: a shared store's connections may live on them.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Vec<Handle>,
    /// How many tasks were given so far.
    given: AtomicUsize,
}

impl Workers {
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn start() -> io::Result<Self> {
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let run = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name(format!("resp-{number}")).spawn(run)?;
            Ok(handle)
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, given: AtomicUsize::new(0) })
    }

    /// Lets the next thread run this to its end.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let next = self.given.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[next].spawn(task);
    }
}
