//! Stored values of the algorithms that consist of a few counters.
//!
//! Like the scripts, uses the compact form if the numbers fit.

use slidegate::internal::{
    FixedWindow, InFlight, QuotaFields, SECOND_US, SlidingWindow, State, TokenBucket, micros,
};
use slidegate::{Calendar, Quota};

use crate::compact;
use crate::quota_bytes::WireForm;
use crate::state::{Before, Numbers, Stored, StoredAs, Total, Unusable};
use crate::write::{Bytes, Fields, Reader, Write, number};

/// Bits of the newer counter of a compact sliding window, and of the older one.
const COUNTER_BITS: u32 = 20;
/// Seconds that a compact value can hold: until the year 2106.
const MOST_SECONDS: u64 = u32::MAX as u64;

/// Bytes of a wide value of a fixed window, and of one that keeps a total.
const WIDE_BYTES: usize = 21;
const KEEPING_BYTES: usize = 35;

/// A value in the compact form: its window, its end, and the five bytes of its counts.
fn compact(own: u8, value: &[u8]) -> Option<(u64, u64, u64)> {
    let mut fields = Fields(value);
    let tag = fields.byte();
    let (window_us, end, counts) =
        (compact::window_us(fields.next(2)), fields.next(4) * SECOND_US, fields.next(5));
    (tag == own && window_us > 0).then_some((window_us, end, counts))
}

/// A script has settled the key, so its time is in the window that ends at `end`.
fn within_window(quota: &Quota, settled: u64, end: u64) -> Result<(), String> {
    const DAY_US: u64 = 86_400 * SECOND_US;
    // Clocks are changed within dates, and after a step back of the server's it may be the next window.
    let most = quota.calendar_window().map_or(quota.window_us(), |_| 2 * quota.window_us() + DAY_US);
    match end.checked_sub(settled) {
        Some(left) if left <= most => Ok(()),
        _ => Err(format!("a window that ends at {end} for a key at {settled}")),
    }
}

/// As many numbers as a state has.
pub(super) fn exactly<const N: usize>(numbers: &[u64]) -> Result<[u64; N], String> {
    numbers.try_into().map_err(|_| format!("{} numbers instead of {N} for a key", numbers.len()))
}

/// The compact form, if the window and the end have one.
fn write_compact(tag: u8, quota: &Quota, end: u64, counts: u64) -> Option<Bytes> {
    let head = compact::head(tag, quota.window_code());
    let fits = head > 0 && end.is_multiple_of(SECOND_US) && end / SECOND_US <= MOST_SECONDS;
    fits.then(|| Bytes::default().with(head, 3).with(end / SECOND_US, 4).with(counts, 5))
}

/// The value with these numbers, each with its width, from byte `from` on.
fn replaced(value: &[u8], from: usize, numbers: &[(u64, usize)]) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.extend(&value[..from]);
    let mut bytes = numbers.iter().fold(bytes, |bytes, (number, width)| bytes.with(*number, *width));
    let length = bytes.len();
    bytes.extend(&value[length..]);
    bytes
}

/// In place if the value keeps its length and its end, because then it keeps its expiry.
fn in_place_or_whole(bytes: Bytes, before: &Before, end: u64, expire_at_ms: u64) -> Write {
    if before.expires == end && before.length == bytes.len() {
        Write::Patch { head: bytes, entry: None, expire_at_ms: None }
    } else {
        Write::Value { bytes, expire_at_ms }
    }
}

impl WireForm for FixedWindow {
    const LETTER: &'static str = "F";
    type Reply = Self;

    /// The head of a compact value, and of a calendar the borders: when a window begins, and when it and the
    /// next two end.
    fn own_fields(quota: &Quota) -> Bytes {
        let head = Bytes::default().with(compact::head(0x21, quota.window_code()), 3);
        quota.borders().into_iter().flatten().fold(head, |bytes, border| bytes.with(border, 7))
    }

