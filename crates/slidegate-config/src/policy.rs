//! One policy of a file, of the admin API or of `slidegate policy set`.

mod build;
mod values;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use lined_config::{Form, List, Schema};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{Algorithm, Amount, Counts, Excess, Fold, OnStoreError, Quota};

use crate::condition::Condition;
use crate::counts::{CountsValue, Unit};
use crate::escalate::{Denials, EscalateSpec};
use crate::foreign;
pub use crate::overrides::UNLIMITED;
use crate::overrides::{Overrides, OwnQuota, Unlimited};
use crate::quota::QuotaSpec;
use crate::values::{ATTRIBUTE, NAME, OnExcess, Parsed, SPAN, Span, Text, TimeZone, Window};
pub use build::Added;
use values::{ExcessChoice, Notice, OnMissingValue, OnStoreErrorChoice, UnsettledValue};
pub use values::{KeysShown, Mode};

/// The forms of the texts in a policy, for the [`Schema`] of a file.
pub const POLICY_FORMS: [Form; 16] = [
    NAME,
    ATTRIBUTE,
    SPAN,
    Window::FORM,
    Quota::FORM,
    Algorithm::FORM,
    Counts::FORM,
    Unit::FORM,
    Amount::FORM,
    TimeZone::FORM,
    OnExcess::FORM,
    Notice::FORM,
    Denials::FORM,
    Fold::FORM,
    OwnQuota::FORM,
    Unlimited::FORM,
];

/// The schema of one policy.
pub(crate) fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        Schema::of::<PolicySpec>("A policy of slidegate", &POLICY_FORMS).with_synonyms(foreign::KEYS)
    })
}

