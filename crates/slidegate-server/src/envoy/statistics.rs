//! Statistics per limit, with the names and semantics of envoyproxy/ratelimit.
//!
//! Each limit references its counters, which are kept by name and survive reloads. Unlike in
//! envoyproxy/ratelimit, the number of names with request values is bounded: further hits count
//! under the limit's name.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use slidegate::DecisionSource;

use super::names::{StatKey, sanitised};

/// Maximum names with request values: about a hundred bytes and six time series each.
const MAX_VALUED: usize = 4096;
/// Shards of the table of such names, to avoid lock contention.
const SHARDS: usize = 16;
/// Maximum unknown domains counted separately.
const MAX_UNKNOWN_DOMAINS: usize = 256;
/// Maximum bytes of such a domain or name.
const MAX_NAME_BYTES: usize = 512;
/// Maximum names kept after a reload removed their limits.
const MAX_UNUSED: usize = 1024;
/// Default of `NEAR_LIMIT_RATIO`: hits above this fraction of the limit are near it.
pub(crate) const NEAR_LIMIT_RATIO: f32 = 0.8;

/// A counter of a limit. The discriminant is its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HitCounter {
    TotalHits,
    /// Hits over the limit.
    OverLimit,
    /// Hits near the limit.
    NearLimit,
    /// Hits over the limit that were answered from the denial cache.
    OverLimitWithLocalCache,
    /// Hits within the limit.
    WithinLimit,
    /// Hits over a limit in shadow mode.
    ShadowMode,
}

impl HitCounter {
    /// Each counter's name in statistics and metrics, and the metric's help text.
    pub(crate) const ALL: [(Self, &str, &str); 6] = [
        (Self::TotalHits, "total_hits", "Hits, allowed or not"),
        (Self::OverLimit, "over_limit", "Hits that were over the limit"),
        (Self::NearLimit, "near_limit", "Hits between the near-limit ratio and the limit"),
        (
            Self::OverLimitWithLocalCache,
            "over_limit_with_local_cache",
            "Hits over the limit that were answered from the denial cache",
        ),
        (Self::WithinLimit, "within_limit", "Hits that were within the limit"),
        (Self::ShadowMode, "shadow_mode", "Hits over a limit in shadow mode"),
    ];
}

/// The counters of one name, on their own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct LimitCounters {
    counts: [AtomicU64; HitCounter::ALL.len()],
    /// Whether a descriptor with 0 hits has peeked at the limit.
    is_peeked: AtomicBool,
}

/// A request's hits on one limit, and their outcome.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedHits {
    pub(crate) hits: u64,
    /// Usage before this request.
    pub(crate) before: u64,
    pub(crate) limit: u64,
    /// Whether they are over the limit.
    pub(crate) is_over: bool,
    /// Whether the limit is in shadow mode.
    pub(crate) is_shadow: bool,
    pub(crate) source: DecisionSource,
}

impl LimitCounters {
    fn add(&self, counter: HitCounter, hits: u64) {
        if hits > 0 {
            self.counts[counter as usize].fetch_add(hits, Relaxed);
        }
    }

    /// Records hits like envoyproxy/ratelimit: hits on both sides of a threshold are split.
    fn record(&self, recorded: &RecordedHits, near_limit_ratio: f32) {
        let &RecordedHits { hits, before, limit, is_over, is_shadow, source } = recorded;
        self.add(HitCounter::TotalHits, hits);
        if !is_over {
            let near = near_limit(limit, near_limit_ratio);
            let after = before.saturating_add(hits).min(limit);
            self.add(HitCounter::NearLimit, after.saturating_sub(near.max(before)));
            self.add(HitCounter::WithinLimit, hits);
            return;
        }
        if is_shadow {
            self.add(HitCounter::ShadowMode, hits);
        }
        if source == DecisionSource::CachedDenial {
            self.add(HitCounter::OverLimit, hits);
            self.add(HitCounter::OverLimitWithLocalCache, hits);
        } else if before >= limit {
            self.add(HitCounter::OverLimit, hits);
        } else {
            let near = near_limit(limit, near_limit_ratio);
            self.add(HitCounter::OverLimit, before.saturating_add(hits).saturating_sub(limit));
            self.add(HitCounter::NearLimit, limit - near.max(before));
        }
    }

