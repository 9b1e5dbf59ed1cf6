//! `slidegate replay`: replays an access log through policies before they go live.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use slidegate::MemoryStore;
use slidegate_replay::{LogReader, LogStats, Options, Replay};

use super::failure::Failure;
use super::output;
use super::sources::PolicyArgs;
use super::values::number;
use crate::app::explanation;
use crate::config::{Counted, describe};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Access log in the common or combined format, plain or gzip; `-` for standard input
    log: PathBuf,
    #[command(flatten)]
    policies: PolicyArgs,
    /// Maximum disorder of lines, in seconds: lines are sorted within it
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = number::<u64>)]
    slack: u64,
    /// Number of most denied keys to show per policy
    #[arg(long, value_name = "N", default_value = "5", value_parser = number::<usize>)]
    top: usize,
    /// Print one line of JSON per request, in order of decision, before the report
    #[arg(long)]
    each: bool,
}

/// A valid log line.
const EXAMPLE: &str = r#"192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5"#;
/// Lines between two updates of the progress bar.
const PROGRESS_EVERY: u64 = 4096;

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let config = args.policies.config()?;
    let name = args.log.display();
    let unreadable = |error: io::Error| Failure(format!("{name}: {error}"));
    let mut log = LogReader::open(&args.log).map_err(unreadable)?.with_slack(Duration::from_secs(args.slack));
    let options = Options {
        max_keys: config.memory.max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS),
        top: args.top,
        describe: |policy| describe(policy, Counted::Here),
        explain: |decision| decision.map_or_else(|| explanation::NOTHING.to_owned(), explanation::one),
    };
    let mut replay = Replay::new(config.policies, options);
    let mut each = args.each.then(|| BufWriter::new(io::stdout().lock()));
    let bar = progress_bar(log.progress().total_bytes);

    for line in 0u64.. {
        if line.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(log.progress().bytes_read);
        }
        match log.next_entry() {
            Ok(Some(entry)) => {
                if let Err(error) = replay.decide(&entry, each.as_mut().map(|each| each as &mut dyn Write)) {
                    // The reader closed the pipe, so it does not want the report either.
                    bar.finish_and_clear();
                    return output::accept_closed(Err(error)).map(|()| ExitCode::SUCCESS);
                }
            }
            Ok(None) => break,
            Err(error) => {
                // Report the entries read so far, then fail.
                bar.finish_and_clear();
                output::print(replay.report(log.stats()).to_string().trim_end())?;
                return Err(unreadable(error));
            }
        }
    }
    bar.finish_and_clear();
    if let Some(mut each) = each {
        output::accept_closed(each.flush())?;
    }
    if log.stats().entries == 0 {
        return Err(Failure(format!("{name}: {}", nothing_to_replay(log.stats()))));
    }
    output::print(replay.report(log.stats()).to_string().trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The error for a log without requests: "0 denied" for a file in another format would be
/// misleading.
fn nothing_to_replay(stats: &LogStats) -> String {
    if stats.lines == 0 {
        return "the log is empty: nothing to replay".to_owned();
    }
    let lines = stats.lines;
    let mut text = format!(
        "no request in {lines} lines: expected the common or combined log format, for example `{EXAMPLE}`"
    );
    for line in &stats.malformed_lines {
        text.push_str("\n  ");
        text.push_str(&line.to_string());
    }
    text
}

/// Drawn on standard error if it is a terminal.
fn progress_bar(total_bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match total_bytes {
        Some(total) => (ProgressBar::new(total), "{bar:40} {percent}% {bytes}/{total_bytes}, {eta} to go"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} read, {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
}
