//! Top keys: the keys with the most usage and denials, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, 2005): a fixed number of counters; a key without one takes
//! over the smallest, with its count. A count is never too low. It is too high by at most the count taken
//! over, which is stored per key and is at most the sum of all counts divided by the number of counters.
//! Sketches are merged as in Agarwal et al. (2012): a key missing in one may have that sketch's smallest
//! count.
//!
//! Counts cover the current and the last full period, so old keys expire.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::{Amount, clock::Timestamp};

use super::per_thread::{PerThread, thread};
use super::redaction::Redactor;

/// Counters per policy, thread, period and order: 256 of about 100 bytes.
pub(crate) const COUNTERS: usize = 256;
/// Maximum policies with top keys, first come first served: 30 MB per thread of full sketches of short keys.
const MAX_POLICIES: usize = 256;
/// Length of a period.
pub(crate) const PERIOD: Duration = Duration::from_secs(300);

/// The sort order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Charged cost; of reservations, when they are settled or expire.
    Used,
    /// Denials, including those of shadow policies.
    Denied,
}

impl By {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Denied => "denied",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Top {
    copies: PerThread<Mutex<ThreadTops>>,
}

/// The sketches of policies in both orders, by policy number.
type Sketches = HashMap<u32, [Sketch; 2]>;

/// The sketches of an expired period: up to 130,000 strings per thread, which are slow to drop.
#[derive(Debug)]
#[must_use = "dropping it takes milliseconds, which must not delay a decision"]
pub(crate) struct Outdated(#[allow(dead_code, reason = "only dropped")] Vec<Sketches>);

/// The sketches of one thread.
#[derive(Debug, Default)]
struct ThreadTops {
    now: Sketches,
    before: Sketches,
    /// Buffer for a key's text.
    text: String,
}

/// An increment of a count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight {
    /// The weight of the sampled decision.
    pub(crate) decisions: u64,
    /// The increment per decision.
    pub(crate) each: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyCount {
    pub(crate) key: Arc<str>,
    pub(crate) count: u64,
    /// Maximum overestimate of the count.
    pub(crate) over: u64,
    pub(crate) last_at: Timestamp,
}

/// The top keys of one policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranking {
    /// Highest count first; ties in the order of the key's text.
    pub(crate) keys: Vec<KeyCount>,
    /// Upper bound of the count of any key not listed.
    pub(crate) error_bound: u64,
    /// Whether counts are estimated from a sample.
    pub(crate) is_sampled: bool,
    /// Whether counts are millionths of a unit.
    pub(crate) in_millionths: bool,
}

impl Top {
    pub(crate) fn new(copies: usize) -> Self {
        Self { copies: PerThread::new(copies) }
    }

    /// Starts the next period, in a few steps per thread, and returns the expired sketches.
    pub(crate) fn turn(&self) -> Outdated {
        let put_by = |copy: &Mutex<ThreadTops>| {
            let mut copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
            let last = std::mem::take(&mut copy.now);
            std::mem::replace(&mut copy.before, last)
        };
        Outdated(self.copies.iter().map(put_by).collect())
    }

    /// Adds to a key's count. Never blocks: an increment during a read is lost.
    pub(crate) fn add(
        &self,
        policy: u32,
        by: By,
        key: impl fmt::Display,
        at: Timestamp,
        weight: Weight,
        redactor: &Redactor,
    ) {
        let Ok(mut copy) = self.copies.of(thread()).try_lock() else { return };
        let copy = &mut *copy;
        if copy.now.len() == MAX_POLICIES && !copy.now.contains_key(&policy) {
            return;
        }
        copy.text.clear();
        write!(copy.text, "{key}").expect("writing to a String cannot fail");
        let key = redactor.cut(&copy.text);
        copy.now.entry(policy).or_default()[by as usize].add(&key, weight, at);
    }

