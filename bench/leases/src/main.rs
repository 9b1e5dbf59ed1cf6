//! What several processes admit together under one limit, judged from outside, and what that costs.
//!
//! Starts Redis and as many processes of itself, which offer more than the limit. Each request is recorded with the
//! times at which it was sent and decided; the judge knows only those. `bench/README.md` describes the columns.

mod instance;
mod judge;
mod limiters;
mod record;
mod run;

use std::process::ExitCode;
use std::time::Duration;

use slidegate::Quota;

use limiters::Kind;

/// Why a run ended early, in one line.
type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: slidegate-leases-bench [options]

  --limiter NAME    slidegate-leases (default), slidegate, rateguard, trypema, trypema-redis, aligned or none
  --processes N     processes that share the limit (3)
  --seconds N       how long they send requests (20)
  --limit QUOTA     (10000/1s)
  --load N          how many times the limit they ask for together (3)
  --steady          requests at a constant rate instead of in bursts
  --weights         costs of 1 to 5 instead of 1
  --two-policies    slidegate: a second policy, of all users, with twice the limit
  --skew            the first process makes 80 % of the requests
  --faults          one process a second is killed and started again; Redis is stopped for 5 to 60 ms at a time";

/// What to run.
#[derive(Debug, Clone)]
struct Options {
    limiter: Kind,
    processes: usize,
    time: Duration,
    limit: u64,
    window: Duration,
    load: f64,
    is_steady: bool,
    is_weighted: bool,
    has_two_policies: bool,
    is_skewed: bool,
    has_faults: bool,
}

impl Options {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut options = Self {
            limiter: Kind::Slidegate { leases: true },
            processes: 3,
            time: Duration::from_secs(20),
            limit: 10_000,
            window: Duration::from_secs(1),
            load: 3.0,
            is_steady: false,
            is_weighted: false,
            has_two_policies: false,
            is_skewed: false,
            has_faults: false,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("limiter") => options.limiter = parser.value()?.parse()?,
                Long("processes") => options.processes = parser.value()?.parse_with(positive)?,
                Long("seconds") => {
                    options.time = Duration::from_secs(parser.value()?.parse_with(positive)? as u64);
                }
                Long("limit") => {
                    let quota: Quota = parser.value()?.parse()?;
                    (options.limit, options.window) = (quota.limit(), quota.window());
                }
                Long("load") => options.load = parser.value()?.parse()?,
                Long("steady") => options.is_steady = true,
                Long("weights") => options.is_weighted = true,
                Long("two-policies") => options.has_two_policies = true,
                Long("skew") => options.is_skewed = true,
                Long("faults") => options.has_faults = true,
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(options)
    }

    /// Requests per second of a process, on average.
    fn rate(&self, instance: usize) -> f64 {
        let others = (self.processes - 1) as f64;
        let share = match (self.is_skewed && self.processes > 1, instance) {
            (false, _) => 1.0 / self.processes as f64,
            (true, 0) => 0.8,
            (true, _) => 0.2 / others,
        };
        let costs = self.costs();
        let mean = costs.iter().sum::<u64>() as f64 / costs.len() as f64;
        share * self.load * self.limit as f64 / self.window.as_secs_f64() / mean
    }

    /// The costs of requests, in turn.
    fn costs(&self) -> &'static [u64] {
        if self.is_weighted { &[1, 2, 1, 5, 1, 2, 1, 3] } else { &[1] }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("`{text}`: use a number above 0"))
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match std::env::var(instance::VARIABLE) {
        Ok(place) => instance::run(&options, &place),
        Err(_) => run::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
