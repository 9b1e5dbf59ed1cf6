//! Fields for each unit of cost, as the APIs of language models have them.
//!
//! Each unit shows the strictest decision on the policies that count it, because client libraries
//! wait by these numbers.

use std::fmt::Write as _;
use std::time::Duration;

use http::HeaderName;
use slidegate::internal::millis_ceil;
use slidegate::{CostUnit, Decision};

use super::buffer::{FieldBuffer, write_number};
use super::style::XRateLimit;

/// Units in the order of [`CostUnit`], with the names of their limit, of what remains and of the
/// reset.
type UnitFields = [(CostUnit, [HeaderName; 3])];

const fn names(names: [&'static str; 3]) -> [HeaderName; 3] {
    let [limit, remaining, reset] = names;
    [HeaderName::from_static(limit), HeaderName::from_static(remaining), HeaderName::from_static(reset)]
}

static OPENAI: [(CostUnit, [HeaderName; 3]); 2] = [
    (
        CostUnit::Requests,
        names(["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]),
    ),
    (
        CostUnit::Tokens,
        names(["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]),
    ),
];

static ANTHROPIC: [(CostUnit, [HeaderName; 3]); 4] = [
    (
        CostUnit::Requests,
        names([
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ]),
    ),
    (
        CostUnit::Tokens,
        names([
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ]),
    ),
    (
        CostUnit::InputTokens,
        names([
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-reset",
        ]),
    ),
    (
        CostUnit::OutputTokens,
        names([
            "anthropic-ratelimit-output-tokens-limit",
            "anthropic-ratelimit-output-tokens-remaining",
            "anthropic-ratelimit-output-tokens-reset",
        ]),
    ),
];

impl XRateLimit {
    /// The units that have fields in this style.
    pub(super) fn unit_fields(self) -> &'static UnitFields {
        match self {
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            Self::Off | Self::EpochSeconds | Self::DeltaSeconds => &[],
        }
    }

    /// Writes the fields of each unit that is counted. Decisions that counted nothing, because a
    /// shared store is unavailable, are left out.
    pub(super) fn write_units(
        self,
        decisions: &(impl Iterator<Item = (CostUnit, Decision)> + Clone),
        out: &mut FieldBuffer,
    ) {
        for (unit, [limit, remaining, reset]) in self.unit_fields() {
            let is_of_unit = |asked: CostUnit| match unit {
                CostUnit::Tokens => asked != CostUnit::Requests,
                unit => asked == *unit,
            };
            let mut counted = decisions.clone().filter(|(asked, one)| is_of_unit(*asked) && one.is_counted());
            let Some((_, mut strictest)) = counted.next() else { continue };
            for (_, one) in counted {
                if one.is_stricter_than(&strictest) {
                    strictest = one;
                }
            }
            out.number(limit, strictest.limit());
            out.number(remaining, strictest.remaining());
            out.field(reset, |text| match self {
                Self::OpenAi => write_go_duration(text, strictest.reset_after()),
                _ => text.push_str(&strictest.reset_at().to_rfc3339()),
            });
        }
    }
}

/// Writes a duration as Go does, in milliseconds, rounded up: `0s`, `12ms`, `1.5s`, `6m0s`,
/// `1h0m0s`.
fn write_go_duration(out: &mut String, span: Duration) {
    let millis = millis_ceil(span);
    if (1..1000).contains(&millis) {
        write_number(out, millis);
        out.push_str("ms");
        return;
    }
    let (secs, fraction) = (millis / 1000, millis % 1000);
    let (hours, minutes) = (secs / 3600, secs / 60 % 60);
    if hours > 0 {
        write_number(out, hours);
        out.push('h');
    }
    if secs >= 60 {
        write_number(out, minutes);
        out.push('m');
    }
    write_number(out, secs % 60);
    if fraction > 0 {
        let start = out.len();
        let _ = write!(out, ".{fraction:03}");
        let digits = out[start..].trim_end_matches('0').len();
        out.truncate(start + digits);
    }
    out.push('s');
}

#[cfg(test)]
mod tests {
    use slidegate::{Counts, Gate, MemoryStore, Policy, PolicySet, Quota, Request, clock::ManualClock};

    use super::super::{Draft, Header, HeaderOptions, XRateLimit};
    use super::*;

    const OPENAI: HeaderOptions = HeaderOptions {
        draft: Draft::Off,
        x_ratelimit: XRateLimit::OpenAi,
        retry_after: true,
        retry_after_ms: false,
    };
    const ANTHROPIC: HeaderOptions = HeaderOptions { x_ratelimit: XRateLimit::Anthropic, ..OPENAI };

    fn lines(headers: Vec<Header>) -> Vec<String> {
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    /// The limits of an API of a language model, on a clock at 2001-09-09T01:46:40Z.
    fn gate() -> (Gate, ManualClock) {
        let named = |name: &str, limit, counts: &str, unit| {
            let policy = Policy::new(name, Quota::per_minute(limit)).unwrap();
            policy.with_counts(Counts::Named(counts.to_owned())).with_unit(unit)
        };
        let policies = PolicySet::new([
            Policy::new("rpm", Quota::per_minute(60)).unwrap().with_counts(Counts::Requests),
            Policy::new("rpd", Quota::per_day(1000)).unwrap().with_counts(Counts::Requests),
            named("itpm", 1000, "input", CostUnit::InputTokens),
            named("otpm", 800, "output", CostUnit::OutputTokens),
            // Nobody may see what a shadow policy decides.
            named("trial", 10, "input", CostUnit::Tokens).with_enforced(false),
        ]);
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        (Gate::with_memory(policies.unwrap(), store), clock)
    }

    /// Client libraries of `OpenAI` wait by exactly these fields.
    #[test]
    fn openai_shows_the_strictest_of_requests_and_of_tokens() {
        let (gate, clock) = gate();
        let request = Request::new().with_cost([("input", 90), ("output", 410)]);
        assert_eq!(
            lines(OPENAI.headers(&gate.check(&request))),
            [
                "x-ratelimit-limit-requests: 60",
                "x-ratelimit-remaining-requests: 59",
                "x-ratelimit-reset-requests: 1m0s",
                "x-ratelimit-limit-tokens: 800",
                "x-ratelimit-remaining-tokens: 390",
                "x-ratelimit-reset-tokens: 1m0s",
            ]
        );
        clock.advance(Duration::from_micros(47_988_001));
        let denied = gate.check(&request);
        assert_eq!(
            lines(OPENAI.headers(&denied)),
            [
                "retry-after: 13",
                "x-ratelimit-limit-requests: 60",
                "x-ratelimit-remaining-requests: 59",
                "x-ratelimit-reset-requests: 12.012s",
                "x-ratelimit-limit-tokens: 800",
                "x-ratelimit-remaining-tokens: 390",
                "x-ratelimit-reset-tokens: 12.012s",
            ]
        );
    }

    /// Client libraries of Anthropic show and wait by these; budgets need exact numbers.
    #[test]
    fn anthropic_shows_each_unit_and_the_tightest_of_all_tokens() {
        let (gate, _clock) = gate();
        let request = Request::new().with_cost([("input", 951), ("output", 51)]);
        assert_eq!(
            lines(ANTHROPIC.headers(&gate.check(&request))),
            [
                "anthropic-ratelimit-requests-limit: 60",
                "anthropic-ratelimit-requests-remaining: 59",
                "anthropic-ratelimit-requests-reset: 2001-09-09T01:47:40Z",
                "anthropic-ratelimit-tokens-limit: 1000",
                "anthropic-ratelimit-tokens-remaining: 49",
                "anthropic-ratelimit-tokens-reset: 2001-09-09T01:47:40Z",
                "anthropic-ratelimit-input-tokens-limit: 1000",
                "anthropic-ratelimit-input-tokens-remaining: 49",
                "anthropic-ratelimit-input-tokens-reset: 2001-09-09T01:47:40Z",
                "anthropic-ratelimit-output-tokens-limit: 800",
                "anthropic-ratelimit-output-tokens-remaining: 749",
                "anthropic-ratelimit-output-tokens-reset: 2001-09-09T01:47:40Z",
            ]
        );
        assert_eq!(lines(ANTHROPIC.headers(&gate.check(&request)))[0], "retry-after: 60");
    }

    /// A client must not read a limit of concurrent requests, or of an unknown unit, as its rate.
    #[test]
    fn a_policy_without_a_unit_is_not_shown() {
        let policies = PolicySet::new([
            Policy::new("any", Quota::per_minute(5)).unwrap(),
            Policy::new("streams", Quota::in_flight(2, Duration::from_secs(30)).unwrap())
                .unwrap()
                .with_counts(Counts::Requests),
        ]);
        let gate = Gate::new(policies.unwrap());
        assert!(OPENAI.headers(&gate.check(&Request::new())).is_empty());
        let said = Policy::new("any", Quota::per_minute(5)).unwrap().with_unit(CostUnit::Requests);
        let gate = Gate::new(PolicySet::new([said]).unwrap());
        assert_eq!(
            lines(OPENAI.headers(&gate.check(&Request::new())))[1],
            "x-ratelimit-remaining-requests: 4"
        );
    }

    /// After a settlement a client knows what its budget is again.
    #[test]
    fn a_settlement_shows_what_it_left() {
        let (gate, clock) = gate();
        let request = Request::new().with_cost([("input", 90), ("output", 410)]);
        let ticket = gate.reserve(&request).into_ticket().unwrap();
        clock.advance(Duration::from_secs(10));
        let settled = gate.settle(&ticket, [("input", 90), ("output", 100)]).unwrap();
        assert_eq!(
            lines(OPENAI.settlement_headers(&settled)),
            [
                "x-ratelimit-limit-tokens: 800",
                "x-ratelimit-remaining-tokens: 700",
                "x-ratelimit-reset-tokens: 1m0s",
            ]
        );
        assert!(HeaderOptions::default().settlement_headers(&settled).is_empty());
    }

    /// A duration that Go's parser refuses, or reads as shorter, makes clients retry too early.
    #[test]
    fn durations_are_written_as_go_writes_them() {
        let written = |micros| {
            let mut out = String::new();
            write_go_duration(&mut out, Duration::from_micros(micros));
            out
        };
        for (micros, text) in [
            (0, "0s"),
            (1, "1ms"),
            (12_000, "12ms"),
            (999_001, "1s"),
            (1_000_000, "1s"),
            (1_500_000, "1.5s"),
            (8_640_000, "8.64s"),
            (59_999_001, "1m0s"),
            (360_000_000, "6m0s"),
            (432_000_000, "7m12s"),
            (3_600_000_000, "1h0m0s"),
            (86_400_050_000, "24h0m0.05s"),
        ] {
            assert_eq!(written(micros), text, "{micros}");
        }
    }
}
