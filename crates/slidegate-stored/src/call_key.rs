//! A key during a call: opened with its holds, settled, charged, and written back.
//!
//! Decisions are computed by the algorithms of the memory store; replies and stored values are
//! those of the scripts.

use slidegate::internal::{
    EndedHold, HEADER_BYTES, HeldKey, Hold, HoldChange, Holds, NewHold, SECOND_US, TableList, VerbEffect,
    for_algorithm, perform,
};
use slidegate::reserve::HoldStatus;
use slidegate::{Algorithm, Decision, Quota, Verdict, clock::Timestamp, verb::Verb};

use crate::key::OpenKey;
use crate::pair::{Effect, Pair, Patch, holds_cut_off, is_sound, read_table, table_expires_ms};
use crate::reply::Reply;
use crate::state::{Numbers, Stored, Unusable, Value};
use crate::write::Write;

type TableHolds<'v> = Holds<TableList<'v>>;

/// What a table has beyond this is renewed with the usage, in microseconds: it is kept six seconds
/// longer than its last hold.
const KEPT_US: u64 = 4 * SECOND_US;

/// The terms of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) now: u64,
    /// Whether keys may have holds.
    pub(super) has_holds: bool,
}

/// A key under one algorithm.
pub(super) struct KeyOf<'v, S> {
    quota: Quota,
    terms: Terms,
    open: OpenKey<S>,
    /// The value of its usage.
    value: Option<&'v [u8]>,
    holds: Option<OpenHolds<'v>>,
    before: BeforeCharges<S>,
    /// What was charged, and what was held.
    charged: u64,
    held: u64,
    /// The maximum by which a denied cost exceeds the room.
    needed: u64,
    /// Whether it is written even without a charge.
    is_written: bool,
}

/// A key before anything was charged.
struct BeforeCharges<S> {
    state: S,
    /// The header of its holds, their number, and their sum.
    header: [u8; HEADER_BYTES],
    count: usize,
    held: u64,
}

struct OpenHolds<'v> {
    holds: TableHolds<'v>,
    /// Whether the key has a table.
    is_stored: bool,
    /// Whether the table is written even if no hold changed.
    has_moved: bool,
}

/// A key under any algorithm.
pub(super) trait CallKey {
    /// Applies a verb other than a refund. The decision has no waits.
    fn apply(&mut self, verb: Verb, cost: u64, new: Option<&NewHold>) -> Decision;

    /// The decision on a cost of 0.
    fn peek(&self) -> Decision;

    /// Has the key written even if nothing is charged: if it was moved, or in any case.
    fn write_anyway(&mut self, is_moved_only: bool);

    /// Has the key written for a penalty of more than 0, although it may be full: so all stores have settled to
    /// the same time. Under another quota the key stays as it is.
    fn note_penalty(&mut self, cost: u64);

    /// Counts a cost as denied although it is charged.
    fn count_denied(&mut self, cost: u64);

    fn is_charged(&self) -> bool;

    fn will_be_written(&self) -> bool;

    /// Appends the reply about the key before any charge.
    fn report_before(&self, reply: &mut Reply);

    /// Appends the reply about the key now, with its refund.
    fn report_now(&self, refunded: Option<u64>, reply: &mut Reply);

    /// The effects of the charges.
    fn charge_effects(&self, effects: &mut Vec<Effect>) -> Result<(), Unusable>;

    /// Refunds a cost. Returns the refunded cost.
    fn refund(&mut self, cost: u64, effects: &mut Vec<Effect>) -> Result<u64, Unusable>;

    /// Cancels a hold instead of a refund. Returns the released cost.
    fn cancel(&mut self, id: u64, effects: &mut Vec<Effect>) -> Result<u64, Unusable>;

    /// The part of an extension that does not fit; 0 for all other changes.
    fn excess(&self, id: u64, change: &HoldChange) -> u64;

