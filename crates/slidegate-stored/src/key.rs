//! One key: read and settle its stored value, charge it, and return the write.
//!
//! Same steps as `check.lua`: a cost is charged if it fits, and the reply has the state before any
//! charge, from which the caller computes the decisions.

use slidegate::internal::{decision, for_algorithm, perform};
use slidegate::{Decision, Quota, clock::Timestamp, verb::Verb};

use crate::entries;
use crate::state::{Before, Numbers, Stored, Unusable, Value, tags};
use crate::write::Write;

/// Consecutive requests of the same cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    /// Cost of each, at most 2^53 - 1.
    pub cost: u64,
    /// Number of requests.
    pub count: u64,
}

/// The reply to a check, and the value to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The reply of `check.lua`: the number of requests charged, the time, and the state before the
    /// charges.
    pub numbers: Numbers,
    /// Timestamp and cost of a log's oldest entries, if a denied cost has to wait for several.
    pub entries: Vec<(u64, u64)>,
    /// `None` if nothing changes.
    pub write: Option<Write>,
}

/// A key, settled to a time.
pub(super) struct OpenKey<S> {
    pub(super) state: S,
    pub(super) settled: u64,
    /// Whether a clock set far back changed the state; even a denial stores this.
    pub(super) has_moved: bool,
    pub(super) before: Before,
    /// Whether it was counted under the call's window and does not exceed what the call's quota
    /// counts.
    pub(super) is_own: bool,
    /// The key in its own window, if that differs; it stays so until something is charged.
    pub(super) kept: Option<Kept<S>>,
}

/// A key counted under another window than the call's.
pub(super) struct Kept<S> {
    /// Its state in its own window, settled.
    pub(super) state: S,
    /// The quota of the call with that window.
    pub(super) quota: Quota,
    /// Usage that the call's quota does not count.
    pub(super) cut: u64,
}

impl<'v, S: Stored<'v>> OpenKey<S> {
    pub(super) fn open(value: Option<&'v [u8]>, quota: &Quota, now: u64) -> Result<Self, Unusable> {
        let found = value.and_then(S::read);
        if found.is_none() {
            value.map_or(Ok(()), |value| may_be_replaced::<S>(value))?;
        }
        let length = value.map_or(0, <[u8]>::len);
        let (mut state, window_us) = found.unwrap_or_default();
        let has_same_window = window_us.is_none_or(|window_us| window_us == quota.window_code());
        let (expires, mut totals) = (state.expires(has_same_window), Default::default());
        if has_same_window {
            state.align(quota);
            totals = state.totals(value.unwrap_or_default());
        }
        let before = Before { length, expires, totals };
        let moment = state.moment();
        let Some(window_us) = window_us.filter(|_| !has_same_window) else {
            let is_own = state.cut(quota).is_none();
            let settled = state.settle(quota, now);
            let has_moved = state.has_moved(moment);
            return Ok(Self { state, settled, has_moved, before, is_own, kept: None });
        };
        let counted = quota.counted_in(window_us, moment);
        let counted = counted.ok_or_else(|| Unusable::damaged(&format!("its window is {window_us} us")))?;
        let cut = state.cut(&counted).unwrap_or_default();
        let settled = state.settle(&counted, now);
        let has_moved = state.has_moved(moment);
        let kept = (!has_moved).then(|| Kept { state: state.clone(), quota: counted, cut });
        state.adopt(&counted, quota, settled);
        Ok(Self { state, settled, has_moved, before, is_own: false, kept })
    }

    /// Refunds up to this cost in the key's current window. Returns the refund, and the write
    /// unless that is the state.
    pub(super) fn refund(&mut self, quota: &Quota, value: Option<&[u8]>, cost: u64) -> (u64, Option<Write>) {
        let refunded = cost.min(self.used(quota));
        let cut = self.kept.as_ref().map_or(0, |kept| kept.cut);
        self.state.refund(quota, self.settled, refunded.saturating_sub(cut));
        let kept = self.kept.as_ref().zip(value).filter(|_| refunded > 0 && self.used(quota) > 0);
        let head =
            kept.and_then(|(kept, value)| kept.state.refund_kept(&kept.quota, self.settled, refunded, value));
        (refunded, head.map(|head| Write::Patch { head, entry: None, expire_at_ms: None }))
    }

