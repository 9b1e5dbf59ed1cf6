//! `slidegate explain`: which policies or limits apply to a request, which do not, and why.
//!
//! It asks the same plan that decisions come from, on an empty store: nothing is counted, and no server is asked.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};
use slidegate::{Gate, Policy, PolicyDecision, Request, format_window};

use super::failure::Failure;
use super::output;
use super::sources::{EnvoyArgs, PolicyArgs};
use super::values::{attribute, rate};
use crate::app::App;
use clap::Args;
use slidegate_envoy::Rate;
use slidegate_envoy::{EnvoyConfig, Explanation, Settings};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    envoy: EnvoyArgs,
    /// The domain of the descriptors, with --envoy-config or --envoy-env.
    #[arg(long)]
    domain: Option<String>,
    /// The limit that the descriptors bring along, such as `10/MINUTE`.
    #[arg(long, requires = "domain", value_parser = rate, value_name = "COUNT/UNIT")]
    limit: Option<Rate>,
    /// With a domain: descriptors, such as `path=/login,ip=192.0.2.7`, a comma within a value written `\,`. Without:
    /// attributes, such as `user=alice`.
    #[arg(required = true, value_name = "NAME=VALUE")]
    parts: Vec<String>,
    /// Print JSON instead of words.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let (text, json) = match (args.envoy.settings()?, &args.domain) {
        (Some(settings), Some(domain)) => descriptors(&settings, domain, args)?,
        (None, None) => attributes(args)?,
        (Some(_), None) => {
            return Err(Failure(
                "--domain is missing; give that of the descriptors, for example `--domain edge`".to_owned(),
            ));
        }
        (None, Some(domain)) => {
            return Err(Failure(format!(
                "--domain `{domain}` is of envoyproxy/ratelimit's files; name their folder with --envoy-config"
            )));
        }
    };
    if args.json {
        output::print(format_args!("{json:#}"))?;
    } else {
        output::print(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Each descriptor under the files of envoyproxy/ratelimit.
fn descriptors(settings: &Settings, domain: &str, args: &ExplainArgs) -> Result<(String, Value), Failure> {
    let envoy = EnvoyConfig::load(&settings.folder, settings.options.clone())
        .map_err(|error| Failure(error.to_string()))?;
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

/// `key=value,key=value`. A backslash takes the next character as it is.
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
    let wrong = |message| Failure(format!("descriptor `{}`: {message}", text.escape_debug()));
    parts.iter().map(|part| attribute(part).map_err(wrong)).collect()
}

/// A request under policies of ours.
fn attributes(args: &ExplainArgs) -> Result<(String, Value), Failure> {
    let mut config = args.policies.config()?;
    // Where usage lives says nothing about what applies, and nothing is decided that could have a span.
    config.shared = None;
    config.observe.traces = None;
    let gate = Gate::new(config.policies.clone());
    let attributes = args.parts.iter().map(|part| {
        attribute(part).map_err(|message| Failure(format!("attribute `{}`: {message}", part.escape_debug())))
    });
    let attributes = attributes.collect::<Result<Vec<_>, _>>()?;
    let app = App::new(config).map_err(Failure)?;
    let borrowed = attributes.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let request = app.attributes.request(borrowed, 1).map_err(|bad| Failure(bad.detail))?;
    let decisions = gate.peek(&request);
    let policies = gate.policies();
    let (mut text, mut told_json) = (Vec::new(), Vec::new());
    for (at, policy) in policies.iter().enumerate() {
        let applying = decisions.iter().find(|decision| decision.position() == at);
        let missing = applying.is_none().then(|| why_not(policy, &request));
        text.push(in_words(policy, applying.as_ref(), missing.as_deref().unwrap_or_default()));
        told_json.push(in_json(policy, applying.as_ref(), missing.as_deref().unwrap_or_default()));
    }
    let count = decisions.iter().len();
    text.push(match count {
        0 => "no policy applies, so nothing limits the request".to_owned(),
        1 => "1 policy applies".to_owned(),
        count => format!("{count} policies apply, and the request is charged on all of them or on none"),
    });
    Ok((text.join("\n"), json!({ "policies": told_json })))
}

/// Each condition that does not hold and each attribute of the scope that is missing.
fn why_not(policy: &Policy, request: &Request<'_>) -> Vec<String> {
    let failed = policy.conditions().iter().filter(|(name, condition)| !condition.holds(request.value(name)));
    let failed = failed.map(|(name, condition)| match request.value(name) {
        Some(value) => {
            format!("{name} is `{}`, and the policy is for requests whose {name} {condition}", shown(value))
        }
        None => format!("{name} is not given, and the policy is for requests whose {name} {condition}"),
    });
    let missing = policy.scope_attributes().iter().filter(|name| request.value(name).is_none());
    let missing = missing.map(|name| format!("{name} is not given, and the policy counts by it"));
    failed.chain(missing).collect()
}

fn shown(value: slidegate::Value<'_>) -> String {
    match value {
        slidegate::Value::Address(ip) => ip.to_string(),
        slidegate::Value::Bytes(bytes) => String::from_utf8_lossy(bytes).escape_debug().to_string(),
        other => format!("{other:?}"),
    }
}

fn in_words(policy: &Policy, applying: Option<&PolicyDecision<'_>>, missing: &[String]) -> String {
    let name = policy.name();
    let Some(applying) = applying else { return format!("{name}: does not apply: {}", missing.join("; ")) };
    let quota = applying.quota();
    let mut text = format!("{name}: applies to key `{}`: {quota}", applying.key());
    if quota != policy.quota() {
        let _ = write!(text, ", which is its own; others have {}", policy.quota());
    }
    if !policy.is_enforced() {
        text += "; shadow, so it never denies";
    }
    text
}

fn in_json(policy: &Policy, applying: Option<&PolicyDecision<'_>>, missing: &[String]) -> Value {
    let mut told = json!({
        "policy": policy.name(),
        "applies": applying.is_some(),
        "mode": if policy.is_enforced() { "enforce" } else { "shadow" },
    });
    if let Some(applying) = applying {
        let quota = applying.quota();
        told["key"] = applying.key().to_string().into();
        told["quota"] = json!({
            "limit": quota.limit(),
            "window": format_window(quota.window()),
            "algorithm": quota.algorithm().name(),
            "is_override": quota != policy.quota(),
        });
    } else {
        told["why_not"] = missing.into();
    }
    told
}
