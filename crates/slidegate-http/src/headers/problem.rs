//! Problem bodies: a denial as `application/problem+json` (RFC 9457).
//!
//! The type distinguishes an exceeded quota from a block and from an unavailable store. The body
//! reaches end users, so it names no operator and no server. The JSON is written by hand, so the
//! library needs no serializer; programs that have one can serialize the fields.

use std::fmt::{self, Write as _};

use slidegate::internal::{NamedDecision, UNDECIDED};
use slidegate::{Decision, Decisions, Quota, Reason};

/// A denial, for people and programs, with the problem types of
/// draft-ietf-httpapi-ratelimit-headers-10:
///
/// | what denies the request | type | status |
/// |---|---|---|
/// | [a full quota](Reason::OverLimit), or [too many who wait](Reason::QueueFull) | `quota-exceeded` | 429 |
/// | [a block](Reason::Blocked) | `abnormal-usage-detected` | 429 |
/// | [too many open reservations of the key](Reason::TooManyHolds) | `quota-exceeded` | 429 |
/// | [a store that is full](Reason::StoreFull) or [unavailable](Reason::StoreUnavailable) | `temporary-reduced-capacity` | 503 |
/// | a named policy that cannot decide, see [`Decisions::error`] | `about:blank` | 500 |
///
/// ```
/// use slidegate_http::headers::Problem;
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
///
/// let gate = Gate::new(PolicySet::new([Policy::new("login", Quota::per_minute(1))?.with_scope(["user"])])?);
/// let request = Request::new().with("user", "alice");
/// assert_eq!(Problem::of(&gate.check(&request)), None);
///
/// let denied = gate.check(&request);
/// let problem = Problem::of(&denied).unwrap();
/// assert_eq!(problem.status, 429);
/// assert_eq!(problem.violated_policies, ["login"]);
/// assert_eq!(
///     problem.detail,
///     "Policy `login` (1/1m) would be exceeded: key `alice` has used 1 of 1. Retry in 60 seconds."
/// );
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem<'d> {
    /// Member `type`: the URI of the problem type, or `about:blank`.
    pub type_uri: &'static str,
    /// Member `title`: the meaning of the type, constant per type.
    pub title: &'static str,
    /// Member `status`: the HTTP status, 429, 503 or 500.
    pub status: u16,
    /// Member `detail`: a sentence about the strictest policy, its key, and when to retry. The key
    /// is truncated to [`MAX_KEY`](Self::MAX_KEY) characters.
    pub detail: String,
    /// Member `violated-policies`: every enforced policy that denies, in plan order.
    pub violated_policies: Vec<&'d str>,
    /// Member `retry_after_ms`: milliseconds until the same request fits, rounded up, at least 1. At
    /// most 1000 if only the end of other requests is waited for.
    /// `None`, written as `null`, if it never fits or the wait is unknown.
    pub retry_after_ms: Option<u64>,
}

impl<'d> Problem<'d> {
    /// The media type of the body.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
    /// Longest key in `detail`, in characters. Keys themselves have no maximum length.
    pub const MAX_KEY: usize = slidegate::internal::MAX_KEY;

    /// The problem for a gate's decisions; `None` if the request is allowed.
    #[must_use]
    pub fn of(decisions: &'d Decisions<'_>) -> Option<Self> {
        if decisions.error().is_some() {
            return Some(Self::undecided());
        }
        let strictest = decisions.strictest().filter(|one| one.decision().is_denied())?;
        let denying =
            decisions.iter().filter(|one| one.policy().options().enforced && one.decision().is_denied());
        let violated = denying.map(|one| one.policy().name()).collect();
        Some(Self::new(&NamedDecision::from(&strictest), decisions.why()?, violated))
    }

    /// The problem for a [`Limiter`](slidegate::Limiter)'s decision, with `name` as the policy name;
    /// `None` if the request is allowed.
    #[must_use]
    pub fn of_one(name: &'d str, quota: &Quota, decision: &Decision) -> Option<Self> {
        decision.is_denied().then(|| {
            let one = NamedDecision { name, quota, decision, unit: None, unit_name: None };
            Self::new(&one, one.sentence(None, None), vec![name])
        })
    }

