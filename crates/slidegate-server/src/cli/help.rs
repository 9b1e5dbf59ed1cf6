//! The end of each command's help: examples and exit codes.
//!
//! A test parses every example. docs/commands.md lists the exit codes of all commands in one table.

use clap::Command;
use clap::error::{ContextKind, ContextValue};

/// Printed without arguments.
pub(super) const NEXT: &str = "\
slidegate limits rates for HTTP, Redis clients, Envoy and other proxies. Begin with:

  slidegate serve                     a default policy, on http://127.0.0.1:7979
  slidegate serve --preset api        policies for a usual case: api, login, llm or proxy
  slidegate check user=alice          ask it, from another terminal
  slidegate init --preset api         write the policies to slidegate.yaml, to change them
  slidegate demo                      look at its page, with synthetic traffic
  slidegate replay access.log --preset proxy
                                      see what would have been denied yesterday

`slidegate --help` lists all commands.";

/// The heading of options that every command has.
pub(super) const MESSAGES: &str = "Messages";

/// The commands by what they are for. `generate` is in the long help only, see [`FILES`].
const GROUPS: [(&str, &[&str]); 5] = [
    ("Serve", &["serve", "demo", "init"]),
    ("Ask", &["check", "top", "health"]),
    ("Change", &["key", "policy"]),
    ("What if", &["validate", "explain", "replay", "diff"]),
    ("Tools", &["token", "doctor"]),
];

/// The same command line with commands in groups.
pub(super) fn shaped(cli: Command) -> Command {
    let about = |name: &str| cli.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
    let line = |name: &&str| format!("  {name:<10}{}\n", about(name).unwrap_or_default());
    let group = |(heading, names): &(&str, &[&str])| {
        format!("{heading}:\n{}\n", names.iter().map(line).collect::<String>())
    };
    let groups: String = GROUPS.iter().map(group).collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    cli.help_template(template)
}

/// What to write instead of another program's word for a command.
pub(super) fn other_word(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let ours = match word.as_str() {
        "run" | "start" | "server" | "up" => "serve",
        "status" | "ping" => "health",
        "version" => "--version",
        "help" => "--help",
        _ => return None,
    };
    Some(format!("unknown command `{word}`; use `slidegate {ours}`"))
}

/// Shown by the program's own `--help`, and by no shorter help.
pub(super) const FILES: &str = "\
For packagers and editors:
  generate  Write the schema of config files, shell completions or man pages

Files of the packages for Debian and Red Hat:
  /etc/slidegate/slidegate.yaml
      Policies, which are read again when the file changes, and settings.
  /etc/slidegate/environment
      Variables, a line each: SLIDEGATE_REDIS=redis://HOST:6379 shares
      limits through Redis, SLIDEGATE_LISTEN=0.0.0.0:7979 listens on every
      address.
  /usr/share/doc/slidegate/docs
      What these pages call docs/.

After a change of settings or variables: systemctl restart slidegate";

pub(super) const SERVE: &str = "\
Examples:
  slidegate serve
  slidegate serve --preset api
  slidegate serve --policy '100/1m per user' --listen 127.0.0.1:8000
  slidegate serve --config slidegate.yaml --redis redis://127.0.0.1:6379

Exit codes: 0 stopped by a signal, 2 error";

pub(super) const DEMO: &str = "\
Examples:
  slidegate demo
  slidegate demo --for 10m --listen 127.0.0.1:8000

After half a minute, one client floods for a minute. Messages below warnings are left out; see
--log-level.

Exit codes: 0 stopped by a signal or at its end, 2 error";

pub(super) const HEALTH: &str = "\
Examples:
  slidegate health
  slidegate health --live --listen 127.0.0.1:8000

Exit codes: 0 ready (or alive, with --live), 1 not, 2 invalid arguments";

pub(super) const DOCTOR: &str = "\
Examples:
  slidegate doctor
  slidegate doctor --redis redis://127.0.0.1:6379
  slidegate doctor --config slidegate.yaml --json

Exit codes: 0 shared and exact, 1 shared with reservations, 2 not shared, not exact, or error";

pub(super) const CHECK: &str = "\
Examples:
  slidegate check user=alice
  slidegate check user=alice path=/login --cost 5 --peek
  slidegate check ip=192.0.2.7 --url https://limits.example --token-file token

Exit codes: 0 allowed, 1 denied, 2 error";

pub(super) const TOP: &str = "\
Examples:
  slidegate top
  slidegate top --by denied --policy per-user --limit 50
  slidegate top --json

Exit codes: 0 success, 2 error";

pub(super) const VALIDATE: &str = "\
Examples:
  slidegate validate slidegate.yaml
  slidegate validate slidegate.yaml --format github
  slidegate validate slidegate.yaml --keys 1M
  slidegate validate --envoy-config /etc/ratelimit/config

Exit codes: 0 valid, 2 invalid or not readable";

pub(super) const KEY: &str = "\
Examples:
  slidegate key show per-user alice
  slidegate key reset login-per-ip 192.0.2.7
  slidegate key refund per-user alice --cost 5
  slidegate key penalize per-user alice --cost 5
  slidegate key block per-user mallory --for 10m
  slidegate key unblock per-user mallory
  slidegate key override per-user alice 1000/1m --for 1h
  slidegate key clear per-user alice

Exit codes: 0 success, 2 error";

