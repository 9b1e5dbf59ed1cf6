//! The last hour of this instance in steps of ten seconds, so the dashboard starts with data.
//!
//! Decisions do not write here: a task samples existing counters. A series is a policy, a verdict
//! and a source. Excess policies are summed, so memory is bounded for any number of policies
//! ([`bytes_at_most`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Policy;

use super::histogram::{Histogram, Reading};
use super::policy_counters::{HoldOutcome, OTHERS, Outcome, PolicyCounters, SOURCES};
use crate::clock::millis;

/// Length of a step.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// Steps kept: an hour.
pub(crate) const STEPS: usize = 360;
/// Maximum series: 128 policies that allow, deny and hold. Excess policies are summed under
/// [`OTHERS`].
const MAX_SERIES: usize = 384;
/// Counters of one policy's checks, by verdict and source.
const CHECKS: usize = Outcome::ALL.len() * SOURCES.len();
/// Maximum markers; the newest are kept.
const MAX_MARKERS: usize = 100;
/// Maximum bytes of a marker's text.
const MAX_MARKER: usize = 300;
/// Bytes per policy of its counts at the last sample, in a hash table that is half full.
const BYTES_PER_POLICY: usize = 2 * (size_of::<(u32, [u32; CHECKS])>() + 1);
/// Bytes of a series without its values.
const BYTES_PER_SERIES: usize = size_of::<Series>() + Policy::MAX_NAME;

/// The last hour.
#[derive(Debug, Default)]
pub(crate) struct History {
    record: Mutex<RecordedSteps>,
    markers: Mutex<VecDeque<Marker>>,
}

/// Something that happened, to be marked on charts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Marker {
    pub(crate) at_ms: u64,
    pub(crate) what: MarkerKind,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarkerKind {
    Started,
    Reloaded,
    Rejected,
    ChangesLost,
    /// A limit was changed at run time.
    Changed,
}

/// The state of the service at one moment. Counts are since the start.
#[derive(Debug)]
pub(crate) struct Sample<'s> {
    /// Wall clock.
    pub(crate) at_ms: u64,
    /// Uptime, by the monotonic clock.
    pub(crate) uptime: Duration,
    /// Allowed and denied requests.
    pub(crate) requests: [u64; 2],
    pub(crate) state: State,
    /// All policies with counters, inactive ones included.
    pub(crate) policies: &'s [Arc<PolicyCounters>],
    /// Cost held by open reservations, by policy.
    pub(crate) held: HashMap<Arc<str>, u64>,
    /// Durations of decisions by the shared store.
    pub(crate) store: Option<&'s Histogram>,
}

/// Gauges at one moment.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct State {
    /// Keys in the memory store.
    pub(crate) keys: u64,
    /// Keys evicted while they still counted, since the start.
    pub(crate) dropped_keys: u64,
    /// Open reservations that this instance made.
    pub(crate) open_reservations: u64,
    pub(crate) pending_settlements: u64,
    /// Notifications that nobody got, since the start.
    pub(crate) undelivered: u64,
    pub(crate) is_degraded: bool,
}

/// The recorded steps, oldest first.
#[derive(Debug, Clone, Default)]
struct RecordedSteps {
    steps: VecDeque<HistoryStep>,
    /// Each has one value per step.
    series: Vec<Series>,
    totals: Totals,
}

/// Totals at the last sample. They may wrap: only small differences are used.
#[derive(Debug, Clone, Default)]
struct Totals {
    uptime: Duration,
    requests: [u64; 2],
    /// By policy number.
    checks: HashMap<u32, [u32; CHECKS]>,
    holds: [u64; HoldOutcome::ALL.len()],
    store: Option<Reading>,
}

/// One step: its counts and the state at its end.
#[derive(Debug, Clone)]
struct HistoryStep {
    /// Its end.
    at_ms: u64,
    lasted_ms: u64,
    requests: [u64; 2],
    state: State,
    /// By [`HoldOutcome`].
    holds: [u64; HoldOutcome::ALL.len()],
    store: StoreCalls,
}

/// Decisions that a shared store made in a step.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
struct StoreCalls {
    count: u64,
    /// `null` without decisions.
    mean_us: Option<u64>,
    /// The upper bound of the histogram's bucket; `null` above the last bound as well.
    p99_us: Option<u64>,
}

#[derive(Debug, Clone)]
struct Series {
    policy: Arc<str>,
    figure: Figure,
    values: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Checks, by [`Outcome`] and [`SOURCES`].
    Checks(usize),
    /// Cost held by open reservations at the end of the step.
    Held,
}

