//! `policies:` one policy of the file, of the admin API, or of a file of `slidegate policy set`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use slidegate::network::Ipv6Prefix;
use slidegate::{
    Algorithm, Amount, CostUnit, Counts, Excess, Fold, OnMissing, OnStoreError, Policy, PolicySet, Quota,
    reserve::Unsettled,
};

use crate::condition::{self, Condition};
use crate::counts::{CountsValue, Unit};
use crate::escalate::{Denials, EscalateSpec, Escalation};
use crate::names::{CANDIDATE, candidate_of, is_inline};
pub use crate::overrides::UNLIMITED;
use crate::overrides::{self, Overrides, OwnQuota, Scope, Unlimited};
use crate::quota::QuotaSpec;
use crate::schema::schema_of;
use crate::section::Section;
use crate::unlikely;
use crate::values::{ATTRIBUTE, Form, List, NAME, Parsed, Text, TimeZone};

/// The forms of the texts in a policy, for [`check::read`](crate::check::read).
pub const POLICY_FORMS: [Form; 13] = [
    NAME,
    ATTRIBUTE,
    Quota::FORM,
    Algorithm::FORM,
    Counts::FORM,
    Unit::FORM,
    Amount::FORM,
    TimeZone::FORM,
    Percent::FORM,
    Denials::FORM,
    Fold::FORM,
    OwnQuota::FORM,
    Unlimited::FORM,
];

/// Why a policy must not have the name of a RESP command.
const TAKEN: &str = "is the name of a RESP command, whose keys are kept under it; choose another";

/// The schema of one policy.
pub(crate) fn schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| schema_of::<PolicySpec>("A policy of slidegate", &POLICY_FORMS))
}

/// A policy: which requests it limits, what it counts by, and the quota.
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
    // Below the quota, whose keys of these names they replace.
    /// Maximum cost per window, with optional `_` between digits. 0 denies every cost except 0. Or limits [by
    /// plan](#limits-by-plan).
    limit: Option<Limit>,
    /// The day on which a calendar window of months begins; in shorter months the last day. Or the attribute that
    /// says it; clients must not be able to set it. Default: 1.
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
    /// What is counted: the total `cost`; `requests`, 1 per request, charged and not held; a [cost by
    /// name](reserve.md#costs-by-name); or [weights](quotas.md#weighted-costs) of 1 to 16 costs, 0 to 1,000,000 with
    /// at most six decimals. Default: `cost`; `requests` with `in_flight`.
    counts: Option<CountsValue>,
    /// What a [reservation](reserve.md) without a cost holds, more than 0, lowered to the key's limit; with decimals
    /// only if `counts` has weights. Default: 1.
    estimate: Option<Parsed<Amount>>,
    /// Whether the estimate is [learned](reserve.md#estimates) from settlements in this process.
    #[schemars(extend("default" = false))]
    learn_estimate: bool,
    /// Reserved cost that expires unsettled. Not with `in_flight`. Default: `charge`.
    unsettled: Option<UnsettledValue>,
    /// The unit of cost, for [`x_ratelimit`](#headers) `openai` and `anthropic`, or for explanations. It changes no
    /// decision. Default: `requests` with `counts: requests` and a rate; otherwise not said.
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
    /// at most once per window.
    #[schemars(extend("uniqueItems" = true, "maxItems" = 8))]
    notify: Option<List<Parsed<Percent>>>,
    /// [Blocks](escalation.md) of keys that are denied again and again. Not with `mode: shadow`,
    /// not without a `scope`, and not in programs that embed the library.
    escalate: Option<EscalateSpec>,
    /// How keys are shown in the log, events, top keys and the dashboard. Responses to a check always show their own.
    #[schemars(extend("default" = "plain"))]
    pub(crate) keys_shown: Option<KeysShown>,
}

/// What one policy of a file makes.
pub(crate) struct Built {
    pub(crate) policy: Policy,
    pub(crate) candidate: Option<Quota>,
    pub(crate) escalation: Option<Escalation>,
    /// What is valid, and probably never matches.
    pub(crate) warnings: Vec<String>,
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
    #[schemars(extend("x-example" = "{free: 100, pro: 10_000}"))]
    values: BTreeMap<String, u64>,
    /// The limit of requests without the attribute, or with any other value.
    default: u64,
}

/// A day of the month, or the attribute that has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Anchor {
    Day(#[schemars(range(min = 1, max = 31))] u8),
    Attribute(AnchorAttribute),
}

