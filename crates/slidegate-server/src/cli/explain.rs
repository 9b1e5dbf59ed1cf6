//! `slidegate explain`: which policies or limits apply to a request, which do not, and why.
//!
//! Uses the planning code of decisions on an empty store. Counts nothing and contacts no server.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};
use slidegate::clock::format_window;
use slidegate::{Algorithm, Counts, Gate, OnMissing, Policy, PolicyDecision, Quota, Request};

use super::failure::{Failure, fail};
use super::output;
use super::sources::{EnvoyArgs, PolicyArgs};
use super::values::{attribute, rate};
use crate::config::{counted_name, quota_text};
use crate::envoy::{EnvoyConfig, Explanation, Rate, Settings};
use crate::wire::request::{Attributes, UNKNOWN, sent_value};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    envoy: EnvoyArgs,
    /// Domain of the descriptors; requires --envoy-config or --envoy-env
    #[arg(long)]
    domain: Option<String>,
    /// Limit override sent with the descriptors, such as `10/MINUTE`
    #[arg(long, requires = "domain", value_parser = rate, value_name = "COUNT/UNIT")]
    limit: Option<Rate>,
    /// Attributes, such as `user=alice`; with --domain, descriptors, such as
    /// `path=/login,ip=192.0.2.7` (write a comma in a value as `\,`)
    #[arg(required = true, value_name = "NAME=VALUE")]
    parts: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let (text, json) = match (args.envoy.settings()?, &args.domain) {
        (Some(settings), Some(domain)) => descriptors(&settings, domain, args)?,
        (None, None) => attributes(args)?,
        (Some(_), None) => {
            return fail(
                "--domain is missing; give the domain of the descriptors, for example `--domain edge`",
            );
        }
        (None, Some(domain)) => {
            return fail(format!(
                "--domain `{domain}` requires envoyproxy/ratelimit files; give their folder with --envoy-config"
            ));
        }
    };
    if args.json {
        output::print(format_args!("{json:#}"))?;
    } else {
        output::print(output::wrap(&text, output::width(), output::INDENT))?;
    }
    Ok(())
}

