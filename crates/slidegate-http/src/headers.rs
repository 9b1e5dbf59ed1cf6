//! A decision as response header fields and as a problem body.
//!
//! The IETF standard is still a draft. Its versions share field names but disagree on the syntax,
//! so the version is a setting: [`Draft`]. Waits round up, and a denial never sends 0 seconds,
//! because several clients take 0 for a missing value.
//!
//! Names are in lower case, as HTTP/2 and `HeaderName::from_static` require. Send denials with
//! `cache-control: no-store`. Shadow policies are never revealed to clients.

use std::slice;

use http::HeaderName;
use slidegate::internal::NamedDecision;
use slidegate::reserve::Settlement;
use slidegate::{CostUnit, Decision, Decisions, Quota};
use smallvec::SmallVec;

mod buffer;
mod problem;
mod style;
mod units;
mod write;

pub(crate) use buffer::FieldBuffer;
pub use buffer::Header;
pub use problem::{Problem, problem_json};
pub use slidegate::internal::{millis_ceil, secs_ceil};
pub use style::{Draft, XRateLimit};
use write::{
    PARTS, POLICY, RATELIMIT, RETRY_AFTER, RETRY_AFTER_MS, X_PARTS, limit_item, numbers, policy_item,
    unnamed_policy, write_list, write_numbers, write_part,
};

