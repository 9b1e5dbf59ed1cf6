//! `slidegate init`: writes a first configuration: the default one, or one proposed from a log.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use slidegate::client_addr::ClientAddr;
use slidegate_replay::{Proposal, ProposalOptions, Share, Survey};

use super::failure::{Failure, fail};
use super::logs::LogArgs;
use super::output;
use super::sources::CONFIG_FILE;
use super::values::window;
use crate::config::starting_file;

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Config file to write; `-` for standard output
    #[arg(default_value = CONFIG_FILE)]
    file: PathBuf,
    /// Access logs to propose limits from: files, directories and patterns. They are read twice
    #[arg(long, value_name = "LOG", num_args = 1..)]
    from_log: Vec<PathBuf>,
    #[command(flatten)]
    format: LogArgs,
    /// The greatest share of the log's requests that the proposed policies may deny
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = Share::from_str, requires = "from_log")]
    deny_at_most: Share,
    /// Window of the proposed limits
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = window, requires = "from_log")]
    window: Duration,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &InitArgs) -> Result<(), Failure> {
    let name = args.file.display();
    let exists = || format!("{name}: already exists; give another path, or --force to overwrite it");
    if args.file.exists() && !args.force {
        return fail(exists());
    }
    let text = if args.from_log.is_empty() {
        starting_file()
    } else {
        let names: Vec<_> = args.from_log.iter().map(|log| log.display().to_string()).collect();
        propose(args)?.yaml(&names.join(", "))
    };
    if args.file.as_os_str() == "-" {
        output::print(text.trim_end())?;
        return Ok(());
    }
    write(&args.file, &text, args.force).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(),
        _ => format!("{name}: cannot be written: {error}; check the path and its permissions"),
    })?;
    output::print(format_args!(
        "{name} written; check it with `slidegate validate {name}`, start with `slidegate serve --config {name}`"
    ))
}

/// A file that appeared meanwhile is not overwritten either.
fn write(path: &Path, text: &str, is_forced: bool) -> io::Result<()> {
    let mut file: File = if is_forced {
        File::create(path)?
    } else {
        OpenOptions::new().write(true).create_new(true).open(path)?
    };
    file.write_all(text.as_bytes())
}

fn propose(args: &InitArgs) -> Result<Proposal, Failure> {
    if args.from_log.iter().any(|log| log.as_os_str() == "-") {
        return fail("the log is read twice, so it cannot be standard input; give a file");
    }
    let mut survey = Survey::new(ProposalOptions { window: args.window, deny_at_most: args.deny_at_most });
    let mut reader = args.format.open(&args.from_log, ClientAddr::default())?;
    while let Some(entry) = reader.next_entry()? {
        survey.count(&entry);
    }
    args.format.refuse_missing_fields(&reader)?;
    let mut proposal = survey.propose();
    let mut reader = args.format.open(&args.from_log, ClientAddr::default())?;
    while let Some(entry) = reader.next_entry()? {
        proposal.try_out(&entry);
    }
    Ok(proposal)
}
