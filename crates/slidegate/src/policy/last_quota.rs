//! The quota under which a key was last charged, as a shared store keeps it for views and operators.

use std::fmt;
use std::str::FromStr;

use super::Policy;
use super::rule::by_anchor;
use crate::error::Error;
use crate::quota::{Algorithm, Calendar, Quota, QuotaFields};
use crate::request::Request;

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

impl Policy {
    /// The value of the tier with this quota, from whichever day its windows begin, if there is only one.
    #[must_use]
    pub fn tier_with(&self, quota: &Quota) -> Option<&str> {
        let is_same = |one: &Quota| one == quota || self.day_of(one, |anchored| anchored == quota).is_some();
        let mut same = self.options().tiers.as_ref()?.quotas.iter().filter(|(_, one)| is_same(one));
        same.next().filter(|_| same.next().is_none()).map(|(value, _)| value.as_str())
    }

    /// The request with the attributes that put its key under the quota of its last charge: the value of a tier,
    /// and the day on which windows begin. If no tier has that quota now, the request is unchanged; without tiers,
    /// the quota was inline and becomes so again.
    #[must_use]
    pub fn under_last_quota<'r>(&'r self, request: Request<'r>, last: &LastQuota) -> Request<'r> {
        let is_last = |quota: &Quota| LastQuota::of(quota) == *last;
        let own = std::iter::once((None, self.quota()));
        let tiers = self.options().tiers.as_ref();
        let of_tiers = tiers.into_iter().flat_map(|tiers| {
            tiers
                .quotas
                .iter()
                .map(|(value, quota)| (Some((tiers.attribute.as_str(), value.as_str())), quota))
        });
        for (tier, quota) in own.chain(of_tiers) {
            let day = self.day_of(quota, is_last);
            if day.is_none() && !is_last(quota) {
                continue;
            }
            let request =
                tier.map_or(request.clone(), |(attribute, value)| request.clone().with(attribute, value));
            return match (day, self.options().anchor_attribute.as_deref()) {
                (Some(day), Some(attribute)) => request.with(attribute, day),
                _ => request,
            };
        }
        match last.quota().filter(|_| tiers.is_none() && !self.options().counts.is_weighted()) {
            Some(inline) => request.with_quota(inline),
            None => request,
        }
    }

    /// The day from which windows of this quota begin, if an attribute sets it and one of the days does.
    fn day_of(&self, quota: &Quota, is_last: impl Fn(&Quota) -> bool) -> Option<&'static str> {
        const DAYS: [&str; 31] = [
            "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17",
            "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31",
        ];
        self.options().anchor_attribute.as_ref()?;
        let days = by_anchor(quota)?;
        days.iter().zip(DAYS).find(|(quota, _)| is_last(quota)).map(|(_, day)| day)
    }
}