pub(super) const POLICY: &str = "\
Examples:
  slidegate policy list
  slidegate policy set per-user 200/1m
  slidegate policy set per-user --candidate 150/1m
  slidegate policy promote per-user
  slidegate policy set login 5/1m --scope ip --when path=/login
  slidegate policy unset login
  slidegate policy reset per-user --yes
  slidegate policy history
  slidegate policy undo

Exit codes: 0 success, 2 error";

pub(super) const TOKEN: &str = "\
Examples:
  slidegate token new --name alice
  slidegate token new --name gateway --scope decide,read

Exit codes: 0 success, 2 error";

pub(super) const EXPLAIN: &str = "\
Examples:
  slidegate explain user=alice path=/login --config slidegate.yaml
  slidegate explain user=alice --policy '100/1m per user'
  slidegate explain --envoy-config config --domain edge path=/login,ip=192.0.2.7

Exit codes: 0 success, 2 error";

pub(super) const REPLAY: &str = "\
Examples:
  slidegate replay access.log --policy '100/1m per ip'
  slidegate replay logs/*.gz --config slidegate.yaml --report report.html
  slidegate replay access.log --policy '100/1m per ip named per-ip' --sweep per-ip.limit=50..500
  slidegate replay app.json --field ip=request.client --field time=when

Exit codes: 0 success, 2 error";

pub(super) const DIFF: &str = "\
Examples:
  slidegate diff old.yaml new.yaml --log access.log
  slidegate diff old.yaml new.yaml --log logs/*.gz --fail-above 0.1% --format markdown

Exit codes: 0 accepted, 1 above a threshold, 2 error";

pub(super) const INIT: &str = "\
Examples:
  slidegate init --preset login
  slidegate init limits.yaml --force

Exit codes: 0 success, 2 error";

pub(super) const GENERATE: &str = "\
Examples:
  slidegate generate schema > slidegate.schema.json
  slidegate generate completions bash > /etc/bash_completion.d/slidegate
  slidegate generate completions zsh > ~/.zfunc/_slidegate
  slidegate generate completions fish > ~/.config/fish/completions/slidegate.fish
  slidegate generate man /usr/local/share/man/man1

Exit codes: 0 success, 2 error";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::Cli;
    use super::*;

    /// Splits a shell command line into words, up to a redirection.
    fn words(line: &str) -> Vec<String> {
        let line = line.split(" > ").next().unwrap_or_default();
        let mut words = vec![String::new()];
        for (at, part) in line.split('\'').enumerate() {
            if at % 2 == 1 {
                words.last_mut().expect("there is a word").push_str(part);
                continue;
            }
            for (at, piece) in part.split(' ').enumerate() {
                if at > 0 {
                    words.push(String::new());
                }
                words.last_mut().expect("there is a word").push_str(piece);
            }
        }
        words
    }

    /// Who looks for a command reads this list, on any terminal.
    #[test]
    fn each_command_is_in_a_group_and_each_line_fits() {
        fn check(command: &mut Command) {
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut cli = shaped(Cli::command());
        cli.build();
        check(&mut cli);
        let [short, long] = [cli.render_help(), cli.render_long_help()].map(|help| help.to_string());
        for command in cli.get_subcommands() {
            let line = format!("\n  {:<10}{}\n", command.get_name(), command.get_about().unwrap());
            assert!(long.contains(&line), "{line}{long}");
            assert_eq!(short.contains(&line), command.get_name() != "generate", "{line}{short}");
        }
        assert!(NEXT.lines().count() <= 15 && NEXT.lines().all(|line| line.len() <= 90), "{NEXT}");
    }

    /// Words of other programs lead to ours.
    #[test]
    fn other_words_for_a_command_are_answered_with_ours() {
        for (word, ours) in
            [("run", "serve"), ("status", "health"), ("version", "--version"), ("help", "--help")]
        {
            let error = Cli::try_parse_from(["slidegate", word]).unwrap_err();
            let line = format!("unknown command `{word}`; use `slidegate {ours}`");
            assert_eq!(other_word(&error), Some(line));
        }
        assert_eq!(other_word(&Cli::try_parse_from(["slidegate", "vaildate"]).unwrap_err()), None);
    }

    /// A copied example must work, and scripts need the exit codes, which the page also lists.
    #[test]
    fn the_help_of_each_command_has_examples_that_parse_and_the_exit_codes_of_the_page() {
        let page = include_str!("../../../../docs/commands.md");
        let cli = Cli::command();
        for command in cli.get_subcommands() {
            let name = command.get_name();
            let help = command.get_after_help().unwrap_or_else(|| panic!("{name} has no end")).to_string();
            let examples: Vec<_> = help.lines().filter_map(|line| line.strip_prefix("  ")).collect();
            assert!(!examples.is_empty(), "{name}");
            for example in examples {
                let words = words(example);
                assert_eq!(words[..2], ["slidegate", name], "{example}");
                Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
            let codes = help.lines().last().and_then(|line| line.strip_prefix("Exit codes: "));
            let codes = codes.unwrap_or_else(|| panic!("{name} says nothing of exit codes"));
            let row = format!("| `slidegate {name}` |");
            let row = page.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("no {row}"));
            let of_page: Vec<_> = row.split('|').skip(3).map(str::trim).take(3).collect();
            for (code, meaning) in ["0", "1", "2"].iter().zip(of_page) {
                let said = if meaning == "-" {
                    !codes.contains(&format!("{code} "))
                } else {
                    codes.contains(&format!("{code} {meaning}"))
                };
                assert!(said, "{name}: `{codes}`, but the page says {code} {meaning}");
            }
        }
    }
}