/// The attribute that says on which day of the month windows begin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "attribute: billing_day"))]
struct AnchorAttribute {
    /// The attribute, of 1 to 31. Clients must not be able to choose it.
    #[schemars(extend("format" = "attribute"))]
    attribute: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "Excess", rename_all = "lowercase")]
enum ExcessChoice {
    /// Deny it and charge nothing.
    Refuse,
    /// Admit it while anything remains, and charge all of it.
    Charge,
    /// Deny it and still charge it.
    Count,
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "Unsettled", rename_all = "lowercase")]
enum UnsettledChoice {
    /// Charge it in full.
    Charge,
    /// Drop it.
    Forget,
}

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "OnMissing", rename_all = "kebab-case")]
enum OnMissingChoice {
    /// Do not limit it by this policy.
    Skip,
    /// Count all such requests as one.
    OneKey,
    /// Deny it.
    Deny,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
struct OnMissingValue(#[serde(with = "OnMissingChoice")] OnMissing);

#[derive(Debug, Deserialize, JsonSchema)]
struct UnsettledValue(#[serde(with = "UnsettledChoice")] Unsettled);

#[derive(Deserialize, JsonSchema)]
#[serde(remote = "OnStoreError", rename_all = "lowercase")]
enum OnStoreErrorChoice {
    /// Count in this process's memory.
    Local,
    /// Admit everything.
    Allow,
    /// Deny everything.
    Deny,
}

/// A quota in one text, or what differs from the policy's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Candidate {
    Scalar(Parsed<Quota>),
    Map(QuotaSpec),
}

/// Whether a policy denies requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Deny requests over the limit.
    Enforce,
    /// Report what would be denied, and deny nothing.
    Shadow,
}

/// How a policy's keys are shown in the log, events, top keys and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeysShown {
    /// In full.
    #[default]
    Plain,
    /// The first one or two characters of each value, and a mark that tells keys apart.
    Masked,
    /// A hash.
    Hashed,
}

impl Mode {
    /// The mode of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        if policy.options().enforced { Self::Enforce } else { Self::Shadow }
    }
}

