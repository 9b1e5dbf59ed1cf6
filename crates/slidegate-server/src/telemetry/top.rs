//! Top keys: who uses most and who is denied most, in little memory.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, 2005): a fixed number of counters, and a key that has none takes the
//! smallest one over with its count. So a count is never too low, and too high by at most what was taken over, which is
//! known of each key and never above the sum of all counts divided by the number of counters. Sketches of several threads
//! and times are added up as Agarwal and others (2012) do: a key that one lacks may have its smallest count there.
//!
//! Counts are of the running and the last full period, so that the top is of now, and old keys leave.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::Timestamp;

use super::per_thread::{PerThread, thread};
use super::redaction::Redactor;

/// Counters of one policy, for each thread, period and order: 256 of about 100 bytes.
pub(super) const COUNTERS: usize = 256;
/// Most policies whose top is known, the first that are asked: 30 MB of full sketches of short keys for each thread.
const MAX_POLICIES: usize = 256;
/// How long a period is.
pub(super) const PERIOD: Duration = Duration::from_secs(300);

/// What keys are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// Charged cost.
    Used,
    /// Denials, those of shadow policies included.
    Denied,
}

impl By {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Denied => "denied",
        }
    }
}

#[derive(Debug)]
pub(super) struct Top {
    lanes: PerThread<Mutex<Tops>>,
}

/// The sketches of policies in both orders, by the policies' numbers.
type Sketches = HashMap<u32, [Sketch; 2]>;

/// The sketches of a period that nobody asks for any more. Up to 130,000 texts for each lane: dropping them takes long.
#[derive(Debug)]
#[must_use = "dropping it takes milliseconds, for which no decision should wait"]
pub(super) struct Outdated(#[allow(dead_code, reason = "it is there to be dropped")] Vec<Sketches>);

/// The sketches of one lane.
#[derive(Debug, Default)]
struct Tops {
    now: Sketches,
    before: Sketches,
    /// Where keys are written to be looked up.
    text: String,
}

/// How much is added to a count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    /// How many decisions the one that was looked at stands for.
    pub(super) decisions: u64,
    /// What each of them adds.
    pub(super) each: u64,
}

/// A key and how often it was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) key: Arc<str>,
    pub(super) count: u64,
    /// How much of the count may be others'.
    pub(super) over: u64,
    pub(super) last_at: Timestamp,
}

/// The top of one policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ranking {
    /// Most first; of those that are even, in the order of their text.
    pub(super) keys: Vec<Counted>,
    /// No key that is missing was counted more often than this.
    pub(super) error_bound: u64,
    /// Whether traffic was so much that counts are estimates from a sample.
    pub(super) is_sampled: bool,
}

impl Top {
    pub(super) fn new(lanes: usize) -> Self {
        Self { lanes: PerThread::new(lanes) }
    }

    /// Begins the next period: puts the sketches of the last one by, in a few steps for each lane, and hands out those of
    /// the one before.
    pub(super) fn turn(&self) -> Outdated {
        let put_by = |lane: &Mutex<Tops>| {
            let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            let last = std::mem::take(&mut lane.now);
            std::mem::replace(&mut lane.before, last)
        };
        Outdated(self.lanes.iter().map(put_by).collect())
    }

    /// Adds to a key's count. Waits for nobody: what comes while the top is read is not counted.
    pub(super) fn add(
        &self,
        policy: u32,
        by: By,
        key: impl fmt::Display,
        at: Timestamp,
        weight: Weight,
        redactor: &Redactor,
    ) {
        let Ok(mut lane) = self.lanes.of(thread()).try_lock() else { return };
        let lane = &mut *lane;
        if lane.now.len() == MAX_POLICIES && !lane.now.contains_key(&policy) {
            return;
        }
        lane.text.clear();
        write!(lane.text, "{key}").expect("text takes text");
        let key = redactor.cut(&lane.text);
        lane.now.entry(policy).or_default()[by as usize].add(&key, weight, at);
    }

    /// The top of a policy.
    pub(super) fn ranking(&self, policy: u32, by: By) -> Ranking {
        let mut sketches = Vec::new();
        for lane in self.lanes.iter() {
            let lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            sketches.extend(
                [&lane.now, &lane.before]
                    .into_iter()
                    .filter_map(|half| half.get(&policy).map(|sketches| sketches[by as usize].clone())),
            );
        }
        merged(&sketches)
    }
}

/// The counters of one policy in one order.
#[derive(Debug, Clone, Default)]
struct Sketch {
    /// At most [`COUNTERS`].
    counters: Vec<Counted>,
    places: HashMap<Arc<str>, usize>,
    /// Whether a counter was ever taken over: until then no key is missing.
    has_lost: bool,
    is_sampled: bool,
}

