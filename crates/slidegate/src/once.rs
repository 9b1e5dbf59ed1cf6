//! Once: the first answers to checks that carry an id, so that a client may send one again.
//!
//! They are bounded in number. Past it the oldest is forgotten early, and its check, sent again after that, is charged
//! again: that can deny too much and never admit too much.
//!
//! Answers lie in shards by the hash of their checks. A shard is locked while its check is decided, so that the same one
//! sent twice at a time is charged once; checks in other shards do not wait for it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::charge::Charges;
use crate::decision::Decision;
use crate::key::KeyId;
use crate::store::memory::MemoryStore;
use crate::time::Timestamp;

/// The last so many answers are kept for as long as they may be asked for. With one policy each they take some 20 MB.
pub(crate) const MAX_ANSWERS: usize = 1 << 16;
/// Shards, a power of two: two checks at a time are seldom in the same one.
const SHARDS: usize = 128;
/// Most answers of a shard: a quarter more than its share, as the hash does not spread checks evenly.
const MAX_OF_A_SHARD: usize = MAX_ANSWERS / SHARDS * 5 / 4;
/// Answers that are forgotten for each that is kept: more than come in, so that what has ended leaves, and few enough
/// that no check pays for a flood before it.
const FORGOTTEN_AT_ONCE: usize = 2;

/// First answers that may be asked for again.
pub(crate) struct Once(Box<[Mutex<Shard>]>);

/// What a check is known by: 128 bits of a keyed hash of its id, keys and cost, which no two of them share.
type CheckHash = u128;

#[derive(Debug, Default)]
struct Shard {
    answers: HashMap<CheckHash, Answer>,
    /// Each answer once more, the oldest first. One that was replaced stands here twice, with two ends.
    order: VecDeque<(Timestamp, CheckHash)>,
}

#[derive(Debug)]
struct Answer {
    /// From then on the check is a new one.
    ends: Timestamp,
    decisions: SmallVec<[Decision; 1]>,
}

impl Default for Once {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

/// Without tens of thousands of answers.
impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

impl Once {
    /// Makes these charges, or gives the first answer again.
    pub(crate) fn check(
        &self,
        store: &MemoryStore,
        charges: &Charges<'_>,
        id: &str,
    ) -> SmallVec<[Decision; 4]> {
        let Some(window) = charges.iter().map(|charge| charge.quota.window()).max() else {
            return SmallVec::new();
        };
        let check = hash_of(store, charges, id);
        let mut shard = self.0[place_of(check)].lock().unwrap_or_else(PoisonError::into_inner);
        let now = store.now();
        if let Some(first) = shard.answers.get(&check).filter(|first| now < first.ends) {
            return first.decisions.iter().copied().collect();
        }
        let decisions = store.apply(charges);
        // A denial has charged nothing: asked again it is decided anew.
        if !charges.iter().zip(&decisions).any(|(charge, one)| charge.part.enforced && one.is_denied()) {
            let answer = Answer { ends: now + window, decisions: decisions.iter().copied().collect() };
            shard.keep(now, check, answer);
        }
        decisions
    }
}

/// What must be the same for a check to be the same.
fn hash_of(store: &MemoryStore, charges: &Charges<'_>, id: &str) -> CheckHash {
    let secret = store.secret();
    let keys: SmallVec<[(u32, KeyId); 4]> =
        charges.iter().map(|charge| (charge.number, charge.key.id(secret))).collect();
    secret.hash_of(&(id, charges[0].part.cost, keys))
}

/// The place of the shard of this check.
fn place_of(check: CheckHash) -> usize {
    #[allow(clippy::cast_possible_truncation)] // the lowest bits are what is wanted
    let lowest = check as usize;
    lowest & (SHARDS - 1)
}

impl Shard {
    fn keep(&mut self, now: Timestamp, check: CheckHash, answer: Answer) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            let is_full = self.order.len() >= MAX_OF_A_SHARD;
            let Some((ends, oldest)) = self.order.front().copied() else { break };
            if !is_full && now < ends {
                break;
            }
            self.order.pop_front();
            if self.answers.get(&oldest).is_some_and(|answer| answer.ends == ends) {
                self.answers.remove(&oldest);
            }
        }
        self.order.push_back((answer.ends, check));
        self.answers.insert(check, answer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Gate, ManualClock, Policy, PolicySet, Quota, Request, Verb};

    fn gate(limit: u64) -> (Gate, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let policy = |name: &str, limit| {
            Policy::new(name, Quota::per_minute(limit)).expect("a plain name").scope(["user"])
        };
        let policies = [policy("narrow", limit), policy("wide", 1_000_000)];
        (Gate::with_store(PolicySet::new(policies).expect("two names"), store), clock)
    }

    fn used(gate: &Gate, user: &str) -> u64 {
        gate.peek(&Request::new().with("user", user)).iter().next().expect("a policy applies").used
    }

