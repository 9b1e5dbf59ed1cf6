//! Threads that parse blocks ahead while earlier ones are decided.
//!
//! Each log has at most one block being parsed: its reader moves to a thread and returns with the
//! block. So a log's blocks stay in order, and memory is bounded by the number of logs.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::block::Block;
use crate::input::blocks::{BlockReader, ReadBlock};

/// Threads that parse blocks. They end when the pool is dropped.
pub(crate) struct Pool {
    jobs: Sender<PoolJob>,
}

pub(crate) struct PoolJob {
    reader: BlockReader,
    spare: Block,
    reply: SyncSender<(BlockReader, ReadBlock)>,
}

impl Pool {
    /// Starts this many threads; `None` for 0, or if the system does not allow any.
    pub(crate) fn start(threads: usize) -> Option<Self> {
        let (jobs, queue) = channel::<PoolJob>();
        let queue = Arc::new(Mutex::new(queue));
        let started = (0..threads).filter(|number| {
            let queue = Arc::clone(&queue);
            let thread = thread::Builder::new().name(format!("log-{number}"));
            thread.spawn(move || work(&queue)).is_ok()
        });
        (started.count() > 0).then_some(Self { jobs })
    }
}

fn work(queue: &Mutex<Receiver<PoolJob>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(PoolJob { mut reader, spare, reply }) = next else { return };
        let read = reader.next_block(spare);
        // Fails if the log is no longer read.
        let _ = reply.send((reader, read));
    }
}

/// The source of a log's blocks.
pub(crate) enum Feed {
    /// Parsed by the consuming thread.
    Here(Box<BlockReader>),
    Pooled {
        jobs: Sender<PoolJob>,
        /// Receives one block. One channel per block, so the end of a thread is noticed.
        block: Receiver<(BlockReader, ReadBlock)>,
    },
    Ended,
}

impl Feed {
    /// Starts parsing the first block at once, if there is a pool.
    pub(crate) fn new(reader: BlockReader, pool: Option<&Pool>) -> Self {
        match pool {
            None => Self::Here(Box::new(reader)),
            Some(pool) => {
                Self::Pooled { block: order(&pool.jobs, reader, Block::default()), jobs: pool.jobs.clone() }
            }
        }
    }

    /// The next block. `None` after the last one.
    pub(crate) fn next(&mut self, spare: Block) -> Option<ReadBlock> {
        let read = match self {
            Self::Here(reader) => reader.next_block(spare),
            Self::Pooled { jobs, block } => {
                let (reader, read) = block.recv().expect("a parsing thread ends only with the pool");
                if read.end.is_none() {
                    *block = order(jobs, reader, spare);
                }
                read
            }
            Self::Ended => return None,
        };
        if read.end.is_some() {
            *self = Self::Ended;
        }
        Some(read)
    }
}

/// Orders the next block from the pool.
fn order(jobs: &Sender<PoolJob>, reader: BlockReader, spare: Block) -> Receiver<(BlockReader, ReadBlock)> {
    let (reply, block) = sync_channel(1);
    jobs.send(PoolJob { reader, spare, reply }).expect("a parsing thread ends only with the pool");
    block
}
