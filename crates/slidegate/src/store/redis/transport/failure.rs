//! Failures: why a call has no answer, and whether it may have been executed all the same.
//!
//! That last question decides everything: a call that was surely not executed may be made again, one that perhaps was
//! would charge twice.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Why a call to a shared store failed.
///
/// Each kind has a [name](Self::name), which is the label of the metric that counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// No connection could be made.
    Connection,
    /// TLS failed: a certificate is not accepted, or the other side does not speak TLS.
    Tls,
    /// The connection was lost before the reply arrived.
    ConnectionLost,
    /// The deadline passed without a reply.
    Timeout,
    /// The server ran the call after its deadline, so the call charged nothing.
    Late,
    /// The node's circuit breaker is open, so it was not called.
    BreakerOpen,
    /// Too many calls are waiting, so this one was not sent.
    Overloaded,
    /// `READONLY`: the node is a replica.
    ReadOnly,
    /// `OOM`: the server is at its `maxmemory`.
    OutOfMemory,
    /// `LOADING`: the server is reading its data from disk.
    Loading,
    /// `BUSY`: the server runs a slow script.
    Busy,
    /// `MISCONF`: the server refuses writes because it cannot save to disk.
    Misconfigured,
    /// `NOREPLICAS`: the server refuses writes because too few replicas follow it.
    TooFewReplicas,
    /// `MASTERDOWN`: the node is a replica without its master.
    MasterDown,
    /// `CLUSTERDOWN` or `TRYAGAIN`: the cluster does not serve the slot now.
    ClusterDown,
    /// `MOVED`, `ASK` or `CROSSSLOT`: the key is on another node, which could not be followed.
    Redirected,
    /// `NOSCRIPT`: the server does not keep the script although it was loaded.
    NoScript,
    /// `WRONGTYPE`: the key is of another Redis type, so another program wrote it.
    WrongType,
    /// The key's value is not one that this release can read.
    ForeignValue,
    /// `NOAUTH` or `WRONGPASS`: user or password is missing or wrong.
    Authentication,
    /// `NOPERM`: the user may not run the command or use the key.
    NoPermission,
    /// The reply could not be read.
    Malformed,
    /// Any other refusal; the failure's text has the server's words.
    Other,
}

impl FailureKind {
    /// Every kind, in the order of [`StoreErrors::iter`].
    pub const ALL: [Self; 23] = [
        Self::Connection,
        Self::Tls,
        Self::ConnectionLost,
        Self::Timeout,
        Self::Late,
        Self::BreakerOpen,
        Self::Overloaded,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::Loading,
        Self::Busy,
        Self::Misconfigured,
        Self::TooFewReplicas,
        Self::MasterDown,
        Self::ClusterDown,
        Self::Redirected,
        Self::NoScript,
        Self::WrongType,
        Self::ForeignValue,
        Self::Authentication,
        Self::NoPermission,
        Self::Malformed,
        Self::Other,
    ];

    /// The kind in one lower-case word, such as `timeout`, `readonly` or `oom`. Names do not change.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Tls => "tls",
            Self::ConnectionLost => "connection_lost",
            Self::Timeout => "timeout",
            Self::Late => "late",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::ReadOnly => "readonly",
            Self::OutOfMemory => "oom",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::Misconfigured => "misconf",
            Self::TooFewReplicas => "noreplicas",
            Self::MasterDown => "masterdown",
            Self::ClusterDown => "clusterdown",
            Self::Redirected => "redirected",
            Self::NoScript => "noscript",
            Self::WrongType => "wrongtype",
            Self::ForeignValue => "foreign_value",
            Self::Authentication => "auth",
            Self::NoPermission => "noperm",
            Self::Malformed => "malformed",
            Self::Other => "other",
        }
    }

    /// The kind of a server's error reply.
    pub(super) fn of(error: &ServerError) -> Self {
        let details = error.details().unwrap_or_default();
        match error.code() {
            // Servers before Redis 7 wrap what a script met in an error of their own: `ERR Error running script (call to
            // f_1b936e): @user_script:1: -OOM command not allowed`. Redis 7.0 and 8 each word a missing permission of
            // a script in their own way.
            "ERR"
                if ["can't run this command", "ACL failure in script"]
                    .iter()
                    .any(|words| details.contains(words)) =>
            {
                Self::NoPermission
            }
            "ERR" => details
                .split_whitespace()
                .filter_map(|word| word.strip_prefix('-').or(Some(word)))
                .find_map(Self::of_code)
                .unwrap_or(Self::Other),
            code => Self::of_code(code).unwrap_or(Self::Other),
        }
    }

    /// The kind that the first word of an error reply stands for.
    fn of_code(code: &str) -> Option<Self> {
        Some(match code {
            "READONLY" => Self::ReadOnly,
            "OOM" => Self::OutOfMemory,
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            "MISCONF" => Self::Misconfigured,
            "NOREPLICAS" => Self::TooFewReplicas,
            "MASTERDOWN" => Self::MasterDown,
            "CLUSTERDOWN" | "TRYAGAIN" => Self::ClusterDown,
            "MOVED" | "ASK" | "CROSSSLOT" => Self::Redirected,
            "NOSCRIPT" => Self::NoScript,
            "WRONGTYPE" => Self::WrongType,
            // What our scripts say of a value that they cannot read.
            "SLIDEGATE" => Self::ForeignValue,
            "NOAUTH" | "WRONGPASS" => Self::Authentication,
            "NOPERM" => Self::NoPermission,
            _ => return None,
        })
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many calls to a shared store failed, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreErrors([u64; FailureKind::ALL.len()]);

impl StoreErrors {
    /// Failures of this kind.
    #[must_use]
    pub fn of(&self, kind: FailureKind) -> u64 {
        self.0[kind as usize]
    }

    /// Every kind with its number of failures, zero included.
    pub fn iter(&self) -> impl Iterator<Item = (FailureKind, u64)> + '_ {
        FailureKind::ALL.into_iter().zip(self.0)
    }
}

