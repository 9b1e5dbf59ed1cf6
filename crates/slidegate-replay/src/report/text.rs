//! An outcome as text for a terminal or a pipe.

use std::fmt;

use super::charts::Glyphs;
use crate::outcome::{KeyOutcome, LogOutcome, Outcome, PolicyOutcome, ScenarioOutcome, SweepOutcome};
use crate::share::percent;
use crate::wording::{count_of, grouped};

/// Width of sparklines, and width of bars: with captions they fit 80 columns.
const SPARKLINE_WIDTH: usize = 60;
const BAR_WIDTH: usize = 30;

/// The style of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// Emphasis and colours, for a terminal.
    pub is_coloured: bool,
    /// ASCII only, for a terminal without Unicode.
    pub is_ascii: bool,
}

/// The text of an outcome, through its `Display`.
#[derive(Debug)]
pub struct TextReport<'a> {
    outcome: &'a Outcome,
    style: TextStyle,
}

impl Outcome {
    /// Formats the outcome as text.
    #[must_use]
    pub fn text(&self, style: TextStyle) -> TextReport<'_> {
        TextReport { outcome: self, style }
    }
}

impl TextStyle {
    fn glyphs(self) -> Glyphs {
        if self.is_ascii { Glyphs::Ascii } else { Glyphs::Blocks }
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// For denials: bold and yellow, which is readable on light and dark terminals.
    fn denied(self, text: &str) -> String {
        self.with("1;33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.is_coloured { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

impl fmt::Display for TextReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in top_lines(&self.outcome.errors, &self.outcome.warnings) {
            writeln!(f, "{}", self.style.denied(&line))?;
        }
        write_log(f, &self.outcome.log)?;
        self.write_configured(f, &self.outcome.configured)?;
        if let Some(sweep) = &self.outcome.sweep {
            self.write_sweep(f, sweep)?;
        }
        write_dropped(f, &self.outcome.configured)
    }
}

/// The first lines of a report: why its figures prove less than they seem to.
pub(super) fn top_lines(errors: &[String], warnings: &[String]) -> Vec<String> {
    let errors = errors.iter().map(|line| format!("error: {line}"));
    errors.chain(warnings.iter().map(|line| format!("warning: {line}"))).collect()
}

pub(super) fn lines_and_requests(log: &LogOutcome) -> String {
    let lines = count_of(log.lines, "line", "lines");
    format!("{lines}, {}", count_of(log.requests, "request", "requests"))
}

pub(super) fn left_out(malformed: u64) -> String {
    count_of(malformed, "malformed line was left out", "malformed lines were left out")
}

pub(super) fn write_log(f: &mut fmt::Formatter<'_>, log: &LogOutcome) -> fmt::Result {
    write!(f, "{}", lines_and_requests(log))?;
    if let (Some(first), Some(last)) = (&log.first, &log.last) {
        write!(f, " from {first} to {last}")?;
    }
    writeln!(f)?;
    for note in &log.notes {
        writeln!(f, "{note}")?;
    }
    for jump in &log.jumps {
        writeln!(f, "  {jump}")?;
    }
    if log.late > 0 {
        writeln!(f, "{} were later than the slack and decided at the time reached; see --slack", log.late)?;
    }
    if log.malformed > 0 {
        writeln!(f, "{}:", left_out(log.malformed))?;
        for line in &log.malformed_lines {
            writeln!(f, "  {line}")?;
        }
        if log.malformed > log.malformed_lines.len() as u64 {
            writeln!(f, "  ... and more")?;
        }
    }
    Ok(())
}

/// Number of concurrent keys, and the memory they would take.
pub(super) fn at_once(scenario: &ScenarioOutcome) -> String {
    let ScenarioOutcome { keys_at_once, memory_bytes, redis_bytes, .. } = *scenario;
    format!(
        "at once there were up to {}, which take up to {} bytes in memory and {} bytes in Redis",
        count_of(keys_at_once, "key", "keys"),
        grouped(memory_bytes),
        grouped(redis_bytes)
    )
}

fn write_dropped(f: &mut fmt::Formatter<'_>, scenario: &ScenarioOutcome) -> fmt::Result {
    if scenario.dropped_keys == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "the memory store was full and dropped {} keys that still counted: some denials are too many; raise \
         store.memory.max_keys above {}",
        scenario.dropped_keys, scenario.max_keys
    )
}

impl TextReport<'_> {
    fn write_configured(&self, f: &mut fmt::Formatter<'_>, scenario: &ScenarioOutcome) -> fmt::Result {
        for policy in &scenario.policies {
            self.write_policy(f, policy)?;
        }
        let denied = format!(
            "{} in all ({})",
            count_of(scenario.denied, "request denied", "requests denied"),
            percent(scenario.denied, scenario.requests)
        );
        writeln!(f, "\n{}", if scenario.denied > 0 { self.style.denied(&denied) } else { denied })?;
        if scenario.denied_successes > 0 {
            writeln!(
                f,
                "{} of them were answered with success, status 200 to 399",
                scenario.denied_successes
            )?;
        }
        self.write_over_time(f, scenario)?;
        if scenario.unmatched > 0 {
            let one = "request was under no policy";
            writeln!(f, "{}", count_of(scenario.unmatched, one, "requests were under no policy"))?;
        }
        writeln!(f, "{}", at_once(scenario))
    }

