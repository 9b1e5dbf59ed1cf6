//! The contenders, behind one trait; each loop is compiled for each of them.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use governor::DefaultKeyedRateLimiter;
use hashbrown::{DefaultHashBuilder, HashTable};
use limitador::limit::{Context, Limit, Namespace};
use slidegate::{Algorithm, Limiter, MemoryStore, Quota};
use throttlecrab::AdaptiveStore;

use crate::cases::Rule;
use crate::keys::KeyText;

/// One thread's handle on a rate limiter.
pub(crate) trait Peer: Send {
    /// Decides one request of cost 1; returns whether it is allowed.
    ///
    /// The whole decision is passed to a black box, so that the compiler cannot drop parts of it.
    #[allow(clippy::ptr_arg)] // governor looks up nothing but the type that it stores
    fn decide(&mut self, key: &String) -> bool;

    /// Decides these keys, writing each just before; returns how many were allowed.
    fn decide_all(&mut self, text: &mut KeyText, keys: &[u32]) -> u64 {
        keys.iter().map(|&key| u64::from(self.decide(text.write(key)))).sum()
    }
}

/// The contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Writes the key and decides nothing.
    Empty,
    /// Looks up the key in a hash table and adds one: no limiter with such keys can cost less.
    Floor,
    SlidegateLog,
    SlidegateWindow,
    SlidegateFixed,
    SlidegateBucket,
    Governor,
    Throttlecrab,
    Limitador,
}

impl Contender {
    /// In the order of the report.
    pub(crate) const ALL: [Self; 9] = [
        Self::Empty,
        Self::Floor,
        Self::SlidegateLog,
        Self::SlidegateWindow,
        Self::SlidegateFixed,
        Self::SlidegateBucket,
        Self::Governor,
        Self::Throttlecrab,
        Self::Limitador,
    ];

    /// The name on the command line and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Floor => "floor",
            Self::SlidegateLog => "slidegate-log",
            Self::SlidegateWindow => "slidegate-window",
            Self::SlidegateFixed => "slidegate-fixed",
            Self::SlidegateBucket => "slidegate-bucket",
            Self::Governor => "governor",
            Self::Throttlecrab => "throttlecrab",
            Self::Limitador => "limitador",
        }
    }

    /// How many times fewer decisions it makes, because each takes so much longer.
    pub(crate) fn slowness(self) -> usize {
        if self == Self::Limitador { 20 } else { 1 }
    }

    /// Whether it stores something per key.
    pub(crate) fn holds_keys(self) -> bool {
        self != Self::Empty
    }

    /// A limiter for twice this many keys, one handle per thread; `None` if it cannot express the
    /// limit.
    pub(crate) fn build(self, rule: Rule, keys: u32, threads: usize) -> Option<Vec<Box<dyn Peer>>> {
        let most_keys = 2 * keys as usize;
        match self {
            Self::Empty => Some(shared(threads, &Arc::new(()))),
            Self::Floor if threads == 1 => {
                Some(vec![Box::new(hashbrown::HashMap::<String, u64>::default()) as Box<dyn Peer>])
            }
            Self::Floor => Some(shared(threads, &Arc::new(ShardedFloor::default()))),
            Self::SlidegateLog => Some(slidegate(Algorithm::SlidingLog, rule, most_keys, threads)),
            Self::SlidegateWindow => Some(slidegate(Algorithm::SlidingWindow, rule, most_keys, threads)),
            Self::SlidegateFixed => Some(slidegate(Algorithm::FixedWindow, rule, most_keys, threads)),
            Self::SlidegateBucket => Some(slidegate(Algorithm::TokenBucket, rule, most_keys, threads)),
            Self::Governor => {
                let limit = NonZeroU32::new(rule.limit)?;
                let quota = governor::Quota::with_period(rule.window / rule.limit)?.allow_burst(limit);
                let limiter: DefaultKeyedRateLimiter<String> = governor::RateLimiter::dashmap(quota);
                Some(shared(threads, &Arc::new(limiter)))
            }
            Self::Throttlecrab => {
                let throttle = Throttle {
                    limiter: throttlecrab_of(most_keys),
                    limit: rule.limit.into(),
                    secs: secs(rule)?,
                };
                Some(if threads == 1 {
                    vec![Box::new(throttle) as Box<dyn Peer>]
                } else {
                    shared(threads, &Arc::new(Mutex::new(throttle)))
                })
            }
            Self::Limitador => {
                let limiter = limitador::RateLimiter::new(most_keys as u64);
                let user = "user".try_into().expect("a name is an expression");
                limiter.add_limit(Limit::new("bench", rule.limit.into(), secs(rule)?, [], [user]));
                Some(shared(threads, &Arc::new(Limitador { limiter, namespace: "bench".into() })))
            }
        }
    }
}

