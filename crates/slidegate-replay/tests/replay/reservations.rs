//! Replays of logs with durations under policies that reserve, against brute force: every start and
//! end sorted by time, and lists of what is held and charged, searched every time.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::time::Duration;

use slidegate::{Counts, Policy, PolicySet, Quota};
use slidegate_replay::{
    LogFormat, LogOptions, LogReader, Options, Outcome, Plan, PolicyReservationsOutcome, Replay, Sweep,
    TextStyle,
};

use crate::traffic::{Random, START, diffed, finished, options, wording};

/// A request: when it began, how long it took, and what it cost, in the order of the log.
#[derive(Debug, Clone)]
struct Timed {
    start_ms: u64,
    duration_ms: Option<u64>,
    user: String,
    cost: u64,
}

fn timed(start_ms: u64, duration_ms: u64, user: &str, cost: u64) -> Timed {
    Timed { start_ms, duration_ms: Some(duration_ms), user: user.to_owned(), cost }
}

/// The log, as a server writes it: in the order of the ends.
fn log_of(requests: &[Timed]) -> String {
    let end_ms = |one: &Timed| one.start_ms + one.duration_ms.unwrap_or(0);
    let mut order: Vec<&Timed> = requests.iter().collect();
    order.sort_by_key(|one| end_ms(one));
    let line = |one: &Timed| {
        let mut line = serde_json::json!({"user": one.user, "tokens": one.cost});
        match one.duration_ms {
            Some(duration_ms) => {
                line["end"] = (START * 1000 + end_ms(one)).into();
                line["took"] = duration_ms.into();
            }
            None => line["end"] = (START * 1000 + one.start_ms).into(),
        }
        line.to_string() + "\n"
    };
    order.into_iter().map(line).collect()
}

fn reader(requests: &[Timed]) -> LogReader {
    let fields = [("end_time", "end"), ("duration_ms", "took"), ("cost", "tokens")];
    let options = LogOptions {
        format: Some(LogFormat::parse("json").unwrap()),
        fields: fields.map(|(name, source)| (name.to_owned(), source.to_owned())).into(),
        ..LogOptions::default()
    };
    LogReader::from_reader_with(Cursor::new(log_of(requests).into_bytes()), options).unwrap()
}

fn replayed(plan: Plan, requests: &[Timed]) -> Outcome {
    let outcome = finished(Replay::new(plan, &wording()).unwrap(), reader(requests));
    assert_eq!((outcome.log.malformed, outcome.log.late), (0, 0), "{:?}", outcome.log);
    outcome
}

fn tokens(limit: u64, estimate: u64) -> Policy {
    Policy::new("tokens", Quota::per_minute(limit)).unwrap().with_scope(["user"]).with_estimate(estimate)
}

fn streams(limit: u64) -> Policy {
    let quota = Quota::in_flight(limit, Duration::from_secs(30)).unwrap();
    Policy::new("streams", quota).unwrap().with_scope(["user"]).with_counts(Counts::Requests)
}

fn set(policies: impl IntoIterator<Item = Policy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

fn of<'o>(outcome: &'o Outcome, policy: &str) -> (u64, u64, &'o PolicyReservationsOutcome) {
    let found = outcome.configured.policies.iter().find(|one| one.name == policy).unwrap();
    (found.seen, found.denied, found.reservations.as_ref().unwrap())
}

