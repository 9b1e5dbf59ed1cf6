//! Size forecasts: how many bytes keys take in Redis and in the memory store, and how much of Redis
//! their decisions need.
//!
//! Bytes in Redis are computed from the layout of the values and from the allocations that Redis 7
//! makes for a key; the memory store is asked itself. A test builds both and compares. Later
//! releases of Redis take less.

use serde::Serialize;
use slidegate::{
    Algorithm, Excess, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Timestamp,
};

use charges::Charges;
pub use measure::Measurement;
use redis::RedisKey;
pub use redis::{redis_bytes_at_most, redis_holds_bytes};

mod charges;
mod measure;
mod redis;

/// The share of a Redis core that decisions may take. The rest is for bursts, for expiry and
/// persistence, and for the shards of a node that failed.
const SHARD_UTILIZATION: f64 = 0.6;

/// What is known or assumed about the keys of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Demand {
    /// Keys that exist at once.
    pub keys: u64,
    /// Bytes of a key's id: the values of the scope, joined by commas.
    pub key_bytes: u64,
    /// Decisions per second, at the peak. 0 if unknown.
    pub decisions_per_second: f64,
    /// Cost of one request.
    pub cost: u64,
    /// Requests that count on a key at once, on average. `None`: derived from the rate.
    pub charges_per_key: Option<f64>,
}

/// Where keys live and how much fits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shard {
    /// Whether the keys are in a Redis cluster, which keeps a list of the keys of each slot.
    pub is_cluster: bool,
    /// Bytes that one shard may hold. `None`: not known, so that only the rate decides.
    pub max_bytes: Option<u64>,
}

/// The forecast of one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// The name of the policy.
    pub policy: String,
    /// Cost per window.
    pub limit: u64,
    /// The window, as in a configuration.
    pub window: String,
    /// The policy's algorithm.
    pub algorithm: &'static str,
    /// What it is based on.
    pub demand: Demand,
    /// Requests that count on a key at once, on average.
    pub charges_per_key: f64,
    /// By algorithm; the policy's own first.
    pub algorithms: Vec<AlgorithmForecast>,
}

/// The forecast of one policy under one algorithm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AlgorithmForecast {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Bytes in Redis, as its `used_memory` counts them.
    pub redis: Bytes,
    /// Bytes in the memory store, as its bound counts them.
    pub memory: Bytes,
    /// CPU time of Redis for one decision that is charged, in microseconds.
    pub redis_cpu_us: f64,
    /// Decisions per second that keep one Redis core busy.
    pub decisions_per_core: u64,
    /// Shards for the rate, and for the worst case if it is known how much a shard holds.
    pub shards: u64,
}

/// Bytes of all keys, and of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// All keys, each with one request.
    pub first: u64,
    /// All keys, each with the average number of requests.
    pub typical: u64,
    /// All keys, each full: the worst case.
    pub full: u64,
    /// One key with the average number of requests.
    pub typical_key: u64,
    /// One full key.
    pub full_key: u64,
}

impl Forecast {
    /// The forecast for a policy.
    #[must_use]
    pub fn of(policy: &Policy, demand: Demand, shard: Shard) -> Self {
        let quota = &policy.counted(policy.quota());
        let cost = policy.count(demand.cost.into()).clamp(1, quota.capacity().max(1));
        let demand = Demand { cost, ..demand };
        let most = (quota.capacity() / cost).max(1);
        #[allow(clippy::cast_precision_loss)] // an average
        let charges_per_key = demand.charges_per_key.unwrap_or_else(|| {
            demand.decisions_per_second * quota.window().as_secs_f64() / demand.keys.max(1) as f64
        });
        #[allow(clippy::cast_precision_loss)] // as above
        let charges_per_key = charges_per_key.min(most as f64);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at most `most`
        let typical = (charges_per_key.ceil() as u64).clamp(1, most);
        let own = quota.algorithm();
        // Neither what is in flight nor a month can be counted by another one.
        let has_others = own != Algorithm::InFlight && quota.calendar_window().is_none();
        let is_other = |algorithm: &Algorithm| has_others && *algorithm != own;
        let others = Algorithm::ALL.into_iter().filter(is_other);
        let algorithms = std::iter::once(own).chain(others);
        let load = Load { name_bytes: policy.name().len() as u64, demand, typical, shard };
        Self {
            policy: policy.name().to_owned(),
            limit: policy.quota().limit(),
            window: quota.window_text(),
            algorithm: own.name(),
            demand,
            charges_per_key,
            algorithms: algorithms
                .map(|algorithm| load.forecast(&quota.with_algorithm(algorithm), policy.excess()))
                .collect(),
        }
    }

