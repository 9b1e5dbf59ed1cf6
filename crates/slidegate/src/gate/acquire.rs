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

use super::{Decisions, Gate, PolicyDecision, Reserved};
use crate::charge::{Charge, Excess, HoldTerms, Plan};
use crate::decision::Reason;
use crate::error::Error;
use crate::hold::{HoldChange, HoldOptions, HoldStatus, ttl_us};
use crate::policy::Policy;
use crate::quota::{Algorithm, Quota};
use crate::request::Request;
use crate::store::{HoldStore, OnFreed, Store, Watch};
use crate::verb::Verb;
use crate::waiting::queue_key::QueueKey;
use crate::waiting::queues::{AskOutcome, Asker, Denial, Place, Refused, Turn, WaitQueues, wait};
use crate::waiting::{Cause, MaxWaiting, NotAcquired, TIMEOUT};

/// Retry interval for keys with open holds, which may end earlier than their wait says, and expire with less than they held.
const ASK_HELD: Duration = Duration::from_secs(1);
/// Retry interval for other keys of a shared store: a message about cost that another process has freed may be lost.
const ASK_SHARED: Duration = Duration::from_secs(5);

/// How long requests wait for their turn.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    /// At most as long.
    AtMost(Duration),
    /// As long as the policy that denies them [lets them wait](Policy::with_wait), and at most as long.
    OfPolicies(Duration),
}

impl Patience {
    /// No wait, for the same requests.
    #[must_use]
    pub fn none(self) -> Self {
        match self {
            Self::AtMost(_) => Self::AtMost(Duration::ZERO),
            Self::OfPolicies(_) => Self::OfPolicies(Duration::ZERO),
        }
    }
}

/// Requests that ask until they are admitted.
#[doc(hidden)]
pub trait Ask: Sync {
    type Answer: Send;

    fn verb(&self) -> Option<Verb> {
        Some(Verb::Check)
    }

    fn requests(&self) -> &[Request<'_>];

    fn patience(&self) -> Patience;

    /// Asks once, by a store that knows that they [wait](crate::store::Charge::is_waiting).
    fn ask(&self) -> impl Future<Output = Self::Answer> + Send;

    /// `None`: it was not decided, and asking again changes nothing.
    fn decisions<'a>(answer: &'a Self::Answer) -> Option<&'a Decisions<'a>>;
}

/// Why requests got no turn.
#[doc(hidden)]
pub type NoTurn<A> = Refused<A, QueueKey>;

/// Requests that wait for their turn.
struct Turns<'g, S, A> {
    gate: &'g Gate<S>,
    of: &'g A,
}

impl<S: Store, A: Ask> Asker for Turns<'_, S, A> {
    type Key = QueueKey;
    type Answer = A::Answer;

    fn queues(&self) -> &WaitQueues<QueueKey> {
        &self.gate.queues
    }

    /// That of the next key, in policy order after the current one, that others wait for.
    fn queue_before(&self, current: Option<QueueKey>) -> Option<Place<QueueKey>> {
        if self.gate.queues.waiting() <= usize::from(current.is_some()) {
            return None;
        }
        let policies = self.gate.policies.load();
        let plan = policies.plan(self.of.requests(), self.of.verb());
        let denying = || plan.charges.iter().filter(|charge| charge.part.enforced && charge.part.cost > 0);
        let never_fits =
            |one: &Charge<'_>| one.part.excess == Excess::Refuse && one.part.cost > one.quota.capacity();
        if denying().any(never_fits) {
            // It is denied at once.
            return None;
        }
        let places: Vec<_> = denying()
            .filter_map(|charge| {
                let policy = policies.policy(charge.policy as usize);
                let key = QueueKey::new(charge.number, &charge.key);
                Some(Place {
                    key,
                    share: share(charge.part.cost, charge.quota),
                    within: self.within(policy)?,
                })
            })
            .collect();
        let after = places.iter().position(|place| Some(place.key) == current).map_or(0, |at| at + 1);
        places.into_iter().skip(after).find(|place| self.gate.queues.has(place.key))
    }

    async fn ask(&self, current: Option<QueueKey>) -> (A::Answer, AskOutcome<QueueKey>) {
        let answer = self.of.ask().await;
        let outcome = match A::decisions(&answer) {
            None => AskOutcome::Allowed(None),
            Some(decisions) if decisions.is_denied() => self.denial(decisions),
            Some(decisions) => AskOutcome::Allowed(current.and_then(|key| self.turn_after(decisions, key))),
        };
        (answer, outcome)
    }

    fn watch(&self, key: QueueKey, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        let policies = self.gate.policies.load();
        let plan = policies.plan(self.of.requests(), self.of.verb());
        let charge = plan.charges.iter().find(|one| QueueKey::new(one.number, &one.key) == key)?;
        self.gate.store.watch(charge, on_freed)
    }
}

