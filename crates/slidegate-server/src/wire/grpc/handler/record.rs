//! Records a call in the envoyproxy/ratelimit statistics.

use std::sync::atomic::Ordering::Relaxed;

use slidegate::verb::Verb;

use super::request::{Decided, DescriptorTarget};
use super::response::is_over;
use crate::envoy::{RecordedHits, Statistics};

/// Records the hits of a call, and whether a fallback decided any of them.
pub(super) fn statistics<'d>(
    statistics: &Statistics,
    targets: &[DescriptorTarget<'_>],
    decided: impl Iterator<Item = Decided<'d>>,
) {
    let mut is_degraded = false;
    for (descriptor, one) in decided.filter(|(_, one)| one.verb() != Verb::Refund) {
        is_degraded |= one.decision().source().is_fallback();
        let DescriptorTarget::Limit { limit, .. } = &targets[descriptor] else { continue };
        // `used` includes the charge. Descriptors that share a key are each recorded as the last
        // one.
        let charged = if one.decision().cost() > 0 { one.asked().ceil() } else { 0 };
        let hits = RecordedHits {
            hits: one.asked().ceil(),
            before: one.decision().used().saturating_sub(charged),
            limit: one.decision().limit(),
            is_over: is_over(&one),
            is_shadow: !one.policy().options().enforced,
            source: one.decision().source(),
        };
        limit.record(statistics, &hits);
    }
    if is_degraded {
        statistics.calls().redis_errors.fetch_add(1, Relaxed);
    }
}
