//! The limiters, each configured as its documentation says for the limit of each key.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use limitador::limit::{Context, Limit as LimitadorLimit, Namespace};
use rate_net::Algorithm;
use throttle_net::{Hybrid, Layered, SlidingWindowLog};
use throttlecrab::PeriodicStore;
use tower::{Layer, ServiceExt, service_fn};
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::local::LocalRateLimiterProvider;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, TrypemaError, WindowSize};

use crate::Which::{Newest, Oldest};
use crate::{Answer, Entry, Error, Limit, Limiter, Setup, Which};

const COST_WAIT: &[&str] = &["cost", "wait"];
const COST_WAIT_KEYS: &[&str] = &["cost", "wait", "max_keys"];
const COST_WAIT_SEVERAL: &[&str] = &["cost", "wait", "several"];

/// A limiter of either version of tower-resilience. It has no keys and reports no wait. A request waits for a permit up to
/// `timeout_duration`, here the default.
macro_rules! tower_resilience_layer {
    ($layer:ident, $setup:ident, $algorithm:ident($value:expr), $($ok:tt)?) => {{
        let Limit { cost, window } = $setup.limit;
        let layer = $layer::builder().limit_for_period(cost as usize).refresh_period(window);
        let layer = layer.$algorithm($value).build()$($ok)?;
        let inner = || service_fn(|()| ready(Ok::<_, Infallible>(())));
        let by_key = ByKey::new(move || layer.layer(inner()));
        Ok(tasks(move |key, _| {
            let service = by_key.get(&key);
            async move {
                match service.oneshot(()).await {
                    Ok(()) => Answer::Admitted,
                    Err(error) if error.is_rate_limited() => Answer::Denied(None),
                    Err(error) => Answer::Failed(error.to_string()),
                }
            }
        }))
    }};
}

pub(crate) const LIMITERS: &[Entry] = &[
    entry("governor", ("governor", Newest), COST_WAIT, governor),
    entry("tower-governor", ("tower_governor", Newest), &["wait"], tower_governor),
    entry("tower-resilience-fixed", TOWER_RESILIENCE, &[], |setup| {
        use tower_resilience::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::Fixed), ?)
    }),
    entry("tower-resilience-log", TOWER_RESILIENCE, &[], |setup| {
        use tower_resilience::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::SlidingLog), ?)
    }),
    entry("tower-resilience-counter", TOWER_RESILIENCE, &[], |setup| {
        use tower_resilience::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::SlidingCounter), ?)
    }),
    entry("tower-resilience-bucket", TOWER_RESILIENCE, &[], |setup| {
        use tower_resilience::RateLimiterLayer;
        tower_resilience_layer!(RateLimiterLayer, setup, burst_size(0), ?)
    }),
    entry("tower-resilience-0.11-fixed", TOWER_RESILIENCE_0_11, &[], |setup| {
        use tower_resilience_0_11::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::Fixed),)
    }),
    entry("tower-resilience-0.11-log", TOWER_RESILIENCE_0_11, &[], |setup| {
        use tower_resilience_0_11::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::SlidingLog),)
    }),
    entry("tower-resilience-0.11-counter", TOWER_RESILIENCE_0_11, &[], |setup| {
        use tower_resilience_0_11::{RateLimiterLayer, WindowType};
        tower_resilience_layer!(RateLimiterLayer, setup, window_type(WindowType::SlidingCounter),)
    }),
    entry("rate-net", RATE_NET, COST_WAIT_KEYS, |setup| rate_net(setup, Algorithm::TokenBucket)),
    entry("rate-net-leaky", RATE_NET, COST_WAIT_KEYS, |setup| rate_net(setup, Algorithm::LeakyBucket)),
    entry("rate-net-fixed", RATE_NET, COST_WAIT_KEYS, |setup| rate_net(setup, Algorithm::FixedWindow)),
    entry("rate-net-log", RATE_NET, COST_WAIT_KEYS, |setup| rate_net(setup, Algorithm::SlidingWindowLog)),
    entry("rate-net-counter", RATE_NET, COST_WAIT_KEYS, |setup| {
        rate_net(setup, Algorithm::SlidingWindowCounter)
    }),
    entry("throttle-net", THROTTLE_NET, &["cost", "wait", "several", "max_keys"], throttle_net),
    entry("throttle-net-log", THROTTLE_NET, COST_WAIT_SEVERAL, throttle_net_log),
    entry("rateguard", RATEGUARD, &["wait", "max_keys"], |setup| {
        rateguard(setup, (setup.limit.cost / 20).max(1))
    }),
    entry("rateguard-burst", RATEGUARD, &["wait", "max_keys"], |setup| rateguard(setup, setup.limit.cost)),
    entry("throttlecrab", ("throttlecrab", Newest), COST_WAIT, throttlecrab),
    entry("trypema", TRYPEMA, COST_WAIT, trypema_local),
    entry("trypema-redis", TRYPEMA, COST_WAIT, trypema_redis),
    entry("trypema-hybrid", TRYPEMA, COST_WAIT, trypema_hybrid),
    entry("limitador", ("limitador", Newest), &["cost", "wait", "several", "max_keys"], limitador),
];

