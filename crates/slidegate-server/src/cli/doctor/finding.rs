//! Findings: what a check found, how bad it is, and how to fix it.

use serde::Serialize;
use slidegate_redis::FailureKind;

/// The grade of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grade {
    Ok,
    /// Not judged: an earlier check failed and has its own grade.
    Skipped,
    /// Limits are shared, including reservations.
    Warning,
    /// Limits are not shared, or not exact.
    Fault,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) result: Grade,
    pub(super) found: String,
    /// How to fix it.
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Grade::Ok, found: found.into(), fix: None }
    }

    pub(super) fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Grade::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    pub(super) fn fault(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, result: Grade::Fault, found: found.into(), fix: Some(fix.into()) }
    }
}

/// How to fix a failure whose text does not say so.
pub(super) fn fix(kind: FailureKind, text: &str) -> String {
    let fix = match kind {
        _ if text.contains("DB index") => {
            "end the url with the number of a database that the server has, such as `/0`"
        }
        _ if text.contains("cluster support disabled") => {
            "the server is no cluster: write `redis://HOST:PORT`"
        }
        _ if text.contains("command 'SENTINEL'") || text.contains("command `SENTINEL`") => {
            "the server is no Sentinel: give the address of one, with port 26379 as a rule, or write `redis://HOST:PORT`"
        }
        FailureKind::Connection if text.contains("timed out") => {
            "look whether the server is stopped, and whether the host of the url is right and a firewall drops packets"
        }
        FailureKind::Connection if !text.contains("reset by peer") => {
            "start the server, or correct the host and port of the url; look at firewalls"
        }
        FailureKind::Connection | FailureKind::ConnectionLost | FailureKind::Malformed => {
            "give the address of a Redis server; if the server speaks TLS at this port, use a url that begins with `rediss`"
        }
        FailureKind::Timeout | FailureKind::Late | FailureKind::BreakerOpen => {
            "look whether the server is stopped or runs slow commands (SLOWLOG GET), and whether the network drops \
             packets"
        }
        FailureKind::Authentication => {
            "correct the user and password of the url (`redis://USER:PASSWORD@HOST`), or of the server (ACL SETUSER)"
        }
        FailureKind::NoPermission => return missing_right(text),
        FailureKind::ReadOnly | FailureKind::MasterDown => {
            "give the url of the master, or those of its Sentinels: `redis+sentinel://HOST,HOST/NAME`"
        }
        FailureKind::OutOfMemory => "raise `maxmemory`, or delete what else is stored there",
        FailureKind::Misconfigured => "look at the server's disk and log: it cannot save, and refuses writes",
        FailureKind::TooFewReplicas => "start its replicas, or lower `min-replicas-to-write`",
        FailureKind::Loading => "wait until the server has loaded its data",
        FailureKind::Busy => "end the slow script of another client: SCRIPT KILL",
        FailureKind::ClusterDown | FailureKind::Redirected => {
            "look at CLUSTER INFO: each slot needs a master; give a url that begins with `redis+cluster`"
        }
        FailureKind::NoScript => "do without the proxy in between, or use a Redis that keeps scripts",
        FailureKind::WrongType | FailureKind::ForeignValue => {
            "use a database of its own for slidegate, or upgrade: something else, or a newer release, writes keys that \
             begin with `sg1:`"
        }
        _ => {
            "use a server that runs Lua scripts, such as Redis 7.0 or Valkey: see docs/redis.md, Redis versions"
        }
    };
    fix.to_owned()
}

/// How to grant the right that a refusal names.
fn missing_right(text: &str) -> String {
    let within = |before: &str, after: char| Some(text.split_once(before)?.1.split_once(after)?.0);
    let right = within("give it `", '`').map(str::to_owned);
    let right = right.or_else(|| within("to run the '", '\'').map(|command| format!("+{command}")));
    let right = right.or_else(|| text.contains(" key").then(|| "~sg1:*".to_owned()));
    let right = right.unwrap_or_else(|| "...".to_owned());
    format!("give the user the right: `ACL SETUSER USER {right}`; docs/redis.md lists all that it needs")
}
