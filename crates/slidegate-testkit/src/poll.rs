//! Polling: waits for a condition, independently of the machine's speed.

use std::time::Duration;

/// Maximum polls: with the pauses, at least 60 seconds. A failover takes seconds on a busy machine.
const MAX_POLLS: usize = 6000;

/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(10);

/// Polls until there is a value and returns it. Panics with `what` after [`MAX_POLLS`].
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..MAX_POLLS {
        if let Some(value) = poll() {
            return value;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("not after {MAX_POLLS} polls: {what}");
}

/// [`until`] for a condition without a value.
pub fn until_true(what: &str, mut poll: impl FnMut() -> bool) {
    until(what, || poll().then_some(()));
}

/// [`until_true`] for asynchronous tests: other tasks run meanwhile.
pub async fn until_async(what: &str, mut poll: impl AsyncFnMut() -> bool) {
    for _ in 0..MAX_POLLS {
        if poll().await {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("not after {MAX_POLLS} polls: {what}");
}