const TOWER_RESILIENCE: (&str, Which) = ("tower-resilience-ratelimiter", Newest);
const TOWER_RESILIENCE_0_11: (&str, Which) = ("tower-resilience-ratelimiter", Oldest);
const RATE_NET: (&str, Which) = ("rate-net", Newest);
const THROTTLE_NET: (&str, Which) = ("throttle-net", Newest);
const RATEGUARD: (&str, Which) = ("rateguard", Newest);
const TRYPEMA: (&str, Which) = ("trypema", Newest);

const fn entry(
    name: &'static str,
    package: (&'static str, Which),
    can: &'static [&'static str],
    build: fn(&Setup) -> Result<Limiter, Error>,
) -> Entry {
    Entry { name, package, can, build }
}

fn threads(decide: impl Fn(&str, u32) -> Answer + Send + Sync + 'static) -> Limiter {
    Limiter::Threads(Box::new(decide))
}

fn tasks<F>(decide: impl Fn(String, u32) -> F + Send + Sync + 'static) -> Limiter
where
    F: Future<Output = Answer> + Send + 'static,
{
    Limiter::Tasks(Box::new(move |key, cost| Box::pin(decide(key, cost))))
}

fn redis_url(setup: &Setup) -> Result<&str, Error> {
    Ok(setup.redis.as_deref().ok_or("REDIS is not set")?)
}

impl Limit {
    /// The window, for limiters that know only whole seconds.
    fn seconds(self) -> Result<u64, Error> {
        let seconds = self.window.as_secs();
        if seconds == 0 || self.window.subsec_nanos() > 0 {
            return Err(format!("window of {:?}: must be whole seconds", self.window).into());
        }
        Ok(seconds)
    }
}

/// A limiter for each key, for libraries without keys.
struct ByKey<L> {
    make: Box<dyn Fn() -> L + Send + Sync>,
    held: Mutex<HashMap<String, L>>,
}

impl<L: Clone> ByKey<L> {
    fn new(make: impl Fn() -> L + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), held: Mutex::default() }
    }

    fn get(&self, key: &str) -> L {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get(key) {
            Some(limiter) => limiter.clone(),
            None => held.entry(key.to_owned()).or_insert((self.make)()).clone(),
        }
    }
}

/// Removes idle keys, as the documentation of governor and `tower_governor` does.
fn each_minute(clean: impl Fn() + Send + 'static) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(60));
            clean();
        }
    });
}

fn governor(setup: &Setup) -> Result<Limiter, Error> {
    let burst = NonZeroU32::new(setup.limit.cost).ok_or("LIMIT is 0")?;
    // `Quota::per_second` for a window of a second.
    let quota =
        Quota::with_period(setup.limit.window / burst.get()).ok_or("WINDOW_MS is 0")?.allow_burst(burst);
    let limiter: Arc<DefaultKeyedRateLimiter<String>> = Arc::new(governor::RateLimiter::keyed(quota));
    let cleaned = Arc::clone(&limiter);
    each_minute(move || cleaned.retain_recent());
    let clock = DefaultClock::default();
    Ok(threads(move |key, cost| {
        let Some(cost) = NonZeroU32::new(cost) else { return Answer::Failed("cost is 0".into()) };
        match limiter.check_key_n(&key.to_owned(), cost) {
            Ok(Ok(())) => Answer::Admitted,
            Ok(Err(until)) => Answer::Denied(Some(until.wait_time_from(clock.now()))),
            // More than the burst: never.
            Err(_) => Answer::Denied(None),
        }
    }))
}

/// The key of a request for `tower_governor`: its header `x-user`.
#[derive(Clone)]
struct User;

impl KeyExtractor for User {
    type Key = HeaderValue;

    fn extract<T>(&self, request: &Request<T>) -> Result<HeaderValue, GovernorError> {
        request.headers().get("x-user").cloned().ok_or(GovernorError::UnableToExtractKey)
    }
}

