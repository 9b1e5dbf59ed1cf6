//! Error replies and connection errors: their meaning for a call, and their text in one line.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use crate::failure::{Executed, FailureKind};

/// How to handle an error reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ErrorReply {
    /// `MOVED`: the slot is on another node. An empty host means the host that replied.
    Moved { slot: u16, to: String },
    /// `ASK`: this key is on another node, for this call only.
    Ask { to: String },
    /// The script must be loaded first.
    NoScript,
    /// Nothing was executed; a retry may succeed.
    Retry,
    /// A retry would also fail.
    Fail(Executed),
}

impl ErrorReply {
    pub(crate) fn of(error: &ServerError) -> Self {
        match error.kind() {
            Some(ServerErrorKind::Moved) => match redirection(error) {
                Some((slot, to)) => Self::Moved { slot, to },
                None => Self::Fail(Executed::No),
            },
            Some(ServerErrorKind::Ask) => match redirection(error) {
                Some((_, to)) => Self::Ask { to },
                None => Self::Fail(Executed::No),
            },
            Some(ServerErrorKind::NoScript) => Self::NoScript,
            // A replica rejects a script's first write, so READONLY from a script has written
            // nothing.
            Some(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly,
            ) => Self::Retry,
            Some(ServerErrorKind::CrossSlot) => Self::Fail(Executed::No),
            _ => match error.code() {
                "BUSY" => Self::Retry,
                // Raised before the first command, unless the text names a running script.
                "NOPERM" | "NOAUTH" | "WRONGPASS" | "OOM" | "NOREPLICAS" | "MISCONF" => {
                    let running = error.details().is_some_and(|words| words.contains("script: "));
                    Self::Fail(if running { Executed::Maybe } else { Executed::No })
                }
                _ => Self::Fail(Executed::Maybe),
            },
        }
    }
}

/// Parses `3999 10.0.0.5:6381`: a slot and an address.
fn redirection(error: &ServerError) -> Option<(u16, String)> {
    let (slot, to) = error.details()?.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| *slot < super::slot::SLOTS)?;
    Some((slot, to.trim().to_owned()))
}

/// The error reply: its code and text.
pub(crate) fn reply_text(error: &ServerError) -> String {
    match error.details() {
        Some(details) => line(&format!("{} {}", error.code(), without_user(details))),
        None => line(error.code()),
    }
}

/// The kind of a failed connection attempt.
pub(crate) fn kind_of_connect_error(error: &RedisError) -> FailureKind {
    match error.kind() {
        ErrorKind::AuthenticationFailed => FailureKind::Authentication,
        ErrorKind::InvalidClientConfig => FailureKind::Other,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => FailureKind::Malformed,
        // May be temporary: too many clients, or a server that is shutting down.
        ErrorKind::Server(ServerErrorKind::ResponseError) if error_text(error).contains("max number") => {
            FailureKind::Connection
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            error.code().and_then(FailureKind::of_code).unwrap_or(FailureKind::Other)
        }
        _ if tls_hint(&error_text(error)).is_some() => FailureKind::Tls,
        _ => FailureKind::Connection,
    }
}

/// Advice for a TLS error, recognized by rustls' wording.
pub(crate) fn tls_hint(words: &str) -> Option<&'static str> {
    let hints = [
        (
            "UnknownIssuer",
            "no trusted authority has signed the server's certificate; trust the one that has, with `ca_file` or \
             `ca_certificates`",
        ),
        (
            "not valid for",
            "the server's certificate is for another name; use that name in the url, or give the server a certificate for \
             this one",
        ),
        ("certificate expired", "renew the server's certificate, or set this machine's clock right"),
        (
            "certificate not valid yet",
            "set this machine's clock right, or that of who signed the server's certificate",
        ),
        (
            "CertificateRequired",
            "the server asks for a client certificate; give one, with `cert_file` and `key_file` or `client_certificate`",
        ),
        ("UnknownCA", "the server does not trust the authority of our client certificate"),
        (
            "InvalidContentType",
            "nobody speaks TLS at this address; use the server's `tls-port`, or a url without TLS",
        ),
        ("invalid peer certificate", "look at the server's certificate"),
        ("received fatal alert", "the server has refused our side of TLS; its log says why"),
    ];
    hints.into_iter().find(|(word, _)| words.contains(word)).map(|(_, hint)| hint)
}

