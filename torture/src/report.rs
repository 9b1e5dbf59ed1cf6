//! Tables and charts of a record.

use std::fmt::Write as _;

use plotters::prelude::*;

use crate::Failed;
use crate::part::PartName;
use crate::record::{Chart, Figures, Record, Row, Verdict};
use crate::target::Promise;

/// What a cell of a table says of the parts of a row.
struct Column {
    title: &'static str,
    parts: &'static [PartName],
    says: fn(&Figures) -> String,
}

const USE: &[Column] = &[
    Column { title: "bursts", parts: &[PartName::Bursts], says: over },
    Column { title: "border", parts: &[PartName::Border], says: over },
    Column { title: "same instant", parts: &[PartName::Instant], says: over },
    Column { title: "64 callers", parts: &[PartName::Callers], says: over },
    Column { title: "costs", parts: &[PartName::Costs], says: over },
    Column { title: "two limits", parts: &[PartName::Several], says: over },
    Column { title: "3 instances", parts: &[PartName::Instances], says: over },
    Column {
        title: "wrong denials",
        parts: &[PartName::Bursts, PartName::Border, PartName::Costs, PartName::Instant, PartName::Callers],
        says: wrong,
    },
    Column { title: "denials charged", parts: &[PartName::Denied, PartName::Several], says: wrong },
    Column { title: "wait too long", parts: &[PartName::Waits], says: |of| milliseconds(of.too_long_ms) },
    Column { title: "wait too short", parts: &[PartName::Waits], says: |of| milliseconds(of.too_short_ms) },
];

const FAULTS: &[Column] = &[
    Column { title: "restart", parts: &[PartName::Restart], says: over },
    Column { title: "`kill -9`", parts: &[PartName::Kill], says: over },
    Column { title: "flood", parts: &[PartName::Flood], says: over },
    Column { title: "flood that drains", parts: &[PartName::Drain], says: over },
    Column { title: "newcomers denied", parts: &[PartName::Flood, PartName::Drain], says: wrong },
    Column { title: "clock of the store", parts: &[PartName::Step], says: over },
    Column { title: "wrong denials by that", parts: &[PartName::Step], says: wrong_of_limit },
    Column { title: "store emptied", parts: &[PartName::Emptied], says: over },
    Column { title: "while it is away", parts: &[PartName::Emptied], says: away },
];

fn over(figures: &Figures) -> String {
    let over = figures.most.saturating_sub(figures.limit);
    if over == 0 { "0".to_owned() } else { format!("+{} %", percent(over, figures.limit)) }
}

fn wrong(figures: &Figures) -> String {
    if figures.wrong_denials == 0 {
        return "0".to_owned();
    }
    format!("{} %", percent(figures.wrong_denials, figures.denied))
}

fn wrong_of_limit(figures: &Figures) -> String {
    match figures.wrong_denials {
        0 => "0".to_owned(),
        wrong => format!("{} %", percent(wrong, figures.limit)),
    }
}

/// Rounded to a whole number, but never to none.
fn percent(part: u64, of: u64) -> String {
    match part as f64 * 100.0 / of as f64 {
        small if small < 0.95 => format!("{small:.1}").replace("0.0", "< 0.1"),
        share => format!("{share:.0}"),
    }
}

fn milliseconds(ms: Option<f64>) -> String {
    match ms {
        None => String::new(),
        Some(ms) if ms < 0.5 => "0".to_owned(),
        Some(ms) => format!("{ms:.0} ms"),
    }
}

fn away(figures: &Figures) -> String {
    let [admitted, denied, failed] = figures.away.unwrap_or_default();
    let kinds = [(admitted, "admits"), (denied, "denies"), (failed, "fails")];
    let some: Vec<_> = kinds.iter().filter(|(count, _)| *count > 0).map(|(_, what)| *what).collect();
    some.join(", ")
}

impl Column {
    /// Of several parts, the figures are added; the greatest excess counts.
    fn cell(&self, row: &Row) -> String {
        let verdicts: Vec<&Verdict> = row
            .parts
            .iter()
            .filter(|part| self.parts.contains(&part.name))
            .map(|part| &part.verdict)
            .collect();
        let mut all = Figures::default();
        let mut judged = 0;
        for verdict in &verdicts {
            let Verdict::Judged(figures) = verdict else { continue };
            judged += 1;
            all.denied += figures.denied;
            all.wrong_denials += figures.wrong_denials;
            if all.limit == 0 || figures.most * all.limit > all.most * figures.limit {
                (all.most, all.limit) = (figures.most, figures.limit);
            }
            all.too_long_ms = all.too_long_ms.or(figures.too_long_ms);
            all.too_short_ms = all.too_short_ms.or(figures.too_short_ms);
            all.away = all.away.or(figures.away);
        }
        if judged > 0 {
            return (self.says)(&all);
        }
        let other = verdicts.iter().map(|verdict| match verdict {
            Verdict::NotJudged(_) => "not judged",
            Verdict::Failed(_) => "failed",
            Verdict::NotApplicable(_) | Verdict::Judged(_) => "–",
        });
        other.min_by_key(|what| *what == "–").unwrap_or_default().to_owned()
    }
}

fn promised(promise: Promise) -> &'static str {
    match promise {
        Promise::Exact => "limit",
        Promise::Approximate => "about the limit",
        Promise::Bucket => "limit, then rate",
        Promise::Fixed => "limit in each window of its own",
    }
}

