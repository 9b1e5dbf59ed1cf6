//! The quota under which a key was last charged, as a policy sees it: its tier, and a request for it.

use super::Policy;
use super::rule::by_anchor;
use crate::quota::{LastQuota, Quota};
use crate::request::Request;

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
