//! The store's side: one call settles the instance's lease, decides its requests, and grants a slice.

use std::collections::BTreeMap;

use slidegate::clock::Timestamp;
use slidegate::internal::{EndedHold, HeldKey, HoldChange, Holds, NewHold, State, VerbEffect, slice_of};
use slidegate::reserve::Unsettled;
use slidegate::verb::Verb;
use slidegate::{Algorithm, Quota};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) id: u64,
    pub(crate) want: u64,
    pub(crate) least: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    /// The id of a lease, and what was used of it.
    pub(crate) settle: Option<(u64, u64)>,
    pub(crate) costs: Vec<u64>,
    pub(crate) ask: Option<Ask>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) id: u64,
    pub(crate) amount: u64,
    pub(crate) length_us: u64,
}

/// The last denial of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) cost: u64,
    pub(crate) wait_us: u64,
    /// What leases hold: they may return it before the wait is over.
    pub(crate) held: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) at: u64,
    pub(crate) admitted: Vec<bool>,
    pub(crate) denied: Option<Denied>,
    pub(crate) grant: Option<Grant>,
}

pub(crate) trait Store {
    /// Charges the leases whose time is over.
    fn arrive(&mut self, now: u64);
    fn settle(&mut self, id: u64, used: u64);
    /// Charges the cost, or returns how long until it fits.
    fn check(&mut self, cost: u64) -> Result<(), u64>;
    fn room(&mut self) -> u64;
    /// Holds the amount for a lease. Returns how long it lasts.
    fn hold(&mut self, id: u64, amount: u64) -> u64;
    /// What open leases hold.
    fn held(&self) -> u64;
    fn reset(&mut self);

    fn call(&mut self, now: u64, call: &Call) -> Reply {
        self.arrive(now);
        if let Some((id, used)) = call.settle {
            self.settle(id, used);
        }
        let mut denied = None;
        let admitted = call.costs.iter().map(|&cost| match self.check(cost) {
            Ok(()) => true,
            Err(wait_us) => {
                denied = Some(Denied { cost, wait_us, held: self.held() });
                false
            }
        });
        let admitted = admitted.collect();
        let grant = call.ask.and_then(|Ask { id, want, least }| {
            let amount = slice_of(want, least, self.room());
            (amount > 0).then(|| Grant { id, amount, length_us: self.hold(id, amount) })
        });
        Reply { at: now, admitted, denied, grant }
    }
}

/// The state and holds of the library.
#[derive(Debug, Clone)]
pub(crate) struct CoreStore<S> {
    pub(crate) quota: Quota,
    pub(crate) lease_us: u64,
    now: u64,
    state: S,
    holds: Holds,
}

impl<S: State> CoreStore<S> {
    pub(crate) fn new(quota: Quota, lease_us: u64) -> Self {
        Self { quota, lease_us, now: 0, state: S::default(), holds: Holds::default() }
    }

    pub(crate) fn key(&mut self) -> HeldKey<'_, S> {
        let now = Timestamp::from_micros(self.now);
        HeldKey::settle(&mut self.state, &mut self.holds, &self.quota, now, now)
    }

    /// Used and held cost, as of this time.
    pub(crate) fn counts(&mut self, now: u64) -> (u64, u64) {
        self.arrive(now);
        let decision = self.key().decision(VerbEffect::Moved(0));
        (decision.used(), decision.held())
    }
}

impl<S: State> Store for CoreStore<S> {
    fn arrive(&mut self, now: u64) {
        self.now = now;
        self.key();
    }

    fn settle(&mut self, id: u64, used: u64) {
        let change = HoldChange::Settle { total: used, ttl_us: None };
        // A lease that has ended was charged in full: nothing is left to charge.
        let ended = EndedHold { amount: u64::MAX, is_over: true, unsettled: Unsettled::Charge };
        self.key().change(id, &change, &ended);
    }

    fn check(&mut self, cost: u64) -> Result<(), u64> {
        let mut key = self.key();
        match key.perform(Verb::Check, cost, None, usize::MAX) {
            VerbEffect::Moved(_) => Ok(()),
            refused => {
                Err(key.decision(refused).retry_after().map_or(u64::MAX, |wait| wait.as_micros() as u64))
            }
        }
    }

