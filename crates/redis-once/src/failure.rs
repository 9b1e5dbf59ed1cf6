//! Failures: why a call got no usable reply, and whether it may have been executed.
//!
//! A call that was certainly not executed may be repeated. Repeating one that may have been
//! executed could charge twice.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redis::ServerError;

/// Why a call got no usable reply.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Whether the call may still have been executed.
    pub executed: Executed,
    /// The kind of failure.
    pub kind: FailureKind,
    /// The node called: `10.0.0.5:6379` or a socket path; empty if no node is the cause.
    pub node: String,
    /// Description in lower case, with the server's own words for an error reply.
    pub detail: String,
}

/// Whether the server may have executed a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// Certainly not.
    No,
    /// Unknown.
    Maybe,
}

macro_rules! failure_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// Why a call failed.
        ///
        /// Each kind has a [name](Self::name), for example for a metric label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FailureKind {
            $($(#[$doc])* $kind,)*
        }

        impl FailureKind {
            /// Every kind, in the order of [`FailureCounts::iter`].
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The kind in one lower-case word, such as `timeout`, `readonly` or `oom`. Names are stable.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

failure_kinds! {
    /// No connection could be made.
    Connection = "connection",
    /// TLS failed: a certificate is not accepted, or the other side does not speak TLS.
    Tls = "tls",
    /// The connection was lost before the reply arrived.
    ConnectionLost = "connection_lost",
    /// The deadline passed without a reply.
    Timeout = "timeout",
    /// The server ran the call after its deadline, so the call charged nothing.
    Late = "late",
    /// The node's circuit breaker is open, so it was not called.
    BreakerOpen = "breaker_open",
    /// Too many calls are waiting, so this one was not sent.
    Overloaded = "overloaded",
    /// `READONLY`: the node is a replica.
    ReadOnly = "readonly",
    /// `OOM`: the server is at its `maxmemory`.
    OutOfMemory = "oom",
    /// `LOADING`: the server is reading its data from disk.
    Loading = "loading",
    /// `BUSY`: the server runs a slow script.
    Busy = "busy",
    /// `MISCONF`: the server refuses writes because it cannot save to disk.
    Misconfigured = "misconf",
    /// `NOREPLICAS`: the server refuses writes because too few replicas follow it.
    TooFewReplicas = "noreplicas",
    /// `MASTERDOWN`: the node is a replica without its master.
    MasterDown = "masterdown",
    /// `CLUSTERDOWN` or `TRYAGAIN`: the cluster does not serve the slot now.
    ClusterDown = "clusterdown",
    /// `MOVED`, `ASK` or `CROSSSLOT`: the key is on another node that could not be reached by redirection.
    Redirected = "redirected",
    /// `NOSCRIPT`: the server does not keep the script although it was loaded.
    NoScript = "noscript",
    /// `WRONGTYPE`: the key has another Redis type, so another program wrote it.
    WrongType = "wrongtype",
    /// The caller's script raised its own error,
    /// [`Application::script_error`](crate::Application::script_error): it cannot read the key's value.
    ForeignValue = "foreign_value",
    /// `NOAUTH` or `WRONGPASS`: user or password is missing or wrong.
    Authentication = "auth",
    /// `NOPERM`: the user may not run the command or use the key.
    NoPermission = "noperm",
    /// The reply was unreadable, or larger than any valid reply to the call.
    Malformed = "malformed",
    /// Any other error reply; the failure's text contains it.
    Other = "other",
}

impl FailureKind {
    /// The kind of an error reply. The caller's scripts raise errors with the code `own`.
    pub(crate) fn of(error: &ServerError, own: &str) -> Self {
        let details = error.details().unwrap_or_default();
        let of_code = |code: &str| if code == own { Some(Self::ForeignValue) } else { Self::of_code(code) };
        match error.code() {
            // Servers before Redis 7 wrap script errors: `ERR Error running script (call to f_1b936e):
            // @user_script:1: -OOM command not allowed`. Redis 7.0 and 8 word a script's missing permission
            // differently.
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
                .find_map(of_code)
                .unwrap_or(Self::Other),
            code => of_code(code).unwrap_or(Self::Other),
        }
    }

    /// The kind for the first word of an error reply.
    pub(crate) fn of_code(code: &str) -> Option<Self> {
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

/// Failed calls by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureCounts([u64; FailureKind::ALL.len()]);

impl FailureCounts {
    /// Failures of this kind.
    #[must_use]
    pub fn of(&self, kind: FailureKind) -> u64 {
        self.0[kind as usize]
    }

    /// Every kind and its number of failures, including zeros.
    pub fn iter(&self) -> impl Iterator<Item = (FailureKind, u64)> + '_ {
        FailureKind::ALL.into_iter().zip(self.0)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; FailureKind::ALL.len()]);

impl Counters {
    pub(crate) fn count(&self, kind: FailureKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> FailureCounts {
        FailureCounts(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

impl Failure {
    /// A failure that no single node caused.
    #[must_use]
    pub fn without_node(executed: Executed, kind: FailureKind, detail: impl Into<String>) -> Self {
        Self { executed, kind, node: String::new(), detail: detail.into() }
    }
}

/// The last failure of a call, readable while the call is still being repeated.
#[derive(Debug, Default)]
pub struct LastFailure(Mutex<Option<Failure>>);

impl LastFailure {
    /// Sets or clears it.
    pub fn set(&self, failure: Option<Failure>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// The last failure.
    #[must_use]
    pub fn get(&self) -> Option<Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node.as_str() {
            "" => write!(f, "redis: {}", self.detail),
            node => write!(f, "redis at {node}: {}", self.detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> FailureKind {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{line} is no error") };
        FailureKind::of(&error, "APP")
    }

    /// An operator who reads `readonly` suspects a failover; `oom` points to memory.
    #[test]
    fn each_refusal_of_a_server_has_its_kind() {
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
            ("APP value 1 is not of layout 1 or 2: its first byte is 65", FailureKind::ForeignValue),
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

    /// Two kinds with one label would share a series; a kind missing from `ALL` would have none.
    #[test]
    fn every_kind_has_a_label_and_a_counter_of_its_own() {
        let counts = Counters::default();
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
}
