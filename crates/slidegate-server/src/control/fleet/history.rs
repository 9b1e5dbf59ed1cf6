//! Decisions of the other instances in the last hour, from the counters in their records.
//!
//! Adds what each instance counted between two reads that found its record. An instance that starts, restarts
//! or comes back therefore never adds its whole earlier count in one step.

use std::collections::{BTreeMap, HashMap, VecDeque};

use slidegate::Policy;

use super::record::{Instance, MAX_POLICIES, PolicyTotals, Record};
use crate::record::OtherCounts;

/// Minimum time between compared reads: five publications, so that one more or less makes no difference.
const SPAN_MS: u64 = 15_000;
/// A step with a longer gap is unknown. The first read of an instance comes within this time of its start.
const LONGEST_GAP_MS: u64 = 1000;
/// Spans kept: an hour.
const SPANS: usize = 240;

/// The last hour of the other instances.
#[derive(Debug, Default)]
pub(super) struct FleetHistory {
    /// When the span began, and each instance's record then, or when first seen since. `None` after a failed
    /// read.
    last: Option<(u64, HashMap<String, Record>)>,
    /// Oldest first.
    spans: VecDeque<Span>,
}

/// Counts between two reads, over all instances.
#[derive(Debug)]
struct Span {
    from_ms: u64,
    to_ms: u64,
    /// Records at its ends.
    instances: usize,
    /// Allowed and denied requests.
    requests: [u64; 2],
    /// Checks allowed, denied, and denied in shadow, of at most [`MAX_POLICIES`].
    policies: Vec<(Box<str>, [u64; 3])>,
}

/// Maximum memory for this many policies.
pub(crate) fn bytes_at_most(policies: usize) -> usize {
    let policy = size_of::<(Box<str>, [u64; 3])>() + Policy::MAX_NAME;
    SPANS * (size_of::<Span>() + policies.min(MAX_POLICIES) * policy)
}

impl FleetHistory {
    /// Adds the counts since earlier records, if those are old enough. Policies that are not `known` are
    /// skipped: any client of the store can write records with arbitrary names.
    pub(super) fn add(&mut self, at_ms: u64, records: &[Instance], known: impl Fn(&str) -> bool) {
        let (last_ms, mut before) = self.last.take().unwrap_or_else(|| (at_ms, HashMap::new()));
        let now = |one: &Instance| (one.id.clone(), one.record.clone());
        if at_ms.abs_diff(last_ms) < SPAN_MS {
            let first = |one: &Instance| before.remove_entry(&one.id).unwrap_or_else(|| now(one));
            self.last = Some((last_ms, records.iter().map(first).collect()));
            return;
        }
        // The wall clock may have been set back.
        if last_ms < at_ms {
            if self.spans.len() == SPANS {
                self.spans.pop_front();
            }
            self.spans.push_back(Span::between((last_ms, &before), (at_ms, records), known));
        }
        self.last = Some((at_ms, records.iter().map(now).collect()));
    }

    /// Records a failed read: counts are unknown until the next success.
    pub(super) fn interrupt(&mut self) {
        self.last = None;
    }

    /// Counts per step. `times_ms`: the start of the first step, then the end of each.
    pub(super) fn counts(&self, times_ms: &[u64]) -> OtherCounts {
        let steps = times_ms.len().saturating_sub(1);
        let mut requests = [(); 2].map(|()| vec![0; steps]);
        let mut policies: BTreeMap<String, [Vec<u64>; 3]> = BTreeMap::new();
        for span in &self.spans {
            let steps_in_it = times_ms.windows(2).enumerate();
            let steps_in_it: Vec<_> =
                steps_in_it.filter(|(_, step)| step[0] < span.to_ms && step[1] > span.from_ms).collect();
            let add = |counts: &mut [Vec<u64>], totals: &[u64]| {
                for (counts, total) in counts.iter_mut().zip(totals) {
                    for (at, step) in &steps_in_it {
                        counts[*at] = counts[*at].saturating_add(span.part(*total, step[0], step[1]));
                    }
                }
            };
            add(&mut requests, &span.requests);
            for (policy, totals) in &span.policies {
                let counts = policies.entry(policy.to_string());
                add(counts.or_insert_with(|| [(); 3].map(|()| vec![0; steps])), totals);
            }
        }
        let known = self.last.as_ref().filter(|(_, records)| !records.is_empty());
        OtherCounts {
            unknown: self.unknown(times_ms),
            instances: known.map_or(0, |(_, records)| records.len()),
            complete_until_ms: known.map(|(at_ms, _)| *at_ms),
            requests,
            policies,
        }
    }

