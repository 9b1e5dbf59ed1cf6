//! Inspects and changes one key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request as HttpRequest, StatusCode, Uri};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Number, json};
use slidegate::clock::{Timestamp, parse_window};
use slidegate::internal::holder_of;
use slidegate::{Algorithm, Amount, Counts, DecisionSource, Policy, PolicySet, Quota, Request, verb::Verb};
use slidegate_config::names::{self, candidate_of};
use slidegate_config::policy::UNLIMITED;
use slidegate_http::headers::millis_ceil;

use super::apply::unknown;
use super::key_state::{KeyBlock, KeyDone, KeyOverride, KeyState, ShownKey, ShownUsage};
use super::reply::{InPath, body};
use crate::access::Operator;
use crate::audit;
use crate::caller::Protocol;
use crate::clock::{at_text, now_ms};
use crate::config::quota_text;
use crate::control::changes::{ActionRecord, Document, KeyChange, KeyKind, KeyTerms};
use crate::control::state::{Admin, AdminState};
use crate::limits::MAX_COST;
use crate::record::{self, Filter};
use crate::wire::key_text::{KeyText, OF_MISSING};
use crate::wire::problem::{self, Problem};
use crate::wire::query;
use crate::wire::request::UNKNOWN;

/// Maximum denials in a response.
const MAX_DENIALS: usize = 20;
/// Maximum duration of a block or override. Permanent ones belong in the config file.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyAction {
    /// Of `refund` and `penalize`: more than 0; with at most six decimals if the policy weighs costs.
    #[schemars(with = "Option<f64>", range(max = MAX_COST), extend("default" = 1, "exclusiveMinimum" = 0))]
    cost: Option<Number>,
    /// How long a block or an override lasts, 1 ms to 366 days, for example `10m`.
    r#for: Option<String>,
    /// Of `override`: a quota such as `1000/1m`, a limit, or `unlimited`.
    quota: Option<String>,
    /// Checks the request and changes nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A valid action.
enum Wanted {
    Reset,
    Charge(Verb, Amount),
    /// A change, and its end.
    Set(KeyKind, u64),
    Clear(KeyKind),
}

/// A key of an active policy.
struct KeyTarget {
    policies: Arc<PolicySet>,
    policy: String,
    text: String,
    /// The redacted text that the caller sent instead of the key; also used in the response.
    shown: Option<String>,
    key: KeyText,
    /// The value of the store's `hash_tag`, if it is not part of the key.
    tag: Option<(String, Vec<u8>)>,
}

impl KeyTarget {
    fn of(admin: &Admin, policy: String, text: &str, uri: &Uri) -> Result<Self, Problem> {
        let policies = admin.app.policies();
        let known = policies.by_name(&policy).ok_or_else(|| unknown(&policies, &policy))?;
        let raw = admin.unredacted(&policy, text)?;
        let shown = raw.as_ref().map(|_| text.to_owned());
        let text = raw.as_deref().unwrap_or(text);
        let key = KeyText::read(known, text, |attribute| admin.app.attributes.is_address(attribute))
            .map_err(|detail| Problem::field("key", detail))?;
        // The canonical text of the key.
        let text = known.key_of(&key.request(known)).map_or_else(String::new, |key| key.to_string());
        let wanted = if let Some(shared) = admin.app.shared() { shared.store().hash_tag() } else { None };
        let wanted = wanted.filter(|tag| !known.scope().iter().any(|attribute| attribute == tag));
        let mut tag = None;
        for (name, value) in query::pairs(uri.query().unwrap_or_default()) {
            let name = String::from_utf8_lossy(&name).into_owned();
            if wanted != Some(name.as_str()) || tag.is_some() {
                let detail = format!("`{}` says nothing about this key; leave it out", name.escape_debug());
                return Err(Problem::field(name, detail));
            }
            if admin.app.attributes.is_address(&name)
                && address(&value).is_none()
                && *value != *UNKNOWN.as_bytes()
            {
                let value = String::from_utf8_lossy(&value).escape_debug().to_string();
                let detail =
                    format!("invalid {name} `{value}`: must be an IP address, for example `192.0.2.7`");
                return Err(Problem::field(name, detail));
            }
            tag = Some((name, value.into_owned()));
        }
        if let (Some(wanted), None) = (wanted, &tag) {
            let detail = format!(
                "keys lie in the store by `{wanted}` (hash_tag), which policy `{policy}` does not count by; say whose, for \
                 example `?{wanted}=acme`"
            );
            return Err(Problem::field(wanted, detail));
        }
        Ok(Self { policies, policy, text, shown, key, tag })
    }

