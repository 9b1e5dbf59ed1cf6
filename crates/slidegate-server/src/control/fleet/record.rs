//! An instance's published record: a few hundred bytes of JSON, at most 4096.
//!
//! Any client of the store can write a record, so everything in it is checked: its size, its texts, and that
//! sums of its numbers cannot overflow.

use serde::{Deserialize, Serialize};

use crate::engine::OpenCost;
use crate::engine::shadow::ShadowFigures;
use crate::record::{Counts, FullKey, KeyCount, Ranking, top};
use slidegate::{Amount, clock::Timestamp};

/// Maximum bytes of a record: the limit of the store.
const MAX_BYTES: usize = 4096;
/// Maximum policies and top keys in a record: the busiest ones, or fewer if they do not fit.
pub(super) const MAX_POLICIES: usize = 64;
pub(super) const MAX_KEYS: usize = 10;
/// Maximum bytes of a name, version or digest.
const MAX_TEXT: usize = 128;

#[derive(Debug, Clone)]
pub(crate) struct Instance {
    /// 16 hexadecimal digits.
    pub(crate) id: String,
    /// Whether it is this instance.
    pub(crate) is_this: bool,
    pub(crate) record: Record,
}

/// An instance's description of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its host and port.
    pub(crate) name: String,
    pub(crate) version: String,
    /// When it started, in milliseconds since the epoch, by its clock.
    pub(crate) started_ms: u64,
    /// Digest of the config file and of the active policies.
    pub(crate) config: String,
    /// Number of active run-time changes, and their digest.
    pub(crate) changes: u64,
    pub(crate) changes_digest: u64,
    /// Whether fallbacks may decide, or did in the last interval.
    pub(crate) degraded: bool,
    /// When it last found that the store had lost usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) usage_lost_ms: Option<u64>,
    /// The version of the time zone data, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_zones: Option<String>,
    /// Checks over all policies since the start.
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Calls that wait for their turn now.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) waiting: u64,
    /// Checks in the last interval, and its length.
    pub(crate) recent: Recent,
    /// The busiest policies.
    pub(crate) policies: Vec<PolicyTotals>,
    /// Number of policies left out.
    pub(crate) more_policies: u64,
    /// Keys with the most usage, and with the most denials.
    pub(crate) used: TopPart,
    pub(crate) denials: TopPart,
    /// The fullest keys of all policies, the fullest first.
    #[serde(default)]
    pub(crate) fullest: Vec<FullestKey>,
}

/// Checks of the last interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recent {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// 0: no interval yet.
    pub(crate) interval_ms: u64,
}

/// Totals of one policy since the start of the instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyTotals {
    #[serde(rename = "p")]
    pub(crate) policy: String,
    #[serde(rename = "a", default)]
    pub(crate) allowed: u64,
    #[serde(rename = "d", default)]
    pub(crate) denied: u64,
    #[serde(rename = "s", default, skip_serializing_if = "is_zero")]
    pub(crate) shadow_denied: u64,
    #[serde(rename = "ca", default)]
    pub(crate) cost_allowed: Amount,
    #[serde(rename = "cd", default, skip_serializing_if = "is_zero")]
    pub(crate) cost_denied: Amount,
    #[serde(rename = "n", default, skip_serializing_if = "is_zero")]
    pub(crate) near_limit: u64,
    /// Open reservations that the instance made, and the cost they hold.
    #[serde(rename = "o", default, skip_serializing_if = "is_zero")]
    pub(crate) open_reservations: u64,
    #[serde(rename = "h", default, skip_serializing_if = "is_zero")]
    pub(crate) held: u64,
    /// Of a shadow policy, or of a candidate under its own name.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub(crate) shadow: Option<ShadowFigures>,
}

/// The first keys in one order, over all policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopPart {
    pub(crate) keys: Vec<TopKey>,
    /// Upper bound of the count of any key not listed, in units.
    pub(crate) error_bound: u64,
    #[serde(default)]
    pub(crate) sampled: bool,
}

/// A key of one policy, redacted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopKey {
    #[serde(rename = "p")]
    policy: String,
    #[serde(rename = "k")]
    key: String,
    #[serde(rename = "n")]
    count: u64,
    #[serde(rename = "o", default, skip_serializing_if = "is_zero")]
    over: u64,
    /// Whether both are millionths of a unit.
    #[serde(rename = "m", default, skip_serializing_if = "std::ops::Not::not")]
    in_millionths: bool,
    /// Microseconds since the epoch.
    #[serde(rename = "t")]
    last_us: u64,
}

/// A key of one policy, redacted, at its last decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FullestKey {
    #[serde(rename = "p")]
    policy: String,
    #[serde(rename = "k")]
    key: String,
    /// In millionths.
    #[serde(rename = "s")]
    share: u64,
    /// Microseconds since the epoch.
    #[serde(rename = "r")]
    resets_us: u64,
    #[serde(rename = "t")]
    last_us: u64,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

