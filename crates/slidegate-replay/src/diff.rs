//! Differences: the same traffic under an old and a new set of policies, and the changed verdicts.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use slidegate::{Decisions, PolicyDecision, PolicySet};

use crate::batch::{EntryBatch, attribute_names};
use crate::decider::{Decider, Options};
use crate::entry::Entry;
use crate::evidence::{Evidence, Missing, decidable};
use crate::keys::{KeyMap, MAX_DENIED_KEYS};
use crate::outcome::LogOutcome;
use crate::pass::{Job, Pass};
use crate::report::diff::{ChangedKey, DiffOutcome, DiffPolicy, DiffPolicySide};
use crate::stats::LogStats;
use crate::wording::{Wording, Words};

/// Replays a log under two sets of policies.
///
/// ```
/// use std::sync::Arc;
/// use slidegate::{Policy, PolicySet, Quota};
/// use slidegate_replay::{Diff, LogReader, Options, PlainWording, Wording};
///
/// let log = r#"192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5
/// 192.0.2.1 - - [20/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 5
/// "#;
/// let per_ip = |limit| PolicySet::new([Policy::new("per-ip", Quota::per_minute(limit))?.with_scope(["ip"])]);
/// let wording: Arc<dyn Wording> = Arc::new(PlainWording);
/// let mut diff = Diff::new(&per_ip(2)?, &per_ip(1)?, &wording, Options::default());
/// let mut reader = LogReader::from_reader(log.as_bytes())?;
/// while let Some(entry) = reader.next_entry()? {
///     diff.push(&entry);
/// }
/// let outcome = diff.finish(reader.stats());
/// assert_eq!((outcome.newly_denied, outcome.newly_allowed), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Diff {
    pass: Pass<PolicyDiff>,
    top: usize,
    /// Messages about policies that neither set decides.
    left_out: Missing,
}

/// The two gates, and the differences so far.
#[derive(Debug)]
pub(crate) struct PolicyDiff {
    old: DiffSide,
    new: DiffSide,
    requests: u64,
    newly_denied: u64,
    newly_allowed: u64,
    /// Names of policies that differ or exist in only one set.
    changed: HashSet<String>,
}

/// One of the two sets.
#[derive(Debug)]
struct DiffSide {
    decider: Decider,
    words: Words,
    denied: u64,
    policies: Vec<SideCounts>,
    /// Keys with denials that the other side does not have, by the policy's position.
    changed: HashMap<(usize, Box<[u8]>), ChangedKey>,
    /// Changed requests of keys beyond [`MAX_DENIED_KEYS`].
    changed_not_kept: u64,
}

#[derive(Debug, Clone, Default)]
struct SideCounts {
    seen: u64,
    denied: u64,
    /// Requests whose verdict this policy changed: it denies here, and the other set allows.
    changed: u64,
    denied_keys: KeyMap<()>,
}

impl Diff {
    /// Starts with two empty stores. Both sets are decided on one thread.
    #[must_use]
    pub fn new(old: &PolicySet, new: &PolicySet, wording: &Arc<dyn Wording>, options: Options) -> Self {
        let ((old, old_left_out), (new, new_left_out)) = (decidable(old), decidable(new));
        let names = attribute_names([&old, &new]);
        let side = |policies: PolicySet| {
            let counts = vec![SideCounts::default(); policies.iter().len()];
            DiffSide {
                policies: counts,
                decider: Decider::new(policies, options),
                words: Words(Arc::clone(wording)),
                denied: 0,
                changed: HashMap::new(),
                changed_not_kept: 0,
            }
        };
        let changed = changed_policies(&old, &new);
        let (old, new) = (side(old), side(new));
        let diff = PolicyDiff { old, new, requests: 0, newly_denied: 0, newly_allowed: 0, changed };
        let left_out = old_left_out.and(new_left_out);
        Self { pass: Pass::new(names, vec![diff], options.threads), top: options.top, left_out }
    }

    /// Takes one entry. An entry older than the last one is decided at the last one's time.
    pub fn push(&mut self, entry: &Entry<'_>) {
        self.pass.push(entry).expect("a diff writes nothing");
    }

    /// The differences; `log` describes the logs read.
    #[must_use]
    pub fn finish(self, log: &LogStats) -> DiffOutcome {
        let (jobs, evidence) = self.pass.finish().expect("a diff writes nothing");
        let [diff] = &jobs[..] else { unreachable!("a diff is one job") };
        diff.outcome(log, self.top, &evidence, self.left_out)
    }
}

/// Names of policies that differ between the sets. Compares their debug output, which has every setting of a
/// policy.
fn changed_policies(old: &PolicySet, new: &PolicySet) -> HashSet<String> {
    let is_in = |set: &PolicySet, policy: &slidegate::Policy| {
        set.by_name(policy.name()).is_some_and(|known| format!("{known:?}") == format!("{policy:?}"))
    };
    let of_old = old.iter().filter(|policy| !is_in(new, policy));
    of_old
        .chain(new.iter().filter(|policy| !is_in(old, policy)))
        .map(|policy| policy.name().to_owned())
        .collect()
}

