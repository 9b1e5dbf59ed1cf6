//! What a run found, as JSON keeps it.

use serde::{Deserialize, Serialize};

use crate::target::{Ability, Promise, Target};

/// A run of several targets on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) seed: u64,
    pub(crate) suite: String,
    pub(crate) rows: Vec<Row>,
}

impl Record {
    /// As JSON, with a line for each row.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        let of = Self { rows: Vec::new(), ..self.clone() };
        let rows = self.rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        Ok(serde_json::to_string(&of)?
            .replace("\"rows\":[]", &format!("\"rows\":[\n{}\n]", rows.join(",\n")))
            + "\n")
    }
}

/// What was found of one target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) target: Target,
    pub(crate) version: String,
    pub(crate) can: Vec<Ability>,
    pub(crate) parts: Vec<Part>,
    pub(crate) chart: Option<Chart>,
}

/// What was found in one part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: crate::part::PartName,
    pub(crate) verdict: Verdict,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Judged(Figures),
    /// The machine was too busy, or answers took too long.
    NotJudged(String),
    /// The target has nothing of the kind.
    NotApplicable(String),
    /// It did not start, or reported errors only.
    Failed(String),
}

/// Figures of one part. Costs and numbers of calls, of all keys together where not said otherwise.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Figures {
    pub(crate) calls: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    /// The limit of a key.
    pub(crate) limit: u64,
    /// The most that one key was certainly admitted in one interval of the window.
    pub(crate) most: u64,
    /// Denials that were certainly wrong.
    pub(crate) wrong_denials: u64,
    /// By how much a promised wait was certainly too long, and too short, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_long_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_short_ms: Option<f64>,
    /// The answers while the store was away: admitted, denied, failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) away: Option<[u64; 3]>,
    /// The first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Figures {
    /// Whether more was admitted than `promise` allows. `None`: it promises no bound.
    pub(crate) fn is_over(&self, promise: Promise) -> Option<bool> {
        promise.most().map(|times| self.most > times * self.limit)
    }
}

/// What was admitted in the window that ends at each step, and the limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Chart {
    pub(crate) step_ms: u64,
    pub(crate) limit: u64,
    pub(crate) admitted: Vec<u64>,
}