impl Record {
    /// The serialized record, with as many policies and keys as fit.
    pub(crate) fn fitted(&self) -> Vec<u8> {
        let mut record = self.clone();
        record.policies.sort_by_key(|one| std::cmp::Reverse(one.allowed.saturating_add(one.denied)));
        let (mut policies, mut keys) = (MAX_POLICIES, MAX_KEYS);
        loop {
            let left_out = record.policies.len().saturating_sub(policies);
            record.policies.truncate(policies);
            record.more_policies += left_out as u64;
            for part in [&mut record.used, &mut record.denials] {
                part.cut(keys);
            }
            record.fullest.truncate(keys);
            let bytes = serde_json::to_vec(&record).expect("strings and numbers serialize");
            if bytes.len() <= MAX_BYTES || policies + keys == 0 {
                return bytes;
            }
            (policies, keys) = (policies / 2, keys / 2);
        }
    }

    /// Parses a record. `None` if no instance wrote it.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok().filter(|_| bytes.len() <= MAX_BYTES)?;
        let is_text = |text: &str| {
            (1..=MAX_TEXT).contains(&text.len()) && text.chars().all(|one| one.is_ascii_graphic())
        };
        let texts = [&record.name, &record.version, &record.config];
        let is_sound = texts.into_iter().chain(&record.time_zones).all(|text| is_text(text));
        is_sound.then_some(record)
    }

    pub(crate) fn totals(&self, policy: &str) -> Option<&PolicyTotals> {
        self.policies.iter().find(|one| one.policy == policy)
    }
}

impl PolicyTotals {
    pub(crate) fn new(policy: String, counts: Counts, open: OpenCost) -> Self {
        let Counts { allowed, denied, shadow_denied, cost_allowed, cost_denied, near_limit, .. } = counts;
        Self {
            policy,
            allowed,
            denied,
            shadow_denied,
            cost_allowed,
            cost_denied,
            near_limit,
            open_reservations: open.reservations,
            held: open.held,
            shadow: None,
        }
    }

    /// Adds the totals of another instance.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, one) in [
            (&mut self.allowed, other.allowed),
            (&mut self.denied, other.denied),
            (&mut self.shadow_denied, other.shadow_denied),
            (&mut self.near_limit, other.near_limit),
            (&mut self.open_reservations, other.open_reservations),
            (&mut self.held, other.held),
        ] {
            *sum = sum.saturating_add(one);
        }
        self.cost_allowed = self.cost_allowed + other.cost_allowed;
        self.cost_denied = self.cost_denied + other.cost_denied;
    }
}

impl FullestKey {
    pub(super) fn new(policy: &str, one: &FullKey) -> Self {
        Self {
            policy: policy.to_owned(),
            key: one.key.to_string(),
            share: one.share,
            resets_us: one.resets_at.as_micros(),
            last_us: one.last_at.as_micros(),
        }
    }

    /// The key, if it is of this policy.
    pub(super) fn of(&self, policy: &str) -> Option<FullKey> {
        (self.policy == policy).then(|| FullKey {
            key: self.key.as_str().into(),
            share: self.share,
            resets_at: Timestamp::from_micros(self.resets_us),
            last_at: Timestamp::from_micros(self.last_us),
        })
    }
}

impl TopPart {
    /// Adds the keys of a policy. Call [`cut`](Self::cut) after the last one.
    pub(crate) fn add(&mut self, policy: &str, ranking: Ranking) {
        self.error_bound = self.error_bound.max(ranking.amount(ranking.error_bound).ceil());
        self.sampled |= ranking.is_sampled;
        self.keys.extend(ranking.keys.into_iter().take(MAX_KEYS + 1).map(|one| TopKey {
            policy: policy.to_owned(),
            key: one.key.to_string(),
            count: one.count,
            over: one.over,
            in_millionths: ranking.in_millionths,
            last_us: one.last_at.as_micros(),
        }));
    }

    pub(crate) fn cut(&mut self, keys: usize) {
        let amount = |one: &TopKey| top::amount(one.count, one.in_millionths);
        self.keys.sort_by_key(|one| std::cmp::Reverse(amount(one)));
        let first_missing = self.keys.get(keys).map_or(0, |one| amount(one).ceil());
        self.error_bound = self.error_bound.max(first_missing);
        self.keys.truncate(keys);
    }

