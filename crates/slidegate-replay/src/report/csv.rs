//! An outcome as CSV (RFC 4180): one table, whose first column says what a row is about.
//!
//! A cell that a spreadsheet would take for a formula gets an apostrophe before it: clients choose
//! keys.

use std::io::{self, Write};

use crate::outcome::{Outcome, PolicyOutcome, ScenarioOutcome};

/// The columns. New ones are added at the end.
const COLUMNS: &str = "row,scenario,policy,key,setting,value,time,seen,allowed,denied,keys,denied_keys,wrongly_allowed,\
     wrongly_denied,worst_window_cost,worst_window_limit,first,last,enforced,algorithm,reservations,denied_by_held,\
     most_open,most_held,held_cost,settled_cost";

/// A row, by the names of its columns.
type Row = Vec<(&'static str, String)>;

impl Outcome {
    /// Writes the outcome as CSV. docs/replay.md documents the columns.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_csv(&self, mut out: impl Write) -> io::Result<()> {
        write_line(&mut out, COLUMNS.split(','))?;
        for scenario in &self.scenarios {
            write_row(&mut out, &of_scenario(scenario))?;
            for policy in &scenario.policies {
                write_row(&mut out, &of_policy(scenario, policy))?;
                for row in keys(scenario, policy) {
                    write_row(&mut out, &row)?;
                }
            }
            for at in 0..self.time.buckets {
                let time_us = (self.time.start_seconds + at as u64 * self.time.width_seconds) * 1_000_000;
                let (allowed, denied) = (scenario.allowed_over_time[at], scenario.denied_over_time[at]);
                let row = vec![
                    ("row", "time".to_owned()),
                    ("scenario", scenario.name.clone()),
                    ("time", crate::each::rfc3339(time_us)),
                    ("seen", (allowed + denied).to_string()),
                    ("allowed", allowed.to_string()),
                    ("denied", denied.to_string()),
                ];
                write_row(&mut out, &row)?;
            }
        }
        if let Some(sweep) = &self.sweep {
            for point in &sweep.points {
                let row = vec![
                    ("row", "sweep".to_owned()),
                    ("scenario", "configured".to_owned()),
                    ("policy", sweep.policy.clone()),
                    ("setting", sweep.setting.to_owned()),
                    ("value", point.value.clone()),
                    ("seen", sweep.seen.to_string()),
                    ("allowed", (sweep.seen - point.denied).to_string()),
                    ("denied", point.denied.to_string()),
                    ("keys", sweep.keys.to_string()),
                    ("denied_keys", point.denied_keys.to_string()),
                ];
                write_row(&mut out, &row)?;
            }
        }
        out.flush()
    }
}

fn of_scenario(scenario: &ScenarioOutcome) -> Row {
    vec![
        ("row", "scenario".to_owned()),
        ("scenario", scenario.name.clone()),
        ("seen", scenario.requests.to_string()),
        ("allowed", scenario.allowed.to_string()),
        ("denied", scenario.denied.to_string()),
    ]
}

fn of_policy(scenario: &ScenarioOutcome, policy: &PolicyOutcome) -> Row {
    let mut row = vec![
        ("row", "policy".to_owned()),
        ("scenario", scenario.name.clone()),
        ("policy", policy.name.clone()),
        ("seen", policy.seen.to_string()),
        ("allowed", policy.allowed.to_string()),
        ("denied", policy.denied.to_string()),
        ("keys", policy.keys.to_string()),
        ("denied_keys", policy.denied_keys.to_string()),
        ("enforced", policy.enforced.to_string()),
        ("algorithm", policy.algorithm.clone()),
    ];
    if let Some(truth) = &policy.truth {
        row.extend([
            ("wrongly_allowed", truth.wrongly_allowed.to_string()),
            ("wrongly_denied", truth.wrongly_denied.to_string()),
            ("worst_window_cost", truth.worst_window.cost.to_string()),
            ("worst_window_limit", truth.worst_window.limit.to_string()),
        ]);
    }
    if let Some(reservations) = &policy.reservations {
        row.extend([
            ("reservations", reservations.admitted.to_string()),
            ("denied_by_held", reservations.denied_by_held.to_string()),
            ("most_open", reservations.most_open.to_string()),
            ("most_held", reservations.most_held.to_string()),
            ("held_cost", reservations.held_cost.to_string()),
            ("settled_cost", reservations.settled_cost.to_string()),
        ]);
    }
    row
}

/// The keys of a policy: the most denied ones, or those that compare worst with the exact log.
fn keys(scenario: &ScenarioOutcome, policy: &PolicyOutcome) -> Vec<Row> {
    let named = |key: &str| {
        vec![
            ("row", "key".to_owned()),
            ("scenario", scenario.name.clone()),
            ("policy", policy.name.clone()),
            ("key", key.to_owned()),
        ]
    };
    let Some(truth) = &policy.truth else {
        let row = |key: &crate::outcome::KeyOutcome| {
            let mut row = named(&key.key);
            row.extend([
                ("denied", key.denied.to_string()),
                ("first", key.first.clone()),
                ("last", key.last.clone()),
            ]);
            row
        };
        return policy.most_denied.iter().map(row).collect();
    };
    let row = |key: &crate::outcome::KeyTruthOutcome| {
        let mut row = named(&key.key);
        row.extend([
            ("denied", key.denied.to_string()),
            ("wrongly_allowed", key.wrongly_allowed.to_string()),
            ("wrongly_denied", key.wrongly_denied.to_string()),
            ("worst_window_cost", key.worst_window.cost.to_string()),
            ("worst_window_limit", key.worst_window.limit.to_string()),
        ]);
        row
    };
    truth.keys.iter().map(row).collect()
}

fn write_row(out: &mut impl Write, row: &[(&'static str, String)]) -> io::Result<()> {
    let value = |column| row.iter().find(|(name, _)| *name == column).map(|(_, value)| value.as_str());
    write_line(out, COLUMNS.split(',').map(|column| value(column).unwrap_or_default()))
}

fn write_line<'a>(out: &mut impl Write, cells: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    for (at, cell) in cells.into_iter().enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        out.write_all(written(cell).as_bytes())?;
    }
    out.write_all(b"\r\n")
}

/// A cell that is read as text.
fn written(cell: &str) -> String {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let cell = if is_formula { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client named `=cmd|...` must not run on the machine of anyone who opens the file.
    #[test]
    fn cells_are_quoted_and_formulas_are_text() {
        for (cell, expected) in [
            ("alice", "alice"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("@SUM(1,2)", "\"'@SUM(1,2)\""),
            ("-1", "'-1"),
        ] {
            assert_eq!(written(cell), expected);
        }
    }
}
