//! The report of a replay: what each policy allowed and denied, and which keys it denied most and
//! why.

use std::cmp::Reverse;
use std::fmt;

use slidegate::{Policy, Timestamp};

use crate::reader::LogStats;
use crate::run::{DeniedKey, Replay, ReplayCounts, rfc3339};

/// The report of a replay, as its `Display` text.
#[derive(Debug)]
pub struct Report<'a> {
    replay: &'a Replay,
    log: &'a LogStats,
}

impl Replay {
    /// The report so far; `log` is what was read.
    #[must_use]
    pub fn report<'a>(&'a self, log: &'a LogStats) -> Report<'a> {
        Report { replay: self, log }
    }
}

impl Report<'_> {
    fn write_log(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log;
        write!(f, "{} lines, {} requests", log.lines, log.entries)?;
        if let (Some(first), Some(last)) = (log.first_us, log.last_us) {
            let time = |us| rfc3339(Timestamp::from_micros(us));
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

    fn write_policy(
        &self,
        f: &mut fmt::Formatter<'_>,
        policy: &Policy,
        counts: &ReplayCounts,
    ) -> fmt::Result {
        let top = self.replay.options.top;
        let (keys, more) = counts.keys();
        writeln!(f, "\n{}", (self.replay.options.describe)(policy))?;
        let would = if policy.is_enforced() { "denied" } else { "would have denied" };
        writeln!(
            f,
            "  seen {}  allowed {}  {would} {} ({})  keys {}{keys}",
            counts.seen,
            counts.seen - counts.denied,
            counts.denied,
            percent(counts.denied, counts.seen),
            if more { "more than " } else { "" },
        )?;
        let mut denied: Vec<_> = counts.denied_keys.iter().collect();
        denied.sort_unstable_by_key(|(key, known)| (Reverse(known.denied), *key));
        for (key, known) in denied.iter().take(top) {
            write_denied(f, key, known)?;
        }
        if denied.len() > top {
            writeln!(f, "  ... and {} more denied keys", denied.len() - top)?;
        }
        if counts.denied_uncounted > 0 {
            writeln!(f, "  ... and {} denials of keys that were not kept", counts.denied_uncounted)?;
        }
        Ok(())
    }
}

fn write_denied(f: &mut fmt::Formatter<'_>, key: &str, known: &DeniedKey) -> fmt::Result {
    let (first, last) = (rfc3339(known.first), rfc3339(known.last));
    writeln!(f, "  {:>8} x {key}  {first} to {last}", known.denied)?;
    writeln!(f, "             first: {}", known.why)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0%".to_owned();
    }
    // Per mille, rounded.
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_log(f)?;
        let replay = self.replay;
        for (policy, counts) in replay.policies().iter().zip(&replay.counts) {
            self.write_policy(f, policy, counts)?;
        }
        writeln!(
            f,
            "\n{} requests denied in all ({})",
            replay.denied,
            percent(replay.denied, self.log.entries)
        )?;
        if replay.unmatched > 0 {
            writeln!(f, "{} requests were under no policy", replay.unmatched)?;
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
