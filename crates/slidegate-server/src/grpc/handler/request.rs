//! The requests of a call: its descriptors become requests, each with its verb and its role in the call.
//!
//! By default the entries of a descriptor are attributes, beside `domain`; config files of
//! envoyproxy/ratelimit name a policy instead. Hits are checked, 0 hits peek, and negative hits are
//! refunds. `hits_addend: 0` on the whole call means 1, because protocol buffers cannot distinguish
//! it from an unset field.

use std::ops::Range;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use slidegate::{Decisions, Excess, PolicyDecision, Quota, Request, Role, Verb};
use smallvec::{SmallVec, smallvec};
use tonic::Status;

use crate::app::App;
use crate::envoy::{self, EnvoyConfig, LimitMatch, Lookup, Rate, SCOPE, Settings, Unit};

/// The attribute with the domain of a call.
const DOMAIN: &str = "domain";
/// Most descriptors of a call. Envoy sends one per rate limit action of a route, and planning
/// compares each with all.
const MAX_DESCRIPTORS: usize = 64;

/// The kinds of calls: what each does for its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// `ShouldRateLimit`: its descriptors say what.
    ShouldRateLimit,
    /// Checks whether one more hit fits.
    Check,
    /// Charges its hits, or this many, even above the limit.
    Report(Option<u64>),
    /// Holds this much, or the estimates of policies.
    Reserve(Option<u64>),
}

impl CallKind {
    /// What is done for a descriptor: the verb and the cost.
    fn of(self, call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> (Verb, Option<u64>) {
        let hits = hits(call, descriptor);
        match self {
            Self::ShouldRateLimit => (verb(descriptor, hits), Some(hits)),
            Self::Check => (Verb::Peek, Some(1)),
            Self::Report(None) if descriptor.is_negative_hits => (Verb::Refund, Some(hits)),
            Self::Report(amount) => (Verb::Penalize, Some(amount.unwrap_or(hits))),
            Self::Reserve(amount) => (Verb::Check, amount),
        }
    }
}

/// What limits a descriptor.
#[derive(Debug)]
// A call has a few of them, and a box would cost each an allocation.
#[allow(clippy::large_enum_variant)]
pub(super) enum DescriptorTarget<'c> {
    /// Every policy that applies to its attributes.
    Policies,
    /// A limit of the config files.
    Limit {
        limit: LimitMatch<'c>,
        /// The key that counts its denied hits, if they are counted. Peeks see them, checks do not.
        denied_key: Option<String>,
    },
    /// Nothing: the config files have no limit for it, or another one replaces it.
    None,
    /// An unlimited entry of the config files.
    Unlimited,
}

/// The requests of a call, without an allocation for as many as most have.
pub(super) type Requests<'r> = SmallVec<[Request<'r>; 5]>;

/// A decision, and the index of its descriptor.
pub(super) type Decided<'d> = (usize, PolicyDecision<'d>);

/// What the requests of a call are for, and which are decided together.
#[derive(Debug)]
pub(super) struct CallRequests {
    /// For each request, the index of its descriptor.
    descriptors: SmallVec<[usize; 5]>,
    /// The first request of each step. The requests of a step are decided together, and the other
    /// steps are taken if the first is allowed, or in shadow mode.
    steps: SmallVec<[usize; 2]>,
}

