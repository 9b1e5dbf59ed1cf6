//! Problems: a denial as a body of RFC 9457, `application/problem+json`.
//!
//! The JSON is written by hand, so that the library needs no serializer; a server that has one takes the fields.

use std::fmt::{self, Write as _};

use super::Answer;
use crate::decision::Decision;
use crate::gate::Decisions;
use crate::quota::Quota;

/// A denial, for people and programs: the problem type `quota-exceeded` of draft-ietf-httpapi-ratelimit-headers-10.
///
/// ```
/// use slidegate::headers::Problem;
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
///
/// let gate = Gate::new(PolicySet::new([Policy::new("login", Quota::per_minute(1))?.scope(["user"])])?);
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
    /// Member `type`: the URI of the problem type.
    pub type_uri: &'static str,
    /// Member `title`: what the type means, the same each time.
    pub title: &'static str,
    /// Member `status`: the HTTP status, 429.
    pub status: u16,
    /// Member `detail`: a sentence on the strictest policy, its key, and when to retry. The key is cut after
    /// [`MAX_KEY`](Self::MAX_KEY) characters.
    pub detail: String,
    /// Member `violated-policies`: every enforced policy that denies, in their order.
    pub violated_policies: Vec<&'d str>,
    /// Member `retry_after_ms`: milliseconds until the same request fits, rounded up, at least 1; `None`, written as
    /// `null`, when it never will.
    pub retry_after_ms: Option<u64>,
}

impl<'d> Problem<'d> {
    /// The media type of the body.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";
    /// Most characters of a key in `detail`. Keys may be of any length, and a reader of the answer knows his.
    pub const MAX_KEY: usize = 128;

    /// What to say about a gate's answer; `None` if the request may pass.
    #[must_use]
    pub fn of(decisions: &'d Decisions<'_>) -> Option<Self> {
        let strictest = decisions.strictest().filter(|one| one.is_denied())?;
        let denying = decisions.iter().filter(|one| one.policy().is_enforced() && one.is_denied());
        let violated = denying.map(|one| one.policy().name()).collect();
        let keyed = !strictest.policy().scope_attributes().is_empty();
        let key = keyed.then(|| cut(strictest.key().to_string()));
        Some(Self::new(&Answer::from(&strictest), key.as_deref(), violated))
    }

    /// What to say about the answer of a [`Limiter`](crate::Limiter), under a name of choice for its quota; `None` if
    /// the request may pass.
    #[must_use]
    pub fn of_one(name: &'d str, quota: &Quota, decision: &Decision) -> Option<Self> {
        decision.is_denied().then(|| Self::new(&Answer { name, quota, decision }, None, vec![name]))
    }

    fn new(strictest: &Answer<'_>, key: Option<&str>, violated_policies: Vec<&'d str>) -> Self {
        let Answer { name, quota, decision } = *strictest;
        // Every denial is told so: pieces cost a fraction of what a format does.
        let mut detail = String::with_capacity(192);
        detail.push_str("Policy `");
        detail.push_str(name);
        detail.push_str("` (");
        detail.push_str(&quota.to_string());
        detail.push_str(") would be exceeded: ");
        match key {
            Some(key) => {
                detail.push_str("key `");
                detail.push_str(key);
                detail.push('`');
            }
            None => detail.push_str("its key"),
        }
        detail.push_str(" has used ");
        detail.push_str(&decision.used.to_string());
        detail.push_str(" of ");
        detail.push_str(&decision.limit.to_string());
        match strictest.retry_after_s() {
            Some(1) => detail.push_str(". Retry in 1 second."),
            Some(secs) => {
                detail.push_str(". Retry in ");
                detail.push_str(&secs.to_string());
                detail.push_str(" seconds.");
            }
            None => detail.push_str(". The request never fits, however long it waits."),
        }
        Self {
            type_uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Request cannot be satisfied as assigned quota has been exceeded",
            status: 429,
            detail,
            violated_policies,
            retry_after_ms: strictest.retry_after_ms(),
        }
    }

    /// The body, one JSON object on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (type_uri, title, detail) = (Text(self.type_uri), Text(self.title), Text(&self.detail));
        let violated: Vec<_> = self.violated_policies.iter().map(|name| Text(name).to_string()).collect();
        let violated = violated.join(",");
        let retry_after_ms =
            self.retry_after_ms.map_or_else(|| "null".to_owned(), |millis| millis.to_string());
        format!(
            r#"{{"type":{type_uri},"title":{title},"status":{},"detail":{detail},"violated-policies":[{violated}],"retry_after_ms":{retry_after_ms}}}"#,
            self.status
        )
    }
}

/// The body for a gate's answer, [`Problem::MEDIA_TYPE`]; `None` if the request may pass.
#[must_use]
pub fn problem_json(decisions: &Decisions<'_>) -> Option<String> {
    Problem::of(decisions).map(|problem| problem.to_json())
}

/// The text up to the most characters of a key.
fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(Problem::MAX_KEY) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A string of RFC 8259: quotes, backslashes and control characters escaped, all else as it is.
struct Text<'t>(&'t str);

impl fmt::Display for Text<'_> {
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
    use super::*;
    use crate::{Gate, Limiter, ManualClock, MemoryStore, Policy, PolicySet, Request};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        (Gate::with_store(PolicySet::new(policies).unwrap(), store), clock)
    }

    fn policy(name: &str, quota: &str) -> Policy {
        Policy::new(name, quota.parse().unwrap()).unwrap()
    }

    fn parsed(json: &str) -> Value {
        serde_json::from_str(json).expect("the body is JSON")
    }

    /// The one answer that a blocked user and the program before him both read.
    #[test]
    fn a_denial_names_the_policies_the_key_and_the_wait() {
        let (gate, clock) = gate([
            policy("everyone", "100/1h"),
            policy("per-user", "1/1m").scope(["user"]),
            policy("trial", "1/1d").shadow(),
            policy("burst", "1/1s").scope(["user"]),
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

    /// No client should sleep, wake up and be refused for ever.
    #[test]
    fn a_request_that_never_fits_says_so() {
        let (gate, _clock) = gate([policy("everyone", "5/1m")]);
        let request = Request::new().cost(6);
        let body = parsed(&problem_json(&gate.check(&request)).unwrap());
        assert_eq!(body["retry_after_ms"], Value::Null);
        assert_eq!(
            body["detail"],
            "Policy `everyone` (5/1m) would be exceeded: its key has used 0 of 5. The request never fits, however long it waits."
        );
    }

    /// A limiter's denial is told like a gate's.
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

    /// Clients choose their keys; one that ends the string could write the rest of the body.
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

    /// A key may be a whole URL or worse; the answer to a flood must stay small.
    #[test]
    fn a_long_key_is_cut_and_a_hostile_one_stays_text() {
        let (gate, _clock) = gate([policy("per-user", "0/1m").scope(["user"])]);
        let detail = |user: &str| {
            let request = Request::new().with("user", user);
            let body = parsed(&problem_json(&gate.check(&request)).unwrap());
            body["detail"].as_str().unwrap().to_owned()
        };
        let long = detail(&"é".repeat(10_000));
        assert!(long.contains(&format!("key `{}…` has", "é".repeat(Problem::MAX_KEY))), "{long}");
        assert!(detail(&"é".repeat(Problem::MAX_KEY)).contains("é` has"));
        assert!(detail("\"}\n\u{202e},").contains("key `\"}%0A\u{202e}%2C` has"));
    }
}