    /// Records that a descriptor with 0 hits peeked.
    pub(crate) fn mark_peeked(&self) {
        // Reading first keeps the cache line shared between threads.
        if !self.is_peeked() {
            self.is_peeked.store(true, Relaxed);
        }
    }

    /// Whether any descriptor peeked.
    pub(crate) fn is_peeked(&self) -> bool {
        self.is_peeked.load(Relaxed)
    }

    pub(crate) fn get(&self, counter: HitCounter) -> u64 {
        self.counts[counter as usize].load(Relaxed)
    }
}

/// The usage above which hits are near the limit. Computed as in envoyproxy/ratelimit: in 32-bit
/// floats, rounded down.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn near_limit(limit: u64, ratio: f32) -> u64 {
    ((limit as f32 * ratio) as u64).min(limit)
}

/// A name with its counters.
#[derive(Debug, Clone)]
pub(crate) struct NamedCounters {
    pub(crate) key: StatKey,
    pub(crate) counters: Arc<LimitCounters>,
}

#[derive(Debug)]
pub(crate) struct Statistics {
    near_limit_ratio: f32,
    /// Limits of the files, by name.
    named: Mutex<HashMap<String, NamedCounters>>,
    /// Names with request values.
    valued: [RwLock<HashMap<String, NamedCounters>>; SHARDS],
    valued_count: AtomicUsize,
    has_warned: AtomicBool,
    hasher: RandomState,
    /// Calls per unknown domain.
    unknown_domains: RwLock<BTreeMap<String, AtomicU64>>,
    other_unknown_domains: AtomicU64,
    calls: CallCounters,
}

#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    /// All calls.
    pub(crate) total: AtomicU64,
    /// Malformed calls, and calls before any config was loaded.
    pub(crate) service_errors: AtomicU64,
    /// Calls decided by a fallback because Redis was unavailable. envoyproxy/ratelimit fails them.
    pub(crate) redis_errors: AtomicU64,
    /// Calls that would have been denied without `SHADOW_MODE`.
    pub(crate) global_shadow_mode: AtomicU64,
    /// Successful and rejected loads of config files.
    pub(crate) loads_succeeded: AtomicU64,
    pub(crate) loads_failed: AtomicU64,
}

impl Statistics {
    pub(crate) fn new(near_limit_ratio: f32) -> Self {
        Self {
            near_limit_ratio,
            named: Mutex::default(),
            valued: std::array::from_fn(|_| RwLock::default()),
            valued_count: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
            hasher: RandomState::new(),
            unknown_domains: RwLock::default(),
            other_unknown_domains: AtomicU64::new(0),
            calls: CallCounters::default(),
        }
    }

