//! Waiting for a limiter: until a cost fits.

use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

use super::Limiter;
use crate::decision::Decision;
use crate::key::KeyId;
use crate::quota::Algorithm;
use crate::waiting::queues::{AskOutcome, Asker, Denial, Place, Turn, WaitQueues, wait};
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

    /// As awaiting it, but answers with the denial if it is not admitted: with the wait that would have been
    /// necessary, and the reason [`QueueFull`](crate::Reason::QueueFull) where too many wait.
    pub async fn decide(self) -> Decision {
        let (limiter, key, cost) = (self.limiter, self.key.clone(), self.cost);
        match self.wait().await {
            Ok(decision) | Err((_, Some(decision))) => decision,
            Err((cause, None)) => {
                let mut decision = limiter.peek_cost(key, cost);
                decision.deny_behind(cause.retry_after(), cause.is_full());
                decision
            }
        }
    }

    async fn wait(self) -> Result<Decision, (Cause, Option<Decision>)> {
        let Self { limiter, key, cost, within } = self;
        if cost == 0 {
            return Ok(limiter.check_cost(&key, 0));
        }
        let peeked = limiter.peek_cost(&key, cost);
        if peeked.retry_after().is_none() {
            return Err((Cause::Never { cost, most: limiter.quota().capacity() }, Some(peeked)));
        }
        let turn = wait(&LimiterAsker { limiter, key, cost }, within).await;
        turn.map_err(|refused| (refused.cause, refused.answer))
    }
}

/// Asks a limiter for cost of one key, always from its queue.
struct LimiterAsker<'l> {
    limiter: &'l Limiter,
    key: Box<[u8]>,
    cost: u64,
}

impl LimiterAsker<'_> {
    fn place(&self) -> Place<KeyId> {
        #[allow(clippy::cast_precision_loss)] // shares need no more digits
        let share = self.cost as f64 / self.limiter.quota().limit().max(1) as f64;
        Place { key: self.limiter.id_of(&self.key), share, within: None }
    }

    fn turn(&self, wait: Duration, share: Option<f64>) -> Turn {
        let quota = self.limiter.quota();
        let is_even = quota.algorithm() == Algorithm::TokenBucket;
        let window = quota.window();
        Turn { wait, is_held: false, window, frees_limit_in: window, is_even, share, ask_again: None }
    }
}

impl Asker for LimiterAsker<'_> {
    type Key = KeyId;
    type Answer = Decision;

    fn queues(&self) -> &WaitQueues<KeyId> {
        &self.limiter.queues
    }

    fn queue_before(&self, current: Option<KeyId>) -> Option<Place<KeyId>> {
        current.is_none().then(|| self.place())
    }

    async fn ask(&self, _: Option<KeyId>) -> (Decision, AskOutcome<KeyId>) {
        let decision = self.limiter.check_cost(&self.key, self.cost);
        let outcome = match decision.retry_after() {
            _ if decision.is_allowed() => {
                let frees = decision.frees_after().filter(|_| decision.remaining == 0);
                AskOutcome::Allowed(frees.map(|wait| self.turn(wait, None)))
            }
            None => AskOutcome::Never(Cause::Never { cost: self.cost, most: decision.limit }),
            Some(wait) => {
                let place = self.place();
                let turn = self.turn(wait, Some(place.share));
                AskOutcome::Denied(Denial { place, turn })
            }
        };
        (decision, outcome)
    }
}

impl<'l> IntoFuture for Acquire<'l> {
    type Output = Result<Decision, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.wait().await.map_err(|(cause, _)| NotAcquired(cause)) })
    }
}
