//! `slidegate simulate`: synthetic traffic through policies, or into a log.

use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::{Args, ValueEnum};
use slidegate_replay::{Boundary, Bursts, LogStats, LogStyle, Options, Plan, Replay, Simulation, write_line};

use super::failure::{Failure, fail};
use super::output::{self, Target};
use super::replay::text_style;
use super::sources::PolicyArgs;
use super::values::{amount, number, rate_per_second, window};
use super::wording::ReportWording;
use crate::limits::MAX_COST;

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    /// Write the requests to a log; `-` for standard output
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Format of the log: `recording` has microseconds and costs, `combined` whole seconds
    #[arg(long, value_enum, default_value_t = Style::Recording)]
    style: Style,
    /// Another seed gives other requests of the same kind; the same one the same bytes
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::<u64>)]
    seed: u64,
    /// Time of the first request
    #[arg(long, value_name = "TIME", default_value = "2026-01-05T00:00:00Z", value_parser = time)]
    start: u64,
    /// Length of the simulation
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = window)]
    duration: Duration,
    /// Requests of ordinary clients, such as `100/s`; `0/s` for none
    #[arg(long, value_name = "N/UNIT", default_value = "100/s", value_parser = rate_per_second)]
    rate: f64,
    /// Send ordinary requests at equal intervals instead of at random (Poisson)
    #[arg(long)]
    even: bool,
    /// Number of clients, such as `10k`
    #[arg(long, value_name = "N", default_value = "1000", value_parser = amount)]
    keys: u64,
    /// Exponent of Zipf's law, by which a few clients send most requests; 0 for equal shares
    #[arg(long, value_name = "S", default_value = "0", value_parser = decimal)]
    zipf: f64,
    /// How much the rate swings within a day, 0 to 1: highest at 14:00 UTC
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = decimal)]
    daily: f64,
    /// Bursts of one client within a second: their size and the average time between them, such as
    /// `50/30s`
    #[arg(long, value_name = "N/DURATION", value_parser = bursts)]
    bursts: Option<Bursts>,
    /// An attacker who sends so many requests just before and just after every second edge of
    /// windows of this length, such as `100/1m`
    #[arg(long, value_name = "N/WINDOW", value_parser = boundary)]
    boundary: Option<Boundary>,
    /// Cost of a request, or the least and the greatest one, such as `1..10`
    #[arg(long, value_name = "N[..M]", default_value = "1", value_parser = costs)]
    cost: (u64, u64),
    /// Number of most denied keys to show per policy
    #[arg(long, value_name = "N", default_value = "5", value_parser = number::<usize>)]
    top: usize,
}

/// Formats of the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Style {
    Recording,
    Combined,
}

fn time(text: &str) -> Result<u64, String> {
    let time =
        text.parse::<jiff::Timestamp>().ok().and_then(|time| u64::try_from(time.as_microsecond()).ok());
    time.ok_or_else(|| "must be a time in RFC 3339 since 1970, for example `2026-01-05T00:00:00Z`".to_owned())
}

fn decimal(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| "must be a number, for example `0.5`".to_owned())
}

/// `N/DURATION`
fn per(text: &str, example: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(count, span)| {
        let span = u64::try_from(window(span).ok()?.as_micros()).ok()?;
        Some((amount(count).ok()?, span))
    });
    // An attack must fit between two edges.
    let parts = parts.filter(|(count, us)| *count >= 1 && count <= us);
    parts.ok_or_else(|| format!("must be a number and a duration, for example `{example}`"))
}

fn bursts(text: &str) -> Result<Bursts, String> {
    per(text, "50/30s").map(|(size, every_us)| Bursts { size, every_us })
}

fn boundary(text: &str) -> Result<Boundary, String> {
    per(text, "100/1m").map(|(size, window_us)| Boundary { size, window_us })
}

fn costs(text: &str) -> Result<(u64, u64), String> {
    let (least, greatest) = text.split_once("..").unwrap_or((text, text));
    let costs = least.parse().ok().zip(greatest.parse().ok());
    let costs = costs.filter(|(_, greatest)| *greatest <= MAX_COST);
    costs.ok_or_else(|| format!("must be a whole number from 0 to {MAX_COST}, or two such as `1..10`"))
}

pub(super) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let has_policies = args.policies.file().is_some() || !args.policies.policies.is_empty();
    if !has_policies && args.write.is_none() {
        return fail(
            "nothing to do with the requests; give policies, for example `--policy '100/1m per ip'`, or a log to \
             write with --write",
        );
    }
    let mut replay = if has_policies { Some(replay(args)?) } else { None };
    let mut log = args.write.as_deref().map(Target::create).transpose()?;
    let style = match args.style {
        Style::Recording => LogStyle::Recording,
        Style::Combined => LogStyle::Combined,
    };
    let mut stats = LogStats::default();
    for request in simulation(args).requests()? {
        stats.lines += 1;
        stats.entries += 1;
        stats.first_us.get_or_insert(request.time_us);
        stats.last_us = Some(request.time_us);
        if let Some(log) = &mut log
            && let Err(error) = write_line(&mut log.out, &request, style)
        {
            return log.written(Err(error));
        }
        if let Some(replay) = &mut replay {
            replay.push(&request.entry()).expect("nothing is written");
        }
    }
    if let Some(log) = &mut log
        && let Err(error) = log.out.flush()
    {
        return log.written(Err(error));
    }
    match replay {
        Some(replay) => {
            let outcome = replay.finish(&stats).expect("nothing is written");
            output::print(outcome.text(text_style()).to_string().trim_end())?;
            if !outcome.errors.is_empty() {
                return Err(Failure(outcome.errors.join("\n")));
            }
        }
        // A log on standard output has no other lines.
        None if log.is_some_and(|log| log.is_output) => {}
        None => {
            let requests = if stats.entries == 1 { "request" } else { "requests" };
            output::print(format_args!("{} {requests} written", stats.entries))?;
        }
    }
    Ok(())
}

fn simulation(args: &SimulateArgs) -> Simulation {
    Simulation {
        seed: args.seed,
        start_us: args.start,
        duration_us: u64::try_from(args.duration.as_micros()).unwrap_or(u64::MAX),
        rate: args.rate,
        is_even: args.even,
        keys: args.keys,
        zipf: args.zipf,
        daily: args.daily,
        bursts: args.bursts,
        boundary: args.boundary,
        cost: args.cost,
    }
}

fn replay(args: &SimulateArgs) -> Result<Replay, Failure> {
    if args.write.as_ref().is_some_and(|path| path.as_os_str() == "-") {
        return fail("the log and the report cannot both go to standard output; write the log to a file");
    }
    let config = args.policies.config()?;
    let wording = ReportWording::of([&config]);
    let threads = available_parallelism().map_or(1, std::num::NonZero::get);
    let options =
        Options { max_keys: config.memory.most_keys(), top: args.top, threads, ..Options::default() };
    Ok(Replay::new(Plan::of(config.policies, options), &wording)?)
}
