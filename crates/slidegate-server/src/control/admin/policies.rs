//! Lists policies, and changes them at run time for all instances.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request as HttpRequest, StatusCode, Uri};
use axum::response::Response;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slidegate::{Algorithm, Amount, Calendar, Policy, PolicySet, Quota};
use slidegate_config::names::{self, CANDIDATE, candidate_of};
use slidegate_config::policy::Mode;
use slidegate_config::quota::QuotaSpec;
use slidegate_config::values::{Parsed, Window};

use super::added;
use super::apply::{Changed, Numbers, in_words, put_in_force, unknown};
use super::reply::{InPath, body, bytes};
use crate::access::Operator;
use crate::clock::at_text;
use crate::config::{counted_name, quota_text};
use crate::control::changes::{Cause, Change, ControlStatus, Counting, Document, Refusal, Terms, What};
use crate::control::fleet::{FleetView, PolicyTotals};
use crate::control::state::{Admin, AdminState};
use crate::wire::json_body;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Policies<'a> {
    /// How many instances the counts are of.
    #[schemars(range(min = 1))]
    instances: usize,
    /// Why the other instances are unknown.
    fleet_error: Option<&'a str>,
    /// Policies with the least checks that an instance did not publish: their counts are of fewer instances.
    policies_left_out: u64,
    policies: Vec<PolicyStatus<'a>>,
}

/// A policy and what it counted.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
struct PolicyStatus<'a> {
    name: &'a str,
    /// The policy in a sentence.
    description: String,
    /// Its conditions.
    when: Vec<String>,
    scope: &'a [String],
    #[serde(flatten)]
    numbers: Numbers,
    /// Limits by the value of an attribute. Requests with another value, or without it, have `limit`.
    tiers: Option<Tiers<'a>>,
    /// What is counted: `cost`, `requests`, or the name of a cost.
    counted: Cow<'a, str>,
    /// What a reservation without a cost holds.
    #[schemars(with = "Option<f64>", range(min = 0))]
    estimate: Option<Amount>,
    /// Whether the estimate is learned from settled costs.
    estimate_learned: bool,
    /// What happens to reserved cost that expires unsettled.
    #[schemars(extend("enum" = ["charge", "forget"]))]
    unsettled: &'static str,
    /// What a unit of cost is, if known, such as `requests`, `output-tokens` or `usd`.
    unit: Option<&'a str>,
    /// Open reservations of this instance: neither settled here nor expired.
    open_reservations: u64,
    /// What these reservations hold.
    held_cost: u64,
    mode: Mode,
    /// Overrides of the configuration.
    overrides: usize,
    /// Keys with a block or an override that was set at run time.
    keys_changed: usize,
    /// `added`: at run time, not configured.
    #[schemars(extend("enum" = ["file", "changed", "added"]))]
    origin: &'static str,
    candidate: Option<Numbers>,
    counts: PolicyCounts,
}

#[derive(Serialize, JsonSchema)]
struct Tiers<'a> {
    /// The attribute.
    by: &'a str,
    limits: BTreeMap<&'a str, u64>,
}

#[derive(Serialize, JsonSchema)]
struct PolicyCounts {
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    #[schemars(with = "f64", range(min = 0))]
    cost_allowed: Amount,
    #[schemars(with = "f64", range(min = 0))]
    cost_denied: Amount,
    near_limit: u64,
}

impl<'a> PolicyStatus<'a> {
    /// A policy of the configuration, without run-time changes of its keys.
    fn of(
        policy: &'a Policy,
        description: String,
        candidate: Option<Numbers>,
        totals: &PolicyTotals,
    ) -> Self {
        let when = policy.options().conditions.iter().map(|(attribute, is)| format!("{attribute} {is}"));
        Self {
            name: policy.name(),
            description,
            when: when.collect(),
            scope: policy.scope(),
            numbers: Numbers::of(policy.quota()),
            tiers: policy.options().tiers.as_ref().map(|tiers| Tiers {
                by: &tiers.attribute,
                limits: tiers.quotas.iter().map(|(value, quota)| (&**value, quota.limit())).collect(),
            }),
            counted: counted_name(&policy.options().counts),
            estimate: policy.estimate(),
            estimate_learned: policy.options().learns_estimate,
            unsettled: policy.unsettled().name(),
            unit: policy.unit_name(),
            open_reservations: totals.open_reservations,
            held_cost: totals.held,
            mode: Mode::of(policy),
            overrides: policy.options().override_count(),
            keys_changed: 0,
            origin: "file",
            candidate,
            counts: PolicyCounts {
                allowed: totals.allowed,
                denied: totals.denied,
                shadow_denied: totals.shadow_denied,
                cost_allowed: totals.cost_allowed,
                cost_denied: totals.cost_denied,
                near_limit: totals.near_limit,
            },
        }
    }
}