/// Maximum memory of the history for this many policies.
pub(crate) fn bytes_at_most(policies: usize) -> usize {
    let series = (MAX_SERIES + CHECKS) * (STEPS * size_of::<u64>() + BYTES_PER_SERIES);
    let markers = MAX_MARKERS * (size_of::<Marker>() + MAX_MARKER);
    series + STEPS * size_of::<HistoryStep>() + markers + policies * BYTES_PER_POLICY
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    pub(crate) fn add(&self, sample: &Sample<'_>) {
        lock(&self.record).add(sample);
    }

    /// Adds a marker for an event that just happened.
    pub(crate) fn mark(&self, at_ms: u64, what: MarkerKind, text: &str) {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=MAX_MARKER.min(text.len())).rev().find(fits).unwrap_or(0);
        let mut markers = lock(&self.markers);
        if markers.len() == MAX_MARKERS {
            markers.pop_front();
        }
        markers.push_back(Marker { at_ms, what, text: text[..end].to_owned() });
    }

    /// The last steps, including the unfinished one, and their markers.
    pub(crate) fn read(&self, sample: &Sample<'_>, steps: usize) -> HistoryReport {
        let mut record = lock(&self.record).clone();
        record.add(sample);
        let mut report = record.report(steps);
        report.markers = lock(&self.markers).iter().cloned().collect();
        report.trim_markers();
        report
    }
}

impl RecordedSteps {
    fn add(&mut self, sample: &Sample<'_>) {
        let is_full = self.steps.len() == STEPS;
        if is_full {
            self.steps.pop_front();
        }
        for series in &mut self.series {
            if is_full {
                series.values.pop_front();
            }
            series.values.push_back(0);
        }
        let step = self.totals.step(sample);
        self.steps.push_back(step);
        let last = std::mem::take(&mut self.totals.checks);
        for policy in sample.policies {
            let before = last.get(&policy.number).copied().unwrap_or_default();
            let now = checks(policy);
            for (at, (now, before)) in now.iter().zip(before).enumerate() {
                self.count(&policy.name, Figure::Checks(at), u64::from(now.wrapping_sub(before)));
            }
            self.totals.checks.insert(policy.number, now);
            let held = sample.held.get(policy.name.as_str()).copied().unwrap_or(0);
            self.count(&policy.name, Figure::Held, held);
        }
        self.series.retain(|series| series.values.iter().any(|value| *value > 0));
    }

    /// Adds to a value of the newest step.
    fn count(&mut self, policy: &str, figure: Figure, value: u64) {
        if value == 0 {
            return;
        }
        let of = |series: &[Series], name: &str| {
            series.iter().position(|one| one.figure == figure && &*one.policy == name)
        };
        let has_room = self.series.len() < MAX_SERIES;
        let (at, name) = match (of(&self.series, policy), figure) {
            (None, Figure::Checks(_)) if !has_room => (of(&self.series, OTHERS), OTHERS),
            // Costs of different policies have no common unit.
            (None, Figure::Held) if !has_room => return,
            (at, _) => (at, policy),
        };
        let at = at.unwrap_or_else(|| {
            let mut values = VecDeque::with_capacity(STEPS);
            values.resize(self.steps.len(), 0);
            self.series.push(Series { policy: name.into(), figure, values });
            self.series.len() - 1
        });
        let newest = self.series[at].values.back_mut().expect("a step was added");
        *newest = newest.saturating_add(value);
    }

    fn report(&self, steps: usize) -> HistoryReport {
        let steps: Vec<_> = self.steps.iter().skip(self.steps.len().saturating_sub(steps)).collect();
        let values =
            |series: &Series| series.values.iter().skip(series.values.len() - steps.len()).copied().collect();
        let mut decisions = Vec::new();
        let mut held = Vec::new();
        for series in &self.series {
            let (policy, values): (_, Vec<u64>) = (series.policy.to_string(), values(series));
            if values.iter().all(|value| *value == 0) {
                continue;
            }
            match series.figure {
                Figure::Checks(at) => decisions.push(DecisionSeries {
                    policy,
                    verdict: Outcome::ALL[at / SOURCES.len()].name(),
                    source: SOURCES[at % SOURCES.len()].name(),
                    counts: values,
                }),
                Figure::Held => held.push(HeldSeries { policy, held: values }),
            }
        }
        let holds = |outcome: HoldOutcome| steps.iter().map(|step| step.holds[outcome as usize]).collect();
        HistoryReport {
            instances: 1,
            complete_until_ms: None,
            others_unknown: vec![false; steps.len()],
            step_ms: millis(STEP),
            at_ms: steps.iter().map(|step| step.at_ms).collect(),
            lasted_ms: steps.iter().map(|step| step.lasted_ms).collect(),
            allowed: steps.iter().map(|step| step.requests[0]).collect(),
            denied: steps.iter().map(|step| step.requests[1]).collect(),
            decisions,
            held,
            keys: steps.iter().map(|step| step.state.keys).collect(),
            dropped_keys: steps.iter().map(|step| step.state.dropped_keys).collect(),
            open_reservations: steps.iter().map(|step| step.state.open_reservations).collect(),
            pending_settlements: steps.iter().map(|step| step.state.pending_settlements).collect(),
            undelivered: steps.iter().map(|step| step.state.undelivered).collect(),
            settled: holds(HoldOutcome::Settled),
            late: holds(HoldOutcome::Late),
            expired: holds(HoldOutcome::Expired),
            degraded: steps.iter().map(|step| step.state.is_degraded).collect(),
            store: steps.iter().map(|step| step.store).collect(),
            markers: Vec::new(),
        }
    }
}