/// The window in seconds, for contenders that need it in seconds.
fn secs<N: TryFrom<u64>>(rule: Rule) -> Option<N> {
    Some(rule.window.as_secs()).filter(|&secs| secs > 0).and_then(|secs| secs.try_into().ok())
}

/// A handle for each thread on one shared limiter.
fn shared<L>(threads: usize, limiter: &Arc<L>) -> Vec<Box<dyn Peer>>
where
    Arc<L>: Peer + 'static,
{
    (0..threads).map(|_| Box::new(Arc::clone(limiter)) as Box<dyn Peer>).collect()
}

impl Peer for Arc<()> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        black_box(key);
        true
    }
}

impl Peer for hashbrown::HashMap<String, u64> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        match self.get_mut(key.as_str()) {
            Some(count) => *count = count.wrapping_add(1),
            None => {
                self.insert(key.clone(), 1);
            }
        }
        true
    }
}

/// The floor on several threads: the same table in 1024 shards, each behind a lock.
struct ShardedFloor {
    hasher: DefaultHashBuilder,
    shards: Vec<Mutex<HashTable<(String, u64)>>>,
}

impl Default for ShardedFloor {
    fn default() -> Self {
        Self { hasher: DefaultHashBuilder::default(), shards: (0..1024).map(|_| Mutex::default()).collect() }
    }
}

impl Peer for Arc<ShardedFloor> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        let hash = self.hasher.hash_one(key.as_str());
        // The table itself uses the lowest bits and the highest seven.
        let at = (hash >> 32) as usize % self.shards.len();
        let mut shard = self.shards[at].lock().unwrap_or_else(PoisonError::into_inner);
        match shard.find_mut(hash, |(held, _)| held == key) {
            Some((_, count)) => *count = count.wrapping_add(1),
            None => {
                shard.insert_unique(hash, (key.clone(), 1), |(held, _)| self.hasher.hash_one(held.as_str()));
            }
        }
        true
    }
}

fn slidegate(algorithm: Algorithm, rule: Rule, max_keys: usize, threads: usize) -> Vec<Box<dyn Peer>> {
    let quota = Quota::new(rule.limit.into(), rule.window).expect("every case has a window that is allowed");
    let quota = quota.with_algorithm(algorithm);
    let store = MemoryStore::builder().max_keys(max_keys).build();
    shared(threads, &Arc::new(Limiter::with_store(quota, store)))
}

impl Peer for Arc<Limiter> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        let decision = self.check(key);
        black_box(&decision);
        decision.is_allowed()
    }
}

impl Peer for Arc<DefaultKeyedRateLimiter<String>> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        let answer = self.check_key(key);
        black_box(&answer);
        answer.is_ok()
    }
}

/// throttlecrab takes its limit and the time with each request.
struct Throttle {
    limiter: throttlecrab::RateLimiter<AdaptiveStore>,
    limit: i64,
    secs: i64,
}

fn throttlecrab_of(keys: usize) -> throttlecrab::RateLimiter<AdaptiveStore> {
    throttlecrab::RateLimiter::new(AdaptiveStore::builder().capacity(keys / 2).build())
}

impl Peer for Throttle {
    #[inline]
    #[allow(clippy::disallowed_methods)] // its caller reads the clock
    fn decide(&mut self, key: &String) -> bool {
        let now = SystemTime::now();
        let answer = self.limiter.rate_limit(key, self.limit, self.limit, self.secs, 1, now);
        black_box(&answer);
        answer.is_ok_and(|(allowed, _)| allowed)
    }
}

impl Peer for Arc<Mutex<Throttle>> {
    #[inline]
    fn decide(&mut self, key: &String) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).decide(key)
    }
}

struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Peer for Arc<Limitador> {
    fn decide(&mut self, key: &String) -> bool {
        let context = Context::from(HashMap::from([("user".to_owned(), key.clone())]));
        let answer = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        black_box(&answer);
        answer.is_ok_and(|answer| !answer.limited)
    }
}
