//! An outcome as an HTML page: charts and tables in one file that needs no network.
//!
//! The page's content security policy names scripts and styles by hash, so nothing else runs,
//! whatever a log contains. Tables are written here and readable without scripts; the script only
//! adds charts, from the JSON described in docs/replay-json.md.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::markup::{cell, escaped, sparkline, table};
use super::text::{at_once, top_lines};
use crate::outcome::{Outcome, PolicyOutcome, ScenarioOutcome, SweepOutcome};
use crate::share::percent;
use crate::wording::{count_of, grouped};

/// Maximum policies on the page, which is for people. The JSON has all.
const MAX_POLICIES: usize = 50;
/// Maximum rows of the time table: neighbouring buckets are summed.
const MAX_TIME_ROWS: usize = 48;
/// About as many steps have the charts over time: many more are a smear on a telephone.
const CHART_STEPS: usize = 120;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Assets of the page.
#[derive(Debug, Clone, Copy)]
pub struct PageAssets {
    /// The script of uPlot.
    pub chart_script: &'static str,
    /// The style sheet of uPlot.
    pub chart_style: &'static str,
    /// SHA-256 in Base64.
    pub sha256: fn(&[u8]) -> String,
}

impl Outcome {
    /// Writes the outcome as a page.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_page(&self, mut out: impl Write, assets: &PageAssets) -> io::Result<()> {
        out.write_all(page(self, assets)?.as_bytes())?;
        out.flush()
    }
}

fn page(outcome: &Outcome, assets: &PageAssets) -> io::Result<String> {
    let hash = |text: &str| format!("'sha256-{}'", (assets.sha256)(text.as_bytes()));
    // Without `<`, data cannot end its element.
    let data = serde_json::to_string(outcome)?.replace('<', "\\u003c");
    let log = &outcome.log;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {} {}; style-src {} {}; \
         base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>Replay of {} - slidegate</title>\n<style>{}</style>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        hash(assets.chart_script),
        hash(SCRIPT),
        hash(assets.chart_style),
        hash(STYLE),
        count_of(log.requests, "request", "requests"),
        assets.chart_style
    );
    page.push_str("<header>\n<h1>What the rate limits would have done</h1>\n<p>");
    page.push_str(&grouped_count(log.requests, "request", "requests"));
    if let (Some(first), Some(last)) = (&log.first, &log.last) {
        let _ = write!(page, " from {} to {}", escaped(first), escaped(last));
    }
    page.push_str("</p>\n");
    for line in top_lines(&outcome.errors, &outcome.warnings) {
        let _ = writeln!(page, "<p><strong>{}</strong></p>", escaped(&line));
    }
    page.push_str("</header>\n<main>\n");
    page.push_str(&summary(outcome));
    page.push_str(&over_time(outcome));
    if let Some(sweep) = &outcome.sweep {
        page.push_str(&sweep_section(sweep));
    }
    page.push_str(&policies(outcome));
    page.push_str(&notes(outcome));
    let _ = write!(
        page,
        "</main>\n<script type=\"application/json\" id=\"outcome\">{data}</script>\n<script>{}</script>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        assets.chart_script
    );
    Ok(page)
}

fn summary(outcome: &Outcome) -> String {
    let ScenarioOutcome { requests, denied, denied_successes, .. } = outcome.configured;
    let facts = format!(
        "<div><dt>denied</dt><dd>{}</dd><dd class=\"hint\">{} denied{}</dd></div>",
        escaped(&percent(denied, requests)),
        grouped(denied),
        if denied_successes > 0 {
            format!(", {} of them answered with success", grouped(denied_successes))
        } else {
            String::new()
        }
    );
    let command = outcome.command.as_ref().map_or_else(String::new, |command| {
        format!("<p class=\"hint\">Produced by</p><pre><code>{}</code></pre>", escaped(command))
    });
    format!("<section class=\"panel\" id=\"summary\"><dl class=\"facts\">{facts}</dl>{command}</section>\n")
}

