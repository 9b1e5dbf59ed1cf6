//! What the tests stand on: servers they own, things that go wrong between, and clocks that jump.
//!
//! All of it is synchronous and blocks the thread that asks. What has to run meanwhile, a proxy or a fake server, runs
//! on threads of its own, so that a test may be of either colour.

pub(crate) mod server;

pub(crate) mod acl;
pub(crate) mod certificates;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod fake;
pub(crate) mod proxy;
pub(crate) mod sentinel;

mod background;
pub(crate) mod ports;
pub(crate) mod process;
mod resp;

use std::time::Duration;

/// Looks that [`until`] takes before it gives up: a failover on a busy machine takes some seconds, none takes 30.
const MOST_LOOKS: usize = 3000;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks again and again until there is something to see, and panics with `what` if there never is.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..MOST_LOOKS {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("looked {MOST_LOOKS} times in vain: {what}");
}

/// [`until`] for what is simply true or not yet.
pub(crate) fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || look().then_some(()));
}
