//! `slidegate generate`: the config file's JSON Schema, scripts for shells and man pages, from the
//! program's own definitions.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;

use super::failure::Failure;
use super::output;

#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    #[command(subcommand)]
    target: Generated,
}

#[derive(Debug, Subcommand)]
enum Generated {
    /// Print the JSON Schema of the config file, for editors
    Schema,
    /// Print the script with which a shell completes commands and options
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a man page for each command
    Man {
        /// Directory to write them to; created if it does not exist
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
}

pub(super) fn run(args: &GenerateArgs, cli: Command) -> Result<(), Failure> {
    match &args.target {
        Generated::Schema => output::print(format_args!("{:#}", crate::config::published_schema())),
        Generated::Completions { shell } => output::print(completions(*shell, cli).trim_end()),
        Generated::Man { directory } => write_man_pages(directory, cli),
    }
}

fn completions(shell: Shell, mut cli: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli, "slidegate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn write_man_pages(directory: &Path, cli: Command) -> Result<(), Failure> {
    let shown = directory.display();
    fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(cli, directory)).map_err(
        |error| {
            Failure(format!(
                "{shown}: man pages cannot be written: {error}; give a directory that can be written"
            ))
        },
    )?;
    output::print(format_args!("man pages written to {shown}; read them with `man {shown}/slidegate.1`"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::cli::Cli;

    /// A shell that completes only some commands hides the others.
    #[test]
    fn the_script_of_each_shell_has_each_command() {
        for shell in Shell::value_variants() {
            let script = completions(*shell, Cli::command());
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    /// A package needs a page for each command, with its examples.
    #[test]
    fn each_command_has_a_page() {
        let folder = TempDir::new("man");
        let directory = folder.path().join("man1");
        write_man_pages(&directory, Cli::command()).expect("the pages are written");
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
        let file = folder.file("taken", "");
        let error = write_man_pages(Path::new(&file), Cli::command()).expect_err("a file is no directory");
        assert_eq!(
            error.0,
            format!(
                "{file}: man pages cannot be written: File exists (os error 17); give a directory that can be written"
            )
        );
    }
}