    pub(super) fn used(&self, quota: &Quota) -> u64 {
        self.state.used(quota, self.settled)
    }

    pub(super) fn is_readable(&self) -> Result<(), Unusable> {
        if self.state.is_cut_off() { Err(Unusable::cut_off()) } else { Ok(()) }
    }

    fn write(&self, quota: &Quota, now: u64, charged: u64) -> Result<Option<Write>, Unusable> {
        let is_changed = charged > 0 || self.has_moved && self.state.used(quota, self.settled) > 0;
        if is_changed { self.state.write(quota, now, &self.before) } else { Ok(None) }
    }

    fn check(&mut self, quota: &Quota, now: u64, requests: &[Requests]) -> Result<Checked, Unusable> {
        let used = self.state.used(quota, self.settled);
        let capacity = quota.capacity();
        let (mut cost, mut charged, mut needed) = (0u64, 0u64, 0u64);
        for &Requests { cost: asks, count } in requests {
            if asks == 0 {
                charged = charged.saturating_add(count);
                continue;
            }
            let room = capacity.saturating_sub(used.saturating_add(cost));
            let fit = (room / asks).min(count);
            cost += fit * asks;
            charged += fit;
            if fit < count && asks <= capacity {
                needed = needed.max(used.saturating_add(cost).saturating_add(asks) - capacity);
            }
        }
        let numbers = self.state.numbers(Numbers::default().with(charged).with(now).with(self.settled));
        let needed = needed.min(used);
        let entries = if needed > 1 { self.state.oldest(needed) } else { Vec::new() };
        self.is_readable()?;
        self.state.charge(quota, self.settled, cost);
        let write = self.write(quota, now, cost)?;
        Ok(Checked { numbers, entries, write })
    }

    fn decide(mut self, quota: &Quota, now: u64, cost: u64) -> Result<(Decision, Option<Write>), Unusable> {
        let Self { settled, .. } = self;
        let done = perform(&mut self.state, quota, settled, Verb::Check, cost);
        let at = Timestamp::from_micros(now);
        let decision = decision(&self.state, quota, at, settled, done);
        self.is_readable()?;
        let write = self.write(quota, now, decision.cost)?;
        Ok((decision, write))
    }
}

/// Whether a value that is invalid for an algorithm may be replaced, because it belongs to another
/// one.
fn may_be_replaced<'v, S: Stored<'v>>(value: &[u8]) -> Result<(), Unusable> {
    match value.first() {
        // The scripts read a log by a range, which is empty if there is no value.
        None if S::TAGS == [entries::TAG] => Ok(()),
        Some(first) if S::TAGS.contains(first) || *first == entries::CUT_OFF => {
            Err(Unusable::damaged(&format!("it has {} bytes", value.len())))
        }
        Some(first) if tags().contains(first) => Ok(()),
        first => {
            let first = first.map_or_else(|| "nil".to_owned(), u8::to_string);
            let message = format!("not of layout 1 or 2: its first byte is {first}");
            Err(Unusable { message, write: None })
        }
    }
}

/// Charges the requests that fit, in order, at this time in microseconds since the Unix epoch.
/// `value` is the stored value, if any.
///
/// The quota must be of a rate: requests in flight are held, and need a [call](crate::DecideCall).
///
/// # Errors
/// If another program wrote the value, or it is damaged or has holds.
pub fn check(
    value: Option<&[u8]>,
    quota: &Quota,
    now_us: u64,
    requests: &[Requests],
) -> Result<Checked, Unusable> {
    for_algorithm!(quota.algorithm(), S => {
        OpenKey::<Value<'_, S>>::open(value, quota, now_us)?.check(quota, now_us, requests)
    })
}

