//! Waiting for a limiter: until a cost fits.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use super::Limiter;
use crate::decision::Decision;
use crate::key::KeyId;
use crate::waiting::queues::{AskOutcome, Asker, Denial, WaitQueues, wait};
use crate::waiting::{Cause, MaxWaiting, NotAcquired, TIMEOUT};

impl Limiter {
    /// Lets no more than these wait in [`acquire`](Self::acquire).
    #[must_use]
    pub fn with_max_waiting(mut self, most: MaxWaiting) -> Self {
        self.queues = WaitQueues::of(most);
        self
    }

    /// Waits until the cost fits and charges it, instead of being denied: first come, first served
    /// for each key, and never beyond a deadline.
    ///
    /// A future that is dropped gives its place in the line back and charges nothing.
    /// [`check`](Self::check) and its kin do not stand in line. Capacity that a refund, a reset or
    /// another quota makes is noticed at once. Needs a tokio runtime with timers, which wake to the
    /// millisecond.
    ///
    /// ```
    /// use slidegate::{Limiter, Quota};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), slidegate::acquire::NotAcquired> {
    /// let limiter = Limiter::new(Quota::per_minute(100));
    /// let decision = limiter.acquire("alice").cost(3).timeout(Duration::from_secs(2)).await?;
    /// assert_eq!(decision.remaining(), 97);
    ///
    /// let never = limiter.acquire("alice").cost(101).await.unwrap_err();
    /// assert_eq!(never.to_string(), "invalid cost 101: must be at most 100, the capacity of the quota; ask for less at once");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When awaited, [`NotAcquired`](crate::acquire::NotAcquired): it can never fit, as many wait as may, or
    /// there is no room in time.
    pub fn acquire(&self, key: impl AsRef<[u8]>) -> Acquire<'_> {
        Acquire { limiter: self, key: key.as_ref().into(), cost: 1, within: Acquire::TIMEOUT }
    }
}

/// A future that waits until the cost fits, created by [`Limiter::acquire`]. It joins the queue
/// when it is first awaited.
#[derive(Debug)]
#[must_use = "it waits only when it is awaited"]
pub struct Acquire<'l> {
    limiter: &'l Limiter,
    key: Box<[u8]>,
    cost: u64,
    within: Duration,
}

impl<'l> Acquire<'l> {
    /// The default timeout: one minute.
    pub const TIMEOUT: Duration = TIMEOUT;

    /// Sets the cost. Default: 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the longest wait, from the first await on and by tokio's clock. Default:
    /// [`TIMEOUT`](Self::TIMEOUT). With zero, the call fails at once if it would have to wait; it
    /// does not overtake waiters.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.within = longest;
        self
    }

    async fn wait(self) -> Result<Decision, NotAcquired> {
        let Self { limiter, key, cost, within } = self;
        if cost == 0 {
            return Ok(limiter.check_cost(&key, 0));
        }
        if limiter.peek_cost(&key, cost).retry_after().is_none() {
            return Err(NotAcquired(Cause::Never { cost, most: limiter.quota().capacity() }));
        }
        wait(&LimiterAsker { limiter, key, cost }, within).await
    }
}

/// Asks a limiter for cost of one key, always from its queue.
struct LimiterAsker<'l> {
    limiter: &'l Limiter,
    key: Box<[u8]>,
    cost: u64,
}

impl Asker for LimiterAsker<'_> {
    type Key = KeyId;
    type Answer = Decision;

    fn queues(&self) -> &WaitQueues<KeyId> {
        &self.limiter.queues
    }

    fn queue_before(&self, current: Option<KeyId>) -> Option<KeyId> {
        current.is_none().then(|| self.limiter.id_of(&self.key))
    }

    async fn ask(&self) -> AskOutcome<Decision, KeyId> {
        let Self { limiter, key, cost } = self;
        let decision = limiter.check_cost(key, *cost);
        match decision.retry_after() {
            _ if decision.is_allowed() => AskOutcome::Allowed(decision),
            None => AskOutcome::Never(NotAcquired(Cause::Never { cost: *cost, most: decision.limit })),
            Some(wait) => {
                AskOutcome::Denied(Denial { key: limiter.id_of(key), wait, is_held: false, ask_again: None })
            }
        }
    }
}

impl<'l> IntoFuture for Acquire<'l> {
    type Output = Result<Decision, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}
