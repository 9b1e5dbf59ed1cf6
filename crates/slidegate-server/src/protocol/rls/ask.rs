//! What a call asks: its descriptors as requests, sorted by what is to be done with each.
//!
//! By default a descriptor's entries are attributes beside `domain`; files of envoyproxy/ratelimit name the policy instead.
//! Hits are charged; 0 hits only look, and negative hits give back. Hits of 0 on the whole call mean 1, as nothing else
//! tells them from hits that nobody set.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use slidegate::{Quota, Request};
use tonic::Status;

use crate::app::App;
use slidegate_envoy::{EnvoyConfig, LimitMatch, Lookup, Rate, SCOPE, Unit};

/// The attribute that a call's domain is.
const DOMAIN: &str = "domain";
/// Most descriptors of a call: each is compared with those before. Envoy makes one for each of a route's actions.
const MAX_DESCRIPTORS: usize = 64;

/// What decides on a descriptor.
#[derive(Debug)]
// A call has a few of them, and a box would cost each an allocation.
#[allow(clippy::large_enum_variant)]
pub(super) enum Terms<'e> {
    /// Every policy that applies to its attributes.
    Policies,
    /// A limit of envoyproxy/ratelimit's files.
    Rule(LimitMatch<'e>),
    /// Nothing: those files have no limit for it, or another one in its place.
    Nothing,
    /// A limit of those files that lets everything pass.
    Unlimited,
}

/// The descriptors of a call by what they ask.
#[derive(Debug, Default)]
pub(super) struct Asked<'r> {
    pub(super) charges: Group<'r>,
    /// Of cost 0.
    pub(super) looks: Group<'r>,
    pub(super) refunds: Group<'r>,
    /// Those that deny only if all of them do, looks included.
    pub(super) quotas: Group<'r>,
}

/// Requests, and which descriptor of the call each of them is.
#[derive(Debug, Default)]
pub(super) struct Group<'r> {
    pub(super) requests: Vec<Request<'r>>,
    pub(super) places: Vec<usize>,
}

impl<'r> Group<'r> {
    fn push(&mut self, request: Request<'r>, place: usize) {
        self.requests.push(request);
        self.places.push(place);
    }

    /// The group without these of its requests.
    pub(super) fn without(&self, left_out: &[usize]) -> Self {
        let kept = |at: &usize| !left_out.contains(at);
        let kept: Vec<_> = (0..self.places.len()).filter(kept).collect();
        Self {
            requests: kept.iter().map(|at| self.requests[*at].clone()).collect(),
            places: kept.iter().map(|at| self.places[*at]).collect(),
        }
    }
}

/// What is wrong with a call whatever its descriptors say. The first two texts are those of envoyproxy/ratelimit.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn check(call: &RateLimitRequest) -> Result<(), Status> {
    if call.domain.is_empty() {
        return Err(Status::invalid_argument("rate limit domain must not be empty"));
    }
    if call.descriptors.is_empty() {
        return Err(Status::invalid_argument("rate limit descriptor list must not be empty"));
    }
    if call.descriptors.len() > MAX_DESCRIPTORS {
        return Err(Status::invalid_argument(format!(
            "the request has {} descriptors; send at most {MAX_DESCRIPTORS}",
            call.descriptors.len()
        )));
    }
    Ok(())
}

/// Whether a call gives hits back, which needs more than a decision does.
pub(super) fn gives_back(call: &RateLimitRequest) -> bool {
    call.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// What the files say of each descriptor; without files, policies decide.
///
/// # Errors
/// `INVALID_ARGUMENT` when a descriptor brings a limit along that is none.
pub(super) fn terms<'e>(
    envoy: Option<&'e EnvoyConfig>,
    call: &RateLimitRequest,
) -> Result<Vec<Terms<'e>>, Status> {
    let Some(envoy) = envoy else {
        return Ok(call.descriptors.iter().map(|_| Terms::Policies).collect());
    };
    let lookup = |(place, descriptor): (usize, &RateLimitDescriptor)| {
        let own = own_rate(descriptor).map_err(|detail| invalid(place, &detail))?;
        let entries: Vec<_> = entries(descriptor).collect();
        Ok(envoy.lookup(&call.domain, &entries, own))
    };
    let lookups = call.descriptors.iter().enumerate().map(lookup).collect::<Result<Vec<_>, Status>>()?;
    let dropped = slidegate_envoy::replaced(&lookups);
    let terms = lookups.into_iter().zip(dropped).map(|(lookup, is_dropped)| match lookup {
        _ if is_dropped => Terms::Nothing,
        Lookup::NoMatch { .. } => Terms::Nothing,
        Lookup::Unlimited { .. } => Terms::Unlimited,
        Lookup::Limited(hit) => Terms::Rule(hit),
    });
    Ok(terms.collect())
}

