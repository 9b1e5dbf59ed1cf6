//! Judges reservations from outside: from what clients sent and were answered, by Redis's clock.
//!
//! It shares no code with the service. A call takes effect at some moment between the one at which
//! it was sent and the one at which its reply arrived; one without a reply may have taken effect or
//! not. What exceeds a limit is reported only if it does so in every case; what was charged in all
//! must be possible in one.

use super::history::{Change, Outcome, Policy, Reservation, Span, Verb};

/// What must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Most in flight of a user.
    pub(crate) in_flight: u64,
    /// Most tokens of a user in a window, and the window.
    pub(crate) limit: u64,
    pub(crate) window: u64,
    /// How long after a call without a reply was sent Redis may still execute it: the deadline that
    /// the script checks.
    pub(crate) deadline: u64,
}

/// An amount that certainly counts from one moment until another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    from: u64,
    until: u64,
    amount: u64,
}

/// What is wrong with this history, in lines; nothing if all is well.
pub(crate) fn faults(history: &[Reservation], users: usize, rules: &Rules) -> Vec<String> {
    let mut faults: Vec<String> = history.iter().filter_map(|one| impossible_reply(one, rules)).collect();
    for user in 0..users {
        let of_user = || history.iter().filter(move |one| one.user == user);
        let counted = |policy| most_at_once(of_user().flat_map(|one| counted(one, policy, rules)).collect());
        let (streams, at) = counted(Policy::Streams);
        if streams > rules.in_flight {
            faults.push(format!("user {user}: {streams} of {} in flight at {at}", rules.in_flight));
        }
        let (tokens, at) = counted(Policy::Tokens);
        if tokens > rules.limit {
            let counts = |one: &&Reservation| {
                self::counted(one, Policy::Tokens, rules)
                    .iter()
                    .any(|part| part.from <= at && at < part.until)
            };
            let by: Vec<_> = of_user().filter(counts).map(|one| format!("\n  {one:?}")).collect();
            let text = format!("user {user}: {tokens} of {} tokens used and held at {at}", rules.limit);
            faults.push(format!("{text}, by{}", by.concat()));
        }
        let uses = of_user().flat_map(|one| one.uses.iter().copied());
        let uses = uses.map(|(at, amount)| Segment { from: at, until: at + rules.window, amount });
        let (used, at) = most_at_once(uses.collect());
        if used > rules.limit {
            faults
                .push(format!("user {user}: {used} of {} tokens flowed in the window to {at}", rules.limit));
        }
    }
    faults
}

/// The greatest sum of amounts at one moment, and that moment. An amount counts no longer at the
/// end of its segment.
fn most_at_once(segments: Vec<Segment>) -> (u64, u64) {
    let mut steps: Vec<(u64, bool, u64)> = Vec::new();
    for Segment { from, until, amount } in segments {
        if from < until {
            steps.extend([(from, true, amount), (until, false, amount)]);
        }
    }
    // Ends come before beginnings at the same moment.
    steps.sort_unstable();
    let (mut sum, mut most, mut when) = (0, 0, 0);
    for (at, begins, amount) in steps {
        sum = if begins { sum + amount } else { sum - amount };
        if sum > most {
            (most, when) = (sum, at);
        }
    }
    (most, when)
}

