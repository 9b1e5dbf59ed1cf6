//! The open reservations that this process made: their number, their held cost, and which expire.
//!
//! No store reports an expired hold: the next access to its key removes it. So this process tracks the
//! reservations it makes and drops those it settles. Shortly before a hold ends, it looks up several times
//! whether the hold is still open: another instance may have settled or extended it, or its key was reset. A
//! hold that was open at the last lookup and is not settled here until its end has expired.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::shares::Shares;
use slidegate::{
    Amount, DecisionSource, OwnedValue, PolicyDecision, PolicySet, Quota, Request, Value,
    clock::Timestamp,
    reserve::{HoldStatus, Reserved, Settlement, TicketHold, Unsettled},
    store::{KeyUse, OpenHold},
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::caller::Protocol;
use crate::record::Expired;

/// Locks, each for a part of the reservations.
const SHARDS: usize = 16;
/// Maximum reservations tracked per shard: about 0.5 kB for each key that holds cost. Policies share them.
/// Further ones count neither as open nor as expired.
const MAX_IN_SHARD: usize = 4096;
/// Maximum bytes of a key's attributes. A key with more is not tracked.
const MAX_ATTRIBUTES: usize = 1024;
/// Time of the first lookup before a hold ends, at most a quarter of the hold's time. A process that is late for
/// the next ones, because its machine is busy, takes the result of this one.
const FIRST: Duration = Duration::from_secs(2);
/// Within this time of its end, no further lookup follows.
const LAST: Duration = Duration::from_millis(250);
/// Maximum concurrent lookups.
const LOOKUPS: usize = 64;

/// Reservations that this process made and did not settle.
#[derive(Debug)]
pub(crate) struct OpenReservations {
    shards: [Mutex<Shard>; SHARDS],
    /// Reservations not tracked for lack of room.
    not_noted: AtomicU64,
    /// When the next item is due, in microseconds since `started`; an earlier one wakes the task.
    wake_us: AtomicU64,
    earlier: Notify,
    started: Instant,
}

/// Open reservations under a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OpenCost {
    pub(crate) reservations: u64,
    /// Sum of the held cost, in units, rounded up.
    pub(crate) held: u64,
}

#[derive(Debug)]
struct Shard {
    /// By ticket id.
    tickets: HashMap<u64, Vec<HoldEntry>>,
    /// Tracked reservations per policy.
    shares: Shares<PolicyNames>,
    /// Due times: each with the ticket and the hold's index in it.
    due: BTreeSet<(Instant, u64, usize)>,
}

/// The policies of a reservation.
type PolicyNames = Vec<Arc<str>>;

impl Default for Shard {
    fn default() -> Self {
        Self { tickets: HashMap::new(), shares: Shares::new(MAX_IN_SHARD), due: BTreeSet::new() }
    }
}

#[derive(Debug)]
struct HoldEntry {
    hold: HoldIdentity,
    /// `None` during the lookup and after the end.
    due: Option<Instant>,
    ends: Instant,
    held: u64,
    is_open: bool,
    /// The result of the last lookup shortly before the end.
    found: Option<StoredHold>,
}

#[derive(Debug, Clone)]
pub(super) struct HoldIdentity {
    policy: Arc<str>,
    key: Arc<str>,
    attributes: Arc<[(String, OwnedValue)]>,
    protocol: Protocol,
}

/// A hold as found in the store.
#[derive(Debug, Clone, Copy)]
struct StoredHold {
    until: Timestamp,
    unsettled: Unsettled,
    quota: Quota,
    limit: u64,
    used: Amount,
}

/// Something that is due.
#[derive(Debug)]
pub(super) enum Due {
    /// Look up whether the store still has the hold.
    LookUp(Place, HoldIdentity),
    /// It was not settled.
    Ended(Box<Expired>),
}

/// A hold's ticket and its index there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    id: u64,
    number: usize,
}

