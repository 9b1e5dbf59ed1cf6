//! Statistics: what the reference counts of each limit, under the reference's names.
//!
//! Counters are found when files are read and lie beside the limit, so counting adds to numbers that are at hand. They stay
//! with their names through every reload. Names with values of requests have a bound, which the reference's do not: past
//! it, hits count under the name that the files give.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use slidegate::Source;

use super::names::{StatKey, sanitised};
use crate::log_limit::log_limited;

/// Most names with values of requests: some hundred bytes each, and six series each for those who collect them.
const MOST_VALUED: usize = 4096;
/// Parts of the table of such names, so that threads seldom wait for each other.
const SHARDS: usize = 16;
/// Most domains that no file has and that are told apart.
const MOST_UNKNOWN_DOMAINS: usize = 256;
/// Longest domain or name of these, in bytes: more is no name that anybody reads.
const MOST_NAME_BYTES: usize = 512;
/// Most names that are kept after files have stopped to give them.
const MOST_GONE: usize = 1024;
/// From which part of a limit on hits are near it, unless `NEAR_LIMIT_RATIO` says otherwise.
pub(crate) const NEAR_LIMIT_RATIO: f32 = 0.8;

/// What is counted of a limit. The discriminant is the place of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    TotalHits,
    OverLimit,
    NearLimit,
    OverLimitWithLocalCache,
    WithinLimit,
    ShadowMode,
}

impl Count {
    pub(crate) const ALL: [Self; 6] = [
        Self::TotalHits,
        Self::OverLimit,
        Self::NearLimit,
        Self::OverLimitWithLocalCache,
        Self::WithinLimit,
        Self::ShadowMode,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TotalHits => "total_hits",
            Self::OverLimit => "over_limit",
            Self::NearLimit => "near_limit",
            Self::OverLimitWithLocalCache => "over_limit_with_local_cache",
            Self::WithinLimit => "within_limit",
            Self::ShadowMode => "shadow_mode",
        }
    }

    /// What it counts, for people.
    pub(crate) const fn help(self) -> &'static str {
        match self {
            Self::TotalHits => "Hits that were asked for",
            Self::OverLimit => "Hits that were over the limit",
            Self::NearLimit => "Hits between the near-limit ratio and the limit",
            Self::OverLimitWithLocalCache => "Hits over the limit that a remembered denial answered",
            Self::WithinLimit => "Hits that were within the limit",
            Self::ShadowMode => "Hits over a limit in shadow mode",
        }
    }
}

/// The counters of one name, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counters {
    counts: [AtomicU64; Count::ALL.len()],
    /// Whether a descriptor of 0 hits has asked for the limit.
    is_looked_at: AtomicBool,
}

/// Hits of one request on one limit, and what became of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hits {
    /// How many were asked for.
    pub(crate) asked: u64,
    /// What had been used before.
    pub(crate) before: u64,
    pub(crate) limit: u64,
    pub(crate) is_over: bool,
    /// Whether the limit denies nothing.
    pub(crate) is_shadow: bool,
    pub(crate) source: Source,
}

impl Counters {
    fn add(&self, count: Count, hits: u64) {
        if hits > 0 {
            self.counts[count as usize].fetch_add(hits, Relaxed);
        }
    }

    /// Counts hits as the reference does: those that lie on both sides of a border are divided.
    fn note(&self, hits: &Hits, near_limit_ratio: f32) {
        let &Hits { asked, before, limit, is_over, is_shadow, source } = hits;
        self.add(Count::TotalHits, asked);
        if !is_over {
            let near = near_limit(limit, near_limit_ratio);
            let after = before.saturating_add(asked).min(limit);
            self.add(Count::NearLimit, after.saturating_sub(near.max(before)));
            self.add(Count::WithinLimit, asked);
            return;
        }
        if is_shadow {
            self.add(Count::ShadowMode, asked);
        }
        if source == Source::Remembered {
            self.add(Count::OverLimit, asked);
            self.add(Count::OverLimitWithLocalCache, asked);
        } else if before >= limit {
            self.add(Count::OverLimit, asked);
        } else {
            let near = near_limit(limit, near_limit_ratio);
            self.add(Count::OverLimit, before.saturating_add(asked).saturating_sub(limit));
            self.add(Count::NearLimit, limit - near.max(before));
        }
    }