/// A policy: which requests it limits, by which keys, and its quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false, "x-example" = "name: per-user"))]
pub(crate) struct PolicySpec {
    /// Unique, and not `CL.THROTTLE` or `THROTTLE`. Usage is kept by name.
    #[schemars(extend("format" = "name"))]
    pub(crate) name: String,
    /// [Conditions](#when) on attributes, all of which must hold. Default: every request.
    #[serde(default)]
    #[schemars(extend("x-example" = "{path: /login}", "propertyNames" = {"format": "attribute"}))]
    when: BTreeMap<String, Condition>,
    /// Attributes that form a key. Default: all requests share one key.
    #[serde(default)]
    #[schemars(extend("format" = "attribute", "uniqueItems" = true))]
    scope: List<String>,
    /// Requests that `when` holds for and that lack [an attribute of the scope](#on_missing). Default: `skip`, logged
    /// once unless it is written.
    on_missing: Option<OnMissingValue>,
    /// [Spellings](#fold) of an attribute that count as one.
    #[serde(default)]
    #[schemars(extend("x-example" = "{user: case, path: [case, slash]}", "propertyNames" = {"format": "attribute"}))]
    fold: BTreeMap<String, List<Parsed<Fold>>>,
    #[serde(flatten)]
    quota: QuotaSpec,
    // After the quota, to replace its keys of the same names.
    /// Maximum cost per window, with optional `_` between digits. 0 denies every cost except 0. Or limits [by
    /// plan](#limits-by-plan).
    #[schemars(extend("x-expected" = LIMIT))]
    limit: Option<Limit>,
    /// Whether instances take [leases](leases.md) of hot keys on a shared store, and how long one lasts; `true` is a
    /// twentieth of the window, 10ms to 1s. Not with `excess`. With `in_flight`, how long a reservation lasts; extensions
    /// renew it. Default: `false`; 30s with `in_flight`.
    #[schemars(extend("x-expected" = LEASE))]
    lease: Option<LeaseValue>,
    /// The day on which a calendar window of months begins; in shorter months the last day. Or the attribute that
    /// holds it; clients must not be able to set it. Default: 1.
    anchor: Option<Anchor>,
    /// Whether the policy denies, or only reports.
    #[schemars(extend("default" = "enforce"))]
    mode: Mode,
    /// A cost above what remains. `charge` (overdraft, [within bounds](algorithms.md#what-all-four-do-alike)) is for
    /// costs that are known afterwards. `count` charges within the same bounds, even if another policy denies the
    /// request: a client that keeps retrying stays denied.
    #[schemars(extend("default" = "refuse"))]
    #[serde(with = "ExcessChoice")]
    excess: Excess,
    /// Whether a request of a proxy ([auth requests](protocols.md#behind-a-proxy), [Envoy](envoy.md)) [waits for its turn](waiting.md)
    /// instead of being denied at once, and how long at most. Every policy that denies a request must let it wait.
    /// Programs choose for themselves: with `/v1/acquire`, `Prefer: wait` and `RL.ACQUIRE`. Not with `excess: count`.
    #[schemars(extend("default" = "deny"))]
    on_excess: Option<Parsed<OnExcess>>,
    /// The cost that counts: the total `cost`; `requests`, 1 per request, charged and not held; a [cost by
    /// name](reserve.md#costs-by-name); or [weights](quotas.md#weighted-costs) of 1 to 16 costs, 0 to 1,000,000 with
    /// at most six decimals. Default: `cost`; `requests` with `in_flight`.
    counts: Option<CountsValue>,
    /// Cost held by a [reservation](reserve.md) without a cost, more than 0, lowered to the key's limit; with decimals
    /// only if `counts` has weights. Default: 1.
    estimate: Option<Parsed<Amount>>,
    /// Whether the estimate is [learned](reserve.md#estimates) from settlements in this process.
    #[schemars(extend("default" = false))]
    learn_estimate: bool,
    /// Reserved cost that expires unsettled. Not with `in_flight`. Default: `charge`.
    unsettled: Option<UnsettledValue>,
    /// The unit of cost, for [`x_ratelimit`](#headers) `openai` and `anthropic`, and for explanations. It changes no
    /// decision. Default: `requests` with `counts: requests` and a rate; otherwise none.
    unit: Option<Parsed<Unit>>,
    /// Decisions while a [shared store](#store) does not answer. With `deny`, responses are
    /// [503](protocols.md#denials).
    #[schemars(extend("default" = "local"))]
    #[serde(with = "OnStoreErrorChoice")]
    on_store_error: OnStoreError,
    /// Keys and networks with [their own quota](#overrides), or without a limit.
    overrides: Option<Overrides>,
    /// Prefix length by which IPv6 addresses in the scope are counted.
    #[schemars(range(min = 32, max = 128), extend("default" = 56))]
    ipv6_prefix: Option<u8>,
    /// A [candidate](day-to-day.md#shadow-policies-and-candidates): a quota that is evaluated on the same requests
    /// and never denies. A text, or a map of what differs from the policy's: `quota` or `limit` and `window`,
    /// `algorithm`, `burst` and `slots`; with `in_flight`, of `limit`. The policy's name may then have 54 characters;
    /// no name may end in `.candidate`.
    candidate: Option<Candidate>,
    /// Shares of the limit, one or at most 8. A key that reaches one is [reported](observability.md#notifications),
    /// at most once per window. With `closed`, each key's total is [reported](observability.md#closed-periods) when
    /// its calendar window ends; only with a `redis` store.
    #[schemars(extend("uniqueItems" = true, "maxItems" = 8))]
    notify: Option<List<Parsed<Notice>>>,
    /// [Blocks](escalation.md) of keys that are denied again and again. Not with `mode: shadow`,
    /// not without a `scope`, and not in programs that embed the library.
    escalate: Option<EscalateSpec>,
    /// How keys are shown in the log, events, top keys and the dashboard. Responses to a check always show their own.
    #[schemars(extend("default" = "plain"))]
    keys_shown: Option<KeysShown>,
}

/// The expected value of `limit`, for errors.
const LIMIT: &str = "a whole number without quotes, or keys and values, for example `by: plan, values: {free: 100, pro: 10000}, default: 100`; with its window it is `quota: 100/1m`";

/// The expected value of `lease`, for errors.
const LEASE: &str = "`true`, `false` or 10ms to 1s; with `in_flight` 1s to 1h, for example `lease: 30s`";

/// The lease of a policy.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged)]
enum LeaseValue {
    Choice(bool),
    Length(#[schemars(extend("x-expected" = LEASE))] Span<10, 3_600_000>),
}

/// One limit, or limits by the value of an attribute.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Limit {
    Number(u64),
    ByAttribute(LimitByAttribute),
}

/// Limits by the value of an attribute, such as the plan of a customer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "by: plan, values: {free: 100, pro: 10000}, default: 100"))]
struct LimitByAttribute {
    /// The attribute, not an address. It must come from your application or gateway: a client that can set it chooses
    /// its own limit.
    #[schemars(extend("format" = "attribute"))]
    by: String,
    /// The limits, by exact values of the attribute.
    #[schemars(extend("x-example" = "{free: 100, pro: 10_000}", "minProperties" = 1))]
    values: BTreeMap<String, u64>,
    /// The limit of requests without the attribute, or with any other value.
    default: u64,
}

