//! `slidegate key`: inspects or changes one key on a running server.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Number, Value, json};
use slidegate::clock::{Timestamp, format_wait};
use slidegate::{Algorithm, Calendar};
use ureq::http::Method;

use super::client::{ClientArgs, amount, segment, unit, wait, window};
use super::failure::Failure;
use super::output::to_seconds;
use super::values;

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: KeyCommand,
}

/// A key of a policy.
#[derive(Debug, Args)]
struct KeyRef {
    /// Name of the policy
    policy: String,
    /// The key as printed in responses, such as `alice` or `alice,/login`; `*` if the policy has no
    /// scope
    key: String,
    /// Value of the store's `hash_tag`, such as `tenant=acme`, if it is not in the policy's scope
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = values::attribute)]
    tag: Option<(String, String)>,
}

#[derive(Debug, Args)]
struct CostArgs {
    #[command(flatten)]
    key: KeyRef,
    /// Cost; with at most six decimals if the policy weighs costs
    #[arg(long, default_value = "1", value_parser = values::amount, allow_hyphen_values = true)]
    cost: Number,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Show its usage and when it expires
    Show(KeyRef),
    /// Clear its usage
    Reset(KeyRef),
    /// Refund cost
    Refund(CostArgs),
    /// Charge cost, even if it exceeds the limit
    Penalize(CostArgs),
    /// Deny all requests for a time
    Block {
        #[command(flatten)]
        key: KeyRef,
        /// Duration, such as `10m`
        #[arg(long = "for", value_name = "SPAN")]
        span: String,
    },
    /// Remove the block
    Unblock(KeyRef),
    /// Give it another limit for a time
    Override {
        #[command(flatten)]
        key: KeyRef,
        /// A quota such as `1000/1m`, a limit in the policy's window, or `unlimited`
        quota: String,
        /// Duration, such as `1h`
        #[arg(long = "for", value_name = "SPAN")]
        span: String,
    },
    /// Remove the override
    Clear(KeyRef),
}

pub(super) fn run(args: &KeyArgs) -> Result<(), Failure> {
    let (key, action, body) = match &args.command {
        KeyCommand::Show(key) => {
            let response = args.client.send(Method::GET, &path(key, ""), None)?;
            args.client.print(&response, describe)?;
            return Ok(());
        }
        KeyCommand::Reset(key) => (key, "reset", json!({})),
        KeyCommand::Refund(CostArgs { key, cost }) => (key, "refund", json!({ "cost": cost })),
        KeyCommand::Penalize(CostArgs { key, cost }) => (key, "penalize", json!({ "cost": cost })),
        KeyCommand::Block { key, span } => (key, "block", json!({ "for": span })),
        KeyCommand::Unblock(key) => (key, "unblock", json!({})),
        KeyCommand::Override { key, quota, span } => {
            (key, "override", json!({ "quota": quota, "for": span }))
        }
        KeyCommand::Clear(key) => (key, "clear-override", json!({})),
    };
    let response = args.client.send(Method::POST, &path(key, &format!("/{action}")), Some(&body))?;
    args.client.print(&response, |response| {
        let text = |name: &str| response[name].as_str().unwrap_or_default().to_owned();
        format!("{}: `{}`: {}", text("policy"), text("key"), text("done"))
    })
}

fn path(key: &KeyRef, action: &str) -> String {
    let tag = key.tag.iter().map(|(name, value)| format!("?{}={}", segment(name), segment(value)));
    let tag: String = tag.collect();
    format!("/v1/keys/{}/{}{action}{tag}", segment(&key.policy), segment(&key.key))
}

/// Maximum charges to list.
const MAX_CHARGES: usize = 20;

fn describe(response: &Value) -> String {
    let text = |name: &str| response[name].as_str().unwrap_or_default().to_owned();
    let is_in_flight = response["algorithm"] == Algorithm::InFlight.name();
    let (limit, window, unit) = (&response["limit"], window(response), unit(response));
    let usage = if is_in_flight {
        format!("{} of {limit}{unit} in flight (lease {window})", amount(&response["held"]))
    } else {
        let plan = response["plan"].as_str().map_or_else(String::new, |plan| format!("plan `{plan}`, "));
        format!(
            "used {} of {limit}{unit} per {window} ({plan}{})",
            amount(&response["used"]),
            text("algorithm")
        )
    };
    let remaining = amount(&response["remaining"]);
    let mut lines = vec![format!("{}: `{}` has {usage}, {remaining} remain", text("policy"), text("key"))];
    if response["unlimited"] == true {
        lines.push("unlimited by an override: its requests are not counted".to_owned());
    }
    lines.extend(reset(response));
    lines.push(match response["retry_after_ms"].as_u64() {
        Some(0) => "a cost of 1 fits now".to_owned(),
        Some(_) => format!("a cost of 1 fits in {}", wait(&response["retry_after_ms"])),
        None => "a cost of 1 never fits".to_owned(),
    });
    for (name, what) in [("block", "blocked"), ("override", "override")] {
        let change = &response[name];
        if let Some(until) = change["until"].as_str() {
            let by = change["by"].as_str().unwrap_or_default();
            lines.push(format!("{what} until {}, by {by}", to_seconds(until)));
        }
    }
    describe_charges(response, &mut lines);
    describe_holds(response, is_in_flight, &mut lines);
    let room = response["room"].as_array().map_or(&[][..], Vec::as_slice);
    // The only step of a fixed window is its end.
    if room.len() > usize::from(is_one_sum(response)) {
        lines.push("if nothing more is charged:".to_owned());
        // Of steps that are shown at the same time, the last.
        for step in room.chunk_by(|one, next| wait(&one["in_ms"]) == wait(&next["in_ms"])) {
            let last = &step[step.len() - 1];
            lines.push(format!("  in {:>11}  {}{unit} used", wait(&last["in_ms"]), amount(&last["used"])));
        }
    }
    lines.join("\n")
}