    pub(crate) fn ranking(&self, policy: u32, by: By) -> Ranking {
        let mut rankings = Vec::new();
        for copy in self.copies.iter() {
            let copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
            rankings.extend(
                [&copy.now, &copy.before]
                    .into_iter()
                    .filter_map(|half| half.get(&policy).map(|sketches| sketches[by as usize].ranking())),
            );
        }
        Ranking::merged(&rankings)
    }
}

/// The counters of one policy in one order.
#[derive(Debug, Clone, Default)]
struct Sketch {
    /// At most [`COUNTERS`].
    counters: Vec<KeyCount>,
    positions: HashMap<Arc<str>, usize>,
    /// Whether a counter was ever taken over. Until then no key is missing.
    has_lost: bool,
    is_sampled: bool,
}

impl Sketch {
    fn add(&mut self, key: &str, weight: Weight, at: Timestamp) {
        self.is_sampled |= weight.decisions > 1;
        let weight = weight.decisions.saturating_mul(weight.each);
        if let Some(index) = self.positions.get(key) {
            let counter = &mut self.counters[*index];
            counter.count = counter.count.saturating_add(weight);
            counter.last_at = counter.last_at.max(at);
            return;
        }
        let key: Arc<str> = key.into();
        if self.counters.len() < COUNTERS {
            self.positions.insert(Arc::clone(&key), self.counters.len());
            self.counters.push(KeyCount { key, count: weight, over: 0, last_at: at });
            return;
        }
        if weight == 0 {
            return;
        }
        self.has_lost = true;
        let index = self.smallest().expect("a full sketch has counters");
        let counter = &mut self.counters[index];
        self.positions.remove(&counter.key);
        self.positions.insert(Arc::clone(&key), index);
        let count = counter.count.saturating_add(weight);
        *counter = KeyCount { key, count, over: counter.count, last_at: at };
    }

    /// The index of the smallest counter.
    fn smallest(&self) -> Option<usize> {
        (0..self.counters.len()).min_by_key(|index| self.counters[*index].count)
    }

    /// The keys, unordered, and the upper bound of the count of a key without a counter.
    fn ranking(&self) -> Ranking {
        let smallest = self.smallest().filter(|_| self.has_lost);
        let error_bound = smallest.map_or(0, |index| self.counters[index].count);
        Ranking {
            keys: self.counters.clone(),
            error_bound,
            is_sampled: self.is_sampled,
            in_millionths: false,
        }
    }
}

/// A count in units.
pub(crate) fn amount(count: u64, in_millionths: bool) -> Amount {
    if in_millionths { Amount::from_millionths(count) } else { count.into() }
}

impl Ranking {
    /// Merges rankings, which may be in any order.
    pub(crate) fn merged(rankings: &[Self]) -> Self {
        let error_bound = rankings.iter().fold(0, |sum: u64, one| sum.saturating_add(one.error_bound));
        let mut keys: HashMap<&str, KeyCount> = HashMap::new();
        for Self { keys: counted, error_bound: missing, .. } in rankings {
            for one in counted {
                // Start as if the key were missing in every ranking; replace the bound where it is listed.
                let sum = keys.entry(&one.key).or_insert_with(|| KeyCount {
                    count: error_bound,
                    over: error_bound,
                    ..one.clone()
                });
                sum.count = sum.count.saturating_sub(*missing).saturating_add(one.count);
                sum.over = sum.over.saturating_sub(*missing).saturating_add(one.over);
                sum.last_at = sum.last_at.max(one.last_at);
            }
        }
        let mut keys: Vec<_> = keys.into_values().collect();
        keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        let is_sampled = rankings.iter().any(|one| one.is_sampled);
        Self { keys, error_bound, is_sampled, in_millionths: rankings.iter().any(|one| one.in_millionths) }
    }

