//! Stores: where usage lives, and what can be done with it.
//!
//! A store takes a plan of charges and carries it out on all its keys or on none, in one atomic step. It knows keys,
//! quotas and costs; it knows no policy, no request and no header.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::verb::Verb;

#[cfg(feature = "redis")]
pub(crate) mod fallback;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// Decides a request on all its keys, of which `enforced` says which can deny it; `apply` does what a verb says to one.
///
/// A check under several policies looks at all keys first and charges only if no enforced one denies. A shadow policy that
/// would deny is not charged and does not deny.
#[inline]
pub(crate) fn all_or_none(
    verb: Verb,
    enforced: impl ExactSizeIterator<Item = bool>,
    mut apply: impl FnMut(usize, Verb) -> Decision,
) -> SmallVec<[Decision; 4]> {
    let keys = enforced.len();
    let look_first = verb == Verb::Check && keys > 1;
    let first = if look_first { Verb::Peek } else { verb };
    let mut decisions: SmallVec<[Decision; 4]> = (0..keys).map(|key| apply(key, first)).collect();
    if look_first && !enforced.zip(&decisions).any(|(enforced, decision)| enforced && decision.is_denied()) {
        for (key, decision) in decisions.iter_mut().enumerate().filter(|(_, decision)| decision.is_allowed())
        {
            *decision = apply(key, verb);
        }
    }
    decisions
}
