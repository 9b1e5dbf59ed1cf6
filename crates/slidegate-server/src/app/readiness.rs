//! Readiness: whether load balancers should send new requests.
//!
//! An unavailable store does not end readiness, because each policy has a fallback: if all
//! instances left the load balancer, nothing would be limited.

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

    /// Makes `/readyz` fail from now on.
    pub(crate) fn begin_shutdown(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }
}