    fn new(strictest: &NamedDecision<'_>, detail: String, violated_policies: Vec<&'d str>) -> Self {
        let reason = strictest.decision.reason().unwrap_or(Reason::OverLimit);
        let (type_uri, title, status) = match reason {
            Reason::OverLimit | Reason::TooManyHolds | Reason::QueueFull => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
                429,
            ),
            Reason::Blocked => (
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                "Request not satisfied due to detection of abnormal request pattern",
                429,
            ),
            _ => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
                503,
            ),
        };
        let retry_after_ms = strictest.retry_after_ms();
        Self { type_uri, title, status, detail, violated_policies, retry_after_ms }
    }

    /// The application named a policy that cannot decide. Its clients must not learn about its
    /// policies.
    fn undecided() -> Self {
        Self {
            type_uri: "about:blank",
            title: "Internal Server Error",
            status: 500,
            detail: UNDECIDED.to_owned(),
            violated_policies: Vec::new(),
            retry_after_ms: None,
        }
    }

    /// The body: one JSON object on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (type_uri, title, detail) =
            (JsonString(self.type_uri), JsonString(self.title), JsonString(&self.detail));
        let violated: Vec<_> =
            self.violated_policies.iter().map(|name| JsonString(name).to_string()).collect();
        let violated = violated.join(",");
        let retry_after_ms =
            self.retry_after_ms.map_or_else(|| "null".to_owned(), |millis| millis.to_string());
        format!(
            r#"{{"type":{type_uri},"title":{title},"status":{},"detail":{detail},"violated-policies":[{violated}],"retry_after_ms":{retry_after_ms}}}"#,
            self.status
        )
    }
}

/// The problem body for a gate's decisions, of type [`Problem::MEDIA_TYPE`]; `None` if the request
/// is allowed.
#[must_use]
pub fn problem_json(decisions: &Decisions<'_>) -> Option<String> {
    Problem::of(decisions).map(|problem| problem.to_json())
}

/// A JSON string (RFC 8259) with quotes, backslashes and control characters escaped.
struct JsonString<'t>(&'t str);