impl HoldIdentity {
    /// `None` if the key is too long.
    fn of(decision: &PolicyDecision<'_>, request: &Request<'_>, protocol: Protocol) -> Option<Self> {
        let policy = decision.policy();
        let mut attributes: Vec<(String, OwnedValue)> = Vec::new();
        let mut bytes = 0;
        for name in policy.attributes() {
            let Some(value) = request.value(name) else { continue };
            bytes += name.len() + if let Value::Bytes(text) = value { text.len() } else { 0 };
            if bytes > MAX_ATTRIBUTES {
                return None;
            }
            attributes.push((name.to_owned(), value.into()));
        }
        Some(Self {
            policy: policy.name().into(),
            key: decision.key().to_string().into(),
            attributes: attributes.into(),
            protocol,
        })
    }

    /// A request under the hold's policy, to look up its key.
    pub(super) fn request(&self) -> Request<'_> {
        let mut request = Request::new().under(&self.policy);
        request.extend(self.attributes.iter().map(|(name, value)| (name.as_str(), value.value())));
        request
    }
}

impl HoldEntry {
    fn new(hold: HoldIdentity, held: u64, now: Instant, lasts: Duration) -> Self {
        let mut noted = Self { hold, due: None, ends: now, held, is_open: true, found: None };
        noted.ends_in(now, lasts);
        noted
    }

    /// Sets its end and the time of the next lookup before that.
    fn ends_in(&mut self, now: Instant, lasts: Duration) {
        self.ends = now + lasts;
        self.found = None;
        self.due = Some(self.ends - FIRST.min(lasts / 4));
    }

    /// Records what the store has.
    fn found(&mut self, now: Instant, key: &KeyUse, hold: &OpenHold) {
        let lasts = hold.until - key.decision.at();
        self.held = hold.held;
        self.ends_in(now, lasts);
        if lasts <= LAST {
            self.due = Some(self.ends);
        }
        if lasts <= FIRST {
            self.found = Some(StoredHold {
                until: hold.until,
                unsettled: hold.unsettled,
                quota: key.quota,
                limit: key.decision.limit(),
                used: key.decision.amounts().used,
            });
        }
    }

    /// Marks it as ended.
    fn close(&mut self) {
        (self.is_open, self.due) = (false, None);
    }

    fn expired(&self) -> Option<Expired> {
        let StoredHold { until, unsettled, quota, limit, used } = self.found?;
        let cost = if unsettled == Unsettled::Charge { self.held } else { 0 };
        let HoldIdentity { policy, key, protocol, .. } = self.hold.clone();
        Some(Expired { policy, key, protocol, held: self.held, cost, until, quota, limit, used })
    }
}

fn policies_of(holds: &[HoldEntry]) -> PolicyNames {
    holds.iter().map(|one| Arc::clone(&one.hold.policy)).collect()
}

impl Shard {
    /// Replaces the tracked holds of a ticket. False if there is no room.
    fn add(&mut self, id: u64, holds: Vec<HoldEntry>) -> bool {
        self.remove(id);
        if !self.shares.take(&policies_of(&holds), 1) {
            return false;
        }
        self.due.extend(holds.iter().enumerate().filter_map(|(number, one)| Some((one.due?, id, number))));
        self.tickets.insert(id, holds);
        true
    }

    fn remove(&mut self, id: u64) {
        let Some(holds) = self.tickets.remove(&id) else { return };
        self.shares.give_back(&policies_of(&holds), 1);
        for (number, one) in holds.into_iter().enumerate() {
            if let Some(due) = one.due {
                self.due.remove(&(due, id, number));
            }
        }
    }

    /// Changes an open hold that is tracked, and its due time.
    fn change(
        &mut self,
        Place { id, number }: Place,
        change: impl FnOnce(&mut HoldEntry),
    ) -> Option<Instant> {
        let one = self.tickets.get_mut(&id)?.get_mut(number).filter(|one| one.is_open)?;
        let before = one.due;
        change(one);
        let after = one.due;
        let is_over = !one.is_open;
        if before != after {
            before.map(|due| self.due.remove(&(due, id, number)));
            after.map(|due| self.due.insert((due, id, number)));
        }
        if is_over && self.tickets[&id].iter().all(|one| !one.is_open) {
            self.remove(id);
        }
        after
    }

