//! Calls for any number of keys, decided at one time, all or nothing, on stored values.
//!
//! All keys are opened first, then the requests are decided, and the writes are returned. So an
//! error in any key leaves all unchanged.

use slidegate::internal::{HoldChange, Part, PerCharge, all_or_none, counts_still};
use slidegate::{Excess, Quota, clock::Timestamp, verb::Verb};
use smallvec::SmallVec;

use crate::call::{CallPart, ChangeCall, DecideCall};
use crate::call_key::{CallKey, Terms, open};
use crate::pair::{Effect, Pair, settle_due};
use crate::reply::{Item, Reply};
use crate::state::Unusable;
use crate::write::Write;

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decided {
    /// The reply of the script.
    pub reply: Reply,
    /// Effects on keys, by key number, in order.
    pub effects: Vec<(usize, Effect)>,
    /// The first reply to store: its bytes, and their expiry in milliseconds since the Unix epoch.
    pub first_reply: Option<(Vec<u8>, u64)>,
}

/// One key made the call fail. No key is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableKey {
    /// The error as a script reports it: `SLIDEGATE value 2 is damaged: its ring is cut off`.
    pub message: String,
    /// The effect that marks a key as damaged, so that the damage keeps being reported.
    pub effect: Option<Box<(usize, Effect)>>,
}

/// A refund of a part of the call, and its cost.
type Refund = (usize, u64);

