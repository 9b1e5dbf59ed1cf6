//! Readiness: whether load balancers should send new requests.
//!
//! A store that is away does not end readiness, since each policy has its fallback: instances that all
//! left the load balancer would limit nothing.

use std::sync::atomic::{AtomicBool, Ordering};

/// Ready until the shutdown begins.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    is_stopping: AtomicBool,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_stopping.load(Ordering::Relaxed)
    }

    /// From here on `/readyz` says that no new requests should come.
    pub(crate) fn begin_shutdown(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}
