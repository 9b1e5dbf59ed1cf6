//! All or nothing: a call is decided on all of its keys or on none.
//!
//! This is the decision procedure that every store follows, in memory and in a script.

use crate::charge::{Charge, Charges, Excess, Part, PerCharge};
use crate::decision::{Decision, Verdict};
use crate::verb::{Role, Verb};

/// Decides a call on all its keys or on none. `apply` does to one key what a verb says, with a
/// cost.
///
/// In a first pass all keys are peeked at, and nothing changes. Then, in this order: checks are
/// charged if the call is allowed, penalties are charged (see [`Role::Refusals`] for those that are
/// not), and refunds are returned. A shadow policy that would deny is not charged and does not
/// deny. Where an overdraft is admitted, room for the first unit of the cost is enough. Where
/// denials count, the cost is charged whatever any policy says, and a denial tells what is used
/// after that.
///
/// Appends the decisions to a list, because moving one takes as long as a part of a decision. Returns
/// whether enforced policies deny the call.
#[inline]
pub fn all_or_none<P: AsRef<Part>>(
    parts: &[P],
    mut apply: impl FnMut(usize, Verb, u64) -> Decision,
    decisions: &mut PerCharge<Decision>,
) -> bool {
    decisions.reserve_exact(parts.len());
    if let Some(verb) = only_verb(parts) {
        for (at, part) in parts.iter().enumerate() {
            decisions.push(apply(at, verb, part.as_ref().asks()));
        }
        return parts.iter().zip(decisions).any(|(part, one)| part.as_ref().enforced && one.is_denied());
    }
    for (at, part) in parts.iter().map(P::as_ref).enumerate() {
        decisions.push(apply(at, Verb::Peek, if part.verb.is_question() { part.asks() } else { 0 }));
    }
    complete(parts, decisions);
    let denials = Denials::of(parts, |at| decisions[at].is_denied());
    for (at, part) in parts.iter().map(P::as_ref).enumerate().filter(|(_, part)| part.verb == Verb::Check) {
        let decision = &mut decisions[at];
        let passes = !denials.is_call && decision.is_allowed();
        match part.excess {
            Excess::Count => {
                let charged = apply(at, Verb::Penalize, part.cost);
                *decision = match decision.verdict {
                    Verdict::Allow => charged,
                    Verdict::Deny => {
                        let mut after = Decision { cost: charged.cost, ..apply(at, Verb::Peek, part.cost) };
                        if part.over_limit {
                            after.deny_over_limit(false);
                        }
                        after
                    }
                };
            }
            Excess::Refuse if passes => *decision = apply(at, part.verb, part.cost),
            Excess::Charge if passes => *decision = apply(at, Verb::Penalize, part.cost),
            Excess::Refuse | Excess::Charge => {}
        }
    }
    for verb in [Verb::Penalize, Verb::Refund] {
        for (at, part) in parts.iter().map(P::as_ref).enumerate().filter(|(_, part)| part.verb == verb) {
            if denials.moves(at, parts, decisions) {
                decisions[at] = apply(at, verb, part.cost);
            }
        }
    }
    denials.is_call
}

/// The verb of parts that are carried out one by one, regardless of the others.
#[inline]
fn only_verb<P: AsRef<Part>>(parts: &[P]) -> Option<Verb> {
    let verb = parts.first().map_or(Verb::Peek, |first| first.as_ref().verb);
    if let [only] = parts {
        return only.as_ref().is_one_step().then_some(verb);
    }
    let is_alike = |part: &Part| part.verb == verb && part.is_unconditional();
    (verb != Verb::Check && parts.iter().map(P::as_ref).all(is_alike)).then_some(verb)
}

/// The denials of the first pass.
#[derive(Debug, Clone, Copy)]
pub struct Denials {
    /// Whether the whole call is denied.
    pub is_call: bool,
    /// Whether a peek denies the call, alone or with others.
    is_by_peek: bool,
}