fn over_time(outcome: &Outcome) -> String {
    if outcome.time.buckets == 0 {
        return String::new();
    }
    let ScenarioOutcome { allowed_over_time, denied_over_time, .. } = &outcome.configured;
    let per_row = outcome.time.buckets.div_ceil(MAX_TIME_ROWS);
    let sum = |values: &[u64], from: usize| values.iter().skip(from).take(per_row).sum::<u64>();
    let rows = (0..outcome.time.buckets).step_by(per_row).map(|from| {
        let start_us = (outcome.time.start_seconds + from as u64 * outcome.time.width_seconds) * 1_000_000;
        let (allowed, denied) = (sum(allowed_over_time, from), sum(denied_over_time, from));
        vec![
            cell(&crate::each::rfc3339(start_us)),
            cell(&grouped(allowed + denied)).number(),
            cell(&grouped(denied)).number(),
        ]
    });
    let per_step = ((outcome.time.buckets + CHART_STEPS / 2) / CHART_STEPS).max(1);
    // One chart each: beside many allowed requests, few denied ones would not be seen.
    let charts = ["allowed", "denied"].map(|name| {
        format!(
            "<h3 class=\"{name}\">{name}</h3><div class=\"chart time\" data-verdict=\"{name}\" data-buckets=\"{per_step}\" \
             role=\"img\" aria-label=\"Requests {name} over time; the table below has the figures\"></div>"
        )
    });
    format!(
        "<section class=\"panel\" id=\"over-time\"><h2>Allowed and denied over time</h2>{}\
         <p class=\"readout\" aria-hidden=\"true\">Requests in steps of {}. Each chart has its own scale.</p>{}</section>\n",
        charts.concat(),
        seconds(outcome.time.width_seconds * per_step as u64),
        details("Table", &table(&["from (UTC)", "requests", "denied"], rows))
    )
}

fn sweep_section(sweep: &SweepOutcome) -> String {
    let rows = sweep.points.iter().map(|point| {
        let is_recommended = sweep.recommended.as_ref() == Some(&point.value);
        let mark = if is_recommended { "recommended" } else { "" };
        vec![
            cell(&point.value).number().head(),
            cell(&grouped(point.denied)).number(),
            cell(&percent(point.denied, sweep.seen)).number(),
            cell(&grouped(point.denied_keys)).number(),
            cell(&percent(point.denied_keys, sweep.keys)).number(),
            cell(mark),
        ]
    });
    let head = [sweep.setting, "requests denied", "share", "keys denied", "share", ""];
    let recommended = sweep.recommended.as_ref().map_or_else(
        || "<p class=\"recommended\">No recommendation</p>".to_owned(),
        |value| {
            let (setting, value) = (sweep.setting, escaped(value));
            let edge = sweep.edge.map_or_else(String::new, |edge| format!(", the {edge} tried"));
            format!("<p class=\"recommended\">Recommended {setting}: <b>{value}</b>{edge}</p>")
        },
    );
    format!(
        "<section class=\"panel\"><h2>{}: what each {} would deny</h2>{recommended}<p class=\"hint\">{}</p>\
         <ul class=\"legend\"><li class=\"denied\">share of requests denied</li><li class=\"line3\">share of keys denied\
         </li><li class=\"limit\">at most {}</li></ul>\
         <div class=\"chart\" id=\"chart-sweep\" role=\"img\" aria-label=\"Denied share by {}; the table below has the \
         figures\"></div>{}</section>\n",
        escaped(&sweep.policy),
        sweep.setting,
        with_code(&sweep.reason),
        escaped(&sweep.deny_at_most),
        sweep.setting,
        details("Table", &table(&head, rows))
    )
}

fn policies(outcome: &Outcome) -> String {
    let mut sections = String::new();
    let policies = &outcome.configured.policies;
    for policy in policies.iter().take(MAX_POLICIES) {
        sections += &policy_section(outcome, policy);
    }
    let more = policies.len().saturating_sub(MAX_POLICIES);
    if more > 0 {
        let _ = write!(sections, "<p class=\"hint\">The JSON has {more} more policies.</p>");
    }
    sections
}