impl<S: Store, A: Ask> Turns<'_, S, A> {
    /// The longest wait under a policy, if it has its own. `None`: no request waits for it.
    fn within(&self, policy: &Policy) -> Option<Option<Duration>> {
        match self.of.patience() {
            Patience::AtMost(_) => Some(None),
            Patience::OfPolicies(_) => policy.options().wait.map(Some),
        }
    }

    /// How to wait after a denial.
    fn denial(&self, decisions: &Decisions<'_>) -> AskOutcome<QueueKey> {
        let never = |why: String| AskOutcome::Never(Cause::NeverOfGate(why));
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
        let Some(within) = self.within(denied.policy()) else {
            return never(format!("policy `{name}` lets nobody wait"));
        };
        let place = denied.place();
        let turn = self.turn(&denied, wait, Some(place.share));
        AskOutcome::Denied(Denial { place: Place { within, ..place }, turn })
    }

    /// When the next request for a key gets its turn, after one took all that was left.
    fn turn_after(&self, decisions: &Decisions<'_>, key: QueueKey) -> Option<Turn> {
        let taken = decisions.iter().find(|one| one.decision().remaining == 0 && one.queue_key() == key)?;
        Some(self.turn(&taken, taken.decision().frees_after()?, None))
    }

    #[allow(clippy::cast_precision_loss)] // waits need no more digits
    fn turn(&self, of: &PolicyDecision<'_>, wait: Duration, share: Option<f64>) -> Turn {
        let (quota, is_held) = (of.quota(), of.decision().held() > 0);
        let window = quota.window();
        Turn {
            share,
            wait,
            is_held,
            window,
            frees_limit_in: match quota.algorithm() {
                Algorithm::FixedWindow => Duration::ZERO,
                // As it rounds up, a full key has one less in each window.
                Algorithm::SlidingWindow => window + window.div_f64((quota.limit() as f64 - 1.0).max(1.0)),
                _ => window,
            },
            is_even: quota.algorithm() == Algorithm::TokenBucket,
            ask_again: match (is_held, self.gate.store.as_local().is_some()) {
                (true, _) => Some(ASK_HELD),
                (false, false) => Some(ASK_SHARED),
                (false, true) => None,
            },
        }
    }
}

/// A cost as a share of what one window admits.
#[allow(clippy::cast_precision_loss)] // shares need no more digits
fn share(cost: u64, quota: &Quota) -> f64 {
    cost as f64 / quota.limit().max(1) as f64
}

impl PolicyDecision<'_> {
    fn queue_key(&self) -> QueueKey {
        let number = self.all_policies().numbered_place(self.policy().name()).map_or(0, |(number, _)| number);
        QueueKey::new(number, &self.key())
    }

    fn place(&self) -> Place<QueueKey> {
        #[allow(clippy::cast_precision_loss)] // shares need no more digits
        let share = self.asked().millionths() as f64 / 1e6 / self.quota().limit().max(1) as f64;
        Place { key: self.queue_key(), share, within: None }
    }
}