    /// Takes note of a descriptor of 0 hits.
    pub(super) fn note_look(&self) {
        // Most come after the first, and reading leaves the cache line to everybody.
        if !self.is_looked_at() {
            self.is_looked_at.store(true, Relaxed);
        }
    }

    /// Whether there was any.
    pub(super) fn is_looked_at(&self) -> bool {
        self.is_looked_at.load(Relaxed)
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }
}

/// Where hits begin to be near a limit, computed as the reference does: in 32 bits, rounded down, at most the limit.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn near_limit(limit: u64, ratio: f32) -> u64 {
    ((limit as f32 * ratio) as u64).min(limit)
}

/// A name and what is counted of it.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) key: StatKey,
    pub(crate) counters: Arc<Counters>,
}

/// All counters.
#[derive(Debug)]
pub(crate) struct Statistics {
    near_limit_ratio: f32,
    /// Of the files' limits, by name.
    named: Mutex<HashMap<String, Named>>,
    /// Of names with values of requests.
    valued: [RwLock<HashMap<String, Named>>; SHARDS],
    valued_count: AtomicUsize,
    has_told: AtomicBool,
    hasher: RandomState,
    /// How often a domain was asked for that no file has.
    unknown_domains: RwLock<BTreeMap<String, AtomicU64>>,
    other_unknown_domains: AtomicU64,
    calls: Calls,
}

/// What is counted of calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// All of them.
    pub(crate) total: AtomicU64,
    /// Calls that are none, or came before there were files.
    pub(crate) service_errors: AtomicU64,
    /// Calls that a fallback decided, as Redis did not answer. The reference fails them.
    pub(crate) redis_errors: AtomicU64,
    /// Calls that would have been over their limits without `SHADOW_MODE`.
    pub(crate) global_shadow_mode: AtomicU64,
}

impl Statistics {
    pub(crate) fn new(near_limit_ratio: f32) -> Self {
        Self {
            near_limit_ratio,
            named: Mutex::default(),
            valued: std::array::from_fn(|_| RwLock::default()),
            valued_count: AtomicUsize::new(0),
            has_told: AtomicBool::new(false),
            hasher: RandomState::new(),
            unknown_domains: RwLock::default(),
            other_unknown_domains: AtomicU64::new(0),
            calls: Calls::default(),
        }
    }

