//! Turns the descriptors of a call into requests, each with its verb and role.
//!
//! By default a descriptor's entries are attributes, next to `domain`; envoyproxy/ratelimit files select a
//! policy instead. Positive hits are checked, 0 hits peek, and negative hits are refunds. `hits_addend: 0` on
//! the whole call means 1, because protocol buffers cannot distinguish it from an unset field.

use std::ops::Range;

use slidegate::{
    Decisions, Excess, PolicyDecision, Quota, Request, Value,
    verb::{Role, Verb},
};
use smallvec::{SmallVec, smallvec};
use tonic::Status;

use super::values::{self, MAX_VALUE};
use crate::caller::Protocol;
use crate::engine::App;
use crate::envoy::{self, EnvoyConfig, LimitMatch, Lookup, Rate, SCOPE, Settings, Unit};
use crate::limits::MAX_COST;
use crate::wire::grpc::message::{MAX_DESCRIPTORS, RateLimitDescriptor, RateLimitRequest};
use crate::wire::malformed::{Flaw, Handling};

/// The attribute for a call's domain.
const DOMAIN: &str = "domain";
/// The attribute with a request's path, in the form of Envoy's `:path`: including the query.
const PATH: &str = "path";

/// The limits that apply to a descriptor.
#[derive(Debug)]
// A call has few of them; boxing would cost an allocation each.
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
    /// Nothing: the config files have no limit for it, or another limit replaces it.
    None,
    /// An unlimited entry of the config files.
    Unlimited,
}

/// The requests of a call, without allocation for a typical number.
pub(super) type Requests<'r> = SmallVec<[Request<'r>; 5]>;

/// A decision, and the index of its descriptor.
pub(super) type Decided<'d> = (usize, PolicyDecision<'d>);

/// Which descriptor each request of a call is for, and which are decided together.
#[derive(Debug)]
pub(super) struct CallRequests {
    /// Index of each request's descriptor.
    descriptors: SmallVec<[usize; 5]>,
    /// Index of each step's first request. A step's requests are decided together; further steps follow if
    /// the first is allowed, or in shadow mode.
    steps: SmallVec<[usize; 2]>,
}

impl CallRequests {
    /// Adds the requests of a call, whose descriptors have these targets, to the empty list `requests`; in
    /// place, to avoid moving it.
    pub(super) fn new<'r>(
        app: &App,
        call: &'r RateLimitRequest,
        targets: &'r [DescriptorTarget<'r>],
        settings: Option<&Settings>,
        requests: &mut Requests<'r>,
    ) -> Self {
        let mut batch = Self { descriptors: SmallVec::new(), steps: smallvec![0] };
        let is_shadow = settings.is_some_and(|settings| settings.shadow_mode);
        // Refunds come last: a denied client retries with the refund.
        for is_refund in [false, true] {
            let mut begins_step = is_refund;
            for (index, (descriptor, target)) in call.descriptors.iter().zip(targets).enumerate() {
                let hits = hits(call, descriptor);
                let verb = verb(descriptor, hits);
                if matches!(target, DescriptorTarget::None | DescriptorTarget::Unlimited)
                    || (verb == Verb::Refund) != is_refund
                {
                    continue;
                }
                if (begins_step || is_shadow) && !requests.is_empty() {
                    batch.steps.push(requests.len());
                }
                begins_step = false;
                let cost = hits.min(MAX_COST);
                let role = role(target, settings);
                let mut request = Request::new().with_verb(verb).with_cost(cost).with_role(role);
                if verb == Verb::Peek {
                    // A peek of 0 hits asks whether the key is over its limit; 0 hits always fit.
                    request = request.deny_over_limit();
                }
                requests.push(request);
                batch.descriptors.push(index);
                if let Some(request) = requests.last_mut() {
                    match target {
                        DescriptorTarget::Limit { limit, .. } => under_limit(request, limit),
                        _ => under_policies(app, request, call, descriptor),
                    }
                }
                if let DescriptorTarget::Limit { limit, denied_key: Some(key) } = target {
                    let denied_hits = Request::new().with(SCOPE, key).with_cost(cost);
                    requests.push(under(denied_hits, limit).with_role(Role::Refusals));
                    batch.descriptors.push(index);
                }
            }
        }
        batch
    }

    /// The number of steps, at least one.
    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

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

/// The verb for a descriptor's hits.
fn verb(descriptor: &RateLimitDescriptor, hits: u64) -> Verb {
    match (hits, descriptor.is_negative_hits) {
        (0, _) => Verb::Peek,
        (1.., true) => Verb::Refund,
        (1.., false) => Verb::Check,
    }
}

/// The descriptor's role in the decision on the call.
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

/// Validates a call, except its descriptors. The messages are those of envoyproxy/ratelimit.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn validate(call: &RateLimitRequest) -> Result<(), Status> {
    if call.domain.is_empty() {
        return Err(Status::invalid_argument("rate limit domain must not be empty"));
    }
    if call.descriptors.is_empty() {
        return Err(Status::invalid_argument("rate limit descriptor list must not be empty"));
    }
    Ok(())
}