/// What a reservation certainly holds or has charged, over time.
fn counted(one: &Reservation, policy: Policy, rules: &Rules) -> Vec<Segment> {
    if !one.is_certain || !one.policies.contains(&policy) {
        return Vec::new();
    }
    let is_charged = policy != Policy::Streams;
    let mut segments = Vec::new();
    let mut push = |from, until, amount| segments.push(Segment { from, until, amount });
    // Held at least, and open at least until then unless it is ended.
    let (mut held, mut end) = (one.held_by(policy), one.made.sent + one.ttl);
    let mut cursor = one.made.replied;
    // When it certainly holds all of that.
    let mut since = one.made.replied;
    // Settled by calls that were answered, and by those that may have been executed.
    let (mut settled, mut tried) = (0, 0);
    // When calls without a reply may have settled how much in all, and whether one may have ended it.
    let (mut unknown, mut may_be_over, mut has_unknown) = (Vec::new(), false, false);
    for change in &one.changes {
        let Span { sent, replied } = change.span;
        let outcome = change.outcome(policy);
        let is_open = outcome == Some(Outcome::Changed);
        if is_open {
            // It was open until now, whatever came between.
            push(cursor, sent, held - tried.min(held));
        } else if !may_be_over {
            push(cursor, sent.min(end), held - tried.min(held));
        }
        cursor = sent;
        let verb = change.verb_under(policy);
        match outcome {
            Some(Outcome::Changed) => {
                (may_be_over, end) = (false, sent + one.ttl);
                match verb {
                    Verb::Settle { total, is_final } => {
                        let total = total.max(settled);
                        // Each part is held until it is charged, so it counts without a gap.
                        for (since, tried) in unknown.drain(..).chain([(sent, total)]) {
                            let part = total.min(tried).saturating_sub(settled);
                            if is_charged {
                                push(since, since + rules.window, part);
                            }
                            settled += part;
                        }
                        tried = tried.max(total);
                        if is_final {
                            return segments;
                        }
                    }
                    Verb::Extend { hold } => {
                        // More counts from the reply on.
                        if let Some(hold) = hold.filter(|hold| *hold > held) {
                            push(sent, replied, held - tried.min(held));
                            (cursor, since, held) = (replied, replied, hold);
                        }
                    }
                    Verb::Cancel => return segments,
                }
            }
            Some(Outcome::AlreadySettled | Outcome::Expired) if has_unknown => may_be_over = true,
            Some(Outcome::AlreadySettled) => return segments,
            Some(Outcome::Expired | Outcome::Denied) => {}
            None => {
                has_unknown = true;
                match verb {
                    Verb::Settle { total, is_final } => {
                        unknown.push((sent, total));
                        tried = tried.max(total);
                        may_be_over |= is_final;
                    }
                    Verb::Cancel => may_be_over = true,
                    Verb::Extend { .. } => {}
                }
            }
        }
    }
    if may_be_over {
        return segments;
    }
    push(cursor, end, held - tried.min(held));
    if is_charged && !has_unknown {
        // Charged at its end, which is not before this one. The reply about what it holds may be later.
        push(end.max(since), end + rules.window, held - settled);
    }
    segments
}

/// One of the states in which a reservation may be under a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    charged: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Holds so much in all, with what was charged, and ends between these moments.
    Open { amount: u64, earliest: u64, latest: u64 },
    /// Settled or cancelled.
    Settled,
    /// Ended by its time.
    Lapsed,
    /// Was never made.
    Absent,
}

impl State {
    /// The states in which it may be when a call is executed.
    fn at(self, Span { sent, replied }: Span) -> Vec<Self> {
        let Stage::Open { amount, earliest, latest } = self.stage else { return vec![self] };
        let lapsed = Self { charged: amount.max(self.charged), stage: Stage::Lapsed };
        let mut states = Vec::new();
        if sent < latest {
            states.push(self);
        }
        if replied >= earliest {
            states.push(lapsed);
        }
        states
    }

    /// Its state after a call, for each outcome that the call may have.
    fn after(self, verb: Verb, Span { sent, replied }: Span, ttl: u64) -> Vec<(Outcome, Self)> {
        let Stage::Open { amount, earliest, latest } = self.stage else {
            return match self.stage {
                // Which of both depends on whether its time would be over.
                Stage::Settled => vec![(Outcome::AlreadySettled, self), (Outcome::Expired, self)],
                Stage::Lapsed => vec![(Outcome::Expired, self)],
                _ => Vec::new(),
            };
        };
        let renewed = |amount, charged| {
            let stage = Stage::Open { amount, earliest: sent + ttl, latest: replied + ttl };
            Self { charged, stage }
        };
        match verb {
            Verb::Settle { total, is_final } => {
                let charged = self.charged.max(total);
                let settled = Self { charged, stage: Stage::Settled };
                let next = if is_final { settled } else { renewed(amount.max(total), charged) };
                vec![(Outcome::Changed, next)]
            }
            Verb::Cancel => vec![(Outcome::Changed, Self { stage: Stage::Settled, ..self })],
            Verb::Extend { hold: None } => vec![(Outcome::Changed, renewed(amount, self.charged))],
            Verb::Extend { hold: Some(hold) } => {
                let extended = renewed(hold.max(self.charged), self.charged);
                // Where several slots decide, its time may restart nevertheless.
                let stage = Stage::Open { amount, earliest, latest: latest.max(replied + ttl) };
                vec![(Outcome::Changed, extended), (Outcome::Denied, Self { stage, ..self })]
            }
        }
    }
}

