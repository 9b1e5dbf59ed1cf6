//! Refused hits: counted apart, for descriptors of 0 hits alone.
//!
//! A cost that is known when a response ends is limited by a look before (0 hits) and a charge after, whose answer nobody
//! waits for. The reference counts every hit, so its looks are over as soon as more than the limit was asked for. Here a
//! refused charge is free, and a look would never be over. So refused hits are counted under a key of their own: looks add
//! what stands there to what was charged, and no check ever sees it.

use slidegate::{Decision, Decisions, Excess, Request, Verb};

use super::ask::{Group, Terms};
use super::limits::Limits;
use slidegate_envoy::{LimitMatch, SCOPE};

/// Hits that a call asked for and that were not charged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    /// Which of the call's descriptors asked for them.
    pub(super) place: usize,
    pub(super) hits: u64,
    /// Whether the store was asked to charge them: then those of limits that count what they refuse are counted.
    pub(super) was_checked: bool,
}

impl Limits {
    /// What was refused of the limits that descriptors of 0 hits ask for: each with which request of the group it is on.
    pub(super) async fn refused(&self, terms: &[Terms<'_>], group: &Group<'_>) -> Vec<(usize, Decision)> {
        let mut looks = Vec::new();
        for (request, (place, asked)) in group.places.iter().zip(&group.requests).enumerate() {
            let Terms::Rule(hit) = &terms[*place] else { continue };
            if asked.asked_cost() > 0 {
                continue;
            }
            hit.mark_peeked();
            if hit.excess == Excess::Refuse {
                looks.push((request, hit, hit.denied_key()));
            }
        }
        if looks.is_empty() {
            return Vec::new();
        }
        let requests: Vec<_> = looks.iter().map(|(_, hit, key)| request(hit, key, 0)).collect();
        let decisions = self.app().unrecorded().apply(Verb::Peek, &requests).await;
        decisions.iter().map(|one| (looks[one.request()].0, *one.decision())).collect()
    }

    /// Counts what a call was refused. Where a look denied the call, the request has not taken place, and what its other
    /// descriptors asked for was used by nobody: only limits that count every hit do.
    pub(super) async fn keep_refused(
        &self,
        terms: &[Terms<'_>],
        refused: &[Refused],
        is_denied_by_look: bool,
    ) {
        let mut kept = Vec::new();
        for one in refused {
            let Terms::Rule(hit) = &terms[one.place] else { continue };
            match hit.excess {
                Excess::Count if !one.was_checked => kept.push((hit, hit.key.clone(), one.hits)),
                Excess::Refuse if !is_denied_by_look && is_wanted(hit, one.hits) => {
                    kept.push((hit, hit.denied_key(), one.hits));
                }
                Excess::Count | Excess::Refuse | Excess::Charge => {}
            }
        }
        if kept.is_empty() {
            return;
        }
        let requests: Vec<_> = kept.iter().map(|(hit, key, hits)| request(hit, key, *hits)).collect();
        self.app().unrecorded().apply(Verb::Penalize, &requests).await;
    }
}

/// Whether anybody may want to know that these hits were refused. An ordinary request has one hit and a limit that nobody
/// looks at: its denials cost no call of the store.
fn is_wanted(hit: &LimitMatch<'_>, hits: u64) -> bool {
    hits > 1 || hits > 0 && hit.is_peeked()
}

fn request<'k>(hit: &'k LimitMatch<'_>, key: &'k str, hits: u64) -> Request<'k> {
    let request = Request::new().with(SCOPE, key).under(hit.policy).cost(hits);
    match hit.quota {
        Some(quota) => request.quota(quota),
        None => request,
    }
}

/// The places in a group of requests under limits that count every hit.
pub(super) fn counted(terms: &[Terms<'_>], group: &Group<'_>) -> Vec<usize> {
    let counts =
        |at: &usize| matches!(&terms[group.places[*at]], Terms::Rule(hit) if hit.excess == Excess::Count);
    (0..group.places.len()).filter(counts).collect()
}

impl Group<'_> {
    /// The hits of one of its requests as refused.
    pub(super) fn refused(&self, request: usize, was_checked: bool) -> Refused {
        Refused { place: self.places[request], hits: self.requests[request].asked_cost(), was_checked }
    }

    /// The hits of all of them as refused.
    pub(super) fn all_refused(&self, was_checked: bool) -> impl Iterator<Item = Refused> + '_ {
        (0..self.places.len()).map(move |request| self.refused(request, was_checked))
    }
}

/// The hits of a group that were not charged, which its decisions say. `was_checked` is false where they were only looked
/// at, and then none was charged.
pub(super) fn uncharged<'g>(
    group: &'g Group<'_>,
    decisions: &'g Decisions<'_>,
    was_checked: bool,
) -> impl Iterator<Item = Refused> + 'g {
    let none_was = !was_checked || decisions.is_denied();
    let refused = decisions.iter().filter(move |one| none_was || one.is_denied());
    refused.map(move |one| group.refused(one.request(), was_checked))
}