    /// The key's text as the caller may see it.
    fn text_for_caller(&self) -> &str {
        self.shown.as_ref().unwrap_or(&self.text)
    }

    /// A request for this key under its policy only.
    fn request(&self, admin: &Admin) -> Request<'_> {
        let request = self.key.request(self.policy());
        let Some((name, value)) = &self.tag else { return request };
        match address(value) {
            Some(ip) if admin.app.attributes.is_address(name) => request.with(name, ip),
            _ => request.with(name, value.as_slice()),
        }
    }

    /// The same under the quota of the key's last charge.
    async fn request_under_last_quota<'r>(&'r self, admin: &Admin) -> Request<'r> {
        admin.app.store().under_last_quota(&self.policies, self.policy(), self.request(admin)).await
    }

    /// Whether an override exempts the key from the limit.
    fn is_unlimited(&self, request: &Request<'_>) -> bool {
        self.policies.exempting(request).next().is_some()
    }

    fn policy(&self) -> &Policy {
        self.policies.by_name(&self.policy).expect("the policy was found in this set")
    }
}

/// Parses an address.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

impl Admin {
    /// The key shown as this redacted text. `None` if the text is not redacted.
    fn unredacted(&self, policy: &str, text: &str) -> Result<Option<Box<str>>, Problem> {
        let observer = self.app.observer();
        let Some(mut keys) = observer.keys_shown_as(policy, text) else { return Ok(None) };
        if keys.is_empty() {
            let tried = self.app.shadows().keys(policy).into_keys();
            keys = tried.filter(|key| observer.shown(policy, key) == text).map(Box::from).collect();
        }
        let text = text.escape_debug();
        match keys.as_slice() {
            [_] => Ok(keys.pop()),
            [] => {
                let detail = format!(
                    "`{text}` is a redacted key of policy `{policy}`, and this instance does not know the key: it \
                     stores the keys of its last {} denials and the top keys of the last minutes; send the key itself",
                    record::EVENTS_KEPT
                );
                Err(Problem::field("key", detail).with_status(StatusCode::NOT_FOUND))
            }
            several => {
                let detail = format!(
                    "{} keys of policy `{policy}` are redacted to `{text}`; send the key itself",
                    several.len()
                );
                Err(Problem::field("key", detail).with_status(StatusCode::CONFLICT))
            }
        }
    }

    /// Everything about one key.
    async fn view(&self, target: &KeyTarget) -> Result<KeyState, Problem> {
        let request = target.request_under_last_quota(self).await;
        let found = self.app.store().inspect(&request).await.map_err(|error| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; its usage is unknown"))
        })?;
        let found = found.into_iter().next().ok_or_else(|| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the key has all attributes and no decision")
        })?;
        let document = self.control.document();
        let now = now_ms();
        let living = |is_block: bool| {
            document.living(now).find(|change| {
                change.policy == target.policy
                    && change.key == target.text
                    && (change.kind == KeyKind::Block) == is_block
            })
        };
        let until = |change: &KeyChange| KeyBlock { until: at_text(change.until_ms), by: change.by.clone() };
        let own = living(false).and_then(|change| match change.kind {
            KeyKind::Override { limit, window_ms, unlimited } => {
                let limit = (!unlimited).then_some(limit);
                Some(KeyOverride { ends: until(change), limit, window_ms })
            }
            KeyKind::Block => None,
        });
        let (policy, key) = (Some(target.policy.clone()), Some(target.text.clone()));
        let filter = Filter { policy, key, is_exact: true, only_denials: true };
        let denials = self.app.observer().events().recent(&filter, MAX_DENIALS);
        let fleet = if found.holds.is_empty() { None } else { self.fleet(None).await.ok().flatten() };
        let lease_of = |id: u64| {
            let mut instances = fleet.iter().flat_map(|fleet| &fleet.instances);
            let holder = instances.find(|one| u64::from(holder_of(&one.id)) == id >> 32)?;
            Some(holder.record.name.clone())
        };
        Ok(KeyState {
            usage: ShownUsage::of(&found, target.policy(), lease_of),
            // Of the policies after the change, if there was one.
            unlimited: self.app.policies().exempting(&request).next().is_some(),
            denials: denials.iter().map(|event| json!(**event)).collect(),
            r#override: own,
            block: living(true).map(until),
        })
    }
}