    /// The keys of one policy.
    pub(crate) fn ranking(&self, policy: &str, in_millionths: bool) -> Ranking {
        let of_policy =
            self.keys.iter().filter(|one| one.policy == policy && one.in_millionths == in_millionths);
        let keys = of_policy.map(|one| KeyCount {
            key: one.key.as_str().into(),
            count: one.count,
            over: one.over.min(one.count),
            last_at: Timestamp::from_micros(one.last_us),
        });
        let unit = if in_millionths { 1_000_000 } else { 1 };
        let error_bound = self.error_bound.saturating_mul(unit);
        Ranking { keys: keys.collect(), error_bound, is_sampled: self.sampled, in_millionths }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(name: &str) -> Record {
        Record {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            started_ms: 1,
            config: "c0".to_owned(),
            changes: 0,
            changes_digest: 0,
            degraded: false,
            usage_lost_ms: None,
            time_zones: None,
            allowed: 0,
            denied: 0,
            waiting: 0,
            recent: Recent::default(),
            policies: Vec::new(),
            more_policies: 0,
            used: TopPart::default(),
            denials: TopPart::default(),
            fullest: Vec::new(),
        }
    }

    fn ranking(keys: &[(String, u64)]) -> Ranking {
        let keys = keys.iter().map(|(key, count)| KeyCount {
            key: key.as_str().into(),
            count: *count,
            over: 0,
            last_at: Timestamp::from_secs(9),
        });
        Ranking { keys: keys.collect(), error_bound: 0, is_sampled: false, in_millionths: false }
    }

    /// Every instance reads the records of all others: a record must not grow with its policies or keys.
    #[test]
    fn a_record_fits_whatever_is_in_it_and_says_what_it_leaves_out() {
        let mut full = record("a:1");
        full.policies = (0..500)
            .map(|n| PolicyTotals { policy: format!("policy-{n}"), allowed: n, ..PolicyTotals::default() })
            .collect();
        // A client chooses keys: each of these characters takes six bytes of JSON.
        let hostile = "\u{1}".repeat(200);
        full.used.add(
            "policy-1",
            ranking(&(0..50).map(|n| (format!("{hostile}{n}"), 1000 - n)).collect::<Vec<_>>()),
        );
        let fullest = |share: u64| {
            let key = FullKey {
                key: format!("{hostile}{share}").into(),
                share,
                resets_at: Timestamp::from_secs(99),
                last_at: Timestamp::from_secs(9),
            };
            FullestKey::new("policy-1", &key)
        };
        full.fullest = (0..50).rev().map(fullest).collect();
        let bytes = full.fitted();
        assert!(bytes.len() <= MAX_BYTES, "{}", bytes.len());
        let read = Record::read(&bytes).unwrap();
        assert_eq!(read.policies.len() as u64 + read.more_policies, 500);
        assert!(read.policies.iter().all(|one| one.allowed > 400), "the busiest are kept");
        let listed = read.used.keys.len() as u64;
        assert!(listed < 10);
        assert!(read.fullest.iter().map(|one| one.share).eq((50 - listed..50).rev()), "the fullest are kept");
        assert_eq!(read.used.error_bound, 1000 - listed, "the first that is left out");
        let mut usual = record("host-1.example:7979");
        usual.policies =
            vec![PolicyTotals { policy: "per-user".to_owned(), allowed: 5, ..PolicyTotals::default() }];
        usual.used.add("per-user", ranking(&[("alice".to_owned(), 3)]));
        let known = FullestKey {
            policy: "per-user".to_owned(),
            key: "bob".to_owned(),
            share: 7,
            resets_us: 8,
            last_us: 9,
        };
        usual.fullest = vec![known.clone()];
        assert_eq!((known.of("per-ip"), known.of("per-user").unwrap().share), (None, 7));
        let bytes = usual.fitted();
        assert!(bytes.len() < 512, "a few hundred bytes: {}", bytes.len());
        assert_eq!(Record::read(&bytes), Some(usual));
    }

    /// Anyone may have written a text in the store, and it ends up in terminals and pages.
    #[test]
    fn what_is_not_a_record_is_not_read() {
        let good = record("a:1").fitted();
        assert!(Record::read(&good).is_some());
        let mut longer = record("a:1");
        longer.name = "n".repeat(MAX_TEXT + 1);
        for name in ["", "a\u{1b}[2J", "two words", "\u{202e}x", &longer.name.clone()] {
            let bad = Record { name: name.to_owned(), ..record("a") };
            assert_eq!(Record::read(&bad.fitted()), None, "{name:?}");
            let bad = Record { version: name.to_owned(), ..record("a") };
            assert_eq!(Record::read(&bad.fitted()), None, "{name:?}");
        }
        for bytes in [&b"{}"[..], b"", b"[]", b"\xff", &[&good[..], &[b' '; MAX_BYTES]].concat()] {
            assert_eq!(Record::read(bytes), None);
        }
        // A newer release may add fields.
        let mut newer: serde_json::Value = serde_json::from_slice(&good).unwrap();
        newer["new"] = 1.into();
        assert!(Record::read(newer.to_string().as_bytes()).is_some());
        let mut sum = PolicyTotals { allowed: 1, ..PolicyTotals::default() };
        sum.add(&PolicyTotals { allowed: u64::MAX, ..PolicyTotals::default() });
        assert_eq!(sum.allowed, u64::MAX);
    }
}
