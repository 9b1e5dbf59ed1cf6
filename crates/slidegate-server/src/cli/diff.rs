//! `slidegate diff`: what a configuration change would have done to the traffic of a log.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use slidegate_replay::{Diff, DiffReport, Options, Threshold, Thresholds};

use super::failure::{Failure, fail};
use super::logs::{LogArgs, read_all};
use super::output;
use super::replay::text_style;
use super::sources::PolicyArgs;
use super::values::number;
use super::wording::ReportWording;

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The config file before the change
    old: PathBuf,
    /// The config file after the change
    new: PathBuf,
    /// Access logs: files, directories or patterns, plain, gzip or zstd; `-` for standard input
    #[arg(long = "log", value_name = "LOG", num_args = 1.., required = true)]
    logs: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
    /// Number of keys to show, newly denied and newly allowed
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::<usize>)]
    top: usize,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    format: DiffFormat,
    /// Exit with 1 if more than this share of the requests is newly denied, for example `0.1%`; or of
    /// those under one policy, for example `per-user=1%`. May be repeated
    #[arg(long, value_name = "[POLICY=]SHARE", value_parser = Threshold::from_str)]
    fail_above: Vec<Threshold>,
    /// The same for requests that are newly allowed
    #[arg(long, value_name = "[POLICY=]SHARE", value_parser = Threshold::from_str)]
    fail_above_allowed: Vec<Threshold>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DiffFormat {
    /// For a terminal
    Text,
    /// For a comment of a pull request
    Markdown,
    /// For programs; see docs/replay.md
    Json,
}

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let config = |path: &Path| PolicyArgs::of_file(Some(path.to_owned())).config();
    let (old, new) = (config(&args.old)?, config(&args.new)?);
    // Keys are redacted by the stricter of the two, with one hash secret.
    let wording = ReportWording::of([&old, &new]);
    let thresholds = Thresholds {
        newly_denied: args.fail_above.clone(),
        newly_allowed: args.fail_above_allowed.clone(),
        allow_empty: args.log.allow_empty,
    };
    thresholds.check(old.policies.iter().chain(new.policies.iter()).map(slidegate::Policy::name))?;
    let client = new.auth.client();
    let is_other_client = client != old.auth.client();
    let logs: Vec<PathBuf> = args.logs.iter().map(PathBuf::from).collect();
    let mut log = args.log.open(&logs, client)?;
    let options =
        Options { max_keys: old.memory.most_keys().max(new.memory.most_keys()), top: args.top, threads: 1 };
    let mut diff = Diff::new(&old.policies, &new.policies, &wording, options);
    // A check must not pass on half a log.
    read_all(&mut log, |entry| {
        diff.push(entry);
        true
    })?;
    let mut outcome = diff.finish(log.stats());
    if is_other_client {
        outcome.missing.warnings.push(format!(
            "the clients are those that {} derives; {} has other rules for them in `auth`, which are not compared",
            args.new.display(),
            args.old.display()
        ));
    }
    let [old, new] = [&args.old, &args.new].map(|path| path.display().to_string());
    let report = DiffReport { outcome: &outcome, old: &old, new: &new, thresholds: &thresholds };
    match args.format {
        DiffFormat::Text => output::print(report.text(text_style()))?,
        DiffFormat::Markdown => output::print(report.markdown())?,
        DiffFormat::Json => output::accept_closed(report.write_json(io::stdout().lock()))?,
    }
    let errors = report.errors();
    if !errors.is_empty() {
        return fail(errors.join("\n"));
    }
    Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