    /// The steps in which instances were not read, although there were some before or after.
    fn unknown(&self, times_ms: &[u64]) -> Vec<bool> {
        let mut unknown = vec![false; times_ms.len().saturating_sub(1)];
        let mut mark = |from_ms: u64, to_ms: u64| {
            for (unknown, step) in unknown.iter_mut().zip(times_ms.windows(2)) {
                let gap_ms = step[1].min(to_ms).saturating_sub(step[0].max(from_ms));
                *unknown |= gap_ms > LONGEST_GAP_MS;
            }
        };
        for (before, after) in self.spans.iter().zip(self.spans.iter().skip(1)) {
            if before.instances + after.instances > 0 {
                mark(before.to_ms, after.from_ms);
            }
        }
        if let Some(before) = self.spans.back().filter(|span| span.instances > 0) {
            mark(before.to_ms, self.last.as_ref().map_or(u64::MAX, |(at_ms, _)| *at_ms));
        }
        unknown
    }
}

impl Span {
    fn between(
        (from_ms, before): (u64, &HashMap<String, Record>),
        (to_ms, after): (u64, &[Instance]),
        known: impl Fn(&str) -> bool,
    ) -> Self {
        let mut requests = [0; 2];
        let mut policies: HashMap<&str, [u64; 3]> = HashMap::new();
        for Instance { id, record, .. } in after {
            let Some(then) = before.get(id) else { continue };
            add(&mut requests, [record.allowed, record.denied], [then.allowed, then.denied]);
            for now in record.policies.iter().filter(|one| known(&one.policy)) {
                let name = now.policy.as_str();
                let has_room = policies.len() < MAX_POLICIES || policies.contains_key(name);
                if let Some(then) = then.totals(name).filter(|_| has_room) {
                    let of = |one: &PolicyTotals| [one.allowed, one.denied, one.shadow_denied];
                    add(policies.entry(name).or_default(), of(now), of(then));
                }
            }
        }
        let policies = policies.into_iter().filter(|(_, counts)| *counts != [0; 3]);
        Self {
            from_ms,
            to_ms,
            instances: before.len() + after.len(),
            requests,
            policies: policies.map(|(name, counts)| (name.into(), counts)).collect(),
        }
    }

    /// The part of a count that falls into a step, assuming an even rate. The parts of all steps add up to
    /// the count.
    fn part(&self, count: u64, from_ms: u64, to_ms: u64) -> u64 {
        let until = |at_ms: u64| {
            let elapsed = at_ms.clamp(self.from_ms, self.to_ms) - self.from_ms;
            u128::from(count) * u128::from(elapsed) / u128::from(self.to_ms - self.from_ms)
        };
        u64::try_from(until(to_ms).saturating_sub(until(from_ms))).expect("at most the count")
    }
}