    /// The forecast under the policy's own algorithm.
    #[must_use]
    pub fn own(&self) -> &AlgorithmForecast {
        &self.algorithms[0]
    }
}

/// What the forecasts of all algorithms have in common.
struct Load {
    /// Bytes of the policy's name.
    name_bytes: u64,
    demand: Demand,
    /// Requests on a key of average use.
    typical: u64,
    shard: Shard,
}

impl Load {
    fn forecast(&self, quota: &Quota, excess: Excess) -> AlgorithmForecast {
        let Demand { keys, key_bytes, cost, .. } = self.demand;
        let fullest = match excess {
            // Refused requests fill the log as well.
            Excess::Count => u64::from(quota.slots()).max(quota.capacity() / cost),
            _ => quota.capacity() / cost,
        };
        let charges = [1, self.typical.min(fullest.max(1)), fullest.max(1)];
        let redis = charges.map(|charges| {
            let key = RedisKey::new(quota, self.name_bytes, key_bytes, Charges { charges, cost });
            key.bytes(self.shard.is_cluster)
        });
        let tables = redis::table_bytes(keys);
        let memory = charges.map(|charges| memory_key(quota, Charges { charges, cost }));
        // No key is evicted from a store that has room for all.
        let empty = MemoryStore::builder().max_keys(clamped(keys)).estimate(0);
        let shards_bytes = (empty.bytes - empty.evicted_bytes) as u64;
        let redis_cpu_us = redis::cpu_us(quota.algorithm());
        let redis = Bytes::of(keys, redis, tables);
        let for_rate = self.demand.decisions_per_second * redis_cpu_us / 1e6 / SHARD_UTILIZATION;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let for_rate = for_rate.ceil() as u64;
        let for_bytes = self.shard.max_bytes.map_or(0, |most| redis.full.div_ceil(most.max(1)));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below a million
        let decisions_per_core = (1e6 / redis_cpu_us) as u64;
        AlgorithmForecast {
            algorithm: quota.algorithm().name(),
            redis,
            memory: Bytes::of(keys, memory, shards_bytes),
            redis_cpu_us,
            decisions_per_core,
            shards: for_rate.max(for_bytes).max(1),
        }
    }
}

impl Bytes {
    /// `beside` is what the keys take together, besides what each takes.
    fn of(keys: u64, each: [u64; 3], beside: u64) -> Self {
        let [first, typical, full] = each.map(|bytes| bytes.saturating_mul(keys).saturating_add(beside));
        let one = |bytes: u64| bytes.checked_div(keys).unwrap_or_default();
        Self { first, typical, full, typical_key: one(typical), full_key: one(full) }
    }
}

/// Bytes of one key in the memory store: its share of a table, which is 82 % full on average, and
/// what its log holds beside it.
///
/// A table grows by an eighth when it is 7/8 full, so a key has from 8/7 to 9/7 slots. The library
/// says what the most is, and the average lies between.
fn memory_key(quota: &Quota, charges: Charges) -> u64 {
    let without_log = Quota::per_second(1).with_algorithm(quota.algorithm());
    let most = MemoryStore::bytes_per_key(&without_log, Excess::Refuse) as u64;
    most * 17 / 18 + log_bytes(quota, charges)
}

/// What a log holds outside the table: measured on a store with one key, whose table is there
/// with the first charge.
fn log_bytes(quota: &Quota, charges: Charges) -> u64 {
    if quota.algorithm() != Algorithm::SlidingLog {
        return 0;
    }
    let (entries, cost) = charges.entries(quota);
    // Two windows after the epoch: no step reaches back before it.
    let window_us = u64::try_from(quota.window().as_micros()).unwrap_or(u64::MAX);
    let start_us = 2 * window_us;
    let clock = ManualClock::at(Timestamp::from_micros(start_us));
    let store = MemoryStore::builder().max_keys(1).clock(clock.clone()).build();
    let only = Policy::new("only", *quota).and_then(|policy| PolicySet::new([policy]));
    let gate = Gate::with_memory(only.expect("a policy without conditions is a set"), store);
    let request = Request::new().with_cost(cost);
    let mut table = None;
    for entry in 0..entries {
        clock.set(Timestamp::from_micros(start_us + window_us / (entries + 1) * entry));
        gate.penalize(&request);
        table.get_or_insert_with(|| gate.store().stats().bytes);
    }
    gate.store().stats().bytes.saturating_sub(table.unwrap_or_default()) as u64
}

