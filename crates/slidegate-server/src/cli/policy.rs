//! `slidegate policy`: limits of a running server, and their changes.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::client::{ClientArgs, Method, segment, window};
use super::failure::Failure;
use super::output;
use crate::config::one_line;

/// Steps of a reset for each line about its progress where there is no terminal: some 100,000 keys.
const STEPS_PER_LINE: u64 = 100;
/// Largest file of one policy, in bytes. A server takes less.
const MAX_FILE: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct PolicyCommands {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Enforce,
    Shadow,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Lists policies as they are in force.
    List,
    /// Changes a policy at once, on all instances, or with a scope adds one. What is not said
    /// stays, and usage is kept.
    Set(Box<SetArgs>),
    /// Puts a policy back to what the configuration says, or takes one away that was added.
    Unset {
        /// The policy's name.
        name: String,
    },
    /// Puts a policy's candidate in its place.
    Promote {
        /// The policy's name.
        name: String,
    },
    /// Forgets what all keys of a policy have used, on all instances, step by step while decisions
    /// go on.
    Reset {
        /// The policy's name.
        name: String,
        /// Do not ask first.
        #[arg(long)]
        yes: bool,
    },
    /// Lists changes, the newest first.
    History,
    /// Undoes a change: the last one that is not undone, unless told.
    Undo {
        /// The change's number.
        #[arg(value_parser = super::values::number::<u64>)]
        id: Option<u64>,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The policy's name.
    name: String,
    /// The quota, such as `200/1m`.
    quota: Option<String>,
    /// How it counts: sliding-log, sliding-window, fixed-window or token-bucket.
    #[arg(long)]
    algorithm: Option<String>,
    /// What a token bucket admits at once.
    #[arg(long, value_parser = super::values::cost)]
    burst: Option<u64>,
    /// Whether it denies.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// A quota to try beside it, on the same traffic; `none` ends one.
    #[arg(long, value_name = "QUOTA")]
    candidate: Option<String>,
    /// Of a policy to be added: the attributes it counts by, such as `user,path`; `*` for one count
    /// of all requests.
    #[arg(long, value_name = "ATTRIBUTES")]
    scope: Option<String>,
    /// Of a policy to be added: a condition, such as `path=/login`. May be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::values::attribute)]
    when: Vec<(String, String)>,
    /// Of a policy to be added: a file with its keys, as the configuration has them, in YAML or
    /// JSON.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl SetArgs {
    /// What is said, the file's keys first.
    fn said(&self) -> Result<Map<String, Value>, Failure> {
        let mut said = self.from.as_deref().map(keys_of).transpose()?.unwrap_or_default();
        let mode = self.mode.map(|mode| if let Mode::Shadow = mode { "shadow" } else { "enforce" });
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
            ("mode", mode.map(Value::from)),
            ("candidate", candidate),
            ("scope", scope),
            ("when", Some(when).filter(|when| !when.is_empty()).map(Value::from)),
        ];
        said.extend(flags.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(said)
    }
}

/// The keys of one policy in a file.
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
        _ => Err(failed(&"this is no map of keys and values")),
    }
}

