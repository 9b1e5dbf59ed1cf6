//! Workers: threads that accept and serve HTTP and RESP connections.
//!
//! A connection stays on one thread. On the memory store a decision takes less time than moving a
//! task to another thread, so a work-stealing runtime would cost more than it balances. For the
//! same reason a worker keeps the connections it accepts, unless it has clearly more than another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinSet, yield_now};

use super::accept::{Accepted, Acceptor, Admission};
use super::socket::BoundSocket;
use super::stream::TrackedStream;
use crate::log_limit::log_limited;

/// Connections that a worker accepts before serving the ones it has.
const ACCEPTS_PER_TURN: usize = 16;

/// Serves the accepted connections of a protocol.
pub(crate) trait Serve: Clone + Send + 'static {
    /// Serves a connection until it ends.
    fn serve(self, accepted: Accepted) -> impl Future<Output = ()> + Send;
}

/// One thread per processor. They run until the process exits: connections to a shared store may
/// live on them.
#[derive(Debug, Clone)]
pub(crate) struct Workers(Arc<[Worker]>);

/// Two cache lines, because processors prefetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Worker {
    runtime: Handle,
    /// Its open connections.
    open: AtomicUsize,
}

/// A worker's connection, counted until dropped.
struct ConnectionCount {
    workers: Workers,
    number: usize,
}

impl Workers {
    /// Number of workers, and of sockets that share an address's connections.
    pub(crate) fn count() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn start() -> io::Result<Self> {
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let run = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name(format!("worker-{number}")).spawn(run)?;
            Ok(Worker { runtime: handle, open: AtomicUsize::new(0) })
        };
        Ok(Self((0..Self::count()).map(start).collect::<io::Result<_>>()?))
    }

    /// Accepts connections on the workers and serves each on one of them. The returned tasks are
    /// the accept loops: aborting one closes its sockets.
    pub(crate) fn accept(
        &self,
        sockets: Vec<BoundSocket>,
        admission: &Arc<Admission>,
        serve: &impl Serve,
    ) -> JoinSet<()> {
        let mut shares: Vec<_> = self.0.iter().map(|_| Vec::new()).collect();
        for socket in sockets {
            for (at, socket) in socket.into_sockets().into_iter().enumerate() {
                shares[at % self.0.len()].push(socket);
            }
        }
        let mut loops = JoinSet::new();
        for (number, sockets) in shares.into_iter().enumerate() {
            let (workers, admission, serve) = (self.clone(), Arc::clone(admission), serve.clone());
            let accept = async move {
                match Acceptor::new(sockets, &admission) {
                    Ok(acceptor) => workers.run(number, acceptor, serve).await,
                    Err(error) => log_limited!(ERROR, None, %error, "cannot watch a listening socket"),
                }
            };
            loops.spawn_on(accept, &self.0[number].runtime);
        }
        loops
    }

    /// A worker's accept loop.
    async fn run(self, number: usize, mut acceptor: Acceptor, serve: impl Serve) {
        loop {
            for _ in 0..ACCEPTS_PER_TURN {
                let accepted = acceptor.accept().await;
                let (place, serve) = (self.place(number), serve.clone());
                if place.number == number {
                    tokio::spawn(place.serve(accepted, serve));
                } else {
                    place.hand_over(accepted, serve);
                }
            }
            yield_now().await;
        }
    }

    /// A place for a connection that this worker accepted: here, or on the worker with the fewest
    /// connections if that has clearly fewer.
    fn place(&self, accepted_by: usize) -> ConnectionCount {
        let open = |number: usize| self.0[number].open.load(Ordering::Relaxed);
        let number = destination(accepted_by, self.0.len(), open);
        self.0[number].open.fetch_add(1, Ordering::Relaxed);
        ConnectionCount { workers: self.clone(), number }
    }
}

/// Selects the worker of a new connection, out of `count` with these numbers of open connections.
fn destination(accepted_by: usize, count: usize, open: impl Fn(usize) -> usize) -> usize {
    let own = open(accepted_by);
    if own == 0 {
        return accepted_by;
    }
    let least = (0..count).min_by_key(|number| open(*number)).unwrap_or(accepted_by);
    // Few connections are spread evenly. Among many, a difference matters less than waking another
    // thread.
    if own > open(least) + own / 4 { least } else { accepted_by }
}

impl ConnectionCount {
    /// Serves a connection until it ends.
    async fn serve(self, accepted: Accepted, serve: impl Serve) {
        serve.serve(accepted).await;
    }

    /// Serves another worker's connection here.
    fn hand_over(self, accepted: Accepted, serve: impl Serve) {
        let Accepted { stream, peer, connection, certificates } = accepted;
        let failed = move |error| {
            log_limited!(WARN, connection.peer, %error, "cannot move a connection to its thread");
        };
        let (socket, slot) = match stream.detach() {
            Ok(detached) => detached,
            Err(error) => return failed(error),
        };
        let runtime = self.workers.0[self.number].runtime.clone();
        runtime.spawn(async move {
            let stream = match socket.attach() {
                Ok(socket) => TrackedStream::new(socket, slot),
                Err(error) => return failed(error),
            };
            self.serve(Accepted { stream, peer, connection, certificates }, serve).await;
        });
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.workers.0[self.number].open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients with few connections get all processors, and many short connections stay where they
    /// were accepted.
    #[test]
    fn a_worker_keeps_what_it_accepts_unless_it_has_clearly_more_than_another() {
        let to = |open: [usize; 3]| destination(1, 3, |number| open[number]);
        assert_eq!(to([0, 0, 0]), 1);
        assert_eq!(to([0, 1, 1]), 0);
        assert_eq!(to([1, 2, 1]), 0);
        assert_eq!(to([3, 3, 3]), 1);
        assert_eq!(to([9, 3, 0]), 2);
        assert_eq!(to([20, 16, 12]), 1);
        assert_eq!(to([20, 17, 12]), 2);
    }
}
