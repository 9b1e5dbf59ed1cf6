//! Random histories of reservations, beside a naive model: a list of charges and a list of holds.

use proptest::prelude::*;
use slidegate::{
    Algorithm,
    reserve::{Extension, HoldStatus, Unsettled},
};

use super::*;
use crate::oracle::model::Model;

/// What happens next. A ticket is named by how many were made after it.
#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Reserve(u64, u64),
    Check(u64),
    Penalize(u64),
    Settle(usize, u64),
    Part(usize, u64),
    Extend(usize, Option<u64>),
    Cancel(usize),
    Reset,
    Limit(u64),
    Window(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let advance = prop_oneof![0u64..50, 0u64..5_000, 0u64..300_000, (1u64..6).prop_map(|n| n * 10_000)];
    let ttl = prop_oneof![1_000u64..50_000, (1u64..9).prop_map(|n| n * 10_000)];
    let (ticket, cost) = (|| 0usize..4, || 0u64..25);
    prop_oneof![
        10 => advance.prop_map(Step::Advance),
        9 => (cost(), ttl).prop_map(|(cost, ttl)| Step::Reserve(cost, ttl)),
        4 => cost().prop_map(Step::Check),
        1 => cost().prop_map(Step::Penalize),
        5 => (ticket(), cost()).prop_map(|(at, cost)| Step::Settle(at, cost)),
        4 => (ticket(), cost()).prop_map(|(at, cost)| Step::Part(at, cost)),
        3 => (ticket(), proptest::option::of(cost())).prop_map(|(at, cost)| Step::Extend(at, cost)),
        1 => ticket().prop_map(Step::Cancel),
        1 => Just(Step::Reset),
        1 => (0u64..40).prop_map(Step::Limit),
        1 => (1_000u64..100_000).prop_map(Step::Window),
    ]
}

/// A hold in its simplest form.
#[derive(Debug, Clone)]
struct ModelHold {
    /// Which of the tickets.
    ticket: usize,
    until: u64,
    amount: u64,
    settled: u64,
}

impl ModelHold {
    fn held(&self) -> u64 {
        self.amount.saturating_sub(self.settled)
    }
}

#[derive(Debug, Clone)]
struct HeldModel {
    used: Model,
    holds: Vec<ModelHold>,
    unsettled: Unsettled,
    limit: u64,
}

impl HeldModel {
    /// Time passes, microsecond by microsecond as far as anything happens.
    fn settle(&mut self, now: u64) {
        self.holds.sort_by_key(|hold| (hold.until, hold.ticket));
        while self.holds.first().is_some_and(|hold| hold.until <= now) {
            let hold = self.holds.remove(0);
            self.used.settle(hold.until);
            if self.unsettled == Unsettled::Charge {
                self.used.penalize(hold.until, hold.held());
            }
        }
        self.used.settle(now);
    }

    fn held(&self) -> u64 {
        self.holds.iter().map(ModelHold::held).sum()
    }

    fn fits(&self, now: u64, cost: u64) -> bool {
        cost <= self.limit.saturating_sub(self.used.used_at(now) + self.held())
    }

    /// The first time at which at most `target` counts if each hold lasts to its end.
    fn wait(&self, now: u64, target: u64) -> u64 {
        let fits_at = |time: u64| {
            let mut later = self.clone();
            later.settle(time);
            later.used.used_at(time) + later.held() <= target
        };
        let (mut low, mut high) = (now, now + (1 << 40));
        while low < high {
            let middle = u64::midpoint(low, high);
            if fits_at(middle) { high = middle } else { low = middle + 1 }
        }
        low - now
    }
}

/// The amount and the last known end of a ticket's hold.
struct Made {
    ticket: Ticket,
    amount: u64,
    until: u64,
    ttl: u64,
    /// The total of settlements that arrived after its time.
    charged_late: u64,
}

struct History {
    bench: Bench,
    model: HeldModel,
    made: Vec<Made>,
    now: u64,
}

