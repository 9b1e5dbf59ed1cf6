//! One pass over a log for any number of jobs: the configuration, values of a sweep, or a diff.
//!
//! Each job decides every batch in log order, on one thread throughout, so results do not depend on
//! the number of threads.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::batch::{AttributeNames, EntryBatch};
use crate::entry::Entry;
use crate::evidence::Evidence;

/// Maximum batches queued for a thread: it always has the next one, and memory stays bounded.
const BATCHES_AHEAD: usize = 4;
/// Maximum deciding threads. More would wait for the reader.
const MAX_THREADS: usize = 16;

/// Decides the entries of a log.
pub(crate) trait Job: Send + 'static {
    /// Decides the entries of a batch in their order.
    ///
    /// # Errors
    /// A decision cannot be written. The entry is decided anyway.
    fn decide(&mut self, batch: &EntryBatch) -> io::Result<()>;
}

/// Passes each entry to all jobs.
#[derive(Debug)]
pub(crate) struct Pass<J> {
    names: AttributeNames,
    batch: EntryBatch,
    evidence: Evidence,
    mode: Mode<J>,
}

#[derive(Debug)]
enum Mode<J> {
    /// On the caller's thread.
    Here(Vec<J>),
    Threads(Vec<Worker<J>>),
}

#[derive(Debug)]
struct Worker<J> {
    batches: SyncSender<Arc<EntryBatch>>,
    thread: JoinHandle<io::Result<Vec<(usize, J)>>>,
}

impl<J: Job> Pass<J> {
    /// A pass with `threads` threads besides the reading one; 0 decides on the caller's thread.
    pub(crate) fn new(names: AttributeNames, jobs: Vec<J>, threads: usize) -> Self {
        let threads = threads.min(jobs.len()).min(MAX_THREADS);
        let mode = if threads == 0 {
            Mode::Here(jobs)
        } else {
            // Round robin: neighbours of a sweep take equally long.
            let mut shares: Vec<Vec<(usize, J)>> = (0..threads).map(|_| Vec::new()).collect();
            for (at, job) in jobs.into_iter().enumerate() {
                shares[at % threads].push((at, job));
            }
            Mode::Threads(shares.into_iter().map(Worker::start).collect())
        };
        let evidence = Evidence::new(Arc::clone(&names));
        Self { batch: EntryBatch::new(Arc::clone(&names)), evidence, names, mode }
    }

    /// Takes one entry. It is decided now or later.
    ///
    /// # Errors
    /// A decision cannot be written, which can be reported for a later entry.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.evidence.examine(entry, self.batch.is_empty());
        self.batch.push(entry, &mut self.evidence.occurred);
        if self.batch.is_full() { self.decide() } else { Ok(()) }
    }

    fn decide(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        match &mut self.mode {
            Mode::Here(jobs) => {
                jobs.iter_mut().try_for_each(|job| job.decide(&self.batch))?;
                self.batch.clear();
            }
            Mode::Threads(workers) => {
                let next = EntryBatch::new(Arc::clone(&self.names));
                let batch = Arc::new(std::mem::replace(&mut self.batch, next));
                // A thread that ended has failed; `finish` reports that.
                let sent = workers.iter().all(|worker| worker.batches.send(Arc::clone(&batch)).is_ok());
                if !sent {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe));
                }
            }
        }
        Ok(())
    }

    /// Decides the rest and returns the jobs in their order, with the evidence.
    ///
    /// # Errors
    /// A decision could not be written.
    pub(crate) fn finish(mut self) -> io::Result<(Vec<J>, Evidence)> {
        let decided = self.decide();
        let mut jobs: Vec<(usize, J)> = match self.mode {
            Mode::Here(jobs) => jobs.into_iter().enumerate().collect(),
            Mode::Threads(workers) => {
                let mut jobs = Vec::new();
                for Worker { batches, thread } in workers {
                    drop(batches);
                    jobs.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
                }
                jobs
            }
        };
        decided?;
        jobs.sort_unstable_by_key(|(at, _)| *at);
        Ok((jobs.into_iter().map(|(_, job)| job).collect(), self.evidence))
    }
}

impl<J: Job> Worker<J> {
    fn start(jobs: Vec<(usize, J)>) -> Self {
        let (batches, received) = sync_channel(BATCHES_AHEAD);
        Self { batches, thread: std::thread::spawn(|| work(jobs, received)) }
    }
}

#[allow(clippy::needless_pass_by_value)] // the channel ends with the thread
fn work<J: Job>(
    mut jobs: Vec<(usize, J)>,
    batches: Receiver<Arc<EntryBatch>>,
) -> io::Result<Vec<(usize, J)>> {
    for batch in &batches {
        jobs.iter_mut().try_for_each(|(_, job)| job.decide(&batch))?;
    }
    Ok(jobs)
}
