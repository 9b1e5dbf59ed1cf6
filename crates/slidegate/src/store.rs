//! Stores: where usage lives, and what can be done with it.
//!
//! A store takes a plan of charges and carries it out on all its keys or on none, in one atomic step. It knows keys,
//! quotas and costs; it knows no policy, no request and no header.

use smallvec::SmallVec;

use crate::charge::{Excess, Part};
use crate::decision::{Decision, Verdict};
use crate::verb::Verb;

#[cfg(feature = "redis")]
pub(crate) mod fallback;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// Decides on all keys or on none; `apply` does to one key what a verb says, with a cost.
///
/// A check under several policies looks at all keys first and charges only if no enforced one denies. A shadow policy that
/// would deny is not charged and does not deny. Where excess is charged, room for the least of the cost is enough. Where
/// it is counted, the cost is charged whatever any policy says, and a denial is told as it is after that.
#[inline]
pub(crate) fn all_or_none(
    verb: Verb,
    parts: impl ExactSizeIterator<Item = Part> + Clone,
    mut apply: impl FnMut(usize, Verb, u64) -> Decision,
) -> SmallVec<[Decision; 4]> {
    let asks = matches!(verb, Verb::Check | Verb::Peek);
    let look_first =
        verb == Verb::Check && (parts.len() > 1 || parts.clone().any(|part| part.excess != Excess::Refuse));
    let first = if look_first { Verb::Peek } else { verb };
    let look = |(key, part): (usize, Part)| apply(key, first, if asks { part.asks() } else { part.cost });
    let mut decisions: SmallVec<[Decision; 4]> = parts.clone().enumerate().map(look).collect();
    if look_first {
        let passes = !parts.clone().zip(&decisions).any(|(part, one)| part.enforced && one.is_denied());
        for (key, (part, decision)) in parts.zip(&mut decisions).enumerate() {
            match part.excess {
                Excess::Count => {
                    let charged = apply(key, Verb::Penalize, part.cost);
                    *decision = match decision.verdict {
                        Verdict::Allow => charged,
                        Verdict::Deny => Decision { cost: charged.cost, ..apply(key, Verb::Peek, part.cost) },
                    };
                }
                Excess::Refuse if passes && decision.is_allowed() => *decision = apply(key, verb, part.cost),
                Excess::Charge if passes && decision.is_allowed() => {
                    *decision = apply(key, Verb::Penalize, part.cost);
                }
                Excess::Refuse | Excess::Charge => {}
            }
        }
    }
    decisions
}
