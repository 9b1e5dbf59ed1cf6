//! Tally: what a call leaves in metrics, in events and in the reference's statistics.
//!
//! The app counts no look, as looks are questions. Here one can be the reason why a client is refused, and then it counts
//! as what it was: a denial. A limit of `quota_mode` that is over while another one has room denies nothing, and counts as
//! one in shadow does.

use std::sync::atomic::Ordering::Relaxed;

use slidegate::{Decisions, PolicyDecision, Source};

use super::answer::is_over;
use super::ask::{Asked, Group, Terms};
use super::limits::Limits;
use crate::app::decide::Call;
use crate::telemetry::Outcome;
use slidegate_envoy::RecordedHits;

/// The decisions of a call, in the order in which they were made.
pub(super) struct Decided<'d> {
    /// On looks, which charge nothing.
    pub(super) looked: &'d Decisions<'d>,
    /// On limits that deny together, which were only looked at.
    pub(super) seen: &'d Decisions<'d>,
    /// On charges, which were only looked at if a look had denied.
    pub(super) charged: &'d Decisions<'d>,
    /// Limits that deny together and had room, and the decisions when they were charged.
    pub(super) fitting: &'d Group<'d>,
    pub(super) taken: &'d [Decisions<'d>],
    /// Whether a look denied, so that charges were none.
    pub(super) is_denied_by_looks: bool,
    /// Whether anything denied before limits that deny together were to be charged.
    pub(super) is_denied_before: bool,
    /// Whether those denied together.
    pub(super) denies_together: bool,
}

impl Limits {
    /// Counts a call.
    pub(super) fn tally(
        &self,
        call: &Call<'_>,
        terms: &[Terms<'_>],
        asked: &Asked<'_>,
        decided: &Decided<'_>,
    ) {
        let &Decided { looked, seen, charged, fitting, taken, .. } = decided;
        let mut looks = Vec::new();
        add_over(&mut looks, looked, true);
        add_over(&mut looks, seen, decided.denies_together);
        if decided.is_denied_before {
            add_fitting(&mut looks, seen);
        }
        if decided.is_denied_by_looks {
            add_over(&mut looks, charged, true);
            add_fitting(&mut looks, charged);
        }
        if !looks.is_empty() {
            call.record_peeks(&looks);
        }
        let is_taken =
            |one: &PolicyDecision<'_>| fitting.places.contains(&asked.quotas.places[one.request()]);
        let of_looks = looked.iter().map(|one| (asked.looks.places[one.request()], one));
        let of_charges = charged.iter().map(|one| (asked.charges.places[one.request()], one));
        let of_seen = seen.iter().filter(|one| !is_taken(one));
        let of_seen = of_seen.map(|one| (asked.quotas.places[one.request()], one));
        self.count(terms, of_looks.chain(of_charges).chain(of_seen).chain(each_apart(fitting, taken)));
    }

    /// Counts a call whose descriptors were decided one by one.
    pub(super) fn tally_apart<'d>(
        &self,
        terms: &[Terms<'_>],
        decided: impl Iterator<Item = (&'d Group<'d>, &'d [Decisions<'d>])>,
    ) {
        self.count(terms, decided.flat_map(|(group, decisions)| each_apart(group, decisions)));
    }

    /// Counts the hits of decisions on limits of the files, each with the place of its descriptor.
    fn count<'d>(&self, terms: &[Terms<'_>], decisions: impl Iterator<Item = (usize, PolicyDecision<'d>)>) {
        let Some(statistics) = self.files().map(|files| files.live.statistics()) else { return };
        let mut is_degraded = false;
        for (place, one) in decisions {
            is_degraded |= matches!(one.source, Source::Local | Source::Allow | Source::Deny);
            let Terms::Rule(hit) = &terms[place] else { continue };
            // What was charged is in `used`. Of two descriptors on one key each is counted as the last.
            let charged = if one.cost > 0 { one.asked() } else { 0 };
            let hits = RecordedHits {
                hits: one.asked(),
                before: one.used.saturating_sub(charged),
                limit: one.limit,
                is_over: is_over(&one),
                is_shadow: !one.policy().is_enforced(),
                source: one.source,
            };
            hit.record(statistics, &hits);
        }
        if is_degraded {
            statistics.calls().redis_errors.fetch_add(1, Relaxed);
        }
    }
}

/// Adds looks without room: they deny if `denies` says so and their policy is enforced.
fn add_over<'d>(looks: &mut Vec<(PolicyDecision<'d>, Outcome)>, among: &'d Decisions<'_>, denies: bool) {
    looks.extend(among.iter().filter(is_over).map(|one| {
        let outcome = if denies && one.policy().is_enforced() { Outcome::Deny } else { Outcome::ShadowDeny };
        (one, outcome)
    }));
}

/// Adds looks that had room, of a call that was refused for another reason.
fn add_fitting<'d>(looks: &mut Vec<(PolicyDecision<'d>, Outcome)>, among: &'d Decisions<'_>) {
    let fitting = among.iter().filter(|one| one.asked() > 0 && !is_over(one));
    looks.extend(fitting.map(|one| (one, Outcome::Allow)));
}

/// Decisions that were made one by one, each with the place of its descriptor.
fn each_apart<'d>(
    group: &'d Group<'d>,
    decisions: &'d [Decisions<'d>],
) -> impl Iterator<Item = (usize, PolicyDecision<'d>)> {
    let places = group.places.iter().zip(decisions);
    places.flat_map(|(place, decisions)| decisions.iter().map(|one| (*place, one)))
}
