//! The command line.

use lexopt::prelude::*;

use crate::cases::Case;
use crate::peers::Contender;

pub(crate) const USAGE: &str = "\
usage: slidegate-bench [decisions | memory | growth | holds | policies | clock | profile] [options]
without a mode: all but profile

  --case NAME       only this case; may be repeated
  --peer NAME       only peers whose name starts so; may be repeated
  --threads N       only this many threads; may be repeated
  --keys N          keys of the cases with many keys (1000000)
  --most-keys N     largest size of `growth` (10000000)
  --rounds N        rounds, of which a row is the median (7)
  --decisions N     decisions of a thread in a round";

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    All,
    Decisions,
    Memory,
    Growth,
    Holds,
    Policies,
    Clock,
    Profile,
}

/// What to run, and how much of it.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) cases: Vec<Case>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) threads: Vec<usize>,
    /// The number of keys in cases with many keys, at most ten million: a key has seven digits.
    pub(crate) keys: u32,
    pub(crate) most_keys: u32,
    pub(crate) rounds: usize,
    /// Decisions per thread and round; the case's own number if absent.
    pub(crate) decisions: Option<usize>,
}

const MOST_KEYS: u32 = 10_000_000;

impl Options {
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        let mut options = Self {
            mode: Mode::All,
            cases: Vec::new(),
            contenders: Vec::new(),
            threads: Vec::new(),
            keys: 1_000_000,
            most_keys: MOST_KEYS,
            rounds: 7,
            decisions: None,
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Value(mode) => options.mode = mode.parse_with(mode_of)?,
                Long("case") => options.cases.push(args.value()?.parse_with(case_of)?),
                Long("peer") => options.contenders.extend(args.value()?.parse_with(contenders_of)?),
                Long("threads") => options.threads.push(args.value()?.parse_with(positive)? as usize),
                Long("keys") => options.keys = args.value()?.parse_with(positive)?.min(MOST_KEYS),
                Long("most-keys") => options.most_keys = args.value()?.parse_with(positive)?.min(MOST_KEYS),
                Long("rounds") => options.rounds = args.value()?.parse_with(positive)? as usize,
                Long("decisions") => options.decisions = Some(args.value()?.parse_with(positive)? as usize),
                _ => return Err(arg.unexpected()),
            }
        }
        if options.cases.is_empty() {
            options.cases = Case::RACES.into();
        }
        if options.contenders.is_empty() {
            options.contenders = Contender::ALL.into();
        }
        if options.threads.is_empty() {
            options.threads = vec![1, 2];
        }
        Ok(options)
    }
}

fn positive(text: &str) -> Result<u32, String> {
    text.replace('_', "").parse().ok().filter(|&n| n > 0).ok_or_else(|| "give a number above 0".to_owned())
}

fn mode_of(text: &str) -> Result<Mode, String> {
    match text {
        "decisions" => Ok(Mode::Decisions),
        "memory" => Ok(Mode::Memory),
        "growth" => Ok(Mode::Growth),
        "holds" => Ok(Mode::Holds),
        "policies" => Ok(Mode::Policies),
        "clock" => Ok(Mode::Clock),
        "profile" => Ok(Mode::Profile),
        _ => Err("the modes are decisions, memory, growth, holds, clock and profile".to_owned()),
    }
}

fn case_of(text: &str) -> Result<Case, String> {
    let names = || Case::RACES.map(Case::name).join(", ");
    Case::RACES
        .into_iter()
        .find(|case| case.name() == text)
        .ok_or_else(|| format!("the cases are {}", names()))
}

fn contenders_of(text: &str) -> Result<Vec<Contender>, String> {
    let found: Vec<_> = Contender::ALL.into_iter().filter(|c| c.name().starts_with(text)).collect();
    let names = || Contender::ALL.map(Contender::name).join(", ");
    if found.is_empty() { Err(format!("the peers are {}", names())) } else { Ok(found) }
}
