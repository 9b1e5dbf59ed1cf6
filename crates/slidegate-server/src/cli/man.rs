//! `slidegate man`: writes a man page for each command.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};

use super::failure::Failure;
use super::output;

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory to write them to; created if it does not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(super) fn run(args: &ManArgs, command: Command) -> Result<(), Failure> {
    let directory = args.directory.display();
    fs::create_dir_all(&args.directory)
        .and_then(|()| clap_mangen::generate_to(command, &args.directory))
        .map_err(|error| {
            Failure(format!(
                "{directory}: man pages cannot be written: {error}; give a directory that can be written"
            ))
        })?;
    output::print(format_args!(
        "man pages written to {directory}; read them with `man {directory}/slidegate.1`"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::cli::Cli;

    /// A package needs a page for each command, with its examples.
    #[test]
    fn each_command_has_a_page() {
        let folder = TempDir::new("man");
        let directory = folder.path().join("man1");
        run(&ManArgs { directory: directory.clone() }, Cli::command()).expect("the pages are written");
        for command in Cli::command().get_subcommands() {
            let page = directory.join(format!("slidegate-{}.1", command.get_name()));
            let page =
                fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            assert!(page.contains("Examples:") && page.contains("Exit codes:"), "{page}");
        }
        assert!(directory.join("slidegate.1").exists() && directory.join("slidegate-key-show.1").exists());
    }

    /// A packager must learn why the pages are missing.
    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let folder = TempDir::new("man-file");
        let file = PathBuf::from(folder.file("taken", ""));
        let error =
            run(&ManArgs { directory: file.clone() }, Cli::command()).expect_err("a file is no directory");
        assert_eq!(
            error.0,
            format!(
                "{}: man pages cannot be written: File exists (os error 17); give a directory that can be written",
                file.display()
            )
        );
    }
}
