//! Waiting at a gate until a check or a reservation is allowed.
//!
//! A caller waits in the queue of the key that denied it. If another key denies it at the head, it
//! moves to that key's queue. Cost freed in this process wakes the head of the key's queue. A
//! shared gate also asks again periodically, for cost that other instances free.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::slice;
use std::time::Duration;

use super::{Decisions, Gate, Reserved};
use crate::charge::{HoldTerms, Plan};
use crate::decision::Reason;
use crate::error::Error;
use crate::hold::{HoldChange, HoldStatus, ttl_us};
use crate::request::Request;
use crate::store::{HoldStore, Store};
use crate::time::jitter;
use crate::verb::Verb;
use crate::waiting::queue_key::QueueKey;
use crate::waiting::queues::{AskOutcome, Asker, Denial, WaitQueues, wait};
use crate::waiting::{Cause, MaxWaiting, NotAcquired, TIMEOUT};

/// Retry interval for a shared key with open holds, which other instances may settle at any time:
/// random around 50 ms, so that heads do not retry in step.
const ASK_SHARED_HOLDS: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(75));
/// Retry interval for all other keys. Without holds, only a refund or a reset frees cost early; in
/// memory, a hold may expire with less than it held.
const ASK_OTHERS: Duration = Duration::from_secs(1);

impl<S: Store> Gate<S> {
    /// Bounds how many callers may wait in [`acquire`](Self::acquire) and
    /// [`acquire_reservation`](Self::acquire_reservation).
    #[must_use]
    pub fn with_max_waiting(mut self, most: MaxWaiting) -> Self {
        self.queues = WaitQueues::of(most);
        self
    }

    /// Waits until a [`check`](Self::check) of the request is allowed, up to a timeout. Callers in
    /// this process that wait for the same key of the same policy are served first come, first
    /// served.
    ///
    /// A request that several keys limit waits for one of them at a time: the one that denied it
    /// last. A dropped future leaves the queue and charges nothing; over a shared store, a check
    /// that is already sent may still be charged. Capacity freed in this process by a refund, a
    /// settlement, a reset or a new configuration is noticed at once. For keys with open holds in a
    /// shared store, the head asks again every 25 to 75 ms, to notice settlements of other
    /// instances; for other keys, when the wait is over, and every second. A policy that [counts
    /// denials](crate::Excess::Count) counts each retry. Needs a tokio runtime with timers.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::new(PolicySet::new([Policy::new("api", Quota::per_minute(100))?.with_scope(["host"])])?);
    /// let request = Request::new().with("host", "api.example").with_cost(3);
    /// let decisions = gate.acquire(&request).timeout(Duration::from_secs(2)).await?;
    /// assert_eq!(decisions.strictest().unwrap().decision().remaining(), 97);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When awaited, [`NotAcquired`]: the cost can never fit, too many callers wait, or there is no
    /// capacity in time.
    pub fn acquire<'g, 'r>(&'g self, request: &'r Request<'r>) -> GateAcquire<'g, 'r, S> {
        GateAcquire { gate: self, request, within: TIMEOUT }
    }

    /// The queue to join before asking: that of the next key, in policy order after the current
    /// one, that others wait for.
    fn queue_before(&self, request: &Request<'_>, current: Option<QueueKey>) -> Option<QueueKey> {
        if self.queues.waiting() <= usize::from(current.is_some()) {
            return None;
        }
        let policies = self.policies.load();
        let plan = policies.plan(slice::from_ref(request), Some(Verb::Check));
        let denying = plan.charges.iter().filter(|charge| charge.part.enforced && charge.part.cost > 0);
        let keys: Vec<QueueKey> = denying.map(|charge| QueueKey::new(charge.number, &charge.key)).collect();
        let after = keys.iter().position(|key| Some(*key) == current).map_or(0, |at| at + 1);
        keys.into_iter().skip(after).find(|key| self.queues.has(*key))
    }