    fn read_own_fields(common: QuotaFields, own: &mut Reader<'_>) -> Option<Quota> {
        own.number(3)?;
        let code = common.window_us;
        if code < Calendar::LEAST_CODE {
            return common.quota();
        }
        let borders = [own.number(7)?, own.number(7)?, own.number(7)?, own.number(7)?];
        let quota = QuotaFields { window_us: micros(Quota::MAX_WINDOW), ..common }.quota()?;
        borders.is_sorted_by(|one, next| one < next).then(|| quota.with_borders(code, borders))
    }

    fn of_numbers(quota: &Quota, settled: u64, numbers: &[u64]) -> Result<Self, String> {
        let [end, used] = exactly(numbers)?;
        within_window(quota, settled, end)?;
        Ok(Self::from_parts(end, used))
    }
}

impl StoredAs for FixedWindow {
    type Value<'v> = Self;
}

impl<'v> Stored<'v> for FixedWindow {
    const TAGS: &'static [u8] = &[0x11, 0x21];

    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)> {
        if value.len() == compact::BYTES {
            let (window_us, end, used) = compact(0x21, value)?;
            return Some((Self::from_parts(end, used), Some(window_us)));
        }
        let mut fields = Fields(value);
        let is_own = matches!(value.len(), WIDE_BYTES | KEEPING_BYTES) && fields.byte() == 0x11;
        is_own.then(|| {
            let window_us = fields.next(6);
            (Self::from_parts(fields.next(7), fields.next(7)), Some(window_us))
        })
    }

    fn moment(&self) -> u64 {
        self.parts().0
    }

    fn expires(&self, has_same_window: bool) -> u64 {
        if has_same_window { self.parts().0 } else { 0 }
    }

    fn counts_until(&self, _quota: &Quota, _settled: u64) -> u64 {
        let (end, _) = self.parts();
        end
    }

    fn align(&mut self, quota: &Quota) {
        Self::align(self, quota);
    }

    fn totals(&self, value: &[u8]) -> [Total; 2] {
        let kept = value.get(WIDE_BYTES..KEEPING_BYTES).filter(|_| value.len() == KEEPING_BYTES);
        let kept = kept.map(Fields).map(|mut fields| (fields.next(7), fields.next(7)));
        [self.parts(), kept.unwrap_or_default()]
    }

    fn is_kept(&self, quota: &Quota, before: &Before) -> bool {
        quota.keeps_totals_us().is_some() && kept_total(self, before).1 > 0
    }

    fn refund_kept(&self, _own: &Quota, _settled: u64, refunded: u64, value: &[u8]) -> Option<Bytes> {
        let (_, used) = self.parts();
        let (counts_from, width) = if value.len() == compact::BYTES { (7, 5) } else { (14, 7) };
        Some(replaced(value, counts_from, &[(used.saturating_sub(refunded), width)]))
    }

    fn numbers(&self, numbers: Numbers) -> Numbers {
        let (end, used) = self.parts();
        numbers.with(end).with(used)
    }

    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Option<Write>, Unusable> {
        let (end, used) = self.parts();
        let bytes = (used < 1 << 40).then(|| write_compact(0x21, quota, end, used)).flatten();
        let wide = || Bytes::default().with(0x11, 1).with(quota.window_code(), 6).with(end, 7).with(used, 7);
        let mut bytes = bytes.unwrap_or_else(wide);
        let keeps_us = quota.keeps_totals_us();
        if keeps_us.is_some() {
            let (ended, total) = kept_total(self, before);
            bytes = bytes.with(ended, 7).with(total, 7);
        }
        let ttl_ms = (end - now + quota.slack_us() + keeps_us.unwrap_or(0)).div_ceil(1000) + 5000;
        Ok(Some(in_place_or_whole(bytes, before, end, now / 1000 + ttl_ms)))
    }
}

/// The total that a value keeps beside this counter: of the window that ended last, if it had one that is not
/// acknowledged.
fn kept_total(counter: &FixedWindow, before: &Before) -> Total {
    let [own, kept] = before.totals;
    if counter.parts().0 > own.0 && own.1 > 0 && own.0 != kept.0 { own } else { kept }
}