fn tower_governor(setup: &Setup) -> Result<Limiter, Error> {
    let Limit { cost, window } = setup.limit;
    let mut builder = GovernorConfigBuilder::default().key_extractor(User);
    let config = builder.period(window / cost).burst_size(cost).finish().ok_or("LIMIT or WINDOW_MS is 0")?;
    let cleaned = Arc::clone(config.limiter());
    each_minute(move || cleaned.retain_recent());
    let inner = service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let service = GovernorLayer::new(config).layer(inner);
    Ok(tasks(move |key, _| {
        let service = service.clone();
        async move {
            let request = match Request::builder().header("x-user", key).body(Body::empty()) {
                Ok(request) => request,
                Err(error) => return Answer::Failed(error.to_string()),
            };
            let Ok(response) = service.oneshot(request).await;
            let wait = || response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok();
            match response.status() {
                StatusCode::OK => Answer::Admitted,
                StatusCode::TOO_MANY_REQUESTS => Answer::Denied(wait().map(Duration::from_secs)),
                other => Answer::Failed(other.to_string()),
            }
        }
    }))
}

fn rate_net(setup: &Setup, algorithm: Algorithm) -> Result<Limiter, Error> {
    let Limit { cost, window } = setup.limit;
    let mut builder = rate_net::RateLimiter::builder().quota(cost, window).algorithm(algorithm);
    if let Some(keys) = setup.max_keys {
        builder = builder.eviction(rate_net::Eviction::capacity(keys));
    }
    let limiter = builder.try_build()?;
    Ok(threads(move |key, cost| match limiter.check_n(key, cost) {
        rate_net::Decision::Allow => Answer::Admitted,
        decision if decision.is_impossible() => Answer::Denied(None),
        decision => Answer::Denied(decision.retry_after()),
    }))
}

fn throttle_net(setup: &Setup) -> Result<Limiter, Error> {
    let keys = setup.max_keys;
    let per_key = |Limit { cost, window }| {
        let limiter = throttle_net::PerKey::<String>::per_duration(cost, window);
        match keys {
            Some(keys) => limiter.with_eviction(throttle_net::Eviction::capacity(keys)),
            None => limiter,
        }
    };
    let first = per_key(setup.limit);
    let Some(second) = setup.second else {
        return Ok(threads(move |key, cost| {
            let key = key.to_owned();
            match first.try_acquire_with_cost(&key, cost) {
                true => Answer::Admitted,
                false => Answer::Denied(first.peek(&key, cost).retry_after()),
            }
        }));
    };
    let layered = Layered::<String>::builder().per_key(first).per_endpoint(per_key(second)).build();
    Ok(threads(move |key, cost| {
        let key = key.to_owned();
        match layered.try_acquire_with_cost(&key, &key, cost) {
            true => Answer::Admitted,
            false => Answer::Denied(layered.peek(&key, &key, cost).retry_after()),
        }
    }))
}

/// It has no keys; `Hybrid` is its way to two limits.
fn throttle_net_log(setup: &Setup) -> Result<Limiter, Error> {
    let (first, second) = (setup.limit, setup.second);
    let log = |Limit { cost, window }| SlidingWindowLog::new(cost, window);
    let by_key = ByKey::new(move || -> Arc<dyn throttle_net::Limiter> {
        match second {
            None => Arc::new(log(first)),
            Some(second) => Arc::new(Hybrid::builder().limiter(log(first)).limiter(log(second)).build()),
        }
    });
    Ok(threads(move |key, cost| match by_key.get(key).acquire_cost(cost) {
        throttle_net::Decision::Acquired => Answer::Admitted,
        decision => Answer::Denied(decision.retry_after()),
    }))
}

/// A single node, which has the whole limit.
fn rateguard(setup: &Setup, burst: u32) -> Result<Limiter, Error> {
    let cost = setup.limit.cost;
    let limit = match u32::try_from(setup.limit.seconds()?)? {
        1 => rateguard::Limit::per_second(cost),
        seconds if (cost * 60).is_multiple_of(seconds) => rateguard::Limit::per_minute(cost * 60 / seconds),
        seconds => return Err(format!("{cost} in {seconds} s is no whole number in a minute").into()),
    };
    let mut builder = rateguard::Guard::builder().bind("127.0.0.1:0").default_limit(limit.burst(burst));
    if let Some(keys) = setup.max_keys {
        builder = builder.tracked_keys(keys);
    }
    let guard = builder.spawn()?;
    Ok(threads(move |key, _| match guard.check(key) {
        rateguard::Decision::Allow => Answer::Admitted,
        rateguard::Decision::Deny { retry_after } => Answer::Denied(Some(retry_after)),
    }))
}