    /// Takes up to `most` due holds.
    fn take_due(&mut self, now: Instant, most: usize, taken: &mut Vec<Due>) {
        while taken.len() < most
            && let Some(&(due, id, number)) = self.due.first()
            && due <= now
        {
            let place = Place { id, number };
            self.change(place, |one| {
                one.due = None;
                if one.ends > now {
                    taken.push(Due::LookUp(place, one.hold.clone()));
                } else {
                    // Without a result this process was suspended, or the store was slow: nothing is known.
                    taken.extend(one.expired().map(|expired| Due::Ended(Box::new(expired))));
                    one.close();
                }
            });
        }
    }
}

impl Default for OpenReservations {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            not_noted: AtomicU64::new(0),
            wake_us: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
            started: Instant::now(),
        }
    }
}

impl OpenReservations {
    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        let at = usize::try_from(id % SHARDS as u64).expect("a small number");
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tracks a reservation, if the store holds its cost.
    pub(super) fn add(&self, reserved: &Reserved<'_>, requests: &[Request<'_>], protocol: Protocol) {
        let Some(ticket) = reserved.ticket() else { return };
        let now = Instant::now();
        let noted = |hold: TicketHold<'_>| {
            let decision = reserved.decisions().iter().find(|one| one.policy().name() == hold.policy)?;
            // The store does not have a fallback's holds.
            let is_stored = decision.decision().source() == DecisionSource::Store;
            let key =
                is_stored.then(|| HoldIdentity::of(&decision, &requests[decision.request()], protocol))??;
            Some(HoldEntry::new(key, hold.held, now, hold.until - decision.decision().at()))
        };
        let holds: Vec<HoldEntry> = ticket.holds().filter_map(noted).collect();
        let Some(due) = holds.iter().filter_map(|one| one.due).min() else { return };
        if self.shard(ticket.id()).add(ticket.id(), holds) {
            self.wake_at(due);
        } else {
            self.not_noted.fetch_add(1, SeqCst);
        }
    }

    /// Drops a reservation that was settled or cancelled here.
    pub(super) fn remove(&self, id: u64) {
        self.shard(id).remove(id);
    }

    /// Applies a partial settlement or an extension.
    pub(super) fn change(&self, settlement: &Settlement) {
        let (ticket, now) = (settlement.ticket(), Instant::now());
        let mut shard = self.shard(ticket.id());
        let Some(noted) = shard.tickets.get(&ticket.id()) else { return };
        let policies: Vec<Arc<str>> = noted.iter().map(|one| Arc::clone(&one.hold.policy)).collect();
        let mut due = None;
        for (number, policy) in policies.iter().enumerate() {
            let hold = ticket.holds().find(|hold| hold.policy == &**policy);
            let after = settlement.iter().find(|key| key.policy() == &**policy);
            let (Some(hold), Some(after)) = (hold, after) else { continue };
            if after.status() == HoldStatus::Changed {
                let changed = shard.change(Place { id: ticket.id(), number }, |one| {
                    one.held = hold.held;
                    one.ends_in(now, hold.until - after.decision().at());
                });
                due = due.into_iter().chain(changed).min();
            }
        }
        drop(shard);
        due.into_iter().for_each(|due| self.wake_at(due));
    }

    /// Reservations not tracked since the start, for lack of room.
    pub(crate) fn not_noted(&self) -> u64 {
        self.not_noted.load(SeqCst)
    }

    /// The redacted keys whose cost a ticket holds, with their policies. Empty if not tracked.
    pub(super) fn keys(&self, id: u64) -> Vec<(Arc<str>, Arc<str>)> {
        let shard = self.shard(id);
        let noted = shard.tickets.get(&id).into_iter().flatten();
        noted.map(|one| (Arc::clone(&one.hold.policy), Arc::clone(&one.hold.key))).collect()
    }

    /// Held cost by key, of one policy or of all.
    pub(crate) fn held(&self, policy: Option<&str>) -> HashMap<(Arc<str>, Arc<str>), u64> {
        let mut held = HashMap::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let open = shard.tickets.values().flatten().filter(|one| one.is_open);
            for one in open.filter(|one| policy.is_none_or(|policy| *one.hold.policy == *policy)) {
                let key = (Arc::clone(&one.hold.policy), Arc::clone(&one.hold.key));
                let sum: &mut u64 = held.entry(key).or_default();
                *sum = sum.saturating_add(one.held);
            }
        }
        held
    }

    /// Open reservations under each of these policies.
    pub(crate) fn costs(&self, policies: &PolicySet) -> HashMap<Arc<str>, OpenCost> {
        let mut costs: HashMap<Arc<str>, OpenCost> = HashMap::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for one in shard.tickets.values().flatten().filter(|one| one.is_open) {
                let cost = costs.entry(Arc::clone(&one.hold.policy)).or_default();
                cost.reservations += 1;
                cost.held = cost.held.saturating_add(one.held);
            }
        }
        for (policy, cost) in &mut costs {
            cost.held = policies
                .by_name(policy)
                .map_or(cost.held, |policy| policy.options().counts.amount(cost.held).ceil());
        }
        costs
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX)
    }

    fn wake_at(&self, due: Instant) {
        let due_us = self.micros(due);
        if self.wake_us.fetch_min(due_us, SeqCst) > due_us {
            self.earlier.notify_one();
        }
    }

    /// Waits until something may be due and takes it.
    pub(super) async fn next_due(&self) -> Vec<Due> {
        // An addition while the shards are read wakes this task.
        self.wake_us.store(u64::MAX, SeqCst);
        let (mut taken, mut next) = (Vec::new(), None);
        let now = Instant::now();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.take_due(now, LOOKUPS, &mut taken);
            next = next.into_iter().chain(shard.due.first().map(|(due, ..)| *due)).min();
        }
        if !taken.is_empty() {
            return taken;
        }
        match next {
            None => self.earlier.notified().await,
            Some(next) => {
                self.wake_us.fetch_min(self.micros(next), SeqCst);
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = self.earlier.notified() => {}
                }
            }
        }
        taken
    }

    /// Applies the result of a lookup: an open hold stays tracked.
    pub(super) fn looked_up(&self, place: Place, keys: &[KeyUse]) {
        let of_key = |key: &KeyUse| key.holds.iter().find(|hold| hold.id == place.id).copied();
        let found = keys.iter().find_map(|key| Some((key, of_key(key)?)));
        let now = Instant::now();
        let due = self.shard(place.id).change(place, |one| match found {
            // It was changed here meanwhile and is looked up again.
            _ if one.due.is_some() => {}
            // A lookup that came after the end says nothing.
            None if one.found.is_some() && one.ends <= now => one.due = Some(one.ends),
            None => one.close(),
            Some((key, hold)) => one.found(now, key, &hold),
        });
        due.into_iter().for_each(|due| self.wake_at(due));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(now: Instant, lasts: Duration) -> HoldEntry {
        noted_of("tokens", now, lasts)
    }

    fn noted_of(policy: &str, now: Instant, lasts: Duration) -> HoldEntry {
        let (policy, attributes) = (policy.into(), Arc::new([]));
        let hold = HoldIdentity { policy, key: "*".into(), attributes, protocol: Protocol::Http };
        HoldEntry::new(hold, 7, now, lasts)
    }

    /// Due items belong to open holds, and each open hold that is not being looked up is due.
    fn assert_consistent(shard: &Shard) {
        let due: BTreeSet<(Instant, u64, usize)> = shard
            .tickets
            .iter()
            .flat_map(|(id, holds)| {
                holds.iter().enumerate().filter_map(|(number, one)| Some((one.due?, *id, number)))
            })
            .collect();
        assert_eq!(shard.due, due);
        assert!(shard.tickets.values().flatten().all(|one| one.is_open || one.due.is_none()));
        assert!(shard.tickets.values().all(|holds| holds.iter().any(|one| one.is_open)));
    }

    /// The reporting task must neither miss a hold nor keep finding one that is gone.
    #[test]
    fn whatever_happens_to_holds_what_is_due_is_what_is_open() {
        let (mut shard, start) = (Shard::default(), Instant::now());
        let mut random = 88_172_645_463_325_252_u64;
        let mut below = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % most
        };
        let (mut looked_up, mut taken) = (0, Vec::new());
        for step in 0..20_000 {
            let now = start + Duration::from_millis(step * 10);
            let (id, number) = (below(50), usize::try_from(below(2)).unwrap());
            let lasts = Duration::from_millis(below(3_000));
            match below(5) {
                0 => assert!(shard.add(id, vec![noted(now, lasts), noted(now, lasts / 2)])),
                1 => shard.remove(id),
                2 => _ = shard.change(Place { id, number }, |one| one.ends_in(now, lasts)),
                3 => {
                    shard.change(Place { id, number }, |one| {
                        if one.due.is_none() {
                            one.close();
                        }
                    });
                }
                _ => {
                    shard.take_due(now, LOOKUPS, &mut taken);
                    assert!(shard.due.first().is_none_or(|(due, ..)| *due > now));
                    looked_up += taken.drain(..).filter(|due| matches!(due, Due::LookUp(..))).count();
                }
            }
            assert_consistent(&shard);
        }
        assert!(looked_up > 1_000, "{looked_up}");
    }

    /// A machine that was busy for a second at the wrong time must not hide what expired.
    #[test]
    fn a_process_that_is_late_takes_the_result_of_the_lookup_before() {
        let start = Instant::now();
        let known = StoredHold {
            until: Timestamp::from_micros(1),
            unsettled: Unsettled::Charge,
            quota: Quota::per_hour(10),
            limit: 10,
            used: Amount::from(7),
        };
        for (found, reported) in [(None, 0), (Some(known), 1)] {
            let (all, place) = (OpenReservations::default(), Place { id: 5, number: 0 });
            let mut late = noted(start, Duration::ZERO);
            (late.due, late.found) = (None, found);
            all.shard(5).add(5, vec![late]);
            all.looked_up(place, &[]);
            let mut taken = Vec::new();
            all.shard(5).take_due(Instant::now(), LOOKUPS, &mut taken);
            let reports = taken.iter().filter(|due| matches!(due, Due::Ended(_))).count();
            assert_eq!((reports, all.shard(5).tickets.len()), (reported, 0));
        }
    }

    /// Memory is bounded however many are never settled, and one policy leaves half of it to others.
    #[test]
    fn a_full_shard_takes_no_more_of_a_policy_but_knows_those_that_it_has() {
        let (mut shard, now) = (Shard::default(), Instant::now());
        let add = |shard: &mut Shard, policies: &[&str], id| {
            let hold = |policy: &&str| noted_of(policy, now, Duration::from_secs(1));
            shard.add(id, policies.iter().map(hold).collect())
        };
        let (attacked, half) = (["global", "attacked"], MAX_IN_SHARD as u64 / 2);
        for id in 0..half {
            assert!(add(&mut shard, &attacked, id));
        }
        assert!(!add(&mut shard, &attacked, half));
        for id in half..half + half / 2 {
            assert!(add(&mut shard, &["global", "other"], id));
        }
        assert!(!add(&mut shard, &attacked, u64::MAX));
        for id in 0..half {
            shard.remove(id);
        }
        assert!(add(&mut shard, &attacked, 5));
        assert!(add(&mut shard, &attacked, 5), "one that is noted may be noted again");
        assert_eq!(shard.shares.taken(), shard.tickets.len());
        assert_consistent(&shard);
    }
}