impl<S: Store> Gate<S> {
    /// Bounds how many callers may wait in [`acquire`](Self::acquire) and
    /// [`acquire_reservation`](Self::acquire_reservation).
    #[must_use]
    pub fn with_max_waiting(mut self, most: MaxWaiting) -> Self {
        self.queues = WaitQueues::of(most);
        self
    }

    /// How many callers wait for their turn now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues.waiting()
    }

    /// Waits until a [`check`](Self::check) of the request is allowed, up to a timeout. Callers in
    /// this process that wait for the same key of the same policy are served first come, first
    /// served.
    ///
    /// A request that several keys limit waits for one of them at a time: the one that denied it
    /// last. A dropped future leaves the queue and charges nothing; over a shared store, a check
    /// that is already sent may still be charged. Who cannot be served in time is denied at once, as far as the
    /// limit, the last answer and those who wait before show it.
    ///
    /// Capacity freed by a refund, a settlement, a reset or a new configuration is noticed at once, also if another
    /// process with the same shared store frees it; should its message be lost, within five seconds. A policy that [counts
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
    /// capacity in time. [`decide`](GateAcquire::decide) returns the denial instead.
    pub fn acquire<'g, 'r>(&'g self, request: &'r Request<'r>) -> GateAcquire<'g, 'r, S> {
        self.acquire_all(slice::from_ref(request), Patience::AtMost(TIMEOUT))
    }

    /// As [`acquire`](Self::acquire), for requests that are allowed together.
    #[doc(hidden)]
    pub fn acquire_all<'g, 'r>(
        &'g self,
        requests: &'r [Request<'r>],
        patience: Patience,
    ) -> GateAcquire<'g, 'r, S> {
        GateAcquire { gate: self, requests, patience }
    }

    /// Whether any policy [lets requests wait](Policy::with_wait).
    #[doc(hidden)]
    pub fn lets_wait(&self) -> bool {
        self.policies.load().iter().any(|policy| policy.options().wait.is_some())
    }

    /// Waits until these requests are allowed together.
    ///
    /// # Errors
    /// Why there is no turn: the last denial, or what [`behind`](Self::behind) explains.
    #[doc(hidden)]
    pub async fn take_turn<A: Ask>(&self, of: &A) -> Result<A::Answer, NoTurn<A::Answer>> {
        let (Patience::AtMost(within) | Patience::OfPolicies(within)) = of.patience();
        wait(&Turns { gate: self, of }, within).await
    }

    /// The decisions for requests that no turn came for while they were behind others.
    #[doc(hidden)]
    pub async fn behind<'r, A>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        no_turn: &NoTurn<A>,
    ) -> Decisions<'r> {
        let mut decisions = self.decide_async(Some(Verb::Peek), requests, None, false).await;
        let behind = |one: &PolicyDecision<'_>| Some(one.queue_key()) == no_turn.queue;
        let enforced = |one: &PolicyDecision<'_>| one.policy().options().enforced;
        let denied = |one: &PolicyDecision<'_>| enforced(one) && one.decision().is_denied();
        let find = |is: &dyn Fn(&PolicyDecision<'_>) -> bool| decisions.iter().position(|one| is(&one));
        let at = find(&behind).or_else(|| find(&denied)).or_else(|| find(&enforced));
        decisions.deny_behind(verb, at, &no_turn.cause);
        decisions
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
        self.acquire_reservation_of_all(slice::from_ref(request), Patience::AtMost(TIMEOUT))
    }

    /// As [`acquire_reservation`](Self::acquire_reservation), for requests that are allowed together.
    #[doc(hidden)]
    pub fn acquire_reservation_of_all<'g, 'r>(
        &'g self,
        requests: &'r [Request<'r>],
        patience: Patience,
    ) -> AcquireReservation<'g, 'r, S> {
        AcquireReservation { gate: self, requests, ttl_us: None, patience }
    }

    /// Reserves requests, which may be retried until they are admitted.
    #[doc(hidden)]
    pub async fn reserve_asking<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
        is_waiting: bool,
    ) -> Result<Reserved<'r>, Error> {
        let ttl_us = options.ttl.map(|ttl| ttl_us(ttl).map_err(Error::ticket)).transpose()?;
        let terms = HoldTerms { is_waiting, ..HoldTerms::new(ttl_us) };
        Ok(self.reserve_under(requests, terms, options.id).await)
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
    requests: &'r [Request<'r>],
    patience: Patience,
}