/// It takes `&mut self`, so that threads share it behind a lock.
#[allow(clippy::disallowed_methods)] // its caller reads the clock
fn throttlecrab(setup: &Setup) -> Result<Limiter, Error> {
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::new()));
    let (limit, period) = (i64::from(setup.limit.cost), i64::try_from(setup.limit.seconds()?)?);
    Ok(threads(move |key, cost| {
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        match limiter.rate_limit(key, limit, limit, period, cost.into(), SystemTime::now()) {
            Ok((true, _)) => Answer::Admitted,
            Ok((false, result)) => Answer::Denied(Some(result.retry_after)),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }))
}

/// Window and rate of trypema.
fn trypema_limit(limit: Limit) -> Result<(WindowSize, RateLimit), Error> {
    let seconds = limit.seconds()?;
    let rate = RateLimit::per_second(f64::from(limit.cost) / Duration::from_secs(seconds).as_secs_f64())?;
    Ok((WindowSize::seconds(seconds)?, rate))
}

fn trypema_answer(decision: Result<RateLimitDecision, TrypemaError>) -> Answer {
    match decision {
        Ok(RateLimitDecision::Allowed) => Answer::Admitted,
        Ok(RateLimitDecision::Rejected { retry_after, .. }) => Answer::Denied(Some(retry_after)),
        Ok(RateLimitDecision::Suppressed { is_allowed: true, .. }) => Answer::Admitted,
        Ok(RateLimitDecision::Suppressed { .. }) => Answer::Denied(None),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Its keys in Redis have no colon.
fn trypema_key(key: &str) -> Result<RedisKey, TrypemaError> {
    RedisKey::new(key.replace(':', "%3A"))
}

fn trypema_local(setup: &Setup) -> Result<Limiter, Error> {
    let (window, rate) = trypema_limit(setup.limit)?;
    let provider = LocalRateLimiterProvider::builder().window_size(window).build()?;
    Ok(threads(move |key, cost| trypema_answer(Ok(provider.absolute().inc(key, &rate, cost.into())))))
}

/// A connection of the kind that trypema takes.
fn connect(setup: &Setup) -> Result<redis::aio::ConnectionManager, Error> {
    let client = redis::Client::open(redis_url(setup)?)?;
    Ok(setup.runtime.block_on(client.get_connection_manager())?)
}

fn trypema_redis(setup: &Setup) -> Result<Limiter, Error> {
    let (window, rate) = trypema_limit(setup.limit)?;
    let provider = RedisRateLimiterProvider::builder(connect(setup)?).window_size(window).build()?;
    Ok(tasks(move |key, cost| {
        let (provider, rate) = (Arc::clone(&provider), rate);
        async move {
            match trypema_key(&key) {
                Ok(key) => trypema_answer(provider.absolute().inc(&key, &rate, cost.into()).await),
                Err(error) => Answer::Failed(error.to_string()),
            }
        }
    }))
}

fn trypema_hybrid(setup: &Setup) -> Result<Limiter, Error> {
    let (window, rate) = trypema_limit(setup.limit)?;
    let provider = HybridRateLimiterProvider::builder(connect(setup)?).window_size(window).build()?;
    Ok(tasks(move |key, cost| {
        let (provider, rate) = (Arc::clone(&provider), rate);
        async move {
            match trypema_key(&key) {
                Ok(key) => trypema_answer(provider.absolute().inc(&key, &rate, cost.into()).await),
                Err(error) => Answer::Failed(error.to_string()),
            }
        }
    }))
}

/// More keys than any run has without `MAX_KEYS`.
const LIMITADOR_KEYS: usize = 1 << 20;

/// The wait is that of the limit with least left, as in limitador's own response headers.
fn limitador(setup: &Setup) -> Result<Limiter, Error> {
    let limiter = limitador::RateLimiter::new(setup.max_keys.unwrap_or(LIMITADOR_KEYS) as u64);
    for limit in [Some(setup.limit), setup.second].into_iter().flatten() {
        let user = "user".try_into()?;
        limiter.add_limit(LimitadorLimit::new("torture", limit.cost.into(), limit.seconds()?, [], [user]));
    }
    let namespace: Namespace = "torture".into();
    Ok(threads(move |key, cost| {
        let context = Context::from(HashMap::from([("user".to_owned(), key.to_owned())]));
        match limiter.check_rate_limited_and_update(&namespace, &context, cost.into()) {
            Ok(result) if !result.limited => Answer::Admitted,
            Ok(result) => {
                let least = result.counters.iter().min_by_key(|counter| counter.remaining());
                Answer::Denied(least.and_then(|counter| counter.expires_in()))
            }
            Err(error) => Answer::Failed(error.to_string()),
        }
    }))
}
