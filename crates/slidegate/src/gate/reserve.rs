//! Reservations: cost is held until the true cost is known, then settled, extended or cancelled.

use std::hash::{DefaultHasher, Hasher};
use std::slice;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use super::blocks::blocked;
use super::change::Change;
use super::settlement::{ChangedKey, SettledCost, Settlement};
use super::{Decisions, Gate};
use crate::charge::{Charge, HoldTerms, MetQuota};
use crate::cost::Cost;
use crate::decision::{Decision, Verdict, Waits};
use crate::error::Error;
use crate::hold::{HoldChange, HoldOptions, HoldStatus, ttl_us};
use crate::policy::{OwnOfKey, PolicySet, SettledSample};
use crate::quota::{Algorithm, Quota};
use crate::request::Request;
use crate::store::{HeldCharge, HoldAnswer, HoldCall, HoldStore, StoreDecisions, at_once};
use crate::ticket::{Ticket, TicketKey, TicketPart, TicketPlace, TicketSecret};
use crate::verb::Verb;
use crate::waiting::queue_key::QueueKey;

/// The answer to a reservation: the decisions and, if they allow it, the ticket. Derefs to
/// [`Decisions`].
#[derive(Debug)]
#[must_use = "what is reserved is held until it is settled, and a denied request must not be served"]
pub struct Reserved<'r> {
    decisions: Decisions<'r>,
    ticket: Option<Ticket>,
}

impl<'r> Reserved<'r> {
    /// A reservation that was denied.
    #[doc(hidden)]
    pub fn denied(decisions: Decisions<'r>) -> Self {
        Self { decisions, ticket: None }
    }

    /// The decisions.
    pub fn decisions(&self) -> &Decisions<'r> {
        &self.decisions
    }

    /// The ticket, if the request is allowed.
    #[must_use]
    pub fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// The ticket, if the request is allowed.
    #[must_use]
    pub fn into_ticket(self) -> Option<Ticket> {
        self.ticket
    }

    /// The decisions and the ticket.
    #[must_use]
    pub fn into_parts(self) -> (Decisions<'r>, Option<Ticket>) {
        (self.decisions, self.ticket)
    }
}

/// The new amount and duration of a reservation's hold.
///
/// ```
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request, reserve::Extension};
/// use std::time::Duration;
///
/// let gate = Gate::new(PolicySet::new([Policy::new("tokens", Quota::per_minute(1000))?])?);
/// let ticket = gate.reserve(&Request::new().with_cost(200)).into_ticket().unwrap();
/// let more = Extension::new().with_total(500).with_ttl(Duration::from_secs(300))?;
/// assert_eq!(gate.extend(&ticket, more)?.iter().next().unwrap().decision().held(), 500);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Extension<'c> {
    pub(super) hold: Option<Cost<'c>>,
    pub(super) ttl_us: Option<u64>,
}

impl<'c> Extension<'c> {
    /// Keeps the amount and restarts the hold's time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the total to hold, including what is settled so far.
    #[must_use]
    pub fn with_total(self, cost: impl Into<Cost<'c>>) -> Self {
        Self { hold: Some(cost.into()), ..self }
    }

    /// The new total to hold, if it changes.
    #[must_use]
    pub fn total(&self) -> Option<&Cost<'c>> {
        self.hold.as_ref()
    }

    /// The new duration, if it changes.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_us.map(Duration::from_micros)
    }

    /// Sets the duration, 1 ms to 1 h from now, also for later extensions and partial settlements.
    /// It replaces the lease of permits.
    ///
    /// # Errors
    /// If the duration is out of range.
    pub fn with_ttl(self, ttl: Duration) -> Result<Self, Error> {
        Ok(Self { ttl_us: Some(ttl_us(ttl).map_err(Error::ticket)?), ..self })
    }
}