impl Totals {
    /// The differences since the last sample, which this one replaces, except for checks.
    fn step(&mut self, sample: &Sample<'_>) -> HistoryStep {
        let mut holds = [0; HoldOutcome::ALL.len()];
        for outcome in HoldOutcome::ALL {
            holds[outcome as usize] = sample.policies.iter().map(|policy| policy.holds(outcome)).sum();
        }
        // Counters of long-inactive policies are dropped, so sums may fall.
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let store = sample.store.map(Histogram::read);
        let step = HistoryStep {
            at_ms: sample.at_ms,
            lasted_ms: millis(sample.uptime.saturating_sub(self.uptime)),
            requests: [0, 1].map(|at| since(sample.requests[at], self.requests[at])),
            state: sample.state,
            holds: std::array::from_fn(|at| since(holds[at], self.holds[at])),
            store: store
                .as_ref()
                .map_or_else(StoreCalls::default, |now| StoreCalls::between(self.store.as_ref(), now)),
        };
        *self = Self {
            uptime: sample.uptime,
            requests: sample.requests,
            holds,
            store,
            checks: std::mem::take(&mut self.checks),
        };
        step
    }
}

impl StoreCalls {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // durations of calls in microseconds are small
    fn between(before: Option<&Reading>, now: &Reading) -> Self {
        let count = now.count - before.map_or(0, |before| before.count);
        if count == 0 {
            return Self::default();
        }
        let us = |seconds: f64| (seconds * 1e6).round() as u64;
        let sum = now.sum - before.map_or(0.0, |before| before.sum);
        // Rounded up: the rank of the value that 99 of 100 do not exceed.
        let rank = (count * 99).div_ceil(100);
        let mut seen = 0;
        let mut p99_us = None;
        for (at, (end, total)) in now.buckets.iter().enumerate() {
            seen += total - before.map_or(0, |before| before.buckets[at].1);
            if seen >= rank {
                p99_us = end.is_finite().then(|| us(*end));
                break;
            }
        }
        Self { count, mean_us: Some(us(sum / count as f64)), p99_us }
    }
}

/// A policy's checks since the start, by verdict and source.
#[allow(clippy::cast_possible_truncation)] // only differences are used
fn checks(policy: &PolicyCounters) -> [u32; CHECKS] {
    std::array::from_fn(|at| {
        policy.checks(Outcome::ALL[at / SOURCES.len()], SOURCES[at % SOURCES.len()]) as u32
    })
}

/// Lists have one entry per step, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HistoryReport {
    /// Instances whose decisions are counted.
    instances: usize,
    /// Steps that end later lack what other instances have yet to report. `null`: none do.
    complete_until_ms: Option<u64>,
    /// Whether the decisions of other instances in the step are unknown, because the store was away. They are
    /// not in its counts.
    others_unknown: Vec<bool>,
    step_ms: u64,
    /// The end of each step. The last step is unfinished.
    at_ms: Vec<u64>,
    lasted_ms: Vec<u64>,
    /// Requests over all policies.
    allowed: Vec<u64>,
    denied: Vec<u64>,
    /// Checks by policy. Combinations that did not occur are omitted.
    decisions: Vec<DecisionSeries>,
    held: Vec<HeldSeries>,
    keys: Vec<u64>,
    dropped_keys: Vec<u64>,
    open_reservations: Vec<u64>,
    pending_settlements: Vec<u64>,
    /// Notifications that nobody got, since the start.
    undelivered: Vec<u64>,
    /// Reservations settled in time, settled late, and expired.
    settled: Vec<u64>,
    late: Vec<u64>,
    expired: Vec<u64>,
    /// Whether fallbacks decided at the end of the step.
    degraded: Vec<bool>,
    store: Vec<StoreCalls>,
    /// Oldest first.
    pub(crate) markers: Vec<Marker>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DecisionSeries {
    policy: String,
    verdict: &'static str,
    source: &'static str,
    counts: Vec<u64>,
}

