//! `slidegate top`: the keys with the most usage or denials on a running server.
//!
//! On a terminal the table refreshes until interrupted. Otherwise it is printed once, for pipes.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::Number;
use slidegate::clock::format_wait;
use ureq::http::Method;

use super::client;
use super::failure::{Failure, fail};
use super::output::{self, Column, Fit};
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

/// Clears the terminal and moves the cursor to the upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Deserialize)]
struct TopKeys {
    error_bound: Number,
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
    count: Number,
    at_most_over: Number,
    #[serde(default)]
    held: u64,
    last_at: String,
    now: Option<Now>,
}

/// The usage of a key now.
#[derive(Deserialize)]
struct Now {
    limit: u64,
    /// With at most six decimals.
    remaining: f64,
    retry_after_ms: Option<u64>,
    is_blocked: bool,
}

impl Now {
    /// `41 of 100, 41 %`
    #[allow(clippy::cast_precision_loss)] // limits and costs are below 2^53
    fn share(&self) -> String {
        let limit = self.limit as f64;
        let used = ((limit - self.remaining).max(0.0) * 1e6).round() / 1e6;
        // A limit of 0 is always full.
        let percent = if self.limit == 0 { 100.0 } else { (used * 100.0 / limit).floor() };
        format!("{used} of {limit}, {percent} %")
    }

    /// The wait until cost 1 fits.
    fn wait(&self) -> String {
        match self.retry_after_ms {
            _ if self.is_blocked => "blocked".to_owned(),
            Some(0) => "now".to_owned(),
            Some(ms) => format_wait(Duration::from_millis(ms)),
            None => "never".to_owned(),
        }
    }
}

/// The part of the status that is shown: calls that wait for their turn on the server asked.
#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    waiting: Waiting,
}

#[derive(Default, Deserialize)]
struct Waiting {
    now: u64,
    oldest_ms: u64,
    full: u64,
}

impl Waiting {
    /// `None`: nothing waits, and nothing was refused.
    fn line(&self) -> Option<String> {
        let Self { now, oldest_ms, full } = *self;
        let oldest =
            (now > 0).then(|| format!(", the oldest for {}", format_wait(Duration::from_millis(oldest_ms))));
        let refused = (full > 0).then(|| format!("; {full} refused since the start, as the queue was full"));
        let parts = [oldest, refused];
        let is_shown = parts.iter().any(Option::is_some);
        is_shown.then(|| {
            format!(
                "waiting for a turn on this server: {now}{}",
                parts.map(Option::unwrap_or_default).concat()
            )
        })
    }
}

pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    let client = args.server.client()?;
    let refreshes = !args.once && !args.json && std::io::stdout().is_terminal();
    let clears = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    loop {
        let text = fetch(&client, args)?;
        let output = if args.json {
            output::printable(&text).into_owned()
        } else {
            let top: TopKeys = serde_json::from_str(&text).map_err(|_| {
                let url = client.url("");
                Failure(format!("{url} returned an unexpected format; check that the server and this command have the same version"))
            })?;
            describe(&top, &waiting(&client)?, args, output::width())
        };
        let before = if clears { CLEAR } else { "\n" };
        let output = if refreshes { format!("{before}{output}") } else { output };
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

/// An older server has none.
fn waiting(client: &client::Client) -> Result<Waiting, Failure> {
    let (_, text) = client.send(Method::GET, "/v1/status", None)?;
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Status::default()).waiting)
}

fn describe(top: &TopKeys, waiting: &Waiting, args: &TopArgs, width: usize) -> String {
    let (what, count) = match args.by {
        TopBy::Used => ("usage", "cost"),
        TopBy::Denied => ("denials", "denials"),
    };
    let of = args.policy.as_ref().map_or_else(String::new, |policy| format!(" of {policy}"));
    let (from, to) = (top.period_s / 60, 2 * top.period_s / 60);
    let mut title = format!("Top keys{of} by {what} in the last {from} to {to} minutes");
    if let Some(instance) = &args.instance {
        title += &format!(" on {}", printable(instance));
    } else if top.instances > 1 {
        title += &format!(" on {} instances", top.instances);
    }
    if let Some(error) = &top.fleet_error {
        title += &format!("; the other instances are unknown: {}", printable(error));
    }
    if top.sampled {
        title += "; estimated from a sample";
    }
    if top.error_bound.as_f64() > Some(0.0) {
        title += &format!("; keys not listed have at most {}", top.error_bound);
    }
    let lines = [Some(title), waiting.line()].into_iter().flatten();
    let title = lines.map(|line| output::wrap(&line, width, output::INDENT)).collect::<Vec<_>>().join("\n");
    if top.keys.is_empty() {
        return title + "\n\nno keys yet";
    }
    format!("{title}\n\n{}", output::table(columns(top, count), width))
}

