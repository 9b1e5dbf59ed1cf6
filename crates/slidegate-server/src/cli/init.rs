//! `slidegate init`: writes a first config file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::failure::{Failure, fail};
use super::output;
use super::sources::CONFIG_FILE;
use crate::config::{Preset, starting_file};

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Config file to write; `-` for standard output
    #[arg(default_value = CONFIG_FILE)]
    file: PathBuf,
    /// Policies for a usual case [default: one policy, and all other keys as comments]
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
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
    let text = args.preset.map_or_else(starting_file, |preset| preset.file().1.to_owned());
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

/// Does not overwrite a file that appeared meanwhile either.
fn write(path: &Path, text: &str, is_forced: bool) -> io::Result<()> {
    let mut file: File = if is_forced {
        File::create(path)?
    } else {
        OpenOptions::new().write(true).create_new(true).open(path)?
    };
    file.write_all(text.as_bytes())
}
