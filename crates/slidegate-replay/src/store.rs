//! The store of a replay: usage, and what is counted of each key, found by one identity.
//!
//! A log is decided by one thread in the order of time, so this store needs no shards, no clock and
//! no locks but one around all of it. Its decisions are those of every other store: it keeps
//! [`PlainKeyState`]s, and [`decide`] decides all or nothing. A random test compares it with the
//! memory store. Where policies reserve, a memory store decides, and only what is counted of each key
//! is here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::store::{
    Charge, HeldCharge, HoldAnswers, HoldCall, HoldStore, Local, PlainKeyState, Room, Store, StoreDecisions,
    TicketKeyBytes, TicketSecret, decide,
};
use slidegate::{
    Algorithm, Decision, Error, Key, ManualClock, MemoryStats, MemoryStore, Policy, PolicySet, Quota, Ticket,
    Timestamp, Verb,
};

use crate::identity::{self, Identity};

pub(crate) mod keys;
mod states;

use keys::{KeyRecord, KeyUsage, Keys, UNKNOWN_QUOTA};
use states::{StateOwner, States};

/// Holds the keys of one scenario.
#[derive(Debug)]
pub(crate) struct ReplayStore {
    usages: Mutex<Usages>,
    /// Counts instead of the states, where policies reserve: it can hold cost.
    holding: Option<MemoryStore>,
}

/// Everything in the store, while it is locked.
#[derive(Debug)]
pub(crate) struct Usages {
    /// In the order of the set, which is that of their numbers.
    policies: Vec<PolicyKeys>,
    states: States,
    now: Timestamp,
    /// The first time that was set; times of single charges count from it.
    first: Option<Timestamp>,
    /// The clock of the store that holds cost, if there is one.
    clock: Option<ManualClock>,
}

/// The keys of one policy.
#[derive(Debug)]
struct PolicyKeys {
    keys: Keys,
    algorithm: Algorithm,
    /// The policy's own quota, then those of its overrides.
    quotas: Vec<KnownQuota>,
}

/// A quota, and what is used when a key reaches each tenth of it.
#[derive(Debug)]
struct KnownQuota {
    quota: Quota,
    tenths: [u64; 11],
    /// How long a first charge of 1 counts at most, in microseconds; `None` if that is not known.
    single_life_us: Option<u64>,
}

/// How full a store is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayStoreStats {
    /// Keys that were dropped although they still counted.
    pub(crate) dropped: u64,
    pub(crate) max_keys: usize,
}

/// How many keys reached which share of their limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageDistribution {
    /// Keys that were never denied, by the tenth of the limit that their peak is in; the last are
    /// those that used exactly their limit.
    pub(crate) tenths: [u64; 11],
    /// Keys that were denied.
    pub(crate) denied: u64,
}

/// A key's room for a cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRoom {
    pub(crate) fits: bool,
    /// Cost that counts now.
    pub(crate) used: u64,
    /// Where it is among the denied ones; see [`KeyRecord::denied`].
    pub(crate) denied: u32,
}

impl ReplayStore {
    /// A store for the policies of a set, with usage of up to `max_keys` keys at once.
    pub(crate) fn new(policies: &PolicySet, max_keys: usize) -> Self {
        Self { usages: Mutex::new(Usages::new(policies, max_keys, None)), holding: None }
    }

