//! Metrics of leases, by policy.
//!
//! The share of a limit that is held is a quotient of two gauges, so that instances and policies can be added up.

use std::collections::BTreeMap;
use std::fmt;

use slidegate::store::LeaseStats;

use super::page::Page;

/// Maximum policies with their own series, of those that have had a lease.
const MAX_POLICIES: usize = 1000;

pub(super) fn leases(page: &mut Page<'_>, leases: &BTreeMap<String, LeaseStats>) -> fmt::Result {
    let by_policy = |count: fn(&LeaseStats) -> u64| {
        let leases = leases.iter().take(MAX_POLICIES);
        leases.map(move |(policy, stats)| ([("policy", policy.as_str())], count(stats)))
    };
    let help = "Leases that the store granted to this instance, renewals included";
    page.counter("store_leases_granted", help, by_policy(|stats| stats.granted))?;
    let help = "Leases that were settled and replaced by one call";
    page.counter("store_leases_renewed", help, by_policy(|stats| stats.renewed))?;
    let help = "Leases that were settled and not replaced";
    page.counter("store_leases_returned", help, by_policy(|stats| stats.returned))?;
    let help = "Leases that ended before they were settled; the store charged them in full";
    page.counter("store_leases_expired", help, by_policy(|stats| stats.expired))?;
    let help = "Requests admitted from leases, without a call";
    page.counter("store_leases_admitted", help, by_policy(|stats| stats.admitted))?;
    page.gauge("store_leases_open", "Open leases of this instance", by_policy(|stats| stats.open))?;
    let help =
        "Cost that open leases have left, in the store's units: millionths if the policy weights costs";
    page.gauge("store_leases_held", help, by_policy(|stats| stats.held))?;
    let help = "Limits of the keys with an open lease, added up, in the same units";
    page.gauge("store_leases_limit", help, by_policy(|stats| stats.limit))
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, text};
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Scrape(BTreeMap<String, LeaseStats>);

    impl Collector for Scrape {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            leases(&mut Page(encoder), &self.0)
        }
    }

    /// A count under the wrong name sends an operator after crashes that did not happen.
    #[test]
    fn each_count_of_leases_has_its_metric() {
        let stats = LeaseStats {
            granted: 1,
            renewed: 2,
            returned: 3,
            expired: 4,
            admitted: 5,
            open: 6,
            held: 7,
            limit: 8,
        };
        let mut registry = Registry::with_prefix("slidegate");
        registry.register_collector(Box::new(Scrape(BTreeMap::from([("api".to_owned(), stats)]))));
        let mut page = String::new();
        text::encode_registry(&mut page, &registry).unwrap();
        let samples: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "granted_total",
            "renewed_total",
            "returned_total",
            "expired_total",
            "admitted_total",
            "open",
            "held",
            "limit",
        ];
        let expected: Vec<_> = expected
            .iter()
            .zip(1..)
            .map(|(name, count)| format!("slidegate_store_leases_{name}{{policy=\"api\"}} {count}"))
            .collect();
        assert_eq!(samples, expected);
    }
}
