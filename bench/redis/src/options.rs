//! The command line.

use std::time::Duration;

use lexopt::prelude::*;

pub(crate) const USAGE: &str = "\
usage: slidegate-redis-bench [options]

  --part NAME       only `scripts`, `store`, `holds`, `module`, `calls`, `turns` or `attack`
  --limit N         only this limit of `scripts`; may be repeated (10, 100, 1000, 10000)
  --rounds N        rounds, of which a row is the median (5)
  --seconds S       how long a row of `store` or `attack` lasts in a round (2)";

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The cost of one call of each script, and the size of a key.
    Scripts,
    /// The cost of a decision under concurrent load.
    Store,
    /// The cost of checks, reservations and settlements beside open holds.
    Holds,
    /// The cost of a check by the native module, against the script.
    Module,
    /// The cost of calls under several policies and of reservations by the module, against scripts.
    Calls,
    /// How late those who wait have their turns.
    Turns,
    /// The latency of one client while others fill the denial cache.
    Attack,
}

/// What to measure, and how much of it.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Only this part; all if absent.
    pub(crate) part: Option<Part>,
    pub(crate) limits: Vec<u64>,
    /// At least one.
    pub(crate) rounds: usize,
    /// How long a row of the last two parts lasts in a round.
    pub(crate) time: Duration,
}

/// A key's log could not be larger.
const MOST_LIMIT: u64 = 65_534;
/// Maximum duration of a row.
const MOST_SECONDS: f64 = 600.0;

impl Options {
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        let mut options = Self { part: None, limits: Vec::new(), rounds: 5, time: Duration::from_secs(2) };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("part") => options.part = Some(args.value()?.parse_with(part_of)?),
                Long("limit") => options.limits.push(args.value()?.parse_with(limit_of)?),
                Long("rounds") => options.rounds = args.value()?.parse_with(positive)?,
                Long("seconds") => options.time = args.value()?.parse_with(seconds_of)?,
                _ => return Err(arg.unexpected()),
            }
        }
        if options.limits.is_empty() {
            options.limits = vec![10, 100, 1_000, 10_000];
        }
        Ok(options)
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.part.is_none_or(|only| only == part)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "give a number above 0".to_owned())
}

fn limit_of(text: &str) -> Result<u64, String> {
    let limit = text.replace('_', "").parse().ok().filter(|limit| (1..=MOST_LIMIT).contains(limit));
    limit.ok_or_else(|| format!("give a limit from 1 to {MOST_LIMIT}"))
}

fn seconds_of(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds| seconds > 0.0 && seconds <= MOST_SECONDS);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("give seconds, at most {MOST_SECONDS}"))
}

fn part_of(text: &str) -> Result<Part, String> {
    match text {
        "scripts" => Ok(Part::Scripts),
        "store" => Ok(Part::Store),
        "holds" => Ok(Part::Holds),
        "module" => Ok(Part::Module),
        "calls" => Ok(Part::Calls),
        "turns" => Ok(Part::Turns),
        "attack" => Ok(Part::Attack),
        _ => Err("the parts are scripts, store, holds, module, calls, turns and attack".to_owned()),
    }
}
