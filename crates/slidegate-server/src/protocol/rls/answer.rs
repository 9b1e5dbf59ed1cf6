//! Decisions as the answer that Envoy reads: a status for each descriptor, fields for the client, and why.
//!
//! Envoy makes `x-ratelimit-*` of the statuses and drops fractions of seconds, so waits are given in whole ones, rounded up:
//! a client that is told 0 comes back too early.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::google::protobuf::{self, Struct};
use slidegate::headers::{HeaderOptions, Problem};
use slidegate::{Decisions, Excess, PolicyDecision, Reason, millis_ceil};

use super::ask::{Terms, unit};
use super::metadata;
use slidegate_envoy::HeaderNames;

/// What a group of descriptors can do to the whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each of them denies.
    Alone,
    /// They deny if all of them do.
    Together,
    /// They were given back and deny nothing.
    Refund,
}

/// An answer in the making.
#[derive(Debug)]
pub(super) struct Answer<'d> {
    terms: &'d [Terms<'d>],
    statuses: Vec<DescriptorStatus>,
    /// What denies, the strictest found, and the descriptor that it is on.
    denial: Option<Denial<'d>>,
    /// What would deny if it were not for others of its kind.
    pending: Option<Denial<'d>>,
}

/// A decision that denies, and the descriptor that it is on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denial<'d> {
    pub(super) place: usize,
    pub(super) decision: PolicyDecision<'d>,
}

impl Denial<'_> {
    /// Why it denies. A look moves nothing and so is never denied itself: it found the key blocked or over its limit.
    pub(super) fn reason(&self) -> Reason {
        let of_look = if self.decision.is_blocked() { Reason::Blocked } else { Reason::OverLimit };
        self.decision.reason().unwrap_or(of_look)
    }
}

impl<'d> Answer<'d> {
    /// The answer of a call with these terms that no limit applies to.
    pub(super) fn new(terms: &'d [Terms<'d>]) -> Self {
        let status = |terms: &Terms<'_>| DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: if matches!(terms, Terms::Unlimited) { u32::MAX } else { 0 },
            ..DescriptorStatus::default()
        };
        Self { terms, statuses: terms.iter().map(status).collect(), denial: None, pending: None }
    }

    /// Writes the status of each descriptor of a group, which stand at these places. Says how many of them deny.
    pub(super) fn add(&mut self, places: &[usize], decisions: &'d Decisions<'_>, kind: Kind) -> usize {
        let mut denials = 0;
        each_binding(decisions, |decision| {
            let place = places[decision.request()];
            let is_over = kind != Kind::Refund && is_over(&decision);
            self.tell(place, &decision, is_over);
            if !is_over || !decision.policy().is_enforced() {
                return;
            }
            denials += 1;
            let denial = if kind == Kind::Alone { &mut self.denial } else { &mut self.pending };
            keep_stricter(denial, Denial { place, decision });
        });
        denials
    }

    /// All of those that deny together do.
    pub(super) fn deny_together(&mut self) {
        if let Some(pending) = self.pending.take() {
            keep_stricter(&mut self.denial, pending);
        }
    }

    fn tell(&mut self, place: usize, decision: &PolicyDecision<'_>, is_over: bool) {
        self.statuses[place] = match &self.terms[place] {
            Terms::Rule(hit) => DescriptorStatus {
                // Most often the file's; a key may have been given another.
                current_limit: Some(RateLimit { name: hit.rule.name.clone(), ..current_limit(decision) }),
                // A refused request leaves what is left, but the reference says 0.
                limit_remaining: if is_over { 0 } else { narrow(decision.remaining) },
                ..status(decision, is_over)
            },
            _ => status(decision, is_over),
        };
    }

    pub(super) fn is_denied(&self) -> bool {
        self.denial.is_some()
    }

    pub(super) fn statuses(&self) -> &[DescriptorStatus] {
        &self.statuses
    }

    /// No denial denies: only the statuses tell.
    pub(super) fn overrule(&mut self) {
        self.denial = None;
    }

    /// The whole answer.
    pub(super) fn finish(self, headers: Vec<HeaderValue>, metadata: Option<Struct>) -> RateLimitResponse {
        let code = if self.denial.is_some() { Code::OverLimit } else { Code::Ok };
        let (mut headers, mut raw_body) = (headers, Vec::new());
        if let Some(body) = self.denial.as_ref().and_then(store_unavailable) {
            headers.push(header("content-type", Problem::MEDIA_TYPE.to_owned()));
            raw_body = body.into_bytes();
        }
        RateLimitResponse {
            overall_code: code.into(),
            statuses: self.statuses,
            response_headers_to_add: headers,
            dynamic_metadata: metadata,
            raw_body,
            ..RateLimitResponse::default()
        }
    }

    /// `retry-after` of a denial, as these options have it.
    pub(super) fn retry_after(&self, options: &HeaderOptions) -> Vec<HeaderValue> {
        let Some(wait) = self.denial.as_ref().and_then(|denial| wait(&denial.decision)) else {
            return Vec::new();
        };
        let secs = options.retry_after.then(|| header("retry-after", secs_ceil(wait).max(1).to_string()));
        let millis =
            options.retry_after_ms.then(|| header("retry-after-ms", millis_ceil(wait).max(1).to_string()));
        secs.into_iter().chain(millis).collect()
    }

    /// The three fields of envoyproxy/ratelimit: of the last descriptor that denies, or else of the one with the least left.
    pub(super) fn three_headers(&self, names: &HeaderNames) -> Vec<HeaderValue> {
        let told = || self.statuses.iter().filter(|status| status.current_limit.is_some());
        let over = told().rfind(|status| self.denial.is_some() && status.code() == Code::OverLimit);
        // The first of those that are even.
        let Some(status) = over.or_else(|| told().min_by_key(|status| status.limit_remaining)) else {
            return Vec::new();
        };
        let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let reset_s = status.duration_until_reset.map_or(0, |span| span.seconds);
        vec![
            header(&names.limit, limit.to_string()),
            header(&names.remaining, status.limit_remaining.to_string()),
            header(&names.reset, reset_s.to_string()),
        ]
    }

    /// Which policy and key denied, and why.
    pub(super) fn why(&self) -> Option<Struct> {
        self.denial.as_ref().map(|denial| metadata::denial(denial, wait(&denial.decision)))
    }
}