impl History {
    fn new(quota: Quota, unsettled: Unsettled) -> Self {
        let policy = Policy::new("tokens", quota).unwrap().with_unsettled(unsettled);
        let mut used = Model::new(&quota);
        used.settle(START.as_micros());
        Self {
            bench: Bench::new([policy]),
            model: HeldModel { used, holds: Vec::new(), unsettled, limit: quota.capacity() },
            made: Vec::new(),
            now: START.as_micros(),
        }
    }

    fn take(&mut self, step: &Step, quota: &mut Quota) {
        let now = self.now;
        match *step {
            Step::Advance(us) => {
                self.now += us;
                self.bench.clock.advance(micros(us));
                self.model.settle(self.now);
            }
            Step::Reserve(cost, ttl) => self.reserve(cost, ttl),
            Step::Check(cost) => {
                let request = Request::new().with_cost(cost);
                let fits = self.model.fits(now, cost) || cost == 0;
                assert_eq!(self.bench.gate.check(&request).is_allowed(), fits, "check {cost}");
                if fits {
                    self.model.used.penalize(now, cost);
                }
            }
            Step::Penalize(cost) => {
                let request = Request::new().with_cost(cost);
                let charged = self.bench.gate.penalize(&request).iter().next().unwrap().decision().cost();
                assert_eq!(charged, self.model.used.penalize(now, cost));
            }
            Step::Settle(at, cost) => self.settle(at, cost, false),
            Step::Part(at, cost) => self.settle(at, cost, true),
            Step::Extend(at, cost) => self.extend(at, cost),
            Step::Cancel(at) => {
                let Some(at) = self.made.len().checked_sub(at + 1) else { return };
                self.bench.gate.cancel(&self.made[at].ticket).unwrap();
                self.model.holds.retain(|hold| hold.ticket != at);
            }
            Step::Reset => {
                let request = Request::new();
                self.bench.gate.reset(&request).unwrap();
                self.model.holds.clear();
                // What was charged late is forgotten with all else.
                self.made.iter_mut().for_each(|made| made.charged_late = 0);
                self.model.used = Model::new(quota);
                self.model.settle(now);
            }
            Step::Limit(limit) => {
                *quota = Quota::new(limit, quota.window()).unwrap().with_algorithm(quota.algorithm());
                self.configure(quota);
            }
            Step::Window(us) => {
                *quota = Quota::new(quota.limit(), micros(us)).unwrap().with_algorithm(quota.algorithm());
                self.configure(quota);
            }
        }
        self.compare();
    }

    fn configure(&mut self, quota: &Quota) {
        let policy = Policy::new("tokens", *quota).unwrap().with_unsettled(self.model.unsettled);
        self.bench.gate.configure(PolicySet::new([policy]).unwrap()).unwrap();
        self.model.used.configure(quota);
        self.model.limit = quota.capacity();
        self.model.settle(self.now);
    }

    fn reserve(&mut self, cost: u64, ttl: u64) {
        let reserved = self.bench.try_reserve(cost, micros(ttl));
        let fits = cost == 0 || self.model.fits(self.now, cost);
        assert_eq!(reserved.is_ok(), fits, "reserve {cost}: {reserved:?}");
        match reserved {
            Ok(ticket) => {
                let until = self.now + ttl;
                if cost > 0 {
                    let ticket = self.made.len();
                    self.model.holds.push(ModelHold { ticket, until, amount: cost, settled: 0 });
                }
                self.made.push(Made { ticket, amount: cost, until, ttl, charged_late: 0 });
            }
            Err(None) => assert!(cost > self.model.limit),
            Err(Some(wait)) => self.compare_wait(wait, self.model.limit - cost),
        }
    }

    fn compare_wait(&self, wait: Duration, target: u64) {
        let expected = micros(self.model.wait(self.now, target));
        assert_eq!(wait, expected);
    }

