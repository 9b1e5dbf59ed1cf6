//! `slidegate policy`: lists and changes policies of a running server.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::builder::PossibleValue;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use lined_config::one_line;
use serde_json::{Map, Value, json};
use slidegate::Algorithm;
use ureq::http::Method;

use super::client::{ClientArgs, segment, unit, window};
use super::failure::{Failure, fail};
use super::output;

/// Reset steps per progress line without a terminal: about 100,000 keys.
const STEPS_PER_LINE: u64 = 100;
/// Maximum size of a policy file, in bytes. A server accepts less.
const MAX_FILE: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct PolicyCommands {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// List the active policies, with the counts of all instances that share the store
    List {
        /// Count only this instance, by name or id
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
    },
    /// Change a policy on all instances, or add one with --scope; the rest of it and usage stay
    Set(Box<SetArgs>),
    /// Revert a policy to the config file, or remove one added at run time
    Unset {
        /// Name of the policy
        name: String,
    },
    /// Replace a policy's quota by its candidate
    Promote {
        /// Name of the policy
        name: String,
    },
    /// Clear the usage of all keys of a policy, on all instances, while serving
    Reset {
        /// Name of the policy
        name: String,
        /// Skip the confirmation
        #[arg(long)]
        yes: bool,
    },
    /// List changes, newest first
    History,
    /// Undo a change [default: the last one not yet undone]
    Undo {
        /// Number of the change
        #[arg(value_parser = super::values::number::<u64>)]
        id: Option<u64>,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Name of the policy
    name: String,
    /// Quota, such as `200/1m`
    quota: Option<String>,
    /// Algorithm, by its name in the config file
    #[arg(long)]
    algorithm: Option<String>,
    /// Burst of a token bucket
    #[arg(long, value_parser = super::values::cost)]
    burst: Option<u64>,
    /// Whether the policy denies requests
    #[arg(long, value_parser = [
        PossibleValue::new("enforce").help("Deny requests over the limit"),
        PossibleValue::new("shadow").help("Report what would be denied, and deny nothing"),
    ])]
    mode: Option<String>,
    /// Candidate quota to try on the same traffic; `none` removes it
    #[arg(long, value_name = "QUOTA")]
    candidate: Option<String>,
    /// For a new policy: its scope, such as `user,path`; `*` for one key for all requests
    #[arg(long, value_name = "ATTRIBUTES")]
    scope: Option<String>,
    /// For a new policy: a condition, such as `path=/login`; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::values::attribute)]
    when: Vec<(String, String)>,
    /// For a new policy: a file with its keys as in the config file, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl SetArgs {
    /// The request body: the file's keys, overridden by the options.
    fn body(&self) -> Result<Map<String, Value>, Failure> {
        let mut body = self.from.as_deref().map(keys_of).transpose()?.unwrap_or_default();
        let candidate = self.candidate.as_deref();
        let candidate = candidate.map(|one| if one == "none" { Value::Null } else { one.into() });
        let scope = self.scope.as_deref().map(|scope| match scope {
            "*" => json!([]),
            scope => scope.split(',').map(str::trim).collect(),
        });
        let when: Map<_, _> =
            self.when.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        let flags = [
            ("quota", self.quota.clone().map(Value::from)),
            ("algorithm", self.algorithm.clone().map(Value::from)),
            ("burst", self.burst.map(Value::from)),
            ("mode", self.mode.clone().map(Value::from)),
            ("candidate", candidate),
            ("scope", scope),
            ("when", Some(when).filter(|when| !when.is_empty()).map(Value::from)),
        ];
        body.extend(flags.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(body)
    }
}

/// A policy's keys in a file.
fn keys_of(file: &Path) -> Result<Map<String, Value>, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure(format!(
            "--from {}: {why}; give the keys of one policy, for example `scope: [user]` and `quota: 100/1m`",
            file.display()
        ))
    };
    let mut text = String::new();
    let file = File::open(file).map_err(|error| failed(&error))?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(|error| failed(&error))?;
    let read: Value = serde_saphyr::from_str(&text).map_err(|error| failed(&one_line(&error.to_string())))?;
    match read {
        Value::Object(keys) => Ok(keys),
        _ => Err(failed(&"expected a map of keys and values")),
    }
}

pub(super) fn run(args: &PolicyCommands) -> Result<(), Failure> {
    let client = &args.client;
    let path = |name: &str| format!("/v1/policies/{}", segment(name));
    let answer = match &args.command {
        PolicyCommand::List { instance } => {
            let instance = instance.as_deref().map(|instance| format!("?instance={}", segment(instance)));
            let path = format!("/v1/policies{}", instance.unwrap_or_default());
            let answer = client.send(Method::GET, &path, None)?;
            client.print(&answer, |answer| lines(&answer["policies"], policy))?;
            return Ok(());
        }
        PolicyCommand::History => {
            let answer = client.send(Method::GET, "/v1/changes", None)?;
            client.print(&answer, history)?;
            return Ok(());
        }
        PolicyCommand::Set(set) => client.send(Method::PUT, &path(&set.name), Some(&set.body()?.into()))?,
        PolicyCommand::Unset { name } => client.send(Method::DELETE, &path(name), Some(&json!({})))?,
        PolicyCommand::Promote { name } => {
            client.send(Method::POST, &format!("{}/promote", path(name)), Some(&json!({})))?
        }
        PolicyCommand::Reset { name, yes } => {
            confirm(name, *yes)?;
            let answer = reset(client, name)?;
            client.print(&answer, |answer| {
                format!("{name}: {}", answer["done"].as_str().unwrap_or_default())
            })?;
            return Ok(());
        }
        PolicyCommand::Undo { id } => {
            let id = id.map_or_else(|| "last".to_owned(), |id| id.to_string());
            client.send(Method::POST, &format!("/v1/changes/{id}/undo"), Some(&json!({})))?
        }
    };
    client.print(&answer, |answer| {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {} (change {})", text("policy"), text("done"), answer["change"])
    })
}

