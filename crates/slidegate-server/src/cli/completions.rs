//! `slidegate completions`: prints a shell's completion script.

use clap::{Args, Command};
use clap_complete::Shell;

use super::failure::Failure;
use super::output;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "slidegate", &mut script);
    output::print(String::from_utf8_lossy(&script).trim_end())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    use super::*;
    use crate::cli::Cli;

    /// A shell that completes only some commands hides the others.
    #[test]
    fn the_script_of_each_shell_has_each_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "slidegate", &mut script);
            let script = String::from_utf8(script).expect("scripts are text");
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
