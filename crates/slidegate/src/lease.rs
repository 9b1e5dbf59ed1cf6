//! Leases of a limit: an instance takes a slice of what a hot key has left, and admits from it
//! without calling the store.
//!
//! A lease is a hold whose cost is used while it is open, and which is charged at its end: when it is
//! settled, to what was used, or when its time is over, in full. The argument that no window exceeds
//! its limit is that of [holds](crate::hold): it needs no bound on windows, lengths or instances, but
//! that a holder admits nothing after its end. So a holder's time starts before the call is sent, and
//! is shortened by more than clocks drift.
//!
//! Here are the rules that stores share; `docs/leases.md` has the argument and what they cost.

use std::time::Duration;

use crate::quota::Quota;
use crate::time::micros;

/// How long leases of a policy last: [`Policy::with_lease`](crate::Policy::with_lease).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseLength {
    /// A twentieth of the window, at least 10 ms and at most 1 s.
    OfWindow,
    /// A fixed time: 10 ms to 1 s.
    Fixed(Duration),
}

impl LeaseLength {
    /// The shortest and longest length. A call must fit several times; news that an instance does not hear are late
    /// by at most a lease.
    pub const RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

    /// The length under a quota, in microseconds.
    #[must_use]
    pub fn us(self, quota: &Quota) -> u64 {
        let (least, most) = (micros(Self::RANGE.0), micros(Self::RANGE.1));
        match self {
            Self::OfWindow => (quota.window_us() / 20).clamp(least, most),
            Self::Fixed(length) => micros(length).clamp(least, most),
        }
    }
}

/// The number of requests that a slice must admit, at least: a lease costs up to two calls.
pub const LEAST_REQUESTS: u64 = 4;

/// The slice of a key that has `room` left, for an instance that uses about `want` while the lease lasts: at most half
/// of the room, so that others find some. 0 if it would be less than `least`. Twin of the piece `grant` in `lua/holds.lua`.
#[must_use]
pub fn slice_of(want: u64, least: u64, room: u64) -> u64 {
    let slice = want.min(room / 2);
    if slice < least { 0 } else { slice }
}

/// When a holder stops admitting, in microseconds after it has sent the call: before the store ends the lease, if no
/// clock drifts by more than a thousandth of its length.
#[must_use]
pub fn usable_us(length_us: u64) -> u64 {
    length_us.saturating_sub(length_us / 1000 + 1000)
}

/// When a lease is renewed or returned, in microseconds after the call was sent.
#[must_use]
pub fn renewed_after_us(length_us: u64) -> u64 {
    length_us / 5 * 4
}

/// The upper half of the ids of an instance's leases: the 32-bit FNV-1a hash of its id, so that a key's holds show who
/// has a lease.
#[must_use]
pub fn holder_of(instance: &str) -> u32 {
    instance.bytes().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// How much of a key one instance uses: a moving average with a time constant of two leases.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    /// Cost per microsecond, at `at`.
    rate: f64,
    at: u64,
}

impl Demand {
    /// Records cost that was asked for at a time in microseconds, or used in the `over_us` before it.
    pub fn note(&mut self, cost: u64, now_us: u64, over_us: u64, length_us: u64) {
        let constant = float(2 * length_us.max(1));
        let kept = self.kept(now_us, constant);
        let over = float(over_us);
        let share = if over_us == 0 { 1.0 / constant } else { (1.0 - (-over / constant).exp()) / over };
        *self = Self { rate: self.rate * kept + float(cost) * share, at: now_us.max(self.at) };
    }

    /// When it was last recorded, in microseconds.
    #[must_use]
    pub fn noted_us(&self) -> u64 {
        self.at
    }

    /// The cost that is expected within a lease that begins now.
    #[must_use]
    pub fn want(&self, now_us: u64, length_us: u64) -> u64 {
        let expected = self.rate * self.kept(now_us, float(2 * length_us.max(1))) * float(length_us);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let want = expected.ceil() as u64;
        want
    }

    fn kept(&self, now_us: u64, constant: f64) -> f64 {
        (-float(now_us.saturating_sub(self.at)) / constant).exp()
    }
}

#[allow(clippy::cast_precision_loss)] // an estimate
fn float(number: u64) -> f64 {
    number as f64
}