impl Ticket {
    /// Records the outcome of a change of a key.
    fn renew(&mut self, place: TicketPlace, change: &HoldChange, status: HoldStatus, after: &Decision) {
        let Some(TicketKey { mut amount, mut part, .. }) = self.key(place) else { return };
        let TicketPart::Held { until, ttl_us, settled, .. } = &mut part else { return };
        let is_changed = status == HoldStatus::Changed;
        match *change {
            HoldChange::Settle { total, .. } => {
                *settled = total.max(*settled);
                amount = total.max(amount);
            }
            HoldChange::Extend { total, ttl_us: asked } if is_changed => {
                amount = total.map_or(amount, |total| total.max(*settled));
                *ttl_us = asked;
            }
            _ => {}
        }
        if is_changed {
            *until = after.at + Duration::from_micros(*ttl_us);
        }
        self.set(place, amount, part);
    }
}

impl Gate {
    /// Reserves the request's cost. Decides like [`check`](Self::check), all policies or none, but
    /// holds the cost instead of charging it. A policy that [counts
    /// requests](crate::Counts::Requests) is charged at once. A denial charges and holds nothing.
    ///
    /// The hold lasts one minute; a permit of [`Quota::in_flight`](crate::Quota::in_flight) lasts
    /// as long as its lease. It counts in full until it is [settled](Self::settle) to the true
    /// cost.
    ///
    /// ```
    /// use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("requests", Quota::per_minute(60))?.with_scope(["user"]).with_counts(Counts::Requests),
    ///     Policy::new("tokens", Quota::per_minute(10_000))?.with_scope(["user"]),
    /// ])?);
    /// let request = Request::new().with("user", "alice").with_cost(4096); // the most that it can take
    /// let reserved = gate.reserve(&request);
    /// if reserved.decisions().is_denied() { /* 429 */ }
    /// let ticket = reserved.into_ticket().unwrap();
    /// // ... the request runs, and takes 512 ...
    /// let settled = gate.settle(&ticket, 512)?;
    /// assert_eq!(settled.iter().next().unwrap().decision().remaining(), 9488);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn reserve<'r>(&self, request: &'r Request<'r>) -> Reserved<'r> {
        at_once(self.reserve_under(slice::from_ref(request), HoldTerms::new(None), None))
    }

    /// Like [`reserve`](Self::reserve), with a time to live of 1 ms to 1 h, within which the
    /// request must be settled, settled in part, or extended.
    ///
    /// # Errors
    /// If the duration is out of range.
    pub fn reserve_for<'r>(&self, request: &'r Request<'r>, ttl: Duration) -> Result<Reserved<'r>, Error> {
        self.reserve_all(slice::from_ref(request), HoldOptions { ttl: Some(ttl), ..HoldOptions::default() })
    }

    /// Reserves several requests that belong together, such as the descriptors of a call: all or
    /// none, with one ticket. Settling it charges the cost once on every key, so requests that
    /// share a key hold the larger of their costs there, not the sum.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request, reserve::HoldOptions};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("per-user", Quota::per_minute(1000))?.with_scope(["user"]),
    ///     Policy::new("per-model", Quota::per_minute(5000))?.with_scope(["model"]),
    /// ])?);
    /// let requests = [
    ///     Request::new().with("user", "alice").with_cost(400),
    ///     Request::new().with("model", "small").with_cost(400),
    /// ];
    /// let ticket = gate.reserve_all(&requests, HoldOptions::default())?.into_ticket().unwrap();
    /// let settled = gate.settle(&ticket, 120)?;
    /// assert_eq!(settled.iter().map(|key| key.decision().used()).collect::<Vec<_>>(), [120, 120]);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the duration is out of range.
    pub fn reserve_all<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> Result<Reserved<'r>, Error> {
        at_once(self.reserve_with(requests, options))
    }

    /// Settles a reservation to its true cost, which may be less or more than was held, and ends
    /// it. Each policy counts `cost` from now on.
    ///
    /// A ticket that the store does not know charges nothing: its [status](Settlement::status) is
    /// [`HoldStatus::Unknown`].
    ///
    /// Safe to repeat: a settled hold is not charged again. A settlement after the hold's time
    /// charges what was not charged then.
    ///
    /// # Errors
    /// If the cost has a name that no policy counts and lacks the one that a policy
    /// [counts](crate::Counts::Named); nothing is settled. If a shared store did not reply, the
    /// reservation may or may not be settled, and repeating the call is safe.
    pub fn settle<'c>(&self, ticket: &Ticket, cost: impl Into<Cost<'c>>) -> Result<Settlement, Error> {
        at_once(self.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: true }))
    }

    /// Settles the cost so far and keeps holding the rest: `cost` is the total since the request
    /// began. Restarts the hold's time. Partial settlements may be repeated or arrive in any order;
    /// the largest counts. A permit of [`Quota::in_flight`](crate::Quota::in_flight) is kept until
    /// the last settlement.
    ///
    /// # Errors
    /// Same as [`settle`](Self::settle).
    pub fn settle_so_far<'c>(&self, ticket: &Ticket, cost: impl Into<Cost<'c>>) -> Result<Settlement, Error> {
        at_once(self.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: false }))
    }

    /// Restarts the time of a reservation: the heartbeat of a long request. An [`Extension`] may
    /// change the amount or the duration. A larger amount is decided like a check: if it does not
    /// fit under one policy, or a key of the reservation is
    /// [blocked](crate::Policy::with_block), nothing changes and the
    /// [status](Settlement::status) is [`HoldStatus::Denied`].
    ///
    /// # Errors
    /// Same as [`settle`](Self::settle).
    pub fn extend(&self, ticket: &Ticket, extension: Extension<'_>) -> Result<Settlement, Error> {
        let Extension { hold: cost, ttl_us } = extension;
        at_once(self.change_holds(ticket, Change::Extend { cost, ttl_us }))
    }

    /// Cancels a reservation whose request did not run: nothing more is charged, and what was
    /// charged at once is refunded while it counts. Has no effect after the last settlement.
    ///
    /// # Errors
    /// Same as [`settle`](Self::settle).
    pub fn cancel(&self, ticket: &Ticket) -> Result<Settlement, Error> {
        at_once(self.change_holds(ticket, Change::Cancel))
    }
}

