//! State shared by all connections of the RESP listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::config::Password;

#[derive(Debug)]
pub(super) struct ListenerState {
    pub(super) password: Option<Password>,
    /// Whether the port is on loopback.
    pub(super) is_local: bool,
    pub(super) max_connections: usize,
    /// One permit per allowed connection.
    pub(super) permits: Arc<Semaphore>,
    /// Connections accepted since the start.
    accepted: AtomicU64,
}

impl ListenerState {
    pub(super) fn new(password: Option<Password>, is_local: bool, max_connections: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max_connections));
        Self { password, is_local, max_connections, permits, accepted: AtomicU64::new(0) }
    }

    /// Connections that are open now.
    pub(super) fn connected(&self) -> usize {
        self.max_connections - self.permits.available_permits()
    }

    /// The id of a new connection, from 1.
    pub(super) fn next_id(&self) -> u64 {
        self.accepted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Connections accepted since the start.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}