pub(super) fn run(args: &PolicyCommands) -> Result<ExitCode, Failure> {
    let ask = &args.ask;
    let place = |name: &str| format!("/v1/policies/{}", segment(name));
    let answer = match &args.command {
        PolicyCommand::List => {
            let answer = ask.ask(Method::Get, "/v1/policies", &Value::Null)?;
            ask.print(&answer, |answer| lines(&answer["policies"], policy))?;
            return Ok(ExitCode::SUCCESS);
        }
        PolicyCommand::History => {
            let answer = ask.ask(Method::Get, "/v1/changes", &Value::Null)?;
            ask.print(&answer, |answer| lines(&answer["changes"], change))?;
            return Ok(ExitCode::SUCCESS);
        }
        PolicyCommand::Set(set) => ask.ask(Method::Put, &place(&set.name), &set.said()?.into())?,
        PolicyCommand::Unset { name } => ask.ask(Method::Delete, &place(name), &json!({}))?,
        PolicyCommand::Promote { name } => {
            ask.ask(Method::Post, &format!("{}/promote", place(name)), &json!({}))?
        }
        PolicyCommand::Reset { name, yes } => {
            confirm(name, *yes)?;
            let answer = reset(ask, name)?;
            ask.print(&answer, |answer| format!("{name}: {}", answer["done"].as_str().unwrap_or_default()))?;
            return Ok(ExitCode::SUCCESS);
        }
        PolicyCommand::Undo { id } => {
            let id = id.map_or_else(|| "last".to_owned(), |id| id.to_string());
            ask.ask(Method::Post, &format!("/v1/changes/{id}/undo"), &json!({}))?
        }
    };
    ask.print(&answer, |answer| {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {} (change {})", text("policy"), text("done"), answer["change"])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Asks before every key of a policy is forgotten, unless `yes` was given.
fn confirm(name: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure(format!(
            "this forgets what every key of policy `{name}` has used; give --yes to do it without being asked"
        )));
    }
    output::print_error(format_args!(
        "Forget what every key of policy `{name}` has used? Type yes to go on."
    ));
    let mut said = String::new();
    std::io::stdin()
        .read_line(&mut said)
        .map_err(|error| Failure(format!("cannot read the answer: {error}")))?;
    if said.trim() == "yes" { Ok(()) } else { Err(Failure("nothing was done".to_owned())) }
}

/// Makes step after step until there is none left, and says on standard error how far it is. Gives
/// the last answer.
fn reset(ask: &ClientArgs, name: &str) -> Result<Value, Failure> {
    let path = format!("/v1/policies/{}/reset", segment(name));
    // On a terminal alone, and seldom enough to be read.
    let bar = ProgressBar::no_length();
    let style = "{msg} {wide_bar} {pos} of about {len} keys looked at";
    bar.set_style(ProgressStyle::with_template(style).map_err(|error| Failure(error.to_string()))?);
    let (mut step, mut steps, mut forgotten) = (json!({}), 0u64, 0);
    loop {
        let answer = ask.ask(Method::Post, &path, &step).map_err(|Failure(why)| {
            let before =
                if steps == 0 { String::new() } else { format!("; {forgotten} keys were already forgotten") };
            Failure(format!("{why}{before}"))
        })?;
        steps += 1;
        let number = |name: &str| answer[name].as_u64();
        forgotten = number("forgotten").unwrap_or(0);
        let scanned = number("scanned").unwrap_or(0);
        bar.set_message(format!("{forgotten} forgotten"));
        bar.set_length(number("keys").unwrap_or(scanned));
        bar.set_position(scanned);
        if bar.is_hidden() && steps.is_multiple_of(STEPS_PER_LINE) {
            let line = format_args!("{name}: about {scanned} keys looked at, {forgotten} forgotten");
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
    let mut line = format!(
        "{}: {} per {} ({})",
        text("name"),
        one["limit"],
        window(&one["window_ms"]),
        text("algorithm")
    );
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
        line += &format!(", candidate {} per {}", candidate["limit"], window(&candidate["window_ms"]));
    }
    let counts = &one["counts"];
    line + &format!("; allowed {}, denied {}", counts["allowed"], counts["denied"])
}

fn change(one: &Value) -> String {
    let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let what = match one["undoes"].as_u64() {
        Some(id) => format!("undo of {id}"),
        None => text("what"),
    };
    let undone = one["undone_by"].as_u64().map(|id| format!(" (undone by {id})")).unwrap_or_default();
    format!(
        "{:>4}  {}  {}  {}: {what}: {}{undone}",
        one["id"],
        text("at"),
        text("by"),
        text("policy"),
        text("words")
    )
}