impl PolicySpec {
    /// Builds the policy. Mistakes are reported and replaced by defaults, so that the rest is
    /// validated as well.
    pub(crate) fn build(self, section: &Section<'_>, addresses: &[String]) -> Built {
        let mut spec = self.quota;
        let tiers = match self.limit {
            Some(Limit::ByAttribute(tiers)) => {
                spec.limit = Some(tiers.default);
                Some(tiers)
            }
            Some(Limit::Number(limit)) => {
                spec.limit = Some(limit);
                None
            }
            None => None,
        };
        let anchor_attribute = match self.anchor {
            Some(Anchor::Attribute(AnchorAttribute { attribute })) => Some(attribute),
            Some(Anchor::Day(day)) => {
                spec.anchor = Some(day);
                None
            }
            None => None,
        };
        let quota = spec.build(section);
        let name = &self.name;
        let scope = Scope { attributes: self.scope.0, addresses };
        let policy = Policy::new(name, quota.unwrap_or(Quota::per_minute(1)));
        let mut policy = policy.expect("the name was checked").with_scope(scope.attributes.clone());
        for (attribute, folds) in self.fold {
            if scope.is_address(&attribute) {
                let why = "is an address, which has one spelling already; leave it out";
                section.child("fold").invalid(&attribute, why);
            }
            let fold = folds.0.iter().fold(Fold::NONE, |all, Parsed(one)| all.and(*one));
            policy = policy.with_fold(attribute, fold);
        }
        if let Some(OnMissingValue(then)) = self.on_missing {
            if scope.attributes.is_empty() && !section.has_rejected(&["scope"]) {
                let why = "the policy has no scope, so nothing is missing; leave it out, or write for example \
                           `scope: [user]`";
                section.invalid("on_missing", why);
            }
            policy = policy.with_on_missing(then);
        }
        if let Some(LimitByAttribute { by, values, .. }) = tiers {
            if scope.is_address(&by) {
                let why = "is an address, and limits are for words; write for example `by: plan`";
                section.child("limit").invalid("by", why);
            }
            let tier = |(value, limit)| Some((value, QuotaSpec { limit: Some(limit), ..spec }.quota().ok()?));
            policy = policy.with_tiers(by, values.into_iter().filter_map(tier));
        }
        if let Some(attribute) = anchor_attribute {
            if quota
                .is_some_and(|quota| quota.calendar_window().is_none_or(|window| window.anchor().is_none()))
            {
                let why = "only windows of months have an anchor; write for example `window: month`, or leave it out";
                section.invalid("anchor", why);
            }
            policy = policy.with_anchor_attribute(attribute);
        }
        for (attribute, condition) in condition::matches(&self.when, &scope, section) {
            policy = policy.with_condition(attribute, condition);
        }
        if self.mode == Mode::Shadow {
            policy = policy.with_enforced(false);
        }
        policy = policy.with_excess(self.excess).with_on_store_error(self.on_store_error);
        policy = policy.with_notify(self.notify.iter().flat_map(|list| &list.0).map(|percent| percent.0.0));
        let is_in_flight = quota.is_some_and(|quota| quota.algorithm() == Algorithm::InFlight);
        let default = if is_in_flight { Counts::Requests } else { Counts::Cost };
        policy = policy.with_counts(match self.counts {
            None => default,
            Some(CountsValue::What(counts)) => counts.0,
            Some(CountsValue::Weights(weights)) => weights.read(section),
        });
        let counts_requests = policy.options().counts == Counts::Requests;
        let is_weighted = matches!(policy.options().counts, Counts::Weighted(_));
        let has_address = scope.attributes.iter().any(|attribute| scope.is_address(attribute));
        let is_read = |key: &str| section.has(key) && !section.has_rejected(&[key]);
        if let Some(UnsettledValue(unsettled)) = self.unsettled {
            policy = policy.with_unsettled(unsettled);
        }
        if let Some(Parsed(Unit(name))) = &self.unit {
            policy = policy.with_unit(name);
        }
        if let Some(Parsed(cost)) = self.estimate {
            policy = policy.with_estimate(cost);
            policy = if self.learn_estimate { policy.with_learned_estimate() } else { policy };
        }
        if let Some(bits) = self.ipv6_prefix.filter(|_| has_address) {
            policy = policy.with_ipv6_prefix(Ipv6Prefix::new(bits).expect("the range was checked"));
        }
        let is_other_unit = self.unit.is_some_and(|Parsed(Unit(name))| name != CostUnit::Requests.name());
        let estimate = self.estimate.map(|estimate| estimate.0);
        let has_decimals = estimate.is_some_and(|estimate| estimate != estimate.floor().into());
        for (is_wrong, key, why) in [
            (
                is_in_flight && is_read("excess"),
                "excess",
                "conflicts with in_flight; what exceeds `in_flight` is denied, so leave it out",
            ),
            (
                is_in_flight && is_read("unsettled"),
                "unsettled",
                "conflicts with in_flight; what is in flight is released when its lease ends, so leave it out",
            ),
            (
                counts_requests && is_other_unit,
                "unit",
                "each request counts as 1, which is not a number of tokens; write `unit: requests`, or for example \
                 `counts: cost`",
            ),
            (
                has_decimals && !is_weighted,
                "estimate",
                "has decimals, which only weights count; write a whole number, or for example \
                 `counts: {output: 0.01}`",
            ),
            (
                estimate == Some(Amount::default()),
                "estimate",
                "`0` is nothing to hold; write for example `estimate: 2000`",
            ),
            (
                counts_requests && self.estimate.is_some(),
                "estimate",
                "each request counts as 1, which is known; leave it out, or write for example `counts: cost`",
            ),
            (
                self.learn_estimate && self.estimate.is_none(),
                "learn_estimate",
                "`estimate` is missing, which is held until enough costs are known; write for example \
                 `estimate: 2000`",
            ),
            (
                self.ipv6_prefix.is_some() && !has_address && !section.has_rejected(&["scope"]),
                "ipv6_prefix",
                "the scope has no address; leave it out, or write for example `scope: [ip]`",
            ),
        ] {
            if is_wrong {
                section.invalid(key, why);
            }
        }
        // The overrides of an invalid policy are validated without their quotas.
        let base = quota.map(|_| spec);
        if let Some(overrides) = &self.overrides {
            for (key, quota) in overrides::overrides(overrides, base.as_ref(), &scope, section) {
                policy = match quota {
                    Some(quota) => policy.with_override(key, quota),
                    None => policy.with_unlimited(key),
                };
            }
        }
        if let Err(error) = PolicySet::new([policy.clone()]) {
            section.report("overrides", error);
        }
        let candidate = self.candidate.as_ref().and_then(|candidate| {
            let (spec, section) = match candidate {
                Candidate::Scalar(quota) => (QuotaSpec::text(quota.0), section.clone()),
                Candidate::Map(spec) => (*spec, section.child("candidate")),
            };
            let candidate = spec.over(base.as_ref()?).build(&section)?;
            if (candidate.algorithm() == Algorithm::InFlight) != is_in_flight {
                let why = "a limit on what is in flight and a rate cannot be compared; write a policy of its own with \
                           `mode: shadow`";
                section.invalid("in_flight", why);
            }
            Some(candidate)
        });
        check_name(name, self.candidate.is_some(), section);
        let must_not = if !policy.options().enforced {
            Some(
                "a policy in shadow denies nobody, so it blocks nobody; leave it out, or write `mode: enforce`",
            )
        } else if policy.scope().is_empty() && !section.has_rejected(&["scope"]) {
            Some(
                "all requests share one key, so one client would block everybody; write for example `scope: [ip]`",
            )
        } else {
            None
        };
        let escalation = self.escalate.map(|escalate| escalate.build(section, must_not));
        let fold_of = |attribute: &str| {
            let known = policy.options().folds.iter().find(|(known, _)| known == attribute);
            known.map_or(Fold::NONE, |(_, fold)| *fold)
        };
        let used: Vec<_> = policy.attributes().collect();
        let warnings = unlikely::of_policy(section, &scope, &fold_of, &used);
        Built { policy, candidate, escalation, warnings }
    }
}