impl CallRequests {
    /// Makes the requests of a call, whose descriptors have these targets, in `requests`, which is
    /// empty: a list of them is not to be moved.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed descriptor.
    pub(super) fn new<'r>(
        app: &App,
        call: &'r RateLimitRequest,
        targets: &'r [DescriptorTarget<'r>],
        settings: Option<&Settings>,
        kind: CallKind,
        requests: &mut Requests<'r>,
    ) -> Result<Self, Status> {
        let mut batch = Self { descriptors: SmallVec::new(), steps: smallvec![0] };
        // A reservation is one step in any case.
        let is_shadow =
            settings.is_some_and(|settings| settings.shadow_mode) && !matches!(kind, CallKind::Reserve(_));
        // Refunds come last: a denied client will retry, with the refund.
        for is_refund in [false, true] {
            let mut begins_step = is_refund;
            for (index, (descriptor, target)) in call.descriptors.iter().zip(targets).enumerate() {
                let (verb, cost) = kind.of(call, descriptor);
                if matches!(target, DescriptorTarget::None | DescriptorTarget::Unlimited)
                    || (verb == Verb::Refund) != is_refund
                {
                    continue;
                }
                if (begins_step || is_shadow) && !requests.is_empty() {
                    batch.steps.push(requests.len());
                }
                begins_step = false;
                let mut request = Request::new().with_verb(verb).with_role(role(target, settings));
                if let Some(cost) = cost {
                    request = request.with_cost(cost);
                }
                if (verb, cost) == (Verb::Peek, Some(0)) {
                    // A peek of 0 hits asks whether the key is over its limit; 0 hits always fit.
                    request = request.deny_over_limit();
                }
                requests.push(request);
                batch.descriptors.push(index);
                if let Some(request) = requests.last_mut() {
                    let completed = match target {
                        DescriptorTarget::Limit { limit, .. } => under_limit(app, request, limit),
                        _ => under_policies(app, request, call, descriptor),
                    };
                    completed.map_err(|detail| invalid(index, &detail))?;
                }
                if let DescriptorTarget::Limit { limit, denied_key: Some(key) } = target {
                    let denied_hits = Request::new().with(SCOPE, key).with_cost(cost.unwrap_or_default());
                    requests.push(under(denied_hits, limit).with_role(Role::Refusals));
                    batch.descriptors.push(index);
                }
            }
        }
        Ok(batch)
    }

    /// The number of steps, at least one.
    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The requests of a step.
    pub(super) fn step(&self, step: usize) -> Range<usize> {
        self.steps[step]..self.steps.get(step + 1).copied().unwrap_or(self.descriptors.len())
    }

    /// The decisions of a step, each with its descriptor.
    pub(super) fn decided<'d>(
        &self,
        step: usize,
        decisions: &'d Decisions<'_>,
    ) -> impl Iterator<Item = Decided<'d>> {
        let descriptors = &self.descriptors[self.step(step)];
        decisions.iter().map(move |one| (descriptors[one.request()], one))
    }
}

/// What is done with the hits of a descriptor.
fn verb(descriptor: &RateLimitDescriptor, hits: u64) -> Verb {
    match (hits, descriptor.is_negative_hits) {
        (0, _) => Verb::Peek,
        (1.., true) => Verb::Refund,
        (1.., false) => Verb::Check,
    }
}

/// How a descriptor takes part in the decision on the call.
fn role(target: &DescriptorTarget<'_>, settings: Option<&Settings>) -> Role {
    let is_shadow = settings.is_some_and(|settings| settings.shadow_mode);
    let is_quota = settings.is_some_and(|settings| settings.quota_mode);
    match target {
        DescriptorTarget::Limit { limit, .. } if !is_shadow && (is_quota || limit.rule.quota_mode) => {
            Role::Together
        }
        _ => Role::Deciding,
    }
}

/// Validates a call apart from its descriptors. The first two messages are those of
/// envoyproxy/ratelimit.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn validate(call: &RateLimitRequest) -> Result<(), Status> {
    let count = call.descriptors.len();
    match count {
        _ if call.domain.is_empty() => Err(Status::invalid_argument("rate limit domain must not be empty")),
        0 => Err(Status::invalid_argument("rate limit descriptor list must not be empty")),
        1..=MAX_DESCRIPTORS => Ok(()),
        _ => Err(Status::invalid_argument(format!(
            "invalid descriptors ({count} of them): must be at most {MAX_DESCRIPTORS}"
        ))),
    }
}

/// Whether a call has refunds, which need a permission of their own.
pub(crate) fn has_refund(call: &RateLimitRequest) -> bool {
    call.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// What limits each descriptor. Without config files, policies do.
///
/// # Errors
/// `INVALID_ARGUMENT` if a descriptor carries an invalid limit, or any where cost is held.
pub(super) fn targets<'c>(
    config: Option<&'c EnvoyConfig>,
    call: &RateLimitRequest,
    kind: CallKind,
) -> Result<Vec<DescriptorTarget<'c>>, Status> {
    if let (CallKind::Reserve(_), Some(index)) =
        (kind, call.descriptors.iter().position(|descriptor| descriptor.limit.is_some()))
    {
        return Err(invalid(index, "cost is held under configured limits only; leave `limit` out"));
    }
    let Some(config) = config else {
        return Ok(call.descriptors.iter().map(|_| DescriptorTarget::Policies).collect());
    };
    let lookup = |(index, descriptor): (usize, &RateLimitDescriptor)| {
        let carried = carried_rate(descriptor).map_err(|detail| invalid(index, &detail))?;
        let entries: Vec<_> = entries(descriptor).collect();
        Ok(config.lookup(&call.domain, &entries, carried))
    };
    let lookups = call.descriptors.iter().enumerate().map(lookup).collect::<Result<Vec<_>, Status>>()?;
    let replaced = envoy::replaced(&lookups);
    let targets = call.descriptors.iter().zip(lookups).zip(replaced);
    let targets = targets.map(|((descriptor, lookup), is_replaced)| match lookup {
        Lookup::NoMatch { .. } => DescriptorTarget::None,
        _ if is_replaced => DescriptorTarget::None,
        Lookup::Unlimited { .. } => DescriptorTarget::Unlimited,
        Lookup::Limited(limit) => {
            let hits = hits(call, descriptor);
            let is_counted =
                kind == CallKind::ShouldRateLimit && counts_denials(&limit, verb(descriptor, hits), hits);
            let denied_key = is_counted.then(|| envoy::denied_key(&limit.key));
            DescriptorTarget::Limit { limit, denied_key }
        }
    });
    Ok(targets.collect())
}