/// The code of the calendar of a value that keeps totals, and its totals of windows that ended by this time in
/// microseconds since the Unix epoch and are not acknowledged. `None` for all other values.
#[must_use]
pub fn closed_totals(value: &[u8], by_us: u64) -> Option<(u64, impl Iterator<Item = Total> + use<>)> {
    let (counter, code) = FixedWindow::read(value)?;
    let code = code.filter(|code| Calendar::code_keeps_totals(*code))?;
    let [own, kept] = counter.totals(value);
    let is_open = move |total: &Total| total.1 > 0 && total.0 <= by_us;
    let own = Some(own).filter(|own| own.0 != kept.0);
    Some((code, [Some(kept), own].into_iter().flatten().filter(is_open)))
}

impl WireForm for SlidingWindow {
    const LETTER: &'static str = "W";
    type Reply = Self;

    /// The head of a compact value.
    fn own_fields(quota: &Quota) -> Bytes {
        Bytes::default().with(compact::head(0x22, quota.window_code()), 3)
    }

    fn read_own_fields(common: QuotaFields, own: &mut Reader<'_>) -> Option<Quota> {
        own.number(3)?;
        common.quota()
    }

    fn of_numbers(quota: &Quota, settled: u64, numbers: &[u64]) -> Result<Self, String> {
        let [end, previous, current] = exactly(numbers)?;
        within_window(quota, settled, end)?;
        Ok(Self::from_parts(end, previous, current))
    }
}

impl StoredAs for SlidingWindow {
    type Value<'v> = Self;
}

impl<'v> Stored<'v> for SlidingWindow {
    const TAGS: &'static [u8] = &[0x12, 0x22];

    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)> {
        if value.len() == compact::BYTES {
            let (window_us, end, counts) = compact(0x22, value)?;
            let (previous, current) = (counts >> COUNTER_BITS, counts & ((1 << COUNTER_BITS) - 1));
            return Some((Self::from_parts(end, previous, current), Some(window_us)));
        }
        let mut fields = Fields(value);
        let is_own = value.len() == 28 && fields.byte() == 0x12;
        is_own.then(|| {
            let window_us = fields.next(6);
            (Self::from_parts(fields.next(7), fields.next(7), fields.next(7)), Some(window_us))
        })
    }

    fn moment(&self) -> u64 {
        self.parts().0
    }

    /// With usage in the current window, the value was stored until the end of the next.
    fn expires(&self, has_same_window: bool) -> u64 {
        let (end, _, current) = self.parts();
        if current > 0 && has_same_window { end } else { 0 }
    }

    fn counts_until(&self, quota: &Quota, _settled: u64) -> u64 {
        let (end, _, _) = self.parts();
        end + quota.window_us()
    }

    fn refund_kept(&self, own: &Quota, settled: u64, refunded: u64, value: &[u8]) -> Option<Bytes> {
        let mut left = *self;
        left.refund(own, settled, refunded);
        let (end, previous, current) = left.parts();
        Some(if value.len() == compact::BYTES {
            replaced(value, 3, &[(end / SECOND_US, 4), (previous << COUNTER_BITS | current, 5)])
        } else {
            replaced(value, 7, &[(end, 7), (previous, 7), (current, 7)])
        })
    }

    fn numbers(&self, numbers: Numbers) -> Numbers {
        let (end, previous, current) = self.parts();
        numbers.with(end).with(previous).with(current)
    }

    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Option<Write>, Unusable> {
        let (end, previous, current) = self.parts();
        let fits = previous.max(current) < 1 << COUNTER_BITS;
        let counts = || write_compact(0x22, quota, end, previous << COUNTER_BITS | current);
        let bytes = fits.then(counts).flatten();
        let wide = || {
            let head = Bytes::default().with(0x12, 1).with(quota.window_us(), 6);
            head.with(end, 7).with(previous, 7).with(current, 7)
        };
        // The end may be up to a second more than a window ahead.
        let next = if current > 0 { quota.window_us() } else { 0 };
        let ttl_ms = (end - now + next) / 1000 + 4000;
        Ok(Some(in_place_or_whole(bytes.unwrap_or_else(wide), before, end, now / 1000 + ttl_ms)))
    }
}

impl WireForm for TokenBucket {
    const LETTER: &'static str = "B";
    type Reply = Self;

    /// The capacity.
    fn own_fields(quota: &Quota) -> Bytes {
        Bytes::default().with(quota.capacity(), 7)
    }