/// The first acceptance case of reservations, as a log: an estimate of 60 of 100 is held until the
/// end, and from then on the true cost counts for a window.
#[test]
fn an_estimate_is_held_until_the_end_and_then_the_cost_counts() {
    let requests = [
        timed(0, 10_000, "alice", 20),     // held 60 until 10 s, then used 20 until 70 s
        timed(1_000, 1_000, "alice", 1),   // 60 + 60 do not fit
        timed(10_000, 2_000, "alice", 50), // the first one has ended: 20 + 60 fit; used 70 from 12 s
        timed(13_000, 1_000, "alice", 1),  // 70 + 60 do not
        timed(70_000, 1_000, "alice", 90), // 50 + 60 do not
        timed(72_000, 1_000, "alice", 90), // at 12 s + 60 s nothing counts
    ];
    let outcome = replayed(Plan::of(set([tokens(100, 60)]), options()), &requests);
    let (seen, denied, reservations) = of(&outcome, "tokens");
    assert_eq!((seen, denied), (6, 3));
    // Only the second one would have fitted beside what was used.
    assert_eq!((reservations.admitted, reservations.denied_by_held), (3, 1));
    assert_eq!((reservations.most_open, reservations.most_held), (1, 60));
    // The last one ends when the log does, so it is open.
    assert_eq!(
        (reservations.settled, reservations.held_cost, reservations.settled_cost),
        (2, 120.into(), 70.into())
    );
    let text = outcome.text(TextStyle::default()).to_string();
    assert!(
        text.contains(
            "  reservations 3  denied because of what was held 1  most open at once 1  most held by a key 60\n  \
             2 settled: held 120 and cost 70 (58.3%); 0 cost more than they held\n"
        ),
        "{text}"
    );
}

/// A permit is held from the start to the end; one that ends when another starts is free for it.
#[test]
fn a_request_is_in_flight_from_its_start_to_its_end() {
    let requests = [
        timed(0, 5_000, "alice", 1),
        timed(1_000, 4_000, "alice", 1),
        timed(4_999, 1_000, "alice", 1),   // both are in flight
        timed(5_000, 100_000, "alice", 1), // both have ended; it lasts longer than its lease
        timed(5_000, 2_000, "bob", 1),
        timed(6_000, 90_000, "alice", 1),
        timed(90_000, 1_000, "alice", 1),  // both are in flight still
        timed(105_000, 1_000, "alice", 1), // both have ended
    ];
    let outcome = replayed(Plan::of(set([streams(2)]), options()), &requests);
    let (seen, denied, reservations) = of(&outcome, "streams");
    assert_eq!((seen, denied), (8, 2));
    assert_eq!((reservations.admitted, reservations.denied_by_held), (6, 2));
    assert_eq!((reservations.most_open, reservations.most_held), (3, 2));
    assert_eq!(outcome.configured.policies[0].algorithm, "in-flight");
    let denied = &outcome.configured.policies[0].most_denied[0];
    assert_eq!(
        (denied.first.as_str(), denied.last.as_str()),
        ("2026-11-20T10:00:04.999Z", "2026-11-20T10:01:30Z")
    );
}

/// A log without durations must not look as if nothing had been in flight.
#[test]
fn requests_without_a_duration_are_checks_and_the_report_says_so() {
    let without = |start_ms, cost| Timed { duration_ms: None, ..timed(start_ms, 0, "alice", cost) };
    let requests = [without(0, 70), without(1, 40), timed(2, 10_000, "alice", 1), without(3, 1)];
    let outcome = replayed(Plan::of(set([streams(1), tokens(100, 30)]), options()), &requests);
    // 70 is charged as a check; 40 do not fit; 30 are held beside them, so 1 more does not fit.
    let scenario = &outcome.configured;
    let reservations = scenario.reservations.as_ref().unwrap();
    assert_eq!((reservations.requests, reservations.without_duration), (1, 3));
    assert_eq!((of(&outcome, "tokens").1, of(&outcome, "streams").1), (2, 1));
    let note = "3 requests under a policy that reserves have no duration in the log: they are decided as checks and \
                hold nothing, so limits on what is in flight deny none of them";
    assert!(outcome.notes.contains(&format!("{note}.")), "{:?}", outcome.notes);
    assert!(outcome.text(TextStyle::default()).to_string().contains(note));
}

/// Without a cost field, each request costs 1 and every estimate looks far too high.
#[test]
fn a_log_without_costs_is_reported() {
    let requests = [timed(0, 1000, "alice", 1), timed(2000, 1000, "alice", 1)];
    let outcome = replayed(Plan::of(set([tokens(100, 30)]), options()), &requests);
    let notes = &outcome.configured.reservations.as_ref().unwrap().notes;
    assert_eq!(
        *notes,
        ["all reservations are settled to a cost of 1: name the cost in the log with --cost-field"]
    );
    let with_costs = replayed(Plan::of(set([tokens(100, 30)]), options()), &[timed(0, 1000, "alice", 7)]);
    assert!(with_costs.configured.reservations.as_ref().unwrap().notes.is_empty());
}