impl<S> GateAcquire<'_, '_, S> {
    /// Sets the longest wait, measured by tokio's clock from the first poll. Default: one minute.
    /// With zero, the call fails at once if it would have to wait; it does not overtake waiters.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.patience = Patience::AtMost(longest);
        self
    }
}

/// A future that waits until a reservation is allowed, created by [`Gate::acquire_reservation`].
#[must_use = "it waits only when it is awaited"]
pub struct AcquireReservation<'g, 'r, S> {
    gate: &'g Gate<S>,
    requests: &'r [Request<'r>],
    ttl_us: Option<u64>,
    patience: Patience,
}

impl<S> AcquireReservation<'_, '_, S> {
    /// Sets the longest wait, as [`GateAcquire::timeout`] does.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.patience = Patience::AtMost(longest);
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

impl<'r, S: Store> GateAcquire<'_, 'r, S> {
    /// As awaiting it, but answers with the denial if it is not admitted: with the wait that would have been
    /// necessary, and the reason [`QueueFull`](Reason::QueueFull) where too many wait.
    pub async fn decide(self) -> Decisions<'r> {
        match self.gate.take_turn(&self).await {
            Ok(decisions) | Err(NoTurn { answer: Some(decisions), .. }) => decisions,
            Err(no_turn) => self.gate.behind(Some(Verb::Check), self.requests, &no_turn).await,
        }
    }
}

impl<'r, S: HoldStore> AcquireReservation<'_, 'r, S> {
    /// As awaiting it, but answers with the denial if it is not admitted, as [`GateAcquire::decide`] does.
    pub async fn decide(self) -> Reserved<'r> {
        match self.gate.take_turn(&self).await {
            Ok(reserved) | Err(NoTurn { answer: Some(reserved), .. }) => reserved,
            Err(no_turn) => {
                Reserved::denied(self.gate.behind(Some(Verb::Check), self.requests, &no_turn).await)
            }
        }
    }
}

impl<'r, S: Store> Ask for GateAcquire<'_, 'r, S> {
    type Answer = Decisions<'r>;

    fn requests(&self) -> &[Request<'_>] {
        self.requests
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    async fn ask(&self) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Check), self.requests, None, true).await
    }

    fn decisions<'a>(answer: &'a Decisions<'r>) -> Option<&'a Decisions<'a>> {
        Some(answer)
    }
}

impl<'r, S: HoldStore> Ask for AcquireReservation<'_, 'r, S> {
    type Answer = Reserved<'r>;

    fn requests(&self) -> &[Request<'_>] {
        self.requests
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    async fn ask(&self) -> Reserved<'r> {
        let terms = HoldTerms { is_waiting: true, ..HoldTerms::new(self.ttl_us) };
        self.gate.reserve_under(self.requests, terms, None).await
    }

    fn decisions<'a>(answer: &'a Reserved<'r>) -> Option<&'a Decisions<'a>> {
        Some(answer.decisions())
    }
}

impl<'g, 'r: 'g, S: Store> IntoFuture for GateAcquire<'g, 'r, S> {
    type Output = Result<Decisions<'r>, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'g>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(
            async move { self.gate.take_turn(&self).await.map_err(|refused| NotAcquired(refused.cause)) },
        )
    }
}

impl<'g, 'r: 'g, S: HoldStore> IntoFuture for AcquireReservation<'g, 'r, S> {
    type Output = Result<Reserved<'r>, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'g>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(
            async move { self.gate.take_turn(&self).await.map_err(|refused| NotAcquired(refused.cause)) },
        )
    }
}

impl<S> fmt::Debug for GateAcquire<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateAcquire").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for AcquireReservation<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireReservation").field("patience", &self.patience).finish_non_exhaustive()
    }
}