/// Explains each descriptor under the envoyproxy/ratelimit files.
fn descriptors(settings: &Settings, domain: &str, args: &ExplainArgs) -> Result<(String, Value), Failure> {
    let envoy = EnvoyConfig::load(&settings.folder, settings.options.clone())?;
    let descriptors = args.parts.iter().map(|part| entries(part)).collect::<Result<Vec<_>, _>>()?;
    let borrowed: Vec<Vec<(&str, &str)>> = descriptors
        .iter()
        .map(|entries| entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
        .collect();
    let explanations = envoy.explain(domain, &borrowed, args.limit);
    let mut texts: Vec<_> = explanations.iter().map(ToString::to_string).collect();
    let descriptors: Vec<_> = explanations.iter().map(Explanation::json).collect();
    let warnings = envoy.warnings();
    if !warnings.is_empty() {
        texts.push(warnings.iter().map(|line| format!("warning    {line}")).collect::<Vec<_>>().join("\n"));
    }
    Ok((texts.join("\n\n"), json!({ "descriptors": descriptors, "warnings": warnings })))
}

/// Parses `key=value,key=value`. A backslash escapes the next character.
fn entries(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, parts.last_mut()) {
            (',', _) => parts.push(String::new()),
            ('\\', Some(part)) => part.extend(chars.next()),
            (c, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    let invalid = |message| Failure(format!("invalid descriptor `{}`: {message}", text.escape_debug()));
    parts.iter().map(|part| attribute(part).map_err(invalid)).collect()
}

/// Explains a request under the configured policies.
fn attributes(args: &ExplainArgs) -> Result<(String, Value), Failure> {
    let config = args.policies.config()?;
    let gate = Gate::new(config.policies);
    let known = Attributes { addresses: config.address_attributes };
    let attributes = args.parts.iter().map(|part| {
        attribute(part)
            .map_err(|message| Failure(format!("invalid attribute `{}`: {message}", part.escape_debug())))
    });
    let attributes = attributes.collect::<Result<Vec<_>, _>>()?;
    for (name, value) in &attributes {
        // The service would count it as `unknown`, which is hardly intended here.
        if known.is_address(name) && value != UNKNOWN && value.parse::<IpAddr>().is_err() {
            return Err(Failure(format!(
                "invalid {name} `{}`: must be an IP address, for example `192.0.2.7` or `2001:db8::7`",
                value.escape_debug()
            )));
        }
    }
    let sent = |(name, value): &(String, String)| sent_value(name, value.as_bytes().into()).into_owned();
    let values: Vec<_> = attributes.iter().map(sent).collect();
    let borrowed = attributes.iter().zip(&values).map(|((name, _), value)| (name.as_str(), value.as_slice()));
    let request = known.request(borrowed, 1).map_err(|bad| Failure(bad.detail))?;
    let decisions = gate.peek(&request);
    let policies = gate.policies();
    let (mut text, mut json_list) = (Vec::new(), Vec::new());
    for (at, policy) in policies.iter().enumerate() {
        let applying = decisions.iter().find(|decision| decision.position() == at);
        let is_exempt = policies.exempting(&request).any(|one| one.name() == policy.name());
        let missing = applying.is_none().then(|| {
            if is_exempt {
                vec!["its key is unlimited by an override".to_owned()]
            } else {
                reasons_not_applying(policy, &request)
            }
        });
        let missing = missing.as_deref().unwrap_or_default();
        let chosen = applying.as_ref().map(|applying| (applying, Chosen::of(applying, &request)));
        text.push(as_text(policy, chosen.as_ref(), missing));
        json_list.push(as_json(policy, chosen.as_ref(), missing));
    }
    let count = decisions.iter().len();
    text.push(match count {
        0 => "no policy applies, so the request is not limited".to_owned(),
        1 => "1 policy applies".to_owned(),
        count => format!("{count} policies apply; the request is charged on all of them or none"),
    });
    Ok((text.join("\n"), json!({ "policies": json_list })))
}

/// Each failed condition and each missing attribute of the scope.
fn reasons_not_applying(policy: &Policy, request: &Request<'_>) -> Vec<String> {
    let failed =
        policy.options().conditions.iter().filter(|(name, condition)| !condition.holds(request.value(name)));
    let failed = failed.map(|(name, condition)| match request.value(name) {
        Some(value) => {
            format!("{name} is `{}`, and the policy is for requests whose {name} {condition}", text_of(value))
        }
        None => format!("{name} is not given, and the policy is for requests whose {name} {condition}"),
    });
    let failed: Vec<_> = failed.collect();
    // Otherwise the policy would apply.
    let skipped = if failed.is_empty() { " (on_missing: skip)" } else { "" };
    let missing = policy.scope().iter().filter(|name| request.value(name).is_none());
    let missing = missing.map(|name| format!("{name} is not given, and the policy counts by it{skipped}"));
    failed.into_iter().chain(missing).collect()
}

/// The policy's `on_missing` setting, as written in the config.
fn on_missing(policy: &Policy) -> &'static str {
    match policy.options().on_missing.unwrap_or_default() {
        OnMissing::Skip => "skip",
        OnMissing::OneKey => "one-key",
        OnMissing::Deny => "deny",
    }
}

/// What chose the quota of a request.
struct Chosen<'a> {
    /// The value of the tier's attribute. An override takes precedence.
    tier: Option<&'a str>,
    is_override: bool,
    /// The attribute that says on which day windows begin, and that day. Without a valid one it is the first.
    anchor: Option<(&'a str, Option<u8>)>,
}

impl<'a> Chosen<'a> {
    fn of(applying: &PolicyDecision<'a>, request: &Request<'_>) -> Self {
        let (policy, quota) = (applying.policy(), applying.quota());
        let options = policy.options();
        let own_day = policy.quota().calendar_window().and_then(|calendar| calendar.anchor());
        let attribute = options.anchor_attribute.as_deref();
        let anchored =
            attribute.zip(quota.calendar_window()).filter(|(_, calendar)| calendar.anchor().is_some());
        let anchor = anchored.map(|(attribute, _)| {
            let said = request.value(attribute).and_then(|day| text_of(day).parse().ok());
            (attribute, said.filter(|day| (1..=31).contains(day)))
        });
        // The quotas of a policy have its own anchor.
        let calendar = anchored.zip(own_day).and_then(|((_, calendar), day)| calendar.with_anchor(day).ok());
        let quota = calendar.map_or(*quota, |calendar| Quota::calendar(quota.limit(), calendar));
        let tier =
            options.tiers.as_ref().and_then(|tiers| tiers.of(request)).filter(|(_, tier)| **tier == quota);
        let tier = tier.map(|(value, _)| value);
        Self { tier, is_override: quota != *policy.quota() && tier.is_none(), anchor }
    }
}

fn text_of(value: slidegate::Value<'_>) -> String {
    match value {
        slidegate::Value::Address(ip) => ip.to_string(),
        slidegate::Value::Bytes(bytes) => String::from_utf8_lossy(bytes).escape_debug().to_string(),
    }
}

fn as_text(
    policy: &Policy,
    applying: Option<&(&PolicyDecision<'_>, Chosen<'_>)>,
    missing: &[String],
) -> String {
    let name = policy.name();
    let Some((applying, chosen)) = applying else {
        return format!("{name}: does not apply: {}", missing.join("; "));
    };
    let quota = applying.quota();
    let mut text = format!("{name}: applies to key `{}`: {}", applying.key(), quota_text(quota));
    if let Some(tier) = chosen.tier {
        let attribute = policy.options().tiers.as_ref().map_or("", |tiers| &tiers.attribute);
        let _ =
            write!(text, ", the limit for {attribute} `{tier}`; others have {}", quota_text(policy.quota()));
    } else if chosen.is_override {
        let _ = write!(text, ", an override; other keys have {}", quota_text(policy.quota()));
    }
    if let Some((attribute, day)) = chosen.anchor {
        let _ = match day {
            Some(day) => write!(text, "; the window begins on day {day} because {attribute} says so"),
            None => write!(text, "; the window begins on day 1 because {attribute} has no day of the month"),
        };
    }
    if let Some(attribute) = applying.key().missing() {
        let _ = write!(text, "; {attribute} is not given (on_missing: {})", on_missing(policy));
    }
    match &policy.options().counts {
        Counts::Cost => {}
        Counts::Requests => text += "; each request counts as 1",
        Counts::Named(name) => {
            let _ = write!(text, "; counts the cost `{name}`");
        }
        weighted @ Counts::Weighted(_) => {
            let _ = write!(text, "; counts {}", counted_name(weighted));
        }
    }
    if quota.algorithm() == Algorithm::InFlight {
        text += "; only reservations count, other requests only check";
    }
    if let Some(wait) = policy.options().wait {
        let _ = write!(text, "; requests of proxies wait up to {} for their turn", format_window(wait));
    }
    if !policy.options().enforced {
        text += "; shadow, so it never denies";
    }
    text
}

fn as_json(
    policy: &Policy,
    applying: Option<&(&PolicyDecision<'_>, Chosen<'_>)>,
    missing: &[String],
) -> Value {
    let mut explanation = json!({
        "policy": policy.name(),
        "applies": applying.is_some(),
        "mode": if policy.options().enforced { "enforce" } else { "shadow" },
    });
    if let Some((applying, chosen)) = applying {
        let quota = applying.quota();
        explanation["key"] = applying.key().to_string().into();
        explanation["quota"] = json!({
            "limit": quota.limit(),
            "window": quota.window_text(),
            "algorithm": quota.algorithm().name(),
            "is_override": chosen.is_override,
            "tier": chosen.tier,
            "counted": counted_name(&policy.options().counts),
        });
        if let Some(wait) = policy.options().wait {
            explanation["on_excess"] = format!("wait {}", format_window(wait)).into();
        }
        if let Some((attribute, day)) = chosen.anchor {
            explanation["quota"]["anchor"] = json!({ "attribute": attribute, "day": day.unwrap_or(1) });
        }
    } else {
        explanation["why_not"] = missing.into();
    }
    explanation
}
