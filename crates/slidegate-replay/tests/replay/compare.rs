//! What a comparison counts, against lists of what each scenario admitted.

use std::collections::BTreeMap;

use slidegate::{
    Algorithm, Calendar, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Timestamp,
};
use slidegate_replay::{NamedPolicies, Outcome, Plan, with_algorithm};

use crate::traffic::{START, TestRequest, options, random_traffic, replayed, two_policies};

/// What brute force finds about one key of one policy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Found {
    denied: u64,
    wrongly_allowed: u64,
    wrongly_denied: u64,
    worst: u64,
}

/// By policy and key. The decisions are those of a gate; what is right is counted in lists of the
/// seconds at which the gate admitted a request.
fn brute_force(policies: &PolicySet, traffic: &[TestRequest]) -> BTreeMap<(String, String), Found> {
    let clock = ManualClock::at(Timestamp::from_secs(START));
    let gate = Gate::with_memory(policies.clone(), MemoryStore::builder().clock(clock.clone()).build());
    let mut admitted: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    let mut found: BTreeMap<(String, String), Found> = BTreeMap::new();
    for one in traffic {
        clock.set(Timestamp::from_secs(START + one.second));
        let ip: std::net::IpAddr = one.ip.parse().unwrap();
        let request = Request::new().with("ip", ip).with("path", one.path);
        let decisions = gate.check(&request);
        for decision in decisions.iter() {
            let id = (decision.policy().name().to_owned(), decision.key().to_string());
            let charges = admitted.entry(id.clone()).or_default();
            let window = decision.quota().window().as_secs();
            let in_window =
                |charges: &[u64]| charges.iter().filter(|at| **at + window > one.second).count() as u64;
            let fits = in_window(charges) < decision.limit();
            let key = found.entry(id).or_default();
            key.denied += u64::from(decision.is_denied());
            key.wrongly_denied += u64::from(decision.is_denied() && fits);
            if decisions.is_allowed() {
                key.wrongly_allowed += u64::from(!fits);
                charges.push(one.second);
                key.worst = key.worst.max(in_window(charges));
            }
        }
    }
    found
}

fn compared(base: &PolicySet, algorithms: &[Algorithm], traffic: &[TestRequest]) -> Outcome {
    let compare = algorithms
        .iter()
        .map(|one| NamedPolicies { name: one.to_string(), policies: with_algorithm(base, *one), family: 0 })
        .collect();
    replayed(Plan { compare, ..Plan::of(base.clone(), options()) }, traffic)
}

/// The comparison decides which algorithm people trust: it must be right about each of them.
#[test]
fn every_count_is_that_of_brute_force() {
    let base = two_policies(Algorithm::SlidingLog);
    for seed in [61, 62, 63] {
        let traffic = random_traffic(seed, 4000);
        let outcome = compared(&base, &Algorithm::ALL, &traffic);
        let names: Vec<_> = outcome.scenarios.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["sliding-log", "sliding-window", "fixed-window", "token-bucket", "exact"]);
        for (scenario, algorithm) in outcome.scenarios.iter().zip(Algorithm::ALL) {
            let expected = brute_force(&with_algorithm(&base, algorithm), &traffic);
            for policy in &scenario.policies {
                let truth = policy.truth.as_ref().unwrap();
                let of_policy = || expected.iter().filter(|((name, _), _)| *name == policy.name);
                let sum = |of: fn(&Found) -> u64| of_policy().map(|(_, found)| of(found)).sum::<u64>();
                assert_eq!(policy.denied, sum(|found| found.denied), "{algorithm} {}", policy.name);
                assert_eq!(truth.wrongly_allowed, sum(|found| found.wrongly_allowed), "{algorithm}");
                assert_eq!(truth.wrongly_denied, sum(|found| found.wrongly_denied), "{algorithm}");
                let worst = of_policy().map(|(_, found)| found.worst).max().unwrap();
                assert_eq!(truth.worst_window.cost, worst, "{algorithm}");
                let interesting = of_policy().filter(|(_, found)| found.denied + found.wrongly_allowed > 0);
                let interesting: BTreeMap<_, _> =
                    interesting.map(|((_, key), found)| (key.clone(), *found)).collect();
                let listed: BTreeMap<_, _> = truth
                    .keys
                    .iter()
                    .map(|key| {
                        let found = Found {
                            denied: key.denied,
                            wrongly_allowed: key.wrongly_allowed,
                            wrongly_denied: key.wrongly_denied,
                            worst: key.worst_window.cost,
                        };
                        (key.key.clone(), found)
                    })
                    .collect();
                assert_eq!(listed, interesting, "{algorithm} {}", policy.name);
            }
        }
        let wrong = |at: usize| {
            let truth = outcome.scenarios[at].policies[0].truth.as_ref().unwrap();
            (truth.wrongly_allowed, truth.wrongly_denied)
        };
        assert_eq!(wrong(0), (0, 0), "the sliding log is exact");
        assert!(wrong(2).0 > 0 && wrong(1).1 > 0, "the others are not, on this log");
    }
}

