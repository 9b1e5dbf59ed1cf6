//! Fairness between a worker's connections: a client that streams commands yields after a short
//! turn.
//!
//! Turns are counted in commands. The clock is read once per [`COMMANDS_PER_CLOCK_READ`] commands,
//! and not at all in the short turns of clients that wait for replies.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

/// Commands between two clock reads: about 20 µs on the memory store.
const COMMANDS_PER_CLOCK_READ: u32 = 32;
/// Commands after which a connection yields, regardless of the clock.
pub(super) const MAX_COMMANDS: u32 = 1024;
/// Time after which a connection yields. A worker's neighbours wait for at most this long per
/// streaming client.
const MAX_TIME: Duration = Duration::from_micros(500);

/// A connection's turn on its worker.
#[derive(Debug, Default)]
pub(super) struct Turn {
    commands: u32,
    /// The first clock read in this turn.
    started: Option<Instant>,
}

impl Turn {
    /// Reads from the client. If nothing has arrived, others are served meanwhile and the next turn
    /// begins.
    pub(super) async fn read<T>(&mut self, read: impl Future<Output = T>) -> T {
        let mut read = pin!(read);
        let poll = poll_fn(|context| {
            let polled = read.as_mut().poll(context);
            if polled.is_pending() {
                *self = Self::default();
            }
            polled
        });
        poll.await
    }

    /// Counts a command. Yields if the turn is over.
    #[inline]
    pub(super) async fn command(&mut self) {
        self.commands += 1;
        if self.commands.is_multiple_of(COMMANDS_PER_CLOCK_READ) && self.is_over(Instant::now) {
            self.end().await;
        }
    }

    /// Counts a long step, such as writing many replies. Yields if the turn is over.
    pub(super) async fn long_step(&mut self) {
        if self.is_over(Instant::now) {
            self.end().await;
        }
    }

    #[cold]
    async fn end(&mut self) {
        *self = Self::default();
        yield_now().await;
    }

    fn is_over(&mut self, now: impl Fn() -> Instant) -> bool {
        if self.commands >= MAX_COMMANDS {
            return true;
        }
        let now = now();
        now.duration_since(*self.started.get_or_insert(now)) >= MAX_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The neighbours of a streaming client must not wait for its whole pipeline.
    #[test]
    fn a_turn_ends_by_time_and_by_count() {
        let begun = Instant::now();
        let mut turn = Turn::default();
        assert!(!turn.is_over(|| begun));
        assert!(!turn.is_over(|| begun + MAX_TIME / 2));
        assert!(turn.is_over(|| begun + MAX_TIME));
        turn = Turn { commands: MAX_COMMANDS, started: None };
        assert!(turn.is_over(|| begun));
    }

    /// A client that waits for replies lets others be served and need not also yield.
    #[tokio::test]
    async fn a_turn_begins_when_the_client_has_sent_nothing() {
        let mut turn = Turn { commands: 7, started: None };
        turn.read(std::future::ready(())).await;
        assert_eq!(turn.commands, 7, "it streams");
        turn.read(yield_now()).await;
        assert_eq!((turn.commands, turn.started), (0, None));
    }
}