/// Asks for confirmation unless `yes` is set.
fn confirm(name: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return fail(format!(
            "this clears the usage of every key of policy `{name}`; give --yes to skip the confirmation"
        ));
    }
    output::print_error(format_args!(
        "Clear the usage of every key of policy `{name}`? Type yes to continue."
    ));
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure(format!("cannot read the answer: {error}")))?;
    if answer.trim() == "yes" { Ok(()) } else { fail("aborted; nothing was changed") }
}

/// Repeats reset steps until done, with progress on standard error. Returns the last response.
fn reset(client: &ClientArgs, name: &str) -> Result<Value, Failure> {
    let path = format!("/v1/policies/{}/reset", segment(name));
    // Drawn only on a terminal.
    let bar = ProgressBar::no_length();
    let style = "{msg} {wide_bar} {pos} of about {len} keys scanned";
    bar.set_style(ProgressStyle::with_template(style)?);
    let (mut step, mut steps, mut cleared) = (json!({}), 0u64, 0);
    loop {
        let answer = client.send(Method::POST, &path, Some(&step)).map_err(|Failure(why)| {
            let before =
                if steps == 0 { String::new() } else { format!("; {cleared} keys were already cleared") };
            Failure(format!("{why}{before}"))
        })?;
        steps += 1;
        let number = |name: &str| answer[name].as_u64();
        cleared = number("forgotten").unwrap_or(0);
        let scanned = number("scanned").unwrap_or(0);
        bar.set_message(format!("{cleared} cleared"));
        bar.set_length(number("keys").unwrap_or(scanned));
        bar.set_position(scanned);
        if bar.is_hidden() && steps.is_multiple_of(STEPS_PER_LINE) {
            let line = format_args!("{name}: about {scanned} keys scanned, {cleared} cleared");
            output::print_error(line);
        }
        if answer["cursor"].is_null() {
            bar.finish_and_clear();
            return Ok(answer);
        }
        step = json!({ "cursor": answer["cursor"] });
    }
}

fn lines(list: &Value, line: impl Fn(&Value) -> String) -> String {
    let lines: Vec<_> = list.as_array().map_or(&[][..], Vec::as_slice).iter().map(line).collect();
    if lines.is_empty() { "none".to_owned() } else { lines.join("\n") }
}

fn policy(one: &Value) -> String {
    let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let is_in_flight = one["algorithm"] == Algorithm::InFlight.name();
    let mut line = if is_in_flight {
        format!("{}: {}{} in flight (lease {})", text("name"), one["limit"], unit(one), window(one))
    } else {
        let window = window(one);
        format!("{}: {}{} per {window} ({})", text("name"), one["limit"], unit(one), text("algorithm"))
    };
    if let Some(limits) = one["tiers"]["limits"].as_object() {
        let limits: Vec<_> = limits.iter().map(|(value, limit)| format!("{value} {limit}")).collect();
        let by = one["tiers"]["by"].as_str().unwrap_or_default();
        line += &format!(", by {by}: {}", limits.join(", "));
    }
    if text("mode") == "shadow" {
        line += ", shadow";
    }
    match text("origin").as_str() {
        "changed" => line += ", changed at run time",
        "added" => line += ", added at run time",
        _ => {}
    }
    if one["candidate"].is_object() {
        let candidate = &one["candidate"];
        line += &format!(", candidate {}", candidate["limit"]);
        if !is_in_flight {
            line += &format!(" per {}", window(candidate));
        }
    }
    let counts = &one["counts"];
    line + &format!("; allowed {}, denied {}", counts["allowed"], counts["denied"])
}

/// Changes of policies and what operators did to keys, newest first.
fn history(answer: &Value) -> String {
    let all = ["changes", "keys"].map(|list| answer[list].as_array().cloned().unwrap_or_default());
    let mut all = all.concat();
    all.sort_by(|one, other| other["at"].as_str().cmp(&one["at"].as_str()));
    lines(&all.into(), change)
}

fn change(one: &Value) -> String {
    let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let what = match one["undoes"].as_u64() {
        Some(id) => format!("undo of {id}"),
        None => text("what"),
    };
    let undone = one["undone_by"].as_u64().map(|id| format!(" (undone by {id})")).unwrap_or_default();
    let id = one["id"].as_u64().map(|id| id.to_string()).unwrap_or_default();
    let key = one["key"].as_str().map(|key| format!(" `{key}`")).unwrap_or_default();
    let (at, by, policy, words) =
        (output::to_seconds(&text("at")), text("by"), text("policy"), text("words"));
    format!("{id:>4}  {at}  {by}  {policy}{key}: {what}: {words}{undone}")
}
