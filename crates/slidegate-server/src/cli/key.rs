//! `slidegate key`: one key of a running server.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{ClientArgs, Method, segment, span, window};
use super::failure::Failure;
use super::values::cost;

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(subcommand)]
    command: KeyCommand,
}

/// A key of a policy.
#[derive(Debug, Args)]
struct Place {
    /// The policy's name.
    policy: String,
    /// The key as answers print it, such as `alice` or `alice,/login`; `*` where the policy has one for everybody.
    key: String,
    /// Where the store has a `hash_tag` that the policy does not count by: its value, such as `tenant=acme`.
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = super::values::attribute)]
    tag: Option<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Shows what it has used and when that is free again.
    Show(Place),
    /// Forgets what it has used.
    Reset(Place),
    /// Gives cost back.
    Refund {
        #[command(flatten)]
        place: Place,
        /// How much.
        #[arg(long, default_value = "1", value_parser = cost, allow_hyphen_values = true)]
        cost: u64,
    },
    /// Charges cost, whether it fits or not.
    Penalize {
        #[command(flatten)]
        place: Place,
        /// How much.
        #[arg(long, default_value = "1", value_parser = cost, allow_hyphen_values = true)]
        cost: u64,
    },
    /// Lets nothing pass for a time.
    Block {
        #[command(flatten)]
        place: Place,
        /// How long, such as `10m`.
        #[arg(long = "for", value_name = "SPAN")]
        span: String,
    },
    /// Ends a block.
    Unblock(Place),
    /// Gives it another limit for a time.
    Override {
        #[command(flatten)]
        place: Place,
        /// A limit in the policy's window, or a quota such as `1000/1m`.
        quota: String,
        /// How long, such as `1h`.
        #[arg(long = "for", value_name = "SPAN")]
        span: String,
    },
    /// Ends an override.
    Clear(Place),
}

pub(super) fn run(args: &KeyArgs) -> Result<ExitCode, Failure> {
    let (place, action, body) = match &args.command {
        KeyCommand::Show(place) => {
            let answer = args.ask.ask(Method::Get, &path(place, ""), &Value::Null)?;
            args.ask.print(&answer, shown)?;
            return Ok(ExitCode::SUCCESS);
        }
        KeyCommand::Reset(place) => (place, "reset", json!({})),
        KeyCommand::Refund { place, cost } => (place, "refund", json!({ "cost": cost })),
        KeyCommand::Penalize { place, cost } => (place, "penalize", json!({ "cost": cost })),
        KeyCommand::Block { place, span } => (place, "block", json!({ "for": span })),
        KeyCommand::Unblock(place) => (place, "unblock", json!({})),
        KeyCommand::Override { place, quota, span } => {
            (place, "override", json!({ "quota": quota, "for": span }))
        }
        KeyCommand::Clear(place) => (place, "clear-override", json!({})),
    };
    let answer = args.ask.ask(Method::Post, &path(place, &format!("/{action}")), &body)?;
    args.ask.print(&answer, |answer| {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        format!("{}: `{}`: {}", text("policy"), text("key"), text("done"))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn path(place: &Place, action: &str) -> String {
    let tag = place.tag.iter().map(|(name, value)| format!("?{}={}", segment(name), segment(value)));
    let tag: String = tag.collect();
    format!("/v1/keys/{}/{}{action}{tag}", segment(&place.policy), segment(&place.key))
}

/// Most charges that are shown one by one.
const MAX_SHOWN: usize = 20;

fn shown(answer: &Value) -> String {
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!(
        "{}: `{}` has used {} of {} per {} ({}), {} remain",
        text("policy"),
        text("key"),
        answer["used"],
        answer["limit"],
        window(&answer["window_ms"]),
        text("algorithm"),
        answer["remaining"]
    )];
    lines.push(match answer["retry_after_ms"].as_u64() {
        Some(0) => "a cost of 1 fits now".to_owned(),
        Some(_) => format!("a cost of 1 fits in {}", span(&answer["retry_after_ms"])),
        None => "a cost of 1 never fits".to_owned(),
    });
    for (name, what) in [("block", "blocked"), ("override", "has another limit")] {
        let change = &answer[name];
        if let Some(until) = change["until"].as_str() {
            lines.push(format!("{what} until {until}, by {}", change["by"].as_str().unwrap_or_default()));
        }
    }
    let charges = answer["charges"].as_array().map_or(&[][..], Vec::as_slice);
    if charges.len() > MAX_SHOWN {
        lines.push(format!("the last {MAX_SHOWN} of {} charges:", charges.len()));
    } else if !charges.is_empty() {
        lines.push("charges:".to_owned());
    }
    for charge in &charges[charges.len().saturating_sub(MAX_SHOWN)..] {
        lines.push(format!("  {:>10} ago  {}", span(&charge["at_ms_ago"]), charge["cost"]));
    }
    if let Some(room) = answer["room"].as_array().filter(|room| !room.is_empty()) {
        lines.push("if nothing more is charged:".to_owned());
        let line = |one: &Value| format!("  in {:>10}  {} used", span(&one["in_ms"]), one["used"]);
        lines.extend(room.iter().map(line));
    }
    lines.join("\n")
}