    /// How to wait after a denial.
    fn denial<A>(&self, decisions: &Decisions<'_>) -> AskOutcome<A, QueueKey> {
        let never = |why: String| AskOutcome::Never(NotAcquired(Cause::NeverOfGate(why)));
        let Some(denied) = decisions.strictest().filter(|strictest| strictest.decision().is_denied()) else {
            let error = decisions.error().map(|error| error.to_string());
            return never(error.unwrap_or_else(|| "no policy that denies can be waited for".to_owned()));
        };
        let name = denied.policy().name();
        let Some(wait) = denied.decision().retry_after() else {
            return never(match denied.decision().reason() {
                Some(Reason::Blocked) => {
                    format!(
                        "policy `{name}`: key `{}` is blocked without end: remove the block",
                        denied.key()
                    )
                }
                _ => format!(
                    "policy `{name}`: invalid cost {}: must be at most {}, its limit; ask for less at once",
                    denied.asked(),
                    denied.decision().limit()
                ),
            });
        };
        let number = decisions.policies().numbered_place(name).map_or(0, |(number, _)| number);
        let is_held = denied.decision().held() > 0;
        let ask_again = match (is_held, self.store.as_local().is_some()) {
            (true, false) => Some(jitter(ASK_SHARED_HOLDS.0, ASK_SHARED_HOLDS.1)),
            (false, true) => None,
            (true, true) | (false, false) => Some(ASK_OTHERS),
        };
        AskOutcome::Denied(Denial { key: QueueKey::new(number, &denied.key()), wait, is_held, ask_again })
    }

    #[inline]
    pub(super) fn wake_refunded(&self, decisions: &Decisions<'_>) {
        if self.queues.waiting() > 0 {
            self.wake_decided(decisions);
        }
    }

    #[cold]
    fn wake_decided(&self, decisions: &Decisions<'_>) {
        for refunded in decisions.iter().filter(|one| one.verb() == Verb::Refund) {
            let number = decisions.policies().numbered_place(refunded.policy().name());
            number.inspect(|(number, _)| self.queues.wake(|| QueueKey::new(*number, &refunded.key())));
        }
    }

    pub(super) fn wake_charged(&self, plan: &Plan<'_>) {
        plan.charges.iter().for_each(|charge| self.queues.wake(|| QueueKey::new(charge.number, &charge.key)));
    }
}

impl<S: HoldStore> Gate<S> {
    /// Waits until the request can be [reserved](Self::reserve), as [`acquire`](Self::acquire) does
    /// for a check: for a permit of [`Quota::in_flight`](crate::Quota::in_flight), for example.
    /// Settling or cancelling a permit wakes the head of its queue at once.
    ///
    /// A future dropped while a shared store decides may leave a hold, which expires on time.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Policy::new("jobs", Quota::in_flight(1, Duration::from_secs(30))?)?.with_scope(["user"]);
    /// let gate = Arc::new(Gate::new(PolicySet::new([jobs])?));
    /// let request = Request::new().with("user", "alice");
    /// let first = gate.reserve(&request).into_guard(&gate).unwrap();
    /// let (second, ()) = tokio::join!(gate.acquire_reservation(&request), async { drop(first) });
    /// assert!(second?.ticket().is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When awaited, same as [`acquire`](Self::acquire).
    pub fn acquire_reservation<'g, 'r>(&'g self, request: &'r Request<'r>) -> AcquireReservation<'g, 'r, S> {
        AcquireReservation { gate: self, request, ttl_us: None, within: TIMEOUT }
    }

    /// Wakes the waiters of a key if a change of its hold freed cost.
    pub(super) fn wake_after(
        &self,
        queue: Option<u64>,
        policy: u32,
        change: &HoldChange,
        status: HoldStatus,
    ) {
        let frees = !matches!(
            change,
            HoldChange::Settle { ttl_us: Some(_), .. } | HoldChange::Extend { total: None, .. }
        );
        if status != HoldStatus::Changed || !frees || self.queues.waiting() == 0 {
            return;
        }
        match queue {
            Some(key) => self.queues.wake(|| QueueKey { policy, key }),
            // The ticket was read from text.
            None => self.queues.wake_where(|queue| queue.policy == policy),
        }
    }
}

