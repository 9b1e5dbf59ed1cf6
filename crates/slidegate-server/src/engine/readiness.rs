//! Readiness: whether load balancers should send new requests.
//!
//! An unavailable store does not end readiness, because each policy has a fallback: if all
//! instances left the load balancer, nothing would be limited.

use std::sync::atomic::{AtomicBool, Ordering};

/// Ready until the service drains.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    is_draining: AtomicBool,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_draining.load(Ordering::Relaxed)
    }

    /// Makes `/readyz` fail from now on.
    pub(crate) fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }
}
