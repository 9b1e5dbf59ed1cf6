//! `CL.THROTTLE` and `THROTTLE`: the commands of redis-cell and throttlecrab, with their field
//! order and rounding.
//!
//! Their bursts differ by one: redis-cell's excludes the first request, throttlecrab's includes it.
//! Both use the token bucket here, so decisions are exact where the originals are not.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Algorithm, Decisions, Quota};
use slidegate_config::names::INLINE_POLICIES;
use slidegate_http::headers::secs_ceil;

use super::answer;
use super::error::{CommandError, parse_integer};
use super::reply::Reply;
use crate::limits::MAX_COST;

/// Maximum period in seconds: the maximum window.
const MAX_PERIOD_SECS: u64 = Quota::MAX_WINDOW.as_secs();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    RedisCell,
    Throttlecrab,
}

/// The arguments after the key: an inline quota and a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThrottleArguments {
    dialect: Dialect,
    max_burst: u64,
    /// Per period.
    count: u64,
    period_secs: u64,
    pub(super) quantity: u64,
}

/// Caches the last inline quota. Most clients repeat one, and building it precomputes its
/// divisions.
#[derive(Debug, Default)]
pub(super) struct QuotaCache(Option<(ThrottleArguments, Arc<Quota>)>);

impl QuotaCache {
    /// The quota for these arguments, cached if it was the last one.
    pub(super) fn quota(&mut self, arguments: ThrottleArguments) -> Result<Arc<Quota>, CommandError> {
        let same = |cached: &ThrottleArguments| {
            ThrottleArguments { quantity: arguments.quantity, ..*cached } == arguments
        };
        match &self.0 {
            Some((cached, quota)) if same(cached) => Ok(Arc::clone(quota)),
            _ => {
                let quota = Arc::new(arguments.quota()?);
                self.0 = Some((arguments, Arc::clone(&quota)));
                Ok(quota)
            }
        }
    }
}

impl ThrottleArguments {
    /// Parses `key max_burst count period [quantity]`.
    ///
    /// # Errors
    /// The argument that is not a number in its range.
    pub(super) fn parse(dialect: Dialect, args: &[&[u8]]) -> Result<Self, CommandError> {
        // A burst of zero admits one request in redis-cell; throttlecrab rejects it.
        let (min_burst, max_burst) = match dialect {
            Dialect::RedisCell => (0, MAX_COST - 1),
            Dialect::Throttlecrab => (1, MAX_COST),
        };
        Ok(Self {
            dialect,
            max_burst: parse_integer("max_burst", args[1], min_burst, max_burst)?,
            count: parse_integer("count", args[2], 1, MAX_COST)?,
            period_secs: parse_integer("period", args[3], 1, MAX_PERIOD_SECS)?,
            quantity: args
                .get(4)
                .map_or(Ok(1), |quantity| parse_integer("quantity", quantity, 0, MAX_COST))?,
        })
    }

    /// The policy of the dialect's command, and its scope attribute.
    pub(super) fn policy(&self) -> (&'static str, &'static str) {
        match self.dialect {
            Dialect::RedisCell => INLINE_POLICIES[0],
            Dialect::Throttlecrab => INLINE_POLICIES[1],
        }
    }

    /// Maximum cost admitted at once.
    fn capacity(&self) -> u64 {
        match self.dialect {
            Dialect::RedisCell => self.max_burst + 1,
            Dialect::Throttlecrab => self.max_burst,
        }
    }

    fn quota(&self) -> Result<Quota, CommandError> {
        let quota = Quota::new(self.count, Duration::from_secs(self.period_secs))
            .map_err(|error| CommandError::new(error.to_string()))?;
        Ok(quota.with_algorithm(Algorithm::TokenBucket).with_burst(self.capacity()))
    }

    /// Writes the decision in the dialect's format.
    pub(super) fn write_reply(&self, decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
        let Some(one) = decisions.iter().next() else { return answer::undecided(decisions, reply) };
        reply.array(5);
        match self.dialect {
            Dialect::RedisCell => {
                reply.int(u64::from(one.decision().is_denied()));
                reply.int(one.decision().limit());
                reply.int(one.decision().remaining());
                match one.decision().retry_after() {
                    Some(wait) if one.decision().is_denied() => reply.int(secs_ceil(wait)),
                    _ => reply.never(),
                }
                reply.int(secs_ceil(one.decision().reset_after()));
            }
            Dialect::Throttlecrab => {
                reply.int(u64::from(one.decision().is_allowed()));
                reply.int(one.decision().limit());
                reply.int(one.decision().remaining());
                reply.int(self.crab_reset(one.decision().reset_after()).as_secs());
                match one.decision().retry_after() {
                    Some(wait) => reply.int(wait.as_secs()),
                    None => reply.never(),
                }
            }
        }
    }

    /// throttlecrab's reset: the time until the bucket is empty, plus the time of `max_burst - 2`
    /// more.
    fn crab_reset(&self, reset_after: Duration) -> Duration {
        let interval_us = u128::from(self.period_secs) * 1_000_000;
        let span = |cost: u64| u64::try_from(u128::from(cost) * interval_us / u128::from(self.count));
        let more = Duration::from_micros(span(self.max_burst.saturating_sub(2)).unwrap_or(u64::MAX));
        let less = if self.max_burst == 1 { span(1).unwrap_or(u64::MAX) } else { 0 };
        reset_after.saturating_add(more).saturating_sub(Duration::from_micros(less))
    }
}
