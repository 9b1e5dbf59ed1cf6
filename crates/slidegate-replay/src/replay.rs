//! A replay: decides a log and returns the outcome.

use std::io::{self, Write};
use std::sync::Arc;

use slidegate::PolicySet;

use crate::batch::{EntryBatch, attribute_names};
use crate::decider::Options;
use crate::entry::Entry;
use crate::evidence::{Missing, decidable};
use crate::outcome::Outcome;
use crate::pass::{Job, Pass};
use crate::scenario::Scenario;
use crate::stats::LogStats;
use crate::sweep::{Sweep, SweepPoint};
use crate::wording::{Wording, Words};

/// The decisions to make about a log.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The configuration.
    pub policies: PolicySet,
    /// One policy of the configuration under many limits or windows.
    pub sweep: Option<Sweep>,
    /// Bounds.
    pub options: Options,
}

impl Plan {
    /// Replays one configuration.
    #[must_use]
    pub fn of(policies: PolicySet, options: Options) -> Self {
        Self { policies, sweep: None, options }
    }
}

/// Decides the entries of a log in one pass.
#[derive(Debug)]
pub struct Replay {
    pass: Pass<ReplayJob>,
    sweep: Option<Sweep>,
    options: Options,
    /// Messages about policies that are not decided.
    left_out: Missing,
}

/// A job: the configuration, or one value of the sweep.
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
}

impl Replay {
    /// Starts with empty stores.
    ///
    /// # Errors
    /// One line: the sweep does not fit the policies.
    pub fn new(plan: Plan, wording: &Arc<dyn Wording>) -> Result<Self, String> {
        Self::with_each(plan, wording, None)
    }

    /// [`new`](Self::new) that also writes each decision as a line of JSON to `each`, in order, on
    /// the thread that calls [`push`](Self::push).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_each(
        plan: Plan,
        wording: &Arc<dyn Wording>,
        each: Option<Box<dyn Write + Send>>,
    ) -> Result<Self, String> {
        let Plan { policies, sweep, options } = plan;
        let points = sweep.as_ref().map(|sweep| sweep.points(&policies, options)).transpose()?;
        let (policies, left_out) = decidable(&policies);
        let names = attribute_names([&policies]);
        let threads = if each.is_some() { 0 } else { options.threads };
        let scenario = Scenario::new(policies, options, Words(Arc::clone(wording)), each);
        let scenario = ReplayJob::Scenario(Box::new(scenario));
        let points = points.into_iter().flatten().map(|point| ReplayJob::SweepPoint(Box::new(point)));
        let jobs = std::iter::once(scenario).chain(points).collect();
        Ok(Self { pass: Pass::new(names, jobs, threads), sweep, options, left_out })
    }

    /// Takes one entry and decides it now or together with later ones. An entry older than the last
    /// one is decided at the last one's time.
    ///
    /// # Errors
    /// A decision cannot be written.
    pub fn push(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.pass.push(entry)
    }

    /// Decides the rest; `log` describes the logs read.
    ///
    /// # Errors
    /// A decision could not be written.
    pub fn finish(self, log: &LogStats) -> io::Result<Outcome> {
        let (jobs, evidence) = self.pass.finish()?;
        let mut jobs = jobs.into_iter();
        let Some(ReplayJob::Scenario(mut scenario)) = jobs.next() else {
            unreachable!("the first job is the configuration")
        };
        scenario.finish()?;
        let points: Vec<SweepPoint> = jobs
            .filter_map(|job| match job {
                ReplayJob::SweepPoint(point) => Some(*point),
                ReplayJob::Scenario(_) => None,
            })
            .collect();
        let sweep = self.sweep.as_ref().map(|sweep| (sweep, &points[..]));
        Ok(Outcome::of(log, &scenario, sweep, self.options.top, self.left_out, &evidence))
    }
}