/// Decides one request and returns the value to store. The cost is at most 2^53 - 1.
///
/// # Errors
/// Same as [`check`].
pub fn decide(
    value: Option<&[u8]>,
    quota: &Quota,
    now_us: u64,
    cost: u64,
) -> Result<(Decision, Option<Write>), Unusable> {
    for_algorithm!(quota.algorithm(), S => {
        OpenKey::<Value<'_, S>>::open(value, quota, now_us)?.decide(quota, now_us, cost)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use slidegate::Algorithm;

    use super::*;

    const NOW_US: u64 = 1_700_000_000_000_000;

    fn quotas() -> impl Strategy<Value = Quota> {
        let limits = prop_oneof![0u64..6, 0u64..3000, Just(Quota::MAX_COUNT)];
        let windows = prop_oneof![Just(1_000u64), Just(60_000_000), 1_000..31_622_400_000_000u64];
        let slots = prop_oneof![Just(1024u16), 1u16..5];
        (limits, windows, slots, 0usize..4, 0u64..5000).prop_map(|(limit, window_us, slots, at, burst)| {
            let quota = Quota::new(limit, Duration::from_micros(window_us)).unwrap();
            quota.with_slots(slots).with_algorithm(Algorithm::ALL[at]).with_burst(burst)
        })
    }

    /// Values of any content, most of which begin as those of some algorithm and have its length.
    fn values() -> impl Strategy<Value = Vec<u8>> {
        let of = |tag: u8, length: usize| {
            proptest::collection::vec(any::<u8>(), length).prop_map(move |mut value| {
                value[0] = tag;
                value
            })
        };
        let log = (any::<[u8; 48]>(), 0u16..40, 0u16..40, 0u16..40, 0usize..5, any::<bool>());
        let log = log.prop_map(|(mut value, head, len, room, cost, is_near)| {
            let widths = [0x40, 0x41, 0x62, 0x64, 0x47][cost];
            (value[0], value[1], value[23]) = (0x14, value[1] % 64, widths);
            for (at, number) in [(24, head), (26, len), (28, room)] {
                value[at..at + 2].copy_from_slice(&number.to_le_bytes());
            }
            if is_near {
                for at in [9, 16] {
                    let near = NOW_US - u64::from(value[at]);
                    value[at..at + 7].copy_from_slice(&near.to_le_bytes()[..7]);
                }
            }
            let entry = usize::from(widths >> 4) + usize::from(widths & 15);
            let mut value = value.to_vec();
            value.resize(48 + usize::from(room) * entry, 0x5A);
            value
        });
        prop_oneof![
            4 => log,
            1 => of(0x11, 21), 1 => of(0x11, 35), 1 => of(0x21, 12), 1 => of(0x12, 28), 1 => of(0x22, 12), 1 => of(0x13, 27),
            1 => proptest::collection::vec(any::<u8>(), 0..70),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        /// The module runs inside other people's Redis: no value may end it, and what it writes
        /// must be a value that it reads.
        #[test]
        fn any_value_is_decided_or_refused(
            value in values(),
            quota in quotas(),
            now in prop_oneof![Just(NOW_US), 0..2 * NOW_US],
            costs in proptest::collection::vec((0..=Quota::MAX_COUNT, 1u64..4), 1..4),
        ) {
            let requests: Vec<_> = costs.iter().map(|&(cost, count)| Requests { cost, count }).collect();
            let _ = decide(Some(&value), &quota, now, costs[0].0);
            let Ok(checked) = check(Some(&value), &quota, now, &requests) else { return Ok(()) };
            prop_assert!(matches!(checked.numbers.as_bytes().len(), 35 | 42));
            match checked.write {
                Some(Write::Value { bytes, expire_at_ms }) => {
                    prop_assert!(expire_at_ms > now / 1000);
                    prop_assert!(check(Some(&bytes), &quota, now, &requests).is_ok());
                }
                Some(Write::Patch { head, entry, .. }) => {
                    let mut patched = value.clone();
                    if let Some((from, entry)) = entry {
                        patched[from..from + entry.len()].copy_from_slice(&entry);
                    }
                    patched[..head.len()].copy_from_slice(&head);
                    prop_assert!(check(Some(&patched), &quota, now, &requests).is_ok());
                }
                None => {}
            }
        }
    }
}
