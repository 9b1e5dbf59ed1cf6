//! Holds: reserve, settle, extend and cancel, and limits on what is in flight.

mod cases;
mod edges;
mod guard;
mod histories;
mod in_flight;
mod one_state;
mod shares;

use std::time::Duration;

use slidegate::{
    Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    reserve::{SettledKey, Settlement, Ticket},
};

/// Windows of 60 s begin here.
const START: Timestamp = Timestamp::from_secs(1_000_000_020);

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A gate on a clock that moves only when a case says so.
struct Bench {
    gate: Gate,
    clock: ManualClock,
}

impl Bench {
    fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        let clock = ManualClock::at(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let set = PolicySet::new(policies).unwrap();
        Self { gate: Gate::with_memory(set, store), clock }
    }

    /// One policy for all requests.
    fn under(quota: Quota) -> Self {
        Self::new([Policy::new("tokens", quota).unwrap()])
    }

    /// Moves the clock to this time after the start.
    fn at(&self, time: Duration) {
        self.clock.set(START + time);
    }

    fn try_reserve(&self, cost: u64, ttl: Duration) -> Result<Ticket, Option<Duration>> {
        let request = Request::new().with_cost(cost);
        let reserved = self.gate.reserve_for(&request, ttl).unwrap();
        let wait = reserved.decisions().strictest().unwrap().decision().retry_after();
        reserved.into_ticket().ok_or(wait)
    }

    fn reserve(&self, cost: u64, ttl: Duration) -> Ticket {
        self.try_reserve(cost, ttl).unwrap()
    }

    /// What is used, held and remains of the first policy.
    fn usage(&self) -> (u64, u64, u64) {
        let request = Request::new();
        let decisions = self.gate.peek(&request);
        let first = decisions.iter().next().unwrap();
        (first.decision().used(), first.decision().held(), first.decision().remaining())
    }

    /// The wait until a cost fits.
    fn wait(&self, cost: u64) -> Option<Duration> {
        let request = Request::new().with_cost(cost);
        self.gate.peek(&request).iter().next().unwrap().decision().retry_after()
    }

    fn settle(&self, ticket: &Ticket, cost: u64) -> Settlement {
        self.gate.settle(ticket, cost).unwrap()
    }
}

fn only(settlement: &Settlement) -> SettledKey<'_> {
    settlement.iter().next().unwrap()
}