pub(super) async fn list(State(admin): AdminState, uri: Uri) -> Result<Response, Problem> {
    let mut query = Parameters::of(&uri)?;
    let instance = query.take("instance");
    query.nothing_else("instance")?;
    let fleet = admin.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    let document = admin.control.document();
    let base = admin.control.active.base();
    let now = crate::clock::now_ms();
    let policies = admin.app.policies();
    let open = admin.app.open_reservations();
    let mut sums = fleet.as_ref().map(FleetView::totals);
    let listed = names::listed(&policies).filter(|policy| candidate_of(policy.name()).is_none());
    let policies = listed.map(|policy| {
        let name = policy.name();
        let totals = match &mut sums {
            Some(sums) => sums.remove(name).unwrap_or_default(),
            None => {
                let open = open.get(name).copied().unwrap_or_default();
                let counts = admin.app.observer().counts(name).unwrap_or_default();
                PolicyTotals::new(name.to_owned(), counts, open)
            }
        };
        let candidate = base.candidate(&document, name).as_ref().map(Numbers::of);
        PolicyStatus {
            keys_changed: document.living(now).filter(|change| change.policy == name).count(),
            origin: admin.origin(&document, name),
            ..PolicyStatus::of(policy, admin.app.describe(policy), candidate, &totals)
        }
    });
    let left_out = fleet.iter().flat_map(|fleet| &fleet.instances).map(|one| one.record.more_policies).max();
    Ok(problem::ok(&Policies {
        policies: policies.collect(),
        instances: fleet.as_ref().map_or(1, |fleet| fleet.instances.len()),
        fleet_error: fleet.as_ref().and_then(|fleet| fleet.error.as_deref()),
        policies_left_out: left_out.unwrap_or(0),
    }))
}

/// Parses a value of the body. Errors name the invalid field: `field`, or one below it.
fn read<T: DeserializeOwned>(field: &str, value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = Some(error.path().to_string()).filter(|path| path != ".");
        let mut detail = json_body::in_plain_words(error.inner());
        if detail.starts_with("unknown field") {
            detail += ", `mode`, `candidate`";
        }
        Problem::field(path.unwrap_or_else(|| field.to_owned()), detail)
    })
}

/// Parses a candidate.
fn candidate_spec(candidate: Value) -> Result<QuotaSpec, Problem> {
    let read = match candidate {
        Value::String(_) => {
            Parsed::deserialize(candidate).map(|quota: Parsed<Quota>| QuotaSpec::text(quota.0))
        }
        keys => QuotaSpec::deserialize(keys),
    };
    read.map_err(|error| Problem::field("candidate", json_body::in_plain_words(&error)))
}

/// A policy's quota with these changes.
fn changed_quota(mut spec: QuotaSpec, current: &Quota) -> Result<Counting, Problem> {
    if let Some(now) = current.calendar_window() {
        if let Some(Window::Calendar(calendar)) = &mut spec.window {
            *calendar = with_borders_of(*calendar, now);
        }
        if let Some(Parsed(quota)) = &mut spec.quota
            && let Some(calendar) = quota.calendar_window()
        {
            *quota = Quota::calendar(quota.limit(), with_borders_of(calendar, now));
        }
    }
    let quota = spec.over(&QuotaSpec::of(current)).quota().map_err(|mut mistakes| {
        let (field, detail) = mistakes.swap_remove(0);
        Problem::field(field, detail)
    })?;
    if (quota.algorithm() == Algorithm::InFlight) != (current.algorithm() == Algorithm::InFlight) {
        let detail = format!(
            "invalid in_flight: the policy counts {}; add a policy of its own for what is in flight",
            quota_text(current)
        );
        return Err(Problem::field("in_flight", detail));
    }
    let counting = Counting::of(&quota);
    counting.quota().map_err(|detail| Problem::field("quota", detail))?;
    Ok(counting)
}