    /// The counters of a limit in the files.
    pub(crate) fn named(&self, key: &StatKey) -> Arc<LimitCounters> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || NamedCounters { key: key.clone(), counters: Arc::default() };
        Arc::clone(&named.entry(key.text().to_owned()).or_insert_with(new).counters)
    }

    /// Removes names that no config uses, if there are too many.
    pub(crate) fn forget_unused(&self) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unused = |one: &NamedCounters| Arc::strong_count(&one.counters) == 1;
        let mut too_many = named.values().filter(|one| is_unused(one)).count().saturating_sub(MAX_UNUSED);
        named.retain(|_, one| {
            let is_removed = too_many > 0 && is_unused(one);
            too_many -= usize::from(is_removed);
            !is_removed
        });
    }

    /// Records hits under a limit's name or, if given, a name with request values.
    pub(crate) fn record(&self, named: &LimitCounters, valued: Option<&StatKey>, hits: &RecordedHits) {
        match valued.and_then(|key| self.valued(key)) {
            Some(counters) => counters.record(hits, self.near_limit_ratio),
            None => named.record(hits, self.near_limit_ratio),
        }
    }

    /// The counters of a name with request values. `None` if there are too many.
    fn valued(&self, key: &StatKey) -> Option<Arc<LimitCounters>> {
        let shard = usize::try_from(self.hasher.hash_one(key.text()) % SHARDS as u64).unwrap_or_default();
        let shard = &self.valued[shard];
        let known = shard.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(key.text()) {
            return Some(Arc::clone(&known.counters));
        }
        drop(known);
        if key.text().len() > MAX_NAME_BYTES {
            return None;
        }
        // Several threads may pass this at once, which is harmless.
        if self.valued_count.load(Relaxed) >= MAX_VALUED {
            if !self.has_warned.swap(true, Relaxed) {
                tracing::warn!(
                    "more than {MAX_VALUED} statistics with values of requests; further ones are counted under the names \
                     of their limits, see detailed_metric and value_to_metric"
                );
            }
            return None;
        }
        let mut known = shard.write().unwrap_or_else(PoisonError::into_inner);
        let one = known.entry(key.text().to_owned()).or_insert_with(|| {
            self.valued_count.fetch_add(1, Relaxed);
            NamedCounters { key: key.clone(), counters: Arc::default() }
        });
        Some(Arc::clone(&one.counters))
    }

    /// Counts a call for an unknown domain.
    pub(crate) fn record_unknown_domain(&self, domain: &str) {
        let known = self.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(domain) {
            known.fetch_add(1, Relaxed);
            return;
        }
        if known.len() >= MAX_UNKNOWN_DOMAINS || domain.len() > MAX_NAME_BYTES {
            self.other_unknown_domains.fetch_add(1, Relaxed);
            return;
        }
        drop(known);
        let mut known = self.unknown_domains.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(domain.to_owned()).or_default().fetch_add(1, Relaxed);
    }

    pub(crate) fn calls(&self) -> &CallCounters {
        &self.calls
    }

    /// All names, sorted.
    pub(crate) fn all(&self) -> Vec<NamedCounters> {
        let mut all: Vec<_> =
            self.named.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for shard in &self.valued {
            all.extend(shard.read().unwrap_or_else(PoisonError::into_inner).values().cloned());
        }
        all.sort_by(|a, b| a.key.text().cmp(b.key.text()));
        all
    }

    /// All counters by their names in envoyproxy/ratelimit. A name with values may equal a limit's
    /// name.
    pub(crate) fn lines(&self) -> BTreeMap<String, u64> {
        let mut lines = BTreeMap::new();
        for NamedCounters { key, counters } in self.all() {
            for (count, name, _) in HitCounter::ALL {
                let name = format!("ratelimit.service.rate_limit.{}.{name}", key.text());
                *lines.entry(name).or_default() += counters.get(count);
            }
        }
        for (domain, count) in self.unknown_domains() {
            let domain = if domain.is_empty() { "~others".to_owned() } else { sanitised(&domain) };
            let name = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
            *lines.entry(name).or_default() += count;
        }
        let calls = &self.calls;
        for (name, count) in [
            ("ratelimit_server.ShouldRateLimit.total_requests", &calls.total),
            ("ratelimit.service.call.should_rate_limit.service_error", &calls.service_errors),
            ("ratelimit.service.call.should_rate_limit.redis_error", &calls.redis_errors),
            ("ratelimit.service.global_shadow_mode", &calls.global_shadow_mode),
        ] {
            lines.insert(name.to_owned(), count.load(Relaxed));
        }
        lines
    }

    /// Calls per unknown domain. Domains beyond the maximum are counted under an empty name.
    pub(crate) fn unknown_domains(&self) -> Vec<(String, u64)> {
        let known = self.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        let all = known.iter().map(|(domain, count)| (domain.clone(), count.load(Relaxed)));
        let others = Some((String::new(), self.other_unknown_domains.load(Relaxed)));
        all.chain(others.filter(|(_, count)| *count > 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::names::stat_key;

    /// The increments: over, near, within, over from the denial cache, shadow.
    fn added(hits: RecordedHits) -> [u64; 5] {
        let counters = LimitCounters::default();
        counters.record(&hits, NEAR_LIMIT_RATIO);
        assert_eq!(counters.get(HitCounter::TotalHits), hits.hits);
        let counted = [
            HitCounter::OverLimit,
            HitCounter::NearLimit,
            HitCounter::WithinLimit,
            HitCounter::OverLimitWithLocalCache,
            HitCounter::ShadowMode,
        ];
        counted.map(|counter| counters.get(counter))
    }

    fn hits(limit: u64, hits: u64, before: u64) -> RecordedHits {
        let is_over = before + hits > limit;
        RecordedHits { hits, before, limit, is_over, is_shadow: false, source: DecisionSource::Store }
    }

    /// Alerts use these numbers, taken from the tests of envoyproxy/ratelimit.
    #[test]
    fn hits_on_both_sides_of_a_threshold_are_split() {
        for (limit, asked, after, over, near) in [
            (15, 1, 11, 0, 0),
            (15, 1, 13, 0, 1),
            (15, 1, 16, 1, 0),
            (20, 3, 5, 0, 0),
            (8, 2, 7, 0, 1),
            (20, 3, 19, 0, 3),
            (20, 3, 22, 2, 1),
            (20, 7, 22, 2, 4),
            (10, 3, 30, 3, 0),
        ] {
            let within = if after > limit { 0 } else { asked };
            let counted = added(hits(limit, asked, after - asked));
            assert_eq!(counted, [over, near, within, 0, 0], "{asked} up to {after} of {limit}");
        }
        // A peek adds nothing, and a ratio of 1 is exact.
        assert_eq!(added(RecordedHits { is_over: true, ..hits(10, 0, 11) }), [0; 5]);
        assert_eq!((near_limit(10, 1.0), near_limit(u64::from(u32::MAX), 1.0)), (10, u64::from(u32::MAX)));
        assert_eq!([near_limit(15, 0.8), near_limit(8, 0.8), near_limit(0, 0.8)], [12, 6, 0]);
    }

    /// Cached denials and shadow limits have their own counters.
    #[test]
    fn cached_denials_and_shadows_are_counted_separately() {
        let over = RecordedHits { source: DecisionSource::CachedDenial, ..hits(10, 3, 8) };
        assert_eq!(added(over), [3, 0, 0, 3, 0], "all hits of a cached denial are over");
        assert_eq!(added(RecordedHits { is_shadow: true, ..over }), [3, 0, 0, 3, 3]);
        assert_eq!(added(RecordedHits { is_shadow: true, ..hits(10, 3, 8) }), [1, 2, 0, 0, 3]);
        assert_eq!(added(RecordedHits { is_shadow: true, ..hits(10, 1, 0) }), [0, 0, 1, 0, 0]);
    }

    /// Clients choose names with values and must not be able to exhaust the memory.
    #[test]
    fn names_with_values_are_bounded_and_further_hits_are_still_counted() {
        let statistics = Statistics::new(NEAR_LIMIT_RATIO);
        let named = statistics.named(&stat_key("d", ["k"]));
        let record = |value: &str| {
            statistics.record(&named, Some(&stat_key("d", [format!("k_{value}").as_str()])), &hits(9, 1, 0));
        };
        for value in 0..MAX_VALUED + 5 {
            record(&value.to_string());
        }
        record("0");
        record(&"x".repeat(MAX_NAME_BYTES));
        assert_eq!(named.get(HitCounter::TotalHits), 6);
        let first = statistics.all().into_iter().find(|one| one.key.text() == "d.k_0").unwrap();
        assert_eq!(first.counters.get(HitCounter::TotalHits), 2);
        assert_eq!(statistics.all().len(), MAX_VALUED + 1);
        for domain in 0..MAX_UNKNOWN_DOMAINS + 2 {
            statistics.record_unknown_domain(&domain.to_string());
        }
        statistics.record_unknown_domain("7");
        let domains = statistics.unknown_domains();
        assert_eq!(domains.len(), MAX_UNKNOWN_DOMAINS + 1);
        assert!(domains.contains(&("7".into(), 2)) && domains.contains(&(String::new(), 2)));
    }

    /// Counters survive reloads, and unused names are eventually removed.
    #[test]
    fn counters_are_kept_by_name() {
        let statistics = Statistics::new(NEAR_LIMIT_RATIO);
        let key = stat_key("d.e", ["k.1", "l", "m"]);
        let held = statistics.named(&key);
        statistics.record(&held, None, &hits(9, 2, 0));
        assert!(Arc::ptr_eq(&held, &statistics.named(&key)));
        for unused in 0..MAX_UNUSED + 9 {
            statistics.named(&stat_key("unused", [unused.to_string().as_str()]));
        }
        statistics.forget_unused();
        assert_eq!(statistics.all().len(), MAX_UNUSED + 1);
        let [first, ..] = &statistics.all()[..] else { panic!("no names") };
        assert_eq!((first.key.text(), first.key.labels()), ("d.e.k.1.l.m", ["d.e", "k.1", "l"]));
        assert_eq!(stat_key("d", ["k"]).labels(), ["d", "k", ""]);
        // A name with values may equal a limit's name.
        statistics.record(&held, Some(&key), &hits(9, 3, 0));
        assert_eq!(statistics.lines()["ratelimit.service.rate_limit.d.e.k.1.l.m.total_hits"], 5);
    }
}
