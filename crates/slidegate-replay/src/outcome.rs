//! The outcome of a replay: plain figures in the form of its JSON.
//!
//! docs/replay-json.md documents every field. A field is never renamed or redefined without a higher
//! `schema`; new fields may be added.

use std::collections::BTreeMap;

use serde::Serialize;
use slidegate::Policy;

use crate::each::rfc3339;
use crate::evidence::{Evidence, Missing};
use crate::key_size::redis_table_bytes;
use crate::keys::DeniedKey;
use crate::scenario::Scenario;
use crate::stats::{LogStats, LogSummary};
use crate::sweep::{Sweep, SweepPoint};
use crate::timeline::TimeAxis;

mod sweep;

pub use sweep::{SweepOutcome, SweepPointOutcome};

/// The version of the JSON.
const SCHEMA: u32 = 1;

/// The findings of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The version of this form: 1.
    pub schema: u32,
    /// The command that produced it, if the program reports it.
    pub command: Option<String>,
    /// The logs read.
    pub log: LogOutcome,
    /// The buckets of every list named `over_time`.
    pub time: TimeOutcome,
    /// Decisions of the configured policies.
    pub configured: ScenarioOutcome,
    /// The sweep, if requested.
    pub sweep: Option<SweepOutcome>,
    /// Limitations of the figures, in sentences.
    pub notes: Vec<String>,
    /// Policies that judged nothing because the log lacks their data, and options that name missing
    /// data, one line each. A program that judges by the figures must fail on these.
    pub errors: Vec<String>,
    /// Policies that applied to no request, one line each.
    pub warnings: Vec<String>,
}

/// The logs read.
#[derive(Debug, Clone, Serialize)]
pub struct LogOutcome {
    /// Lines of any kind.
    pub lines: u64,
    /// Lines that are requests.
    pub requests: u64,
    /// Lines that could not be parsed.
    pub malformed: u64,
    /// Requests too late to be sorted.
    pub late: u64,
    /// The time of the first request, in RFC 3339.
    pub first: Option<String>,
    /// The time of the last request.
    pub last: Option<String>,
    /// The first malformed lines, with numbers and reasons.
    pub malformed_lines: Vec<String>,
    /// Lines that are not requests by design, such as headers.
    pub other: u64,
    /// Entries more than a day after the previous one.
    pub gaps: u64,
    /// The first late entries and entries after a gap, with their lines.
    pub jumps: Vec<String>,
    /// How times were read, and other notes for readers of the figures, in sentences.
    pub notes: Vec<String>,
    /// Each log.
    pub files: Vec<LogSummary>,
}

/// The buckets of time.
#[derive(Debug, Clone, Serialize)]
pub struct TimeOutcome {
    /// The start of the first bucket, in RFC 3339.
    pub start: Option<String>,
    /// The start in seconds since the Unix epoch.
    pub start_seconds: u64,
    /// The width of a bucket.
    pub width_seconds: u64,
    /// Number of buckets.
    pub buckets: usize,
}

/// Decisions of one set of policies.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioOutcome {
    /// Requests decided.
    pub requests: u64,
    /// Allowed requests.
    pub allowed: u64,
    /// Requests that an enforced policy denied.
    pub denied: u64,
    /// Requests that no policy applied to.
    pub unmatched: u64,
    /// Denied requests that were logged with a status from 200 to 399.
    pub denied_successes: u64,
    /// Keys that the store evicted while they still counted: above 0, there are too many denials.
    pub dropped_keys: u64,
    /// Maximum keys in memory.
    pub max_keys: usize,
    /// Maximum concurrent keys over all policies.
    pub keys_at_once: u64,
    /// Maximum bytes of concurrent keys in a memory store.
    pub memory_bytes: u64,
    /// Maximum bytes of concurrent keys in Redis.
    pub redis_bytes: u64,
    /// Allowed requests, by bucket of time.
    pub allowed_over_time: Vec<u64>,
    /// Denied requests, by bucket of time.
    pub denied_over_time: Vec<u64>,
    /// In the order of the configuration.
    pub policies: Vec<PolicyOutcome>,
}

/// Decisions of one policy.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyOutcome {
    /// Its name.
    pub name: String,
    /// A description in one line.
    pub description: String,
    /// Whether it is enforced; otherwise it is a shadow policy.
    pub enforced: bool,
    /// The algorithm.
    pub algorithm: String,
    /// The limit. A key with an override has another one.
    pub limit: u64,
    /// Its window, such as `1m`.
    pub window: String,
    /// Requests that it applied to.
    pub seen: u64,
    /// Requests that it allowed. Another policy may have denied them.
    pub allowed: u64,
    /// Requests that it denied, or would have denied as a shadow.
    pub denied: u64,
    /// Different keys.
    pub keys: u64,
    /// Whether there were more keys than are counted.
    pub has_more_keys: bool,
    /// Different keys that were denied at least once.
    pub denied_keys: u64,
    /// Denials of keys that are not listed for lack of memory.
    pub denials_not_kept: u64,
    /// The keys' usage of their limits.
    pub usage: UsageOutcome,
    /// Denials, by bucket of time. Empty without any.
    pub denied_over_time: Vec<u32>,
    /// The most denied keys.
    pub most_denied: Vec<KeyOutcome>,
}

/// Each key's highest usage, as a share of its limit.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct UsageOutcome {
    /// Never-denied keys: those that used less than 10 % of the limit, less than 20 %, and so on;
    /// the last are those that used all of it.
    pub allowed_keys_by_tenth: [u64; 11],
    /// Keys that were denied.
    pub denied_keys: u64,
}