fn table(rows: &[Row], columns: &[Column]) -> String {
    let titles: Vec<_> = columns.iter().map(|column| column.title).collect();
    let mut text = format!(
        "| limiter | promises | {} |\n|---|---|{}\n",
        titles.join(" | "),
        "--:|".repeat(columns.len())
    );
    for row in rows {
        let cells: Vec<_> = columns.iter().map(|column| column.cell(row)).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            row.target.name,
            promised(row.target.promise),
            cells.join(" | ")
        );
    }
    text
}

/// Both tables, those that had no part of faults left out of the second.
pub(crate) fn tables(record: &Record) -> String {
    let has_faults = record.suite == "full";
    let mut text = table(&record.rows, USE);
    if has_faults {
        let _ = write!(text, "\n## Under faults and floods\n\n{}", table(&record.rows, FAULTS));
    }
    text
}

/// The page `docs/accuracy.md`: `template` with the tables and lists of the record.
pub(crate) fn page(template: &str, record: &Record) -> String {
    let mut text = template.replace("{TABLES}", tables(record).trim_end());
    let mut parts = String::new();
    for name in PartName::ALL {
        let _ = writeln!(parts, "- **{}:** {}.", name.title(), name.asks());
    }
    let mut rows = String::new();
    for row in &record.rows {
        let target = &row.target;
        let note = if target.note.is_empty() { String::new() } else { format!(" {}", target.note) };
        let version = if row.version.is_empty() { String::new() } else { format!(" {}", row.version) };
        // The page is in `docs`.
        let documentation = match target.documentation.as_str() {
            url if url.contains("://") => format!("[documentation]({url})"),
            text if text.contains(' ') => text.to_owned(),
            path => match path.strip_prefix("docs/") {
                Some(page) => format!("[documentation]({page})"),
                None => format!("[source](../{path})"),
            },
        };
        let _ = writeln!(
            rows,
            "- **{}**{version}, {documentation}: `{}`.{note}{}",
            target.name,
            target.configuration.replace('`', "'"),
            exceptions(row)
        );
    }
    for (mark, value) in [
        ("{PARTS}", parts.trim_end()),
        ("{ROWS}", rows.trim_end()),
        ("{DATE}", &record.date),
        ("{MACHINE}", &record.machine),
        ("{SEED}", &record.seed.to_string()),
        ("{COUNT}", &record.rows.len().to_string()),
    ] {
        text = text.replace(mark, value);
    }
    text
}

fn exceptions(row: &Row) -> String {
    let said = row.parts.iter().filter_map(|part| match &part.verdict {
        Verdict::NotJudged(because) | Verdict::Failed(because) => {
            Some(format!("{} ({because})", part.name.title()))
        }
        Verdict::Judged(Figures { failed: 1.., error: Some(error), .. })
            if part.name != PartName::Emptied =>
        {
            Some(format!("{} ({error})", part.name.title()))
        }
        _ => None,
    });
    let said: Vec<_> = said.collect();
    if said.is_empty() { String::new() } else { format!(" Errors or not judged: {}.", said.join("; ")) }
}

const CHART: (u32, u32) = (220, 120);
const CHARTS_IN_A_LINE: usize = 4;

/// What each target admitted within the last window over time, and the limit, as one SVG.
pub(crate) fn charts(rows: &[Row]) -> Result<String, Failed> {
    let drawn: Vec<(&str, &Chart)> =
        rows.iter().filter_map(|row| Some((row.target.name.as_str(), row.chart.as_ref()?))).collect();
    if drawn.is_empty() {
        return Err("there is no chart to draw: no target was judged in bursts".into());
    }
    let lines = drawn.len().div_ceil(CHARTS_IN_A_LINE);
    let columns = drawn.len().min(CHARTS_IN_A_LINE);
    let mut svg = String::new();
    {
        let size = (CHART.0 * u32::try_from(columns)?, CHART.1 * u32::try_from(lines)?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        for ((name, chart), cell) in drawn.iter().zip(area.split_evenly((lines, columns))) {
            draw(name, chart, &cell)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn draw(
    name: &str,
    chart: &Chart,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Failed> {
    let seconds = |step: usize| step as f64 * chart.step_ms as f64 / 1e3;
    let end = seconds(chart.admitted.len());
    let mut builder = ChartBuilder::on(area);
    builder.caption(name, ("sans-serif", 12)).margin(6).x_label_area_size(14).y_label_area_size(28);
    let most = (2 * chart.limit).max(chart.admitted.iter().copied().max().unwrap_or(0)) as f64;
    let mut axes = builder.build_cartesian_2d(0.0..end, 0.0..most * 1.05)?;
    axes.configure_mesh()
        .disable_mesh()
        .x_labels(4)
        .y_labels(3)
        .label_style(("sans-serif", 9))
        .x_label_formatter(&|at| format!("{at:.0} s"))
        .y_label_formatter(&|at| format!("{at:.0}"))
        .draw()?;
    let limit = chart.limit as f64;
    let admitted =
        chart.admitted.iter().enumerate().map(|(step, admitted)| (seconds(step), *admitted as f64));
    axes.draw_series(LineSeries::new(admitted, RGBColor(0x1f, 0x5f, 0xa8).stroke_width(1)))?;
    axes.draw_series(LineSeries::new(
        [(0.0, limit), (end, limit)],
        RGBColor(0xc0, 0x39, 0x2b).stroke_width(1),
    ))?;
    Ok(())
}