/// Decisions of other instances, by step.
#[derive(Debug)]
pub(crate) struct OtherCounts {
    pub(crate) instances: usize,
    pub(crate) complete_until_ms: Option<u64>,
    /// Whether the counts of the step are unknown.
    pub(crate) unknown: Vec<bool>,
    /// Allowed and denied requests.
    pub(crate) requests: [Vec<u64>; 2],
    /// Checks by policy and [`Outcome`].
    pub(crate) policies: BTreeMap<String, [Vec<u64>; 3]>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct HeldSeries {
    policy: String,
    held: Vec<u64>,
}

impl HistoryReport {
    /// Start of the first step, and the end of each.
    pub(crate) fn times_ms(&self) -> Vec<u64> {
        let first = self.at_ms.first().zip(self.lasted_ms.first());
        let begin = first.map(|(at, lasted)| at.saturating_sub(*lasted));
        begin.into_iter().chain(self.at_ms.iter().copied()).collect()
    }

    /// Allowed and denied checks in the last steps, by policy.
    pub(crate) fn checks(&self, steps: usize) -> HashMap<&str, [u64; 2]> {
        let mut checks = HashMap::<_, [u64; 2]>::new();
        for one in &self.decisions {
            let verdicts = [Outcome::Allow, Outcome::Deny].map(Outcome::name);
            if let Some(at) = verdicts.iter().position(|verdict| one.verdict == *verdict) {
                let sum: u64 = one.counts.iter().rev().take(steps).sum();
                checks.entry(one.policy.as_str()).or_default()[at] += sum;
            }
        }
        checks
    }

    /// Adds decisions of other instances; their sources are unknown.
    pub(crate) fn add_others(&mut self, others: OtherCounts) {
        self.instances += others.instances;
        self.complete_until_ms = others.complete_until_ms;
        self.others_unknown = others.unknown;
        for (own, others) in [&mut self.allowed, &mut self.denied].into_iter().zip(others.requests) {
            own.iter_mut().zip(others).for_each(|(own, others)| *own = own.saturating_add(others));
        }
        for (policy, counts) in others.policies {
            for (outcome, counts) in Outcome::ALL.into_iter().zip(counts) {
                if counts.iter().any(|count| *count > 0) {
                    let (policy, verdict) = (policy.clone(), outcome.name());
                    self.decisions.push(DecisionSeries {
                        policy,
                        verdict,
                        source: "other_instances",
                        counts,
                    });
                }
            }
        }
    }

    /// Sorts the markers and removes those older than the steps.
    pub(crate) fn trim_markers(&mut self) {
        let first = self.at_ms.first().zip(self.lasted_ms.first());
        // One step earlier, because the start is marked just before the first step begins.
        let from = first.map_or(0, |(at, lasted)| at.saturating_sub(*lasted + self.step_ms));
        self.markers.retain(|marker| marker.at_ms >= from);
        self.markers.sort_by_key(|marker| marker.at_ms);
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Decision, PolicySet, Quota, verb::Verb};

    use super::*;
    use crate::record::policy_counters::PolicyRegistry;

    fn registry(policies: usize) -> PolicyRegistry {
        let policy = |n| Policy::new(format!("p{n}"), Quota::per_minute(1)).unwrap();
        let set = PolicySet::new((0..policies).map(policy)).unwrap();
        PolicyRegistry::default().of(&set, |_| Default::default())
    }

    fn decide(registry: &PolicyRegistry, policy: usize, outcome: Outcome) {
        let limiter = slidegate::Limiter::new(Quota::per_minute(1));
        let decision: Decision = limiter.check("alice");
        registry.all()[policy].record(0, Verb::Check, &decision, outcome, 1, 1);
    }

    /// The state after this many steps.
    fn sample(registry: &PolicyRegistry, steps: u64) -> Sample<'_> {
        Sample {
            at_ms: steps * 10_000,
            uptime: STEP * u32::try_from(steps).unwrap(),
            requests: [steps * 3, steps],
            state: State::default(),
            policies: registry.all(),
            held: HashMap::new(),
            store: None,
        }
    }

    fn counts(report: &HistoryReport) -> Vec<(&str, &str, &[u64])> {
        report.decisions.iter().map(|one| (one.policy.as_str(), one.verdict, one.counts.as_slice())).collect()
    }

