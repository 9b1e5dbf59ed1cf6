//! Encodes decisions as the response that Envoy reads: a status for each descriptor, headers, and
//! metadata.
//!
//! Envoy makes `x-ratelimit-*` of the statuses and drops fractions of seconds, so waits are whole
//! seconds, rounded up: a client that reads 0 would retry too early.

use std::iter::Peekable;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf::Struct;
use prost::Message;
use slidegate::headers::{HeaderOptions, Problem};
use slidegate::{Decisions, PolicyDecision, Reason, Role, Verb, millis_ceil, secs_ceil};

use super::denial::{Denial, wait};
use super::metadata;
use super::request::{Batch, Target, unit_number};
use super::status::{self, CurrentLimit, DescriptorStatus};
use crate::host::Host;
use crate::message::EncodedResponse;
use crate::settings::HeaderNames;

/// The response to a call.
#[derive(Debug)]
pub(super) struct Response<'d> {
    statuses: Vec<DescriptorStatus<'d>>,
    /// The strictest denial of the call, if it is denied.
    denial: Option<Denial<'d>>,
}

/// What few responses have, besides their statuses.
#[derive(Debug)]
pub(super) struct Additions {
    pub(super) headers: Vec<HeaderValue>,
    pub(super) metadata: Option<Struct>,
    pub(super) raw_body: Option<String>,
}

impl Additions {
    /// Completes an encoded response, of which the statuses are written.
    pub(super) fn add_to(self, mut message: Vec<u8>) -> EncodedResponse {
        let Self { mut headers, metadata, raw_body } = self;
        if raw_body.is_some() {
            headers.push(header("content-type", Problem::MEDIA_TYPE.to_owned()));
        }
        if !headers.is_empty() || metadata.is_some() {
            // A message may be encoded in parts.
            let rest = RateLimitResponse {
                response_headers_to_add: headers,
                dynamic_metadata: metadata,
                raw_body: raw_body.unwrap_or_default().into_bytes(),
                ..RateLimitResponse::default()
            };
            message.extend(rest.encode_to_vec());
        }
        EncodedResponse(message)
    }
}

impl<'d> Response<'d> {
    /// The response of a call's decisions.
    pub(super) fn new(batch: &'d Batch<'_>, decisions: &'d Decisions<'_>) -> Self {
        let unlimited = |target: &Target<'_>| DescriptorStatus {
            code: Code::Ok,
            limit: None,
            remaining: if matches!(target, Target::Unlimited) { u32::MAX } else { 0 },
        };
        let mut statuses: Vec<_> = batch.targets.iter().map(unlimited).collect();
        let (mut denial, mut together) = (None, None);
        let mut all_deny_together = true;
        let mut decisions = decisions.iter().peekable();
        while let Some((descriptor, decision)) = next_binding(batch, &mut decisions) {
            let is_over = decision.verb() != Verb::Refund && is_over(&decision);
            statuses[descriptor] = status(batch.targets.of(descriptor), &decision, is_over);
            let denies = is_over && decision.policy().is_enforced();
            let denial = match decision.role() {
                Role::Together => {
                    all_deny_together &= denies;
                    &mut together
                }
                _ => &mut denial,
            };
            if denies {
                keep_stricter(denial, Denial { descriptor, decision });
            }
        }
        if let Some(together) = together.filter(|_| all_deny_together) {
            keep_stricter(&mut denial, together);
        }
        Self { statuses, denial }
    }

    pub(super) fn is_denied(&self) -> bool {
        self.denial.is_some()
    }

    /// What it says about each descriptor.
    pub(super) fn statuses(&self) -> &[DescriptorStatus<'d>] {
        &self.statuses
    }

    /// The statuses and the code of the whole call, encoded; `is_overruled` allows it whatever the
    /// statuses say.
    pub(super) fn encode(&self, is_overruled: bool) -> Vec<u8> {
        let code = if self.is_denied() && !is_overruled { Code::OverLimit } else { Code::Ok };
        status::encode(code, &self.statuses)
    }

    /// `retry-after` of a denial, with these options.
    pub(super) fn retry_after(&self, options: &HeaderOptions) -> Vec<HeaderValue> {
        let Some(wait) = self.denial.as_ref().and_then(|denial| wait(&denial.decision)) else {
            return Vec::new();
        };
        let secs = options.retry_after.then(|| header("retry-after", secs_ceil(wait).max(1).to_string()));
        let millis =
            options.retry_after_ms.then(|| header("retry-after-ms", millis_ceil(wait).max(1).to_string()));
        secs.into_iter().chain(millis).collect()
    }

    /// The three headers of envoyproxy/ratelimit: of the last descriptor over its limit if the call
    /// is denied and `shows_denial`, otherwise of the one with the least remaining.
    pub(super) fn three_headers(&self, names: &HeaderNames, shows_denial: bool) -> Vec<HeaderValue> {
        let shows_denial = shows_denial && self.is_denied();
        let limited = || self.statuses.iter().filter_map(|status| Some((status, status.limit.as_ref()?)));
        let over = limited().rfind(|(status, _)| shows_denial && status.code == Code::OverLimit);
        // The first of equal ones.
        let Some((status, limit)) = over.or_else(|| limited().min_by_key(|(status, _)| status.remaining))
        else {
            return Vec::new();
        };
        vec![
            header(&names.limit, limit.requests_per_unit.to_string()),
            header(&names.remaining, status.remaining.to_string()),
            header(&names.reset, limit.reset_s.to_string()),
        ]
    }

    /// Which policy and key denied, and why.
    pub(super) fn denial_metadata<H: Host>(&self, host: &H) -> Option<Struct> {
        let denial = self.denial.as_ref()?;
        Some(metadata::denial(denial, host.explain(&denial.decision), wait(&denial.decision)))
    }

    /// The body of a call that is denied because the store is unavailable and a policy denies then.
    ///
    /// The call is denied and not failed: if it failed, Envoy would allow the request unless
    /// configured otherwise. The body and the metadata say what the code cannot.
    pub(super) fn store_unavailable_body(&self) -> Option<String> {
        let denial = self.denial.as_ref().filter(|denial| denial.reason() == Reason::StoreUnavailable)?;
        let one = &denial.decision;
        Some(Problem::of_one(one.policy().name(), one.quota(), one)?.to_json())
    }
}

