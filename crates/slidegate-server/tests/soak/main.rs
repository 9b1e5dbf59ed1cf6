//! A mixed load with faults for a long time: two instances on one Redis, asked over HTTP, RESP and
//! gRPC, while servers are stopped, killed, cut off and reloaded, and clients are hostile.
//!
//! One minute, or as many seconds as `SLIDEGATE_SOAK_SECONDS` says; see CONTRIBUTING.md.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod faults;
mod fleet;
mod load;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use slidegate_testkit::window_checker::greatest_in_one_window;

use faults::Faults;
use fleet::Fleet;
use load::Load;

/// Without the variable.
const SECONDS: u64 = 60;
/// Which limit every user has, per [`WINDOW`].
const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_secs(2);
/// Growth of the instance that is never restarted, after half of the time. Caches and buffers
/// of the allocator fill for a while; a leak grows with every request and goes past any constant.
const MAX_GROWTH: u64 = 24 * 1024 * 1024;

/// Ends the load, also when a fault panics: the scope would wait for its clients forever.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn duration() -> Duration {
    let seconds = std::env::var("SLIDEGATE_SOAK_SECONDS").map_or(SECONDS, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("SLIDEGATE_SOAK_SECONDS is `{text}`; give a number of seconds"))
    });
    Duration::from_secs(seconds)
}

/// What operators rely on for months: no limit is exceeded, no change is lost, nothing grows.
#[test]
fn under_faults_no_limit_is_exceeded_no_change_is_lost_and_nothing_grows() {
    let fleet = Fleet::start();
    let is_over = AtomicBool::new(false);
    let (mut admitted, faults) = thread::scope(|scope| {
        let load = Load::start(scope, &fleet, &is_over);
        let end = EndOnDrop(&is_over);
        let faults = Faults::inject(&fleet, duration());
        drop(end);
        (load.end(), faults)
    });
    fleet.heal();

    let total: usize = admitted.values().map(Vec::len).sum();
    eprintln!("{} users, {total} requests admitted; {faults}", admitted.len());
    for (user, admissions) in &mut admitted {
        let greatest = greatest_in_one_window(admissions, WINDOW);
        assert!(greatest <= LIMIT, "{user}: {greatest} within {WINDOW:?}");
    }
    assert!(admitted.len() > 100 && total > 1000, "there was a load");
    faults.assert_kept(&fleet);
    let (before, after) = (faults.usage, fleet.until_quiet(faults.usage));
    assert!(
        after.resident <= before.resident + MAX_GROWTH,
        "resident memory grew from {} to {} bytes",
        before.resident,
        after.resident
    );
}
