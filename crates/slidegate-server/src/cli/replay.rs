//! `slidegate replay`: replays an access log through policies before they go live.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;

use slidegate_replay::{Options, Outcome, PageAssets, Plan, Replay, Share, Sweep, TextStyle};

use super::failure::{Failure, fail};
use super::logs::{LogArgs, read_all};
use super::output::{self, Target};
use super::sources::PolicyArgs;
use super::values::number;
use super::wording::ReportWording;
use crate::config::Config;
use crate::control::dashboard::{CHART_SCRIPT, CHART_STYLE};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Access logs: files, directories or patterns, plain, gzip or zstd; `-` for standard input
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    /// Number of keys to show per policy
    #[arg(long, value_name = "N", default_value = "5", value_parser = number::<usize>)]
    top: usize,
    /// Print one line of JSON per request, in order of decision, before the report
    #[arg(long)]
    each: bool,
    /// Try many limits or windows of one policy and recommend one: `limit=50..500`,
    /// `limit=50..500:25`, `per-ip.limit=50..500`, `window=10s..5m`
    #[arg(long, value_name = "RANGE", value_parser = Sweep::from_str)]
    sweep: Option<Sweep>,
    /// The share of requests that the value recommended by --sweep may deny
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = Share::from_str)]
    deny_at_most: Share,
    /// Write the outcome as JSON; `-` for standard output, instead of the report
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the outcome as a page with charts for a browser, which needs no network
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Assets of the HTML report.
const PAGE_ASSETS: PageAssets = PageAssets {
    chart_script: CHART_SCRIPT,
    chart_style: CHART_STYLE,
    sha256: |bytes| BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, bytes)),
};

pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    args.check()?;
    let config = args.policies.config()?;
    let wording = ReportWording::of([&config]);
    let mut log = args.log.open(&args.logs, config.auth.client())?;
    let plan = args.plan(config);
    let each = args.each.then(|| Box::new(BufWriter::new(io::stdout())) as Box<dyn Write + Send>);
    let mut replay = Replay::with_each(plan, &wording, each)?;
    let mut written = Ok(());
    let read = read_all(&mut log, |entry| {
        written = replay.push(entry);
        written.is_ok()
    });
    if written.is_err() {
        // The reader closed the pipe and does not want the report either.
        return output::accept_closed(written);
    }
    // The entries read so far are reported before it fails.
    let mut broken = read.err();
    let outcome = match replay.finish(log.stats()) {
        Ok(outcome) => Outcome { command: Some(command_line()), ..outcome },
        Err(error) => return output::accept_closed(Err(error)),
    };
    let outcome = if args.log.allow_empty { outcome.accepting_empty() } else { outcome };
    if log.stats().entries > 0 {
        args.write(&outcome)?;
        if broken.is_none() && !outcome.errors.is_empty() {
            broken = Some(outcome.errors.join("\n").into());
        }
    }
    broken.map_or(Ok(()), Err)
}

impl ReplayArgs {
    /// Rejects options that exclude each other.
    fn check(&self) -> Result<(), Failure> {
        let to_stdout: Vec<&str> = [("--json", &self.json), ("--report", &self.report)]
            .into_iter()
            .filter(|(_, path)| path.as_deref() == Some(Path::new("-")))
            .map(|(name, _)| name)
            .chain(self.each.then_some("--each"))
            .collect();
        if let [first, second, ..] = to_stdout[..] {
            return fail(format!(
                "{first} and {second} both write to standard output: give one of them a file"
            ));
        }
        Ok(())
    }

    fn plan(&self, config: Config) -> Plan {
        let (max_keys, threads) = (config.memory.most_keys(), self.log.threads());
        Plan {
            policies: config.policies,
            sweep: self.sweep.clone().map(|sweep| sweep.with_deny_at_most(self.deny_at_most)),
            options: Options { max_keys, top: self.top, threads },
        }
    }

    fn write(&self, outcome: &Outcome) -> Result<(), Failure> {
        let mut is_printed = false;
        type Writer<'a> = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + 'a>;
        let forms: [(&Option<PathBuf>, Writer<'_>); 2] = [
            (&self.json, Box::new(|out| outcome.write_json(out))),
            (&self.report, Box::new(|out| outcome.write_page(out, &PAGE_ASSETS))),
        ];
        for (path, write) in &forms {
            let Some(path) = path.as_deref() else { continue };
            let mut target = Target::create(path)?;
            is_printed |= target.is_output;
            let written = write(&mut target.out).and_then(|()| target.out.flush());
            target.written(written)?;
        }
        if is_printed {
            return Ok(());
        }
        output::print(outcome.text(text_style()).to_string().trim_end())
    }
}

/// Colours on a terminal, unless `NO_COLOR` is set or the terminal has none; ASCII in a locale
/// without UTF-8.
pub(super) fn text_style() -> TextStyle {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let is_terminal = io::stdout().is_terminal() && variable("TERM").as_deref() != Some("dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    let has_unicode = locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    TextStyle { is_coloured: is_terminal && variable("NO_COLOR").is_none(), is_ascii: !has_unicode }
}

/// This process's command line, quoted for a shell.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| output::shell_word(&word.to_string_lossy()));
    std::iter::once("slidegate".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