/// Counts failures by kind.
#[derive(Debug, Default)]
pub(super) struct FailureCounts([AtomicU64; FailureKind::ALL.len()]);

impl FailureCounts {
    pub(super) fn count(&self, kind: FailureKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> StoreErrors {
        StoreErrors(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

/// Why a shared store did not decide, so that a policy's [fallback](crate::OnStoreError) did.
///
/// Its text is one line that names the node and what happened there, with the server's own words where it refused:
/// `redis at 10.0.0.5:6379: READONLY You can't write against a read only replica.`
#[derive(Debug, Clone)]
pub struct StoreFailure(pub(crate) Failure);

impl StoreFailure {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Failure {
    /// A failure that no single node is to blame for.
    pub(crate) fn of_none(executed: Executed, kind: FailureKind, detail: impl Into<String>) -> Self {
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
        ErrorKind::AuthenticationFailed => FailureKind::Authentication,
        ErrorKind::InvalidClientConfig => FailureKind::Other,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => FailureKind::Malformed,
        // Not for ever: more clients than the server may have, or one that is stopping.
        ErrorKind::Server(ServerErrorKind::ResponseError) if words_of(error).contains("max number") => {
            FailureKind::Connection
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            error.code().and_then(FailureKind::of_code).unwrap_or(FailureKind::Other)
        }
        _ if tls_hint(&words_of(error)).is_some() => FailureKind::Tls,
        _ => FailureKind::Connection,
    }
}

/// What to do about a TLS error, if these words of rustls are of one.
pub(super) fn tls_hint(words: &str) -> Option<&'static str> {
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

    fn kind(line: &str) -> FailureKind {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{line} is no error") };
        FailureKind::of(&error)
    }

    /// An operator who reads `readonly` looks for a failover, and for memory at `oom`.
    #[test]
    fn a_servers_refusals_are_told_apart() {
        for (line, expected) in [
            ("READONLY You can't write against a read only replica.", FailureKind::ReadOnly),
            (
                "READONLY You can't write against a read only replica. script: 1b, on @user_script:1.",
                FailureKind::ReadOnly,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", FailureKind::OutOfMemory),
            (
                "ERR Error running script (call to f_1b): @user_script:1: -OOM command not allowed",
                FailureKind::OutOfMemory,
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", FailureKind::WrongType),
            ("SLIDEGATE value 1 is not of layout 1 or 2: its first byte is 65", FailureKind::ForeignValue),
            ("LOADING Redis is loading the dataset in memory", FailureKind::Loading),
            ("BUSY Redis is busy running a script.", FailureKind::Busy),
            ("MISCONF Redis is configured to save RDB snapshots", FailureKind::Misconfigured),
            ("NOREPLICAS Not enough good replicas to write.", FailureKind::TooFewReplicas),
            ("MASTERDOWN Link with MASTER is down", FailureKind::MasterDown),
            ("CLUSTERDOWN Hash slot not served", FailureKind::ClusterDown),
            ("TRYAGAIN Multiple keys request during rehashing of slot", FailureKind::ClusterDown),
            ("MOVED 3999 127.0.0.1:6381", FailureKind::Redirected),
            ("NOSCRIPT No matching script.", FailureKind::NoScript),
            ("NOAUTH Authentication required.", FailureKind::Authentication),
            ("WRONGPASS invalid username-password pair", FailureKind::Authentication),
            ("NOPERM this user has no permissions", FailureKind::NoPermission),
            (
                "ERR The user executing the script can't run this command or subcommand script: 1b",
                FailureKind::NoPermission,
            ),
            (
                "ERR ACL failure in script: User slidegate has no permissions to run the 'set' command script: 02",
                FailureKind::NoPermission,
            ),
            ("ERR unknown command", FailureKind::Other),
            ("UNHEARD of", FailureKind::Other),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }

    /// Two kinds under one label would be one series, and a kind outside of `ALL` none.
    #[test]
    fn every_kind_has_a_label_and_a_counter_of_its_own() {
        let counts = FailureCounts::default();
        for (times, kind) in FailureKind::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| counts.count(kind));
            assert!(kind.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{kind}");
        }
        let errors = counts.read();
        for (times, (kind, count)) in errors.iter().enumerate() {
            assert_eq!((count, errors.of(kind)), (times as u64 + 1, times as u64 + 1), "{kind}");
        }
        let names: std::collections::HashSet<_> =
            FailureKind::ALL.into_iter().map(FailureKind::name).collect();
        assert_eq!(names.len(), FailureKind::ALL.len());
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