/// A day of the month, or the attribute that holds it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Anchor {
    Day(#[schemars(range(min = 1, max = 31))] u8),
    Attribute(AnchorAttribute),
}

/// The attribute that holds the day of the month on which windows begin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "attribute: billing_day"))]
struct AnchorAttribute {
    /// The attribute, of 1 to 31. Clients must not be able to choose it.
    #[schemars(extend("format" = "attribute"))]
    attribute: String,
}

/// A quota in one text, or its differences from the policy's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Candidate {
    Scalar(Parsed<Quota>),
    Map(QuotaSpec),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::{Algorithm, CostUnit, Counts, Excess, LeaseLength, reserve::Unsettled};

    use crate::policies::Policies;
    use crate::policies::tests::policy;

    /// Both forms must mean the same.
    #[test]
    fn a_quota_is_a_limit_and_a_window() {
        for keys in [
            "quota: 100/1m",
            "limit: 100, window: 60s",
            "limit: 1_0_0, window: 1 minute",
            "quota: 100 per MINUTE",
        ] {
            assert_eq!(policy(keys).quota().to_string(), "100/1m", "{keys}");
        }
        for keys in ["quota: 100/month", "limit: 100, window: month"] {
            let text =
                format!("scope: user, {keys}, time_zone: Asia/Tokyo, anchor: 5, overrides: {{vip: 7/month}}");
            let policy = policy(&text);
            let quotas: Vec<_> = policy.quotas().map(ToString::to_string).collect();
            assert_eq!(
                quotas,
                [100, 7].map(|limit| format!("{limit}/month in Asia/Tokyo from day 5")),
                "{keys}"
            );
        }
        let bucket = policy("quota: 10/s, algorithm: token-bucket, burst: 50");
        assert_eq!((bucket.quota().algorithm(), bucket.quota().burst()), (Algorithm::TokenBucket, 50));
        assert_eq!(policy("quota: 10/s, slots: 65_534").quota().slots(), 65_534);
        assert_eq!(policy("quota: 10/s").options().excess, Excess::Refuse);
        assert_eq!(policy("quota: 10/s, excess: charge").options().excess, Excess::Charge);
        assert_eq!(policy("quota: 10/s, excess: count").options().excess, Excess::Count);
        assert_eq!(policy("quota: 10/s, scope: user").scope(), ["user"]);
        assert!(
            !policy("quota: 10/s, mode: shadow").options().enforced
                && policy("quota: 10/s, mode: enforce").options().enforced
        );
    }

    /// A limit on what runs at once is written like a limit on a rate, without a window.
    #[test]
    fn a_limit_in_flight_counts_requests_and_has_a_lease() {
        let streams = policy("scope: user, in_flight: 20, overrides: {alice: 40}");
        assert_eq!(streams.quota().algorithm(), Algorithm::InFlight);
        assert_eq!((streams.quota().limit(), streams.quota().window()), (20, Duration::from_secs(30)));
        assert_eq!(streams.options().counts, Counts::Requests);
        let limits: Vec<_> = streams.quotas().map(|quota| (quota.limit(), quota.window())).collect();
        assert_eq!(limits[1], (40, Duration::from_secs(30)));
        let weighted = policy("in_flight: 1_000_000, lease: 5m, counts: input");
        assert_eq!(weighted.quota().window(), Duration::from_secs(300));
        assert_eq!(weighted.options().counts, Counts::Named("input".to_owned()));
        let text = "policies: [{name: p, in_flight: 4, lease: 10s, candidate: {limit: 6}}]";
        let policies = Policies::parse(text, "slidegate.yaml").unwrap();
        let candidate = policies.candidates["p"];
        assert_eq!((candidate.limit(), candidate.window()), (6, Duration::from_secs(10)));
    }

    /// A wait that is misread holds connections of a proxy open, or denies what was to be smoothed.
    #[test]
    fn requests_of_proxies_may_wait() {
        let ms =
            |wait: &str| policy(&format!("quota: 10/s, {wait}")).options().wait.map(|wait| wait.as_millis());
        assert_eq!(ms("on_excess: deny"), None);
        assert_eq!(ms("on_excess: wait 2s"), Some(2000));
        assert_eq!(ms("on_excess: wait 100ms, excess: charge"), Some(100));
    }

    /// One key has two meanings: the time of a permit, and whether instances lease what is left of a rate.
    #[test]
    fn a_rate_may_be_leased() {
        let fixed = |ms| Some(LeaseLength::Fixed(Duration::from_millis(ms)));
        for (keys, lease) in [
            ("quota: 10/s", None),
            ("quota: 10/s, lease: false, excess: charge", None),
            ("quota: 10/s, lease: true", Some(LeaseLength::OfWindow)),
            ("quota: 10/s, lease: 10ms", fixed(10)),
            ("scope: user, quota: 10/s, lease: 1s, overrides: {alice: 40}", fixed(1000)),
            ("in_flight: 5, lease: 1s", None),
        ] {
            assert_eq!(policy(keys).lease(), lease, "{keys}");
        }
    }

    /// Users of language models pay for what a reservation holds and for what is charged when it expires.
    #[test]
    fn a_policy_has_its_cost_and_what_happens_to_reservations() {
        let usual = policy("quota: 10/s");
        assert_eq!((&usual.options().counts, usual.estimate()), (&Counts::Cost, None));
        assert_eq!(usual.unsettled(), Unsettled::Charge);
        let tokens = policy("quota: 10_000/1m, counts: output, estimate: 1024, unsettled: forget");
        assert_eq!(tokens.options().counts, Counts::Named("output".to_owned()));
        assert_eq!((tokens.estimate(), tokens.unsettled()), (Some(1024.into()), Unsettled::Forget));
        assert!(!tokens.options().learns_estimate);
        assert!(policy("quota: 10/s, estimate: 5, learn_estimate: true").options().learns_estimate);
        assert_eq!(policy("quota: 10/s, counts: requests").options().counts, Counts::Requests);
        assert_eq!(policy("quota: 10/s, counts: cost").options().counts, Counts::Cost);
    }

    /// A misread share warns customers too late.
    #[test]
    fn shares_to_be_told_of_are_in_percent() {
        assert_eq!(policy("quota: 10/s").options().notify.as_ref(), [0u8; 0]);
        assert_eq!(policy("quota: 10/s, notify: [100%, 80%]").options().notify.as_ref(), [80, 100]);
        assert_eq!(policy("quota: 10/s, notify: 5%").options().notify.as_ref(), [5]);
        let both = policy("quota: 10/month, notify: [closed, 80%]");
        assert_eq!((both.options().notify.as_ref(), both.options().notify_closed), (&[80][..], true));
    }

    /// Client libraries wait by the fields of a unit.
    #[test]
    fn a_policy_may_have_a_unit_of_its_cost() {
        assert_eq!(policy("quota: 10/s").unit_name(), None);
        assert_eq!(policy("quota: 10/s, counts: requests").unit_name(), Some("requests"));
        assert_eq!(policy("in_flight: 5").unit_name(), None);
        for (name, unit) in [
            ("requests", CostUnit::Requests),
            ("tokens", CostUnit::Tokens),
            ("input-tokens", CostUnit::InputTokens),
            ("output-tokens", CostUnit::OutputTokens),
        ] {
            assert_eq!(policy(&format!("quota: 10/s, unit: {name}")).unit_name(), Some(name));
            assert_eq!(CostUnit::from_name(name), Some(unit));
        }
    }

    /// A candidate that differs from what was written reports misleading numbers.
    #[test]
    fn missing_keys_of_a_candidate_are_those_of_its_policy() {
        let candidate = |keys: &str| {
            let text = format!("policies:\n  - {{name: p, {keys}}}\n");
            let policies = Policies::parse(&text, "slidegate.yaml").unwrap();
            let quota = policies.candidates["p"];
            (quota.to_string(), quota.algorithm().name(), quota.burst())
        };
        let bucket = "quota: 5/1m, algorithm: token-bucket, burst: 9";
        assert_eq!(candidate(&format!("{bucket}, candidate: 7/1h")), ("7/1h".into(), "token-bucket", 9));
        assert_eq!(
            candidate(&format!("{bucket}, candidate: {{limit: 7}}")),
            ("7/1m".into(), "token-bucket", 9)
        );
        let other = format!("{bucket}, candidate: {{quota: 7/1h, algorithm: sliding-log}}");
        assert_eq!(candidate(&other), ("7/1h".into(), "sliding-log", 7));
    }
}
