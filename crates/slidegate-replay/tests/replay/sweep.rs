//! A sweep is as many replays.

use slidegate::{Algorithm, Calendar, Policy, PolicySet, Quota};
use slidegate_replay::{Plan, Replay, Share, Sweep};

use crate::traffic::{options, random_traffic, replayed, two_policies, wording};

fn policies_with(limit: u64, algorithm: Algorithm) -> PolicySet {
    let set = two_policies(algorithm);
    let policies = set.iter().map(|policy| {
        if policy.name() == "per-ip" {
            let quota = Quota::new(limit, policy.quota().window()).unwrap().with_algorithm(algorithm);
            policy.clone().with_quota(quota)
        } else {
            policy.clone()
        }
    });
    PolicySet::new(policies).unwrap()
}

/// A limit that is chosen by a sweep must deny in production what the sweep said.
#[test]
fn every_value_denies_what_a_replay_with_it_denies() {
    for (seed, algorithm) in
        [(11, Algorithm::SlidingLog), (12, Algorithm::TokenBucket), (13, Algorithm::FixedWindow)]
    {
        let traffic = random_traffic(seed, 2500);
        let sweep: Sweep = "per-ip.limit=2..40:3".parse().unwrap();
        let plan = Plan { sweep: Some(sweep), ..Plan::of(two_policies(algorithm), options()) };
        let swept = replayed(plan, &traffic).sweep.unwrap();
        let values: Vec<u64> = swept.points.iter().map(|point| point.value.parse().unwrap()).collect();
        assert_eq!(values, [2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 40]);
        for (point, limit) in swept.points.iter().zip(values) {
            let one = replayed(Plan::of(policies_with(limit, algorithm), options()), &traffic);
            let (scenario, policy) = (&one.configured, &one.configured.policies[0]);
            assert_eq!(
                (point.denied, point.denied_keys, point.requests_denied),
                (policy.denied, policy.denied_keys, scenario.denied),
                "{algorithm} {limit}"
            );
            assert_eq!((swept.seen, swept.keys), (policy.seen, policy.keys));
        }
        assert!(swept.points[0].denied > swept.points[13].denied, "the log is busy enough to mean something");
    }
}

/// The recommendation is what people deploy.
#[test]
fn the_smallest_limit_that_denies_little_enough_is_recommended() {
    let traffic = random_traffic(21, 5000);
    let plan = |sweep: &str, share: &str| {
        let sweep: Sweep = sweep.parse().unwrap();
        let sweep = sweep.with_deny_at_most(share.parse::<Share>().unwrap());
        let policy = Policy::new("per-ip", Quota::per_minute(12)).unwrap().with_scope(["ip"]);
        Plan { sweep: Some(sweep), ..Plan::of(PolicySet::new([policy]).unwrap(), options()) }
    };
    let swept = replayed(plan("limit=1..120:1", "1%"), &traffic).sweep.unwrap();
    let fits = |denied: u64| denied * 100 <= swept.seen;
    let expected = swept.points.iter().find(|point| fits(point.denied)).unwrap();
    assert_eq!(swept.recommended.as_deref(), Some(expected.value.as_str()));
    let limit: u64 = expected.value.parse().unwrap();
    assert!((2..119).contains(&limit), "{limit}");
    assert!(
        swept.reason.starts_with(&format!(
            "{limit} is the smallest limit tried with which `per-ip` denies at most 1%: it denies {} of {} requests (",
            expected.denied, swept.seen
        )),
        "{}",
        swept.reason
    );
    assert!(swept.reason.contains(&format!("; {} would deny ", limit - 1)), "{}", swept.reason);

    // Who deploys the end of a range must know that the range ended there.
    for (sweep, edge) in [
        ("limit=1..120:1".to_owned(), None),
        (format!("limit={limit}..120:1"), Some("lowest")),
        (format!("limit=1..{limit}:1"), Some("highest")),
    ] {
        let swept = replayed(plan(&sweep, "1%"), &traffic).sweep.unwrap();
        assert_eq!((swept.recommended, swept.edge), (Some(limit.to_string()), edge), "{sweep}");
        let is_told = swept.reason.contains("; lower limits were not tried, and one may be enough");
        assert_eq!(is_told, edge == Some("lowest"), "{}", swept.reason);
    }

    let coarse = replayed(plan("limit=1..120:40", "1%"), &traffic).sweep.unwrap();
    assert!(coarse.reason.contains("tries those between"), "{}", coarse.reason);
    let none = replayed(plan("limit=1..3", "0%"), &traffic).sweep.unwrap();
    assert_eq!(none.recommended, None);
    assert!(
        none.reason
            .starts_with("no limit that was tried denies at most 0%: `per-ip` with limit 3 still denies "),
        "{}",
        none.reason
    );
}