    /// A client whose connection broke sends its check again and must not pay twice.
    #[test]
    fn a_check_that_is_sent_again_gives_the_first_answer_and_is_charged_once() {
        let (gate, clock) = gate(10);
        let request = Request::new().with("user", "alice").cost(3);
        let first: Vec<_> = gate.check_once(&request, "a").iter().map(|one| *one.decision()).collect();
        clock.advance(Duration::from_secs(10));
        gate.check(&request);
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
            gate.check_once(&Request::new().with("user", user).cost(cost), id);
        }
        assert_eq!((used(&gate, "alice"), used(&gate, "bob")), (4, 1));
    }

    /// A denial that was kept would deny for a window what fits in a second.
    #[test]
    fn a_denial_is_decided_anew() {
        let (gate, clock) = gate(1);
        let request = Request::new().with("user", "alice");
        gate.check_once(&request, "a");
        assert!(gate.check_once(&request, "b").is_denied());
        clock.advance(Duration::from_secs(60));
        assert!(gate.check_once(&request, "b").is_allowed());
        assert!(gate.check_once(&request, "b").is_allowed(), "and that is the first answer");
        assert!(gate.check_once(&request, "a").is_denied(), "the window of `a` is over");
    }

    fn kept(gate: &Gate) -> usize {
        gate.once.0.iter().map(|shard| shard.lock().expect("nobody panicked").answers.len()).sum()
    }

    /// Ids come from clients: a flood of them takes bounded memory, forgets none of the newest, and what was forgotten is
    /// charged again.
    #[test]
    fn a_flood_of_ids_forgets_the_oldest_and_keeps_the_newest() {
        let (gate, _clock) = gate(1_000_000);
        let request = Request::new().with("user", "alice");
        for id in 0..2 * MAX_ANSWERS {
            gate.check_once(&request, &id.to_string());
        }
        assert!((MAX_ANSWERS..=SHARDS * MAX_OF_A_SHARD).contains(&kept(&gate)), "{}", kept(&gate));
        // What the constant promises: a table has an eighth more room than it says, and a byte for each.
        let bytes_of = |shard: &Shard| {
            let answers = shard.answers.capacity() * 8 / 7 * (size_of::<(CheckHash, Answer)>() + 1);
            answers + shard.order.capacity() * size_of::<(Timestamp, CheckHash)>()
        };
        let shards = gate.once.0.iter();
        let bytes: usize = shards.map(|shard| bytes_of(&shard.lock().expect("nobody panicked"))).sum();
        assert!(bytes <= 20 << 20, "{bytes}");
        let charged = used(&gate, "alice");
        for id in (MAX_ANSWERS..2 * MAX_ANSWERS).step_by(61) {
            gate.check_once(&request, &id.to_string());
        }
        assert_eq!(used(&gate, "alice"), charged, "the newest are still known");
        gate.check_once(&request, "0");
        assert_eq!(used(&gate, "alice"), charged + 1, "the first is not");
    }

    /// The check that comes after a flood must not pay for it: what has ended leaves a little at a time.
    #[test]
    fn what_has_ended_leaves_a_bounded_number_at_a_time() {
        let (gate, clock) = gate(1_000_000);
        let request = Request::new().with("user", "alice");
        for id in 0..MAX_ANSWERS {
            gate.check_once(&request, &id.to_string());
        }
        clock.advance(Duration::from_secs(60));
        let mut before = kept(&gate);
        for id in 0..MAX_ANSWERS {
            gate.check_once(&request, &id.to_string());
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
        static STOPS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    impl crate::Clock for Gated {
        fn now(&self) -> Timestamp {
            if STOPS.take() {
                self.stopped.send(()).expect("the test waits");
                let go = self.go.lock().expect("nobody panicked");
                go.recv().expect("the test lets it go on");
            }
            Timestamp::from_secs(1_000_000)
        }
    }

    /// One check that hangs must not stop the checks of all other clients, and sent twice at a time it is charged once.
    #[test]
    fn checks_with_other_ids_do_not_wait_and_the_same_id_is_charged_once() {
        let ((stopped, has_stopped), (let_go, go)) =
            (std::sync::mpsc::sync_channel(1), std::sync::mpsc::sync_channel(1));
        let store = MemoryStore::builder().clock(Gated { stopped, go: Mutex::new(go) }).build();
        let policy = Policy::new("p", Quota::per_minute(1_000)).expect("a plain name").scope(["user"]);
        let policies = PolicySet::new([policy]).expect("one name");
        let once = Once::default();
        let on_charges = |user: &str, verb, run: &dyn Fn(&Charges<'_>)| {
            let request = Request::new().with("user", user);
            run(&policies.plan(std::slice::from_ref(&request), Some(verb)).charges);
        };
        let used = |user: &str| {
            let used = std::cell::Cell::new(0);
            on_charges(user, Verb::Peek, &|charges| used.set(store.apply(charges)[0].used));
            used.get()
        };
        let same = || {
            on_charges("alice", Verb::Check, &|charges| {
                assert!(once.check(&store, charges, "same")[0].is_allowed());
            });
        };
        std::thread::scope(|scope| {
            let hangs = scope.spawn(|| {
                STOPS.set(true);
                same();
            });
            has_stopped.recv().expect("it has the lock of its shard");
            let locked = once.0.iter().filter(|shard| shard.try_lock().is_err()).count();
            assert_eq!(locked, 1, "it holds one shard of {SHARDS}");
            let again = scope.spawn(same);
            for id in (0..2 * SHARDS).map(|id| id.to_string()) {
                on_charges("bob", Verb::Check, &|charges| {
                    let shard = &once.0[place_of(hash_of(&store, charges, &id))];
                    if shard.try_lock().is_ok() {
                        assert!(once.check(&store, charges, &id)[0].is_allowed());
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