/// The reason to compare: what a fixed window lets through at its boundary.
#[test]
fn a_burst_at_the_boundary_is_seen_as_twice_the_limit() {
    let base = two_policies(Algorithm::SlidingLog);
    // 12 at the end of one minute and 12 at the start of the next; the log starts at a full hour.
    let burst =
        |second: u64| (0..12).map(move |_| TestRequest { second, ip: "192.0.2.1".to_owned(), path: "/" });
    let traffic: Vec<_> = burst(59).chain(burst(60)).collect();
    let outcome = compared(&base, &[Algorithm::FixedWindow, Algorithm::SlidingWindow], &traffic);
    let truth = |at: usize| outcome.scenarios[at].policies[0].truth.clone().unwrap();
    let fixed = truth(0);
    assert_eq!((fixed.worst_window.cost, fixed.worst_window.limit), (24, 12));
    assert!((fixed.worst_window.multiple - 2.0).abs() < f64::EPSILON);
    assert_eq!(
        (fixed.worst_key.as_str(), fixed.worst_at.as_deref()),
        ("192.0.2.1", Some("2026-11-20T10:01:00Z"))
    );
    assert_eq!((fixed.wrongly_allowed, fixed.wrongly_denied), (12, 0));
    assert!(fixed.worst_multiple_over_time.iter().any(|multiple| (multiple - 2.0).abs() < 1e-9));
    assert!(truth(1).worst_window.cost < 24);
    let exact = outcome.scenarios.iter().find(|one| one.role == "exact").unwrap();
    assert_eq!((exact.denied, outcome.scenarios[0].denied), (12, 0));
}

/// A shadow policy charges itself what it would have admitted, and denies nobody.
#[test]
fn shadow_policies_are_judged_by_what_they_would_have_admitted() {
    let shadow = |algorithm| {
        let set = two_policies(algorithm);
        PolicySet::new(set.iter().map(|one| one.clone().shadow())).unwrap()
    };
    let traffic = random_traffic(71, 3000);
    let outcome =
        compared(&shadow(Algorithm::SlidingLog), &[Algorithm::SlidingLog, Algorithm::FixedWindow], &traffic);
    assert_eq!(outcome.scenarios[0].denied, 0);
    let exact = &outcome.scenarios[0].policies[0];
    let truth = exact.truth.as_ref().unwrap();
    assert!(exact.denied > 0);
    assert_eq!((truth.wrongly_allowed, truth.wrongly_denied), (0, 0));
    assert_eq!(truth.worst_window.cost, truth.worst_window.limit);
    assert!(outcome.scenarios[1].policies[0].truth.as_ref().unwrap().worst_window.multiple > 1.0);
}

/// A customer may use the limit at the end of an hour and again in the next: that is the promise.
#[test]
fn a_calendar_window_is_judged_by_its_own_borders_under_each_algorithm() {
    let hourly = Policy::new("hourly", Quota::calendar(4, Calendar::hour())).unwrap().with_scope(["ip"]);
    let base = PolicySet::new([hourly]).unwrap();
    let burst =
        |second: u64| (0..5).map(move |_| TestRequest { second, ip: "192.0.2.1".to_owned(), path: "/" });
    let traffic: Vec<_> = burst(3599).chain(burst(3600)).collect();
    let outcome = compared(&base, &[Algorithm::SlidingLog, Algorithm::TokenBucket], &traffic);
    for scenario in &outcome.scenarios {
        let policy = &scenario.policies[0];
        assert_eq!((policy.window.as_str(), policy.denied), ("hour", 2), "{}", scenario.name);
        if let Some(truth) = &policy.truth {
            let wrong = (truth.wrongly_allowed, truth.wrongly_denied, truth.worst_window.cost);
            assert_eq!(wrong, (0, 0, 4), "{}", scenario.name);
        }
    }
}
