//! State shared by all connections of the RESP listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Password;
use crate::listener::ProtocolConnections;

#[derive(Debug)]
pub(super) struct ListenerState {
    pub(super) password: Option<Password>,
    pub(super) max_connections: usize,
    pub(super) connections: Arc<ProtocolConnections>,
    last_id: AtomicU64,
}

impl ListenerState {
    pub(super) fn new(
        password: Option<Password>,
        max_connections: usize,
        connections: Arc<ProtocolConnections>,
    ) -> Self {
        Self { password, max_connections, connections, last_id: AtomicU64::new(0) }
    }

    /// Returns the id of a new connection, from 1.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }
}