/// A denied key.
#[derive(Debug, Clone, Serialize)]
pub struct KeyOutcome {
    /// The key, redacted as its policy requires.
    pub key: String,
    /// Its denials.
    pub denied: u64,
    /// The first denial, in RFC 3339.
    pub first: String,
    /// The last denial.
    pub last: String,
    /// The reason for its first denial.
    pub why: String,
    /// Denials by bucket of time, as pairs of bucket number and count.
    pub denied_over_time: BTreeMap<usize, u32>,
}

impl Outcome {
    pub(crate) fn of(
        log: &LogStats,
        scenario: &Scenario,
        sweep: Option<(&Sweep, &[SweepPoint])>,
        top: usize,
        left_out: Missing,
        evidence: &Evidence,
    ) -> Self {
        let policies = scenario.policies();
        let seen = scenario.tally.policies.iter().map(|counts| counts.seen);
        let requests = scenario.tally.counts.requests;
        let missing = left_out.and(evidence.of_policies(policies.iter().zip(seen), requests));
        let Missing { errors, warnings } = missing.fields(&log.missing_fields);
        let axis = scenario.tally.timeline.axis();
        let configured = ScenarioOutcome::of(scenario, axis, top);
        let sweep = sweep.map(|(sweep, points)| SweepOutcome::of(sweep, points, scenario));
        let notes = vec![
            "A replay cannot know of retries after a denial, nor of clients that slow down when they are denied: \
             real traffic under these policies would differ."
                .to_owned(),
        ];
        Self {
            schema: SCHEMA,
            command: None,
            log: LogOutcome::of(log),
            time: TimeOutcome::of(axis),
            configured,
            sweep,
            notes,
            errors,
            warnings,
        }
    }

    /// Turns errors about policies that judged nothing into warnings.
    #[must_use]
    pub fn accepting_empty(mut self) -> Self {
        let warnings = std::mem::take(&mut self.errors);
        self.warnings.splice(0..0, warnings);
        self
    }
}

impl LogOutcome {
    pub(crate) fn of(log: &LogStats) -> Self {
        Self {
            lines: log.lines,
            requests: log.entries,
            malformed: log.malformed,
            late: log.late,
            first: log.first_us.map(rfc3339),
            last: log.last_us.map(rfc3339),
            malformed_lines: log.malformed_lines.iter().map(ToString::to_string).collect(),
            other: log.other,
            gaps: log.gaps,
            jumps: log.jumps.iter().map(ToString::to_string).collect(),
            notes: log.notes(),
            files: log.logs.clone(),
        }
    }
}

impl TimeOutcome {
    fn of(axis: TimeAxis) -> Self {
        Self {
            start: (axis.buckets > 0).then(|| rfc3339(axis.start_us)),
            start_seconds: axis.start_us / 1_000_000,
            width_seconds: axis.width_us / 1_000_000,
            buckets: axis.buckets,
        }
    }
}

impl ScenarioOutcome {
    fn of(scenario: &Scenario, axis: TimeAxis, top: usize) -> Self {
        let (counts, store) = (scenario.tally.counts, scenario.store());
        let most = scenario.tally.live.most;
        let over_time = scenario.tally.timeline.on(axis);
        let policies = scenario.policies();
        let policies = policies.iter().enumerate();
        Self {
            requests: counts.requests,
            allowed: counts.requests - counts.denied,
            denied: counts.denied,
            unmatched: counts.unmatched,
            denied_successes: counts.denied_successes,
            dropped_keys: store.dropped,
            max_keys: store.max_keys,
            keys_at_once: most.keys,
            memory_bytes: most.memory,
            redis_bytes: most.redis + redis_table_bytes(most.keys),
            allowed_over_time: over_time.iter().map(|bucket| bucket.allowed).collect(),
            denied_over_time: over_time.iter().map(|bucket| bucket.denied).collect(),
            policies: policies
                .map(|(at, policy)| PolicyOutcome::of(scenario, at, policy, axis, top))
                .collect(),
        }
    }
}

impl PolicyOutcome {
    fn of(scenario: &Scenario, at: usize, policy: &Policy, axis: TimeAxis, top: usize) -> Self {
        let counts = &scenario.tally.policies[at];
        let seen = &counts.keys;
        Self {
            name: policy.name().to_owned(),
            description: scenario.words().policy(policy),
            enforced: policy.options().enforced,
            algorithm: policy.quota().algorithm().to_string(),
            limit: policy.quota().limit(),
            window: policy.quota().window_text(),
            seen: counts.seen,
            allowed: counts.seen - counts.denied,
            denied: counts.denied,
            keys: seen.keys.len() as u64,
            has_more_keys: seen.keys.is_full(),
            denied_keys: seen.denied,
            denials_not_kept: seen.denials_not_kept,
            usage: UsageOutcome { allowed_keys_by_tenth: seen.allowed_by_tenth(), denied_keys: seen.denied },
            denied_over_time: if counts.denied == 0 { Vec::new() } else { counts.timeline.on(axis) },
            most_denied: seen.most_denied(top).into_iter().map(|key| KeyOutcome::of(key, axis)).collect(),
        }
    }
}

impl KeyOutcome {
    fn of(key: &DeniedKey, axis: TimeAxis) -> Self {
        let over_time = key.timeline.on(axis).into_iter().enumerate();
        Self {
            key: key.text.to_string(),
            denied: key.denied,
            first: rfc3339(key.first_us),
            last: rfc3339(key.last_us),
            why: key.why.to_string(),
            denied_over_time: over_time.filter(|(_, denied)| *denied > 0).collect(),
        }
    }
}
