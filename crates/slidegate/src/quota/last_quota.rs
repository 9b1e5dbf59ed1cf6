//! The quota under which a key was last charged, as a shared store keeps it for views and operators.

use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Calendar, Quota, QuotaFields};
use crate::error::Error;

/// The quota under which a key was last charged. Its text is the algorithm, the limit, the capacity and the window,
/// which is a number of microseconds or the code of a calendar: `sliding-log 100 100 60000000`.
///
/// ```
/// use slidegate::Quota;
/// use slidegate::store::LastQuota;
///
/// let last: LastQuota = "sliding-log 100 100 60000000".parse()?;
/// assert_eq!(last, LastQuota::of(&Quota::per_minute(100)));
/// assert!("sliding-log 100".parse::<LastQuota>().is_err());
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastQuota {
    algorithm: Algorithm,
    limit: u64,
    capacity: u64,
    window_code: u64,
}

impl LastQuota {
    /// What is kept of a quota.
    #[must_use]
    pub fn of(quota: &Quota) -> Self {
        Self {
            algorithm: quota.algorithm(),
            limit: quota.limit(),
            capacity: quota.capacity(),
            window_code: quota.window_code(),
        }
    }

    /// The same, counted in units that are `by` times as large.
    #[must_use]
    pub fn divided(self, by: u64) -> Self {
        Self { limit: self.limit / by, capacity: self.capacity / by, ..self }
    }

    /// The quota, if its window is a length of time.
    #[must_use]
    pub fn quota(self) -> Option<Quota> {
        let Self { algorithm, limit, capacity, window_code: window_us } = self;
        let (burst, slots) = (Some(capacity), Quota::DEFAULT_SLOTS);
        let fields = QuotaFields { limit, window_us, burst, algorithm, slots, calendar: None };
        (window_us < Calendar::LEAST_CODE).then(|| fields.quota()).flatten()
    }
}

impl fmt::Display for LastQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.algorithm.name(), self.limit, self.capacity, self.window_code)
    }
}

impl FromStr for LastQuota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(' ');
            let algorithm = parts.next()?.parse().ok()?;
            let mut number = || parts.next()?.parse().ok();
            let last = Self { algorithm, limit: number()?, capacity: number()?, window_code: number()? };
            parts.next().is_none().then_some(last)
        };
        parsed().ok_or_else(|| {
            let text = text.escape_debug();
            Error::quota(format!(
                "invalid quota of a key `{text}`: must be algorithm, limit, capacity and window, for example \
                 `sliding-log 100 100 60000000`"
            ))
        })
    }
}
