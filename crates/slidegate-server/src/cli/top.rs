//! `slidegate top`: who uses most and who is denied most, on a running server.
//!
//! On a terminal the table is drawn again in place until it is interrupted. Elsewhere it is written once, so that it can
//! be piped.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use serde::Deserialize;

use super::failure::Failure;
use super::values::{keys, milliseconds};
use super::{client, output};
use clap::{Args, ValueEnum};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Only the keys of this policy.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// What keys are ordered by.
    #[arg(long, value_enum, default_value_t = TopBy::Used)]
    by: TopBy,
    /// Most keys to show.
    #[arg(long, value_name = "N", default_value = "20", value_parser = keys)]
    limit: u16,
    /// Between two looks, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    every: Duration,
    /// Look once, also on a terminal.
    #[arg(long)]
    once: bool,
    /// Print the server's JSON once, instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
    /// The token itself, which the list of processes shows to everybody on this machine: use `--token-file`.
    #[arg(long, value_name = "TOKEN", hide = true)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum TopBy {
    /// Cost that was charged.
    Used,
    /// Denials.
    Denied,
}

/// Longest answer: 1000 keys of 256 bytes, each of which JSON may write as six, and numbers beside them.
const MAX_ANSWER: u64 = 4 << 20;
/// Longest key in the table, in characters, unless the output is for programs.
const KEY_WIDTH: usize = 60;
/// Clears the terminal and goes to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Deserialize)]
struct Tops {
    error_bound: u64,
    sampled: bool,
    period_s: u64,
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    policy: String,
    key: String,
    count: u64,
    at_most_over: u64,
    last_at: String,
}

pub(super) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let agent = args.server.agent()?;
    let authorization = match &args.token {
        Some(token) => {
            output::print_error(
                "warning: every user of this machine can read --token in the list of processes; set SLIDEGATE_TOKEN or \
                 give --token-file",
            );
            Some(format!("Bearer {}", token.trim()))
        }
        None => args.server.authorization()?,
    };
    let again = !args.once && !args.json && std::io::stdout().is_terminal();
    loop {
        let text = ask(&agent, args, authorization.as_deref())?;
        let shown = if args.json {
            text
        } else {
            let tops: Tops = serde_json::from_str(&text).map_err(|_| {
                let url = args.server.url("");
                Failure(format!("{url} answered without a top; is it slidegate of this version?"))
            })?;
            table(&tops, args)
        };
        let shown = if again { format!("{CLEAR}{shown}") } else { shown };
        let mut out = std::io::stdout().lock();
        // Whoever reads may have seen enough.
        if writeln!(out, "{shown}").and_then(|()| out.flush()).is_err() || !again {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(args.every);
    }
}

fn ask(agent: &ureq::Agent, args: &TopArgs, authorization: Option<&str>) -> Result<String, Failure> {
    let by = name_of(args.by);
    let url = args.server.url("/v1/top");
    let mut request = agent.get(&url).query("by", by).query("limit", args.limit.to_string());
    if let Some(policy) = &args.policy {
        request = request.query("policy", policy);
    }
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    let unreachable = |error: ureq::Error| {
        Failure(format!("{url} did not answer: {error}; is `slidegate serve` running there? see --url"))
    };
    let mut answer = request.call().map_err(unreachable)?;
    let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string().map_err(unreachable)?;
    if answer.status().is_success() {
        return Ok(text);
    }
    let problem: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or("no reason given");
    Err(Failure(format!("{url} answered {}: {detail}", answer.status())))
}

fn name_of(by: TopBy) -> &'static str {
    match by {
        TopBy::Used => "used",
        TopBy::Denied => "denied",
    }
}

fn table(tops: &Tops, args: &TopArgs) -> String {
    let (what, count) = match args.by {
        TopBy::Used => ("use most", "cost"),
        TopBy::Denied => ("are denied most", "denials"),
    };
    let of = args.policy.as_ref().map_or_else(String::new, |policy| format!(" of {policy}"));
    let (from, to) = (tops.period_s / 60, 2 * tops.period_s / 60);
    let mut table = format!("Keys{of} that {what}, in the last {from} to {to} minutes");
    let write = "text takes text";
    if tops.sampled {
        write!(table, "; estimated from a sample").expect(write);
    }
    if tops.error_bound > 0 {
        write!(table, "; keys that are missing have {} at most", tops.error_bound).expect(write);
    }
    if tops.keys.is_empty() {
        write!(table, "\n\nnone yet").expect(write);
        return table;
    }
    let policy_width = tops.keys.iter().map(|key| key.policy.len()).max().unwrap_or(0).max("policy".len());
    let keys: Vec<_> = tops.keys.iter().map(|key| printable(&key.key)).collect();
    let key_width = keys.iter().map(|key| key.chars().count()).max().unwrap_or(0).max("key".len());
    write!(
        table,
        "\n\n{count:>12} {:>10}  {:<policy_width$}  {:<key_width$}  last",
        "at most -", "policy", "key"
    )
    .expect(write);
    for (one, key) in tops.keys.iter().zip(&keys) {
        let Key { policy, count, at_most_over, last_at, .. } = one;
        write!(
            table,
            "\n{count:>12} {at_most_over:>10}  {policy:<policy_width$}  {key:<key_width$}  {}",
            printable(last_at)
        )
        .expect(write);
    }
    table
}

/// A key on one line of a terminal: clients choose keys, and must not steer one.
fn printable(text: &str) -> String {
    let escaped: String = text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
    if escaped.chars().count() <= KEY_WIDTH {
        return escaped;
    }
    escaped.chars().take(KEY_WIDTH - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key may be chosen to clear the screen of who looks at it.
    #[test]
    fn keys_cannot_steer_a_terminal() {
        assert_eq!(printable("a\"b'\u{1b}[2J\u{202e}"), "a\"b'\\u{1b}[2J\\u{202e}");
        let long = printable(&"\u{eb}".repeat(100));
        assert_eq!((long.chars().count(), long.ends_with("...")), (KEY_WIDTH, true));
    }
}
