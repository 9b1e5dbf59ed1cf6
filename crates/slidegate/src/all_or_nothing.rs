//! All or nothing: a call is decided on all of its keys or on none.
//!
//! This is the decision procedure that every store follows, in memory and in a script.

use crate::charge::{Excess, Part, PerCharge};
use crate::decision::{Decision, Verdict};
use crate::verb::{Role, Verb};

/// What came of a call's parts.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// In the order of the parts.
    pub(crate) decisions: PerCharge<Decision>,
    /// Whether enforced policies deny the call.
    #[cfg_attr(not(feature = "stored-values"), expect(dead_code, reason = "compared with what scripts say"))]
    pub(crate) is_denied: bool,
}

/// Decides a call on all its keys or on none. `apply` does to one key what a verb says, with a
/// cost.
///
/// In a first pass all keys are peeked at, and nothing changes. Then, in this order: checks are
/// charged if the call is allowed (see [`Role`] for others), penalties are charged, and refunds are
/// returned. A shadow policy that would deny is not charged and does not deny. Where an overdraft
/// is admitted, room for the first unit of the cost is enough. Where denials count, the cost is
/// charged whatever any policy says, and a denial tells what is used after that.
#[inline]
pub(crate) fn all_or_none<P: AsRef<Part>>(
    parts: &[P],
    mut apply: impl FnMut(usize, Verb, u64) -> Decision,
) -> Outcome {
    if let Some(verb) = only_verb(parts) {
        let mut decisions = PerCharge::<Decision>::new();
        decisions.reserve_exact(parts.len());
        for (at, part) in parts.iter().enumerate() {
            decisions.push(apply(at, verb, part.as_ref().asks()));
        }
        let is_denied =
            parts.iter().zip(&decisions).any(|(part, one)| part.as_ref().enforced && one.is_denied());
        return Outcome { decisions, is_denied };
    }
    let first = |(at, part): (usize, &P)| {
        let part = part.as_ref();
        apply(at, Verb::Peek, if part.verb.is_question() { part.asks() } else { 0 })
    };
    let mut decisions: PerCharge<Decision> = parts.iter().enumerate().map(first).collect();
    complete(parts, &mut decisions);
    let denials = Denials::of(parts, &decisions);
    for (at, part) in parts.iter().map(P::as_ref).enumerate().filter(|(_, part)| part.verb == Verb::Check) {
        let passes = denials.admits(part, parts, &decisions);
        let decision = &mut decisions[at];
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
            Excess::Refuse if passes && decision.is_allowed() => *decision = apply(at, part.verb, part.cost),
            Excess::Charge if passes && decision.is_allowed() => {
                *decision = apply(at, Verb::Penalize, part.cost);
            }
            Excess::Refuse | Excess::Charge => {}
        }
    }
    for verb in [Verb::Penalize, Verb::Refund] {
        for (at, part) in parts.iter().map(P::as_ref).enumerate().filter(|(_, part)| part.verb == verb) {
            if denials.moves(part, parts, &decisions) {
                decisions[at] = apply(at, verb, part.cost);
            }
        }
    }
    Outcome { decisions, is_denied: denials.is_call }
}

/// The verb of parts that are carried out one by one, whatever comes of the others.
#[inline]
fn only_verb<P: AsRef<Part>>(parts: &[P]) -> Option<Verb> {
    let verb = parts.first().map_or(Verb::Peek, |first| first.as_ref().verb);
    if let [only] = parts {
        return only.as_ref().is_one_step().then_some(verb);
    }
    let is_alike = |part: &Part| part.verb == verb && part.is_unconditional();
    (verb != Verb::Check && parts.iter().map(P::as_ref).all(is_alike)).then_some(verb)
}

/// What the first pass denies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Denials {
    pub(crate) is_call: bool,
    /// Whether a peek denies the call, alone or with others.
    is_by_peek: bool,
}

/// Completes the decisions of the first pass with what single keys do not tell: usage under a
/// second key, and what is denied over the limit.
pub(crate) fn complete<P: AsRef<Part>>(parts: &[P], decisions: &mut [Decision]) {
    for (at, part) in parts.iter().map(P::as_ref).enumerate() {
        if part.role == Role::Refusals && part.verb == Verb::Peek {
            let usage = decisions[at];
            decisions[part.link].add_usage(&usage);
        }
    }
    for (part, decision) in parts.iter().map(P::as_ref).zip(decisions) {
        if part.over_limit && part.verb.is_question() {
            decision.deny_over_limit(part.excess == Excess::Charge);
        }
    }
}

impl Denials {
    /// What these decisions deny.
    pub(crate) fn of<P: AsRef<Part>>(parts: &[P], decisions: &[Decision]) -> Self {
        let (mut is_call, mut is_by_peek) = (false, false);
        let (mut has_together, mut all_together) = (false, true);
        for (part, decision) in parts.iter().map(P::as_ref).zip(decisions) {
            if part.role == Role::Deciding && part.enforced && decision.is_denied() {
                is_call = true;
                is_by_peek |= part.verb == Verb::Peek;
            }
            if part.role == Role::Together {
                has_together = true;
                all_together &= is_request_denied(part, parts, decisions);
            }
        }
        if has_together && all_together {
            is_call = true;
            is_by_peek |= parts
                .iter()
                .map(P::as_ref)
                .any(|part| part.role == Role::Together && part.verb == Verb::Peek);
        }
        Self { is_call, is_by_peek }
    }

    /// Whether nothing but its own key keeps a check from being charged.
    pub(crate) fn admits<P: AsRef<Part>>(self, part: &Part, parts: &[P], decisions: &[Decision]) -> bool {
        match part.role {
            Role::Deciding | Role::Refusals => !self.is_call,
            Role::Together | Role::IfAllowed => !self.is_call && !is_request_denied(part, parts, decisions),
            Role::Independent => !is_request_denied(part, parts, decisions),
        }
    }

    /// Whether a refund or a penalty is carried out.
    pub(crate) fn moves<P: AsRef<Part>>(self, part: &Part, parts: &[P], decisions: &[Decision]) -> bool {
        match part.role {
            Role::Deciding | Role::Together | Role::Independent => true,
            Role::IfAllowed => !self.is_call,
            Role::Refusals => {
                let base = parts[part.link].as_ref();
                let is_charged = base.verb == Verb::Check
                    && decisions[part.link].is_allowed()
                    && self.admits(base, parts, decisions);
                !self.is_by_peek && base.excess != Excess::Count && !is_charged
            }
        }
    }
}

/// Whether an enforced policy denies the request that a part is for.
fn is_request_denied<P: AsRef<Part>>(part: &Part, parts: &[P], decisions: &[Decision]) -> bool {
    let is_of_it = |other: &Part| other.role == part.role && other.link == part.link;
    parts
        .iter()
        .map(P::as_ref)
        .zip(decisions)
        .any(|(other, one)| is_of_it(other) && other.enforced && one.is_denied())
}
