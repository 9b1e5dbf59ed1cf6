//! Leases: slices of hot keys' limits from which this process admits without a call.
//!
//! `slidegate::lease` has the rule, `docs/leases.md` the argument. A key that is checked often asks for a lease along
//! with its next call, and settles the one it had in the same call; while that is in flight, it has none. A lease that
//! was used is renewed before its end, one that was not is settled. All of a lease that nobody
//! settles is charged at its end, so whatever is lost here costs room and admits nothing.
//!
//! Leases are taken only while news are heard of keys that other instances reset; what was not heard lasts at most as
//! long as the leases that are open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::clock::{Clock, Timestamp};
use slidegate::internal::{
    Demand, HashSeed, LEAST_REQUESTS, SetTable, Slice, Waits, holder_of, renewed_after_us, usable_us,
};
use slidegate::store::{Charge, LeaseStats};
use slidegate::{Decision, DecisionSource, Excess, Quota, verb::Verb};
use smallvec::SmallVec;

use crate::call::{Answers, LeaseTerms, Subject, Subjects};
use crate::names::Names;
use crate::reply::Grant;
use counters::{Counters, CountersByPolicy, policy_of};

mod counters;

/// Sets of the table, with eight keys each: at most 4,096 keys are leased.
const SETS: usize = 512;

/// The keys that are checked often, and their leases.
#[derive(Debug)]
pub(crate) struct Leases {
    keys: SetTable<u128, LeasedKey, SETS>,
    /// Random, so that clients cannot choose the set of a key.
    secret: HashSeed,
    /// Before the number in the ids of leases: the hash of this instance.
    holder: u64,
    next: AtomicU64,
    /// How many leases there are.
    open: AtomicU64,
    /// How many calls are in flight that settle a lease or ask for one.
    in_flight: AtomicU64,
    /// How often leases were ended by news.
    ended: AtomicU64,
    clock: Box<dyn Clock>,
    /// Set when the process ends: no lease is taken any more.
    is_closed: AtomicBool,
    counters: CountersByPolicy,
}

/// What is known of a key.
#[derive(Debug, Default)]
struct LeasedKey {
    demand: Demand,
    /// The largest cost of a request in its last call.
    cost: u64,
    lease: Option<Box<Lease>>,
    /// Whether a call asks for a lease.
    is_asking: bool,
    /// Before that it does not ask again.
    asks_after_us: u64,
}

/// A lease that this process holds.
#[derive(Debug)]
struct Lease {
    slice: Slice,
    subject: Subject,
    /// The key when it was granted.
    granted: Decision,
    granted_us: u64,
    /// Its end by the server's clock: what is settled later is charged in full.
    ends_us: u64,
    /// Whether others may know better by now: it is settled by the next call, or runs out.
    is_ended: bool,
    counters: Arc<Counters>,
}

/// A cost that was taken from a lease.
#[derive(Debug)]
struct Taken {
    key: u128,
    id: u64,
    cost: u64,
    counters: Arc<Counters>,
}

/// A lease that a call settles.
struct Settled {
    ends_us: u64,
    counters: Arc<Counters>,
}

/// What a call does with leases.
pub(crate) struct Asked<'l> {
    leases: &'l Leases,
    /// By subject. Empty if the call has none.
    pub(crate) terms: SmallVec<[Option<LeaseTerms>; 2]>,
    /// By subject.
    keys: SmallVec<[u128; 2]>,
    /// Those that it settles, if it arrives in time.
    settled: SmallVec<[Settled; 1]>,
    /// How often leases had been ended by news.
    ended: u64,
}

impl Leases {
    /// With a clock that goes on while the machine is suspended: a lease ends meanwhile.
    pub(crate) fn new(instance: &str, clock: impl Clock + 'static) -> Self {
        Self {
            keys: SetTable::default(),
            secret: HashSeed::random(),
            holder: u64::from(holder_of(instance)) << 32,
            next: AtomicU64::new(fastrand::u64(..)),
            open: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            clock: Box::new(clock),
            is_closed: AtomicBool::new(false),
            counters: CountersByPolicy::default(),
        }
    }