    /// The same for policies that reserve.
    pub(crate) fn holding(policies: &PolicySet, max_keys: usize) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let holding = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
        let usages = Usages::new(policies, max_keys, Some(clock));
        Self { usages: Mutex::new(usages), holding: Some(holding) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Usages> {
        self.usages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides with the states.
    fn decide(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        let usages = &mut *self.lock();
        let found = usages.find_keys(charges);
        decide(charges, |at, verb, cost| usages.apply(&charges[at], found[at], verb, cost))
    }

    fn know_quotas(&self, charges: &[Charge<'_>]) {
        let usages = &mut *self.lock();
        let found = usages.find_keys(charges);
        charges.iter().zip(found).for_each(|(charge, at)| usages.know_quota(charge, at));
    }

    /// Runs what counts a decision on the record of its key, after noting how full the key is.
    pub(crate) fn record<T>(
        &self,
        policy: usize,
        key: &Key<'_>,
        used: u64,
        run: impl FnOnce(&mut KeyRecord) -> T,
    ) -> T {
        let usages = &mut *self.lock();
        usages.reserve_in(policy, 1);
        let at = usages.find(policy, identity::of_key(key));
        let PolicyKeys { keys, quotas, .. } = &mut usages.policies[policy];
        let record = keys.at(at);
        if let Some(quota) = quotas.get(record.quota as usize) {
            quota.note_peak(record, used);
        }
        run(record)
    }

    pub(crate) fn stats(&self) -> ReplayStoreStats {
        if let Some(holding) = &self.holding {
            let MemoryStats { dropped, max_keys, .. } = holding.stats();
            return ReplayStoreStats { dropped, max_keys };
        }
        let Usages { states, .. } = &*self.lock();
        ReplayStoreStats { dropped: states.dropped, max_keys: states.max_states() }
    }

    /// How many keys of a policy were seen, and whether there were more.
    pub(crate) fn keys(&self, policy: usize) -> (u64, bool) {
        self.lock().policies[policy].keys.count()
    }

    pub(crate) fn usage(&self, policy: usize) -> UsageDistribution {
        let mut usage = UsageDistribution::default();
        for record in self.lock().policies[policy].keys.counted() {
            if record.denied == keys::NOT_DENIED {
                usage.tenths[usize::from(record.peak_tenths)] += 1;
            } else {
                usage.denied += 1;
            }
        }
        usage
    }
}

impl Usages {
    fn new(policies: &PolicySet, max_keys: usize, clock: Option<ManualClock>) -> Self {
        let policies = policies.iter().map(PolicyKeys::new).collect();
        Self { policies, states: States::new(max_keys), now: Timestamp::EPOCH, first: None, clock }
    }

    /// Sets the time of what follows.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Timestamp) {
        self.now = now;
        if let Some(clock) = &self.clock {
            clock.set(now);
        }
        self.first.get_or_insert(now);
    }

    /// Microseconds since the first time.
    #[inline]
    fn after_us(&self) -> u64 {
        self.now.as_micros() - self.first.unwrap_or(self.now).as_micros()
    }

    /// Makes room for so many further keys of each policy. Positions change.
    pub(crate) fn reserve(&mut self, more: usize) {
        for policy in 0..self.policies.len() {
            self.reserve_in(policy, more);
        }
    }

    fn reserve_in(&mut self, policy: usize, more: usize) {
        let number = u32::try_from(policy).expect("a set has fewer policies");
        self.policies[policy].keys.reserve(more, number, &mut self.states);
    }

    /// Finds the positions of keys of one policy; [`NO_KEY`] for those without an identity.
    ///
    /// All homes are read first, so that the processor waits for many of them at a time.
    #[allow(clippy::cast_possible_truncation)] // fewer than 2^32 keys are in memory
    pub(crate) fn find_all(&mut self, policy: usize, ids: &[Identity], found: &mut Vec<u32>) {
        let keys = &mut self.policies[policy].keys;
        found.clear();
        let mut touched = 0;
        found.extend(ids.iter().map(|id| {
            let home = keys.home(*id);
            touched ^= keys.touch(home);
            home as u32
        }));
        std::hint::black_box(touched);
        for (home, id) in found.iter_mut().zip(ids) {
            *home = if *id == identity::NONE { NO_KEY } else { keys.find_or_add(*id, *home as usize) as u32 };
        }
    }

    /// What counts on a key, and whether a cost fits; `None` if its quota is not known yet.
    #[inline]
    pub(crate) fn room(&mut self, policy: usize, position: u32, cost: u64) -> Option<KeyRoom> {
        let after_us = self.after_us();
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[policy];
        let record = keys.at(position as usize);
        let known = quotas.get(record.quota as usize)?;
        let room = match record.usage() {
            KeyUsage::State(state) => self.states.at(state).state.room(&known.quota, cost, self.now),
            KeyUsage::Single(at_us) if known.may_count(at_us, after_us) => {
                let denied = record.denied;
                let Room { used, fits } = self.room_after_single(policy, position, cost);
                return Some(KeyRoom { fits, used, denied });
            }
            KeyUsage::Single(_) | KeyUsage::Nothing => {
                record.clear();
                Room { used: 0, fits: cost <= known.quota.capacity() }
            }
        };
        Some(KeyRoom { fits: room.fits, used: room.used, denied: record.denied })
    }

    /// The room of a key with a single charge that may count: it gets a state now.
    #[inline(never)]
    fn room_after_single(&mut self, policy: usize, position: u32, cost: u64) -> Room {
        let number = u32::try_from(policy).expect("a set has fewer policies");
        self.give_state(number, position as usize);
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[policy];
        let record = keys.at(position as usize);
        let KeyUsage::State(state) = record.usage() else { unreachable!("it was given a state") };
        self.states.at(state).state.room(&quotas[record.quota as usize].quota, cost, self.now)
    }

    /// Gives a key with a single charge a state with that charge.
    fn give_state(&mut self, policy: u32, record: usize) {
        let keys = &mut self.policies[policy as usize].keys;
        let KeyUsage::Single(at_us) = keys.at(record).usage() else { return };
        let owner = StateOwner { policy, record, quota: keys.at(record).quota };
        let at = self.first.unwrap_or(self.now) + Duration::from_micros(at_us);
        let slot = self.states.add(owner, &mut self.policies, self.now);
        slot.charge_first(&self.policies[policy as usize].quotas[owner.quota as usize].quota, 1, at);
    }

    /// Charges a cost that fits.
    #[inline]
    pub(crate) fn charge(&mut self, policy: usize, position: u32, cost: u64) {
        let (now, after_us) = (self.now, self.after_us());
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[policy];
        let record = keys.at(position as usize);
        let known = &quotas[record.quota as usize];
        match record.usage() {
            KeyUsage::State(state) => {
                let used = self.states.at(state).charge_again(&known.quota, cost, now);
                known.note_peak(record, used);
            }
            _ if cost == 1 && known.single_life_us.is_some() && record.set_single(after_us) => {
                known.note_peak(record, 1);
            }
            _ => self.charge_first(policy, position, cost),
        }
    }

    /// Charges a key of which nothing counts.
    #[inline(never)]
    fn charge_first(&mut self, policy: usize, position: u32, cost: u64) {
        // A cost of 0 changes nothing.
        if cost == 0 {
            return;
        }
        let number = u32::try_from(policy).expect("a set has fewer policies");
        let quota = self.policies[policy].keys.at(position as usize).quota;
        let owner = StateOwner { policy: number, record: position as usize, quota };
        let slot = self.states.add(owner, &mut self.policies, self.now);
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[policy];
        let known = &quotas[quota as usize];
        let used = slot.charge_first(&known.quota, cost, self.now);
        known.note_peak(keys.at(position as usize), used);
    }

    /// The record of a key.
    #[inline]
    pub(crate) fn record(&mut self, policy: usize, position: u32) -> &mut KeyRecord {
        self.policies[policy].keys.at(position as usize)
    }

    /// Notes how full a denied key is.
    #[inline]
    pub(crate) fn note_used(&mut self, policy: usize, position: u32, used: u64) {
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[policy];
        let record = keys.at(position as usize);
        quotas[record.quota as usize].note_peak(record, used);
    }

    /// The positions of the keys of charges.
    fn find_keys(&mut self, charges: &[Charge<'_>]) -> Vec<usize> {
        self.reserve(charges.len());
        let find =
            |charge: &Charge<'_>| self.find(charge.policy_number() as usize, identity::of_key(charge.key()));
        charges.iter().map(find).collect()
    }

    fn find(&mut self, policy: usize, id: Identity) -> usize {
        let keys = &mut self.policies[policy].keys;
        let home = keys.home(id);
        keys.find_or_add(id, home)
    }

    /// Finds the quota of a key, if it is not known yet.
    fn know_quota(&mut self, charge: &Charge<'_>, at: usize) {
        let PolicyKeys { keys, quotas, .. } = &mut self.policies[charge.policy_number() as usize];
        let record = keys.at(at);
        if record.quota == UNKNOWN_QUOTA {
            record.quota = position_of(quotas, charge.quota());
        }
    }

    /// Carries out a verb on the key of a charge.
    fn apply(&mut self, charge: &Charge<'_>, at: usize, verb: Verb, cost: u64) -> Decision {
        let (number, now) = (charge.policy_number(), self.now);
        self.give_state(number, at);
        self.know_quota(charge, at);
        let PolicyKeys { keys, quotas, algorithm } = &mut self.policies[number as usize];
        let record = keys.at(at);
        let quota = &quotas[record.quota as usize].quota;
        if let KeyUsage::State(state) = record.usage() {
            return self.states.at(state).apply(quota, verb, cost, now);
        }
        let decision = PlainKeyState::new(*algorithm).apply(quota, verb, cost, now);
        if decision.used() > 0 {
            let owner = StateOwner { policy: number, record: at, quota: record.quota };
            let slot = self.states.add(owner, &mut self.policies, now);
            let quota = &self.policies[number as usize].quotas[owner.quota as usize].quota;
            return slot.apply_first(quota, verb, cost, now);
        }
        decision
    }
}

/// No key: the policy does not apply.
pub(crate) const NO_KEY: u32 = u32::MAX;

fn position_of(quotas: &[KnownQuota], quota: &Quota) -> u32 {
    let at = quotas.iter().position(|known| known.quota == *quota);
    at.and_then(|at| u32::try_from(at).ok()).expect("the quota of a charge is one of its policy")
}

impl PolicyKeys {
    fn new(policy: &Policy) -> Self {
        let mut quotas: Vec<KnownQuota> = Vec::new();
        for quota in policy.quotas() {
            if !quotas.iter().any(|known| known.quota == *quota) {
                quotas.push(KnownQuota::new(*quota));
            }
        }
        // Which keys have an override is known when they are decided in the ordinary way.
        let first_quota = if policy.override_count() == 0 { 0 } else { UNKNOWN_QUOTA };
        Self { keys: Keys::new(first_quota), algorithm: policy.quota().algorithm(), quotas }
    }
}

impl KnownQuota {
    fn new(quota: Quota) -> Self {
        let capacity = quota.capacity();
        let tenth = |n: u64| (u128::from(capacity) * u128::from(n)).div_ceil(10);
        let mut tenths = [0; 11];
        for (reached, n) in tenths.iter_mut().zip(0..) {
            // Nothing used is no share of any limit.
            *reached = u64::try_from(tenth(n)).unwrap_or(capacity).max(1);
        }
        let life = PlainKeyState::longest_life(&quota);
        let single_life_us = life.and_then(|life| u64::try_from(life.as_micros()).ok());
        Self { quota, tenths, single_life_us }
    }

    /// Whether a single charge may still count, so long after it.
    #[inline]
    fn may_count(&self, at_us: u64, now_us: u64) -> bool {
        self.single_life_us.is_none_or(|life_us| now_us < at_us + life_us)
    }

    /// Raises a key's peak if this much is used.
    #[inline]
    fn note_peak(&self, record: &mut KeyRecord, used: u64) {
        while let Some(next) = self.tenths.get(usize::from(record.peak_tenths) + 1)
            && used >= *next
        {
            record.peak_tenths += 1;
        }
    }
}

impl Store for ReplayStore {
    type Mode = Local;

    async fn apply(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        match &self.holding {
            None => self.decide(charges),
            Some(holding) => {
                self.know_quotas(charges);
                Store::apply(holding, charges).await
            }
        }
    }

    /// A log has no repeated calls: each line is one.
    async fn check_once(&self, charges: &[Charge<'_>], _id: &str) -> StoreDecisions {
        self.apply(charges).await
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, Error> {
        if let Some(holding) = &self.holding {
            return Store::reset(holding, charges).await;
        }
        let usages = &mut *self.lock();
        let mut had_usage = false;
        for charge in charges {
            usages.reserve(1);
            let at = usages.find(charge.policy_number() as usize, identity::of_key(charge.key()));
            had_usage |= usages.apply(charge, at, Verb::Peek, 0).used() > 0;
            let usage = usages.policies[charge.policy_number() as usize].keys.at(at).usage();
            if let KeyUsage::State(state) = usage {
                usages.states.forget(state as usize, &mut usages.policies);
            }
        }
        Ok(had_usage)
    }

    fn wall_time(&self) -> Timestamp {
        self.lock().now
    }
}

/// Only a store that was made for policies that reserve is asked to hold cost.
impl HoldStore for ReplayStore {
    fn key_for_ticket(&self, charge: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        self.holding.as_ref()?.key_for_ticket(charge)
    }

    fn seal(&self, ticket: &mut Ticket) {
        if let Some(holding) = &self.holding {
            holding.seal(ticket);
        }
    }

    fn ticket_secret(&self) -> TicketSecret {
        self.holding.as_ref().map_or_else(|| MemoryStore::new().ticket_secret(), HoldStore::ticket_secret)
    }

    async fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> Result<Option<HoldAnswers>, Error> {
        match &self.holding {
            Some(holding) => HoldStore::change_holds(holding, ticket, changes).await,
            None => Ok(None),
        }
    }
}