/// Whether denied hits are counted under a key of their own.
///
/// A cost that is known only when a response ends is limited by a peek before (0 hits) and a charge
/// after, whose result nobody waits for. envoyproxy/ratelimit counts every hit, so its peeks are
/// over the limit as soon as more than the limit was asked for. Here denied hits are free, so they
/// are counted separately, for peeks only. A check of one hit on a limit without peeks, the usual
/// case, needs no second key.
fn counts_denials(limit: &LimitMatch<'_>, verb: Verb, hits: u64) -> bool {
    if verb == Verb::Peek {
        limit.counters.mark_peeked();
    }
    limit.excess == Excess::Refuse
        && match verb {
            Verb::Peek => true,
            Verb::Check => hits > 1 || limit.counters.is_peeked(),
            Verb::Refund | Verb::Penalize => false,
        }
}

/// Completes a request that policies decide.
fn under_policies<'r>(
    app: &App,
    request: &mut Request<'r>,
    call: &'r RateLimitRequest,
    descriptor: &'r RateLimitDescriptor,
) -> Result<(), String> {
    let domain = std::iter::once((DOMAIN, call.domain.as_str()));
    complete(app, request, domain.chain(entries(descriptor)))?;
    let Some(rate) = carried_rate(descriptor)? else { return Ok(()) };
    let quota = Quota::new(u64::from(rate.requests_per_unit), rate.unit.window());
    let quota = quota.map_err(|error| error.to_string())?;
    // With the algorithm of the policy that it replaces, so that usage is kept.
    let policies = app.policies();
    let policy = policies.applying_to(request).next();
    let algorithm = policy.map_or(quota.algorithm(), |policy| policy.quota().algorithm());
    *request = std::mem::take(request).with_quota(quota.with_algorithm(algorithm));
    Ok(())
}

/// Completes a request that a limit of the config files decides.
fn under_limit<'r>(app: &App, request: &mut Request<'r>, limit: &'r LimitMatch<'r>) -> Result<(), String> {
    complete(app, request, std::iter::once((SCOPE, limit.key.as_str())))?;
    *request = under(std::mem::take(request), limit);
    Ok(())
}

/// Adds attributes to a request where it is, because moving one takes as long.
fn complete<'r>(
    app: &App,
    request: &mut Request<'r>,
    attributes: impl Iterator<Item = (&'r str, &'r str)>,
) -> Result<(), String> {
    let attributes = attributes.map(|(name, value)| (name, value.as_bytes()));
    app.attributes.complete(request, attributes).map_err(|error| error.detail)
}

fn under<'r>(request: Request<'r>, limit: &LimitMatch<'r>) -> Request<'r> {
    let request = request.under(limit.policy);
    match limit.quota {
        Some(quota) => request.with_quota(quota),
        None => request,
    }
}

fn invalid(index: usize, detail: &str) -> Status {
    Status::invalid_argument(format!("descriptors[{index}]: {detail}"))
}

/// The key and the value of each entry.
fn entries(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&str, &str)> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()))
}

/// The number of hits of a descriptor, without its sign.
fn hits(call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.map_or_else(|| u64::from(call.hits_addend.max(1)), |hits| hits.value)
}

/// The limit that a descriptor carries.
fn carried_rate(descriptor: &RateLimitDescriptor) -> Result<Option<Rate>, String> {
    let Some(limit) = descriptor.limit else { return Ok(None) };
    let unit = Unit::from_number(limit.unit).ok_or_else(|| {
        format!("invalid limit.unit `{}`: must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", limit.unit)
    })?;
    Ok(Some(Rate { requests_per_unit: limit.requests_per_unit, unit }))
}