    fn settle(&mut self, at: usize, cost: u64, is_part: bool) {
        let (now, Some(at)) = (self.now, self.made.len().checked_sub(at + 1)) else { return };
        let made = &mut self.made[at];
        if made.amount == 0 {
            return;
        }
        let is_over = now >= made.until;
        let settled = match is_part {
            true => self.bench.gate.settle_so_far(&made.ticket, cost).unwrap(),
            false => self.bench.gate.settle(&made.ticket, cost).unwrap(),
        };
        made.ticket = settled.ticket().clone();
        let Some(open) = self.model.holds.iter_mut().find(|hold| hold.ticket == at) else {
            let expected = if is_over { HoldStatus::Expired } else { HoldStatus::AlreadySettled };
            assert_eq!(settled.status(), expected, "settle {cost}");
            let known = if self.model.unsettled == Unsettled::Charge { made.amount } else { 0 };
            let late = if is_over { cost.saturating_sub(known.max(made.charged_late)) } else { 0 };
            assert_eq!(only(&settled).decision().cost(), self.model.used.penalize(now, late));
            if is_over {
                made.charged_late = made.charged_late.max(cost);
            }
            made.amount = made.amount.max(cost);
            return;
        };
        assert_eq!(settled.status(), HoldStatus::Changed);
        made.until = now + made.ttl;
        made.amount = made.amount.max(cost);
        let charged = cost.saturating_sub(open.settled);
        open.settled += charged;
        if is_part {
            open.until = now + made.ttl;
        } else {
            self.model.holds.retain(|hold| hold.ticket != at);
        }
        assert_eq!(only(&settled).decision().cost(), self.model.used.penalize(now, charged));
    }

    fn extend(&mut self, at: usize, cost: Option<u64>) {
        let (now, Some(at)) = (self.now, self.made.len().checked_sub(at + 1)) else { return };
        let made = &mut self.made[at];
        if made.amount == 0 {
            return;
        }
        let extended = match cost {
            Some(cost) => self.bench.gate.extend(&made.ticket, Extension::new().with_total(cost)).unwrap(),
            None => self.bench.gate.extend(&made.ticket, Extension::new()).unwrap(),
        };
        made.ticket = extended.ticket().clone();
        let Some(place) = self.model.holds.iter().position(|hold| hold.ticket == at) else {
            assert_ne!(extended.status(), HoldStatus::Changed);
            return;
        };
        let settled = self.model.holds[place].settled;
        let amount = cost.unwrap_or(self.model.holds[place].amount);
        let more = amount
            .saturating_sub(self.model.holds[place].settled)
            .saturating_sub(self.model.holds[place].held());
        if more > 0 && !self.model.fits(now, more) {
            assert_eq!(extended.status(), HoldStatus::Denied, "extend to {cost:?}");
            return;
        }
        assert_eq!(extended.status(), HoldStatus::Changed, "extend to {cost:?}");
        let hold = &mut self.model.holds[place];
        (hold.amount, hold.until) = (amount, now + made.ttl);
        made.until = now + made.ttl;
        if let Some(cost) = cost {
            made.amount = cost.max(settled);
        }
    }

    fn compare(&self) {
        let (used, held) = (self.model.used.used_at(self.now), self.model.held());
        let left = self.model.limit.saturating_sub(used).saturating_sub(held);
        assert_eq!(self.bench.usage(), (used, held, left));
        if let Some(wait) = self.bench.wait(self.model.limit.min(9)).filter(|wait| !wait.is_zero()) {
            self.compare_wait(wait, self.model.limit - self.model.limit.min(9));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is reserved, settled in any way, or never: what counts is what a list would say.
    #[test]
    fn holds_count_as_a_list_of_them_would(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        (limit, ms, forgets) in (1u64..40, 1u64..60, any::<bool>()),
        steps in proptest::collection::vec(step(), 0..100),
    ) {
        let mut quota = Quota::new(limit, Duration::from_millis(ms)).unwrap().with_algorithm(algorithm);
        let unsettled = if forgets { Unsettled::Forget } else { Unsettled::Charge };
        let mut history = History::new(quota, unsettled);
        for step in &steps {
            history.take(step, &mut quota);
        }
    }
}