    /// The counters of a name that files give.
    pub(super) fn named(&self, key: &StatKey) -> Arc<Counters> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Named { key: key.clone(), counters: Arc::default() };
        Arc::clone(&named.entry(key.text().to_owned()).or_insert_with(new).counters)
    }

    /// Forgets names that no files give any more, when they have become many.
    pub(super) fn forget_gone(&self) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |one: &Named| Arc::strong_count(&one.counters) == 1;
        let mut too_many = named.values().filter(|one| is_gone(one)).count().saturating_sub(MOST_GONE);
        named.retain(|_, one| {
            let goes = too_many > 0 && is_gone(one);
            too_many -= usize::from(goes);
            !goes
        });
    }

    /// Counts hits under the name that the files give a limit, or under one with values of the request if it asks for that.
    pub(super) fn note(&self, named: &Counters, valued: Option<&StatKey>, hits: &Hits) {
        match valued.and_then(|key| self.valued(key)) {
            Some(counters) => counters.note(hits, self.near_limit_ratio),
            None => named.note(hits, self.near_limit_ratio),
        }
    }

    /// The counters of a name with values of a request; `None` if there are too many.
    fn valued(&self, key: &StatKey) -> Option<Arc<Counters>> {
        let shard = usize::try_from(self.hasher.hash_one(key.text()) % SHARDS as u64).unwrap_or_default();
        let shard = &self.valued[shard];
        let known = shard.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(key.text()) {
            return Some(Arc::clone(&known.counters));
        }
        drop(known);
        if key.text().len() > MOST_NAME_BYTES {
            return None;
        }
        // A few threads may get past this together, which is no harm.
        if self.valued_count.load(Relaxed) >= MOST_VALUED {
            if !self.has_told.swap(true, Relaxed) {
                log_limited!(
                    WARN,
                    None,
                    "there are more than {MOST_VALUED} statistics with values of requests; the others count under the \
                     limits' own names, see detailed_metric and value_to_metric"
                );
            }
            return None;
        }
        let mut known = shard.write().unwrap_or_else(PoisonError::into_inner);
        let one = known.entry(key.text().to_owned()).or_insert_with(|| {
            self.valued_count.fetch_add(1, Relaxed);
            Named { key: key.clone(), counters: Arc::default() }
        });
        Some(Arc::clone(&one.counters))
    }

    /// Counts that a domain was asked for which no file has.
    pub(crate) fn note_unknown_domain(&self, domain: &str) {
        let known = self.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(domain) {
            known.fetch_add(1, Relaxed);
            return;
        }
        if known.len() >= MOST_UNKNOWN_DOMAINS || domain.len() > MOST_NAME_BYTES {
            self.other_unknown_domains.fetch_add(1, Relaxed);
            return;
        }
        drop(known);
        let mut known = self.unknown_domains.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(domain.to_owned()).or_default().fetch_add(1, Relaxed);
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Every name there is, in order.
    pub(crate) fn all(&self) -> Vec<Named> {
        let mut all: Vec<_> =
            self.named.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for shard in &self.valued {
            all.extend(shard.read().unwrap_or_else(PoisonError::into_inner).values().cloned());
        }
        all.sort_by(|a, b| a.key.text().cmp(b.key.text()));
        all
    }

    /// What is counted, by the reference's names. A name with values of requests may be one that files give as well.
    pub(super) fn lines(&self) -> BTreeMap<String, u64> {
        let mut lines = BTreeMap::new();
        for Named { key, counters } in self.all() {
            for count in Count::ALL {
                let name = format!("ratelimit.service.rate_limit.{}.{}", key.text(), count.name());
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

    /// Domains that no file has, and how often each was asked for. Those that are too many have an empty name.
    pub(crate) fn unknown_domains(&self) -> Vec<(String, u64)> {
        let known = self.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        let all = known.iter().map(|(domain, count)| (domain.clone(), count.load(Relaxed)));
        let others = Some((String::new(), self.other_unknown_domains.load(Relaxed)));
        all.chain(others.filter(|(_, count)| *count > 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::stat_key;
    use super::*;

    /// What hits add: over, near, within, over by a remembered denial, shadow.
    fn added(hits: Hits) -> [u64; 5] {
        let counters = Counters::default();
        counters.note(&hits, NEAR_LIMIT_RATIO);
        assert_eq!(counters.get(Count::TotalHits), hits.asked);
        let told = [
            Count::OverLimit,
            Count::NearLimit,
            Count::WithinLimit,
            Count::OverLimitWithLocalCache,
            Count::ShadowMode,
        ];
        told.map(|count| counters.get(count))
    }

    fn hits(limit: u64, asked: u64, before: u64) -> Hits {
        let is_over = before + asked > limit;
        Hits { asked, before, limit, is_over, is_shadow: false, source: Source::Store }
    }

    /// Alerts fire on these numbers, and they are the reference's own: its tests have the same hits.
    #[test]
    fn hits_on_both_sides_of_a_border_are_divided_as_in_the_reference() {
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
            let told = added(hits(limit, asked, after - asked));
            assert_eq!(told, [over, near, within, 0, 0], "{asked} up to {after} of {limit}");
        }
        // A look adds nothing, whatever it finds; nor does the ratio take part where it is the whole.
        assert_eq!(added(Hits { is_over: true, ..hits(10, 0, 11) }), [0; 5]);
        assert_eq!((near_limit(10, 1.0), near_limit(u64::from(u32::MAX), 1.0)), (10, u64::from(u32::MAX)));
        assert_eq!([near_limit(15, 0.8), near_limit(8, 0.8), near_limit(0, 0.8)], [12, 6, 0]);
    }

    /// What is answered without a call must not look as if the store had been asked, and a shadow as if it denied.
    #[test]
    fn remembered_denials_and_shadows_are_told_apart() {
        let over = Hits { source: Source::Remembered, ..hits(10, 3, 8) };
        assert_eq!(added(over), [3, 0, 0, 3, 0], "all hits of a remembered denial are over");
        assert_eq!(added(Hits { is_shadow: true, ..over }), [3, 0, 0, 3, 3]);
        assert_eq!(added(Hits { is_shadow: true, ..hits(10, 3, 8) }), [1, 2, 0, 0, 3]);
        assert_eq!(added(Hits { is_shadow: true, ..hits(10, 1, 0) }), [0, 0, 1, 0, 0]);
    }

    /// Names with values come from clients, who must not be able to take all memory.
    #[test]
    fn names_with_values_have_a_bound_and_their_hits_are_counted_past_it() {
        let statistics = Statistics::new(NEAR_LIMIT_RATIO);
        let named = statistics.named(&stat_key("d", ["k"]));
        let note = |value: &str| {
            statistics.note(&named, Some(&stat_key("d", [format!("k_{value}").as_str()])), &hits(9, 1, 0));
        };
        for value in 0..MOST_VALUED + 5 {
            note(&value.to_string());
        }
        note("0");
        note(&"x".repeat(MOST_NAME_BYTES));
        assert_eq!(named.get(Count::TotalHits), 6);
        let first = statistics.all().into_iter().find(|one| one.key.text() == "d.k_0").unwrap();
        assert_eq!(first.counters.get(Count::TotalHits), 2);
        assert_eq!(statistics.all().len(), MOST_VALUED + 1);
        for domain in 0..MOST_UNKNOWN_DOMAINS + 2 {
            statistics.note_unknown_domain(&domain.to_string());
        }
        statistics.note_unknown_domain("7");
        let told = statistics.unknown_domains();
        assert_eq!(told.len(), MOST_UNKNOWN_DOMAINS + 1);
        assert!(told.contains(&("7".into(), 2)) && told.contains(&(String::new(), 2)));
    }

    /// Counters belong to names: files that come back go on where they were, and names that are long gone are forgotten.
    #[test]
    fn counters_stay_with_their_names() {
        let statistics = Statistics::new(NEAR_LIMIT_RATIO);
        let key = stat_key("d.e", ["k.1", "l", "m"]);
        let held = statistics.named(&key);
        statistics.note(&held, None, &hits(9, 2, 0));
        assert!(Arc::ptr_eq(&held, &statistics.named(&key)));
        for gone in 0..MOST_GONE + 9 {
            statistics.named(&stat_key("gone", [gone.to_string().as_str()]));
        }
        statistics.forget_gone();
        assert_eq!(statistics.all().len(), MOST_GONE + 1);
        let [first, ..] = &statistics.all()[..] else { panic!("there are some") };
        assert_eq!((first.key.text(), first.key.labels()), ("d.e.k.1.l.m", ["d.e", "k.1", "l"]));
        assert_eq!(stat_key("d", ["k"]).labels(), ["d", "k", ""]);
        // A limit of a request may be called as one of the files.
        statistics.note(&held, Some(&key), &hits(9, 3, 0));
        assert_eq!(statistics.lines()["ratelimit.service.rate_limit.d.e.k.1.l.m.total_hits"], 5);
    }
}