/// As above: a longer window is the stricter one.
#[test]
fn of_windows_the_longest_is_recommended() {
    let traffic = random_traffic(31, 5000);
    let sweep: Sweep = "window=1s..2m:1s".parse().unwrap();
    let sweep = sweep.with_deny_at_most("2%".parse().unwrap());
    let policy = Policy::new("per-ip", Quota::per_minute(20)).unwrap().with_scope(["ip"]);
    let plan = Plan { sweep: Some(sweep), ..Plan::of(PolicySet::new([policy]).unwrap(), options()) };
    let swept = replayed(plan, &traffic).sweep.unwrap();
    assert_eq!(swept.points.len(), 120);
    let expected = swept.points.iter().rev().find(|point| point.denied * 50 <= swept.seen).unwrap();
    assert_eq!(swept.recommended.as_deref(), Some(expected.value.as_str()), "{}", swept.reason);
    assert!(swept.configured == "1m" && swept.setting == "window");
}

/// Each value takes time and memory for every request.
#[test]
fn what_cannot_be_swept_is_one_line() {
    let expected = "must be `limit=FROM..TO`, `window=FROM..TO` or `POLICY.limit=FROM..TO`, with `:STEP` if wanted, for \
                    example `limit=50..500:25`";
    for (text, error) in [
        ("limit", expected),
        ("limit=5", expected),
        ("burst=1..5", expected),
        ("limit=a..5", "`a` is not a whole number"),
        ("limit=9..5", "the range ends before it begins: write `5..9`"),
        ("limit=1..9:0", "the step must be at least 1"),
        (
            "limit=1..1000:1",
            "the range has 1000 values: must be at most 500; take a larger step, for example `:20`",
        ),
    ] {
        assert_eq!(text.parse::<Sweep>().unwrap_err(), error, "{text}");
    }
    let sweep = |text: &str| text.parse::<Sweep>().unwrap().position(&two_policies(Algorithm::SlidingLog));
    assert_eq!(
        sweep("limit=1..5").unwrap_err(),
        "invalid --sweep: there are 2 policies: name one, for example `per-ip.limit=1..5`"
    );
    assert_eq!(
        sweep("per-user.limit=1..5").unwrap_err(),
        "invalid --sweep: unknown policy `per-user`: must be one of `per-ip`, `login`"
    );
    assert_eq!(sweep("login.limit=1..5"), Ok(1));
}

/// A curve of zeros would recommend the smallest limit.
#[test]
fn what_counts_reservations_cannot_be_swept() {
    let quota = Quota::in_flight(4, std::time::Duration::from_secs(30)).unwrap();
    let streams = Policy::new("streams", quota).unwrap().with_scope(["ip"]);
    let plan = Plan {
        sweep: Some("limit=1..9".parse().unwrap()),
        ..Plan::of(PolicySet::new([streams]).unwrap(), options())
    };
    assert_eq!(
        Replay::new(plan, &wording()).unwrap_err(),
        "invalid --sweep: policy `streams` counts reservations, which a replay leaves out: sweep another policy"
    );
}

/// Its values would be windows of so many days since 1970, which nobody was promised.
#[test]
fn a_calendar_window_cannot_be_swept() {
    let monthly = Policy::new("monthly", Quota::calendar(4, Calendar::month())).unwrap().with_scope(["ip"]);
    let plan = Plan {
        sweep: Some("window=1d..31d".parse().unwrap()),
        ..Plan::of(PolicySet::new([monthly]).unwrap(), options())
    };
    assert_eq!(
        Replay::new(plan, &wording()).unwrap_err(),
        "invalid --sweep: policy `monthly` has the calendar window `month`, which has no length: sweep its `limit`"
    );
}