    fn write_over_time(&self, f: &mut fmt::Formatter<'_>, scenario: &ScenarioOutcome) -> fmt::Result {
        let glyphs = self.style.glyphs();
        for (name, values) in
            [("allowed", &scenario.allowed_over_time), ("denied", &scenario.denied_over_time)]
        {
            if values.len() > 1 && values.iter().any(|value| *value > 0) {
                let line = glyphs.sparkline(values, SPARKLINE_WIDTH);
                writeln!(f, "  {name:<8}{}", if name == "denied" { self.style.denied(&line) } else { line })?;
            }
        }
        Ok(())
    }

    fn write_policy(&self, f: &mut fmt::Formatter<'_>, policy: &PolicyOutcome) -> fmt::Result {
        writeln!(f, "\n{}", self.style.bold(&policy.description))?;
        let would = if policy.enforced { "denied" } else { "would have denied" };
        writeln!(
            f,
            "  seen {}  allowed {}  {would} {} ({})  keys {}{}",
            policy.seen,
            policy.allowed,
            policy.denied,
            percent(policy.denied, policy.seen),
            if policy.has_more_keys { "more than " } else { "" },
            policy.keys,
        )?;
        self.write_usage(f, policy)?;
        for key in &policy.most_denied {
            write_denied(f, key)?;
        }
        let more = policy.denied_keys.saturating_sub(policy.most_denied.len() as u64);
        if more > 0 {
            writeln!(f, "  ... and {}", count_of(more, "more denied key", "more denied keys"))?;
        }
        if policy.denials_not_kept > 0 {
            writeln!(f, "  ... with {} denials of keys that were not kept", policy.denials_not_kept)?;
        }
        Ok(())
    }

    /// The keys' peak usage.
    fn write_usage(&self, f: &mut fmt::Formatter<'_>, policy: &PolicyOutcome) -> fmt::Result {
        if policy.keys == 0 {
            return Ok(());
        }
        let tenths = policy.usage.allowed_keys_by_tenth;
        let below = |from: usize, to: usize| tenths[from..to].iter().sum::<u64>();
        let rows = [
            ("under half of the limit", below(0, 5)),
            ("half to 90 %", below(5, 9)),
            ("90 % to all of it", below(9, 11)),
            ("denied", policy.usage.denied_keys),
        ];
        let most = rows.iter().map(|(_, keys)| *keys).max().unwrap_or(0);
        writeln!(f, "  {}", self.style.dim("keys by their fullest moment"))?;
        for (name, keys) in rows {
            let bar = self.style.glyphs().bar(keys, most, BAR_WIDTH);
            let bar = if name == "denied" && keys > 0 { self.style.denied(&bar) } else { bar };
            writeln!(f, "{}", format!("    {name:<24}{keys:>9}  {bar}").trim_end())?;
        }
        Ok(())
    }

    fn write_sweep(&self, f: &mut fmt::Formatter<'_>, sweep: &SweepOutcome) -> fmt::Result {
        let title = format!(
            "{}: {} of {} and {}",
            sweep.policy,
            sweep.setting,
            count_of(sweep.seen, "request", "requests"),
            count_of(sweep.keys, "key", "keys")
        );
        writeln!(f, "\n{}", self.style.bold(&title))?;
        let most = sweep.points.iter().map(|point| point.denied).max().unwrap_or(0);
        writeln!(f, "  {:>10}  {:>12}  {:>8}  {:>12}", sweep.setting, "denied", "", "denied keys")?;
        for point in &sweep.points {
            let is_recommended = sweep.recommended.as_ref() == Some(&point.value);
            let line = format!(
                "  {:>10}  {:>12}  {:>8}  {:>12}  {}",
                point.value,
                point.denied,
                percent(point.denied, sweep.seen),
                point.denied_keys,
                self.style.glyphs().bar(point.denied, most, BAR_WIDTH)
            );
            let edge = sweep.edge.map_or_else(String::new, |edge| format!(", the {edge} tried"));
            let line =
                if is_recommended { format!("{}  <- recommended{edge}", line.trim_end()) } else { line };
            let line = line.trim_end();
            writeln!(f, "{}", if is_recommended { self.style.bold(line) } else { line.to_owned() })?;
        }
        writeln!(f, "  {}", sweep.reason)
    }
}

fn write_denied(f: &mut fmt::Formatter<'_>, key: &KeyOutcome) -> fmt::Result {
    writeln!(f, "  {:>8} x {}  {} to {}", key.denied, key.key, key.first, key.last)?;
    writeln!(f, "             first: {}", key.why)
}
