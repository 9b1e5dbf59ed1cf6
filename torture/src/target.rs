//! Targets as `targets/*.toml` describe them.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failed;

/// A limiter and how it is asked; the README describes each field.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) command: Vec<String>,
    pub(crate) promise: Promise,
    pub(crate) state: State,
    pub(crate) configuration: String,
    pub(crate) documentation: String,
    #[serde(default)]
    pub(crate) note: String,
    #[serde(default)]
    pub(crate) can: Vec<Ability>,
    #[serde(default)]
    pub(crate) version: Vec<String>,
    #[serde(skip_serializing)]
    pub(crate) http: Option<Http>,
    #[serde(skip_serializing)]
    pub(crate) resp: Option<Resp>,
    #[serde(skip_serializing)]
    pub(crate) rls: Option<Rls>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Stdio,
    Http,
    Resp,
    Rls,
}

/// What a limiter promises to admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Promise {
    Exact,
    Approximate,
    Bucket,
    Fixed,
}

impl Promise {
    /// The most in one window, as a multiple of the limit. `None`: it promises no bound.
    pub(crate) fn most(self) -> Option<u64> {
        match self {
            Self::Exact => Some(1),
            Self::Bucket | Self::Fixed => Some(2),
            Self::Approximate => None,
        }
    }
}

/// Where a limiter keeps its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Memory,
    Redis,
    Cluster,
}

/// What a limiter can do besides limiting calls of cost 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ability {
    Cost,
    Wait,
    Several,
    MaxKeys,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    pub(crate) method: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) body: String,
    pub(crate) admitted: Vec<u16>,
    pub(crate) denied: Vec<u16>,
    pub(crate) wait: Option<HttpWait>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum HttpWait {
    Header { header: String, unit: Unit },
    Json { json: String, unit: Unit },
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resp {
    pub(crate) command: Vec<String>,
    pub(crate) admitted: RespAdmitted,
    pub(crate) wait: Option<RespWait>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespAdmitted {
    pub(crate) index: usize,
    pub(crate) is: String,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RespWait {
    pub(crate) index: usize,
    pub(crate) unit: Unit,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rls {
    pub(crate) domain: String,
    pub(crate) entries: Vec<(String, String)>,
}

/// The unit of a wait in an answer.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    S,
    Ms,
}

impl Unit {
    pub(crate) fn duration(self, number: f64) -> Option<std::time::Duration> {
        let seconds = match self {
            Self::S => number,
            Self::Ms => number / 1e3,
        };
        std::time::Duration::try_from_secs_f64(seconds).ok()
    }
}

/// `text` with the key and the cost of a call.
pub(crate) fn filled(text: &str, key: &str, cost: u64) -> String {
    text.replace("{key}", key).replace("{cost}", &cost.to_string())
}

#[derive(Deserialize)]
struct File {
    target: Vec<Target>,
}

/// All targets in `folder`, in the order of the names of the files.
pub(crate) fn all(folder: &Path) -> Result<Vec<Target>, Failed> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut targets: Vec<Target> = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path)?;
        let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        targets.extend(file.target);
    }
    check(&targets)?;
    Ok(targets)
}

fn check(targets: &[Target]) -> Result<(), Failed> {
    let mut wrong = String::new();
    for (at, target) in targets.iter().enumerate() {
        let name = &target.name;
        let is_plain =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".-".contains(letter);
        if name.is_empty() || !name.chars().all(is_plain) {
            writeln!(wrong, "target {name:?}: a name has a-z, 0-9, `.` and `-`")?;
        }
        if targets[..at].iter().any(|other| other.name == *name) {
            writeln!(wrong, "target {name:?} is defined twice")?;
        }
        if target.command.is_empty() {
            writeln!(
                wrong,
                "target {name:?}: `command` is empty; it is the program to start and its arguments"
            )?;
        }
        let has_form = match target.kind {
            Kind::Stdio => target.can.is_empty() && target.version.is_empty(),
            Kind::Http => target.http.is_some(),
            Kind::Resp => target.resp.is_some(),
            Kind::Rls => target.rls.is_some(),
        };
        if !has_form {
            writeln!(
                wrong,
                "target {name:?}: http, resp and rls need a table [target.KIND]; a program that speaks lines says itself \
                 what it can and which version it is"
            )?;
        }
    }
    if targets.is_empty() {
        wrong.push_str("there are no targets");
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.trim_end().into()) }
}