/// Reads a call on these terms, one for each descriptor. `all_quotas` makes every rule one that denies only together.
///
/// # Errors
/// `INVALID_ARGUMENT` when a descriptor is no request.
pub(super) fn read<'r>(
    app: &App,
    call: &'r RateLimitRequest,
    terms: &'r [Terms<'r>],
    all_quotas: bool,
) -> Result<Asked<'r>, Status> {
    let mut asked = Asked::default();
    for (place, (descriptor, terms)) in call.descriptors.iter().zip(terms).enumerate() {
        let hits = hits(call, descriptor);
        let request = match terms {
            Terms::Nothing | Terms::Unlimited => continue,
            Terms::Policies => by_policies(app, call, descriptor, hits),
            Terms::Rule(hit) => by_rule(app, hit, hits),
        };
        let request = request.map_err(|detail| invalid(place, &detail))?;
        let is_quota = matches!(terms, Terms::Rule(hit) if all_quotas || hit.rule.quota_mode);
        let group = match (hits, descriptor.is_negative_hits) {
            (1.., true) => &mut asked.refunds,
            _ if is_quota => &mut asked.quotas,
            (0, _) => &mut asked.looks,
            (1.., false) => &mut asked.charges,
        };
        group.push(request, place);
    }
    Ok(asked)
}

fn by_policies<'r>(
    app: &App,
    call: &'r RateLimitRequest,
    descriptor: &'r RateLimitDescriptor,
    hits: u64,
) -> Result<Request<'r>, String> {
    let attributes = std::iter::once((DOMAIN, call.domain.as_str())).chain(entries(descriptor));
    let request = app
        .attributes
        .request(attributes.map(|(name, value)| (name, value.as_bytes())), hits)
        .map_err(|bad| bad.detail)?;
    let Some(rate) = own_rate(descriptor)? else { return Ok(request) };
    let quota = Quota::new(u64::from(rate.requests_per_unit), rate.unit.window());
    let quota = as_counted(app, &request, quota.map_err(|error| error.to_string())?);
    Ok(request.quota(quota))
}

fn by_rule<'r>(app: &App, hit: &'r LimitMatch<'r>, hits: u64) -> Result<Request<'r>, String> {
    let attributes = std::iter::once((SCOPE, hit.key.as_str()));
    let request = app
        .attributes
        .request(attributes.map(|(name, value)| (name, value.as_bytes())), hits)
        .map_err(|bad| bad.detail)?
        .under(hit.policy);
    Ok(match hit.quota {
        Some(quota) => request.quota(quota),
        None => request,
    })
}

fn entries(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&str, &str)> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()))
}

fn invalid(place: usize, detail: &str) -> Status {
    Status::invalid_argument(format!("descriptors[{place}]: {detail}"))
}

/// How many hits a descriptor adds, gives back, or looks with.
fn hits(call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.map_or_else(|| u64::from(call.hits_addend.max(1)), |hits| hits.value)
}

/// The limit that a descriptor brings along.
fn own_rate(descriptor: &RateLimitDescriptor) -> Result<Option<Rate>, String> {
    let Some(limit) = descriptor.limit else { return Ok(None) };
    let unit = Unit::from_number(limit.unit).ok_or_else(|| {
        format!("limit.unit is {}; give SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", limit.unit)
    })?;
    Ok(Some(Rate { requests_per_unit: limit.requests_per_unit, unit }))
}

/// The same counted as the policy counts whose place it takes, so that usage goes on.
fn as_counted(app: &App, request: &Request<'_>, quota: Quota) -> Quota {
    match app.policies().iter().find(|policy| policy.applies_to(request)) {
        Some(policy) => quota.with_algorithm(policy.quota().algorithm()),
        None => quota,
    }
}

/// The number of the unit that a window is; 0, which is UNKNOWN, if it is none.
pub(super) fn unit(window: Duration) -> i32 {
    // The numbers that protocol buffers give them begin at 1.
    let units = (1..=7).filter_map(Unit::from_number);
    units.into_iter().find(|unit| unit.window() == window).map_or(0, Unit::number)
}