/// A calendar with another's time zone, and its anchor or first day of the week, if any.
fn with_borders_of(calendar: Calendar, other: Calendar) -> Calendar {
    let calendar = calendar.with_time_zone(other.time_zone()).unwrap_or(calendar);
    let anchored = other.anchor().and_then(|day| calendar.with_anchor(day).ok()).unwrap_or(calendar);
    other.week_start().and_then(|day| anchored.with_week_start(day).ok()).unwrap_or(anchored)
}

pub(super) async fn set(
    State(admin): AdminState,
    InPath(name): InPath<String>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let (by, bytes) = bytes(request).await?;
    let mut keys = json_body::members(&bytes)?;
    if added::is_policy(&keys) {
        return added::add(&admin, &by, &name, keys).await;
    }
    // The remaining keys are those of a quota. `null` removes the candidate.
    let mode: Option<Mode> = keys.remove("mode").map(|mode| read("mode", mode)).transpose()?.flatten();
    let candidate = keys.remove("candidate");
    let is_dry_run = keys.remove("dry_run").map_or(Ok(false), |flag| read("dry_run", flag))?;
    let spec: QuotaSpec = read("body", Value::Object(keys))?;
    // Omitted fields keep their current values, including changes made by other instances.
    admin.control.poll().await;
    let policies = admin.app.policies();
    let document = admin.control.document();
    let policy = changeable(&admin, &document, &policies, &name).map_err(|problem| {
        if policies.by_name(&name).is_some() { problem } else { problem.and(added::HOW_TO_ADD) }
    })?;
    let candidate_now = admin.control.active.base().candidate(&document, &name);
    if spec.is_empty() && mode.is_none() && candidate.is_none() {
        let detail = "no field is given; give for example `{\"quota\": \"200/1m\"}`, `mode` or `candidate`";
        return Err(Problem::field("body", detail));
    }
    let added = admin.added(&document, &name).cloned();
    let mut terms = Terms { added, ..Terms::of(policy, candidate_now.as_ref()) };
    terms.quota = changed_quota(spec, policy.quota())?;
    terms.mode = mode.unwrap_or(terms.mode);
    if let Some(candidate) = candidate {
        terms.candidate = match candidate {
            Value::Null => None,
            candidate => Some(changed_quota(candidate_spec(candidate)?, policy.quota())?),
        };
        let most = Policy::MAX_NAME - CANDIDATE.len();
        if name.len() > most && terms.candidate.is_some() {
            let detail =
                format!("the name has {} characters; {most} is the most beside a candidate", name.len());
            return Err(Problem::field("candidate", detail));
        }
    }
    if is_dry_run {
        let done = &in_words(None, Some(&terms));
        return Ok(problem::ok(&Changed { policy: &name, change: None, done }));
    }
    put_in_force(&admin, &by, (&name, &terms), &document, (What::Set, "set")).await
}

pub(super) async fn unset(
    State(admin): AdminState,
    InPath(name): InPath<String>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let (by, Nothing {}): (Operator, Nothing) = body(request).await?;
    let (id, before) = admin
        .control
        .change(|document, now| {
            if let Some(before) = document.policies.get(&name).cloned() {
                return Ok((document.set_policy(&name, None, What::Unset, &by.0, now), before));
            }
            let detail = format!(
                "policy `{}` is as the configuration says; nothing to take back",
                name.escape_debug()
            );
            Err(Refusal::new(Cause::Unknown, detail))
        })
        .await?;
    Ok(admin.changed(&by, "unset", &name, id, &in_words(Some(&before), None)))
}