impl fmt::Display for JsonString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\0'..='\x1f' => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use slidegate::internal::MAX_KEY;
    use slidegate::{
        Block, Gate, Limiter, MemoryStore, Policy, PolicySet, Request,
        clock::{ManualClock, Timestamp},
    };

    use super::*;

    fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
    }

    fn policy(name: &str, quota: &str) -> Policy {
        Policy::new(name, quota.parse().unwrap()).unwrap()
    }

    fn parsed(json: &str) -> Value {
        serde_json::from_str(json).expect("the body is JSON")
    }

    /// The only response that both a denied user and the client program read.
    #[test]
    fn a_denial_names_the_policies_the_key_and_the_wait() {
        let (gate, clock) = gate([
            policy("everyone", "100/1h"),
            policy("per-user", "1/1m").with_scope(["user"]),
            policy("trial", "1/1d").with_enforced(false),
            policy("burst", "1/1s").with_scope(["user"]),
        ]);
        let request = Request::new().with("user", "alice");
        assert_eq!(problem_json(&gate.check(&request)), None);
        clock.advance(Duration::from_micros(500_100));
        assert_eq!(
            parsed(&problem_json(&gate.check(&request)).unwrap()),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "detail": "Policy `per-user` (1/1m) would be exceeded: key `alice` has used 1 of 1. Retry in 60 seconds.",
                "violated-policies": ["per-user", "burst"],
                "retry_after_ms": 59_500,
            })
        );
    }

    /// A client denied because others run, or hold cost, must read that, and not that nothing is used.
    #[test]
    fn what_is_held_is_said_where_it_denies() {
        let streams = Quota::in_flight(1, Duration::from_secs(20)).unwrap();
        let streams = Policy::new("streams", streams).unwrap().with_counts(slidegate::Counts::Requests);
        let detail = |policy: Policy, cost: u64| {
            let (gate, _clock) = gate([policy.with_scope(["user"])]);
            let request = Request::new().with("user", "alice").with_cost(cost);
            let _held = gate.reserve(&request);
            Problem::of(gate.reserve(&request).decisions()).unwrap().detail
        };
        assert_eq!(
            detail(streams, 1),
            "Policy `streams` (1 in flight) would be exceeded: key `alice` has 1 of 1 in flight. \
             Retry in 1 second."
        );
        assert_eq!(
            detail(policy("tokens", "10/1m"), 8),
            "Policy `tokens` (10/1m) would be exceeded: key `alice` has used 0 of 10 and holds 8 for open \
             reservations. Retry in 2 m."
        );
    }

    /// A bound of all must not be blamed on the key that finds it reached.
    #[test]
    fn bounds_of_reservations_say_whose_they_are() {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(3000).clock(clock).build();
        let set = PolicySet::new([policy("tokens", "1_000_000/1m").with_scope(["user"])]).unwrap();
        let gate = Gate::with_memory(set, store);
        let reserve = |user: &str| {
            let request = Request::new().with("user", user);
            let reserved = gate.reserve(&request);
            Problem::of(reserved.decisions())
                .map(|problem| (problem.status, problem.retry_after_ms, problem.detail))
        };
        // It may have as many as the others of its policy find then.
        assert!((0..1000).all(|_| reserve("mallory").is_none()));
        let full = "Policy `tokens` (1000000/1m) cannot reserve now: the server has no room for more open \
                    reservations. Retry in 1 second.";
        assert_eq!(reserve("mallory"), Some((503, Some(1000), full.to_owned())));
        let quota = Quota::per_minute(1_000_000);
        let gate = Gate::new(PolicySet::new([Policy::new("tokens", quota).unwrap()]).unwrap());
        let request = Request::new();
        let hour = Duration::from_secs(3600);
        assert!((0..1024).all(|_| gate.reserve_for(&request, hour).unwrap().decisions().is_allowed()));
        let denied = gate.reserve_for(&request, hour).unwrap();
        let problem = Problem::of(denied.decisions()).unwrap();
        assert_eq!((problem.status, problem.retry_after_ms), (429, Some(1000)));
        assert_eq!(
            problem.detail,
            "Policy `tokens` (1000000/1m) cannot reserve more: its key has 1024 open reservations, as many as a \
             key may have. Retry in 1 second."
        );
    }

    /// No client should wait and then be denied forever.
    #[test]
    fn a_request_that_never_fits_says_so() {
        let (gate, _clock) = gate([policy("everyone", "5/1m")]);
        let request = Request::new().with_cost(6);
        let body = parsed(&problem_json(&gate.check(&request)).unwrap());
        assert_eq!(body["retry_after_ms"], Value::Null);
        assert_eq!(
            body["detail"],
            "Policy `everyone` (5/1m) would be exceeded: its key has used 0 of 5. The request never fits, however long it waits."
        );
    }

    /// A blocked user must learn that the limit is not the cause, and when the block ends, but not
    /// who set it.
    #[test]
    fn a_block_has_a_type_of_its_own_and_says_when_it_ends() {
        let until = Timestamp::from_secs(1_000_000_600);
        let policy = policy("per-user", "5/1m").with_scope(["user"]);
        let policy = policy.with_block(["mallory"], Block::until(until).by("ops"));
        let (gate, _clock) = gate([policy.with_block(["eve"], Block::forever().by("ops"))]);
        let body = |user| parsed(&problem_json(&gate.check(&Request::new().with("user", user))).unwrap());
        assert_eq!(
            body("mallory"),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                "title": "Request not satisfied due to detection of abnormal request pattern",
                "status": 429,
                "detail": "Policy `per-user` (5/1m) does not admit the request: key `mallory` is blocked until \
                           2001-09-09T01:56:40Z. Retry in 10 m.",
                "violated-policies": ["per-user"],
                "retry_after_ms": 600_000,
            })
        );
        let eve = body("eve");
        assert_eq!(eve["retry_after_ms"], Value::Null);
        assert_eq!(
            eve["detail"],
            "Policy `per-user` (5/1m) does not admit the request: key `eve` is blocked until an operator lifts the block."
        );
    }

    /// A limiter's denial has the same body as a gate's.
    #[test]
    fn a_limiter_has_problems_too() {
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        let limiter = Limiter::with_store(Quota::per_second(1), store);
        let (allowed, denied) = (limiter.check("alice"), limiter.check("alice"));
        assert_eq!(Problem::of_one("p", &limiter.quota(), &allowed), None);
        let problem = Problem::of_one("p", &limiter.quota(), &denied).unwrap();
        assert_eq!(problem.violated_policies, ["p"]);
        assert_eq!(problem.retry_after_ms, Some(1000));
        assert_eq!(
            problem.detail,
            "Policy `p` (1/1s) would be exceeded: its key has used 1 of 1. Retry in 1 second."
        );
    }

    /// Clients choose their keys. A key that ends the string could write the rest of the body.
    #[test]
    fn no_text_breaks_out_of_its_string() {
        let every: String = ('\0'..='\u{ff}').chain(['\u{2028}', '\u{feff}', '😀', '\u{10ffff}']).collect();
        for text in ["", "\"", "\\", "\\\"", "\",\"status\":200,\"x\":\"", "\u{0}\n\r\t\u{1f}\u{7f}", &every]
        {
            let problem = Problem {
                type_uri: "about:blank",
                title: "",
                status: 429,
                detail: text.to_owned(),
                violated_policies: vec![text, text],
                retry_after_ms: Some(1),
            };
            let body = parsed(&problem.to_json());
            assert_eq!(body["detail"], text);
            assert_eq!(body["violated-policies"], json!([text, text]));
            assert_eq!(body["status"], 429);
            assert_eq!(body.as_object().unwrap().len(), 6);
        }
    }

    /// A key may be a whole URL or longer, but responses to a flood must stay small.
    #[test]
    fn a_long_key_is_cut_and_a_hostile_one_stays_text() {
        let (gate, _clock) = gate([policy("per-user", "0/1m").with_scope(["user"])]);
        let detail = |user: &str| {
            let request = Request::new().with("user", user);
            let body = parsed(&problem_json(&gate.check(&request)).unwrap());
            body["detail"].as_str().unwrap().to_owned()
        };
        let long = detail(&"é".repeat(10_000));
        assert!(long.contains(&format!("key `{}…` has", "é".repeat(MAX_KEY))), "{long}");
        assert!(detail(&"é".repeat(MAX_KEY)).contains("é` has"));
        assert!(detail("\"}\n\u{202e},").contains("key `\"}%0A\u{202e}%2C` has"));
    }
}