impl<S: HoldStore> Gate<S> {
    /// Reserves requests that share one ticket.
    pub(super) async fn reserve_with<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
    ) -> Result<Reserved<'r>, Error> {
        self.reserve_asking(requests, options, false).await
    }

    pub(super) async fn reserve_under<'r>(
        &self,
        requests: &'r [Request<'r>],
        mut terms: HoldTerms,
        once: Option<&str>,
    ) -> Reserved<'r> {
        self.store.prepare_to_seal().await;
        let mut decisions = Decisions::new(self.policies.load(), requests, Some(Verb::Check));
        let policies = &decisions.policies;
        if let Some(once) = once {
            // Repeated calls have the same ticket.
            let charges = policies.plan_of_reservation(requests, &terms).charges;
            let id = id_once(once, &charges, &self.store.ticket_secret());
            drop(charges);
            terms.id = id;
        }
        let plan = policies.plan_of_reservation(requests, &terms);
        let StoreDecisions { decisions: decided, failure } = self.decide_charges(&plan.charges, once).await;
        let ticket = self.ticket(policies, &plan.charges, &decided, &terms);
        decisions.failure = failure;
        plan.place(&decided, &mut decisions.placed);
        drop(plan);
        let ticket = ticket.filter(|_| decisions.is_allowed());
        Reserved { decisions, ticket }
    }

    /// The ticket of an allowed reservation.
    fn ticket(
        &self,
        set: &PolicySet,
        charges: &[Charge<'_>],
        decisions: &[Decision],
        terms: &HoldTerms,
    ) -> Option<Ticket> {
        let made = decisions.first().map_or_else(|| self.store.wall_time(), Decision::at);
        let mut ticket = Ticket::new(terms.id, made);
        for (charge, decision) in charges.iter().zip(decisions) {
            let is_taken = charge.part.verb == Verb::Check && decision.is_allowed() && charge.part.cost > 0;
            let has_other_quota = set.counted_policy(charge.policy as usize).quota() != charge.quota;
            let held = HeldCharge { charge, decision, has_other_quota };
            let key = is_taken.then(|| self.store.key_for_ticket(&held)).flatten();
            let Some(key) = key else { continue };
            let part = match charge.new_hold() {
                None => TicketPart::Charged,
                Some(new) => TicketPart::Held {
                    unsettled: new.unsettled,
                    until: decision.at + Duration::from_micros(new.ttl_us),
                    ttl_us: new.ttl_us,
                    settled: 0,
                },
            };
            ticket.push(&TicketKey {
                policy: charge.policy_name(),
                key: &key,
                in_millionths: charge.in_millionths,
                amount: charge.part.cost,
                part,
            });
            ticket.push_queue(QueueKey::hash(&charge.key));
        }
        self.store.seal(&mut ticket);
        Some(ticket)
    }

    pub(super) async fn change_holds(
        &self,
        ticket: &Ticket,
        change: Change<'_>,
    ) -> Result<Settlement, Error> {
        if self.pending.keeps_another(ticket.id(), &change) {
            return Ok(Settlement::of_all(ticket, HoldStatus::AlreadySettled));
        }
        self.change_holds_now(ticket, change).await
    }

    /// Like [`change_holds`](Self::change_holds), and also for a reservation whose last change
    /// waits for the store.
    pub(super) async fn change_holds_now(
        &self,
        ticket: &Ticket,
        change: Change<'_>,
    ) -> Result<Settlement, Error> {
        let policies = self.policies.load();
        let set = &**policies;
        if let Change::Settle { cost, .. } | Change::Extend { cost: Some(cost), .. } = &change
            && let Some(error) =
                set.unknown_cost(cost, ticket.policies().filter_map(|name| set.by_name(name)))
        {
            return Err(error);
        }
        let has_holds = ticket.holds().next().is_some();
        let (mut changes, mut refunds) = (TicketKeyChanges::new(), TicketKeyChanges::new());
        let mut is_removed = false;
        let blocks = self.blocks_of_extension(ticket, set, &change);
        for (place, key) in ticket.keys() {
            // A policy removed since counts nothing any more, and a policy with another unit has
            // other keys.
            let counts_it =
                |(_, at): &(u32, usize)| set.policy(*at).options().counts.is_weighted() == key.in_millionths;
            let Some((number, at)) = set.numbered_place(key.policy).filter(counts_it) else {
                is_removed = true;
                continue;
            };
            let of_key = match blocks.is_empty() {
                true => change.of(&key, set.policy(at), has_holds),
                false => {
                    Some(HoldChange::Extend { total: key.is_held().then_some(Quota::MAX_COUNT), ttl_us: 0 })
                }
            };
            if let Some(change) = of_key {
                let of = if key.is_held() || !has_holds || !blocks.is_empty() {
                    &mut changes
                } else {
                    &mut refunds
                };
                let own = self.own_of(set, at, &key);
                of.push(TicketKeyChange { place, key, change, number, at, own });
            }
        }
        let none_is_left = is_removed && changes.is_empty() && refunds.is_empty();
        let changed = if none_is_left { None } else { self.change_enforced(ticket, set, changes).await? };
        let Some(mut changed) = changed else { return Ok(Settlement::of_all(ticket, HoldStatus::Unknown)) };
        if !blocks.is_empty() {
            deny_blocked(&mut changed, &blocks);
        }
        let mut settlement = Settlement::new(ticket);
        // What was charged at once is refunded only if the holds show that the reservation was
        // open.
        if !refunds.is_empty() && changed.iter().any(|(_, answer)| answer.status == HoldStatus::Changed) {
            changed.extend(self.change_keys(ticket, set, refunds).await?.into_iter().flatten());
            changed.sort_unstable_by_key(|(one, _)| one.place);
        }
        for (one, HoldAnswer { status, mut decision }) in changed {
            let TicketKeyChange { place, key, change, at, .. } = one;
            self.wake_after(ticket.queue(place), one.number, &change, status);
            let policy = set.policy(at);
            let last = match change {
                HoldChange::Settle { total: cost, ttl_us: None }
                    if status == HoldStatus::Changed && policy.quota().algorithm() != Algorithm::InFlight =>
                {
                    policy.learn(|| {
                        let mut hasher = DefaultHasher::new();
                        hasher.write(key.key);
                        SettledSample { key: hasher.finish(), cost, held: key.amount, limit: decision.limit }
                    });
                    Some(SettledCost {
                        held: policy.options().counts.amount(key.amount),
                        cost: policy.options().counts.amount(cost),
                    })
                }
                _ => None,
            };
            settlement.ticket.renew(place, &change, status, &decision);
            decision.in_millionths = policy.options().counts.is_weighted();
            let unit = policy.unit().filter(|_| policy.options().enforced);
            settlement.keys.push(ChangedKey { place, status, decision, unit, last });
        }
        self.store.seal(&mut settlement.ticket);
        Ok(settlement)
    }

    /// The configuration of a ticket's key.
    fn own_of<'s>(&self, set: &'s PolicySet, at: usize, key: &TicketKey<'_>) -> Option<&'s OwnOfKey> {
        set.own_of_ticket(at, |key| self.store.ids_in_tickets(key), || self.store.id_in_ticket(key.key))
    }

    /// The blocks that deny a change, with their remaining time: those of any key of the
    /// reservation, if the change holds more than before. Blocks never prevent settling, nor
    /// keeping what is held.
    fn blocks_of_extension(
        &self,
        ticket: &Ticket,
        set: &PolicySet,
        change: &Change<'_>,
    ) -> Vec<(TicketPlace, u64)> {
        let Change::Extend { cost: Some(cost), .. } = change else { return Vec::new() };
        let of_set = |(place, key): (TicketPlace, TicketKey<'_>)| {
            let (_, at) = set.numbered_place(key.policy)?;
            let asks = key.is_held() && cost.under(&set.policy(at).options().counts) > key.amount;
            let block = self.own_of(set, at, &key).and_then(|own| own.block.as_ref());
            Some((place, asks, block.filter(|_| set.policy(at).options().enforced)))
        };
        let keys: SmallVec<[_; 4]> = ticket.keys().filter_map(of_set).collect();
        if !keys.iter().any(|(_, asks, _)| *asks) || keys.iter().all(|(.., block)| block.is_none()) {
            return Vec::new();
        }
        let now = self.store.wall_time();
        keys.iter().filter_map(|(place, _, block)| Some((*place, block.as_ref()?.rest_us(now)?))).collect()
    }

    /// Changes keys of a ticket in one step. If only shadow policies deny an extension, their holds
    /// stay as they are.
    async fn change_enforced<'t>(
        &self,
        ticket: &Ticket,
        set: &'t PolicySet,
        mut changes: TicketKeyChanges<'t>,
    ) -> Result<Option<ChangedTicketKeys<'t>>, Error> {
        let changed = self.change_keys(ticket, set, changes.clone()).await?;
        let denies = |(one, answer): &&(TicketKeyChange<'_>, HoldAnswer)| {
            one.change.is_extension() && answer.status == HoldStatus::Denied && answer.decision.is_denied()
        };
        let denying: SmallVec<[_; 1]> =
            changed.iter().flatten().filter(denies).map(|(one, _)| (one.place, one.at)).collect();
        if denying.is_empty() || denying.iter().any(|(_, at)| set.policy(*at).options().enforced) {
            return Ok(changed);
        }
        for one in changes.iter_mut().filter(|one| denying.iter().any(|(place, _)| *place == one.place)) {
            if let HoldChange::Extend { total, .. } = &mut one.change {
                *total = None;
            }
        }
        self.change_keys(ticket, set, changes).await
    }

    /// Changes keys of a ticket in one step. `None` if the store does not know the ticket.
    async fn change_keys<'t>(
        &self,
        ticket: &Ticket,
        set: &'t PolicySet,
        changes: TicketKeyChanges<'t>,
    ) -> Result<Option<ChangedTicketKeys<'t>>, Error> {
        let quota_of = |one: &TicketKeyChange<'t>| {
            let (at, own) = (one.at, one.own);
            move |met: MetQuota| set.quota_now(at, own, met)
        };
        let quotas: SmallVec<[_; 1]> = changes.iter().map(quota_of).collect();
        let mut calls = SmallVec::<[_; 1]>::new();
        for (one, quota_of) in changes.iter().zip(&quotas) {
            let TicketKeyChange { key, change, number, .. } = *one;
            calls.push(HoldCall {
                number,
                key: key.key,
                id: ticket.id(),
                change,
                made: ticket.made(),
                part: key.part,
                amount: key.amount,
                quota_of,
                share_of: 1,
            });
        }
        let answers = self.store.change_holds(ticket, &calls).await?;
        Ok(answers.map(|answers| changes.into_iter().zip(answers).collect()))
    }
}