/// The header fields of a response.
///
/// ```
/// use slidegate_http::headers::{Draft, HeaderOptions, XRateLimit};
///
/// let options = HeaderOptions { draft: "draft-7".parse()?, x_ratelimit: XRateLimit::Off, ..HeaderOptions::default() };
/// assert_eq!(options.draft, Draft::Draft7);
/// assert_eq!(options.names(), ["ratelimit-policy", "ratelimit", "retry-after"]);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderOptions {
    /// Version of the IETF `RateLimit` fields. Default: [`Draft::Draft10`].
    pub draft: Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`. Default: [`XRateLimit::EpochSeconds`].
    pub x_ratelimit: XRateLimit,
    /// `Retry-After` on denials: whole seconds, rounded up, at least 1 (RFC 9110, 10.2.3). Default:
    /// true.
    ///
    /// Omitted if the request can never fit, because any number would suggest that waiting helps.
    /// For a blocked key it is the rest of the block. At most 1 if only the end of other requests is
    /// waited for, under a limit on what is in flight, as they mostly end before their lease.
    pub retry_after: bool,
    /// `retry-after-ms` on the same denials: whole milliseconds, rounded up, at least 1. Default:
    /// false. A few client libraries read it; for short windows the minimum of one second in
    /// `Retry-After` is long.
    pub retry_after_ms: bool,
}

impl HeaderOptions {
    /// No header fields.
    pub const OFF: Self =
        Self { draft: Draft::Off, x_ratelimit: XRateLimit::Off, retry_after: false, retry_after_ms: false };

    /// The fields for a gate's decisions. Empty if no enforced policy applies.
    ///
    /// Fields for a single policy describe the [strictest](Decisions::strictest). If the shared
    /// store is unavailable and a policy allows or denies without counting, its usage is unknown
    /// and the fields that contain it are omitted; `RateLimit-Policy` and `Retry-After` are still
    /// sent.
    ///
    /// ```
    /// use slidegate_http::headers::HeaderOptions;
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([
    ///     Policy::new("per-user", Quota::per_minute(5))?.with_scope(["user"]),
    ///     Policy::new("everyone", Quota::per_hour(100))?,
    /// ])?);
    /// let request = Request::new().with("user", "alice");
    /// let headers = HeaderOptions::default().headers(&gate.check(&request));
    /// assert_eq!(headers[0], ("ratelimit-policy", r#""per-user";q=5;w=60, "everyone";q=100;w=3600"#.into()));
    /// assert_eq!(headers[1], ("ratelimit", r#""per-user";r=4;t=60, "everyone";r=99;t=3600"#.into()));
    /// assert_eq!(headers[3], ("x-ratelimit-remaining", "4".into()));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn headers(&self, decisions: &Decisions<'_>) -> Vec<Header> {
        let mut fields = FieldBuffer::default();
        self.write_all(decisions, &mut fields);
        fields.into_list()
    }

    /// Adds the fields for a gate's decisions to a response, except those already present (feature
    /// `tower`). Faster than [`headers`](Self::headers), because all values share one allocation.
    ///
    /// ```
    /// use slidegate_http::headers::HeaderOptions;
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("everyone", Quota::per_hour(100))?])?);
    /// let mut response = http::Response::new("hello");
    /// HeaderOptions::default().add_to(response.headers_mut(), &gate.check(&Request::new()));
    /// assert_eq!(response.headers()["ratelimit"], r#""everyone";r=99;t=3600"#);
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    pub fn add_to(&self, headers: &mut http::HeaderMap, decisions: &Decisions<'_>) {
        let mut texts = FieldBuffer::default();
        self.write_all(decisions, &mut texts);
        texts.append_to(headers);
    }

    /// The fields for what a settlement left on its keys, of the styles that have fields for each
    /// unit of cost: [`XRateLimit::OpenAi`] and [`XRateLimit::Anthropic`]. The others describe
    /// decisions on requests. Empty if no enforced policy held cost.
    ///
    /// ```
    /// use slidegate_http::headers::{HeaderOptions, XRateLimit};
    /// use slidegate::{CostUnit, Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let tokens = Policy::new("tokens", Quota::per_minute(1000))?.with_unit(CostUnit::Tokens);
    /// let gate = Gate::new(PolicySet::new([tokens])?);
    /// let request = Request::new().with_cost(400);
    /// let ticket = gate.reserve(&request).into_ticket().unwrap();
    /// let options = HeaderOptions { x_ratelimit: XRateLimit::OpenAi, ..HeaderOptions::OFF };
    /// let headers = options.settlement_headers(&gate.settle(&ticket, 120)?);
    /// assert_eq!(headers[1], ("x-ratelimit-remaining-tokens", "880".into()));
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn settlement_headers(&self, settlement: &Settlement) -> Vec<Header> {
        let mut fields = FieldBuffer::default();
        let decisions = settlement.iter().filter_map(|key| Some((key.unit()?, *key.decision())));
        self.x_ratelimit.write_units(&decisions, &mut fields);
        fields.into_list()
    }

    /// Writes the fields for a gate's decisions.
    pub(crate) fn write_all(&self, decisions: &Decisions<'_>, out: &mut FieldBuffer) {
        if *self == Self::OFF {
            return;
        }
        let Some(strictest) = decisions.strictest() else { return };
        let enforced = decisions.iter().filter(|one| one.policy().options().enforced);
        let decisions: SmallVec<[_; 4]> = enforced.map(|one| NamedDecision::from(&one)).collect();
        self.write(&decisions, &NamedDecision::from(&strictest), out);
    }

    /// The fields for a [`Limiter`](slidegate::Limiter)'s decision, with `name` as the policy name.
    ///
    /// Characters of `name` that a header field cannot contain are replaced with `_`.
    ///
    /// ```
    /// use slidegate_http::headers::HeaderOptions;
    /// use slidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_minute(1));
    /// limiter.check("alice");
    /// let denied = limiter.check("alice");
    /// let headers = HeaderOptions::default().headers_of("per-user", &limiter.quota(), &denied);
    /// assert_eq!(headers[1], ("ratelimit", r#""per-user";r=0;t=60"#.into()));
    /// assert_eq!(headers.last(), Some(&("retry-after", "60".into())));
    /// ```
    #[must_use]
    pub fn headers_of(&self, name: &str, quota: &Quota, decision: &Decision) -> Vec<Header> {
        // A limiter counts requests unless its caller says a cost.
        let unit = Some(CostUnit::Requests);
        let answer = NamedDecision { name, quota, decision, unit, unit_name: None };
        let mut fields = FieldBuffer::default();
        self.write(slice::from_ref(&answer), &answer, &mut fields);
        fields.into_list()
    }

    /// The names of all fields that these options can produce. List them in
    /// `Access-Control-Expose-Headers`; otherwise browsers hide them from scripts of other origins.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static HeaderName> = Vec::new();
        match self.draft {
            Draft::Off => {}
            Draft::Draft6 => {
                names.push(&POLICY);
                names.extend(&PARTS);
            }
            Draft::Draft7 | Draft::Draft10 => {
                names.extend([&POLICY, &RATELIMIT]);
            }
        }
        if matches!(self.x_ratelimit, XRateLimit::EpochSeconds | XRateLimit::DeltaSeconds) {
            names.extend(&X_PARTS);
        }
        names.extend(self.retry_after.then_some(&RETRY_AFTER));
        names.extend(self.retry_after_ms.then_some(&RETRY_AFTER_MS));
        names.extend(self.x_ratelimit.unit_fields().iter().flat_map(|(_, fields)| fields));
        names.into_iter().map(HeaderName::as_str).collect()
    }

    fn write(&self, decisions: &[NamedDecision<'_>], strictest: &NamedDecision<'_>, out: &mut FieldBuffer) {
        let retry_after_s = strictest.retry_after_s().filter(|_| self.retry_after);
        let reset_s = secs_ceil(strictest.decision.reset_after());
        let is_counted = strictest.decision.is_counted();
        match self.draft {
            Draft::Off => {}
            Draft::Draft6 | Draft::Draft7 if !is_counted => {
                unnamed_policy(strictest, out);
            }
            Draft::Draft6 => {
                let all = numbers(strictest, retry_after_s.unwrap_or(reset_s));
                unnamed_policy(strictest, out);
                write_numbers(out, &PARTS, all);
            }
            Draft::Draft7 => {
                let [limit, remaining, reset] = numbers(strictest, retry_after_s.unwrap_or(reset_s));
                unnamed_policy(strictest, out);
                out.field(&RATELIMIT, |text| {
                    write_part(text, "limit=", limit);
                    write_part(text, ", remaining=", remaining);
                    write_part(text, ", reset=", reset);
                });
            }
            Draft::Draft10 => {
                out.field(&POLICY, |text| {
                    write_list(text, decisions, policy_item);
                });
                let item = |one: &NamedDecision<'_>, text: &mut String| limit_item(one, text, retry_after_s);
                if decisions.iter().all(|one| one.decision.is_counted()) {
                    out.field(&RATELIMIT, |text| write_list(text, decisions, item));
                } else {
                    let counted: SmallVec<[_; 4]> =
                        decisions.iter().filter(|one| one.decision.is_counted()).copied().collect();
                    if !counted.is_empty() {
                        out.field(&RATELIMIT, |text| write_list(text, &counted, item));
                    }
                }
            }
        }
        let x_reset_s = match self.x_ratelimit {
            _ if !is_counted => None,
            XRateLimit::Off | XRateLimit::OpenAi | XRateLimit::Anthropic => None,
            XRateLimit::EpochSeconds => Some(strictest.decision.reset_at().as_secs_ceil()),
            XRateLimit::DeltaSeconds => Some(reset_s),
        };
        if let Some(x_reset_s) = x_reset_s {
            write_numbers(out, &X_PARTS, numbers(strictest, x_reset_s));
        }
        if let Some(secs) = retry_after_s {
            out.number(&RETRY_AFTER, secs);
        }
        if let Some(millis) = strictest.retry_after_ms().filter(|_| self.retry_after_ms) {
            out.number(&RETRY_AFTER_MS, millis);
        }
        let unit = |one: &NamedDecision<'_>| Some((one.unit?, *one.decision));
        self.x_ratelimit.write_units(&decisions.iter().filter_map(unit), out);
    }
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self {
            draft: Draft::default(),
            x_ratelimit: XRateLimit::default(),
            retry_after: true,
            retry_after_ms: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sfv::{BareItem, List, ListEntry, Parser};
    use slidegate::internal::MAX_INTEGER;
    use slidegate::{
        Algorithm, Block, Gate, Limiter, MemoryStore, Policy, PolicySet, Request,
        clock::{ManualClock, Timestamp},
    };

    use super::*;

    const DRAFT_6: HeaderOptions = HeaderOptions { draft: Draft::Draft6, ..HeaderOptions::OFF };
    const DRAFT_7: HeaderOptions = HeaderOptions { draft: Draft::Draft7, ..HeaderOptions::OFF };
    const DRAFT_10: HeaderOptions = HeaderOptions { draft: Draft::Draft10, ..HeaderOptions::OFF };
    const EPOCH: HeaderOptions =
        HeaderOptions { x_ratelimit: XRateLimit::EpochSeconds, ..HeaderOptions::OFF };
    const DELTA: HeaderOptions =
        HeaderOptions { x_ratelimit: XRateLimit::DeltaSeconds, ..HeaderOptions::OFF };
    const RETRY: HeaderOptions =
        HeaderOptions { retry_after: true, retry_after_ms: true, ..HeaderOptions::OFF };

    /// A store and its clock, which starts at 1,000,000,000 seconds.
    fn store() -> (MemoryStore, ManualClock) {
        let clock = ManualClock::new();
        (MemoryStore::builder().clock(clock.clone()).build(), clock)
    }

    fn limiter(quota: Quota) -> (Limiter, ManualClock) {
        let (store, clock) = store();
        (Limiter::with_store(quota, store), clock)
    }

    fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
        let (store, clock) = store();
        (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
    }

    fn policy(name: &str, quota: Quota) -> Policy {
        Policy::new(name, quota).unwrap()
    }

    /// `name: value` of each field.
    fn lines(headers: Vec<Header>) -> Vec<String> {
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    /// A client that is denied because others run must ask soon, and not read the lease as a window.
    #[test]
    fn a_limit_of_what_is_in_flight_has_no_window_and_a_short_wait() {
        let quota = Quota::in_flight(1, Duration::from_secs(20)).unwrap();
        let (gate, clock) = gate([policy("streams", quota).with_counts(slidegate::Counts::Requests)]);
        let request = Request::new();
        let _running = gate.reserve(&request);
        let denied = gate.reserve(&request);
        assert_eq!(
            lines(DRAFT_10.headers(denied.decisions())),
            [r#"ratelimit-policy: "streams";q=1;qu="concurrent-requests""#, r#"ratelimit: "streams";r=0"#]
        );
        assert_eq!(lines(DRAFT_7.headers(denied.decisions())), ["ratelimit: limit=1, remaining=0, reset=20"]);
        let of_6 = ["ratelimit-limit: 1", "ratelimit-remaining: 0", "ratelimit-reset: 20"];
        assert_eq!(lines(DRAFT_6.headers(denied.decisions())), of_6);
        assert_eq!(lines(RETRY.headers(denied.decisions())), ["retry-after: 1", "retry-after-ms: 1000"]);
        // The end of the lease may be sooner.
        clock.advance(Duration::from_millis(19_750));
        assert_eq!(lines(RETRY.headers(&gate.peek(&request))), ["retry-after: 1", "retry-after-ms: 250"]);
    }

    /// Parses a draft 10 field into the name and the parameters of each item.
    fn items(value: &str) -> Vec<(String, Vec<(String, u64)>)> {
        let list: List = Parser::new(value).parse().expect("the field is a List");
        let item = |entry| {
            let ListEntry::Item(item) = entry else { panic!("{value} holds an inner list") };
            let BareItem::String(name) = item.bare_item else { panic!("{value} holds no String") };
            let integer = |value: &BareItem| {
                let number = value.as_integer().expect("a parameter is an Integer");
                u64::try_from(i64::from(number)).expect("it is not negative")
            };
            let parameters = item.params.iter().map(|(key, value)| (key.as_str().to_owned(), integer(value)));
            (name.as_str().to_owned(), parameters.collect())
        };
        list.into_iter().map(item).collect()
    }

    fn item(name: &str, parameters: &[(&str, u64)]) -> (String, Vec<(String, u64)>) {
        (name.into(), parameters.iter().map(|(key, number)| ((*key).into(), *number)).collect())
    }

    /// Existing clients parse exactly these forms and silently ignore anything else.
    #[test]
    fn the_first_of_five_requests_is_told_in_every_form() {
        let (limiter, _clock) = limiter(Quota::per_minute(5));
        let decision = limiter.check("alice");
        let fields =
            |options: HeaderOptions| lines(options.headers_of("per-user", &limiter.quota(), &decision));
        assert_eq!(
            fields(EPOCH),
            ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 4", "x-ratelimit-reset: 1000000060"]
        );
        assert_eq!(
            fields(DELTA),
            ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 4", "x-ratelimit-reset: 60"]
        );
        assert_eq!(
            fields(DRAFT_6),
            [
                "ratelimit-policy: 5;w=60",
                "ratelimit-limit: 5",
                "ratelimit-remaining: 4",
                "ratelimit-reset: 60"
            ]
        );
        assert_eq!(
            fields(DRAFT_7),
            ["ratelimit-policy: 5;w=60", "ratelimit: limit=5, remaining=4, reset=60"]
        );
        assert_eq!(
            fields(DRAFT_10),
            [r#"ratelimit-policy: "per-user";q=5;w=60"#, r#"ratelimit: "per-user";r=4;t=60"#]
        );
        assert!(fields(RETRY).is_empty());
        assert!(fields(HeaderOptions::OFF).is_empty());
        assert_eq!(fields(HeaderOptions::default()), [fields(DRAFT_10), fields(EPOCH)].concat());
    }

    /// The older forms have room for one policy: the one that binds the client.
    #[test]
    fn forms_of_one_policy_tell_the_strictest() {
        let (gate, _clock) =
            gate([policy("wide", Quota::per_hour(100)), policy("narrow", Quota::per_minute(2))]);
        let request = Request::new();
        let decisions = gate.check(&request);
        assert_eq!(
            lines(DRAFT_7.headers(&decisions)),
            ["ratelimit-policy: 2;w=60", "ratelimit: limit=2, remaining=1, reset=60"]
        );
        assert_eq!(
            lines(EPOCH.headers(&decisions))[1..],
            ["x-ratelimit-remaining: 1", "x-ratelimit-reset: 1000000060"]
        );
    }

    /// `Retry-After: 0` makes clients retry at once or not at all.
    #[test]
    fn a_denial_says_to_wait_at_least_one_second() {
        let (limiter, clock) = limiter("1/90ms".parse().unwrap());
        let _ = limiter.check("alice");
        clock.advance(Duration::from_micros(1));
        let denied = limiter.check("alice");
        let fields = |options: HeaderOptions| lines(options.headers_of("p", &limiter.quota(), &denied));
        assert_eq!(fields(RETRY), ["retry-after: 1", "retry-after-ms: 90"]);
        assert_eq!(fields(HeaderOptions::default()).last().unwrap(), "retry-after: 1");
    }

    /// A client that uses `t` or `reset` instead of `Retry-After` must not retry at another time.
    #[test]
    fn on_a_denial_resets_agree_with_retry_after() {
        let (gate, clock) =
            gate([policy("per-second", Quota::per_second(1)), policy("daily", Quota::per_day(10))]);
        let request = Request::new();
        let _ = gate.check(&request);
        clock.advance(Duration::from_millis(1));
        let denied = gate.check(&request);
        let fields = |options| lines(HeaderOptions { retry_after: true, ..options }.headers(&denied));
        assert_eq!(
            fields(DRAFT_10)[1..],
            [r#"ratelimit: "per-second";r=0;t=1, "daily";r=9"#, "retry-after: 1"]
        );
        assert_eq!(
            lines(DRAFT_10.headers(&denied))[1],
            r#"ratelimit: "per-second";r=0;t=1, "daily";r=9;t=86400"#
        );
        let (limiter, clock) = limiter(Quota::per_minute(2));
        let _ = limiter.check("alice");
        clock.advance(Duration::from_secs(30));
        let _ = limiter.check("alice");
        let denied = limiter.check("alice");
        let options = HeaderOptions { retry_after: true, ..DRAFT_7 };
        assert_eq!(
            lines(options.headers_of("p", &limiter.quota(), &denied))[1..],
            ["ratelimit: limit=2, remaining=0, reset=30", "retry-after: 30"]
        );
    }

    /// A wait that does not help would make a client retry forever.
    #[test]
    fn a_request_that_never_fits_has_no_retry_after() {
        let (limiter, _clock) = limiter(Quota::per_minute(5));
        let denied = limiter.check_cost("alice", 6);
        let options = HeaderOptions { retry_after_ms: true, ..HeaderOptions::default() };
        let headers = options.headers_of("p", &limiter.quota(), &denied);
        assert!(headers.iter().all(|(name, _)| !name.starts_with("retry-after")), "{headers:?}");
        // Nothing is used, so nothing will be freed and the reset is now.
        assert_eq!(headers[1].1, r#""p";r=5"#);
        assert_eq!(headers[4], ("x-ratelimit-reset", "1000000000".into()));
        assert_eq!(DELTA.headers_of("p", &limiter.quota(), &denied)[2].1, "0");
    }

    /// A paying customer who is shown the default limit would slow down for no reason.
    #[test]
    fn a_key_is_told_the_quota_that_it_is_under() {
        let per_user = policy("per-user", Quota::per_minute(5)).with_scope(["user"]);
        let (gate, _clock) = gate([per_user.with_override(["alice"], Quota::per_hour(1000))]);
        let fields = |user| DRAFT_10.headers(&gate.check(&Request::new().with("user", user)))[0].1.clone();
        assert_eq!(fields("alice"), r#""per-user";q=1000;w=3600"#);
        assert_eq!(fields("bob"), r#""per-user";q=5;w=60"#);
    }

    /// A token bucket has a rate and a burst; clients need both.
    #[test]
    fn a_token_bucket_tells_its_rate_as_quota_and_its_burst_as_limit() {
        let bucket = Quota::per_second(10).with_algorithm(Algorithm::TokenBucket).with_burst(50);
        let (limiter, _clock) = limiter(bucket);
        let decision = limiter.check("alice");
        let fields = |options: HeaderOptions| lines(options.headers_of("p", &bucket, &decision));
        assert_eq!(fields(DRAFT_10), [r#"ratelimit-policy: "p";q=10;w=1"#, r#"ratelimit: "p";r=49;t=1"#]);
        assert_eq!(
            fields(DRAFT_7),
            ["ratelimit-policy: 10;w=1", "ratelimit: limit=50, remaining=49, reset=1"]
        );
        assert_eq!(fields(DELTA)[..2], ["x-ratelimit-limit: 50", "x-ratelimit-remaining: 49"]);
    }

    /// A window of 0 seconds is malformed, and clients then ignore the whole field.
    #[test]
    fn windows_are_whole_seconds_and_never_zero() {
        let fields = |window: &str, options: HeaderOptions| {
            let (limiter, _clock) = limiter(format!("5/{window}").parse().unwrap());
            options.headers_of("p", &limiter.quota(), &limiter.check("alice")).swap_remove(0).1
        };
        assert_eq!(fields("250ms", DRAFT_10), r#""p";q=5"#);
        assert_eq!(fields("1s", DRAFT_10), r#""p";q=5;w=1"#);
        assert_eq!(fields("1500ms", DRAFT_10), r#""p";q=5;w=2"#);
        assert_eq!(fields("250ms", DRAFT_7), "5;w=1");
        assert_eq!(fields("250ms", DRAFT_6), "5;w=1");
    }

    /// An Integer of a structured field has at most 15 digits; a longer one makes the field
    /// malformed.
    #[test]
    fn numbers_past_15_digits_are_written_as_the_largest() {
        let far = Block::until(Timestamp::from_micros(u64::MAX));
        let policy = Policy::new("p", Quota::per_day(u64::MAX)).unwrap().with_scope(["user"]);
        let (gate, _clock) = gate([policy.with_block(["mallory"], far)]);
        let request = |user| Request::new().with("user", user);
        let (alice, mallory) = (request("alice"), request("mallory"));
        let (alice, mallory) = (gate.check(&alice), gate.check(&mallory));
        let headers = DRAFT_10.headers(&alice);
        assert_eq!(items(&headers[0].1), [item("p", &[("q", MAX_INTEGER), ("w", 86_400)])]);
        assert_eq!(items(&headers[1].1), [item("p", &[("r", MAX_INTEGER), ("t", 86_413)])]);
        for options in [DRAFT_6, DRAFT_7, DRAFT_10, EPOCH, DELTA, RETRY] {
            let options = HeaderOptions { retry_after_ms: true, ..options };
            for (name, value) in options.headers(&alice).into_iter().chain(options.headers(&mallory)) {
                let digits = value.split(|c: char| !c.is_ascii_digit());
                assert!(digits.into_iter().all(|digits| digits.len() <= 15), "{name}: {value}");
            }
        }
    }

    /// Clients read the quota from the headers: a block must not look like a quota of zero.
    #[test]
    fn headers_of_a_blocked_key_have_the_real_quota_and_the_rest_of_the_block() {
        let blocks_end = Timestamp::from_secs(1_000_000_600);
        let policy = Policy::new("per-user", Quota::per_minute(5)).unwrap().with_scope(["user"]);
        let policy = policy.with_block(["mallory"], Block::until(blocks_end));
        let (gate, clock) = gate([policy.with_block(["eve"], Block::forever())]);
        clock.set(Timestamp::from_micros(blocks_end.as_micros() - 600_000_000));
        clock.advance(Duration::from_millis(500));
        let headers =
            |user| HeaderOptions::default().headers(&gate.check(&Request::new().with("user", user)));
        let expected = [
            ("ratelimit-policy", r#""per-user";q=5;w=60"#),
            ("ratelimit", r#""per-user";r=0;t=600"#),
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1000000600"),
            ("retry-after", "600"),
        ];
        assert_eq!(headers("mallory"), expected.map(|(name, value)| (name, value.to_owned())));
        let without_end = headers("eve");
        assert!(without_end.contains(&("ratelimit", r#""per-user";r=0"#.into())), "{without_end:?}");
        assert!(!without_end.iter().any(|(name, _)| *name == "retry-after"));
    }

    /// A quote or newline in a name must not end the field or start another one.
    #[test]
    fn any_name_makes_a_well_formed_field() {
        let quota = Quota::per_minute(5);
        let (limiter, _clock) = limiter(quota);
        for (name, fields) in
            [("a\"b\\c", "a_b_c"), ("x\r\nset-cookie: y", "x__set-cookie: y"), ("zoë", "zo_"), ("", "")]
        {
            let headers = DRAFT_10.headers_of(name, &quota, &limiter.peek("alice"));
            assert_eq!(items(&headers[0].1), [item(fields, &[("q", 5), ("w", 60)])]);
            assert_eq!(items(&headers[1].1), [item(fields, &[("r", 5)])]);
        }
    }

    /// Browsers hide fields that `Access-Control-Expose-Headers` does not list.
    #[test]
    fn the_names_are_those_of_the_fields_sent_on_a_denial() {
        let (limiter, _clock) = limiter(Quota::per_minute(1));
        let _ = limiter.check("alice");
        let denied = limiter.check("alice");
        for draft in Draft::ALL {
            for x_ratelimit in XRateLimit::ALL {
                for bits in 0..4 {
                    let (retry_after, retry_after_ms) = (bits & 1 > 0, bits & 2 > 0);
                    let options = HeaderOptions { draft, x_ratelimit, retry_after, retry_after_ms };
                    let headers = options.headers_of("p", &limiter.quota(), &denied);
                    let sent: Vec<_> = headers.into_iter().map(|(name, _)| name).collect();
                    let mut names = options.names();
                    // A limiter counts requests.
                    names.retain(|name| !name.contains("token"));
                    assert_eq!(names, sent, "{options:?}");
                    assert!(sent.iter().all(|name| !name.contains(|c: char| c.is_ascii_uppercase())));
                }
            }
        }
    }
}
