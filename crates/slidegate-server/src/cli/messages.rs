//! Messages on standard error: their levels, and their form for people and for programs.

use std::fmt;
use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::failure::Failure;

/// Silences the HTTP/2 library's warnings about client behaviour: they could fill a disk.
const QUIET: &str = "h2=error";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A level, or a filter of levels by module. The library takes any other word for a module, and silences the rest.
pub(super) fn level(text: &str) -> Result<String, String> {
    let is_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or_default();
        LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
    };
    if text.split(',').all(is_level) && text.parse::<Targets>().is_ok() {
        return Ok(text.to_owned());
    }
    Err(format!("must be {}, or a filter such as `slidegate=debug`", LEVELS.join(", ")))
}

/// Starts to write messages of this [`level`].
pub(super) fn start(level: &str, is_json: bool) -> Result<(), Failure> {
    let targets: Targets = format!("{QUIET},{level}").parse()?;
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(std::io::stderr)
        // These errors would go to standard error, which just failed.
        .log_internal_errors(false);
    if is_json {
        log.json().finish().with(targets).init();
    } else {
        let is_terminal = std::io::stderr().is_terminal();
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_colours =
            is_terminal && !is_set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        // In files, lines are looked for by their targets, such as `slidegate::denials`.
        log.with_timer(Clock { is_terminal })
            .with_target(!is_terminal)
            .with_ansi(has_colours)
            .finish()
            .with(targets)
            .init();
    }
    Ok(())
}

/// The time of a message: of the day on a terminal, with the date in files, both in whole seconds.
struct Clock {
    is_terminal: bool,
}

impl FormatTime for Clock {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        if self.is_terminal {
            return write!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"));
        }
        write!(out, "{:.0}", jiff::Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::level;

    /// A level that the library takes for the name of a module silences every warning.
    #[test]
    fn what_is_no_level_is_refused() {
        for text in ["off", "WARN", "slidegate=debug", "info,slidegate::denials=off"] {
            assert_eq!(level(text).as_deref(), Ok(text));
        }
        for text in ["warning", "loud", "", "info,", "slidegate", "slidegate=loud", "WARNING", "1"] {
            let expected =
                "must be off, error, warn, info, debug, trace, or a filter such as `slidegate=debug`";
            assert_eq!(level(text).unwrap_err(), expected, "{text}");
        }
    }
}