/// The body of a call that is denied because the store is unavailable and a policy denies then.
///
/// It is a denial and no error of the call: on an error Envoy passes the request on unless it is told otherwise, and a
/// policy that is to deny must not depend on that. The body and the metadata tell what the code cannot.
fn store_unavailable(denial: &Denial<'_>) -> Option<String> {
    let one = &denial.decision;
    let is_unavailable = denial.reason() == Reason::StoreUnavailable;
    let problem = Problem::of_one(one.policy().name(), one.quota(), one).filter(|_| is_unavailable);
    problem.map(|problem| problem.to_json())
}

fn keep_stricter<'d>(known: &mut Option<Denial<'d>>, new: Denial<'d>) {
    if known.as_ref().is_none_or(|known| new.decision.is_stricter_than(&known.decision)) {
        *known = Some(new);
    }
}

/// Whether the descriptor is over its limit. Nothing always fits, so a look, which moves nothing, asks whether the key has
/// got over it; where a policy charges in full what exceeds, it asks whether anything is left. A blocked key is over
/// whatever is asked.
pub(super) fn is_over(one: &PolicyDecision<'_>) -> bool {
    let is_full = one.remaining == 0 && one.policy().on_excess() == Excess::Charge;
    one.is_denied() || one.is_blocked() || one.cost == 0 && (one.used > one.limit || is_full)
}

/// Gives `tell` the decision that binds of each request: of its enforced policies, or of its shadow ones if it has no other.
fn each_binding<'d>(decisions: &'d Decisions<'_>, mut tell: impl FnMut(PolicyDecision<'d>)) {
    let mut binding: Option<PolicyDecision<'d>> = None;
    for one in decisions.iter() {
        match &binding {
            Some(known) if known.request() == one.request() => {
                let (known_binds, binds) = (known.policy().is_enforced(), one.policy().is_enforced());
                if binds && !known_binds || binds == known_binds && one.is_stricter_than(known) {
                    binding = Some(one);
                }
            }
            Some(known) => {
                tell(*known);
                binding = Some(one);
            }
            None => binding = Some(one),
        }
    }
    binding.into_iter().for_each(tell);
}

fn status(one: &PolicyDecision<'_>, is_over: bool) -> DescriptorStatus {
    let is_enforced = one.policy().is_enforced();
    let code = if is_over && is_enforced { Code::OverLimit } else { Code::Ok };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit { name: one.policy().name().to_owned(), ..current_limit(one) }),
        // What a shadow policy would deny has nothing left, whatever smaller cost would fit.
        limit_remaining: if is_over && !is_enforced { 0 } else { narrow(one.remaining) },
        duration_until_reset: Some(duration(until_reset(one, is_over))),
        quota: None,
    }
}

/// The limit that decided, without a name.
fn current_limit(one: &PolicyDecision<'_>) -> RateLimit {
    RateLimit { name: String::new(), requests_per_unit: narrow(one.limit), unit: unit(one.quota().window()) }
}

/// How long until the client is better off: may come again, or has its whole limit again. Where a window ends for everybody
/// at once both are its end.
fn until_reset(one: &PolicyDecision<'_>, is_over: bool) -> Duration {
    if is_over { wait(one).unwrap_or_else(|| one.reset_after()) } else { one.reset_after() }
}

/// How long a refused request waits; `None` if that would not help. A look that found the key over its limit waits until
/// the key is as new: earlier than that it may be over still. One that found the key blocked waits for the end of the block.
fn wait(one: &PolicyDecision<'_>) -> Option<Duration> {
    match (one.is_denied(), one.is_blocked()) {
        (true, _) => one.retry_after(),
        (false, true) => one.frees_after(),
        (false, false) => Some(one.reset_after()),
    }
}

/// A number as the statuses have it: what does not fit is written as the largest that does.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn secs_ceil(span: Duration) -> u64 {
    millis_ceil(span).div_ceil(1000)
}

fn duration(span: Duration) -> protobuf::Duration {
    protobuf::Duration { seconds: i64::try_from(secs_ceil(span)).unwrap_or(i64::MAX), nanos: 0 }
}

pub(super) fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }
}
