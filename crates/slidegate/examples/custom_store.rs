//! A store of your own: usage in an ordered map under one lock.
//!
//! [`KeyState`] computes each decision as the stores of slidegate do. What is left for a store is
//! to find the state of a key, and to keep other calls away while it decides. Replace the map with
//! the table of a database that is embedded in your program, or wrap another store to observe its
//! calls.
//!
//! ```sh
//! cargo run -p slidegate --example custom_store
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};

use slidegate::store::{Charge, IdempotencyCache, KeyState, LocalStore, StoreDecisions, decide};
use slidegate::{
    Gate, Policy, PolicySet, Quota, Request,
    clock::{Clock, SystemClock, Timestamp},
    verb::Verb,
};

/// Usage by policy and key.
#[derive(Debug)]
struct MapStore<C> {
    clock: C,
    keys: Mutex<BTreeMap<(u32, Vec<u8>), KeyState>>,
    repeated: IdempotencyCache,
}

impl<C: Clock> MapStore<C> {
    fn new(clock: C) -> Self {
        Self { clock, keys: Mutex::default(), repeated: IdempotencyCache::default() }
    }
}

fn name(charge: &Charge<'_>) -> (u32, Vec<u8>) {
    (charge.policy_number(), charge.key().to_bytes())
}

impl<C: Clock> LocalStore for MapStore<C> {
    fn apply(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        decide(charges, decided, |position, verb, cost| {
            let (name, quota) = (name(&charges[position]), charges[position].quota());
            let mut state = keys.remove(&name).unwrap_or_else(|| KeyState::new(quota));
            let decision = state.apply(quota, verb, cost, now);
            // A key without usage need not be kept.
            if decision.used() > 0 {
                keys.insert(name, state);
            }
            decision
        });
    }

    fn check_once(&self, charges: &[Charge<'_>], id: &str, decided: &mut StoreDecisions) {
        self.repeated.check(charges, id, self.clock.now(), decided, |decided| self.apply(charges, decided));
    }

    fn reset(&self, charges: &[Charge<'_>]) -> bool {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let removed = charges.iter().filter_map(|charge| Some((keys.remove(&name(charge))?, charge.quota())));
        // What has expired is no usage.
        removed.fold(false, |had_usage, (mut state, quota)| {
            state.apply(quota, Verb::Peek, 0, now).used() > 0 || had_usage
        })
    }

    fn wall_time(&self) -> Timestamp {
        self.clock.wall_time(self.clock.now())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let policies = PolicySet::new([Policy::new("per-user", Quota::per_minute(2))?.with_scope(["user"])])?;
    let gate = Gate::with_store(policies, MapStore::new(SystemClock::new()))?;
    let alice = Request::new().with("user", "alice");
    for _ in 0..3 {
        let decisions = gate.check(&alice);
        let strictest = decisions.strictest().expect("the policy applies to every user");
        println!(
            "{:?}: {} of {} used",
            decisions.verdict(),
            strictest.decision().used(),
            strictest.decision().limit()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use slidegate::{Algorithm, Decision, MemoryStore, clock::ManualClock};

    use super::*;

    const USERS: [&str; 3] = ["alice", "bob", "carol"];
    const PATHS: [&str; 3] = ["/", "/login", "/other"];

    fn policies(algorithm: Algorithm, limits: [u64; 2], window_us: u64) -> PolicySet {
        let policies = ["narrow", "wide"].into_iter().zip(limits).map(|(name, limit)| {
            let quota = Quota::new(limit, Duration::from_micros(window_us)).unwrap();
            let scope: &[&str] = if name == "narrow" { &["user", "path"] } else { &["user"] };
            Policy::new(name, quota.with_algorithm(algorithm)).unwrap().with_scope(scope.iter().copied())
        });
        PolicySet::new(policies).unwrap()
    }

    fn all<'d>(decisions: impl IntoIterator<Item = &'d slidegate::Decisions<'d>>) -> Vec<Decision> {
        let one_by_one = |decisions: &slidegate::Decisions<'_>| -> Vec<_> {
            decisions.iter().map(|one| *one.decision()).collect()
        };
        decisions.into_iter().flat_map(one_by_one).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A store outside the crate must decide as those inside do.
        #[test]
        fn it_decides_as_the_memory_store(
            algorithm in prop::sample::select(&Algorithm::ALL[..]),
            steps in prop::collection::vec((0..6_u8, 0..3_usize, 0..2_usize, 0..5_u64, 0..700_u64), 1..60),
        ) {
            let clock = ManualClock::new();
            let quotas = |limits, window_us| policies(algorithm, limits, window_us);
            let ours = Gate::with_store(quotas([4, 6], 1_000), MapStore::new(clock.clone())).unwrap();
            let memory = MemoryStore::builder().clock(clock.clone()).build();
            let theirs = Gate::with_memory(quotas([4, 6], 1_000), memory);
            for (step, user, path, cost, later_us) in steps {
                clock.advance(Duration::from_micros(later_us));
                let verbs = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize];
                let user = USERS[user];
                let request =
                    |path| Request::new().with("user", user).with("path", path).with_cost(cost).with_verb(verbs[step as usize % 4]);
                let requests = [request(PATHS[path]), request(PATHS[2])];
                match step {
                    0..4 => prop_assert_eq!(all([&ours.apply(&requests)]), all([&theirs.apply(&requests)])),
                    4 => prop_assert_eq!(ours.reset(&requests[0]), theirs.reset(&requests[0])),
                    _ => {
                        let limits = [2 + cost, 8 - cost];
                        let window_us = 1_000 + later_us;
                        ours.configure(quotas(limits, window_us)).unwrap();
                        theirs.configure(quotas(limits, window_us)).unwrap();
                        // A `KeyState` takes the new quota over with its next charge, the memory
                        // store now. A penalty of a key that has all it may have charges nothing.
                        for user in USERS {
                            for path in PATHS {
                                let one = Request::new().with("user", user).with("path", path);
                                let one = [one.with_cost(1).with_verb(Verb::Penalize)];
                                let (own, other) = (all([&ours.apply(&one)]), all([&theirs.apply(&one)]));
                                if own.iter().all(|decision| decision.cost() > 0) {
                                    prop_assert_eq!(own, other);
                                } else {
                                    prop_assert_eq!(ours.reset(&one[0]), theirs.reset(&one[0]));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_repeated_check_is_charged_once() {
        let gate = Gate::with_store(
            policies(Algorithm::default(), [4, 6], 1_000),
            MapStore::new(ManualClock::new()),
        );
        let gate = gate.unwrap();
        let request = Request::new().with("user", "alice").with("path", "/").with_cost(3);
        let first = all([&gate.check_once(&request, "a")]);
        assert_eq!(all([&gate.check_once(&request, "a")]), first);
        assert!(gate.check_once(&request, "b").is_denied());
    }
}