pub(super) async fn show(
    State(admin): AdminState,
    InPath((policy, key)): InPath<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let target = KeyTarget::of(&admin, policy, &key, &uri)?;
    let state = admin.view(&target).await?;
    Ok(problem::ok(&ShownKey { policy: &target.policy, key: target.text_for_caller(), state }))
}

pub(super) async fn act(
    State(admin): AdminState,
    InPath((policy, key, action)): InPath<(String, String, String)>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let (by, given): (Operator, KeyAction) = body(request).await?;
    let target = KeyTarget::of(&admin, policy, &key, &uri)?;
    let wanted = given.wanted(&action, &target)?;
    if given.dry_run {
        let done = "nothing: this was a dry run of a valid request".to_owned();
        let state = admin.view(&target).await.ok();
        return Ok(problem::ok(&KeyDone {
            policy: &target.policy,
            key: target.text_for_caller(),
            done,
            state,
        }));
    }
    let before = admin.view(&target).await.ok();
    let done = match wanted {
        Wanted::Reset => admin.reset(&target).await?,
        Wanted::Charge(verb, cost) => admin.charge(&target, verb, cost).await?,
        Wanted::Set(kind, until_ms) => admin.set(&target, kind, until_ms, &by).await?,
        Wanted::Clear(like) => admin.clear(&target, &like).await?,
    };
    admin.app.observer().mark_changed();
    // The change is made even if the store cannot be read now.
    let state = admin.view(&target).await.ok();
    let moved = before.zip(state.as_ref()).and_then(|(before, after)| before.usage.moved(&after.usage));
    let words = moved.map_or_else(|| done.clone(), |moved| format!("{done}: {moved}"));
    audit::operator(
        &by.0,
        &action,
        &target.policy,
        &admin.app.observer().shown(&target.policy, &target.text),
        &words,
    );
    admin.note(&target, &by, &action, words).await;
    Ok(problem::ok(&KeyDone { policy: &target.policy, key: target.text_for_caller(), done, state }))
}

impl KeyAction {
    /// The action, if it has the fields that it takes, and these are valid.
    fn wanted(&self, action: &str, target: &KeyTarget) -> Result<Wanted, Problem> {
        let policy = target.policy();
        let takes: &[&str] = match action {
            "refund" | "penalize" => &["cost"],
            "block" => &["for"],
            "override" => &["for", "quota"],
            _ => &[],
        };
        self.expect(action, takes)?;
        Ok(match action {
            "reset" => Wanted::Reset,
            "refund" => Wanted::Charge(Verb::Refund, self.cost(policy)?),
            "penalize" => Wanted::Charge(Verb::Penalize, self.cost(policy)?),
            "block" => Wanted::Set(KeyKind::Block, self.until_ms()?),
            "override" if names::is_inline(policy.name()) => {
                return Err(Problem::new(StatusCode::CONFLICT, names::no_override(policy.name())));
            }
            "override" => Wanted::Set(self.kind(policy)?, self.until_ms()?),
            "unblock" => Wanted::Clear(KeyKind::Block),
            "clear-override" => Wanted::Clear(KeyKind::of(policy.quota())),
            other => {
                let detail = format!(
                    "unknown action `{}`: must be reset, refund, penalize, block, unblock, override or clear-override",
                    other.escape_debug()
                );
                return Err(Problem::new(StatusCode::NOT_FOUND, detail));
            }
        })
    }