    /// Replies that a change of a hold is denied, by this key or by another one.
    fn deny_change(
        &mut self,
        id: u64,
        change: &HoldChange,
        reply: &mut Reply,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Unusable>;

    /// Changes a hold, and replies the outcome.
    fn change(
        &mut self,
        id: u64,
        change: &HoldChange,
        ended: &EndedHold,
        reply: &mut Reply,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Unusable>;

    /// Fails if a read went past the end of a value.
    fn is_readable(&self) -> Result<(), Unusable>;
}

/// Opens a key whose expired holds are charged already.
pub(super) fn open<'v>(
    pair: &'v Pair<'_>,
    quota: &Quota,
    terms: Terms,
) -> Result<Box<dyn CallKey + 'v>, Unusable> {
    Ok(for_algorithm!(quota.algorithm(), S => Box::new(KeyOf::<Value<'v, S>>::open(pair, quota, terms)?)))
}

impl<'v, S: Stored<'v>> CallKey for KeyOf<'v, S> {
    fn apply(&mut self, verb: Verb, cost: u64, new: Option<&NewHold>) -> Decision {
        let done = match &mut self.holds {
            None => perform(&mut self.open.state, &self.quota, self.open.settled, verb, cost),
            Some(_) => self.with_holds(|key| key.perform(verb, cost, new, usize::MAX)),
        };
        match done {
            VerbEffect::Moved(cost) if verb == Verb::Check && new.is_some() => self.held += cost,
            VerbEffect::Moved(cost) => self.charged += cost,
            VerbEffect::Refused(cost) => self.need(cost),
            VerbEffect::NoMoreHolds(_) => self.needed = self.needed.max(1),
        }
        self.decision(done)
    }

    fn peek(&self) -> Decision {
        self.decision(VerbEffect::Moved(0))
    }

    fn write_anyway(&mut self, is_moved_only: bool) {
        self.is_written |= !is_moved_only || self.has_moved();
    }

    fn note_penalty(&mut self, cost: u64) {
        self.is_written |= cost > 0 && self.open.is_own;
    }

    fn count_denied(&mut self, cost: u64) {
        self.need(cost);
    }

    fn is_charged(&self) -> bool {
        self.charged > 0 || self.held > 0
    }

    fn will_be_written(&self) -> bool {
        self.is_charged() || self.is_written
    }

    fn report_before(&self, reply: &mut Reply) {
        let BeforeCharges { state, header, count, held } = &self.before;
        // Since then, holds were only added.
        let list = |holds: &TableHolds<'v>| holds.list(*count);
        let is_listed = self.needed.min(self.used_before().saturating_add(*held)) > 0;
        let list = self.holds_now().filter(|_| is_listed).map_or_else(Vec::new, list);
        self.report(state, (header, list), self.needed, None, reply);
    }

    fn report_now(&self, refunded: Option<u64>, reply: &mut Reply) {
        let header = self.holds_now().map_or([0; HEADER_BYTES], Holds::header);
        self.report(&self.open.state, (&header, Vec::new()), 0, refunded, reply);
    }

    fn charge_effects(&self, effects: &mut Vec<Effect>) -> Result<(), Unusable> {
        let used = self.used_before();
        let is_charged = self.is_charged();
        let is_used = used.saturating_add(self.before.held) > 0;
        if !(is_charged || self.is_written && is_used) {
            return Ok(());
        }
        let is_moved = self.open.has_moved && used > 0;
        if self.charged > 0 || is_moved || !is_charged && used > 0 && self.open.is_own {
            self.write_state(effects)?;
        }
        self.write_table(self.held > 0, effects)
    }

    fn refund(&mut self, cost: u64, effects: &mut Vec<Effect>) -> Result<u64, Unusable> {
        let (refunded, write) = self.open.refund(&self.quota, self.value, cost);
        self.is_readable()?;
        if refunded > 0 {
            self.write_refund(write, effects)?;
        }
        Ok(refunded)
    }

    fn cancel(&mut self, id: u64, effects: &mut Vec<Effect>) -> Result<u64, Unusable> {
        let Some(open) = &mut self.holds else { return Ok(0) };
        let Some(at) = open.holds.find(id) else { return Ok(0) };
        let Hold { held, has_ended: false, .. } = open.holds.get(at) else { return Ok(0) };
        open.holds.settle(at, 0, None);
        self.write_table(false, effects)?;
        Ok(held)
    }

    fn excess(&self, id: u64, change: &HoldChange) -> u64 {
        let (Some(open), HoldChange::Extend { total: Some(total), .. }) = (&self.holds, change) else {
            return 0;
        };
        let Some(at) = open.holds.find(id) else { return 0 };
        let hold = open.holds.get(at);
        let more = total.saturating_sub(hold.held.saturating_add(hold.settled));
        let counts = self.used().saturating_add(self.held_now());
        let fits = more <= self.quota.capacity().saturating_sub(counts);
        if hold.has_ended || fits { 0 } else { more }
    }

    fn deny_change(
        &mut self,
        id: u64,
        change: &HoldChange,
        reply: &mut Reply,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Unusable> {
        if self.holds.as_ref().is_some_and(|open| open.has_moved) {
            self.write_table(false, effects)?;
        }
        let more = self.excess(id, change);
        if more > 0 {
            self.need(more);
        }
        reply.list(3);
        reply.number(DENIED);
        reply.number(more);
        self.report_before(reply);
        Ok(())
    }

    fn change(
        &mut self,
        id: u64,
        change: &HoldChange,
        ended: &EndedHold,
        reply: &mut Reply,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Unusable> {
        let in_all = self.holds.as_ref().and_then(|open| {
            let hold = open.holds.get(open.holds.find(id)?);
            Some(hold.held.saturating_add(hold.settled))
        });
        let (status, done) = self.with_holds(|key| key.change(id, change, ended));
        let VerbEffect::Moved(cost) = done else { return self.deny_change(id, change, reply, effects) };
        if matches!(change, HoldChange::Refund { .. }) && cost > 0 {
            // Once more, in the key's current window.
            self.open.state = self.before.state.clone();
            let (_, write) = self.open.refund(&self.quota, self.value, cost);
            self.write_refund(write, effects)?;
        } else if cost > 0 {
            self.charged = cost;
            self.write_state(effects)?;
        }
        let is_changed = self.holds.as_ref().is_some_and(|open| open.has_moved || open.holds.is_changed());
        if cost > 0 || is_changed || self.has_fewer_holds() {
            let ends_later = matches!(
                change,
                HoldChange::Extend { .. }
                    | HoldChange::Settle { ttl_us: Some(_), .. }
                    | HoldChange::Refund { .. }
            );
            self.write_table(ends_later || status != HoldStatus::Changed, effects)?;
        }
        let before = match (change, status) {
            (HoldChange::Extend { total: Some(_), .. }, HoldStatus::Changed) => in_all,
            _ => None,
        };
        reply.list(3 + usize::from(before.is_some()));
        reply.number(match status {
            HoldStatus::Changed => CHANGED,
            // Only the instance can tell which.
            HoldStatus::AlreadySettled | HoldStatus::Unknown => ALREADY_SETTLED,
            HoldStatus::Expired => EXPIRED,
            HoldStatus::Denied => DENIED,
        });
        reply.number(cost);
        self.report_now(None, reply);
        before.into_iter().for_each(|before| reply.number(before));
        Ok(())
    }

    fn is_readable(&self) -> Result<(), Unusable> {
        self.open.is_readable()?;
        if self.before.state.is_cut_off() {
            return Err(Unusable::cut_off());
        }
        if self.holds_now().is_some_and(Holds::is_cut_off) { Err(holds_cut_off()) } else { Ok(()) }
    }
}

impl<'v, S: Stored<'v>> KeyOf<'v, S> {
    fn open(pair: &'v Pair<'_>, quota: &Quota, terms: Terms) -> Result<Self, Unusable> {
        let Terms { now, has_holds, .. } = terms;
        let holds = if has_holds { Some(OpenHolds::open(pair, quota, now)?) } else { None };
        let state = if has_holds { pair.state() } else { pair.key.as_deref() };
        let mut open = OpenKey::<S>::open(state, quota, now)?;
        if let (Algorithm::InFlight, Some(of_holds)) = (quota.algorithm(), &holds) {
            open.settled = of_holds.holds.seen();
        }
        let found = holds.as_ref().map(|open| &open.holds);
        let before = BeforeCharges {
            state: open.state.clone(),
            header: found.map_or([0; HEADER_BYTES], Holds::header),
            count: found.map_or(0, Holds::count),
            held: found.map_or(0, Holds::sum),
        };
        let (charged, held, needed, is_written) = (0, 0, 0, false);
        Ok(Self {
            quota: *quota,
            terms,
            open,
            value: state,
            holds,
            before,
            charged,
            held,
            needed,
            is_written,
        })
    }

    fn used(&self) -> u64 {
        self.open.used(&self.quota)
    }

    fn holds_now(&self) -> Option<&TableHolds<'v>> {
        self.holds.as_ref().map(|open| &open.holds)
    }

    fn held_now(&self) -> u64 {
        self.holds.as_ref().map_or(0, |open| open.holds.sum())
    }

    fn used_before(&self) -> u64 {
        self.before.state.used(&self.quota, self.open.settled)
    }

    fn has_moved(&self) -> bool {
        self.open.has_moved || self.holds.as_ref().is_some_and(|open| open.has_moved)
    }

    /// Notes that a cost does not fit, if that depends on what counts.
    fn need(&mut self, cost: u64) {
        let capacity = self.quota.capacity();
        if cost <= capacity {
            let counts = self.used().saturating_add(self.held_now());
            self.needed = self.needed.max(counts.saturating_add(cost).saturating_sub(capacity));
        }
    }

    fn with_holds<T>(&mut self, run: impl FnOnce(&mut HeldKey<'_, S, TableList<'v>>) -> T) -> T {
        let none = &mut TableHolds::default();
        let holds = self.holds.as_mut().map_or(none, |open| &mut open.holds);
        let now = Timestamp::from_micros(self.terms.now);
        let OpenKey { state, settled, .. } = &mut self.open;
        run(&mut HeldKey::settled(state, holds, &self.quota, now, *settled))
    }

    fn decision(&self, done: VerbEffect) -> Decision {
        let (used, held, limit) = (self.used(), self.held_now(), self.quota.capacity());
        let (verdict, cost) = match done {
            VerbEffect::Moved(cost) => (Verdict::Allow, cost),
            VerbEffect::Refused(_) | VerbEffect::NoMoreHolds(_) => (Verdict::Deny, 0),
        };
        let remaining = limit.saturating_sub(used).saturating_sub(held);
        let (now, hold_bound) = (Timestamp::from_micros(self.terms.now), done.hold_bound());
        // The caller computes the waits from the reply.
        Decision { verdict, used, held, remaining, cost, hold_bound, ..Decision::unused(limit, now) }
    }

    /// Replies the numbers of a state, and of a log the oldest entries that hold what is needed; then
    /// the header of the holds, and these if something is needed.
    fn report(
        &self,
        state: &S,
        (header, list): (&[u8; HEADER_BYTES], Vec<u8>),
        needed: u64,
        refunded: Option<u64>,
        reply: &mut Reply,
    ) {
        let used = state.used(&self.quota, self.open.settled);
        let has_numbers = self.quota.algorithm() != Algorithm::InFlight;
        let numbers = state.numbers(Numbers::default().with(self.open.settled));
        let oldest = if needed.min(used) > 1 { state.oldest(needed.min(used)) } else { Vec::new() };
        let mut length = if has_numbers { numbers.iter().len() + 2 * oldest.len() } else { 0 };
        let has_holds = self.holds.is_some();
        if has_holds {
            reply.list(3 + usize::from(refunded.is_some()));
        } else {
            length += usize::from(refunded.is_some());
        }
        reply.list(length);
        if has_numbers {
            numbers.iter().for_each(|number| reply.number(number));
            for (timestamp, cost) in oldest {
                reply.number(timestamp);
                reply.number(cost);
            }
        }
        if has_holds {
            reply.bytes(header.to_vec());
            reply.bytes(list);
        }
        refunded.into_iter().for_each(|refunded| reply.number(refunded));
    }

    fn write_state(&self, effects: &mut Vec<Effect>) -> Result<(), Unusable> {
        let write: Option<Write> = self.open.state.write(&self.quota, self.terms.now, &self.open.before)?;
        effects.extend(write.map(Effect::Usage));
        Ok(())
    }

    /// A refund's result: the state, or the write in the key's own window.
    fn write_refund(&self, write: Option<Write>, effects: &mut Vec<Effect>) -> Result<(), Unusable> {
        match write {
            Some(write) => effects.push(Effect::Usage(write)),
            None if self.used() == 0 && !self.open.state.is_kept(&self.quota, &self.open.before) => {
                effects.push(Effect::NoUsage);
            }
            None => self.write_state(effects)?,
        }
        Ok(())
    }

    /// The effects of changed holds. `renews` is whether one of them may end later than before.
    fn write_table(&self, renews: bool, effects: &mut Vec<Effect>) -> Result<(), Unusable> {
        let Some(OpenHolds { holds, is_stored, .. }) = &self.holds else { return Ok(()) };
        if holds.is_empty() {
            effects.extend(is_stored.then_some(Effect::NoTable));
            return Ok(());
        }
        let expires_ms = table_expires_ms(&self.quota, self.terms.now, holds.latest());
        if !is_stored || holds.is_replaced() {
            let bytes = [&holds.header()[..], &holds.list(holds.count())].concat();
            let has_usage = self.quota.algorithm() != Algorithm::InFlight;
            effects.push(Effect::NewTable { bytes, expire_at_ms: expires_ms, has_usage });
            return Ok(());
        }
        let counts_longer = self.charged > 0
            && self.open.state.counts_until(&self.quota, self.open.settled) > holds.latest() + KEPT_US;
        let expire_at_ms = (renews || counts_longer).then_some(expires_ms);
        let header: Patch = (0, holds.header().to_vec());
        let changed = holds.patches().map(|(from, bytes)| (from, bytes.to_vec()));
        let patches = changed.chain([header]).collect();
        effects.push(Effect::Table { patches, expire_at_ms });
        Ok(())
    }

    fn has_fewer_holds(&self) -> bool {
        self.holds_now().map_or(0, Holds::count) < self.before.count
    }
}

/// Numbers of statuses in replies.
const CHANGED: u64 = 1;
const ALREADY_SETTLED: u64 = 2;
const EXPIRED: u64 = 3;
const DENIED: u64 = 4;

impl<'v> OpenHolds<'v> {
    fn open(pair: &'v Pair<'_>, quota: &Quota, now: u64) -> Result<Self, Unusable> {
        let Some(table) = pair.key.as_deref().filter(|_| pair.has_table()) else {
            let mut holds = TableHolds::default();
            holds.begin(now);
            return Ok(Self { holds, is_stored: false, has_moved: false });
        };
        let mut holds = read_table(table)?;
        let arrived = holds.arrive(now, quota.window_us().min(SECOND_US));
        // Expired holds are charged already. The first one to end may have been settled: then a
        // denial writes the next end, or each denial would search for it again.
        let has_moved = holds.is_replaced() || !holds.is_empty() && arrived >= holds.earliest();
        holds.take_due(arrived);
        is_sound(&holds)?;
        Ok(Self { holds, is_stored: true, has_moved })
    }
}