    /// Charts show these values: each decision must be in the step in which it was made.
    #[test]
    fn a_decision_counts_in_its_step_and_reading_adds_none() {
        let (history, registry) = (History::default(), registry(2));
        decide(&registry, 0, Outcome::Allow);
        history.add(&sample(&registry, 1));
        decide(&registry, 0, Outcome::Allow);
        decide(&registry, 1, Outcome::Deny);
        history.add(&sample(&registry, 2));
        decide(&registry, 1, Outcome::Deny);
        for _ in 0..2 {
            let report = history.read(&sample(&registry, 3), STEPS);
            assert_eq!(counts(&report), [("p0", "allow", &[1, 1, 0][..]), ("p1", "deny", &[0, 1, 1][..])]);
            assert_eq!((report.allowed, report.denied), (vec![3, 3, 3], vec![1, 1, 1]));
            assert_eq!((report.at_ms, report.lasted_ms), (vec![10_000, 20_000, 30_000], vec![10_000; 3]));
        }
        let report = history.read(&sample(&registry, 3), 1);
        assert_eq!(counts(&report), [("p1", "deny", &[1][..])]);
    }

    /// A policy without decisions in the last hour must take no space.
    #[test]
    fn an_hour_is_kept() {
        let (history, registry) = (History::default(), registry(1));
        decide(&registry, 0, Outcome::Allow);
        let steps = STEPS as u64;
        (1..=steps).for_each(|n| history.add(&sample(&registry, n)));
        assert_eq!(lock(&history.record).series.len(), 1);
        history.add(&sample(&registry, steps + 1));
        let record = lock(&history.record);
        assert_eq!((record.series.len(), record.steps.len()), (0, STEPS));
    }

    /// A client that may add policies must not fill the memory.
    #[test]
    fn memory_is_bounded_and_no_decision_is_lost() {
        let (history, policies) = (History::default(), 2000);
        let registry = registry(policies);
        for policy in 0..policies {
            for outcome in Outcome::ALL {
                decide(&registry, policy, outcome);
            }
        }
        history.add(&sample(&registry, 1));
        let report = history.read(&sample(&registry, 2), STEPS);
        let sum: u64 = report.decisions.iter().flat_map(|one| &one.counts).sum();
        assert_eq!(sum, policies as u64 * 3);
        let others = report.decisions.iter().filter(|one| one.policy == OTHERS);
        assert_eq!(others.map(|one| one.counts[0]).collect::<Vec<_>>(), [1872, 1872, 1872]);
        for n in 0..2 * MAX_MARKERS as u64 {
            history.mark(n, MarkerKind::Rejected, &"ä".repeat(MAX_MARKER));
        }
        let record = lock(&history.record);
        let bytes_of = |series: &Series| {
            series.values.capacity() * size_of::<u64>() + size_of::<Series>() + series.policy.len()
        };
        let markers = lock(&history.markers);
        let taken = record.series.iter().map(bytes_of).sum::<usize>()
            + STEPS * size_of::<HistoryStep>()
            + record.totals.checks.capacity() * (size_of::<(u32, [u32; CHECKS])>() + 1)
            + markers.iter().map(|one| size_of::<Marker>() + one.text.capacity()).sum::<usize>();
        assert_eq!((record.series.len(), markers.len()), (MAX_SERIES + 3, MAX_MARKERS));
        assert!(taken <= bytes_at_most(policies), "{taken} of {}", bytes_at_most(policies));
        assert!(taken > bytes_at_most(policies) / 2, "{taken} of {}", bytes_at_most(policies));
    }

    /// Operators compare these with the store deadline.
    #[test]
    fn durations_of_a_step_are_those_of_its_calls() {
        let (history, registry, store) = (History::default(), registry(1), Histogram::new(1));
        let with_store = |steps| Sample { store: Some(&store), ..sample(&registry, steps) };
        store.add(Duration::from_millis(40), 5);
        history.add(&with_store(1));
        store.add(Duration::from_micros(300), 99);
        store.add(Duration::from_millis(90), 1);
        history.add(&with_store(2));
        store.add(Duration::from_secs(1), 1);
        let calls: Vec<_> = history.read(&with_store(3), STEPS).store;
        let figures: Vec<_> = calls.iter().map(|one| (one.count, one.mean_us, one.p99_us)).collect();
        assert_eq!(
            figures,
            [(5, Some(40_000), Some(50_000)), (100, Some(1197), Some(500)), (1, Some(1_000_000), None)]
        );
    }
}