    /// A count in units.
    pub(crate) fn amount(&self, count: u64) -> Amount {
        amount(count, self.in_millionths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(each: u64) -> Weight {
        Weight { decisions: 1, each }
    }

    /// Zipf-distributed keys from a seeded generator.
    fn stream(seed: u64, length: usize) -> Vec<String> {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
        };
        // Uniform in the exponent: key n has the weight ln(1 + 1/n).
        (0..length).map(|_| format!("k{}", 100_000_f64.powf(random()).floor())).collect()
    }

    /// Operators block keys by this list: errors must be within the stated bound, and no heavy key
    /// may be missing.
    #[test]
    fn counts_of_a_skewed_stream_are_within_the_stated_error() {
        let (mut one, mut two) = (Sketch::default(), Sketch::default());
        let mut exact: HashMap<String, u64> = HashMap::new();
        let mut total = 0;
        for (n, key) in stream(7, 200_000).into_iter().enumerate() {
            let weight = 1 + (n as u64 % 3);
            if n % 3 == 0 { &mut one } else { &mut two }.add(
                &key,
                each(weight),
                Timestamp::from_secs(n as u64),
            );
            *exact.entry(key).or_default() += weight;
            total += weight;
        }
        for sketches in [vec![one.clone()], vec![one, two]] {
            let rankings: Vec<_> = sketches.iter().map(Sketch::ranking).collect();
            let ranking = Ranking::merged(&rankings);
            assert!(ranking.error_bound <= total / COUNTERS as u64 && ranking.error_bound > 0);
            if rankings.len() < 2 {
                continue;
            }
            for counted in &ranking.keys {
                let truth = exact[&*counted.key];
                assert!(counted.count >= truth, "{counted:?} is {truth}");
                assert!(counted.count - counted.over <= truth, "{counted:?} is {truth}");
                assert!(counted.over <= ranking.error_bound, "{counted:?}");
            }
            for (key, truth) in exact.iter().filter(|(_, truth)| **truth > ranking.error_bound) {
                assert!(ranking.keys.iter().any(|counted| *counted.key == **key), "{key} with {truth}");
            }
            let order: Vec<_> = ranking.keys.iter().take(5).map(|counted| &*counted.key).collect();
            assert_eq!(order, ["k1", "k2", "k3", "k4", "k5"]);
        }
    }

    /// Few keys must be counted exactly.
    #[test]
    fn up_to_the_number_of_counters_counts_are_exact() {
        let mut sketch = Sketch::default();
        for n in 0..COUNTERS {
            for _ in 0..=n % 7 {
                sketch.add(&n.to_string(), each(2), Timestamp::from_secs(n as u64));
            }
        }
        let ranking = Ranking::merged(&[sketch.ranking()]);
        assert_eq!((ranking.error_bound, ranking.keys.len()), (0, COUNTERS));
        for counted in ranking.keys {
            let n: u64 = counted.key.parse().unwrap();
            assert_eq!(
                (counted.count, counted.over, counted.last_at),
                (2 * (n % 7 + 1), 0, Timestamp::from_secs(n))
            );
        }
    }

    /// Yesterday's attacker must not rank above today's.
    #[test]
    fn what_is_older_than_two_periods_is_forgotten() {
        let (top, redactor) = (Top::new(1), Redactor::new(None));
        let policy =
            slidegate::Policy::new("p", slidegate::Quota::per_minute(1)).unwrap().with_scope(["user"]);
        let gate = slidegate::Gate::new(slidegate::PolicySet::new([policy]).unwrap());
        let count = |user: &str| {
            let request = slidegate::Request::new().with("user", user);
            let decisions = gate.peek(&request);
            let one = decisions.iter().next().unwrap();
            top.add(3, By::Denied, one.key(), one.decision().at(), each(1), &redactor);
        };
        let keys =
            || top.ranking(3, By::Denied).keys.iter().map(|one| one.key.to_string()).collect::<Vec<_>>();
        count("old");
        assert!(top.turn().0[0].is_empty());
        count("new");
        assert_eq!(keys(), ["new", "old"]);
        assert_eq!(top.ranking(3, By::Used), Ranking::default());
        assert_eq!(top.turn().0[0].len(), 1, "the caller drops the old ones, not a decision");
        assert_eq!(keys(), ["new"]);
        assert_eq!(top.turn().0[0].len(), 1);
        assert_eq!(keys(), [""; 0]);
    }
}