    /// Admits a request if it consists of checks that are decided each by its own key, and if leases have room for all:
    /// what a call decides is not taken from leases meanwhile, because a denial could not return it to one that was
    /// settled.
    pub(crate) fn admit(&self, charges: &[Charge<'_>], names: &Names, decided: &mut Answers) -> bool {
        let is_leased = |charge: &Charge<'_>| charge.key.space.lease.is_some() && is_leasable(charge);
        if self.open.load(Ordering::Relaxed) == 0 || charges.is_empty() || !charges.iter().all(is_leased) {
            return false;
        }
        let key = |charge: &Charge<'_>| self.secret.hash_of(&names.name(&charge.key));
        self.take_all(charges.iter().map(|charge| (key(charge), charge.quota, charge.part.cost)), decided)
    }

    /// Admits a check that has waited for a call, if that has brought leases of all of its keys.
    pub(crate) fn admit_waiting(&self, subjects: &Subjects, cost: u64) -> Option<Answers> {
        if self.open.load(Ordering::Relaxed) == 0 || !subjects.0.iter().all(Subject::is_leasable) {
            return None;
        }
        let key = |subject: &Subject| self.secret.hash_of(&subject.name);
        let costs = subjects.0.iter().map(|subject| (key(subject), &subject.quota, subject.part(cost).cost));
        let mut answers = Answers::new();
        self.take_all(costs, &mut answers).then_some(answers)
    }

    /// Takes each cost from the lease of its key and appends the decisions, or does nothing.
    fn take_all<'q>(
        &self,
        costs: impl Iterator<Item = (u128, &'q Quota, u64)>,
        decided: &mut Answers,
    ) -> bool {
        let (mut taken, before) = (SmallVec::<[Taken; 2]>::new(), decided.len());
        for (key, quota, cost) in costs {
            let Some((one, decision)) = self.take(key, quota, cost) else {
                self.put_back(&taken);
                decided.truncate(before);
                return false;
            };
            taken.push(one);
            decided.push(decision);
        }
        // Not before: counters only grow.
        for Taken { counters, .. } in &taken {
            counters.admitted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Returns what was taken to its leases. What a lease that has ended meanwhile was settled to includes it.
    fn put_back(&self, taken: &[Taken]) {
        for Taken { key, id, cost, .. } in taken {
            if let Some(known) = self.keys.set(lowest_bits(*key)).get_mut(*key)
                && let Some(lease) = known.lease.as_mut().filter(|lease| lease.slice.id == *id)
            {
                lease.slice.put_back(*cost);
            }
        }
    }

    fn take(&self, key: u128, quota: &Quota, cost: u64) -> Option<(Taken, Decision)> {
        let mut set = self.keys.set(lowest_bits(key));
        let lease = set.get_mut(key)?.lease.as_mut()?;
        if lease.is_ended || cost == 0 || lease.subject.quota != *quota {
            return None;
        }
        let mut now_us = 0;
        let is_admitted = lease.slice.take(cost, || {
            now_us = self.now().as_micros();
            now_us
        });
        is_admitted.then(|| {
            let counters = Arc::clone(&lease.counters);
            (Taken { key, id: lease.slice.id, cost, counters }, lease.decision(cost, now_us))
        })
    }

    /// What a call does with the leases of its keys: it settles those that this process has, and asks for those that
    /// would pay.
    pub(crate) fn ask(&self, subjects: &Subjects, costs: &[u64], is_heard: bool) -> Asked<'_> {
        let ended = self.ended.load(Ordering::SeqCst);
        let (terms, keys, settled) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        let mut asked = Asked { leases: self, terms, keys, settled, ended };
        let is_leased = |subject: &Subject| subject.lease_us > 0 && subject.part.verb != Verb::Peek;
        if !subjects.0.iter().any(is_leased) {
            return asked;
        }
        // Before it is asked whether leases are still taken.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let now_us = self.now().as_micros();
        // Nothing is admitted from leases where one of the keys has none.
        let may_ask = is_heard && subjects.0.iter().all(Subject::is_leasable);
        for (at, subject) in subjects.0.iter().enumerate() {
            let key = self.secret.hash_of(&subject.name);
            let may = is_leased(subject) && subject.key == at && subject.hold.is_none();
            asked.keys.push(key);
            let settled = &mut asked.settled;
            let terms = may.then(|| self.terms(key, subject, costs, may_ask, now_us, settled));
            asked.terms.push(terms.flatten());
        }
        if asked.terms.iter().all(Option::is_none) {
            asked.terms.clear();
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        asked
    }

    fn terms(
        &self,
        key: u128,
        subject: &Subject,
        costs: &[u64],
        may_ask: bool,
        now_us: u64,
        settles: &mut SmallVec<[Settled; 1]>,
    ) -> Option<LeaseTerms> {
        let is_check = subject.is_leasable();
        let length_us = subject.lease_us;
        let mut set = self.keys.set(lowest_bits(key));
        if set.get_mut(key).is_none() {
            if !is_check {
                return None;
            }
            let worth = |one: &LeasedKey| (one.lease.is_some(), one.demand.noted_us());
            let replaced = set.insert(key, LeasedKey::default(), worth);
            if let Some(lease) = replaced.and_then(|one| one.lease) {
                // It was used least lately.
                self.run_out(&lease);
            }
        }
        let known = set.get_mut(key)?;
        let mut is_used = false;
        let settled = known.lease.take().map(|lease| {
            self.open.fetch_sub(1, Ordering::Relaxed);
            let over_us = now_us.saturating_sub(lease.granted_us);
            let (id, used) = (lease.slice.id, lease.slice.end());
            is_used = used > 0;
            known.demand.note(used, now_us, over_us.max(1), length_us);
            settles.push(Settled { ends_us: lease.ends_us, counters: lease.counters });
            (id, used)
        });
        if let Some(most) = costs.iter().map(|cost| subject.part(*cost).cost).max() {
            known.cost = most;
            known.demand.note(costs.iter().map(|cost| subject.part(*cost).cost).sum(), now_us, 0, length_us);
        }
        let least = known.cost.saturating_mul(LEAST_REQUESTS).max(1);
        let want = known.demand.want(now_us, length_us);
        let pays = want >= least && (is_used || !costs.is_empty());
        let asks = may_ask && pays && now_us >= known.asks_after_us && !known.is_asking;
        let asks = asks && !self.is_closed.load(Ordering::SeqCst);
        if !asks && settled.is_none() {
            return None;
        }
        known.is_asking |= asks;
        let id = self.holder | self.next.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
        Some(LeaseTerms { settled, id, want: if asks { want } else { 0 }, least, ttl_us: length_us })
    }

    /// Ends the leases of the keys with these names, or of all, because other instances have freed or changed something:
    /// what is left of them is not used.
    pub(crate) fn end(&self, names: Option<&[Vec<u8>]>) {
        if names.is_some_and(<[_]>::is_empty) {
            return;
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        let end = |known: &mut LeasedKey| known.lease.iter_mut().for_each(|lease| lease.is_ended = true);
        match names {
            Some(names) => names.iter().for_each(|name| {
                let key = self.secret.hash_of(name);
                self.keys.set(lowest_bits(key)).get_mut(key).into_iter().for_each(end);
            }),
            None => self.keys.each_set(|set| set.values_mut().for_each(end)),
        }
    }

    /// Adds what this process's leases have left to peeks at their keys, which the store counts as held.
    pub(crate) fn add_own(&self, subjects: &Subjects, cost: u64, answers: &mut Answers) {
        if self.open.load(Ordering::Relaxed) == 0 {
            return;
        }
        let peeks = |subject: &Subject| subject.lease_us > 0 && subject.part.verb == Verb::Peek;
        for (subject, answer) in subjects.0.iter().zip(answers).filter(|(subject, _)| peeks(subject)) {
            let key = self.secret.hash_of(&subject.name);
            let mut set = self.keys.set(lowest_bits(key));
            let Some(lease) = set.get_mut(key).and_then(|known| known.lease.as_ref()) else { continue };
            if !lease.is_usable(self.now().as_micros()) {
                continue;
            }
            let left = lease.slice.left().min(answer.held);
            answer.held -= left;
            answer.remaining = answer.remaining.saturating_add(left);
            if answer.is_denied() && subject.part(cost).asks() <= answer.remaining && !subject.part.over_limit
            {
                answer.verdict = slidegate::Verdict::Allow;
                answer.waits.retry_us = 0;
            }
        }
    }

    /// The key of a lease whose time is nearly over, to be settled by a call. One that news have ended runs out.
    pub(crate) fn due(&self, key: u128, id: u64) -> Option<Subjects> {
        let mut set = self.keys.set(lowest_bits(key));
        let known = set.get_mut(key)?;
        let lease = known.lease.take_if(|lease| lease.slice.id == id && lease.is_ended);
        if let Some(lease) = lease {
            self.run_out(&lease);
        }
        known.lease.as_ref().filter(|lease| lease.slice.id == id).map(|lease| alone(&lease.subject))
    }

    /// Counts a lease that is gone and was not settled.
    fn run_out(&self, lease: &Lease) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        lease.counters.expired.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends leasing for good: no call that begins from now on asks for a lease.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Whether a call is in flight that settles a lease or may bring one.
    pub(crate) fn is_called(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) > 0
    }

    /// The keys that have a lease, each to be settled by a call.
    pub(crate) fn open(&self) -> Vec<Subjects> {
        let mut open = Vec::new();
        self.keys.each_set(|set| {
            let leases = set.values_mut().filter_map(|known| known.lease.as_ref());
            open.extend(leases.filter(|lease| !lease.is_ended).map(|lease| alone(&lease.subject)));
        });
        open
    }

    /// Counts by policy, and what open leases have left.
    pub(crate) fn stats(&self) -> BTreeMap<String, LeaseStats> {
        let now_us = self.now().as_micros();
        let mut stats = self.counters.stats();
        self.keys.each_set(|set| {
            for lease in set.values_mut().filter_map(|known| known.lease.as_ref()) {
                let of_policy = stats.get_mut(policy_of(&lease.subject.name));
                if let Some(of_policy) = of_policy.filter(|_| lease.is_usable(now_us)) {
                    of_policy.open += 1;
                    of_policy.held += lease.slice.left();
                    of_policy.limit += lease.subject.quota.limit();
                }
            }
        });
        stats
    }

    /// The time by which leases and cached denials end.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// A key of a request as the only one of a call.
fn alone(subject: &Subject) -> Subjects {
    Subjects(SmallVec::from_iter([Subject { key: 0, ..subject.clone() }]))
}

/// Whether leases may decide it: a check whose cost is known, and that only its own key decides.
fn is_leasable(charge: &Charge<'_>) -> bool {
    let part = &charge.part;
    part.verb == Verb::Check
        && part.is_unconditional()
        && part.excess == Excess::Refuse
        && charge.reserve.is_none()
}

impl Subject {
    /// Whether leases may decide it.
    fn is_leasable(&self) -> bool {
        self.lease_us > 0 && self.part.verb == Verb::Check && self.part.is_one_step()
    }
}

impl Lease {
    fn is_usable(&self, now_us: u64) -> bool {
        !self.is_ended && !self.slice.is_over(now_us)
    }

    /// The decision on a cost that was just taken. Others may have used more since the grant, and less than they hold.
    fn decision(&self, cost: u64, now_us: u64) -> Decision {
        let (granted, left) = (&self.granted, self.slice.left());
        let passed_us = now_us.saturating_sub(self.granted_us);
        let later = |wait_us: u64| wait_us.saturating_sub(passed_us);
        let Waits { reset_us, frees_us, .. } = granted.waits;
        Decision {
            cost,
            used: granted.used + self.slice.amount() - left,
            held: granted.held.saturating_sub(self.slice.amount()),
            remaining: granted.remaining + left,
            at: granted.at + Duration::from_micros(passed_us),
            source: DecisionSource::Leased,
            waits: Waits { retry_us: 0, reset_us: later(reset_us), frees_us: later(frees_us) },
            ..*granted
        }
    }
}

impl Asked<'_> {
    /// Takes what was granted by a call that was `sent`, was executed at this time of the server, and has `arrived`.
    /// Returns the keys and ids of the leases, and how much later they are to be renewed.
    pub(crate) fn granted(
        &mut self,
        subjects: &Subjects,
        grants: &[Grant],
        (sent, executed_us, arrived): (Timestamp, u64, Timestamp),
    ) -> SmallVec<[(u128, u64, Duration); 1]> {
        let (sent_us, arrived_us) = (sent.as_micros(), arrived.as_micros());
        let mut taken = SmallVec::new();
        for Settled { ends_us, counters } in self.settled.drain(..) {
            let count = if executed_us < ends_us { &counters.settled } else { &counters.expired };
            count.fetch_add(1, Ordering::Relaxed);
        }
        for (at, (terms, key)) in self.terms.iter().zip(&self.keys).enumerate() {
            let Some(terms) = terms else { continue };
            let mut set = self.leases.keys.set(lowest_bits(*key));
            let Some(known) = set.get_mut(*key) else { continue };
            let grant = grants.iter().find(|grant| grant.subject == at);
            if terms.want > 0 && arrived_us - sent_us > terms.ttl_us / 4 {
                // Much of a lease is over when its grant arrives.
                known.asks_after_us = arrived_us + 10 * terms.ttl_us;
            } else if terms.want > 0 && grant.is_none() {
                known.asks_after_us = arrived_us + terms.ttl_us / 8;
            }
            let Some(grant) = grant else { continue };
            let subject = &subjects.0[at];
            let counters = self.leases.counters.of(&subject.name);
            counters.granted.fetch_add(1, Ordering::Relaxed);
            if terms.settled.is_some() {
                counters.renewed.fetch_add(1, Ordering::Relaxed);
            }
            self.leases.open.fetch_add(1, Ordering::Relaxed);
            let lease = Box::new(Lease {
                slice: Slice::new(terms.id, grant.amount, sent_us + usable_us(grant.ttl_us)),
                subject: subject.clone(),
                granted: grant.decision,
                granted_us: arrived_us,
                ends_us: executed_us.saturating_add(grant.ttl_us),
                // News may arrive before the reply to a call that was made before them.
                is_ended: self.leases.ended.load(Ordering::SeqCst) != self.ended,
                counters,
            });
            if let Some(former) = known.lease.replace(lease) {
                // The key was forgotten meanwhile, and asked about again by another call.
                self.leases.run_out(&former);
            }
            let renewed = sent + Duration::from_micros(renewed_after_us(grant.ttl_us));
            taken.push((*key, terms.id, renewed - arrived));
        }
        taken
    }
}

impl Drop for Asked<'_> {
    /// Also if the call failed or its caller is gone.
    fn drop(&mut self) {
        if !self.terms.is_empty() {
            self.leases.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        // Without a reply they are, or may be, charged in full.
        for Settled { counters, .. } in &self.settled {
            counters.expired.fetch_add(1, Ordering::Relaxed);
        }
        for (terms, key) in self.terms.iter().zip(&self.keys) {
            if terms.is_some_and(|terms| terms.want > 0)
                && let Some(known) = self.leases.keys.set(lowest_bits(*key)).get_mut(*key)
            {
                known.is_asking = false;
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
fn lowest_bits(hash: u128) -> u64 {
    hash as u64
}

#[cfg(test)]
mod tests {
    use slidegate::clock::ManualClock;

    use super::*;
    use crate::call::check_of_nothing;

    const LENGTH_US: u64 = 50_000;

    fn subjects() -> Subjects {
        Subjects(SmallVec::from_iter([Subject {
            name: b"sg1:p:alice".to_vec(),
            quota: Quota::per_second(1000),
            part: check_of_nothing(),
            own_cost: None,
            key: 0,
            hold: None,
            lease_us: LENGTH_US,
        }]))
    }

    fn granted(amount: u64) -> [Grant; 1] {
        let decision = Decision::unused(1000, Timestamp::EPOCH);
        [Grant { subject: 0, amount, ttl_us: LENGTH_US, decision }]
    }

    /// A key that is checked a hundred times at once has a demand for leases.
    fn ask(leases: &Leases) -> Asked<'_> {
        leases.ask(&subjects(), &[1; 100], true)
    }

    fn wants(leases: &Leases) -> bool {
        ask(leases).terms.first().copied().flatten().is_some_and(|terms| terms.want > 0)
    }

    fn take(leases: &Leases) -> Option<Taken> {
        let Subject { name, quota, .. } = &subjects().0[0];
        leases.take(leases.secret.hash_of(name), quota, 1).map(|(taken, _)| taken)
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    fn leases() -> (Leases, ManualClock) {
        let clock = ManualClock::new();
        (Leases::new("one", clock.clone()), clock)
    }

    /// The reply to a call and the news of a reset come by different connections.
    #[test]
    fn a_lease_that_was_asked_for_before_a_reset_is_not_used() {
        for (reset, is_used) in [(None, true), (Some(vec![b"sg1:p:alice".to_vec()]), false)] {
            let (leases, clock) = leases();
            let (mut asked, now) = (ask(&leases), clock.now());
            assert!(!wants(&leases), "one call asks at a time");
            leases.end(Some(&reset.unwrap_or_default()));
            assert_eq!(asked.granted(&subjects(), &granted(50), (now, 0, now)).len(), 1);
            assert_eq!(take(&leases).is_some(), is_used);
            let open = |leases: &Leases| leases.stats()["p"].open;
            assert_eq!(open(&leases), u64::from(is_used));
            let (key, id) = (asked.keys[0], asked.terms[0].unwrap().id);
            assert_eq!(leases.due(key, id).is_some(), is_used, "what has ended is not renewed");
            assert_eq!(leases.open.load(Ordering::Relaxed), u64::from(is_used));
            assert_eq!(leases.stats()["p"].expired, u64::from(!is_used));
        }
    }

    /// What is not used is given back, what is used is asked for again, and nothing is taken of it meanwhile.
    #[test]
    fn a_lease_is_settled_to_what_was_used_and_renewed_only_if_something_was() {
        for used in [0, 20] {
            let (leases, clock) = leases();
            let now = clock.now();
            let mut first = ask(&leases);
            let LeaseTerms { settled: None, id, .. } = first.terms[0].unwrap() else { panic!("it has none") };
            first.granted(&subjects(), &granted(50), (now, 0, now));
            drop(first);
            let taken: Vec<_> = (0..used).map(|_| take(&leases).unwrap()).collect();
            clock.advance(ms(40));
            let renewal = leases.ask(&subjects(), &[], true);
            let terms = renewal.terms[0].unwrap();
            assert_eq!((terms.settled, terms.want > 0), (Some((id, used)), used > 0));
            assert!(take(&leases).is_none());
            // What is put back now was charged.
            leases.put_back(&taken);
            drop(renewal);
            assert!(leases.ask(&subjects(), &[], true).terms.is_empty(), "it is settled once");
        }
    }

    /// Whoever reads the counts must be able to say what was charged in full.
    #[test]
    fn a_lease_that_the_server_settles_after_its_end_is_counted_as_expired() {
        const GRANTED_US: u64 = 7_000_000;
        for (executed, is_settled) in [(Some(LENGTH_US - 1), true), (Some(LENGTH_US), false), (None, false)] {
            let (leases, clock) = leases();
            let now = clock.now();
            ask(&leases).granted(&subjects(), &granted(50), (now, GRANTED_US, now));
            take(&leases).unwrap();
            // In time, as far as this process knows.
            clock.advance(ms(40));
            let mut renewal = leases.ask(&subjects(), &[], true);
            if let Some(passed_us) = executed {
                renewal.granted(&subjects(), &[], (clock.now(), GRANTED_US + passed_us, clock.now()));
            }
            drop(renewal);
            let LeaseStats { returned, expired, .. } = leases.stats()["p"];
            assert_eq!((returned, expired), (u64::from(is_settled), u64::from(!is_settled)), "{executed:?}");
        }
    }

    /// The end counts from before the call was sent, whenever its reply comes.
    #[test]
    fn a_slow_way_leaves_less_of_a_lease_and_is_not_tried_again_soon() {
        for (way, is_used, asks_again) in [(ms(1), true, true), (ms(45), true, false), (ms(60), false, false)]
        {
            let (leases, clock) = leases();
            let (mut asked, sent) = (ask(&leases), clock.now());
            clock.advance(way);
            asked.granted(&subjects(), &granted(50), (sent, 0, clock.now()));
            drop(asked);
            assert_eq!(take(&leases).is_some(), is_used, "{way:?}");
            assert_eq!(wants(&leases), asks_again, "{way:?}");
        }
    }
}