    fn room(&mut self) -> u64 {
        self.key().decision(VerbEffect::Moved(0)).remaining()
    }

    fn hold(&mut self, id: u64, amount: u64) -> u64 {
        let window = self.quota.window_us();
        // A lease that crossed a border would count in both windows.
        let ttl_us = match self.quota.algorithm() {
            Algorithm::FixedWindow => self.lease_us.min(window - 1 - self.now % window),
            _ => self.lease_us,
        };
        let new = NewHold { id, ttl_us, unsettled: Unsettled::Charge };
        self.key().perform(Verb::Check, amount, Some(&new), usize::MAX);
        ttl_us
    }

    fn held(&self) -> u64 {
        self.holds.sum()
    }

    fn reset(&mut self) {
        (self.state, self.holds) = Default::default();
    }
}

/// What a store may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Charges what a lease used as of its grant.
    StampedAtGrant,
    /// Charges the whole slice, and takes what is returned off the oldest charges.
    OldestReturned,
}

/// A log and its leases in a few lines, so that they can be wrong on purpose.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlainStore {
    limit: u64,
    window_us: u64,
    lease_us: u64,
    wrong: Option<Wrong>,
    now: u64,
    log: BTreeMap<u64, u64>,
    /// Id, amount, and time of the grant.
    leases: Vec<(u64, u64, u64)>,
}

impl PlainStore {
    pub(crate) fn new(quota: &Quota, lease_us: u64, wrong: Option<Wrong>) -> Self {
        Self { limit: quota.limit(), window_us: quota.window_us(), lease_us, wrong, ..Self::default() }
    }

    fn charge(&mut self, at: u64, cost: u64) {
        *self.log.entry(at).or_default() += cost;
    }

    fn end(&mut self, at: usize, used: u64, time: u64) {
        let (_, amount, granted) = self.leases.remove(at);
        match self.wrong {
            None => self.charge(time, used),
            Some(Wrong::StampedAtGrant) => self.charge(granted, used),
            Some(Wrong::OldestReturned) => {
                self.charge(time, amount);
                let mut rest = amount - used;
                for cost in self.log.values_mut() {
                    let taken = rest.min(*cost);
                    (*cost, rest) = (*cost - taken, rest - taken);
                }
            }
        }
    }

    fn used(&self) -> u64 {
        self.log.values().sum()
    }
}

impl Store for PlainStore {
    fn arrive(&mut self, now: u64) {
        self.now = now;
        while let Some(at) = self.leases.iter().position(|lease| lease.2 + self.lease_us <= now) {
            let (_, amount, granted) = self.leases[at];
            self.end(at, amount, granted + self.lease_us);
        }
        self.log.retain(|at, _| at + self.window_us > now);
    }

    fn settle(&mut self, id: u64, used: u64) {
        if let Some(at) = self.leases.iter().position(|lease| lease.0 == id) {
            self.end(at, used, self.now);
        }
    }

    fn check(&mut self, cost: u64) -> Result<(), u64> {
        let room = self.room();
        if cost <= room {
            self.charge(self.now, cost);
            return Ok(());
        }
        let ends = self.leases.iter().map(|lease| (lease.2 + self.lease_us, lease.1));
        let mut frees: Vec<_> = self.log.iter().map(|(at, cost)| (*at, *cost)).chain(ends).collect();
        frees.sort_unstable();
        let mut freed = room;
        let fits = frees.iter().find(|free| {
            freed += free.1;
            freed >= cost
        });
        Err(fits.map_or(u64::MAX, |free| free.0 + self.window_us - self.now))
    }

    fn room(&mut self) -> u64 {
        self.limit.saturating_sub(self.used() + self.held())
    }

    fn hold(&mut self, id: u64, amount: u64) -> u64 {
        self.leases.push((id, amount, self.now));
        self.lease_us
    }

    fn held(&self) -> u64 {
        self.leases.iter().map(|lease| lease.1).sum()
    }

    fn reset(&mut self) {
        self.log.clear();
        self.leases.clear();
    }
}