/// A number of keys that a store may have.
fn clamped(keys: u64) -> usize {
    usize::try_from(keys.clamp(1, 1_000_000_000)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(quota: Quota) -> Policy {
        Policy::new("p", quota).unwrap().with_scope(["user"])
    }

    fn demand(keys: u64, decisions_per_second: f64) -> Demand {
        Demand { keys, key_bytes: 24, decisions_per_second, cost: 1, charges_per_key: None }
    }

    /// Anyone who buys machines by the forecast needs the share of the limit that is really used.
    #[test]
    fn the_average_use_follows_from_the_rate_and_is_at_most_the_limit() {
        let of = |rate| Forecast::of(&policy(Quota::per_minute(100)), demand(1000, rate), Shard::default());
        assert!((of(500.0).charges_per_key - 30.0).abs() < 1e-9);
        assert!((of(5000.0).charges_per_key - 100.0).abs() < 1e-9);
        assert_eq!(of(0.0).own().redis.typical, of(0.0).own().redis.first);
        assert_eq!(of(5000.0).own().redis.typical, of(5000.0).own().redis.full);
        assert!(of(500.0).own().redis.typical < of(500.0).own().redis.full);
    }

    /// The policy's own algorithm is the one that decides what is needed, and comes first.
    #[test]
    fn shards_follow_from_the_rate_and_from_what_one_holds() {
        let quota = Quota::per_minute(100).with_algorithm(Algorithm::TokenBucket);
        let of = |rate, max_bytes| {
            let shard = Shard { is_cluster: true, max_bytes };
            Forecast::of(&policy(quota), demand(1_000_000, rate), shard)
        };
        let few = of(1000.0, None);
        assert_eq!(
            (few.algorithm, few.own().algorithm, few.own().shards),
            ("token-bucket", "token-bucket", 1)
        );
        // 139,000 per core, of which 60 % are used: 250,000 need three.
        assert_eq!(of(250_000.0, None).own().shards, 3);
        let bytes = few.own().redis.full;
        assert_eq!(of(1000.0, Some(bytes / 4 - 1)).own().shards, 5);
        assert_eq!(few.algorithms.len(), 4);
    }

    /// Bytes of another algorithm would be those of any 31 days, not of a month.
    #[test]
    fn a_calendar_window_is_shown_under_its_own_algorithm_only() {
        let monthly = policy(Quota::calendar(100, slidegate::Calendar::month()));
        let forecast = Forecast::of(&monthly, demand(1000, 10.0), Shard::default());
        let algorithms: Vec<_> = forecast.algorithms.iter().map(|one| one.algorithm).collect();
        assert_eq!((forecast.window.as_str(), algorithms), ("month", vec!["fixed-window"]));
    }

    /// A quota that admits nothing stores nothing, and the command must still answer.
    #[test]
    fn unusual_quotas_have_a_forecast() {
        for (limit, cost) in [(0, 1), (1, 1), (u64::MAX, 1), (100, 1000), (10_000_000, 7)] {
            let window = std::time::Duration::from_secs(366 * 86_400);
            let quota = Quota::new(limit, window).unwrap();
            let demand = Demand { cost, ..demand(10, 1.0) };
            let forecast = Forecast::of(&policy(quota), demand, Shard::default());
            for one in &forecast.algorithms {
                assert!(one.redis.first > 0 && one.redis.first <= one.redis.full, "{limit} {one:?}");
                assert!(one.memory.first > 0 && one.memory.first <= one.memory.full, "{limit} {one:?}");
            }
        }
        let none = Forecast::of(&policy(Quota::per_minute(5)), demand(0, 0.0), Shard::default());
        assert_eq!(none.own().redis.full_key, 0);
    }
}
