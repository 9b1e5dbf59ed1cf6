//! `CL.THROTTLE` and `THROTTLE`: the commands of redis-cell and of throttlecrab, each with its own order and rounding.
//!
//! The two count burst differently: redis-cell's is what passes besides the first request, throttlecrab's is all that
//! passes at once. Both are the token bucket here, so what is decided is exact where theirs is not.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Algorithm, Decisions, Quota, Request, Verb};

use super::command::{Asking, Form, Step, Wrong, whole};
use super::decide;
use super::reply::Reply;
use crate::limits::MAX_COST;
use crate::policy_names::INLINE_POLICIES;

/// Longest period, in seconds: the longest window.
const MAX_PERIOD_SECS: u64 = Quota::MAX_WINDOW.as_secs();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    RedisCell,
    Throttlecrab,
}

/// What a client told besides the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    dialect: Dialect,
    max_burst: u64,
    /// Per period.
    count: u64,
    period_secs: u64,
    quantity: u64,
}

/// The quota that was told last: most clients tell one again and again, and its divisions take time to prepare.
#[derive(Debug, Default)]
pub(super) struct Prepared(Option<(Told, Arc<Quota>)>);

impl Dialect {
    pub(super) fn of(is_redis_cell: bool) -> Self {
        if is_redis_cell { Self::RedisCell } else { Self::Throttlecrab }
    }
}

/// `key max_burst count period [quantity]`
pub(super) fn throttle<'b>(
    dialect: Dialect,
    given: &[&'b [u8]],
    prepared: &mut Prepared,
    asking: &mut Asking<'b>,
    reply: &mut Reply<'_>,
) -> Result<Step<'b>, Wrong> {
    // A burst of zero lets one pass in redis-cell and none in throttlecrab, which refuses it.
    let (least_burst, most_burst) = match dialect {
        Dialect::RedisCell => (0, MAX_COST - 1),
        Dialect::Throttlecrab => (1, MAX_COST),
    };
    let told = Told {
        dialect,
        max_burst: whole("max_burst", given[1], least_burst, most_burst)?,
        count: whole("count", given[2], 1, MAX_COST)?,
        period_secs: whole("period", given[3], 1, MAX_PERIOD_SECS)?,
        quantity: given.get(4).map_or(Ok(1), |quantity| whole("quantity", quantity, 0, MAX_COST))?,
    };
    let (policy, attribute) = match dialect {
        Dialect::RedisCell => INLINE_POLICIES[0],
        Dialect::Throttlecrab => INLINE_POLICIES[1],
    };
    let mut request = Request::new().under(policy).quota(prepared.quota(told)?).cost(told.quantity);
    let key = std::iter::once((attribute, given[0]));
    asking.app.attributes.add_to(&mut request, key).map_err(|bad| Wrong::new(bad.detail))?;
    asking.decide(Verb::Check, request, Form::Told(told), reply);
    Ok(Step::Asked)
}

impl Prepared {
    fn quota(&mut self, told: Told) -> Result<Arc<Quota>, Wrong> {
        let same = |known: &Told| Told { quantity: told.quantity, ..*known } == told;
        match &self.0 {
            Some((known, quota)) if same(known) => Ok(Arc::clone(quota)),
            _ => {
                let quota = Arc::new(told.quota()?);
                self.0 = Some((told, Arc::clone(&quota)));
                Ok(quota)
            }
        }
    }
}

impl Told {
    /// What passes at once.
    fn capacity(&self) -> u64 {
        match self.dialect {
            Dialect::RedisCell => self.max_burst + 1,
            Dialect::Throttlecrab => self.max_burst,
        }
    }

    fn quota(&self) -> Result<Quota, Wrong> {
        let quota = Quota::new(self.count, Duration::from_secs(self.period_secs))
            .map_err(|error| Wrong::new(error.to_string()))?;
        Ok(quota.with_algorithm(Algorithm::TokenBucket).with_burst(self.capacity()))
    }

    /// Tells the decision on the key.
    pub(super) fn answer(&self, decisions: &Decisions<'_>, reply: &mut Reply<'_>) {
        let Some(one) = decisions.iter().next() else { return decide::gone(reply) };
        reply.array(5);
        match self.dialect {
            Dialect::RedisCell => {
                reply.int(u64::from(one.is_denied()));
                reply.int(one.limit);
                reply.int(one.remaining);
                match one.retry_after() {
                    Some(wait) if one.is_denied() => reply.int(secs_ceil(wait)),
                    _ => reply.never(),
                }
                reply.int(secs_ceil(one.reset_after()));
            }
            Dialect::Throttlecrab => {
                reply.int(u64::from(one.is_allowed()));
                reply.int(one.limit);
                reply.int(one.remaining);
                reply.int(self.crab_reset(one.reset_after()).as_secs());
                match one.retry_after() {
                    Some(wait) => reply.int(wait.as_secs()),
                    None => reply.never(),
                }
            }
        }
    }

    /// Throttlecrab counts from a bucket that is empty to one that could hold `max_burst - 2` more.
    fn crab_reset(&self, reset_after: Duration) -> Duration {
        let interval_us = u128::from(self.period_secs) * 1_000_000;
        let span = |cost: u64| u64::try_from(u128::from(cost) * interval_us / u128::from(self.count));
        let more = Duration::from_micros(span(self.max_burst.saturating_sub(2)).unwrap_or(u64::MAX));
        let less = if self.max_burst == 1 { span(1).unwrap_or(u64::MAX) } else { 0 };
        reset_after.saturating_add(more).saturating_sub(Duration::from_micros(less))
    }
}

/// Whole seconds, rounded up: at this time the wait is over.
fn secs_ceil(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