/// Policies without reservations are decided as ever, whatever durations the log has.
#[test]
fn without_a_policy_that_reserves_nothing_is_held() {
    let plain = Policy::new("tokens", Quota::per_minute(100)).unwrap().with_scope(["user"]);
    let requests = [timed(0, 50_000, "alice", 60), timed(1_000, 1_000, "alice", 60)];
    let outcome = replayed(Plan::of(set([plain]), options()), &requests);
    let scenario = &outcome.configured;
    assert!(scenario.reservations.is_none() && scenario.policies[0].reservations.is_none());
    assert_eq!(scenario.policies[0].denied, 1);
}

/// An estimate that is learned must come from the replay's own settlements, at each value of a sweep.
#[test]
fn each_scenario_learns_its_own_estimates() {
    let learning = |limit| set([tokens(limit, 10).learn_estimate()]);
    // 1,100 requests of cost 40, one after the other, of as many users; then two at once of one.
    let mut requests: Vec<Timed> = (0..1_100).map(|n| timed(n * 10, 5, &format!("user-{n}"), 40)).collect();
    requests.push(timed(20_000, 1_000, "alice", 40));
    requests.push(timed(20_001, 1_000, "alice", 40));
    let alone = |limit| replayed(Plan::of(learning(limit), options()), &requests).configured.denied;
    // Under a limit of 30 each user settles to 40 as well, and the estimate is lowered to the limit.
    assert_eq!((alone(79), alone(80), alone(30)), (1, 0, 1));
    // Each point of a sweep has clones of the policy that learns, on several threads.
    let sweep = Some("tokens.limit=79..80:1".parse().unwrap());
    let threads = slidegate_replay::Options { threads: 2, ..options() };
    let outcome = replayed(Plan { sweep, ..Plan::of(learning(30), threads) }, &requests);
    let points = outcome.sweep.unwrap().points;
    let denied: Vec<u64> = points.iter().map(|point| point.denied).collect();
    assert_eq!((outcome.configured.denied, &denied[..]), (1, &[1, 0][..]));
}

/// What brute force knows of one policy.
#[derive(Debug, Clone)]
struct Rule {
    name: &'static str,
    limit: u64,
    /// `None` for a limit on what is in flight.
    window_ms: Option<u64>,
    /// What is held; `None` for a policy that charges 1 at once.
    held: Option<u64>,
}

impl Rule {
    fn policy(&self) -> Policy {
        let policy = match self.window_ms {
            Some(window_ms) => {
                let quota = Quota::new(self.limit, Duration::from_millis(window_ms)).unwrap();
                Policy::new(self.name, quota).unwrap()
            }
            None => {
                let quota = Quota::in_flight(self.limit, Duration::from_secs(1)).unwrap();
                Policy::new(self.name, quota).unwrap()
            }
        };
        let policy = policy.with_scope(["user"]);
        match self.held {
            Some(estimate) => policy.with_estimate(estimate),
            None => policy.with_counts(Counts::Requests),
        }
    }
}

/// What brute force counts under one policy.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Found {
    seen: u64,
    denied: u64,
    admitted: u64,
    denied_by_held: u64,
    settled: u64,
    settled_cost: u64,
    most_held: u64,
    most_open: u64,
}

