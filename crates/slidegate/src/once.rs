//! Once: the first answers to checks that carry an id, so that a client may send one again.
//!
//! They are bounded in number. Past it the oldest is forgotten early, and its check, sent again after that, is charged
//! again: that can deny too much and never admit too much.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::charge::Charges;
use crate::decision::Decision;
use crate::key::KeyId;
use crate::store::memory::MemoryStore;
use crate::time::Timestamp;
use crate::verb::Verb;

/// Most answers that are kept. With ids of 36 characters and one policy each they take some 30 MB.
pub(crate) const MAX_ANSWERS: usize = 1 << 16;

/// First answers that may be asked for again.
#[derive(Debug, Default)]
pub(crate) struct Once(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<Arc<Asked>, Answer>,
    /// Each answer once more, the oldest first. One that was replaced stands here twice, with two ends.
    order: VecDeque<(Timestamp, Arc<Asked>)>,
}

/// What must be the same for a check to be the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Asked {
    id: Box<str>,
    cost: u64,
    keys: SmallVec<[(u32, KeyId); 2]>,
}

#[derive(Debug)]
struct Answer {
    /// From then on the check is a new one.
    ends: Timestamp,
    decisions: SmallVec<[Decision; 2]>,
}

impl Once {
    /// Makes these charges, or gives the first answer again. Takes checks with an id one at a time.
    pub(crate) fn check(
        &self,
        store: &MemoryStore,
        charges: &Charges<'_>,
        id: &str,
    ) -> SmallVec<[Decision; 4]> {
        let Some(window) = charges.iter().map(|charge| charge.quota.window()).max() else {
            return SmallVec::new();
        };
        let keys = charges.iter().map(|charge| (charge.number, charge.key.id(store.secret()))).collect();
        let asked = Arc::new(Asked { id: id.into(), cost: charges[0].part.cost, keys });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = store.now();
        if let Some(first) = kept.answers.get(&asked).filter(|first| now < first.ends) {
            return first.decisions.iter().copied().collect();
        }
        let decisions = store.apply(Verb::Check, charges);
        // A denial has charged nothing: asked again it is decided anew.
        if !charges.iter().zip(&decisions).any(|(charge, one)| charge.part.enforced && one.is_denied()) {
            let answer = Answer { ends: now + window, decisions: decisions.iter().copied().collect() };
            kept.keep(now, asked, answer);
        }
        decisions
    }
}

impl Kept {
    fn keep(&mut self, now: Timestamp, asked: Arc<Asked>, answer: Answer) {
        while self.order.front().is_some_and(|(ends, _)| *ends <= now || self.order.len() >= MAX_ANSWERS) {
            let (ends, oldest) = self.order.pop_front().expect("there is a front");
            if self.answers.get(&oldest).is_some_and(|answer| answer.ends == ends) {
                self.answers.remove(&oldest);
            }
        }
        self.order.push_back((answer.ends, Arc::clone(&asked)));
        self.answers.insert(asked, answer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Gate, ManualClock, Policy, PolicySet, Quota, Request};

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

    /// Ids come from clients: a flood of them takes bounded memory, and what was forgotten is charged again.
    #[test]
    fn a_flood_of_ids_forgets_the_oldest_first_and_time_all_of_them() {
        let (gate, clock) = gate(1_000_000);
        let request = Request::new().with("user", "alice");
        for id in 0..=MAX_ANSWERS {
            gate.check_once(&request, &id.to_string());
        }
        let kept = |gate: &Gate| {
            let kept = gate.once.0.lock().expect("nobody panicked");
            (kept.answers.len(), kept.order.len())
        };
        assert_eq!(kept(&gate), (MAX_ANSWERS, MAX_ANSWERS));
        let charged = used(&gate, "alice");
        gate.check_once(&request, "1");
        assert_eq!(used(&gate, "alice"), charged, "the second is still known");
        gate.check_once(&request, "0");
        assert_eq!(used(&gate, "alice"), charged + 1, "the first is not");
        clock.advance(Duration::from_secs(60));
        gate.check_once(&request, "1");
        assert_eq!(kept(&gate), (1, 1));
    }
}