/// Whether a call has refunds, which need their own permission.
pub(crate) fn has_refund(call: &RateLimitRequest) -> bool {
    call.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// Replaces refunds with peeks, because the sender may not refund, and counts that. `false` if nothing else
/// is left. The others must be decided: a proxy may derive the sign from its client's input.
pub(crate) fn without_refunds(call: &mut RateLimitRequest, app: &App) -> bool {
    if call.descriptors.iter().all(|descriptor| descriptor.is_negative_hits) {
        return false;
    }
    for descriptor in call.descriptors.iter_mut().filter(|descriptor| descriptor.is_negative_hits) {
        descriptor.is_negative_hits = false;
        descriptor.hits_addend = Some(0);
    }
    decided(app, Flaw::Cost);
    true
}

/// The target of each descriptor. Without config files, the policies decide.
pub(super) fn targets<'c>(
    config: Option<&'c EnvoyConfig>,
    call: &RateLimitRequest,
) -> Vec<DescriptorTarget<'c>> {
    let Some(config) = config else {
        return call.descriptors.iter().map(|_| DescriptorTarget::Policies).collect();
    };
    let lookup = |descriptor: &RateLimitDescriptor| {
        let entries: Vec<_> = texts(descriptor).collect();
        config.lookup(&call.domain, &entries, carried_rate(descriptor))
    };
    let lookups: Vec<_> = call.descriptors.iter().map(lookup).collect();
    let replaced = envoy::replaced(&lookups);
    let targets = call.descriptors.iter().zip(lookups).zip(replaced);
    let targets = targets.map(|((descriptor, lookup), is_replaced)| match lookup {
        Lookup::NoMatch { .. } => DescriptorTarget::None,
        _ if is_replaced => DescriptorTarget::None,
        Lookup::Unlimited { .. } => DescriptorTarget::Unlimited,
        Lookup::Limited(limit) => {
            let hits = hits(call, descriptor);
            let is_counted = counts_denials(&limit, verb(descriptor, hits), hits);
            let denied_key = is_counted.then(|| envoy::denied_key(&limit.key));
            DescriptorTarget::Limit { limit, denied_key }
        }
    });
    targets.collect()
}

/// Whether denied hits are counted under their own key.
///
/// A cost known only at the end of a response is limited by a peek before (0 hits) and a charge after, whose
/// result nobody awaits. envoyproxy/ratelimit counts every hit, so its peeks are over the limit as soon as
/// more than the limit was requested. Here denied hits are free, so they are counted separately, for peeks
/// only. The usual case, a check of one hit on a limit without peeks, needs no second key.
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
) {
    let entries = descriptor.entries.iter().map(|entry| (&entry.key[..], &entry.value[..]));
    let domain = std::iter::once((DOMAIN.as_bytes(), call.domain.as_bytes()));
    app.attributes.add_all_that_count(request, domain.chain(entries), |flaw| decided(app, flaw));
    let Some(rate) = carried_rate(descriptor) else { return };
    let Ok(quota) = Quota::new(u64::from(rate.requests_per_unit), rate.unit.window()) else { return };
    // Uses the algorithm of the policy it replaces, so that usage is kept.
    let policies = app.policies();
    let policy = policies.applying_to(request).next();
    let algorithm = policy.map_or(quota.algorithm(), |policy| policy.quota().algorithm());
    *request = std::mem::take(request).with_quota(quota.with_algorithm(algorithm));
}

/// Completes, in place, a request that a limit of the config files decides: moving it would take as long.
fn under_limit<'r>(request: &mut Request<'r>, limit: &'r LimitMatch<'r>) {
    request.extend([(SCOPE, Value::Bytes(limit.key.as_bytes()))]);
    *request = under(std::mem::take(request), limit);
}

fn under<'r>(request: Request<'r>, limit: &LimitMatch<'r>) -> Request<'r> {
    let request = request.under(limit.policy);
    match limit.quota {
        Some(quota) => request.with_quota(quota),
        None => request,
    }
}

/// Counts a flaw of a call that is still decided.
fn decided(app: &App, flaw: Flaw) {
    app.observer().malformed.record(Protocol::Grpc, flaw, Handling::Decided);
}

/// Replaces values that cannot be decided, and counts that: a proxy's clients choose them, so none may be an
/// error.
///
/// With config files, entries become text, to compare with the files. Under policies, long values are
/// shortened and paths are normalized.
pub(super) fn make_decidable(call: &mut RateLimitRequest, app: &App, has_files: bool) {
    if call.descriptors.len() > MAX_DESCRIPTORS {
        call.descriptors.truncate(MAX_DESCRIPTORS);
        decided(app, Flaw::TooMany);
    }
    for descriptor in &mut call.descriptors {
        if descriptor.hits_addend.is_some_and(|hits| hits > MAX_COST) {
            decided(app, Flaw::Cost);
        }
        if descriptor.limit.is_some_and(|limit| Unit::from_number(limit.unit).is_none()) {
            // Its configured limits apply.
            descriptor.limit = None;
            decided(app, Flaw::Invalid);
        }
        for entry in &mut descriptor.entries {
            if std::str::from_utf8(&entry.value).is_err() || std::str::from_utf8(&entry.key).is_err() {
                decided(app, Flaw::Encoding);
            }
            if entry.value.len() > MAX_VALUE {
                decided(app, Flaw::Length);
            }
            if has_files {
                values::make_text(&mut entry.key);
                values::make_text(&mut entry.value);
                continue;
            }
            if entry.key == PATH {
                values::normalize_path(&mut entry.value);
            }
            values::shorten(&mut entry.value);
        }
    }
}

/// The key and value of each entry as text, after [`make_decidable`].
fn texts(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&str, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
    descriptor.entries.iter().map(move |entry| (text(&entry.key), text(&entry.value)))
}

/// A descriptor's number of hits, without sign.
fn hits(call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.unwrap_or_else(|| u64::from(call.hits_addend.max(1)))
}

/// The limit that a descriptor carries.
fn carried_rate(descriptor: &RateLimitDescriptor) -> Option<Rate> {
    let limit = descriptor.limit?;
    Some(Rate { requests_per_unit: limit.requests_per_unit, unit: Unit::from_number(limit.unit)? })
}
