//! Idempotency: stores the first decisions on checks with an idempotency key, for repeated checks.
//!
//! The number of stored decisions is bounded. Above it, the policies that have most forget their
//! oldest early, so a flood under some policies forgets no check under others. A forgotten check is
//! charged again if repeated: that can deny too much, but never allow too much.
//!
//! Decisions are sharded by the hash of their checks. A shard is locked while a check is decided,
//! so two concurrent copies are charged once. Checks in other shards do not wait.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::StoreDecisions;
use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{HashSeed, KeyId};
use crate::shares::Queues;
use crate::time::Timestamp;

/// Maximum number of stored checks: some 20 MB with one policy each.
pub(crate) const MAX_ANSWERS: usize = 1 << 16;
/// A power of two, large enough that concurrent checks rarely share a shard.
const SHARDS: usize = 128;
/// Maximum number of checks per shard: a quarter above its share, because hashes spread unevenly.
const MAX_OF_A_SHARD: usize = MAX_ANSWERS / SHARDS * 5 / 4;
/// Maximum number of checks forgotten per stored one: above one, so that expired checks disappear;
/// small, so that no check pays for a flood before it.
const FORGOTTEN_AT_ONCE: usize = 2;

/// The first decisions on checks with an idempotency key, for [`Store`](super::Store)s in this
/// process.
///
/// Stores the last 65,536 checks for the longest window of their quotas and time of their holds.
/// When full, the policies that have most forget their oldest, in time independent of the number of
/// checks.
pub struct IdempotencyCache {
    seed: HashSeed,
    shards: Box<[Mutex<CacheShard>]>,
}

/// 128 bits of a keyed hash of a check's id, keys and cost.
type CheckHash = u128;

/// The numbers of the policies of a check.
type PolicyNumbers = SmallVec<[u32; 4]>;

#[derive(Debug)]
struct CacheShard {
    answers: HashMap<CheckHash, Answer>,
    /// The same checks by policy. A replaced one is here twice, with two ends.
    order: Queues<PolicyNumbers, (Timestamp, CheckHash)>,
}

#[derive(Debug)]
struct Answer {
    /// From then on, the check counts as new.
    ends: Timestamp,
    decisions: SmallVec<[Decision; 1]>,
}

impl Default for CacheShard {
    fn default() -> Self {
        Self { answers: HashMap::new(), order: Queues::new(MAX_OF_A_SHARD) }
    }
}

impl Default for IdempotencyCache {
    fn default() -> Self {
        Self { seed: HashSeed::random(), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

/// Without the stored checks.
impl fmt::Debug for IdempotencyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyCache").finish_non_exhaustive()
    }
}

impl IdempotencyCache {
    /// Appends the first decisions on this check, or those that `apply` appends, with one of 128
    /// shards locked. A check with an enforced denial is not stored.
    pub fn check(
        &self,
        charges: &[Charge<'_>],
        id: &str,
        now: Timestamp,
        decided: &mut StoreDecisions,
        apply: impl FnOnce(&mut StoreDecisions),
    ) {
        let lasts_us = |charge: &Charge<'_>| {
            let ttl_us = charge.new_hold().map_or(0, |hold| hold.ttl_us);
            charge.quota.window_us().max(ttl_us)
        };
        let Some(longest_us) = charges.iter().map(lasts_us).max() else { return };
        let check = self.hash_of(charges, id);
        let mut shard = self.shards[place_of(check)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = shard.answers.get(&check).filter(|first| now < first.ends) {
            return decided.decisions.extend(first.decisions.iter().copied());
        }
        apply(decided);
        if !charges
            .iter()
            .zip(&decided.decisions)
            .any(|(charge, one)| charge.part.enforced && one.is_denied())
        {
            let answer = Answer {
                ends: now + Duration::from_micros(longest_us),
                decisions: decided.iter().copied().collect(),
            };
            let policies = charges.iter().map(|charge| charge.number).collect();
            shard.keep(now, &policies, check, answer);
        }
    }

    /// The hash of everything that identifies a repeated check.
    fn hash_of(&self, charges: &[Charge<'_>], id: &str) -> CheckHash {
        let what = |charge: &Charge<'_>| {
            let is_held = charge.reserve.is_some();
            (charge.number, charge.key.id(&self.seed), charge.part.cost, is_held)
        };
        let parts: SmallVec<[(u32, KeyId, u64, bool); 4]> = charges.iter().map(what).collect();
        self.seed.hash_of(&(id, parts))
    }
}

/// The position of the shard of this check.
fn place_of(check: CheckHash) -> usize {
    #[allow(clippy::cast_possible_truncation)] // the lowest bits are what is wanted
    let lowest = check as usize;
    lowest & (SHARDS - 1)
}

impl CacheShard {
    fn keep(&mut self, now: Timestamp, policies: &PolicyNumbers, check: CheckHash, answer: Answer) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some(over) = self.order.pop_if(policies, |(ends, _)| *ends <= now) else { break };
            self.forget(over);
        }
        if self.order.shares().taken() >= MAX_OF_A_SHARD
            && let Some(oldest) = self.order.pop_largest()
        {
            self.forget(oldest);
        }
        self.order.push(policies, (answer.ends, check));
        self.answers.insert(check, answer);
    }