/// Plays starts and ends in order of time, ends first, over lists of charges.
fn brute_force(rules: &[Rule], requests: &[Timed]) -> (u64, Vec<Found>) {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Kind {
        End,
        Start,
    }
    let mut events: Vec<(u64, Kind, usize)> = Vec::new();
    for (at, one) in requests.iter().enumerate() {
        events.push((one.start_ms, Kind::Start, at));
        events.push((one.start_ms + one.duration_ms.unwrap(), Kind::End, at));
    }
    // A request that takes no time starts before it ends.
    events.sort_by_key(|(ms, kind, at)| {
        let is_instant = requests[*at].duration_ms == Some(0) && *kind == Kind::End;
        (*ms, if is_instant { 2 } else { u8::from(*kind == Kind::Start) }, *at)
    });
    let last_ms = requests.iter().map(|one| one.start_ms).max().unwrap();
    let mut found = vec![Found::default(); rules.len()];
    // By policy and user: charges as time and cost, and open holds by request.
    let mut charges: BTreeMap<(usize, &str), Vec<(u64, u64)>> = BTreeMap::new();
    let mut open: BTreeMap<(usize, &str), BTreeMap<usize, u64>> = BTreeMap::new();
    let mut is_open = vec![false; requests.len()];
    let mut denied_in_all = 0;
    for (now_ms, kind, at) in events {
        let one = &requests[at];
        let used = |charges: &BTreeMap<(usize, &str), Vec<(u64, u64)>>, rule: usize| {
            let Some(window_ms) = rules[rule].window_ms else { return 0 };
            let of_key = charges.get(&(rule, one.user.as_str())).into_iter().flatten();
            of_key.filter(|(ms, _)| ms + window_ms > now_ms).map(|(_, cost)| cost).sum::<u64>()
        };
        match kind {
            Kind::Start => {
                let mut fits_all = true;
                for (rule, found) in found.iter_mut().enumerate() {
                    let Rule { limit, held, .. } = rules[rule];
                    let cost = held.map_or(1, |estimate| estimate.min(limit));
                    let held: u64 =
                        open.get(&(rule, one.user.as_str())).map_or(0, |of_key| of_key.values().sum());
                    let used = used(&charges, rule);
                    found.seen += 1;
                    if used + held + cost > limit {
                        fits_all = false;
                        found.denied += 1;
                        found.denied_by_held += u64::from(used + cost <= limit);
                    }
                }
                denied_in_all += u64::from(!fits_all);
                if !fits_all {
                    continue;
                }
                is_open[at] = true;
                for (rule, found) in found.iter_mut().enumerate() {
                    let key = (rule, one.user.as_str());
                    let Rule { limit, held, window_ms, .. } = rules[rule];
                    match (held, window_ms) {
                        (None, Some(_)) => charges.entry(key).or_default().push((now_ms, 1)),
                        (held, _) => {
                            let of_key = open.entry(key).or_default();
                            of_key.insert(at, held.map_or(1, |estimate| estimate.min(limit)));
                            found.admitted += 1;
                            found.most_held = found.most_held.max(of_key.values().sum());
                            let in_all: usize = open
                                .iter()
                                .filter(|((of, _), _)| *of == rule)
                                .map(|(_, of_key)| of_key.len())
                                .sum();
                            found.most_open = found.most_open.max(in_all as u64);
                        }
                    }
                }
            }
            // What ends after the last start is not played.
            Kind::End if is_open[at] && now_ms <= last_ms => {
                for (rule, found) in found.iter_mut().enumerate() {
                    let key = (rule, one.user.as_str());
                    if rules[rule].held.is_none() && rules[rule].window_ms.is_some() {
                        continue;
                    }
                    open.get_mut(&key).unwrap().remove(&at).unwrap();
                    found.settled += 1;
                    if rules[rule].window_ms.is_some() {
                        found.settled_cost += one.cost;
                        charges.entry(key).or_default().push((now_ms, one.cost));
                    }
                }
            }
            Kind::End => {}
        }
    }
    (denied_in_all, found)
}

fn random_requests(random: &mut Random, count: usize) -> Vec<Timed> {
    let mut now_ms = 0;
    let mut requests: Vec<Timed> = (0..count)
        .map(|_| {
            now_ms += 1 + random.below(2) * random.below(400);
            let duration_ms = [0, 1, random.below(50), random.below(3_000), random.below(20_000)]
                [usize::try_from(random.below(5)).unwrap()];
            timed(now_ms, duration_ms, &format!("user-{}", random.below(4)), random.below(60))
        })
        .collect();
    // The last one is at a time of its own, so that all that ends with it has ended.
    requests.push(timed(now_ms + 500, 100_000, "last", 1));
    requests
}

