//! A replay: what is decided about a log, and the outcome.

use std::io::{self, Write};
use std::sync::Arc;

use slidegate::PolicySet;

use crate::batch::{EntryBatch, attribute_names};
use crate::compare::exact;
use crate::decider::Options;
use crate::entry::Entry;
use crate::outcome::Outcome;
use crate::pass::{Job, Pass};
use crate::scenario::{Scenario, ScenarioRole};
use crate::stats::LogStats;
use crate::sweep::{Sweep, SweepPoint};
use crate::wording::{Wording, Words};

/// Most configurations and algorithms that are compared: each has up to three gates.
pub const MAX_COMPARED: usize = 16;

/// What to decide about a log.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The configuration. Without anything to compare, it is replayed by itself.
    pub policies: PolicySet,
    /// What to compare. At most [`MAX_COMPARED`].
    pub compare: Vec<NamedPolicies>,
    /// One policy of the configuration under many limits or windows.
    pub sweep: Option<Sweep>,
    /// Bounds.
    pub options: Options,
}

/// A set of policies with a name for the report.
#[derive(Debug, Clone)]
pub struct NamedPolicies {
    /// The name: a file, an algorithm.
    pub name: String,
    /// The policies.
    pub policies: PolicySet,
    /// Which of those compared have the same policies but for the algorithms: they share one
    /// exact scenario.
    pub family: usize,
}

impl Plan {
    /// Replays one configuration.
    #[must_use]
    pub fn of(policies: PolicySet, options: Options) -> Self {
        Self { policies, compare: Vec::new(), sweep: None, options }
    }
}

/// Decides the entries of a log in one pass.
#[derive(Debug)]
pub struct Replay {
    pass: Pass<ReplayJob>,
    sweep: Option<Sweep>,
    options: Options,
}

/// What decides: a scenario, or one value of the sweep.
#[derive(Debug)]
enum ReplayJob {
    Scenario(Box<Scenario>),
    SweepPoint(Box<SweepPoint>),
}

impl Job for ReplayJob {
    fn decide(&mut self, batch: &EntryBatch) -> io::Result<()> {
        match self {
            Self::Scenario(scenario) => scenario.decide(batch),
            Self::SweepPoint(point) => {
                point.decide(batch);
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Scenario(scenario) => scenario.finish(),
            Self::SweepPoint(_) => Ok(()),
        }
    }
}

impl Replay {
    /// Starts with empty stores.
    ///
    /// # Errors
    /// One line: the sweep does not fit the policies.
    pub fn new(plan: Plan, wording: &Arc<dyn Wording>) -> Result<Self, String> {
        Self::start(plan, wording, None)
    }

    /// The same, and writes each decision as a line of JSON to `each`, in order, on the thread that
    /// calls [`push`](Self::push). Of several scenarios it writes those of the first.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_each(
        plan: Plan,
        wording: &Arc<dyn Wording>,
        each: Box<dyn Write + Send>,
    ) -> Result<Self, String> {
        Self::start(plan, wording, Some(each))
    }

    fn start(
        plan: Plan,
        wording: &Arc<dyn Wording>,
        each: Option<Box<dyn Write + Send>>,
    ) -> Result<Self, String> {
        let Plan { policies, compare, sweep, options } = plan;
        if compare.len() > MAX_COMPARED {
            return Err(format!(
                "invalid --compare with {} configurations and algorithms: must be at most {MAX_COMPARED}; compare in \
                 several runs",
                compare.len()
            ));
        }
        let words = Words(Arc::clone(wording));
        let names = attribute_names(compare.iter().map(|one| &one.policies).chain([&policies]));
        let points = sweep.as_ref().map(|sweep| sweep.points(&policies, options)).transpose()?;
        let mut scenarios = if compare.is_empty() || points.is_some() {
            vec![Scenario::new("configured", ScenarioRole::Configured, policies, options, words.clone())]
        } else {
            Vec::new()
        };
        scenarios.extend(compared(compare, scenarios.len(), options, &words));
        let threads = if let (Some(each), Some(first)) = (each, scenarios.first_mut()) {
            first.write_each(each);
            0
        } else {
            options.threads
        };
        let scenarios = scenarios.into_iter().map(|scenario| ReplayJob::Scenario(Box::new(scenario)));
        let points = points.into_iter().flatten().map(|point| ReplayJob::SweepPoint(Box::new(point)));
        let jobs = scenarios.chain(points).collect();
        Ok(Self { pass: Pass::new(names, jobs, threads), sweep, options })
    }

    /// Takes one entry, which is decided now or together with later ones. An entry older than the
    /// last one is decided at the time of the last one.
    ///
    /// # Errors
    /// A decision cannot be written.
    pub fn push(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.pass.push(entry)
    }

    /// Decides what is left; `log` is what was read.
    ///
    /// # Errors
    /// A decision could not be written.
    pub fn finish(self, log: &LogStats) -> io::Result<Outcome> {
        let mut scenarios: Vec<Scenario> = Vec::new();
        let mut points: Vec<SweepPoint> = Vec::new();
        let (jobs, evidence) = self.pass.finish()?;
        for job in jobs {
            match job {
                ReplayJob::Scenario(scenario) => scenarios.push(*scenario),
                ReplayJob::SweepPoint(point) => points.push(*point),
            }
        }
        let sweep = self.sweep.as_ref().map(|sweep| (sweep, &points[..]));
        Ok(Outcome::of(log, &scenarios, sweep, self.options.top, &evidence))
    }
}

/// The scenarios of a comparison: those to compare, then an exact one for each family.
fn compared(compare: Vec<NamedPolicies>, before: usize, options: Options, words: &Words) -> Vec<Scenario> {
    let mut families: Vec<(usize, PolicySet, String)> = Vec::new();
    for one in &compare {
        if !families.iter().any(|(family, ..)| *family == one.family) {
            families.push((one.family, exact(&one.policies), one.name.clone()));
        }
    }
    let is_one = families.len() == 1;
    let first_exact = before + compare.len();
    let position = |family| families.iter().position(|(known, ..)| *known == family).unwrap_or(0);
    let subjects: Vec<Scenario> = compare
        .into_iter()
        .map(|NamedPolicies { name, policies, family }| {
            let role = ScenarioRole::Compared { exact: first_exact + position(family) };
            Scenario::new(name, role, policies, options, words.clone())
        })
        .collect();
    let exacts = families.into_iter().map(|(_, policies, of)| {
        let name = if is_one { "exact".to_owned() } else { format!("exact {of}") };
        Scenario::new(name, ScenarioRole::Exact, policies, options, words.clone())
    });
    subjects.into_iter().chain(exacts).collect()
}