fn policy_section(outcome: &Outcome, policy: &PolicyOutcome) -> String {
    let would = if policy.enforced { "denied" } else { "would be denied" };
    let more = if policy.has_more_keys { "more than " } else { "" };
    let facts = [
        ("requests", grouped(policy.seen)),
        (would, format!("{} ({})", grouped(policy.denied), percent(policy.denied, policy.seen))),
        ("keys", format!("{more}{}", grouped(policy.keys))),
        (
            "keys denied",
            format!("{} ({})", grouped(policy.denied_keys), percent(policy.denied_keys, policy.keys)),
        ),
    ];
    let fact =
        |(name, value): &(&str, String)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escaped(value));
    let facts: String = facts.iter().map(fact).collect();
    let tenths = policy.usage.allowed_keys_by_tenth;
    let usage = tenths.iter().enumerate().map(|(tenth, keys)| (tenth_name(tenth), *keys));
    let usage = usage.chain([("denied".to_owned(), policy.usage.denied_keys)]);
    let usage_rows = usage.map(|(name, keys)| vec![cell(&name).head(), cell(&grouped(keys)).number()]);
    let mut section = format!(
        "<section class=\"panel\"><h2>{}</h2><p class=\"hint\">{}</p><dl class=\"facts small\">{facts}</dl>",
        escaped(&policy.name),
        escaped(&policy.description)
    );
    if policy.keys > 0 {
        let _ = write!(
            section,
            "<h3>Keys by the fullest moment of each, in shares of the limit</h3>\
             <div class=\"chart usage\" data-policy=\"{}\" role=\"img\" aria-label=\"Keys by usage; \
             the table below has the figures\"></div>{}",
            escaped(&policy.name),
            details("Table", &table(&["used at most", "keys"], usage_rows))
        );
    }
    if !policy.most_denied.is_empty() {
        let buckets = outcome.time.buckets;
        let rows = policy.most_denied.iter().map(|key| {
            vec![
                cell(&key.key).key().head(),
                cell(&grouped(key.denied)).number(),
                cell("").markup(&sparkline(&key.denied_over_time, buckets)),
                cell(&key.first),
                cell(&key.last),
                cell(&key.why).wide(),
            ]
        });
        let head = ["key", "denied", "over time", "first", "last", "why the first"];
        let _ = write!(section, "<h3>Most denied keys</h3>{}", table(&head, rows));
        let more = policy.denied_keys.saturating_sub(policy.most_denied.len() as u64);
        if more > 0 {
            let _ = write!(
                section,
                "<p class=\"hint\">{} more keys were denied; --top shows more.</p>",
                grouped(more)
            );
        }
    }
    section + "</section>\n"
}

fn tenth_name(tenth: usize) -> String {
    match tenth {
        10 => "all of it".to_owned(),
        _ => format!("{} to {} %", tenth * 10, (tenth + 1) * 10),
    }
}

fn notes(outcome: &Outcome) -> String {
    let log = &outcome.log;
    let mut notes = vec![format!(
        "{} read, {} of them requests.",
        grouped_count(log.lines, "line was", "lines were"),
        grouped(log.requests)
    )];
    if log.malformed > 0 {
        let (one, several) =
            ("line could not be parsed and was left out.", "lines could not be parsed and were left out.");
        notes.push(grouped_count(log.malformed, one, several));
    }
    if log.late > 0 {
        notes.push(format!(
            "{} later than the slack and decided at the time reached.",
            grouped_count(log.late, "request was", "requests were")
        ));
    }
    let ScenarioOutcome { unmatched, dropped_keys, max_keys, .. } = outcome.configured;
    if unmatched > 0 {
        notes.push(format!("{} under no policy.", grouped_count(unmatched, "request was", "requests were")));
    }
    if dropped_keys > 0 {
        notes.push(format!(
            "The memory store was full and dropped {} keys that still counted: some denials are too many; raise \
             store.memory.max_keys above {max_keys}.",
            grouped(dropped_keys)
        ));
    }
    notes.push(sentence(&at_once(&outcome.configured)));
    notes.extend(log.notes.iter().map(|note| sentence(note)));
    notes.extend(outcome.notes.iter().cloned());
    let items: String = notes.iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
    let examples = log.malformed_lines.iter().chain(&log.jumps);
    let lines: String = examples.map(|line| format!("{}\n", escaped(line))).collect();
    let lines = if lines.is_empty() {
        lines
    } else {
        details("Lines left out, late, or after a gap", &format!("<pre>{lines}</pre>"))
    };
    format!("<section class=\"panel\" id=\"notes\"><h2>Notes</h2><ul>{items}</ul>{lines}</section>\n")
}

/// Formats a note as a sentence.
fn sentence(note: &str) -> String {
    let mut rest = note.chars();
    let first = rest.next().map(|first| first.to_ascii_uppercase());
    // The log's name stays unchanged.
    if note.contains(": format ") {
        format!("{note}.")
    } else {
        format!("{}{}.", first.unwrap_or(' '), rest.as_str())
    }
}

/// Formats a sentence whose parts in back quotes are code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escaped(part)) } else { escaped(part) })
        .collect()
}

fn details(summary: &str, content: &str) -> String {
    format!("<details><summary>{summary}</summary>{content}</details>")
}

/// Like `count_of`, with digits grouped.
fn grouped_count(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { several })
}

fn seconds(seconds: u64) -> String {
    slidegate::clock::format_window(std::time::Duration::from_secs(seconds))
}
