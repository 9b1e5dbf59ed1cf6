//! Instances that lease slices of one key, as discrete events on a virtual clock.

use std::collections::BTreeMap;

use fastrand::Rng;
use slidegate::internal::{Demand, LEAST_REQUESTS, Slice, renewed_after_us, usable_us};

use crate::demand::Arrival;
use crate::store::{Ask, Call, Denied, Reply, Store};

/// A call that takes longer has failed for its instance.
const GIVES_UP_US: u64 = 50_000;
pub(crate) const NEWS_TAKE_AT_MOST_US: u64 = 5000;

#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions {
    pub(crate) instances: usize,
    /// The length of leases. Without, each request is asked for.
    pub(crate) lease_us: Option<u64>,
    /// Clocks run faster or slower by up to this many millionths.
    pub(crate) drift_ppm: i64,
    /// Calls in a thousand that take 5 to 60 ms instead of 0.25 ms.
    pub(crate) slow: u64,
    /// Calls in a thousand that are lost or late, or whose reply is.
    pub(crate) lost: u64,
    /// Crashes of an instance, one each so many microseconds.
    pub(crate) crash_every_us: Option<u64>,
    pub(crate) reset: Option<Reset>,
    /// The mistake that the controls must find.
    pub(crate) ends_from_reply: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reset {
    pub(crate) at: u64,
    pub(crate) is_heard: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: u64,
    /// When the slice was granted, if it was admitted from one.
    pub(crate) granted: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) admitted: Vec<Admitted>,
    pub(crate) calls: u64,
    /// What leases held when the key was reset.
    pub(crate) held_at_reset: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    who: usize,
    number: u64,
    /// By the clock of the instance.
    at: u64,
    /// How often the instance had heard of a reset.
    news: u64,
}

#[derive(Debug)]
enum Event {
    Arrives(Sent, Call, Fate),
    Replied(Sent, Call, Option<Reply>),
    RenewalDue(usize, u64),
    Crash(usize),
    Reset,
    Heard(usize),
}

/// How long until the reply after the call has arrived. `None`: the reply is lost.
type Fate = Option<u64>;

#[derive(Debug, Default)]
struct Instance {
    drift_ppm: i64,
    slice: Option<(Slice, u64)>,
    waiting: Vec<u64>,
    /// The number of the call that is under way.
    calling: Option<u64>,
    /// How long the last call took.
    way_us: u64,
    cost: u64,
    /// A cost that was denied, and until when that is remembered.
    denied: Option<(u64, u64)>,
    asks_from: u64,
    demand: Demand,
    news: u64,
}

impl Instance {
    /// The time by its clock, which began an hour before the store's.
    fn clock(&self, now: u64) -> u64 {
        3_600_000_000 + now.saturating_add_signed(now as i64 * self.drift_ppm / 1_000_000)
    }

    /// How long this many microseconds of its clock last.
    fn lasts(&self, us: u64) -> u64 {
        us.saturating_add_signed(-(us as i64) * self.drift_ppm / 1_000_000)
    }
}

pub(crate) struct Simulation<'s, S> {
    store: &'s mut S,
    conditions: Conditions,
    rng: Rng,
    instances: Vec<Instance>,
    events: BTreeMap<(u64, u64), Event>,
    /// Numbers events, calls and leases.
    next: u64,
    outcome: Outcome,
}

/// Runs the demand, and what follows from it.
pub(crate) fn run(demand: &[Arrival], store: &mut impl Store, conditions: &Conditions, seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let drift = conditions.drift_ppm;
    let instances = (0..conditions.instances).map(|_| {
        let drift_ppm = rng.i64(-drift..=drift);
        Instance { drift_ppm, ..Instance::default() }
    });
    let instances = instances.collect();
    let (conditions, outcome) = (conditions.clone(), Outcome::default());
    let mut run = Simulation { store, conditions, rng, instances, events: BTreeMap::new(), next: 1, outcome };
    run.schedule(demand);
    for arrival in demand {
        run.events_until(arrival.at);
        run.request(arrival);
    }
    run.events_until(u64::MAX);
    run.outcome
}