/// Adds the increase of counters. A counter that fell is from another process.
fn add<const N: usize>(sums: &mut [u64; N], now: [u64; N], before: [u64; N]) {
    for (sum, (now, before)) in sums.iter_mut().zip(now.into_iter().zip(before)) {
        *sum = sum.saturating_add(now.saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    /// An instance with this id and this many allowed requests, half of them under one policy.
    fn instance(id: &str, allowed: u64) -> Instance {
        let policy =
            PolicyTotals { policy: "per-user".to_owned(), allowed: allowed / 2, ..PolicyTotals::default() };
        let record = Record { allowed, denied: 1, policies: vec![policy], ..record(id) };
        Instance { id: id.to_owned(), is_this: false, record }
    }

    /// The history after records were read every 15 seconds (`None`: the read fails).
    fn history(reads: &[Option<&[(&str, u64)]>]) -> FleetHistory {
        let mut history = FleetHistory::default();
        for (at_ms, records) in (0..).step_by(15_000).zip(reads) {
            match records {
                Some(records) => {
                    let records: Vec<_> =
                        records.iter().map(|(id, allowed)| instance(id, *allowed)).collect();
                    history.add(at_ms, &records, |_| true);
                }
                None => history.interrupt(),
            }
        }
        history
    }

    /// Steps of ten seconds.
    fn times(reads: &[Option<&[(&str, u64)]>]) -> Vec<u64> {
        (0..=reads.len() as u64 * 3 / 2).map(|step| step * 10_000).collect()
    }

    fn allowed(reads: &[Option<&[(&str, u64)]>]) -> Vec<u64> {
        let times = times(reads);
        let [allowed, denied] = history(reads).counts(&times).requests;
        assert_eq!(denied, vec![0; times.len() - 1], "it did not rise");
        allowed
    }

    /// In an incident, one instance must show the traffic of all, in the right steps.
    #[test]
    fn what_instances_count_is_summed_and_spread_evenly_over_steps() {
        let reads = [&[("a", 100), ("b", 7)][..], &[("a", 400), ("b", 8)], &[("a", 400), ("b", 8)]];
        assert_eq!(allowed(&reads.map(Some)), [200, 101, 0, 0]);
        let mut history = FleetHistory::default();
        history.add(5000, &[], |_| true);
        for (at_ms, allowed) in [(5500, 10), (12_000, 12), (20_000, 40)] {
            history.add(at_ms, &[instance("a", allowed)], |_| true);
        }
        let counts = history.counts(&[0, 10_000, 20_000, 30_000]);
        assert_eq!(counts.requests[0], [10, 20, 0], "all since it was first seen");
        assert_eq!((counts.instances, counts.complete_until_ms), (1, Some(20_000)));
        assert_eq!(counts.policies["per-user"], [vec![5, 10, 0], vec![0; 3], vec![0; 3]]);
        // Displayed counts add up, wherever the steps begin.
        let counts = history.counts(&[5001, 5002, 11_111, 19_999, 20_000]);
        assert_eq!(counts.requests[0].iter().sum::<u64>(), 30);
    }

    /// A rollout or a hanging instance must not look like the start or end of an attack.
    #[test]
    fn instances_that_restart_vanish_or_are_late_make_no_step_that_nobody_made() {
        let of = |reads: &[&[(&str, u64)]]| allowed(&reads.iter().copied().map(Some).collect::<Vec<_>>());
        // Restarted: under another id, and as a counter that fell.
        assert_eq!(of(&[&[("a", 9000)], &[("b", 500)], &[("b", 515)]]), [0, 5, 10, 0]);
        assert_eq!(of(&[&[("a", 9000)], &[("a", 500)], &[("a", 515)]]), [0, 5, 10, 0]);
        // Vanished and back: its count meanwhile is in no step.
        assert_eq!(of(&[&[("a", 0)], &[], &[("a", 9000)], &[("a", 9015)]]), [0, 0, 0, 10, 5, 0]);
        // Late: its record is unchanged once, then has twice the increase.
        assert_eq!(of(&[&[("a", 0)], &[("a", 0)], &[("a", 30)], &[("a", 45)]]), [0, 10, 20, 10, 5, 0]);
        // The store was away.
        let reads = [Some(&[("a", 0)][..]), None, Some(&[("a", 9000)]), Some(&[("a", 9015)])];
        assert_eq!(allowed(&reads), [0, 0, 0, 10, 5, 0]);
        // The wall clock was set back.
        let mut history = FleetHistory::default();
        for (at_ms, allowed) in [(90_000, 0), (20_000, 10), (40_000, 25)] {
            history.add(at_ms, &[instance("a", allowed)], |_| true);
        }
        assert_eq!(history.counts(&[0, 30_000, 60_000, 90_000]).requests[0], [7, 8, 0]);
    }

    /// A time in which the store was away must not look like one in which nobody asked.
    #[test]
    fn steps_in_which_the_others_were_not_read_are_marked() {
        let unknown = |reads: &[Option<&[(&str, u64)]>]| history(reads).counts(&times(reads)).unknown;
        let (a, nobody) = (Some(&[("a", 9)][..]), Some(&[][..]));
        // Reads every 15 seconds in steps of 10: the gap is from the second read to the fourth, or to the end.
        assert_eq!(unknown(&[a, a, None, a, a]), [false, true, true, true, true, false, false]);
        assert_eq!(unknown(&[a, a, None, a]), [false, true, true, true, true, false]);
        assert_eq!(unknown(&[a, a, None]), [false, true, true, true]);
        assert_eq!(unknown(&[a, a, a]), [false; 4]);
        // Nobody is missed where there was nobody.
        assert_eq!(unknown(&[nobody, nobody, None, nobody, nobody]), [false; 7]);
    }

    /// A client that may write to the store must neither fill the memory of instances nor name policies.
    #[test]
    fn memory_is_bounded_and_unknown_policies_are_left_out() {
        let mut history = FleetHistory::default();
        for read in 0..2 * SPANS as u64 {
            let mut one = instance("a", read);
            let name = |n| format!("{n:0width$}", width = Policy::MAX_NAME);
            one.record.policies = (0..2 * MAX_POLICIES)
                .map(|n| PolicyTotals { policy: name(n), allowed: read, ..PolicyTotals::default() })
                .chain([PolicyTotals {
                    policy: "unknown".to_owned(),
                    allowed: read,
                    ..PolicyTotals::default()
                }])
                .collect();
            history.add(read * SPAN_MS, &[one], |name| name != "unknown");
        }
        let of_policy = |name: &str| size_of::<(Box<str>, [u64; 3])>() + name.len();
        let of_span = |span: &Span| span.policies.iter().map(|(name, _)| of_policy(name)).sum::<usize>();
        let taken = SPANS * size_of::<Span>() + history.spans.iter().map(of_span).sum::<usize>();
        assert_eq!((history.spans.len(), taken), (SPANS, bytes_at_most(usize::MAX)));
        assert!(!history.counts(&[0, u64::MAX]).policies.contains_key("unknown"));
    }
}