/// A future that waits until a check is allowed, created by [`Gate::acquire`].
#[must_use = "it waits only when it is awaited"]
pub struct GateAcquire<'g, 'r, S> {
    gate: &'g Gate<S>,
    request: &'r Request<'r>,
    within: Duration,
}

impl<S> GateAcquire<'_, '_, S> {
    /// Sets the longest wait, measured by tokio's clock from the first poll. Default: one minute.
    /// With zero, the call fails at once if it would have to wait; it does not overtake waiters.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.within = longest;
        self
    }
}

/// A future that waits until a reservation is allowed, created by [`Gate::acquire_reservation`].
#[must_use = "it waits only when it is awaited"]
pub struct AcquireReservation<'g, 'r, S> {
    gate: &'g Gate<S>,
    request: &'r Request<'r>,
    ttl_us: Option<u64>,
    within: Duration,
}

impl<S> AcquireReservation<'_, '_, S> {
    /// Sets the longest wait, as [`GateAcquire::timeout`] does.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.within = longest;
        self
    }

    /// Sets how long the reservation lasts. See [`Gate::reserve_for`].
    ///
    /// # Errors
    /// If the duration is out of range.
    pub fn ttl(mut self, ttl: Duration) -> Result<Self, Error> {
        self.ttl_us = Some(ttl_us(ttl).map_err(Error::ticket)?);
        Ok(self)
    }
}

impl<'r, S: Store> Asker for GateAcquire<'_, 'r, S> {
    type Key = QueueKey;
    type Answer = Decisions<'r>;

    fn queues(&self) -> &WaitQueues<QueueKey> {
        &self.gate.queues
    }

    fn queue_before(&self, current: Option<QueueKey>) -> Option<QueueKey> {
        self.gate.queue_before(self.request, current)
    }

    async fn ask(&self) -> AskOutcome<Decisions<'r>, QueueKey> {
        let decisions =
            self.gate.decide_async(Some(Verb::Check), slice::from_ref(self.request), None, true).await;
        if decisions.is_allowed() { AskOutcome::Allowed(decisions) } else { self.gate.denial(&decisions) }
    }
}

impl<'r, S: HoldStore> Asker for AcquireReservation<'_, 'r, S> {
    type Key = QueueKey;
    type Answer = Reserved<'r>;

    fn queues(&self) -> &WaitQueues<QueueKey> {
        &self.gate.queues
    }

    fn queue_before(&self, current: Option<QueueKey>) -> Option<QueueKey> {
        self.gate.queue_before(self.request, current)
    }

    async fn ask(&self) -> AskOutcome<Reserved<'r>, QueueKey> {
        let terms = HoldTerms { is_waiting: true, ..HoldTerms::new(self.ttl_us) };
        let reserved = self.gate.reserve_under(slice::from_ref(self.request), terms, None).await;
        if reserved.decisions().is_allowed() {
            AskOutcome::Allowed(reserved)
        } else {
            self.gate.denial(reserved.decisions())
        }
    }
}

impl<'g, 'r: 'g, S: Store> IntoFuture for GateAcquire<'g, 'r, S> {
    type Output = Result<Decisions<'r>, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'g>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { wait(&self, self.within).await })
    }
}

impl<'g, 'r: 'g, S: HoldStore> IntoFuture for AcquireReservation<'g, 'r, S> {
    type Output = Result<Reserved<'r>, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'g>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { wait(&self, self.within).await })
    }
}

impl<S> fmt::Debug for GateAcquire<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateAcquire").field("within", &self.within).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for AcquireReservation<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireReservation").field("within", &self.within).finish_non_exhaustive()
    }
}
