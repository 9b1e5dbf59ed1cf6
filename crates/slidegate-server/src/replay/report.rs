//! What a replay prints: what each policy saw, allowed and denied, and which keys it denied most and why.

use std::cmp::Reverse;
use std::fmt;

use super::log::Stats;
use super::run::{DeniedKey, Replay, Tally, jiff_time};
use crate::config::{Counted, describe};
use slidegate::{Policy, Timestamp};

/// The report of a replay; its `Display` is what is printed.
pub(super) struct Report<'a> {
    replay: &'a Replay,
    log: &'a Stats,
    /// Most denied keys shown for each policy.
    top: usize,
}

impl<'a> Report<'a> {
    pub(super) fn new(replay: &'a Replay, log: &'a Stats, top: usize) -> Self {
        Self { replay, log, top }
    }

    fn write_log(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log;
        write!(f, "{} lines, {} requests", log.lines, log.entries)?;
        if let (Some(first), Some(last)) = (log.first_us, log.last_us) {
            let time = |us| jiff_time(Timestamp::from_micros(us));
            write!(f, " from {} to {}", time(first), time(last))?;
        }
        writeln!(f)?;
        if log.late > 0 {
            writeln!(
                f,
                "{} were later than the slack and decided at the time reached; see --slack",
                log.late
            )?;
        }
        if log.malformed > 0 {
            writeln!(f, "{} malformed lines were left out:", log.malformed)?;
            for line in &log.malformed_lines {
                writeln!(f, "  {line}")?;
            }
            if log.malformed > log.malformed_lines.len() as u64 {
                writeln!(f, "  ... and more")?;
            }
        }
        Ok(())
    }

    fn write_policy(&self, f: &mut fmt::Formatter<'_>, policy: &Policy, tally: &Tally) -> fmt::Result {
        let (keys, more) = tally.keys();
        writeln!(f, "\n{}", describe(policy, Counted::Here))?;
        let would = if policy.is_enforced() { "denied" } else { "would have denied" };
        writeln!(
            f,
            "  seen {}  allowed {}  {would} {} ({})  keys {}{keys}",
            tally.seen,
            tally.seen - tally.denied,
            tally.denied,
            percent(tally.denied, tally.seen),
            if more { "more than " } else { "" },
        )?;
        let mut denied: Vec<_> = tally.denied_keys.iter().collect();
        denied.sort_unstable_by_key(|(key, known)| (Reverse(known.denied), *key));
        for (key, known) in denied.iter().take(self.top) {
            write_denied(f, key, known)?;
        }
        if denied.len() > self.top {
            writeln!(f, "  ... and {} more denied keys", denied.len() - self.top)?;
        }
        if tally.denied_elsewhere > 0 {
            writeln!(f, "  ... and {} denials of keys that were not kept", tally.denied_elsewhere)?;
        }
        Ok(())
    }
}

fn write_denied(f: &mut fmt::Formatter<'_>, key: &str, known: &DeniedKey) -> fmt::Result {
    let (first, last) = (jiff_time(known.first), jiff_time(known.last));
    writeln!(f, "  {:>8} x {key}  {first} to {last}", known.denied)?;
    writeln!(f, "             first: {}", known.why)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0%".to_owned();
    }
    // Per mille, rounded, so that one denial in a million does not look like many.
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_log(f)?;
        let replay = self.replay;
        for (policy, tally) in replay.policies().iter().zip(replay.tallies()) {
            self.write_policy(f, policy, tally)?;
        }
        writeln!(
            f,
            "\n{} requests denied in all ({})",
            replay.denied,
            percent(replay.denied, self.log.entries)
        )?;
        if replay.unconcerned > 0 {
            writeln!(f, "{} requests were under no policy", replay.unconcerned)?;
        }
        let store = replay.store();
        if store.dropped > 0 {
            writeln!(
                f,
                "the memory store was full and dropped {} keys that still counted: some denials are missing; raise \
                 store.memory.max_keys above {}",
                store.dropped, store.max_keys
            )?;
        }
        Ok(())
    }
}
