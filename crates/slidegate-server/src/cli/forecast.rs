//! `slidegate forecast`: how much memory and how much of Redis some limits will take.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use slidegate::{Algorithm, Policy, PolicySet, Quota};
use slidegate_replay::{Bytes, Demand, Forecast, Measurement, Shard, grouped};

use super::failure::{Failure, fail};
use super::logs::LogArgs;
use super::output;
use super::sources::PolicyArgs;
use super::values::{amount, byte_size, cost, rate_per_second, window};
use crate::config::format_bytes;

#[derive(Debug, Args)]
pub(super) struct ForecastArgs {
    /// Access logs to measure keys and rates in: files, directories, patterns, and `-` for standard
    /// input. Without one, give --keys
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    format: LogArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    /// Keys that exist at once, such as `1M`
    #[arg(long, value_name = "N", value_parser = amount, conflicts_with = "logs")]
    keys: Option<u64>,
    /// Decisions per second at the peak, such as `5000/s`
    #[arg(long, value_name = "N/UNIT", value_parser = rate_per_second, conflicts_with = "logs")]
    rate: Option<f64>,
    /// Bytes of a key's id: the values of the scope
    #[arg(long, value_name = "BYTES", value_parser = amount, default_value = "24", conflicts_with = "logs")]
    key_length: u64,
    /// Cost of a request
    #[arg(long, value_name = "N", value_parser = cost, default_value = "1", conflicts_with = "logs")]
    cost: u64,
    /// Limit per window, instead of policies; needs --window
    #[arg(long, value_name = "N", value_parser = amount, requires = "window", conflicts_with_all = ["config", "policies", "logs"])]
    limit: Option<u64>,
    /// Length of the window, such as `1m`
    #[arg(long, value_name = "DURATION", value_parser = window, requires = "limit")]
    window: Option<Duration>,
    /// Algorithm of --limit [default: sliding-log]
    #[arg(long, value_name = "ALGORITHM", requires = "limit")]
    algorithm: Option<Algorithm>,
    /// Bytes that one shard may hold, such as `8GiB`, to compute the shards for the worst case
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    shard_memory: Option<u64>,
    /// Size the keys for a Redis cluster, which keeps more about each key
    #[arg(long)]
    cluster: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ForecastArgs) -> Result<(), Failure> {
    let shard = Shard { is_cluster: args.cluster, max_bytes: args.shard_memory };
    let (policies, demands, is_incomplete) = if args.logs.is_empty() {
        let policies = stated_policies(args)?;
        let demand = stated_demand(args)?;
        let demands = policies.iter().map(|_| demand).collect();
        (policies.into(), demands, false)
    } else {
        let measured = measure(args)?;
        (measured.policies(), measured.demands(), measured.is_incomplete())
    };
    let forecasts: Vec<_> =
        policies.iter().zip(demands).map(|(policy, demand)| Forecast::of(policy, demand, shard)).collect();
    if args.json {
        let json = serde_json::json!({ "incomplete": is_incomplete, "policies": forecasts });
        output::print(format_args!("{json:#}"))?;
    } else {
        output::print(text(&forecasts, shard, is_incomplete).trim_end())?;
    }
    Ok(())
}

/// The policies of the options or of the configuration.
fn stated_policies(args: &ForecastArgs) -> Result<PolicySet, Failure> {
    let (Some(limit), Some(window)) = (args.limit, args.window) else {
        return Ok(args.policies.config()?.policies);
    };
    let quota = Quota::new(limit, window)?.with_algorithm(args.algorithm.unwrap_or_default());
    Ok(PolicySet::new([Policy::new("per-key", quota)?.with_scope(["key"])])?)
}

fn stated_demand(args: &ForecastArgs) -> Result<Demand, Failure> {
    let Some(keys) = args.keys else {
        return fail(
            "the number of keys is not known; give an access log, or for example `--keys 1M --rate 5000/s`",
        );
    };
    Ok(Demand {
        keys,
        key_bytes: args.key_length,
        decisions_per_second: args.rate.unwrap_or_default(),
        cost: args.cost,
        charges_per_key: None,
    })
}

fn measure(args: &ForecastArgs) -> Result<Measurement, Failure> {
    let config = args.policies.config()?;
    let mut reader = args.format.open(&args.logs, config.auth.client())?;
    let mut measurement = Measurement::new(config.policies, config.memory.most_keys());
    while let Some(entry) = reader.next_entry()? {
        measurement.count(&entry);
    }
    args.format.refuse_missing_fields(&reader)?;
    Ok(measurement)
}

/// The forecasts as tables.
fn text(forecasts: &[Forecast], shard: Shard, is_incomplete: bool) -> String {
    let mut out = String::new();
    for one in forecasts {
        let Demand { keys, key_bytes, decisions_per_second, .. } = one.demand;
        let _ = writeln!(
            out,
            "{}: {} per {}, {}\n{} keys of {} bytes, {} decisions/s at the peak, {:.1} requests per key and window",
            one.policy,
            grouped(one.limit),
            one.window,
            one.algorithm,
            grouped(keys),
            key_bytes,
            grouped(rounded(decisions_per_second)),
            one.charges_per_key,
        );
        let _ = writeln!(
            out,
            "{:16} {:>21} {:>21} {:>21} {:>21} {:>11} {:>6}",
            "", "Redis", "Redis, all keys full", "memory store", "memory, all full", "per core/s", "shards"
        );
        for by in &one.algorithms {
            let _ = writeln!(
                out,
                "{:16} {:>21} {:>21} {:>21} {:>21} {:>11} {:>6}",
                by.algorithm,
                size(by.redis.typical, by.redis.typical_key),
                size(by.redis.full, by.redis.full_key),
                size(by.memory.typical, by.memory.typical_key),
                size(by.memory.full, by.memory.full_key),
                grouped(by.decisions_per_core),
                by.shards,
            );
        }
        out.push('\n');
    }
    let own = |of: fn(&Forecast) -> &Bytes| -> [u64; 2] {
        let add = |part: fn(&Bytes) -> u64| forecasts.iter().map(|one| part(of(one))).sum();
        [add(|bytes| bytes.typical), add(|bytes| bytes.full)]
    };
    let (redis, memory) = (own(|one| &one.own().redis), own(|one| &one.own().memory));
    if forecasts.len() > 1 {
        let _ = writeln!(
            out,
            "All policies with their own algorithms: Redis {}, at worst {}; memory store {}, at worst {}.",
            format_bytes(redis[0]),
            format_bytes(redis[1]),
            format_bytes(memory[0]),
            format_bytes(memory[1]),
        );
    }
    if is_incomplete {
        out.push_str("There were more keys than are followed one by one: these numbers are too small.\n");
    }
    let cluster = if shard.is_cluster { " in a cluster" } else { "" };
    let _ = writeln!(
        out,
        "Redis: used_memory of its keys{cluster}, without the server itself, replicas and fragmentation. Per core: \
         charged decisions, one call each, as measured in bench/RESULTS.md; shards use 60 % of a core{}.",
        shard.max_bytes.map_or_else(String::new, |most| format!(" and hold {}", format_bytes(most))),
    );
    out
}

/// `1.2 GiB (617 each)`
fn size(all: u64, each: u64) -> String {
    format!("{} ({each} each)", format_bytes(all))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
fn rounded(number: f64) -> u64 {
    number.ceil() as u64
}