pub(super) async fn promote(
    State(admin): AdminState,
    InPath(name): InPath<String>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let (by, Nothing {}): (Operator, Nothing) = body(request).await?;
    // Omitted fields keep their current values, including changes made by other instances.
    admin.control.poll().await;
    let policies = admin.app.policies();
    let document = admin.control.document();
    let policy = changeable(&admin, &document, &policies, &name)?;
    let Some(candidate) = admin.control.active.base().candidate(&document, &name) else {
        let detail = format!(
            "policy `{name}` has no candidate; give it one, for example `{{\"candidate\": \"200/1m\"}}`"
        );
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    let added = admin.added(&document, &name).cloned();
    let terms = Terms { quota: Counting::of(&candidate), added, ..Terms::of(policy, None) };
    put_in_force(&admin, &by, (&name, &terms), &document, (What::Promote, "promote")).await
}

pub(super) async fn undo(
    State(admin): AdminState,
    InPath(id): InPath<String>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let (by, Nothing {}): (Operator, Nothing) = body(request).await?;
    let id = match id.as_str() {
        "last" => None,
        number => Some(number.parse().map_err(|_| {
            let detail = format!(
                "invalid change id `{}`: must be the number of a change, or `last`",
                number.escape_debug()
            );
            Problem::field("id", detail)
        })?),
    };
    let edit = |document: &mut Document, now| {
        let change = document.undo(id, &by.0, now)?;
        admin.control.active.check(document)?;
        Ok(change)
    };
    let change = admin.control.change(edit).await?;
    let done = in_words(change.before.as_ref(), change.after.as_ref());
    Ok(admin.changed(&by, "undo", &change.policy, change.id, &done))
}

pub(super) async fn changes(State(admin): AdminState) -> Response {
    let ControlStatus { id, document, .. } = admin.control.status();
    let changes = document.changes.iter().rev().map(|change| {
        let Change { id, at_ms, by, policy, what, before, after } = change;
        let (what, undoes) = match what {
            What::Set => ("set", None),
            What::Unset => ("unset", None),
            What::Promote => ("promote", None),
            What::Undo(id) => ("undo", Some(*id)),
        };
        ChangeEntry {
            id: *id,
            at: at_text(*at_ms),
            by,
            policy,
            what,
            undoes,
            undone_by: document.undone_by(*id),
            before: before.as_ref(),
            after: after.as_ref(),
            words: in_words(before.as_ref(), after.as_ref()),
        }
    });
    let keys = document.actions.iter().rev().map(|done| KeyActionEntry {
        at: at_text(done.at_ms),
        by: &done.by,
        policy: &done.policy,
        key: admin.app.observer().shown(&done.policy, &done.key),
        what: &done.action,
        words: &done.words,
    });
    problem::ok(&Changes { version: id.version, changes: changes.collect(), keys: keys.collect() })
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Changes<'a> {
    /// The version of the active document. Each change increases it.
    version: u64,
    /// Changes of policies, newest first, at most 100.
    changes: Vec<ChangeEntry<'a>>,
    /// What operators did to single keys, newest first, at most 100.
    keys: Vec<KeyActionEntry<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct KeyActionEntry<'a> {
    at: String,
    /// The name of the token of its author.
    by: &'a str,
    policy: &'a str,
    /// Redacted as the policy configures.
    key: String,
    #[schemars(extend("enum" = ["reset", "refund", "penalize", "block", "unblock", "override", "clear-override"]))]
    what: &'a str,
    /// What was done, with usage and limit before and after if they changed.
    words: &'a str,
}

#[derive(Serialize, JsonSchema)]
struct ChangeEntry<'a> {
    id: u64,
    at: String,
    /// The name of the token of its author.
    by: &'a str,
    policy: &'a str,
    #[schemars(extend("enum" = ["set", "unset", "promote", "undo"]))]
    what: &'static str,
    /// The change that it undoes.
    undoes: Option<u64>,
    undone_by: Option<u64>,
    /// The policy before the change. `null`: as configured.
    before: Option<&'a Terms>,
    /// The policy after the change. `null`: as configured.
    after: Option<&'a Terms>,
    /// The change in words.
    words: String,
}

/// An empty body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// The active policy of this name, if it is configured or was added at run time. Policies defined
/// by a protocol cannot be changed here.
fn changeable<'p>(
    admin: &Admin,
    document: &Document,
    policies: &'p PolicySet,
    name: &str,
) -> Result<&'p Policy, Problem> {
    let policy = policies.by_name(name).filter(|policy| candidate_of(policy.name()).is_none());
    let policy = policy.ok_or_else(|| unknown(policies, name))?;
    if admin.control.active.base().policies.by_name(name).is_some() || admin.added(document, name).is_some() {
        return Ok(policy);
    }
    let detail = format!(
        "policy `{name}` is not of the configuration; it is changed where it comes from: in envoyproxy/ratelimit's files, \
         or with each command of the RESP port"
    );
    Err(Problem::new(StatusCode::CONFLICT, detail))
}
