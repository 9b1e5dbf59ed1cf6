//! Quotas as shared stores know them: by the numbers that a call or a stored value carries.

use super::{Borders, Calendar, Quota, QuotaFields, Setting};
use crate::time::SECOND_US;

impl Quota {
    /// A fixed window by another process's calendar, with its code.
    pub fn with_borders(self, code: u64, borders: [u64; 4]) -> Self {
        Self { borders: Borders::Given(code, borders), ..self }
    }

    /// The borders of a calendar that a call carries.
    pub fn borders(&self) -> Option<[u64; 4]> {
        if let Borders::Given(_, borders) = self.borders { Some(borders) } else { None }
    }

    /// The quota for usage counted in a window with this code that ends at `end`. `None` if there
    /// is no such window.
    pub fn counted_in(&self, code: u64, end: u64) -> Option<Self> {
        if code >= Calendar::LEAST_CODE && self.algorithm.setting() == Setting::Calendar {
            return Some(self.with_borders(code, [0, end, u64::MAX, u64::MAX]));
        }
        QuotaFields { window_us: code, calendar: None, ..self.fields() }.quota()
    }
}

impl Quota {
    /// The quota of one of `instances` instances: limit and burst are divided and rounded up, so
    /// that neither becomes 0.
    pub fn share(&self, instances: u64) -> Self {
        let share = |whole: u64| whole.div_ceil(instances);
        Self::build(QuotaFields { limit: share(self.limit), burst: self.burst.map(share), ..self.fields() })
    }

    /// The quota with a smaller capacity; a bucket drains at the same rate.
    pub fn at_most(&self, capacity: u64) -> Self {
        if capacity >= self.capacity() {
            return *self;
        }
        let (limit, burst) = match self.algorithm.setting() {
            Setting::Burst => (self.limit, Some(capacity)),
            _ => (capacity, self.burst),
        };
        Self::build(QuotaFields { limit, burst, ..self.fields() })
    }

    /// With a window that is longer by so many microseconds, if that is in range. Fixed windows and
    /// leases stay as they are: they begin and end on the clock.
    pub fn widened(self, us: u64) -> Self {
        let fields = self.fields();
        match self.algorithm.setting() {
            Setting::Calendar | Setting::Lease => self,
            _ => QuotaFields { window_us: fields.window_us + us, ..fields }.quota().unwrap_or(self),
        }
    }

    /// The same quota. If it has a calendar, its values in shared stores [keep](Calendar::keeping_totals) the
    /// totals of ended windows, or do not.
    #[must_use]
    pub fn keeping_totals(self, keeps: bool) -> Self {
        let Borders::Calendar(calendar) = self.borders else { return self };
        Self { borders: Borders::Calendar(calendar.keeping_totals(keeps)), ..self }
    }

    /// How long a shared store keeps the total of an ended window for: half a window, at most a week. `None`
    /// if it keeps none.
    #[must_use]
    pub fn keeps_totals_us(&self) -> Option<u64> {
        const WEEK_US: u64 = 7 * 86_400 * SECOND_US;
        Calendar::code_keeps_totals(self.window_code()).then(|| self.half_window_us().min(WEEK_US))
    }

    /// The quota as sent to a shared store: a calendar by its borders around `now`, from which the
    /// server picks by its own clock.
    pub fn sent_at(&self, now: u64) -> Self {
        let Borders::Calendar(calendar) = self.borders else { return *self };
        self.with_borders(calendar.code(), calendar.borders_at(now))
    }
}
