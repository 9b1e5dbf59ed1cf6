//! Naive models: what each algorithm's definition says, computed from scratch at every question.

use slidegate::{Algorithm, Quota};

/// The state of one key under one quota.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    algorithm: Algorithm,
    limit: u64,
    window: u64,
    /// What a fresh key admits at once.
    capacity: u64,
    /// Sliding log: every charge that counts, oldest first.
    charges: Vec<(u64, u64)>,
    /// Both windows: cost charged in each window since the epoch, by its number.
    windows: Vec<(u64, u64)>,
    /// Token bucket: when `content` was right, and the content in cost times microseconds.
    at: u64,
    content: u128,
}

impl Model {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            algorithm: quota.algorithm(),
            limit: quota.limit(),
            window: window_us(quota),
            capacity: quota.capacity(),
            charges: Vec::new(),
            windows: Vec::new(),
            at: 0,
            content: 0,
        }
    }

    /// Puts another quota in force at the time of the last [`settle`](Self::settle).
    pub(crate) fn configure(&mut self, quota: &Quota) {
        let window = window_us(quota);
        if window != self.window {
            // Only a log knows when it was charged. What counts elsewhere counts as charged now.
            let used = self.used_at(self.at);
            self.windows = vec![(self.at / window, used)];
            self.content = u128::from(used) * u128::from(window);
        }
        (self.limit, self.window, self.capacity) = (quota.limit(), window, quota.capacity());
        self.content = self.content.min(u128::from(self.most()) * u128::from(window));
    }

    /// Time passes: what does not count any more under the present quota never will.
    pub(crate) fn settle(&mut self, now: u64) {
        let window = self.window;
        self.charges.retain(|(at, _)| at + window > now);
        self.content = self.content_at(now);
        self.at = now;
    }

    fn content_at(&self, now: u64) -> u128 {
        self.content.saturating_sub(u128::from(now - self.at) * u128::from(self.limit.max(1)))
    }

    fn in_window(&self, number: u64) -> u64 {
        self.windows.iter().filter(|(n, _)| *n == number).map(|(_, cost)| cost).sum()
    }

    /// Cost that counts at `now`, at or after the last step.
    pub(crate) fn used_at(&self, now: u64) -> u64 {
        let number = now / self.window;
        match self.algorithm {
            Algorithm::SlidingLog => {
                self.charges.iter().filter(|(at, _)| at + self.window > now).map(|(_, cost)| cost).sum()
            }
            Algorithm::FixedWindow => self.in_window(number),
            Algorithm::SlidingWindow => {
                let left = u128::from(self.window - now % self.window);
                let older = u128::from(self.in_window(number - 1)) * left;
                self.in_window(number) + u64::try_from(older.div_ceil(u128::from(self.window))).unwrap()
            }
            Algorithm::TokenBucket => {
                u64::try_from(self.content_at(now).div_ceil(u128::from(self.window))).unwrap()
            }
            other => panic!("no model of {other}"),
        }
    }

    /// The least time after `now` at which no more than `room` counts, found by halving: use only
    /// sinks with time.
    pub(crate) fn wait_until(&self, now: u64, room: u64) -> u64 {
        let (mut low, mut high) = (0, 1 << 62);
        while low < high {
            let middle = u64::midpoint(low, high);
            if self.used_at(now + middle) <= room {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    pub(crate) fn charge(&mut self, now: u64, cost: u64) {
        self.charges.push((now, cost));
        self.windows.push((now / self.window, cost));
        self.content += u128::from(cost) * u128::from(self.window);
    }

    /// Charges what of `cost` a key can hold; returns how much that was.
    pub(crate) fn penalize(&mut self, now: u64, cost: u64) -> u64 {
        let charged = cost.min(self.most().saturating_sub(self.used_at(now)));
        self.charge(now, charged);
        charged
    }

    /// The most that counts: a bucket holds one window's limit above its capacity, all others count
    /// to 2^53 - 1.
    fn most(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.capacity + self.limit.max(1),
            _ => (1 << 53) - 1,
        }
    }

    /// Takes back at most `cost` of what counts; returns how much that was.
    pub(crate) fn refund(&mut self, now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used_at(now));
        match self.algorithm {
            Algorithm::SlidingLog => self.refund_oldest(given),
            Algorithm::TokenBucket => {
                self.content = self.content.saturating_sub(u128::from(given) * u128::from(self.window));
            }
            _ => self.refund_newest_window(now, given),
        }
        given
    }

    fn refund_oldest(&mut self, mut rest: u64) {
        for (_, charged) in &mut self.charges {
            let part = rest.min(*charged);
            *charged -= part;
            rest -= part;
        }
    }

    /// The present window first; what is left comes off the older one, until its weighted part has
    /// sunk by as much.
    fn refund_newest_window(&mut self, now: u64, given: u64) {
        let number = now / self.window;
        let aim = self.used_at(now) - given;
        let present = self.in_window(number);
        self.set_window(number, present - given.min(present));
        let (mut low, mut high) = (0, if given > present { self.in_window(number - 1) } else { return });
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            self.set_window(number - 1, middle);
            if self.used_at(now) <= aim {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        self.set_window(number - 1, low);
    }

    fn set_window(&mut self, number: u64, cost: u64) {
        self.windows.retain(|(n, _)| *n != number);
        self.windows.push((number, cost));
    }
}

fn window_us(quota: &Quota) -> u64 {
    u64::try_from(quota.window().as_micros()).unwrap()
}
