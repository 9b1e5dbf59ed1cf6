//! Records a call in the statistics of envoyproxy/ratelimit.

use std::sync::atomic::Ordering::Relaxed;

use slidegate::{
    DecisionSource, Verb,
    reserve::{HoldStatus, Settlement},
};

use super::request::{Decided, DescriptorTarget};
use super::response::is_over;
use crate::envoy::{RecordedHits, Statistics};

/// Which hits of a call are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    /// All of them.
    All,
    /// Those over a limit, as the others are charged by a later call.
    Denied,
}

/// Records the hits of a call, and whether a fallback decided any of them.
pub(super) fn statistics<'d>(
    statistics: &Statistics,
    targets: &[DescriptorTarget<'_>],
    decided: impl Iterator<Item = Decided<'d>>,
    recorded: Recorded,
) {
    let mut is_degraded = false;
    for (descriptor, one) in decided.filter(|(_, one)| one.verb() != Verb::Refund) {
        is_degraded |=
            matches!(one.source(), DecisionSource::Local | DecisionSource::Allow | DecisionSource::Deny);
        if recorded == Recorded::Denied && !is_over(&one) {
            continue;
        }
        let DescriptorTarget::Limit { limit, .. } = &targets[descriptor] else { continue };
        // `used` contains what was charged. Descriptors that share a key are each recorded as the
        // last one.
        let charged = if one.cost() > 0 { one.asked().ceil() } else { 0 };
        let hits = RecordedHits {
            hits: one.asked().ceil(),
            before: one.used().saturating_sub(charged),
            limit: one.limit(),
            is_over: is_over(&one),
            is_shadow: !one.policy().is_enforced(),
            source: one.source(),
        };
        limit.record(statistics, &hits);
    }
    if is_degraded {
        statistics.calls().redis_errors.fetch_add(1, Relaxed);
    }
}

/// Records the hits that a commit has charged to these limits.
pub(super) fn committed(
    statistics: &Statistics,
    targets: &[DescriptorTarget<'_>],
    settlement: &Settlement,
    amount: u64,
) {
    let is_charged = |status| !matches!(status, HoldStatus::AlreadySettled | HoldStatus::Unknown);
    for key in settlement.iter().filter(|key| is_charged(key.status())) {
        let is_of = |target: &&DescriptorTarget<'_>| matches!(target, DescriptorTarget::Limit { limit, .. } if limit.policy == key.policy());
        let Some(DescriptorTarget::Limit { limit, .. }) = targets.iter().find(is_of) else { continue };
        limit.record(
            statistics,
            &RecordedHits {
                hits: amount,
                before: key.used().saturating_sub(amount),
                limit: key.limit(),
                is_over: false,
                is_shadow: false,
                source: key.source(),
            },
        );
    }
}