/// Completes the decisions of the first pass with what single keys do not tell: usage under a
/// second key, and what is denied over the limit.
pub fn complete<P: AsRef<Part>>(parts: &[P], decisions: &mut [Decision]) {
    for (at, part) in parts.iter().map(P::as_ref).enumerate() {
        if part.role == Role::Refusals && part.verb == Verb::Peek {
            let usage = decisions[at];
            decisions[base_of(at, parts)].add_usage(&usage);
        }
    }
    for (part, decision) in parts.iter().map(P::as_ref).zip(decisions) {
        if part.over_limit && part.verb.is_question() {
            decision.deny_over_limit(part.excess == Excess::Charge);
        }
    }
}

impl Denials {
    /// The denials of a call. `is_denied` tells whether the part at a position is denied.
    pub fn of<P: AsRef<Part>>(parts: &[P], is_denied: impl Fn(usize) -> bool) -> Self {
        let mut denials = Self { is_call: false, is_by_peek: false };
        let mut together: Option<Self> = None;
        for (at, part) in parts.iter().map(P::as_ref).enumerate() {
            let (denies, is_peek) = (part.enforced && is_denied(at), part.verb == Verb::Peek);
            match part.role {
                Role::Deciding if denies => {
                    denials.is_call = true;
                    denials.is_by_peek |= is_peek;
                }
                Role::Together => {
                    let all = together.get_or_insert(Self { is_call: true, is_by_peek: false });
                    all.is_call &= denies;
                    all.is_by_peek |= is_peek;
                }
                Role::Deciding | Role::Refusals => {}
            }
        }
        match together.filter(|all| all.is_call) {
            Some(all) => Self { is_call: true, is_by_peek: denials.is_by_peek || all.is_by_peek },
            None => denials,
        }
    }

    /// Whether the refund or the penalty at this position is carried out.
    pub fn moves<P: AsRef<Part>>(self, at: usize, parts: &[P], decisions: &[Decision]) -> bool {
        if parts[at].as_ref().role != Role::Refusals {
            return true;
        }
        let base = base_of(at, parts);
        let Part { verb, excess, .. } = *parts[base].as_ref();
        let is_charged = verb == Verb::Check && decisions[base].is_allowed() && !self.is_call;
        !self.is_by_peek && excess != Excess::Count && !is_charged
    }
}

/// The charges as a store has to decide them, where it is known before that some of them are
/// denied: by a block, or because nobody can be asked.
///
/// Denied checks are now only peeked at, and deny nothing any more. If they deny the call, nothing
/// else is charged either.
pub(crate) fn with_denials<'a>(charges: &[Charge<'a>], is_denied: impl Fn(usize) -> bool) -> Charges<'a> {
    let denials = Denials::of(charges, &is_denied);
    let decided = |(at, charge): (usize, &Charge<'a>)| {
        let part = charge.part;
        let peek = Part { verb: Verb::Peek, role: Role::Deciding, enforced: false, ..part };
        let part = match (part.role, part.verb) {
            (Role::Refusals, Verb::Penalize) if denials.is_call => {
                if denials.is_by_peek || part.excess == Excess::Count {
                    Part { cost: 0, ..peek }
                } else {
                    Part { role: Role::Deciding, ..part }
                }
            }
            (Role::Refusals, _) => part,
            (_, Verb::Check | Verb::Peek) if is_denied(at) => peek,
            (_, Verb::Check) if denials.is_call => Part { verb: Verb::Peek, ..part },
            _ => part,
        };
        Charge { part, ..charge.clone() }
    };
    charges.iter().enumerate().map(decided).collect()
}

/// The position of the part that the refusals at this position belong to.
fn base_of<P: AsRef<Part>>(at: usize, parts: &[P]) -> usize {
    let base = parts[..at].iter().rposition(|part| part.as_ref().role != Role::Refusals);
    base.expect("refusals follow the part that they belong to")
}