/// The columns of the table, the least important ones with the highest numbers.
fn columns(top: &TopKeys, count: &'static str) -> Vec<Column> {
    let column = |head, fit, cell: &dyn Fn(&Key) -> String| Column {
        head,
        cells: top.keys.iter().map(cell).collect(),
        fit,
    };
    let now = |key: &Key, shown: fn(&Now) -> String| key.now.as_ref().map_or_else(|| "-".to_owned(), shown);
    let mut columns = vec![
        column(count, Fit::Number, &|key| key.count.to_string()),
        column("max error", Fit::Optional(6), &|key| format!("{:>9}", key.at_most_over.to_string())),
        column("held now", Fit::Optional(4), &|key| format!("{:>8}", key.held)),
        column("used", Fit::Optional(1), &|key| now(key, Now::share)),
        column("1 fits in", Fit::Optional(2), &|key| now(key, Now::wait)),
        column("policy", Fit::Optional(3), &|key| key.policy.clone()),
        column("key", Fit::Cut, &|key| printable(&key.key)),
        column("last", Fit::Optional(5), &|key| time_of_day(&key.last_at)),
    ];
    columns.retain(|column| {
        !matches!(column.head, "max error" | "held now") || column.cells.iter().any(|cell| cell.trim() != "0")
    });
    columns
}

/// The time of day in the zone of this machine.
fn time_of_day(time: &str) -> String {
    let local = |time: jiff::Timestamp| time.to_zoned(jiff::tz::TimeZone::system());
    time.parse().map_or_else(|_| printable(time), |time| local(time).strftime("%H:%M:%S").to_string())
}

/// Escapes a key for a terminal: clients choose keys and could inject control sequences.
fn printable(text: &str) -> String {
    text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: TopArgs,
    }

    /// A malicious key must not control the operator's terminal.
    #[test]
    fn keys_cannot_control_the_terminal() {
        assert_eq!(printable("a\"b'\u{1b}[2J\u{202e}"), "a\"b'\\u{1b}[2J\\u{202e}");
    }

    /// An operator in an incident has a small window, and looks for who is full and for how long.
    #[test]
    fn the_table_fits_the_terminal() {
        let now = |limit, remaining, retry_after_ms, is_blocked| {
            Some(Now { limit, remaining, retry_after_ms, is_blocked })
        };
        let key = |key: &str, held, now| Key {
            policy: "per-user".to_owned(),
            key: key.to_owned(),
            count: 4_100.into(),
            at_most_over: 0.into(),
            held,
            last_at: "2026-11-27T21:05:09.123Z".to_owned(),
            now,
        };
        let Command { args } = Command::parse_from(["top"]);
        let last = time_of_day("2026-11-27T21:05:09.123Z");
        let long = "0123456789".repeat(10);
        for (first, second, width, expected) in [
            (
                key("alice", 0, now(100, 59.0, Some(0), false)),
                key("bob", 0, now(0, 0.0, None, false)),
                80,
                "cost  used             1 fits in  policy    key    last|\
                 4100  41 of 100, 41 %  now        per-user  alice  21:05:09|\
                 4100  0 of 0, 100 %    never      per-user  bob    21:05:09",
            ),
            (
                key(&long, 7, now(100, 0.0, Some(200_000), false)),
                key("bob", 0, now(100, 90.0, Some(50), true)),
                80,
                "cost  held now  used               1 fits in  policy    key|",
            ),
            (key(&long, 0, None), key("bob", 0, None), 40, "cost  used  1 fits in  key|"),
        ] {
            let top = TopKeys {
                error_bound: 0.into(),
                sampled: false,
                period_s: 300,
                instances: 1,
                fleet_error: None,
                keys: vec![first, second],
            };
            let text = describe(&top, &Waiting::default(), &args, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let table: Vec<_> = text.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
            assert!(table.join("|").starts_with(&expected.replace("21:05:09", &last)), "{text}");
        }
    }
}