    /// Rejects fields that the action does not take.
    fn expect(&self, action: &str, takes: &[&str]) -> Result<(), Problem> {
        let given =
            [("cost", self.cost.is_some()), ("for", self.r#for.is_some()), ("quota", self.quota.is_some())];
        match given.into_iter().find(|(name, is_said)| *is_said && !takes.contains(name)) {
            Some((name, _)) => {
                Err(Problem::field(name, format!("{action} does not take `{name}`; leave it out")))
            }
            None => Ok(()),
        }
    }

    fn cost(&self, policy: &Policy) -> Result<Amount, Problem> {
        let Some(cost) = &self.cost else { return Ok(1.into()) };
        let is_weighted = matches!(policy.options().counts, Counts::Weighted(_));
        // Unlike that of JSON, the text of a float has no exponent.
        let text =
            cost.as_u64().map_or_else(|| cost.as_f64().unwrap_or(0.0).to_string(), |whole| whole.to_string());
        let is_valid = |cost: &Amount| {
            let is_counted = is_weighted || *cost == cost.floor().into();
            is_counted && (1..=MAX_COST).contains(&cost.ceil())
        };
        text.parse().ok().filter(is_valid).ok_or_else(|| {
            let expected = if is_weighted {
                format!("more than 0, at most {MAX_COST}, with at most 6 decimals, for example `0.25`")
            } else {
                format!("a whole number from 1 to {MAX_COST}")
            };
            Problem::field("cost", format!("invalid cost `{text}`: must be {expected}"))
        })
    }

    fn until_ms(&self) -> Result<u64, Problem> {
        const FIX: &str = "give how long it lasts, for example `{\"for\": \"10m\"}`";
        let text =
            self.r#for.as_deref().ok_or_else(|| Problem::field("for", format!("for is missing; {FIX}")))?;
        let span = parse_window(text).map_err(|error| Problem::field("for", format!("for: {error}")))?;
        if span.is_zero() || span > LONGEST {
            let detail =
                format!("invalid for `{}`: must be 1ms to 366d, for example `10m`", text.escape_debug());
            return Err(Problem::field("for", detail));
        }
        Ok(now_ms().saturating_add(millis_ceil(span)))
    }

    fn kind(&self, policy: &Policy) -> Result<KeyKind, Problem> {
        let wrong = |detail: String| Problem::field("quota", detail);
        let text = self.quota.as_deref();
        let text = text
            .ok_or_else(|| wrong("quota is missing; give for example `{\"quota\": \"1000/1m\"}`".into()))?;
        if text == UNLIMITED {
            return Ok(KeyKind::unlimited(policy.quota()));
        }
        let is_in_flight = policy.quota().algorithm() == Algorithm::InFlight;
        let quota: Quota = match text.trim().parse::<u64>() {
            Ok(limit) if is_in_flight => Quota::in_flight(limit, policy.quota().window()),
            Err(_) if is_in_flight => {
                let detail = format!(
                    "invalid quota `{}`: policy `{}` limits what is in flight; give a number, for example `40`",
                    text.escape_debug(),
                    policy.name()
                );
                return Err(wrong(detail));
            }
            // A limit without a window uses the policy's.
            Ok(limit) => Ok(policy.quota().with_limit(limit)),
            Err(_) => text.parse(),
        }
        .map_err(|error| wrong(error.to_string()))?;
        let unit = |quota: &Quota| quota.calendar_window().map(|calendar| calendar.unit());
        if unit(&quota).is_some() && unit(&quota) != unit(policy.quota()) {
            let detail = format!(
                "invalid quota `{}`: policy `{}` has no such calendar window; give a limit, for example `40`",
                text.escape_debug(),
                policy.name()
            );
            return Err(wrong(detail));
        }
        if quota.limit() > MAX_COST {
            return Err(wrong(format!("invalid limit {}: must be at most {MAX_COST}", quota.limit())));
        }
        Ok(KeyKind::of(&quota))
    }
}

impl Admin {
    async fn reset(&self, target: &KeyTarget) -> Result<String, Problem> {
        let existed = self.app.reset(&target.request(self)).await.map_err(|error| {
            let detail = format!("{error}; the key may or may not have been reset; send the request again");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        Ok(if existed { "its usage is forgotten" } else { "it had used nothing" }.to_owned())
    }

    /// Adds what was done to the shared list of changes. If the store is unavailable, only the log has it.
    async fn note(&self, target: &KeyTarget, by: &Operator, action: &str, words: String) {
        let done = ActionRecord {
            at_ms: 0,
            by: by.0.clone(),
            policy: target.policy.clone(),
            key: target.text.clone(),
            action: action.to_owned(),
            words,
        };
        let noted = self.control.change(|document, now| {
            document.note_action(done.clone(), now);
            Ok(())
        });
        if let Err(refusal) = noted.await {
            tracing::warn!(
                error = refusal.detail,
                "an operator's change is only in the log, not in `/v1/changes`"
            );
        }
    }

    async fn charge(&self, target: &KeyTarget, verb: Verb, cost: Amount) -> Result<String, Problem> {
        let request = target.request_under_last_quota(self).await;
        let request = request.with_cost(cost);
        if target.is_unlimited(&request) {
            return Err(Problem::new(StatusCode::CONFLICT, "the key is unlimited, so nothing counts for it"));
        }
        let decisions =
            self.app.call(Protocol::Http).apply(Some(verb), std::slice::from_ref(&request), None).await;
        let moved =
            decisions.iter().next().map(|one| (one.decision().amounts().cost, one.decision().source()));
        if let Some(error) = decisions.error() {
            return Err(Problem::new(StatusCode::CONFLICT, format!("{error}; it was removed a moment ago")));
        }
        let unit = target.policy().said_unit().map_or_else(String::new, |unit| format!(" {unit}"));
        match moved {
            Some((moved, DecisionSource::Store)) if verb == Verb::Refund => {
                Ok(format!("{moved}{unit} was refunded"))
            }
            Some((moved, DecisionSource::Store)) => Ok(format!("{moved}{unit} was charged")),
            _ => {
                let cause =
                    decisions.store_failure().map_or_else(String::new, |failure| format!("{failure}; "));
                let detail = format!("{cause}nothing is sure, so look at the key before you try again");
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
            }
        }
    }

    async fn set(
        &self,
        target: &KeyTarget,
        kind: KeyKind,
        until_ms: u64,
        by: &Operator,
    ) -> Result<String, Problem> {
        let policy = target.policy();
        if candidate_of(&target.policy).is_some() {
            let detail = "a candidate has the blocks and limits of its policy; name that";
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        if kind == KeyKind::Block && !policy.options().enforced {
            let detail = format!(
                "policy `{}` is in shadow and denies nobody, so a block would not either; enforce it first",
                target.policy
            );
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        if target.key.values().is_none() {
            return Err(Problem::new(StatusCode::CONFLICT, OF_MISSING));
        }
        let terms = kind.terms(policy.quota()).map_err(|detail| Problem::field("quota", detail))?;
        let change = KeyChange {
            policy: target.policy.clone(),
            key: target.text.clone(),
            kind,
            until_ms,
            by: by.0.clone(),
            at_ms: 0,
            level: None,
        };
        let edit = |document: &mut Document, now| {
            document.set_key(change.clone(), now)?;
            self.control.active.check(document)
        };
        self.control.change(edit).await?;
        let until = Timestamp::from_micros(until_ms.saturating_mul(1000)).to_rfc3339();
        Ok(match terms {
            KeyTerms::Blocked => format!("it is blocked until {until}"),
            KeyTerms::Quota(quota) => format!("it has {} until {until}", quota_text(&quota)),
            KeyTerms::Unlimited => format!("it is unlimited until {until}"),
        })
    }

    async fn clear(&self, target: &KeyTarget, like: &KeyKind) -> Result<String, Problem> {
        let (policy, key) = (target.policy.as_str(), target.text.as_str());
        let was_there =
            self.control.change(|document, now| Ok(document.clear_key(policy, key, like, now))).await?;
        if *like == KeyKind::Block {
            self.app.observer().escalations.forget(policy, key);
        }
        Ok(match (*like == KeyKind::Block, was_there) {
            (true, true) => "it is blocked no more",
            (true, false) => "it was not blocked",
            (false, true) => "it has the limit of its policy again",
            (false, false) => "it had no limit of its own for a time",
        }
        .to_owned())
    }
}
