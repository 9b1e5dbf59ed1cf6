//! Encodes decisions as Envoy's response: a status per descriptor, headers and metadata.
//!
//! Envoy derives `x-ratelimit-*` from the statuses and drops fractions of seconds. Waits are
//! therefore whole seconds, rounded up: a client that reads 0 would retry too early.

use std::iter::Peekable;
use std::time::Duration;

use slidegate::{
    PolicyDecision,
    verb::{Role, Verb},
};
use slidegate_http::headers::secs_ceil;

use super::denial::{CallDenial, header, wait};
use super::request::{Decided, DescriptorTarget};
use crate::envoy::{HeaderNames, Unit};
use crate::wire::grpc::message::{Code, DescriptorStatus, HeaderValue, RateLimit};

#[derive(Debug)]
pub(super) struct CallOutcome<'d> {
    pub(super) statuses: Vec<DescriptorStatus>,
    /// The strictest denial of the call, if it is denied.
    pub(super) denial: Option<CallDenial<'d>>,
}

impl<'d> CallOutcome<'d> {
    /// The outcome of a call's decisions.
    pub(super) fn new(targets: &[DescriptorTarget<'_>], decided: impl Iterator<Item = Decided<'d>>) -> Self {
        let unlimited = |target: &DescriptorTarget<'_>| DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: if matches!(target, DescriptorTarget::Unlimited) { u32::MAX } else { 0 },
            ..DescriptorStatus::default()
        };
        let mut statuses: Vec<_> = targets.iter().map(unlimited).collect();
        let (mut denial, mut together) = (None, None);
        let mut all_deny_together = true;
        let mut decided = decided.peekable();
        while let Some((descriptor, decision)) = next_binding(&mut decided) {
            let is_over = decision.verb() != Verb::Refund && is_over(&decision);
            statuses[descriptor] = status(&targets[descriptor], &decision, is_over);
            let denies = is_over && decision.policy().options().enforced;
            let denial = match decision.role() {
                Role::Together => {
                    all_deny_together &= denies;
                    &mut together
                }
                _ => &mut denial,
            };
            if denies {
                keep_stricter(denial, CallDenial { descriptor, decision });
            }
        }
        if let Some(together) = together.filter(|_| all_deny_together) {
            keep_stricter(&mut denial, together);
        }
        Self { statuses, denial }
    }

    /// The three headers of envoyproxy/ratelimit, for the last descriptor over its limit if the
    /// call is denied, otherwise for the one with the least remaining.
    pub(super) fn three_headers(&self, names: &HeaderNames, shows_denial: bool) -> Vec<HeaderValue> {
        let limited =
            || self.statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
        let over = limited().rfind(|(status, _)| shows_denial && status.code() == Code::OverLimit);
        // The first of equal ones.
        let Some((status, limit)) =
            over.or_else(|| limited().min_by_key(|(status, _)| status.limit_remaining))
        else {
            return Vec::new();
        };
        vec![
            header(&names.limit, limit.requests_per_unit.to_string()),
            header(&names.remaining, status.limit_remaining.to_string()),
            header(&names.reset, status.duration_until_reset.map_or(0, |reset| reset.seconds).to_string()),
        ]
    }
}

fn keep_stricter<'d>(known: &mut Option<CallDenial<'d>>, new: CallDenial<'d>) {
    if known.as_ref().is_none_or(|known| new.decision.decision().is_stricter_than(known.decision.decision()))
    {
        *known = Some(new);
    }
}

/// Whether a descriptor is over its limit. A blocked key always is, even for 0 hits under a shadow
/// policy.
pub(super) fn is_over(one: &PolicyDecision<'_>) -> bool {
    one.decision().is_denied() || one.decision().is_blocked()
}

/// The next descriptor's binding decision and index: its strictest enforced policy, or its
/// strictest shadow policy if it has no others.
fn next_binding<'d>(decided: &mut Peekable<impl Iterator<Item = Decided<'d>>>) -> Option<Decided<'d>> {
    let (descriptor, mut known) = decided.next()?;
    // Decisions of a descriptor are adjacent.
    while let Some((_, one)) = decided.next_if(|(of, _)| *of == descriptor) {
        let (known_binds, binds) = (known.policy().options().enforced, one.policy().options().enforced);
        if binds && !known_binds || binds == known_binds && one.decision().is_stricter_than(known.decision())
        {
            known = one;
        }
    }
    Some((descriptor, known))
}

fn status(target: &DescriptorTarget<'_>, one: &PolicyDecision<'_>, is_over: bool) -> DescriptorStatus {
    let is_enforced = one.policy().options().enforced;
    let (name, remaining) = match target {
        // A denied request leaves what remains, but envoyproxy/ratelimit reports 0.
        DescriptorTarget::Limit { limit, .. } => {
            (limit.rule.name.as_str(), if is_over { 0 } else { one.decision().remaining() })
        }
        // A shadow policy reports 0 if it would deny, although a smaller cost might fit.
        _ => (one.policy().name(), if is_over && !is_enforced { 0 } else { one.decision().remaining() }),
    };
    let limit = RateLimit {
        name: name.to_owned(),
        // Usually the policy's limit; a key may have an override.
        requests_per_unit: narrow(one.decision().limit()),
        // 0 is UNKNOWN.
        unit: Unit::of(one.quota()).map_or(0, Unit::number),
    };
    let reset_s = i64::try_from(secs_ceil(until_reset(one, is_over))).unwrap_or(i64::MAX);
    DescriptorStatus {
        code: if is_over && is_enforced { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(limit),
        limit_remaining: narrow(remaining),
        duration_until_reset: Some(prost_types::Duration { seconds: reset_s, nanos: 0 }),
    }
}

/// Time until a denied client may retry, otherwise until the whole limit is available again. In a
/// fixed window both are the window's end.
fn until_reset(one: &PolicyDecision<'_>, is_over: bool) -> Duration {
    if is_over {
        wait(one).unwrap_or_else(|| one.decision().reset_after())
    } else {
        one.decision().reset_after()
    }
}

/// Saturates a number to 32 bits.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
