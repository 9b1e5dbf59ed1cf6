//! Parts of events: an expired reservation, a block, and a closed period.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Amount, Block, Calendar, Policy, Quota, clock::Timestamp};

use crate::caller::Protocol;
use crate::engine::explanation;

/// A reservation that was not settled in time, under one policy.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) policy: Arc<str>,
    pub(crate) key: Arc<str>,
    /// The protocol that made it.
    pub(crate) protocol: Protocol,
    /// The held cost, as stores count it.
    pub(crate) held: u64,
    /// The charged cost, as stores count it.
    pub(crate) cost: u64,
    /// When it expired, by the store's clock.
    pub(crate) until: Timestamp,
    pub(crate) quota: Quota,
    pub(crate) limit: u64,
    /// The key's usage before.
    pub(crate) used: Amount,
}

/// A block: its end and its author.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Blocked {
    /// `null`: the block has no end.
    pub(super) until: Option<String>,
    pub(super) by: Option<Box<str>>,
}

impl From<&Block> for Blocked {
    fn from(block: &Block) -> Self {
        Self { until: block.ends_at().map(explanation::time), by: block.blocked_by().map(Box::from) }
    }
}

/// The total of a key in a calendar window that has ended.
#[derive(Debug)]
pub(crate) struct ClosedPeriod<'a> {
    pub(crate) policy: &'a Policy,
    /// The unredacted key, or the store's hash of it.
    pub(crate) key: &'a str,
    pub(crate) calendar: Calendar,
    pub(crate) ended: Timestamp,
    pub(crate) limit: u64,
    /// The key's tier.
    pub(crate) plan: Option<&'a str>,
    pub(crate) used: Amount,
}

/// A calendar window that has ended.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Period {
    /// With the offset of its time zone.
    pub(super) begins: String,
    pub(super) ends: String,
    time_zone: &'static str,
    /// The unit of `used` and `limit`, if the policy names one.
    unit: Option<Box<str>>,
    /// The tier of the key's last charge. `null`: none, or it is not known; then the limit is that of keys without a tier.
    plan: Option<Box<str>>,
}

impl ClosedPeriod<'_> {
    pub(super) fn begins(&self) -> Timestamp {
        let last = self.ended.as_micros().saturating_sub(1);
        Timestamp::from_micros(self.calendar.period(last).begin)
    }

    pub(super) fn period(&self) -> Period {
        Period {
            begins: self.calendar.time_text(self.begins()),
            ends: self.calendar.time_text(self.ended),
            time_zone: self.calendar.time_zone(),
            unit: self.policy.unit_name().map(Box::from),
            plan: self.plan.map(Box::from),
        }
    }
}