/// In the order of the policies of `three_rules`.
fn three_rules(random: &mut Random) -> Vec<Rule> {
    let limit = 40 + random.below(200);
    vec![
        Rule { name: "requests", limit: 4 + random.below(12), window_ms: Some(2_000), held: None },
        Rule { name: "tokens", limit, window_ms: Some(5_000), held: Some(1 + random.below(limit + 10)) },
        Rule { name: "streams", limit: 1 + random.below(5), window_ms: None, held: Some(1) },
    ]
}

fn found_in(scenario: &slidegate_replay::ScenarioOutcome) -> Vec<Found> {
    let of = |policy: &slidegate_replay::PolicyOutcome| {
        let reservations = policy.reservations.as_ref();
        let number = |of: fn(&PolicyReservationsOutcome) -> u64| reservations.map_or(0, of);
        Found {
            seen: policy.seen,
            denied: policy.denied,
            admitted: number(|one| one.admitted),
            denied_by_held: number(|one| one.denied_by_held),
            settled: number(|one| one.settled),
            settled_cost: number(|one| one.settled_cost.ceil()),
            most_held: number(|one| one.most_held),
            most_open: number(|one| one.most_open),
        }
    };
    scenario.policies.iter().map(of).collect()
}

/// A replay says what the service would have done with the same requests.
#[test]
fn random_logs_are_decided_as_brute_force_decides_them() {
    let mut by_held = 0;
    for seed in 1..=24 {
        let mut random = Random(seed * 7919);
        let rules = three_rules(&mut random);
        let requests = random_requests(&mut random, 700);
        let policies = set(rules.iter().map(Rule::policy));
        let outcome = replayed(Plan::of(policies, options()), &requests);
        let (denied, expected) = brute_force(&rules, &requests);
        by_held += expected.iter().map(|one| one.denied_by_held).sum::<u64>();
        assert_eq!(found_in(&outcome.configured), expected, "seed {seed}: {rules:?}");
        assert_eq!(outcome.configured.denied, denied, "seed {seed}");
    }
    assert!(by_held > 500, "{by_held}");
}

/// Each value of a sweep is a replay with that limit, of a limit on what is in flight too.
#[test]
fn each_point_of_a_sweep_is_a_replay_with_reservations() {
    let mut random = Random(31_337);
    let rules = three_rules(&mut random);
    let requests = random_requests(&mut random, 600);
    for (name, range, limits) in [("streams", "1..5:2", [1, 3, 5]), ("tokens", "30..90:30", [30, 60, 90])] {
        let sweep: Sweep = format!("{name}.limit={range}").parse().unwrap();
        let policies = set(rules.iter().map(Rule::policy));
        let outcome = replayed(Plan { sweep: Some(sweep), ..Plan::of(policies, options()) }, &requests);
        let points = outcome.sweep.unwrap().points;
        assert_eq!(points.len(), 3);
        for (point, limit) in points.iter().zip(limits) {
            let mut rules = rules.clone();
            let at = rules.iter().position(|rule| rule.name == name).unwrap();
            rules[at].limit = limit;
            let (denied, found) = brute_force(&rules, &requests);
            assert_eq!((point.denied, point.requests_denied), (found[at].denied, denied), "{name} {limit}");
        }
    }
}

/// A review must see what a lower limit on what is in flight would deny.
#[test]
fn a_difference_knows_what_is_in_flight() {
    let mut random = Random(4_242);
    let requests = random_requests(&mut random, 600);
    let rules = |limit| vec![Rule { name: "streams", limit, window_ms: None, held: Some(1) }];
    let side = |limit| set(rules(limit).iter().map(Rule::policy));
    let outcome = diffed(side(4), side(2), Options::default(), reader(&requests));
    let denied = |limit| brute_force(&rules(limit), &requests).0;
    assert_eq!((outcome.denied_old, outcome.denied_new), (denied(4), denied(2)));
    assert!(outcome.denied_new > outcome.denied_old && outcome.denied_old > 0, "{outcome:?}");
}