impl<S: Store> Simulation<'_, S> {
    fn schedule(&mut self, demand: &[Arrival]) {
        let end = demand.last().map_or(0, |last| last.at);
        if let Some(every) = self.conditions.crash_every_us {
            for at in (every..end).step_by(every as usize) {
                let who = self.rng.usize(..self.instances.len());
                self.at(at, Event::Crash(who));
            }
        }
        if let Some(Reset { at, is_heard }) = self.conditions.reset {
            self.at(at, Event::Reset);
            for who in 0..self.instances.len() {
                let heard = at + self.rng.u64(..NEWS_TAKE_AT_MOST_US);
                if is_heard {
                    self.at(heard, Event::Heard(who));
                }
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn at(&mut self, time: u64, event: Event) {
        let number = self.number();
        self.events.insert((time, number), event);
    }

    fn events_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((now, _), event) = entry.remove_entry();
            match event {
                Event::Arrives(sent, call, fate) => {
                    let reply = self.store.call(now, &call);
                    if let Some(way_us) = fate {
                        self.at(now + way_us, Event::Replied(sent, call, Some(reply)));
                    }
                }
                Event::Replied(sent, call, reply) => self.replied(now, sent, &call, reply),
                Event::RenewalDue(who, id) => {
                    if self.instances[who].slice.as_ref().is_some_and(|(slice, _)| slice.id == id) {
                        self.send(now, who);
                    }
                }
                Event::Crash(who) => {
                    let Instance { drift_ppm, news, .. } = self.instances[who];
                    self.instances[who] = Instance { drift_ppm, news, ..Instance::default() };
                }
                Event::Reset => {
                    self.outcome.held_at_reset = self.store.held();
                    self.store.reset();
                }
                Event::Heard(who) => {
                    self.instances[who].news += 1;
                    self.instances[who].slice = None;
                }
            }
        }
    }

    fn request(&mut self, &Arrival { at, who, cost }: &Arrival) {
        self.decide(at, who, cost);
        self.send_waiting(at, who);
    }

    /// Admits from the slice, denies what was denied lately, or lets the request wait for the next call.
    fn decide(&mut self, now: u64, who: usize, cost: u64) {
        let instance = &mut self.instances[who];
        let time = instance.clock(now);
        if let Some((slice, granted)) = &mut instance.slice
            && slice.take(cost, || time)
        {
            instance.demand.note(cost, time, 0, self.conditions.lease_us.unwrap_or(1));
            let granted = Some(*granted);
            self.outcome.admitted.push(Admitted { at: now, cost, granted });
        } else if instance.denied.is_none_or(|(denied, until)| cost < denied || time >= until) {
            instance.demand.note(cost, time, 0, self.conditions.lease_us.unwrap_or(1));
            instance.cost = instance.cost.max(cost);
            instance.waiting.push(cost);
        }
    }

    fn send_waiting(&mut self, now: u64, who: usize) {
        if !self.instances[who].waiting.is_empty() && self.instances[who].calling.is_none() {
            self.send(now, who);
        }
    }

    /// One call: settles the slice, asks for those who wait, and for a slice if that is expected to pay.
    fn send(&mut self, now: u64, who: usize) {
        let number = self.number();
        let instance = &mut self.instances[who];
        let at = instance.clock(now);
        let settle = instance.slice.take().map(|(slice, _)| (slice.id, slice.end()));
        let costs = std::mem::take(&mut instance.waiting);
        let is_idle = costs.is_empty() && settle.is_some_and(|(_, used)| used == 0);
        let ask = self.conditions.lease_us.filter(|_| !is_idle).and_then(|length_us| {
            let want = instance.demand.want(at, length_us);
            let least = LEAST_REQUESTS * instance.cost;
            let pays = want >= least && instance.way_us <= length_us / 4 && at >= instance.asks_from;
            pays.then_some(Ask { id: number, want, least })
        });
        instance.calling = Some(number);
        let sent = Sent { who, number, at, news: instance.news };
        self.outcome.calls += 1;
        let way_us =
            if self.rng.u64(..1000) < self.conditions.slow { self.rng.u64(5000..60_000) } else { 250 };
        let there_us = self.rng.u64(..=way_us);
        let call = Call { settle, costs, ask };
        self.at(now + GIVES_UP_US, Event::Replied(sent, call.clone(), None));
        let back_us = Some(way_us - there_us);
        if self.rng.u64(..1000) >= self.conditions.lost {
            self.at(now + there_us, Event::Arrives(sent, call, back_us));
        } else {
            match self.rng.u8(..3) {
                0 => {}
                1 => self.at(now + there_us, Event::Arrives(sent, call, None)),
                _ => {
                    let late_us = self.rng.u64(..4 * GIVES_UP_US);
                    self.at(now + late_us, Event::Arrives(sent, call, back_us));
                }
            }
        }
    }

    fn replied(&mut self, now: u64, sent: Sent, call: &Call, reply: Option<Reply>) {
        let Sent { who, number, .. } = sent;
        let instance = &mut self.instances[who];
        if instance.calling != Some(number) {
            return;
        }
        instance.calling = None;
        let time = instance.clock(now);
        instance.way_us = time - sent.at;
        // Without a reply, those who waited are denied: the fallback is not the subject here.
        if let Some(Reply { at, admitted, denied, grant }) = reply {
            let admitted = call.costs.iter().zip(admitted).filter(|(_, is_admitted)| *is_admitted);
            self.outcome.admitted.extend(admitted.map(|(cost, _)| Admitted {
                at,
                cost: *cost,
                granted: None,
            }));
            let lease_us = self.conditions.lease_us;
            if let Some(Denied { cost, wait_us, held }) = denied {
                // What leases hold may return sooner than the wait tells.
                let most_us = lease_us.filter(|_| held > 0).unwrap_or(u64::MAX);
                let remembered_us = wait_us.max(lease_us.unwrap_or(0) / 8).min(most_us);
                instance.denied = Some((cost, time.saturating_add(remembered_us)));
            }
            if call.ask.is_some() && grant.is_none() {
                instance.asks_from = time + lease_us.unwrap_or(0) / 8;
            }
            if let Some(grant) = grant.filter(|_| sent.news == instance.news) {
                let from = if self.conditions.ends_from_reply { time } else { sent.at };
                let slice = Slice::new(grant.id, grant.amount, from + usable_us(grant.length_us));
                instance.slice = Some((slice, at));
                let due_us = (from + renewed_after_us(grant.length_us)).saturating_sub(time);
                let due = now + instance.lasts(due_us);
                self.at(due, Event::RenewalDue(who, grant.id));
            }
        }
        for cost in std::mem::take(&mut self.instances[who].waiting) {
            self.decide(now, who, cost);
        }
        self.send_waiting(now, who);
    }
}
