//! The limiters, each as its documentation says to use it for a limit that processes share.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rateguard::Guard;
use redis::aio::ConnectionManager;
use slidegate::{LeaseLength, OnStoreError, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, TrypemaError, WindowSize};

use crate::record::{Outcome, now};
use crate::{Failed, Options};

const KEY: &str = "alice";
/// Longer than any pause of Redis: it decides every request.
const DEADLINE: Duration = Duration::from_secs(1);

/// A limiter's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Slidegate { leases: bool },
    Rateguard,
    Trypema,
    TrypemaRedis,
    Aligned,
    None,
}

const NAMES: [(&str, Kind); 7] = [
    ("slidegate", Kind::Slidegate { leases: false }),
    ("slidegate-leases", Kind::Slidegate { leases: true }),
    ("rateguard", Kind::Rateguard),
    ("trypema", Kind::Trypema),
    ("trypema-redis", Kind::TrypemaRedis),
    ("aligned", Kind::Aligned),
    ("none", Kind::None),
];

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        named
            .ok_or_else(|| format!("limiter `{text}`: use one of {}", NAMES.map(|(name, _)| name).join(", ")))
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// A limiter in one process.
pub(crate) enum Limiter {
    Slidegate(RedisGate),
    Rateguard(Guard),
    Trypema(Arc<HybridRateLimiterProvider>, RedisKey, RateLimit),
    TrypemaRedis(Arc<RedisRateLimiterProvider>, RedisKey, RateLimit),
    Aligned(Aligned),
    /// Admits everything: what the measurement itself costs.
    None,
}

impl Limiter {
    /// The limiter of the process that has the port `ports[instance]`, for datagrams.
    pub(crate) async fn new(
        options: &Options,
        url: &str,
        ports: &[String],
        instance: usize,
    ) -> Result<Self, Failed> {
        let connect = async || redis::Client::open(url)?.get_connection_manager().await;
        let seconds = options.window.as_secs();
        let per_second = || RateLimit::per_second(options.limit as f64 / options.window.as_secs_f64());
        Ok(match options.limiter {
            Kind::Slidegate { leases } => Self::Slidegate(gate(options, url, leases)?),
            Kind::Rateguard => {
                if seconds != 1 || options.is_weighted {
                    return Err(
                        "rateguard here limits requests of cost 1 per second: leave out --weights".into()
                    );
                }
                let address = |port: &String| format!("127.0.0.1:{port}");
                let others = ports.iter().filter(|port| **port != ports[instance]).map(address);
                let guard = Guard::builder().bind(address(&ports[instance])).seeds(others);
                Self::Rateguard(guard.limit(u32::try_from(options.limit)?).spawn()?)
            }
            Kind::Trypema => {
                let builder = HybridRateLimiterProvider::builder(connect().await?);
                let built = builder.window_size(WindowSize::seconds(seconds)?).build()?;
                Self::Trypema(built, RedisKey::new(KEY.to_owned())?, per_second()?)
            }
            Kind::TrypemaRedis => {
                let builder = RedisRateLimiterProvider::builder(connect().await?);
                let built = builder.window_size(WindowSize::seconds(seconds)?).build()?;
                Self::TrypemaRedis(built, RedisKey::new(KEY.to_owned())?, per_second()?)
            }
            Kind::Aligned => Self::Aligned(Aligned::new(options, connect().await?)),
            Kind::None => Self::None,
        })
    }

    pub(crate) async fn check(&self, cost: u64) -> Outcome {
        match self {
            Self::Slidegate(gate) => {
                let request = Request::new().with("user", KEY).with_cost(cost);
                let decisions = gate.check(&request).await;
                if decisions.iter().any(|one| one.decision().source().is_fallback()) {
                    return Outcome::Failed;
                }
                outcome(decisions.is_allowed())
            }
            Self::Rateguard(guard) => outcome(guard.check(KEY).is_allowed()),
            Self::Trypema(provider, key, rate) => of_trypema(provider.absolute().inc(key, rate, cost).await),
            Self::TrypemaRedis(provider, key, rate) => {
                of_trypema(provider.absolute().inc(key, rate, cost).await)
            }
            Self::Aligned(aligned) => aligned.check(cost).await.map_or(Outcome::Failed, outcome),
            Self::None => Outcome::Allowed,
        }
    }
}

fn outcome(is_allowed: bool) -> Outcome {
    if is_allowed { Outcome::Allowed } else { Outcome::Denied }
}

fn of_trypema(decision: Result<RateLimitDecision, TrypemaError>) -> Outcome {
    decision.map_or(Outcome::Failed, |decision| outcome(matches!(decision, RateLimitDecision::Allowed)))
}

fn gate(options: &Options, url: &str, leases: bool) -> Result<RedisGate, Failed> {
    let policy = |name: &str, limit: u64| -> Result<Policy, Failed> {
        let policy = Policy::new(name, Quota::new(limit, options.window)?)?;
        // The judge is to see what the store decides.
        let policy = policy.with_on_store_error(OnStoreError::Deny);
        Ok(policy.with_lease(leases.then_some(LeaseLength::OfWindow)))
    };
    let mut policies = vec![policy("per-user", options.limit)?.with_scope(["user"])];
    if options.has_two_policies {
        policies.push(policy("all", 2 * options.limit)?);
    }
    let options = RedisOptions::new(url)?.with_deadline(DEADLINE);
    Ok(SharedGate::new(PolicySet::new(policies)?, RedisStore::new(options)?)?)
}

/// The control, which exceeds the limit: counts windows that begin at multiples of their length, in slices of a
/// hundredth of the limit.
pub(crate) struct Aligned {
    connection: ConnectionManager,
    script: redis::Script,
    limit: u64,
    window: Duration,
    slice: Mutex<Slice>,
}

#[derive(Default)]
struct Slice {
    window: u128,
    left: u64,
    is_full: bool,
}

const TAKE: &str = "
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local slice = math.min(tonumber(ARGV[1]), ARGV[2] - used)
redis.call('SET', KEYS[1], used + slice, 'PX', ARGV[3])
return slice";

impl Aligned {
    fn new(options: &Options, connection: ConnectionManager) -> Self {
        let (script, slice) = (redis::Script::new(TAKE), Mutex::default());
        Self { connection, script, limit: options.limit, window: options.window, slice }
    }

    async fn check(&self, cost: u64) -> Result<bool, Failed> {
        let window = u128::from(now()) / self.window.as_nanos();
        if let Some(is_allowed) = self.take(window, None, cost) {
            return Ok(is_allowed);
        }
        let mut call = self.script.key(window.to_string());
        call.arg(cost.max(self.limit / 100)).arg(self.limit).arg(2 * self.window.as_millis() as u64);
        let granted: u64 = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(self.take(window, Some(granted), cost).unwrap_or(false))
    }

    /// Whether the window's slice has the cost left, with what was granted now. `None` if the window may have more.
    fn take(&self, window: u128, granted: Option<u64>, cost: u64) -> Option<bool> {
        let mut slice = self.slice.lock().unwrap_or_else(PoisonError::into_inner);
        if slice.window < window {
            *slice = Slice { window, left: 0, is_full: false };
        }
        if slice.window == window {
            slice.left += granted.unwrap_or(0);
            slice.is_full |= granted == Some(0);
        }
        if slice.window != window || slice.left < cost {
            return slice.is_full.then_some(false);
        }
        slice.left -= cost;
        Some(true)
    }
}
