//! Failures: why a call has no answer, and whether it may have been executed all the same.
//!
//! That last question decides everything: a call that was surely not executed may be made again, one that perhaps was
//! would charge twice.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

/// Why a call has no answer.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) executed: Executed,
    pub(crate) kind: FailureKind,
    /// The node that was to answer: `10.0.0.5:6379` or a socket's path; empty where none of them is to blame.
    pub(crate) node: String,
    /// What happened, in lower case; the server's own words where it said no.
    pub(crate) detail: String,
}

/// Whether the server may have carried out a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executed {
    /// Surely not.
    No,
    /// Nobody here knows.
    Maybe,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// There is no connection.
    Unreachable,
    /// The deadline passed.
    TimedOut,
    /// The connection was lost with the call on it.
    Broken,
    /// The node's breaker is open.
    Open,
    /// Too many calls are waiting for this node.
    Shed,
    /// The server said no.
    Refused,
    /// The answer was none that can be read.
    Malformed,
}

impl Failure {
    /// A failure that no single node is to blame for.
    pub(super) fn of_none(executed: Executed, kind: FailureKind, detail: impl Into<String>) -> Self {
        Self { executed, kind, node: String::new(), detail: detail.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node.as_str() {
            "" => write!(f, "redis: {}", self.detail),
            node => write!(f, "redis at {node}: {}", self.detail),
        }
    }
}

/// What a server's error asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The slot lies elsewhere from now on. The host may be empty: the one that said so.
    Moved { slot: u16, to: String },
    /// This key alone lies elsewhere, for this once.
    Ask { to: String },
    /// The script has to be loaded first.
    NoScript,
    /// Nothing was executed; it may work in a moment.
    Again,
    /// It would be refused again.
    No(Executed),
}

impl Word {
    pub(super) fn of(error: &ServerError) -> Self {
        match error.kind() {
            Some(ServerErrorKind::Moved) => match redirection(error) {
                Some((slot, to)) => Self::Moved { slot, to },
                None => Self::No(Executed::No),
            },
            Some(ServerErrorKind::Ask) => match redirection(error) {
                Some((_, to)) => Self::Ask { to },
                None => Self::No(Executed::No),
            },
            Some(ServerErrorKind::NoScript) => Self::NoScript,
            // A replica refuses a script's first write, so READONLY from inside a script has written nothing either.
            Some(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly,
            ) => Self::Again,
            Some(ServerErrorKind::CrossSlot) => Self::No(Executed::No),
            _ => match error.code() {
                "BUSY" => Self::Again,
                // Raised before the first command, unless the words tell of a script that was running.
                "NOPERM" | "NOAUTH" | "WRONGPASS" | "OOM" | "NOREPLICAS" | "MISCONF" => {
                    let running = error.details().is_some_and(|words| words.contains("script: "));
                    Self::No(if running { Executed::Maybe } else { Executed::No })
                }
                _ => Self::No(Executed::Maybe),
            },
        }
    }
}

/// `3999 10.0.0.5:6381`: a slot and an address.
fn redirection(error: &ServerError) -> Option<(u16, String)> {
    let (slot, to) = error.details()?.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| *slot < super::slot::SLOTS)?;
    Some((slot, to.trim().to_owned()))
}

/// The server's words: its code and what follows.
pub(super) fn words(error: &ServerError) -> String {
    match error.details() {
        Some(details) => line(&format!("{} {details}", error.code())),
        None => line(error.code()),
    }
}

/// What a connection that could not be made says about the node.
pub(super) fn of_connecting(error: &RedisError) -> FailureKind {
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => FailureKind::Refused,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => FailureKind::Malformed,
        // Not for ever: more clients than the server may have, or one that is stopping.
        ErrorKind::Server(ServerErrorKind::ResponseError) if words_of(error).contains("max number") => {
            FailureKind::Unreachable
        }
        ErrorKind::Server(_) | ErrorKind::Extension => FailureKind::Refused,
        _ => FailureKind::Unreachable,
    }
}

/// An error of redis-rs in one line: of a reply that it cannot read it says more than one.
pub(super) fn words_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => line(&format!("{code} {detail}")),
        _ => line(&error.to_string()),
    }
}

/// The most characters of a server's words that are passed on.
const LONGEST_WORDS: usize = 300;

/// Text that came from outside, as one line of bounded length.
fn line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(LONGEST_WORDS).collect()
}

/// Whether a server refused the greeting because it does not know it.
pub(super) fn knows_no_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.to_ascii_lowercase().contains("unknown command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(line: &str) -> Word {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{line} is no error") };
        Word::of(&error)
    }

    /// What was not executed may be tried again within the deadline; this list is what that rests on.
    #[test]
    fn errors_before_execution_ask_for_another_try() {
        for line in [
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN The cluster is down",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only replica. script: 1b936e, on @user_script:1.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ] {
            assert_eq!(word(line), Word::Again, "{line}");
        }
        assert_eq!(word("NOSCRIPT No matching script. Please use EVAL."), Word::NoScript);
    }

    /// A redirection misread sends calls to nowhere.
    #[test]
    fn redirections_name_slot_and_address() {
        assert_eq!(
            word("MOVED 3999 127.0.0.1:6381"),
            Word::Moved { slot: 3999, to: "127.0.0.1:6381".into() }
        );
        assert_eq!(word("ASK 3999 ::1:6381"), Word::Ask { to: "::1:6381".into() });
        assert_eq!(word("MOVED 3999 :6381"), Word::Moved { slot: 3999, to: ":6381".into() });
        assert_eq!(word("MOVED 16384 h:1"), Word::No(Executed::No));
        assert_eq!(word("MOVED"), Word::No(Executed::No));
    }

    /// Refusals that stay are reported at once, not repeated until the deadline.
    #[test]
    fn refusals_that_stay_are_not_tried_again() {
        for line in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist on disk.",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ] {
            assert_eq!(word(line), Word::No(Executed::No), "{line}");
        }
    }

    /// What a server says ends up in logs: it must not forge lines there, or fill them.
    #[test]
    fn a_servers_words_are_one_line_of_bounded_length() {
        assert_eq!(line("a\r\nb\0 \x1b[0m  c\n"), "a b [0m c");
        assert_eq!(line(&"é".repeat(1000)).chars().count(), LONGEST_WORDS);
    }

    /// A script that stopped half-way may have charged.
    #[test]
    fn an_error_from_inside_a_script_leaves_open_what_was_done() {
        assert_eq!(
            word(
                "OOM command not allowed when used memory > 'maxmemory'. script: 1b936e, on @user_script:1."
            ),
            Word::No(Executed::Maybe)
        );
        assert_eq!(word("ERR user_script:3: attempt to index a nil value"), Word::No(Executed::Maybe));
    }
}