impl DecideCall {
    /// Decides the call on its keys' values at this time, in microseconds since the Unix epoch.
    /// Needs as many pairs as [keys](Self::keys).
    ///
    /// # Errors
    /// If another program wrote one of the values, or it is damaged.
    pub fn decide(&self, pairs: &mut [Pair<'_>], now_us: u64) -> Result<Decided, UnusableKey> {
        if now_us > self.latest {
            return Ok(Decided { reply: Reply::late(now_us), ..Decided::default() });
        }
        let mut decided = Decided::default();
        // Errors number a key by its first part.
        let number = |key: usize| 1 + self.parts.iter().position(|one| one.key == key).unwrap_or(key);
        let mut quotas = SmallVec::<[Quota; 4]>::new();
        for CallPart { key, quota, .. } in &self.parts {
            if *key == quotas.len() {
                quotas.push(*quota);
            }
        }
        let terms = Terms { now: now_us, has_holds: self.has_holds };
        let wrong = |key: usize| move |unusable: Unusable| UnusableKey::of(key, number(key), unusable);
        if self.has_holds {
            settle_all(pairs, &quotas, now_us, &mut decided.effects).map_err(|(key, why)| wrong(key)(why))?;
        }
        let (pairs, settled) = (&*pairs, decided.effects.len());
        let mut keys = Vec::with_capacity(pairs.len());
        for (key, (pair, quota)) in pairs.iter().zip(&quotas).enumerate() {
            keys.push(open(pair, quota, terms).map_err(wrong(key))?);
        }
        let (passed, refunds) = self.decide_requests(&mut keys);
        let reported = keys.len() + refunds.len();
        decided.reply.list(2 + reported);
        decided.reply.number(passed);
        decided.reply.number(now_us);
        let mut effects = Vec::new();
        for (key, opened) in keys.iter().enumerate() {
            opened.report_before(&mut decided.reply);
            opened.charge_effects(&mut effects).map_err(wrong(key))?;
            opened.is_readable().map_err(wrong(key))?;
            decided.effects.extend(effects.drain(..).map(|effect| (key, effect)));
        }
        for (at, cost) in refunds {
            let CallPart { key, hold, .. } = self.parts[at];
            let mut refund = |opened: &mut dyn CallKey, decided: &mut Decided| {
                let refunded = match hold {
                    Some(hold) => opened.cancel(hold.id, &mut effects),
                    None => opened.refund(cost, &mut effects),
                };
                let refunded = refunded.map_err(wrong(key))?;
                opened.is_readable().map_err(wrong(key))?;
                opened.report_now(Some(refunded), &mut decided.reply);
                decided.effects.extend(effects.drain(..).map(|effect| (key, effect)));
                Ok(())
            };
            if keys[key].will_be_written() {
                // Read again as it will be then.
                let mut written = pairs[key].clone();
                let of_key = decided.effects[settled..].iter().filter(|(of, _)| *of == key);
                of_key.for_each(|(_, effect)| written.apply(effect));
                let mut again = open(&written, &quotas[key], terms).map_err(wrong(key))?;
                refund(&mut *again, &mut decided)?;
            } else {
                refund(&mut *keys[key], &mut decided)?;
                keys[key].write_anyway(false);
            }
        }
        let is_charged = keys.iter().any(|key| key.is_charged());
        if let Some(once_ms) = self.once_ms.filter(|_| is_charged && passed > 0) {
            let bytes = decided.reply.packed();
            decided.first_reply = Some((bytes, (now_us / 1000).saturating_add(once_ms)));
        }
        Ok(decided)
    }

    /// The reply to an earlier call with the same idempotency key. `None` if its value is not one.
    #[must_use]
    pub fn first_reply(stored: &[u8]) -> Option<Reply> {
        Reply::unpacked(stored)
    }

    /// Decides the requests in order. Returns how many pass, and the refunds to apply.
    fn decide_requests(&self, keys: &mut [Box<dyn CallKey + '_>]) -> (u64, SmallVec<[Refund; 2]>) {
        for CallPart { key, .. } in self.parts.iter().filter(|one| one.part.verb == Verb::Check) {
            keys[*key].write_anyway(true);
        }
        let (mut passed, mut refunds) = (0, SmallVec::new());
        for cost in &self.costs {
            let parts: SmallVec<[Part; 4]> = self.parts.iter().map(|one| one.part(*cost)).collect();
            let apply = |at: usize, verb, cost| {
                let CallPart { key, hold, part, .. } = &self.parts[at];
                let opened = &mut keys[*key];
                if verb == Verb::Refund {
                    // Applied after all charges.
                    refunds.push((at, cost));
                    return opened.peek();
                }
                let decision = opened.apply(verb, cost, hold.as_ref());
                match (verb, part.verb, part.excess) {
                    (Verb::Penalize, Verb::Check, Excess::Count) => {
                        // The wait includes a denied cost that was counted.
                        opened.count_denied(cost);
                        opened.note_penalty(cost);
                    }
                    (Verb::Penalize, Verb::Penalize, _) => opened.note_penalty(cost),
                    _ => {}
                }
                decision
            };
            passed += u64::from(!all_or_none(&parts, apply, &mut PerCharge::new()));
        }
        (passed, refunds)
    }
}

impl ChangeCall {
    /// Changes the holds, all or none, on their keys' values at this time, in microseconds since
    /// the Unix epoch. Needs as many pairs as [keys](Self::keys).
    ///
    /// # Errors
    /// If another program wrote one of the values, or it is damaged.
    pub fn change(&self, pairs: &mut [Pair<'_>], now_us: u64) -> Result<Decided, UnusableKey> {
        if now_us > self.latest {
            return Ok(Decided { reply: Reply::late(now_us), ..Decided::default() });
        }
        let mut decided = Decided::default();
        let wrong = |key: usize| move |unusable: Unusable| UnusableKey::of(key, key + 1, unusable);
        let quotas: SmallVec<[Quota; 4]> = self.changes.iter().map(|one| one.quota).collect();
        settle_all(pairs, &quotas, now_us, &mut decided.effects).map_err(|(key, why)| wrong(key)(why))?;
        let terms = Terms { now: now_us, has_holds: true };
        let mut keys = Vec::with_capacity(pairs.len());
        for (key, (pair, quota)) in pairs.iter().zip(&quotas).enumerate() {
            keys.push(open(pair, quota, terms).map_err(wrong(key))?);
        }
        let fits = keys.iter().zip(&self.changes).all(|(key, one)| key.excess(one.id, &one.change) == 0);
        let Reply(items) = &mut decided.reply;
        items.extend([Item::List(3), Item::Number(0)]);
        decided.reply.number(now_us);
        decided.reply.list(self.changes.len());
        let mut effects = Vec::new();
        for (at, (key, one)) in keys.iter_mut().zip(&self.changes).enumerate() {
            let reply = &mut decided.reply;
            let changed = match one.change {
                change if !fits && change.is_extension() => {
                    key.deny_change(one.id, &change, reply, &mut effects)
                }
                HoldChange::Refund { cost } => {
                    let [made, now] = [one.made, now_us].map(Timestamp::from_micros);
                    let change = HoldChange::Refund { cost: counts_still(&one.quota, cost, made, now) };
                    key.change(one.id, &change, &one.ended(now_us), reply, &mut effects)
                }
                change => key.change(one.id, &change, &one.ended(now_us), reply, &mut effects),
            };
            changed.and_then(|()| key.is_readable()).map_err(wrong(at))?;
            decided.effects.extend(effects.drain(..).map(|effect| (at, effect)));
        }
        Ok(decided)
    }
}

/// Charges the expired holds of all keys.
fn settle_all(
    pairs: &mut [Pair<'_>],
    quotas: &[Quota],
    now: u64,
    all: &mut Vec<(usize, Effect)>,
) -> Result<(), (usize, Unusable)> {
    let mut effects = Vec::new();
    for (key, (pair, quota)) in pairs.iter_mut().zip(quotas).enumerate() {
        settle_due(pair, quota, now, &mut effects).map_err(|unusable| (key, unusable))?;
        all.extend(effects.drain(..).map(|effect| (key, effect)));
    }
    Ok(())
}

impl UnusableKey {
    fn of(key: usize, number: usize, unusable: Unusable) -> Self {
        let effect = unusable.write.map(|write: Box<Write>| Box::new((key, Effect::Usage(*write))));
        Self { message: format!("SLIDEGATE value {number} is {}", unusable.message), effect }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;
    use slidegate::internal::{NewHold, QuotaFields, TAG};
    use slidegate::reserve::Unsettled;
    use slidegate::{Algorithm, verb::Role};

    use super::*;
    use crate::call::KeyChange;

    const NOW_US: u64 = 1_700_000_000_000_000;

    /// One step of a history: a call that decides or changes, and how much later it is.
    #[derive(Debug, Clone)]
    struct Step {
        later_us: i64,
        verbs: Vec<(usize, u64, u64)>,
        cost: u64,
        change: Option<usize>,
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        let windows = prop_oneof![Just(1_000u64), Just(60_000_000), 1_000..31_622_400_000_000u64];
        let limits = prop_oneof![0u64..6, 1u64..3000, Just(Quota::MAX_COUNT)];
        (limits, windows, prop_oneof![Just(1024u16), 1u16..5], 0usize..5).prop_map(
            |(limit, window_us, slots, at)| {
                let all = Algorithm::ALL.into_iter().chain([Algorithm::InFlight]);
                let algorithm = all.clone().nth(at).unwrap_or_default();
                let burst = (algorithm == Algorithm::TokenBucket).then_some(limit);
                let is_lease = algorithm == Algorithm::InFlight;
                let window_us = if is_lease { window_us.clamp(1_000_000, 3_600_000_000) } else { window_us };
                let fields = QuotaFields { limit, window_us, burst, algorithm, slots, calendar: None };
                fields.quota().expect("a window in its range")
            },
        )
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let later = prop_oneof![Just(0i64), 0i64..2_000_000, 0i64..90_000_000, -5_000_000i64..0];
        let verbs = proptest::collection::vec((0usize..6, 0u64..6, 0u64..90_000_000), 1..4);
        let step = (later, verbs, 0u64..9, proptest::option::of(0usize..6));
        let step = step.prop_map(|(later_us, verbs, cost, change)| Step { later_us, verbs, cost, change });
        proptest::collection::vec(step, 1..25)
    }

    /// Values of any content, some of which begin as a table of holds.
    fn values() -> impl Strategy<Value = Option<Vec<u8>>> {
        let near = |mut table: Vec<u8>| {
            table[0] = TAG;
            // Numbers of the header and of holds in their ranges, and times about now.
            for (at, byte) in table.iter_mut().enumerate() {
                let in_header = (1..29).contains(&at) && at % 7 == 0;
                if in_header || at == 30 || at >= 32 && matches!((at - 32) % 30, 14 | 21 | 28) {
                    *byte %= 7;
                }
            }
            table
        };
        let table = proptest::collection::vec(any::<u8>(), 32..200).prop_map(near);
        let tags = prop_oneof![Just(0x11u8), Just(0x12), Just(0x13), Just(0x14), Just(0x21), Just(0x22)];
        let state = (tags, proptest::collection::vec(any::<u8>(), 12..60)).prop_map(|(tag, mut value)| {
            value[0] = tag;
            value
        });
        proptest::option::of(
            prop_oneof![3 => table, 2 => state, 1 => proptest::collection::vec(any::<u8>(), 0..60)],
        )
    }

    /// What a step asks, as the module reads it.
    fn calls(step: &Step, quotas: &[Quota], at: usize) -> (Option<DecideCall>, Option<ChangeCall>) {
        let id = |number: u64| 1 + number % 5;
        if let Some(kind) = step.change {
            let changes = quotas.iter().enumerate().map(|(key, quota)| {
                let total = step.cost;
                let ttl_us = 5_000_000;
                let change = [
                    HoldChange::Settle { total, ttl_us: None },
                    HoldChange::Settle { total, ttl_us: Some(ttl_us) },
                    HoldChange::Cancel,
                    HoldChange::Refund { cost: total },
                    HoldChange::Extend { total: Some(total), ttl_us },
                    HoldChange::Extend { total: None, ttl_us },
                ][kind];
                let (until, made) = (NOW_US + 50_000_000, NOW_US);
                let unsettled = Unsettled::Charge;
                let id = id((at + key) as u64);
                KeyChange { quota: *quota, id, change, amount: 3, until, unsettled, made }
            });
            let call = ChangeCall { latest: Quota::MAX_COUNT, changes: changes.collect() };
            let bytes = call.bytes();
            let read = ChangeCall::read(&bytes);
            assert_eq!(ChangeCall::read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(read.as_ref().map(ChangeCall::bytes), Some(bytes));
            return (None, read);
        }
        let mut parts = SmallVec::<[CallPart; 4]>::new();
        for (key, quota) in quotas.iter().enumerate() {
            let (verb, number, ttl_us) = step.verbs[key % step.verbs.len()];
            let unsettled = if number % 2 == 0 { Unsettled::Charge } else { Unsettled::Forget };
            let hold = NewHold { id: id(at as u64 + number), ttl_us, unsettled };
            let (verb, hold) = [
                (Verb::Check, None),
                (Verb::Check, Some(hold)),
                (Verb::Peek, None),
                (Verb::Refund, None),
                (Verb::Refund, Some(hold)),
                (Verb::Penalize, None),
            ][verb];
            let excess = [Excess::Refuse, Excess::Refuse, Excess::Charge, Excess::Count]
                [usize::try_from(number % 4).unwrap_or_default()];
            let role = Role::Deciding;
            let part = Part { verb, role, cost: 0, enforced: true, excess, over_limit: number > 4 };
            parts.push(CallPart { key, quota: *quota, part, own_cost: None, hold });
        }
        let costs = [step.cost].as_slice().into();
        let call = DecideCall { latest: Quota::MAX_COUNT, has_holds: true, once_ms: None, costs, parts };
        let read = DecideCall::read(&call.bytes());
        assert_eq!(read.as_ref().map(DecideCall::bytes), Some(call.bytes()));
        (read, None)
    }

    fn run(
        step: &Step,
        quotas: &[Quota],
        at: usize,
        pairs: &mut [Pair<'static>],
        now: u64,
    ) -> Result<Decided, UnusableKey> {
        let mut copies = pairs.to_vec();
        let decided = match calls(step, quotas, at) {
            (Some(call), _) => call.decide(&mut copies, now)?,
            (None, Some(call)) => call.change(&mut copies, now)?,
            (None, None) => panic!("{step:?} is not a call"),
        };
        for (key, effect) in &decided.effects {
            pairs[*key].apply(effect);
        }
        Ok(decided)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

        /// The module must read whatever it writes, for whatever the next call asks.
        #[test]
        fn what_calls_write_is_read_by_the_next_ones(
            quotas in proptest::collection::vec(quotas(), 1..4),
            steps in steps(),
        ) {
            let mut pairs = vec![Pair::default(); quotas.len()];
            let mut now = NOW_US;
            for (at, step) in steps.iter().enumerate() {
                now = now.saturating_add_signed(step.later_us);
                let decided = run(step, &quotas, at, &mut pairs, now);
                prop_assert!(decided.is_ok(), "{decided:?}");
                let reply = decided.unwrap_or_default().reply;
                prop_assert_eq!(Reply::unpacked(&reply.packed()), Some(reply));
                for pair in &pairs {
                    prop_assert!(pair.has_table() || pair.usage.is_none(), "{:?}", pair);
                }
            }
        }

        /// The module runs inside other people's Redis: no value may end it, and one that cannot
        /// be used stays as it is, beside keys that can.
        #[test]
        fn any_values_are_decided_or_refused(
            quotas in proptest::collection::vec(quotas(), 1..4),
            values in proptest::collection::vec((values(), values()), 4),
            steps in steps(),
            now in prop_oneof![Just(NOW_US), 0..2 * NOW_US],
        ) {
            let owned = |value: &Option<Vec<u8>>| value.clone().map(Cow::Owned);
            let pair = |(key, usage): &(Option<Vec<u8>>, Option<Vec<u8>>)| Pair { key: owned(key), usage: owned(usage) };
            let mut pairs: Vec<Pair<'static>> = values.iter().take(quotas.len()).map(pair).collect();
            let mut now = now;
            for (at, step) in steps.iter().enumerate() {
                now = now.saturating_add_signed(step.later_us);
                if let Err(UnusableKey { message, effect }) = run(step, &quotas, at, &mut pairs, now) {
                    prop_assert!(message.starts_with("SLIDEGATE value "), "{}", message);
                    prop_assert!(!message.contains('\n'));
                    if let Some((key, effect)) = effect.as_deref() {
                        pairs[*key].apply(effect);
                    }
                }
            }
        }
    }
}
