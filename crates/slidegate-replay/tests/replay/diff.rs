//! A diff is two replays, request by request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use slidegate::{Algorithm, Policy, PolicySet, Quota};
use slidegate_replay::{DiffReport, Options, Plan, Replay, TextStyle, Thresholds};

use crate::traffic::{
    TestRequest, diffed, finished, log_of, options, random_traffic, reader, replayed, two_policies, wording,
};

/// A buffer that outlives its writer.
#[derive(Clone, Default)]
pub(crate) struct Shared(pub(crate) Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether each request is allowed, with the policy and key that bind it.
fn each(policies: PolicySet, traffic: &[TestRequest]) -> Vec<(bool, String, String)> {
    let lines = Shared::default();
    let replay =
        Replay::with_each(Plan::of(policies, options()), &wording(), Some(Box::new(lines.clone()))).unwrap();
    finished(replay, reader(log_of(traffic)));
    let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        (line["allowed"] == true, text("policy"), text("key"))
    };
    lines.lines().map(line).collect()
}

fn with_limit(policy: &str, quota: &str) -> PolicySet {
    let quota: Quota = quota.parse().unwrap();
    let set = two_policies(Algorithm::SlidingLog);
    let policies =
        set.iter().map(|one| if one.name() == policy { one.clone().with_quota(quota) } else { one.clone() });
    PolicySet::new(policies).unwrap()
}

/// Who reviews a change reads only this.
#[test]
fn newly_denied_and_newly_allowed_are_those_of_two_replays() {
    let traffic = random_traffic(41, 6000);
    // One policy becomes stricter and another laxer.
    let old = with_limit("login", "3/30s");
    let new = with_limit("per-ip", "9/1m");
    let bounds = Options { max_keys: 100_000, top: 10_000, ..Options::default() };
    let outcome = diffed(&old, &new, bounds, reader(log_of(&traffic)));

    let mut denied: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut allowed = denied.clone();
    for (was, is) in each(old, &traffic).into_iter().zip(each(new, &traffic)) {
        match (was.0, is.0) {
            (true, false) => *denied.entry((is.1, is.2)).or_default() += 1,
            (false, true) => *allowed.entry((was.1, was.2)).or_default() += 1,
            _ => {}
        }
    }
    assert!(denied.len() > 3 && allowed.len() > 3, "the change changes something");
    let found = |keys: &[slidegate_replay::ChangedKey]| -> BTreeMap<(String, String), u64> {
        keys.iter().map(|key| ((key.policy.clone(), key.key.clone()), key.requests)).collect()
    };
    assert_eq!(found(&outcome.newly_denied_keys), denied);
    assert_eq!(found(&outcome.newly_allowed_keys), allowed);
    assert_eq!(outcome.newly_denied, denied.values().sum::<u64>());
    assert_eq!(outcome.newly_allowed, allowed.values().sum::<u64>());
    for policy in &outcome.policies {
        let of = |changes: &BTreeMap<(String, String), u64>| -> u64 {
            changes.iter().filter(|((name, _), _)| *name == policy.name).map(|(_, count)| count).sum()
        };
        assert_eq!((policy.newly_denied, policy.newly_allowed), (of(&denied), of(&allowed)));
    }
    assert_eq!(outcome.requests, traffic.len() as u64);
    let change = |one: u64, other: u64| i64::try_from(one).unwrap() - i64::try_from(other).unwrap();
    assert_eq!(
        change(outcome.denied_new, outcome.denied_old),
        change(outcome.newly_denied, outcome.newly_allowed)
    );

    let at_most =
        |share: &str| Thresholds { newly_denied: vec![share.parse().unwrap()], ..Thresholds::default() };
    let (none, all) = (at_most("0%"), at_most("100%"));
    let report = |thresholds| DiffReport { outcome: &outcome, old: "old.yaml", new: "new.yaml", thresholds };
    assert!(report(&none).has_failed() && !report(&all).has_failed());
    let markdown = report(&none).markdown();
    assert!(markdown.starts_with("### Rate limits: `old.yaml` to `new.yaml`\n"), "{markdown}");
    assert!(markdown.contains(&format!("| **newly denied** | {} |", outcome.newly_denied)), "{markdown}");
    assert!(report(&none).text(TextStyle::default()).contains("\nFailed: "));
}

/// A policy that is renamed is one that goes and one that comes, and must not look like no change.
#[test]
fn added_and_removed_policies_are_shown_as_such() {
    let traffic = random_traffic(51, 500);
    let old = two_policies(Algorithm::SlidingLog);
    let renamed = old.iter().map(|one| {
        if one.name() == "login" { one.clone().with_name("login-per-ip").unwrap() } else { one.clone() }
    });
    let new = PolicySet::new(renamed).unwrap();
    let outcome = diffed(&old, &new, Options::default(), reader(log_of(&traffic)));
    assert_eq!((outcome.newly_denied, outcome.newly_allowed), (0, 0));
    let sides: Vec<_> = outcome
        .policies
        .iter()
        .map(|one| (one.name.as_str(), one.old.is_some(), one.new.is_some()))
        .collect();
    assert_eq!(sides, [("per-ip", true, true), ("login", true, false), ("login-per-ip", false, true)]);
}

/// A limit on streams that seems to deny nobody would pass any review.
#[test]
fn policies_that_count_reservations_are_left_out_and_named() {
    let plain = two_policies(Algorithm::SlidingLog);
    let streams = Quota::in_flight(1, std::time::Duration::from_secs(30)).unwrap();
    let reserving = [
        Policy::new("streams", streams).unwrap().with_scope(["ip"]),
        Policy::new("tokens", Quota::per_minute(1)).unwrap().with_scope(["ip"]).with_estimate(1),
    ];
    let all = PolicySet::new(plain.iter().cloned().chain(reserving)).unwrap();
    let traffic = random_traffic(3, 500);
    let errors = ["streams", "tokens"].map(|name| {
        format!(
            "policy `{name}` is left out: it counts reservations, which are not in a log; accept this with --allow-empty"
        )
    });

    let outcome = replayed(Plan::of(all.clone(), options()), &traffic);
    assert_eq!(outcome.errors, errors);
    let alone = replayed(Plan::of(plain.clone(), options()), &traffic);
    assert_eq!(format!("{:?}", outcome.configured), format!("{:?}", alone.configured));

    let diff = diffed(&all, &all, options(), reader(log_of(&traffic)));
    assert_eq!((diff.missing.errors, diff.policies.len()), (errors.into(), 2));
}