impl Job for PolicyDiff {
    fn decide(&mut self, batch: &EntryBatch) -> io::Result<()> {
        batch.for_each(|entry, request| {
            let old = self.old.decider.decide(entry.time_us, request);
            let new = self.new.decider.decide(entry.time_us, request);
            self.requests += 1;
            self.count(&old, &new);
        });
        Ok(())
    }
}

impl PolicyDiff {
    fn count(&mut self, old: &Decisions<'_>, new: &Decisions<'_>) {
        let (was_denied, is_denied) = (old.is_denied(), new.is_denied());
        self.old.count(old, was_denied && !is_denied);
        self.new.count(new, is_denied && !was_denied);
        self.newly_denied += u64::from(is_denied && !was_denied);
        self.newly_allowed += u64::from(was_denied && !is_denied);
    }

    fn outcome(&self, log: &LogStats, top: usize, evidence: &Evidence, left_out: Missing) -> DiffOutcome {
        let (old, new) = (self.old.decider.gate().policies(), self.new.decider.gate().policies());
        let of = |side: &DiffSide, policies: &PolicySet| {
            let seen = side.policies.iter().map(|counts| counts.seen);
            evidence.of_policies(policies.iter().zip(seen), self.requests)
        };
        let missing = left_out.and(of(&self.old, &old)).and(of(&self.new, &new)).fields(&log.missing_fields);
        let names = old.iter().chain(new.iter()).map(slidegate::Policy::name);
        let mut seen = HashSet::new();
        let names: Vec<&str> = names.filter(|name| seen.insert(*name)).collect();
        let policies = names.iter().map(|name| DiffPolicy {
            name: (*name).to_owned(),
            is_changed: self.changed.contains(*name),
            old: self.old.policy(&old, name),
            new: self.new.policy(&new, name),
            newly_denied: self.new.changed_by(&new, name),
            newly_allowed: self.old.changed_by(&old, name),
        });
        DiffOutcome {
            missing,
            log: LogOutcome::of(log),
            requests: self.requests,
            denied_old: self.old.denied,
            denied_new: self.new.denied,
            newly_denied: self.newly_denied,
            newly_allowed: self.newly_allowed,
            policies: policies.collect(),
            newly_denied_keys: self.new.changed_keys(top),
            newly_allowed_keys: self.old.changed_keys(top),
            newly_denied_keys_in_all: self.new.changed.len() as u64,
            newly_allowed_keys_in_all: self.old.changed.len() as u64,
            changes_of_keys_not_kept: self.old.changed_not_kept + self.new.changed_not_kept,
            dropped_keys: self.old.dropped() + self.new.dropped(),
        }
    }
}

impl DiffSide {
    fn count(&mut self, decisions: &Decisions<'_>, is_changed: bool) {
        self.denied += u64::from(decisions.is_denied());
        for decision in decisions.iter() {
            let counts = &mut self.policies[decision.position()];
            counts.seen += 1;
            if decision.decision().is_denied() {
                counts.denied += 1;
                counts.denied_keys.at(counts.denied_keys.hash(&decision.key()));
            }
        }
        if is_changed && let Some(decision) = decisions.strictest() {
            self.policies[decision.position()].changed += 1;
            self.count_changed(&decision);
        }
    }

    /// Counts a request that this decision denies and the other side allows.
    fn count_changed(&mut self, decision: &PolicyDecision<'_>) {
        let at_us = decision.decision().at().as_micros();
        let id = (decision.position(), decision.key().to_bytes().into());
        let is_full = self.changed.len() >= MAX_DENIED_KEYS;
        match self.changed.get_mut(&id) {
            Some(key) => {
                key.requests += 1;
                key.last_us = at_us;
            }
            None if is_full => self.changed_not_kept += 1,
            None => {
                let key = ChangedKey {
                    policy: decision.policy().name().to_owned(),
                    key: self.words.key(decision),
                    requests: 1,
                    first_us: at_us,
                    last_us: at_us,
                    why: self.words.why(Some(decision)),
                };
                self.changed.insert(id, key);
            }
        }
    }

    fn policy(&self, policies: &PolicySet, name: &str) -> Option<DiffPolicySide> {
        let (at, policy) = policies.iter().enumerate().find(|(_, policy)| policy.name() == name)?;
        let counts = &self.policies[at];
        Some(DiffPolicySide {
            quota: policy.quota().to_string(),
            algorithm: policy.quota().algorithm().to_string(),
            enforced: policy.options().enforced,
            seen: counts.seen,
            denied: counts.denied,
            denied_keys: counts.denied_keys.len() as u64,
        })
    }

    fn dropped(&self) -> u64 {
        self.decider.gate().store().stats().dropped
    }

    fn changed_by(&self, policies: &PolicySet, name: &str) -> u64 {
        policies.iter().position(|policy| policy.name() == name).map_or(0, |at| self.policies[at].changed)
    }

    fn changed_keys(&self, top: usize) -> Vec<ChangedKey> {
        let mut keys: Vec<&ChangedKey> = self.changed.values().collect();
        keys.sort_unstable_by(|one, other| {
            let rank = |key: &ChangedKey| std::cmp::Reverse(key.requests);
            rank(one)
                .cmp(&rank(other))
                .then_with(|| (&one.policy, &one.key).cmp(&(&other.policy, &other.key)))
        });
        keys.into_iter().take(top).cloned().collect()
    }
}