fn keep_stricter<'d>(known: &mut Option<Denial<'d>>, new: Denial<'d>) {
    if known.as_ref().is_none_or(|known| new.decision.is_stricter_than(&known.decision)) {
        *known = Some(new);
    }
}

/// Whether a descriptor is over its limit. A blocked key always is, even for 0 hits under a shadow
/// policy.
pub(super) fn is_over(one: &PolicyDecision<'_>) -> bool {
    one.is_denied() || one.is_blocked()
}

/// The binding decision of the next descriptor that has any, and its index: the strictest of its
/// enforced policies, or of its shadow policies if it has no others.
fn next_binding<'d>(
    batch: &Batch<'_>,
    decisions: &mut Peekable<impl Iterator<Item = PolicyDecision<'d>>>,
) -> Option<(usize, PolicyDecision<'d>)> {
    let mut known = decisions.next()?;
    let descriptor = batch.descriptor(known.request());
    // Decisions are in the order of the requests, and these in that of the descriptors.
    while let Some(one) = decisions.next_if(|one| batch.descriptor(one.request()) == descriptor) {
        let (known_binds, binds) = (known.policy().is_enforced(), one.policy().is_enforced());
        if binds && !known_binds || binds == known_binds && one.is_stricter_than(&known) {
            known = one;
        }
    }
    Some((descriptor, known))
}

fn status<'d>(target: &'d Target<'_>, one: &PolicyDecision<'d>, is_over: bool) -> DescriptorStatus<'d> {
    let is_enforced = one.policy().is_enforced();
    let (name, remaining) = match target {
        // A denied request leaves what remains, but envoyproxy/ratelimit reports 0.
        Target::Limit { limit, .. } => (limit.rule.name.as_str(), if is_over { 0 } else { one.remaining() }),
        // A shadow policy reports 0 if it would deny, although a smaller cost might fit.
        _ => (one.policy().name(), if is_over && !is_enforced { 0 } else { one.remaining() }),
    };
    let limit = CurrentLimit {
        name,
        // Most often that of the policy; a key may have an override.
        requests_per_unit: narrow(one.limit()),
        unit: unit_number(one.quota().window()),
        reset_s: i64::try_from(secs_ceil(until_reset(one, is_over))).unwrap_or(i64::MAX),
    };
    DescriptorStatus {
        code: if is_over && is_enforced { Code::OverLimit } else { Code::Ok },
        limit: Some(limit),
        remaining: narrow(remaining),
    }
}

/// The time until a denied client may retry, otherwise until it has its whole limit again. In a
/// fixed window both are the end of the window.
fn until_reset(one: &PolicyDecision<'_>, is_over: bool) -> Duration {
    if is_over { wait(one).unwrap_or_else(|| one.reset_after()) } else { one.reset_after() }
}

/// A number in 32 bits, saturating.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }
}