impl Text for Fold {
    const FORM: Form = Form::of::<Self>("fold", "`case` or `slash`").pattern("^(case|slash)$");

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(String::new)
    }
}

/// A share of a limit, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Percent(u8);

impl Text for Percent {
    const FORM: Form = Form::of::<Self>("percent", "1% to 100%, for example `80%`").pattern("^[0-9]{1,3}%$");

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|one| one.is_ascii_digit()));
        let percent = number.and_then(|digits| digits.parse().ok()).filter(|one| (1..=100).contains(one));
        percent.map(Self).ok_or_else(String::new)
    }
}

/// Reports a name that is reserved: for RESP commands, or for candidates, whose names are their
/// policies' with an ending.
fn check_name(name: &str, has_candidate: bool, section: &Section<'_>) {
    const MAX_NAME: usize = Policy::MAX_NAME - CANDIDATE.len();
    let invalid = |why: String| section.report("name", format_args!("invalid name `{name}`: {why}"));
    if is_inline(name) {
        invalid(TAKEN.to_owned());
    }
    if candidate_of(name).is_some() {
        invalid(format!("must not end in `{CANDIDATE}`, which is for candidates; choose another"));
    }
    if has_candidate && name.len() > MAX_NAME {
        invalid(format!("must have at most {MAX_NAME} characters with a candidate, not {}", name.len()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::{Algorithm, CostUnit, Counts, Excess, reserve::Unsettled};

    use crate::policies::Policies;
    use crate::policies::tests::policy;

    /// The two forms must never come to mean two things.
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

    /// What a reservation holds, and what is charged when it expires, is money for users of language models.
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

    /// A share that is read as another one tells customers too late.
    #[test]
    fn shares_to_be_told_of_are_in_percent() {
        assert_eq!(policy("quota: 10/s").options().notify.as_ref(), [0u8; 0]);
        assert_eq!(policy("quota: 10/s, notify: [100%, 80%]").options().notify.as_ref(), [80, 100]);
        assert_eq!(policy("quota: 10/s, notify: 5%").options().notify.as_ref(), [5]);
        for (wrong, shown) in [("0%", "0%"), ("101%", "101%"), ("80", "80"), ("+8%", "+8%"), ("8.5%", "8.5%")]
        {
            let text = format!("policies: [{{name: p, quota: 1/1s, notify: ['{wrong}']}}]");
            assert_eq!(
                Policies::parse(&text, "f").unwrap_err().to_string(),
                format!("f:1: policy `p`: invalid notify `{shown}`: must be 1% to 100%, for example `80%`")
            );
        }
    }

    /// Client libraries show and wait by the fields of a unit, so it must be the right one.
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

    /// What is tried must be what was written, or the numbers that it shows are about something
    /// else.
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