/// An error of redis-rs in one line; for a malformed reply it prints several.
pub(crate) fn error_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => line(&format!("{code} {}", without_user(detail))),
        _ => line(&error.to_string()),
    }
}

/// The text without our Redis user's name, which servers since Redis 7.2 include.
#[must_use]
pub fn without_user(text: &str) -> String {
    let named = text.split_once("User ").and_then(|(before, named)| {
        let (_, rest) = named.split_once(" has no permissions")?;
        Some(format!("{before}this user has no permissions{rest}"))
    });
    named.unwrap_or_else(|| text.to_owned())
}

/// Maximum characters of a server's error text.
const MAX_ERROR_CHARS: usize = 300;

/// External text as one line of bounded length. Servers repeat the arguments of unknown commands,
/// which may contain a password or keys.
#[must_use]
pub fn line(text: &str) -> String {
    let text = text
        .split_once("with args beginning with")
        .map_or(text, |(before, _)| before.trim_end_matches([',', ' ']));
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(MAX_ERROR_CHARS).collect()
}

/// Whether a server rejected `HELLO` because it does not know it.
pub(crate) fn lacks_resp3(error: &RedisError) -> bool {
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.detail().is_some_and(|detail| detail.to_ascii_lowercase().contains("unknown command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(line: &str) -> ErrorReply {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{line} is no error") };
        ErrorReply::of(&error)
    }

    /// Calls that were not executed may be repeated within the deadline, so this list must be
    /// right.
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
            assert_eq!(word(line), ErrorReply::Retry, "{line}");
        }
        assert_eq!(word("NOSCRIPT No matching script. Please use EVAL."), ErrorReply::NoScript);
    }

    /// A misread redirection would send calls to the wrong address.
    #[test]
    fn redirections_name_slot_and_address() {
        assert_eq!(
            word("MOVED 3999 127.0.0.1:6381"),
            ErrorReply::Moved { slot: 3999, to: "127.0.0.1:6381".into() }
        );
        assert_eq!(word("ASK 3999 ::1:6381"), ErrorReply::Ask { to: "::1:6381".into() });
        assert_eq!(word("MOVED 3999 :6381"), ErrorReply::Moved { slot: 3999, to: ":6381".into() });
        assert_eq!(word("MOVED 16384 h:1"), ErrorReply::Fail(Executed::No));
        assert_eq!(word("MOVED"), ErrorReply::Fail(Executed::No));
    }

    /// Permanent errors are reported at once, not retried until the deadline.
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
            assert_eq!(word(line), ErrorReply::Fail(Executed::No), "{line}");
        }
    }

    /// Server text ends up in logs: it must not forge log lines or fill the log.
    #[test]
    fn a_servers_words_are_one_line_of_bounded_length() {
        assert_eq!(line("a\r\nb\0 \x1b[0m  c\n"), "a b [0m c");
        assert_eq!(line(&"é".repeat(1000)).chars().count(), MAX_ERROR_CHARS);
    }

    /// A user name is half of a login, and error text ends up in logs and responses.
    #[test]
    fn a_servers_words_do_not_name_our_user() {
        for (words, expected) in [
            (
                "User me has no permissions to run the 'time' command",
                "this user has no permissions to run the 'time' command",
            ),
            (
                "ACL failure in script: User me has no permissions to run the 'set' command script: 02",
                "ACL failure in script: this user has no permissions to run the 'set' command script: 02",
            ),
            ("User limits are unknown", "User limits are unknown"),
        ] {
            assert_eq!(without_user(words), expected);
        }
    }

    /// A script that stopped halfway may have charged.
    #[test]
    fn an_error_from_inside_a_script_leaves_open_what_was_done() {
        assert_eq!(
            word(
                "OOM command not allowed when used memory > 'maxmemory'. script: 1b936e, on @user_script:1."
            ),
            ErrorReply::Fail(Executed::Maybe)
        );
        assert_eq!(
            word("ERR user_script:3: attempt to index a nil value"),
            ErrorReply::Fail(Executed::Maybe)
        );
    }
}