/// Whether the usage is the sum of a fixed window, so that there is no list of charges.
fn is_one_sum(response: &Value) -> bool {
    response["window_ends"].is_string()
}

/// When the window of the usage ends: `resets on 1 December, 00:00 Europe/Berlin, in 4 d 2 h`.
fn reset(response: &Value) -> Option<String> {
    let time = |name: &str| {
        let time: jiff::Timestamp = response[name].as_str()?.parse().ok()?;
        Some(Timestamp::from_micros(time.as_microsecond().try_into().ok()?))
    };
    // By the server's clock. A key without usage has no charge.
    let since = Duration::from_millis(response["charges"][0]["at_ms_ago"].as_u64()?);
    let (now, end) = (time("window_starts")? + since, time("window_ends")?);
    let calendar =
        response["calendar"].as_str().map_or_else(|| Some(Calendar::day()), |text| text.parse().ok());
    Some(format!("resets on {}, in {}", calendar?.border_text(end, now), format_wait(end - now)))
}

fn describe_charges(response: &Value, lines: &mut Vec<String>) {
    let charges = response["charges"].as_array().filter(|_| !is_one_sum(response));
    let charges = charges.map_or(&[][..], Vec::as_slice);
    if charges.len() > MAX_CHARGES {
        lines.push(format!("the last {MAX_CHARGES} of {} charges:", charges.len()));
    } else if !charges.is_empty() {
        lines.push("charges:".to_owned());
    }
    let unit = unit(response);
    let shown = &charges[charges.len().saturating_sub(MAX_CHARGES)..];
    for together in shown.chunk_by(|one, next| wait(&one["at_ms_ago"]) == wait(&next["at_ms_ago"])) {
        let cost: f64 = together.iter().filter_map(|one| one["cost"].as_f64()).sum();
        let count = if together.len() > 1 { format!(", {} charges", together.len()) } else { String::new() };
        lines.push(format!("  {:>11} ago  {cost}{unit}{count}", wait(&together[0]["at_ms_ago"])));
    }
}

fn describe_holds(response: &Value, is_in_flight: bool, lines: &mut Vec<String>) {
    let holds = response["holds"].as_array().map_or(&[][..], Vec::as_slice);
    if !holds.is_empty() {
        let is_lease = holds.iter().any(|hold| hold["lease_of"].is_string());
        let open = match response["open_holds"].as_u64() {
            Some(1) if is_lease => "1 lease holds".to_owned(),
            Some(1) => "1 open reservation holds".to_owned(),
            Some(count) if is_lease => format!("{count} leases and reservations hold"),
            _ => format!("{} open reservations hold", response["open_holds"]),
        };
        lines.push(format!("{open} {}{}:", amount(&response["held"]), unit(response)));
    }
    for hold in holds.iter().take(MAX_CHARGES) {
        let then = match hold["unsettled"].as_str() {
            _ if is_in_flight => "released then",
            Some("forget") => "dropped then",
            _ => "charged then",
        };
        let (ends_in, held) = (wait(&hold["ends_in_ms"]), amount(&hold["held"]));
        lines.push(match hold["lease_of"].as_str() {
            Some(instance) => format!("  ends in {ends_in:>11}  {held} leased by {instance}"),
            None => {
                let settled = amount(&hold["settled"]);
                format!("  ends in {ends_in:>11}  {held} held, {settled} settled, {then}")
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten lines that say the same hide the one that says something else.
    #[test]
    fn charges_and_steps_of_one_second_are_one_line() {
        let charge = |at: u64, cost: f64| json!({ "at_ms_ago": at, "cost": cost });
        let step = |at: u64, used: u64| json!({ "in_ms": at, "used": used });
        let text = describe(&json!({
            "policy": "p", "key": "k", "algorithm": "sliding-log", "limit": 9, "window_ms": 60_000, "used": 4.5,
            "remaining": 4.5, "retry_after_ms": 0,
            "charges": [charge(9_900, 1.0), charge(9_100, 2.0), charge(9_050, 0.5), charge(7_000, 1.0)],
            "room": [step(50_100, 3), step(50_900, 1), step(53_000, 0)],
        }));
        let (_, lists) = text.split_once("charges:\n").unwrap();
        assert_eq!(
            lists,
            "         10 s ago  3.5, 3 charges\n          7 s ago  1\nif nothing more is charged:\n  in        51 s  1 used\n  in        53 s  0 used"
        );
    }
}