/// The slice of one lease, in the process that holds it. Times are microseconds of one monotonic clock.
#[derive(Debug)]
pub struct Slice {
    /// The id of the hold.
    pub id: u64,
    amount: u64,
    left: u64,
    end_us: u64,
}

impl Slice {
    /// A slice of this amount, which may be used until `end_us`.
    #[must_use]
    pub fn new(id: u64, amount: u64, end_us: u64) -> Self {
        Self { id, amount, left: amount, end_us }
    }

    /// Takes a cost, if that much is left and its time is not over. Call it under the lock that [`end`](Self::end)
    /// needs, and read the clock there: a thread that waited for the lock must not admit late.
    pub fn take(&mut self, cost: u64, now_us: impl FnOnce() -> u64) -> bool {
        let left = self.left.checked_sub(cost).filter(|_| now_us() < self.end_us);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_over(&self, now_us: u64) -> bool {
        now_us >= self.end_us
    }

    /// Returns what was taken and not used.
    pub fn put_back(&mut self, cost: u64) {
        self.left = self.left.saturating_add(cost).min(self.amount);
    }

    /// What is left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// What was granted.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// What was taken. Consumes the slice: nobody can take from it once this is known, so it can be settled.
    #[must_use]
    pub fn end(self) -> u64 {
        self.amount - self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_US;

    #[test]
    fn a_lease_lasts_a_twentieth_of_the_window() {
        let of = |window| LeaseLength::OfWindow.us(&Quota::new(100, Duration::from_millis(window)).unwrap());
        assert_eq!([100, 1000, 10_000, 86_400_000].map(of), [10_000, 50_000, 500_000, SECOND_US]);
        let fixed = LeaseLength::Fixed(Duration::from_millis(30));
        assert_eq!(fixed.us(&Quota::per_day(5)), 30_000);
    }

    /// The rows of the rule: half of what is free, unless that does not pay.
    #[test]
    fn slices_halve_until_they_do_not_pay() {
        assert_eq!(slice_of(10, 4, 100), 10);
        let (mut room, mut slices) = (100, Vec::new());
        loop {
            match slice_of(80, 4, room) {
                0 => break,
                slice => {
                    slices.push(slice);
                    room -= slice;
                }
            }
        }
        assert_eq!(slices, [50, 25, 12, 6]);
        assert_eq!(slice_of(80, 4, 7), 0);
        // Costs of 5: twenty of them are the least.
        assert_eq!((slice_of(19, 20, 100), slice_of(20, 20, 100)), (0, 20));
    }

    #[test]
    fn a_holder_stops_before_the_store_ends_its_lease() {
        assert_eq!(usable_us(50_000), 48_950);
        assert_eq!(usable_us(500), 0);
        // With the drift that calls allow for, see `server_time.rs`.
        assert!(
            (10_000..=1_000_000).step_by(10_000).all(|length| usable_us(length) * 10_005 / 10_000 < length)
        );
    }

    #[test]
    fn demand_is_what_is_used_within_a_lease() {
        let length = 50_000;
        // 2,000 a second one by one, and the same in slices.
        let (mut single, mut sliced) = (Demand::default(), Demand::default());
        (1..=2000).for_each(|at| single.note(1, at * 500, 0, length));
        (1..=20).for_each(|at| sliced.note(100, at * 50_000, 50_000, length));
        assert!((99..=101).contains(&single.want(SECOND_US, length)), "{single:?}");
        assert_eq!(sliced.want(SECOND_US, length), 100);
        // It halves about every 70 ms, and one request alone is no demand.
        assert_eq!(sliced.want(SECOND_US + 69_315, length), 50);
        let mut one = Demand::default();
        one.note(1, SECOND_US, 0, length);
        assert_eq!(one.want(SECOND_US, length), 1);
    }

    #[test]
    fn nothing_is_taken_too_late() {
        let mut slice = Slice::new(7, 10, 1000);
        assert!(slice.take(3, || 999));
        assert!(!slice.take(8, || 999), "7 are left");
        assert!(!slice.take(2, || 1000));
        assert_eq!(slice.left(), 7);
        slice.put_back(1);
        assert_eq!(slice.end(), 2);
    }
}