/// All states that a reservation may be in at its end; none if a reply was impossible, and which.
fn states(one: &Reservation, policy: Policy, rules: &Rules) -> Result<Vec<State>, String> {
    let amount = one.held_by(policy);
    let open = |earliest, latest| State { charged: 0, stage: Stage::Open { amount, earliest, latest } };
    let Span { sent, replied } = one.made;
    let mut states = if one.is_certain {
        vec![open(sent + one.ttl, replied + one.ttl)]
    } else {
        let latest = replied.max(sent + rules.deadline) + one.ttl;
        vec![State { charged: 0, stage: Stage::Absent }, open(sent + one.ttl, latest)]
    };
    for (at, change) in one.changes.iter().enumerate() {
        let mut next: Vec<State> = Vec::new();
        let verb = change.verb_under(policy);
        let outcome = change.outcome(policy);
        let mut span = change.span;
        if outcome.is_none() {
            span.replied = span.replied.max(span.sent + rules.deadline);
            next.extend(states.iter().copied());
        }
        for state in states.iter().flat_map(|state| state.at(span)) {
            for (possible, after) in state.after(verb, span, one.ttl) {
                if outcome.is_none_or(|outcome| outcome == possible) && !next.contains(&after) {
                    next.push(after);
                }
            }
        }
        if next.is_empty() {
            return Err(format!("user {}, {policy:?}: reply {at} is impossible in {one:?}", one.user));
        }
        states = next;
    }
    Ok(states)
}

/// Why no state explains the replies, a reply extends it in part, or the end that a reply states is
/// not its time after the call.
fn impossible_reply(one: &Reservation, rules: &Rules) -> Option<String> {
    // Replies round to milliseconds.
    let ends = (one.made.sent + one.ttl).saturating_sub(1_000)..=one.made.replied + one.ttl + 1_000;
    if one.until.is_some_and(|until| !ends.contains(&until)) {
        return Some(format!("user {}: does not end at {ends:?}: {one:?}", one.user));
    }
    let is_divided = |change: &Change| {
        let is = |outcome| change.outcomes.iter().any(|(_, one)| *one == outcome);
        is(Outcome::Denied) && is(Outcome::Changed)
    };
    if one.changes.iter().any(is_divided) {
        return Some(format!("user {}: extended and denied: {one:?}", one.user));
    }
    one.policies.iter().find_map(|policy| states(one, *policy, rules).err())
}