    /// Forgets a check that has left all queues.
    fn forget(&mut self, (ends, check): (Timestamp, CheckHash)) {
        if self.answers.get(&check).is_some_and(|answer| answer.ends == ends) {
            self.answers.remove(&check);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Charges;
    use crate::store::LocalStore as _;
    use crate::store::memory::MemoryStore;
    use crate::{Gate, Policy, PolicySet, Quota, Request, clock::ManualClock, verb::Verb};

    fn gate(limit: u64) -> (Gate, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let policy = |name: &str, limit| {
            Policy::new(name, Quota::per_minute(limit)).expect("a plain name").with_scope(["user"])
        };
        let policies = [policy("narrow", limit), policy("wide", 1_000_000)];
        (Gate::with_memory(PolicySet::new(policies).expect("two names"), store), clock)
    }

    fn used(gate: &Gate, user: &str) -> u64 {
        gate.peek(&Request::new().with("user", user)).iter().next().expect("a policy applies").decision().used
    }

    /// A client whose connection broke sends its check again and must not pay twice.
    #[test]
    fn a_check_that_is_sent_again_gives_the_first_answer_and_is_charged_once() {
        let (gate, clock) = gate(10);
        let request = Request::new().with("user", "alice").with_cost(3);
        let first: Vec<_> = gate.check_once(&request, "a").iter().map(|one| *one.decision()).collect();
        clock.advance(Duration::from_secs(10));
        let _ = gate.check(&request);
        let again = gate.check_once(&request, "a");
        assert_eq!(again.iter().map(|one| *one.decision()).collect::<Vec<_>>(), first);
        assert_eq!(again.strictest().expect("a policy applies").policy().name(), "narrow");
        assert_eq!(used(&gate, "alice"), 6);
    }

    /// An id is a client's, and clients do not know each other's.
    #[test]
    fn another_id_key_or_cost_is_another_check() {
        let (gate, _clock) = gate(100);
        for (user, cost, id) in [("alice", 1, "a"), ("alice", 1, "b"), ("alice", 2, "a"), ("bob", 1, "a")] {
            let _ = gate.check_once(&Request::new().with("user", user).with_cost(cost), id);
        }
        assert_eq!((used(&gate, "alice"), used(&gate, "bob")), (4, 1));
    }

    /// A denial that was kept would deny for a window what fits in a second.
    #[test]
    fn a_denial_is_decided_anew() {
        let (gate, clock) = gate(1);
        let request = Request::new().with("user", "alice");
        let _ = gate.check_once(&request, "a");
        assert!(gate.check_once(&request, "b").is_denied());
        clock.advance(Duration::from_secs(60));
        assert!(gate.check_once(&request, "b").is_allowed());
        assert!(gate.check_once(&request, "b").is_allowed(), "and that is the first answer");
        assert!(gate.check_once(&request, "a").is_denied(), "the window of `a` is over");
    }

    fn shards(gate: &Gate) -> &[Mutex<CacheShard>] {
        &gate.store().idempotent.get().expect("a check had an id").shards
    }

    fn kept(gate: &Gate) -> usize {
        shards(gate).iter().map(|shard| shard.lock().expect("nobody panicked").answers.len()).sum()
    }

    /// Ids come from clients: a flood of them takes bounded memory, forgets none of the newest, and
    /// what was forgotten is charged again.
    #[test]
    fn a_flood_of_ids_forgets_the_oldest_and_keeps_the_newest() {
        let (gate, _clock) = gate(1_000_000);
        let request = Request::new().with("user", "alice");
        for id in 0..2 * MAX_ANSWERS {
            let _ = gate.check_once(&request, &id.to_string());
        }
        assert!((MAX_ANSWERS..=SHARDS * MAX_OF_A_SHARD).contains(&kept(&gate)), "{}", kept(&gate));
        // What the constant promises: a table has an eighth more room than it says, and a byte for
        // each.
        let bytes_of = |shard: &CacheShard| {
            let answers = shard.answers.capacity() * 8 / 7 * (size_of::<(CheckHash, Answer)>() + 1);
            answers + shard.order.capacity() * size_of::<(Timestamp, CheckHash)>()
        };
        let shards = shards(&gate).iter();
        let bytes: usize = shards.map(|shard| bytes_of(&shard.lock().expect("nobody panicked"))).sum();
        assert!(bytes <= 20 << 20, "{bytes}");
        let charged = used(&gate, "alice");
        for id in (MAX_ANSWERS..2 * MAX_ANSWERS).step_by(61) {
            let _ = gate.check_once(&request, &id.to_string());
        }
        assert_eq!(used(&gate, "alice"), charged, "the newest are still known");
        let _ = gate.check_once(&request, "0");
        assert_eq!(used(&gate, "alice"), charged + 1, "the first is not");
    }

    /// A flood of ids under one policy must not let the retries of others be charged again.
    #[test]
    fn a_flood_under_one_policy_forgets_no_check_under_another() {
        let policy =
            |name: &str| Policy::new(name, Quota::per_minute(1_000_000)).unwrap().with_scope(["user"]);
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        let policies = PolicySet::new([policy("attacked"), policy("other")]).unwrap();
        let gate = Gate::with_memory(policies, store);
        let known: Vec<_> = (0..1000).map(|id| format!("victim-{id}")).collect();
        let victim = Request::new().with("user", "victim").under("other");
        let retry_all = || known.iter().for_each(|id| assert!(gate.check_once(&victim, id).is_allowed()));
        retry_all();
        let attacker = Request::new().with("user", "attacker").under("attacked");
        for id in 0..2 * MAX_ANSWERS {
            let _ = gate.check_once(&attacker, &id.to_string());
        }
        retry_all();
        assert_eq!(gate.peek(&victim).iter().next().unwrap().decision().used, 1000);
        assert!(kept(&gate) <= SHARDS * MAX_OF_A_SHARD, "{}", kept(&gate));
    }

    /// The check that comes after a flood must not pay for it: what has ended leaves a little at a
    /// time.
    #[test]
    fn what_has_ended_leaves_a_bounded_number_at_a_time() {
        let (gate, clock) = gate(1_000_000);
        let request = Request::new().with("user", "alice");
        for id in 0..MAX_ANSWERS {
            let _ = gate.check_once(&request, &id.to_string());
        }
        clock.advance(Duration::from_secs(60));
        let mut before = kept(&gate);
        for id in 0..MAX_ANSWERS {
            let _ = gate.check_once(&request, &id.to_string());
            if id % 1024 == 0 {
                let now = kept(&gate);
                assert!(before.abs_diff(now) <= 1024 * FORGOTTEN_AT_ONCE, "{before} and then {now}");
                before = now;
            }
        }
        assert_eq!(kept(&gate), MAX_ANSWERS, "all of before are gone by now");
    }

    /// A clock that stops a thread which has said so, in the middle of its decision.
    #[derive(Debug)]
    struct Gated {
        stopped: std::sync::mpsc::SyncSender<()>,
        go: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    thread_local! {
        /// So many readings from now on, the clock stops the thread; never at 0.
        static STOPS_IN: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
    }

    impl crate::clock::Clock for Gated {
        fn now(&self) -> Timestamp {
            if STOPS_IN.replace(STOPS_IN.get().saturating_sub(1)) == 1 {
                self.stopped.send(()).expect("the test waits");
                let go = self.go.lock().expect("nobody panicked");
                go.recv().expect("the test lets it go on");
            }
            Timestamp::from_secs(1_000_000)
        }
    }

    /// One check that hangs must not stop the checks of all other clients, and sent twice at a time
    /// it is charged once.
    #[test]
    fn checks_with_other_ids_do_not_wait_and_the_same_id_is_charged_once() {
        let ((stopped, has_stopped), (let_go, go)) =
            (std::sync::mpsc::sync_channel(1), std::sync::mpsc::sync_channel(1));
        let store = MemoryStore::builder().clock(Gated { stopped, go: Mutex::new(go) }).build();
        let policy = Policy::new("p", Quota::per_minute(1_000)).expect("a plain name").with_scope(["user"]);
        let policies = PolicySet::new([policy]).expect("one name");
        let cache = IdempotencyCache::default();
        let check = |charges: &Charges<'_>, id: &str| {
            let mut decided = StoreDecisions::default();
            cache.check(charges, id, store.now(), &mut decided, |decided| store.apply(charges, decided));
            decided.decisions[0]
        };
        let on_charges = |user: &str, verb, run: &dyn Fn(&Charges<'_>)| {
            let request = Request::new().with("user", user);
            run(&policies.plan(std::slice::from_ref(&request), Some(verb)).charges);
        };
        let used = |user: &str| {
            let used = std::cell::Cell::new(0);
            on_charges(user, Verb::Peek, &|charges| {
                let mut decided = StoreDecisions::default();
                store.apply(charges, &mut decided);
                used.set(decided.decisions[0].used);
            });
            used.get()
        };
        let same = || {
            on_charges("alice", Verb::Check, &|charges| {
                assert!(check(charges, "same").is_allowed());
            });
        };
        std::thread::scope(|scope| {
            let hangs = scope.spawn(|| {
                // The first reading is before the lock.
                STOPS_IN.set(2);
                same();
            });
            has_stopped.recv().expect("it has the lock of its shard");
            let locked = cache.shards.iter().filter(|shard| shard.try_lock().is_err()).count();
            assert_eq!(locked, 1, "it holds one shard of {SHARDS}");
            let again = scope.spawn(same);
            for id in (0..2 * SHARDS).map(|id| id.to_string()) {
                on_charges("bob", Verb::Check, &|charges| {
                    let shard = &cache.shards[place_of(cache.hash_of(charges, &id))];
                    if shard.try_lock().is_ok() {
                        assert!(check(charges, &id).is_allowed());
                    }
                });
            }
            let_go.send(()).expect("it waits");
            hangs.join().expect("it goes on");
            again.join().expect("it goes on");
        });
        assert_eq!(used("alice"), 1);
        assert!(used("bob") > SHARDS as u64, "but for the few in the shard that was locked");
    }
}