/// A change to one key of a ticket.
#[derive(Clone)]
struct TicketKeyChange<'t> {
    place: TicketPlace,
    key: TicketKey<'t>,
    change: HoldChange,
    /// The number of its policy, and its position in the set.
    number: u32,
    at: usize,
    /// Its configuration.
    own: Option<&'t OwnOfKey>,
}

/// Replaces a store's answers to an extension that blocks deny. A hold that is no longer open is
/// not denied.
fn deny_blocked(changed: &mut ChangedTicketKeys<'_>, blocks: &[(TicketPlace, u64)]) {
    let is_denied = |(_, answer): &(TicketKeyChange<'_>, HoldAnswer)| answer.status == HoldStatus::Denied;
    let is_open = changed.iter().any(is_denied);
    changed.retain(|(one, _)| {
        one.key.is_held() || is_open && blocks.iter().any(|(place, _)| *place == one.place)
    });
    for (one, answer) in changed {
        if one.key.is_held() && answer.status != HoldStatus::Denied {
            continue;
        }
        answer.status = HoldStatus::Denied;
        let waits = Waits { retry_us: 0, ..answer.decision.waits };
        let usage = Decision { verdict: Verdict::Allow, cost: 0, waits, ..answer.decision };
        let rest_us = blocks.iter().find(|(place, _)| *place == one.place);
        answer.decision = rest_us.map_or(usage, |(_, rest_us)| blocked(usage, *rest_us, true));
    }
}

type TicketKeyChanges<'t> = SmallVec<[TicketKeyChange<'t>; 1]>;
type ChangedTicketKeys<'t> = SmallVec<[(TicketKeyChange<'t>, HoldAnswer); 1]>;

/// The hold id of a reservation with this idempotency key: the same in every instance that shares
/// the secret, unpredictable without it, and different for other keys or costs.
fn id_once(once: &str, charges: &[Charge<'_>], secret: &TicketSecret) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret.key.expose());
    let mut write = |bytes: &[u8]| {
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
    };
    write(once.as_bytes());
    for charge in charges {
        write(charge.policy_name().as_bytes());
        write(&charge.key.canonical());
        write(&charge.part.cost.to_le_bytes());
    }
    hasher.finish()
}