/// The least and the most that was charged in all under a policy by a user's reservations when each
/// of them has ended.
pub(crate) fn charged(history: &[Reservation], user: usize, policy: Policy, rules: &Rules) -> (u64, u64) {
    let of_user = history.iter().filter(|one| one.user == user && one.policies.contains(&policy));
    let (mut least, mut most) = (0, 0);
    for one in of_user {
        let ends = states(one, policy, rules).unwrap_or_default();
        let costs = ends.iter().map(|state| match state.stage {
            Stage::Open { amount, .. } => amount.max(state.charged),
            _ => state.charged,
        });
        least += costs.clone().min().unwrap_or(0);
        most += costs.max().unwrap_or(0);
    }
    (least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { in_flight: 2, limit: 100, window: 1_000, deadline: 50 };

    /// Made and answered 10 later; lasts 500.
    fn made(sent: u64, hold: u64, changes: Vec<Change>) -> Reservation {
        let policies = Policy::ALL.to_vec();
        let made = Span { sent, replied: sent + 10 };
        let (is_certain, uses, until) = (true, Vec::new(), None);
        Reservation { user: 0, policies, hold, ttl: 500, made, until, is_certain, changes, uses }
    }

    fn change(verb: Verb, sent: u64, outcome: Option<Outcome>) -> Change {
        let outcomes = Policy::ALL.into_iter().zip(outcome.into_iter().cycle()).collect();
        Change { verb, span: Span { sent, replied: sent + 10 }, outcomes }
    }

    fn settle(total: u64, sent: u64) -> Change {
        change(Verb::Settle { total, is_final: true }, sent, Some(Outcome::Changed))
    }

    fn part(total: u64, sent: u64) -> Change {
        change(Verb::Settle { total, is_final: false }, sent, Some(Outcome::Changed))
    }

    /// Three requests that are just within both limits.
    fn history() -> Vec<Reservation> {
        let mut first = made(0, 60, vec![part(20, 100), settle(50, 200)]);
        first.uses = vec![(90, 20), (190, 30)];
        // Abandoned: 40 are charged at its end.
        let second = made(20, 40, Vec::new());
        // What the first did not use is free again.
        let third = made(220, 10, vec![settle(10, 230)]);
        vec![first, second, third]
    }

    /// A checker that cries wolf would fail an exact limiter.
    #[test]
    fn a_history_within_the_limits_has_no_fault_and_its_charges_are_known() {
        let history = history();
        assert_eq!(faults(&history, 1, &RULES), [""; 0]);
        assert_eq!(charged(&history, 0, Policy::Ledger, &RULES), (100, 100));
    }

    /// A checker that sees no excess would pass any limiter.
    #[test]
    fn one_lease_more_than_the_limit_is_a_fault() {
        let mut history = history();
        history.push(made(40, 0, Vec::new()));
        assert_eq!(faults(&history, 1, &RULES), ["user 0: 3 of 2 in flight at 50"]);
        // The lease of the abandoned one is over at 520 at the earliest; after 530 it is free.
        history[3] = made(530, 0, Vec::new());
        history.push(made(530, 0, Vec::new()));
        assert_eq!(faults(&history, 1, &RULES), [""; 0]);
        history.push(made(530, 0, Vec::new()));
        assert_eq!(faults(&history, 1, &RULES).len(), 1);
    }

    #[test]
    fn one_token_more_than_the_limit_is_a_fault() {
        for more in ["held", "settled", "abandoned", "flowed"] {
            let mut history = history();
            match more {
                "held" => history[2] = made(220, 11, Vec::new()),
                "settled" => {
                    // It was denied more, and settled it nevertheless.
                    history[2].changes[0] = settle(11, 230);
                }
                "abandoned" => history[1].hold += 1,
                _ => history[0].uses.push((195, 71)),
            }
            let faults = faults(&history, 1, &RULES);
            assert_eq!(faults.len(), 1, "{more}: {faults:?}");
            assert!(
                faults[0].contains("121 of 100") || faults[0].contains("101 of 100"),
                "{more}: {faults:?}"
            );
        }
    }

    /// Windows that only touch are no fault, and ones that overlap by a moment are.
    #[test]
    fn a_charge_counts_for_a_window_and_no_longer() {
        // Charged at 200 to 210: counts until 1,200 at least, and at 1,210 no more.
        let with =
            |sent| vec![made(0, 100, vec![settle(100, 200)]), made(sent, 1, vec![settle(1, sent + 20)])];
        assert_eq!(faults(&with(1_190), 1, &RULES), [""; 0]);
        assert_eq!(faults(&with(1_180), 1, &RULES).len(), 1);
    }

    /// On a loaded machine a reply may take longer than its reservation lasts.
    #[test]
    fn a_reservation_counts_from_its_reply_on() {
        let before = made(0, 60, vec![settle(60, 10)]);
        let mut late = made(300, 60, Vec::new());
        for (replied, is_over) in [(900, true), (1200, false)] {
            late.made.replied = replied;
            let faults = faults(&[before.clone(), late.clone()], 1, &RULES);
            assert_eq!(!faults.is_empty(), is_over, "{faults:?}");
        }
    }

    /// A settlement that is charged twice, or one that is not charged at all, is one that no other
    /// check sees.
    #[test]
    fn replies_that_contradict_each_other_are_faults() {
        let settled = Some(Outcome::AlreadySettled);
        let twice = made(0, 10, vec![settle(5, 100), settle(5, 150)]);
        let never = made(0, 10, vec![change(Verb::Settle { total: 5, is_final: true }, 100, settled)]);
        let early = made(0, 10, vec![change(Verb::Extend { hold: None }, 100, Some(Outcome::Expired))]);
        let late = made(0, 10, vec![settle(5, 600)]);
        let mut longer = made(1_000, 10, Vec::new());
        longer.until = Some(3_000);
        assert!(faults(&[longer], 1, &RULES)[0].contains("does not end at"));
        for one in [twice, never, early, late] {
            let faults = faults(std::slice::from_ref(&one), 1, &RULES);
            assert!(faults.iter().any(|fault| fault.contains("is impossible")), "{faults:?} in {one:?}");
        }
    }

    /// More was settled in each of two calls without a reply: what the second added was held until then.
    #[test]
    fn calls_without_a_reply_count_no_more_than_what_is_held() {
        let unknown = |total, sent| change(Verb::Settle { total, is_final: false }, sent, None);
        let tried = made(0, 60, vec![unknown(10, 100), unknown(50, 200), part(60, 300)]);
        let other = |hold| made(0, hold, vec![settle(hold, 20)]);
        assert_eq!(faults(&[tried.clone(), other(40)], 1, &RULES), [""; 0]);
        assert_eq!(faults(&[tried, other(41)], 1, &RULES).len(), 1);
    }

    /// It may have ended, and be charged, before the reply that says how much more it held.
    #[test]
    fn a_late_reply_about_more_counts_both_amounts_in_turn() {
        let mut more = change(Verb::Extend { hold: Some(60) }, 100, Some(Outcome::Changed));
        more.span.replied = 700;
        let raised = made(0, 40, vec![more]);
        let other = |hold| made(0, hold, vec![settle(hold, 20)]);
        assert_eq!(faults(&[raised.clone(), other(40)], 1, &RULES), [""; 0]);
        assert_eq!(faults(&[raised, other(41)], 1, &RULES).len(), 1);
    }

    /// What no reply states may have happened or not; everything else is known exactly.
    #[test]
    fn calls_without_a_reply_widen_what_may_have_been_charged_and_no_more() {
        let ledger = |one: Reservation| charged(&[one], 0, Policy::Ledger, &RULES);
        let unknown = |total, sent| change(Verb::Settle { total, is_final: true }, sent, None);
        // Settled, or charged at its end.
        assert_eq!(ledger(made(0, 60, vec![unknown(20, 100)])), (20, 60));
        // A repeated call shows that one of both was executed.
        assert_eq!(ledger(made(0, 60, vec![unknown(20, 100), settle(20, 150)])), (20, 20));
        let again = change(Verb::Settle { total: 20, is_final: true }, 150, Some(Outcome::AlreadySettled));
        assert_eq!(ledger(made(0, 60, vec![unknown(20, 100), again])), (20, 20));
        let mut uncertain = made(0, 60, Vec::new());
        uncertain.is_certain = false;
        assert_eq!(ledger(uncertain.clone()), (0, 60));
        assert_eq!(faults(&[uncertain.clone(), uncertain.clone(), uncertain], 1, &RULES), [""; 0]);
        // It may be over since 100, so that another one fits.
        let both = |second| vec![made(0, 60, vec![unknown(20, 100)]), made(second, 80, Vec::new())];
        assert_eq!(faults(&both(110), 1, &RULES), [""; 0]);
        assert_eq!(faults(&both(80), 1, &RULES).len(), 1);
    }
}
