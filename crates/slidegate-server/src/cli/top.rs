//! `slidegate top`: the keys with the most usage or denials on a running server.
//!
//! On a terminal the table refreshes until interrupted. Otherwise it is printed once, for pipes.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use ureq::http::Method;

use super::client;
use super::failure::{Failure, fail};
use super::output;
use super::values::{keys, milliseconds};

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Show only keys of this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Show only this instance, by name or id, instead of all that share the store
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Sort order
    #[arg(long, value_enum, default_value_t = TopBy::Used)]
    by: TopBy,
    /// Maximum number of keys
    #[arg(long, value_name = "N", default_value = "20", value_parser = keys)]
    limit: u16,
    /// Refresh interval, in milliseconds
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    every: Duration,
    /// Print once, also on a terminal
    #[arg(long)]
    once: bool,
    /// Print the server's JSON once
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum TopBy {
    /// Cost charged
    Used,
    /// Denials
    Denied,
}

/// Maximum characters of a key in the table.
const KEY_WIDTH: usize = 60;
/// Clears the terminal and moves the cursor to the upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Deserialize)]
struct TopKeys {
    error_bound: u64,
    sampled: bool,
    period_s: u64,
    /// Number of instances summed.
    instances: u64,
    fleet_error: Option<String>,
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    policy: String,
    key: String,
    count: u64,
    at_most_over: u64,
    #[serde(default)]
    held: u64,
    last_at: String,
}

pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    let client = args.server.client()?;
    let refreshes = !args.once && !args.json && std::io::stdout().is_terminal();
    loop {
        let text = fetch(&client, args)?;
        let output = if args.json {
            output::printable(&text).into_owned()
        } else {
            let top: TopKeys = serde_json::from_str(&text).map_err(|_| {
                let url = client.url("");
                Failure(format!("{url} returned an unexpected format; check that the server and this command have the same version"))
            })?;
            table(&top, args)
        };
        let output = if refreshes { format!("{CLEAR}{output}") } else { output };
        let mut out = std::io::stdout().lock();
        // The reader may have closed the pipe.
        if writeln!(out, "{output}").and_then(|()| out.flush()).is_err() || !refreshes {
            return Ok(());
        }
        std::thread::sleep(args.every);
    }
}

fn fetch(client: &client::Client, args: &TopArgs) -> Result<String, Failure> {
    let by = match args.by {
        TopBy::Used => "used",
        TopBy::Denied => "denied",
    };
    let parameter = |name: &str, value: &Option<String>| {
        value.as_deref().map_or_else(String::new, |value| format!("&{name}={}", client::segment(value)))
    };
    let (policy, instance) = (parameter("policy", &args.policy), parameter("instance", &args.instance));
    let path = format!("/v1/top?by={by}&limit={}{policy}{instance}", args.limit);
    let (status, text) = client.send(Method::GET, &path, None)?;
    if status.is_success() {
        return Ok(text);
    }
    let problem = serde_json::from_str(&text).unwrap_or_default();
    fail(format!("{} returned {status}: {}", client.url("/v1/top"), client::detail(&problem)))
}

fn table(top: &TopKeys, args: &TopArgs) -> String {
    let (what, count) = match args.by {
        TopBy::Used => ("usage", "cost"),
        TopBy::Denied => ("denials", "denials"),
    };
    let of = args.policy.as_ref().map_or_else(String::new, |policy| format!(" of {policy}"));
    let (from, to) = (top.period_s / 60, 2 * top.period_s / 60);
    let mut table = format!("Top keys{of} by {what} in the last {from} to {to} minutes");
    if let Some(instance) = &args.instance {
        table += &format!(" on {}", printable(instance));
    } else if top.instances > 1 {
        table += &format!(" on {} instances", top.instances);
    }
    if let Some(error) = &top.fleet_error {
        table += &format!("; the other instances are unknown: {}", printable(error));
    }
    if top.sampled {
        table += "; estimated from a sample";
    }
    if top.error_bound > 0 {
        table += &format!("; keys not listed have at most {}", top.error_bound);
    }
    if top.keys.is_empty() {
        return table + "\n\nno keys yet";
    }
    let policy_width = top.keys.iter().map(|key| key.policy.len()).max().unwrap_or(0).max("policy".len());
    let keys: Vec<_> = top.keys.iter().map(|key| printable(&key.key)).collect();
    let key_width = keys.iter().map(|key| key.chars().count()).max().unwrap_or(0).max("key".len());
    table += &format!(
        "\n\n{count:>12} {:>10} {:>12}  {:<policy_width$}  {:<key_width$}  last",
        "max error", "held now", "policy", "key"
    );
    for (one, key) in top.keys.iter().zip(&keys) {
        let Key { policy, count, at_most_over, held, last_at, .. } = one;
        table += &format!(
            "\n{count:>12} {at_most_over:>10} {held:>12}  {policy:<policy_width$}  {key:<key_width$}  {}",
            printable(last_at)
        );
    }
    table
}

/// Escapes a key for a terminal: clients choose keys and could inject control sequences.
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

    /// A malicious key must not control the operator's terminal.
    #[test]
    fn keys_cannot_control_the_terminal() {
        assert_eq!(printable("a\"b'\u{1b}[2J\u{202e}"), "a\"b'\\u{1b}[2J\\u{202e}");
        let long = printable(&"\u{eb}".repeat(100));
        assert_eq!((long.chars().count(), long.ends_with("...")), (KEY_WIDTH, true));
    }
}