impl Sketch {
    fn add(&mut self, key: &str, weight: Weight, at: Timestamp) {
        self.is_sampled |= weight.decisions > 1;
        let weight = weight.decisions.saturating_mul(weight.each);
        if let Some(place) = self.places.get(key) {
            let counter = &mut self.counters[*place];
            counter.count = counter.count.saturating_add(weight);
            counter.last_at = counter.last_at.max(at);
            return;
        }
        let key: Arc<str> = key.into();
        if self.counters.len() < COUNTERS {
            self.places.insert(Arc::clone(&key), self.counters.len());
            self.counters.push(Counted { key, count: weight, over: 0, last_at: at });
            return;
        }
        self.has_lost = true;
        let place = self.smallest().expect("a full sketch has counters");
        let counter = &mut self.counters[place];
        self.places.remove(&counter.key);
        self.places.insert(Arc::clone(&key), place);
        let count = counter.count.saturating_add(weight);
        *counter = Counted { key, count, over: counter.count, last_at: at };
    }

    /// The place of the smallest counter.
    fn smallest(&self) -> Option<usize> {
        (0..self.counters.len()).min_by_key(|place| self.counters[*place].count)
    }

    /// How often a key without a counter may have been counted.
    fn missing(&self) -> u64 {
        let smallest = self.smallest().filter(|_| self.has_lost);
        smallest.map_or(0, |place| self.counters[place].count)
    }
}

fn merged(sketches: &[Sketch]) -> Ranking {
    let error_bound = sketches.iter().map(Sketch::missing).sum();
    let mut keys: HashMap<&str, Counted> = HashMap::new();
    for sketch in sketches {
        let missing = sketch.missing();
        for one in &sketch.counters {
            // As if it were missing everywhere; where it is not, its counter stands instead.
            let sum = keys.entry(&one.key).or_insert_with(|| Counted {
                count: error_bound,
                over: error_bound,
                ..one.clone()
            });
            sum.count = (sum.count - missing).saturating_add(one.count);
            sum.over = (sum.over - missing).saturating_add(one.over);
            sum.last_at = sum.last_at.max(one.last_at);
        }
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
    Ranking { keys, error_bound, is_sampled: sketches.iter().any(|sketch| sketch.is_sampled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(each: u64) -> Weight {
        Weight { decisions: 1, each }
    }

    /// Keys in proportion to 1/n, by a generator with a seed.
    fn stream(seed: u64, length: usize) -> Vec<String> {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
        };
        // Uniform in the exponent: key n has the weight ln(1 + 1/n).
        (0..length).map(|_| format!("k{}", 100_000_f64.powf(random()).floor())).collect()
    }

    /// Somebody is blocked by what this says: no count may be further off than stated, and no heavy key may be missing.
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
            let ranking = merged(&sketches);
            assert!(ranking.error_bound <= total / COUNTERS as u64 && ranking.error_bound > 0);
            if sketches.len() < 2 {
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

    /// Few keys are counted without any error.
    #[test]
    fn up_to_the_number_of_counters_counts_are_exact() {
        let mut sketch = Sketch::default();
        for n in 0..COUNTERS {
            for _ in 0..=n % 7 {
                sketch.add(&n.to_string(), each(2), Timestamp::from_secs(n as u64));
            }
        }
        let ranking = merged(&[sketch]);
        assert_eq!((ranking.error_bound, ranking.keys.len()), (0, COUNTERS));
        for counted in ranking.keys {
            let n: u64 = counted.key.parse().unwrap();
            assert_eq!(
                (counted.count, counted.over, counted.last_at),
                (2 * (n % 7 + 1), 0, Timestamp::from_secs(n))
            );
        }
    }

    /// Yesterday's attacker must not stand above today's.
    #[test]
    fn what_is_older_than_two_periods_is_forgotten() {
        let (top, redactor) = (Top::new(1), Redactor::new(None));
        let policy = slidegate::Policy::new("p", slidegate::Quota::per_minute(1)).unwrap().scope(["user"]);
        let gate = slidegate::Gate::new(slidegate::PolicySet::new([policy]).unwrap());
        let count = |user: &str| {
            let request = slidegate::Request::new().with("user", user);
            let decisions = gate.peek(&request);
            let one = decisions.iter().next().unwrap();
            top.add(3, By::Denied, one.key(), one.at, each(1), &redactor);
        };
        let keys =
            || top.ranking(3, By::Denied).keys.iter().map(|one| one.key.to_string()).collect::<Vec<_>>();
        count("old");
        assert!(top.turn().0[0].is_empty());
        count("new");
        assert_eq!(keys(), ["new", "old"]);
        assert_eq!(top.ranking(3, By::Used), Ranking::default());
        assert_eq!(top.turn().0[0].len(), 1, "the old ones go to who turns, and no decision drops them");
        assert_eq!(keys(), ["new"]);
        assert_eq!(top.turn().0[0].len(), 1);
        assert_eq!(keys(), [""; 0]);
    }
}