    fn read_own_fields(common: QuotaFields, own: &mut Reader<'_>) -> Option<Quota> {
        QuotaFields { burst: Some(own.count()?), ..common }.quota()
    }

    fn of_numbers(_quota: &Quota, settled: u64, numbers: &[u64]) -> Result<Self, String> {
        let [level, fraction] = exactly(numbers)?;
        Ok(Self::from_parts(settled, level, fraction))
    }
}

impl StoredAs for TokenBucket {
    type Value<'v> = Self;
}

impl<'v> Stored<'v> for TokenBucket {
    const TAGS: &'static [u8] = &[0x13];

    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)> {
        let mut fields = Fields(value);
        let is_own = value.len() == 27 && fields.byte() == 0x13;
        is_own.then(|| {
            let window_us = fields.next(6);
            (Self::from_parts(fields.next(7), fields.next(7), fields.next(6)), Some(window_us))
        })
    }

    fn moment(&self) -> u64 {
        self.parts().0
    }

    fn counts_until(&self, quota: &Quota, settled: u64) -> u64 {
        settled.saturating_add(self.wait_us(quota, settled, 0))
    }

    fn cut(&self, quota: &Quota) -> Option<u64> {
        let (_, level, fraction) = self.parts();
        let is_more = level.saturating_add(u64::from(fraction > 0)) > quota.max_used();
        is_more.then(|| level.saturating_sub(quota.max_used()))
    }

    /// The rest drains as before, since the same time.
    fn refund_kept(&self, _own: &Quota, _settled: u64, refunded: u64, value: &[u8]) -> Option<Bytes> {
        let level = number(&value[14..21]);
        Some(replaced(value, 14, &[(level.saturating_sub(refunded), 7)]))
    }

    fn numbers(&self, numbers: Numbers) -> Numbers {
        let (_, level, fraction) = self.parts();
        numbers.with(level).with(fraction)
    }

    /// The expiry changes with every charge: it is the time until the bucket is empty, rounded down,
    /// and four seconds. The content may have been computed at a time up to a second ahead.
    fn write(&self, quota: &Quota, now: u64, _before: &Before) -> Result<Option<Write>, Unusable> {
        let (at, level, fraction) = self.parts();
        let bytes = Bytes::default().with(0x13, 1).with(quota.window_us(), 6).with(at, 7);
        let bytes = bytes.with(level, 7).with(fraction, 6);
        let used = u128::from(level) + u128::from(fraction > 0);
        let drains_us = used * u128::from(quota.window_us()) / u128::from(quota.limit().max(1));
        // Redis refuses times that do not fit in 63 bits.
        let ttl_us = u64::try_from(drains_us).unwrap_or(u64::MAX).saturating_add(at - now).min(1 << 61);
        let ttl_ms = ttl_us / 1000 + 4000;
        Ok(Some(Write::Value { bytes, expire_at_ms: now / 1000 + ttl_ms }))
    }
}

impl WireForm for InFlight {
    const LETTER: &'static str = "P";
    type Reply = Self;

    fn own_fields(_quota: &Quota) -> Bytes {
        Bytes::default()
    }

    fn read_own_fields(common: QuotaFields, _own: &mut Reader<'_>) -> Option<Quota> {
        common.quota()
    }

    fn of_numbers(_quota: &Quota, _settled: u64, numbers: &[u64]) -> Result<Self, String> {
        exactly::<0>(numbers).map(|_| Self)
    }
}

impl StoredAs for InFlight {
    type Value<'v> = Self;
}

impl<'v> Stored<'v> for InFlight {
    const TAGS: &'static [u8] = &[];

    fn read(_value: &'v [u8]) -> Option<(Self, Option<u64>)> {
        Some((Self, None))
    }

    fn moment(&self) -> u64 {
        0
    }

    fn counts_until(&self, _quota: &Quota, settled: u64) -> u64 {
        settled
    }

    fn numbers(&self, numbers: Numbers) -> Numbers {
        numbers
    }

    /// It has no usage to store.
    fn write(&self, _quota: &Quota, _now: u64, _before: &Before) -> Result<Option<Write>, Unusable> {
        Ok(None)
    }
}
