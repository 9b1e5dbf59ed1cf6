//! Replays decide as a gate over a memory store does, however their entries come.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use slidegate::network::Ipv6Prefix;
use slidegate::{
    Algorithm, Block, Excess, Gate, Match, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};
use slidegate_replay::{
    Entry, Extras, LogOptions, LogReader, Options, Outcome, Plan, Replay, RequestLine, Sweep,
};
use slidegate_testkit::TempDir;

use crate::traffic::{Random, START, finished, reader, wording};

/// A request of a random log.
struct Traffic {
    time_us: u64,
    client: String,
    method: &'static str,
    path: String,
    user: Option<String>,
    cost: u64,
}

/// One of several.
fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[usize::try_from(random.below(of.len() as u64)).unwrap()]
}

fn random_log(random: &mut Random) -> Vec<Traffic> {
    let clients =
        ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2:8080", "2001:db8:1:2::3", "2001:db8:1:3::3", "host-7"];
    let mut time_us = START * 1_000_000;
    let costs = [1, 1, 1, 1, 1, 0, 2, 5, 40];
    let entry = |_| {
        time_us += random.below(3) * random.below(400_000);
        let client = match random.below(3) {
            0 => format!("198.51.100.{}", random.below(40)),
            _ => pick(random, &clients).to_owned(),
        };
        Traffic {
            // One that is late is decided at the time reached.
            time_us: if random.below(50) == 0 { time_us - 1_000_000 } else { time_us },
            client,
            method: pick(random, &["GET", "POST"]),
            path: format!("/items/{}", random.below(8)),
            user: (random.below(3) > 0).then(|| format!("user-{}", random.below(5))),
            cost: pick(random, &costs),
        }
    };
    (0..900).map(entry).collect()
}

/// One to six policies of any kind.
fn random_policies(random: &mut Random, is_simple: bool) -> PolicySet {
    let algorithms = Algorithm::ALL;
    let policies = (0..=random.below(6)).map(|n| {
        let algorithm = pick(random, &algorithms);
        let limit = pick(random, &[0, 1, 3, 8, 30]);
        let window = Duration::from_millis(pick(random, &[900, 10_000, 60_000]));
        let quota = Quota::new(limit, window).unwrap().with_algorithm(algorithm).with_slots(4);
        let scopes: [&[&str]; 6] =
            [&["ip"], &["ip", "path"], &["user"], &[], &["user", "method", "ip"], &["path"]];
        let scope = pick(random, &scopes);
        let mut policy = Policy::new(format!("policy-{n}"), quota).unwrap().with_scope(scope.iter().copied());
        if random.below(3) == 0 {
            policy = policy.with_enforced(false);
        }
        if random.below(3) == 0 {
            policy = policy.with_ipv6_prefix(Ipv6Prefix::OFF);
        }
        policy = match random.below(6) {
            0 => policy.with_condition("path", Match::prefix("/items/1")),
            1 => policy.with_condition("user", Match::absent()),
            2 => policy.with_condition("ip", Match::networks(["198.51.100.0/24"]).unwrap()),
            3 => policy.with_condition("method", Match::equals("POST")),
            _ => policy,
        };
        let other = Quota::new(limit + 2, window * 2).unwrap().with_algorithm(algorithm);
        let address: IpAddr = "198.51.100.7".parse().unwrap();
        policy = match scope {
            ["ip"] if random.below(2) == 0 => policy.with_override([address], other),
            ["user"] if random.below(2) == 0 => policy.with_override(["user-1"], other),
            _ => policy,
        };
        if is_simple {
            return policy;
        }
        match random.below(4) {
            0 => policy.with_excess(pick(random, &[Excess::Charge, Excess::Count])),
            1 if scope == ["user"] => policy.with_block(["user-2"], Block::forever()),
            2 => policy.with_only_when_named(),
            _ => policy,
        }
    });
    PolicySet::new(policies.collect::<Vec<_>>()).unwrap()
}

fn push_all(replay: &mut Replay, log: &[Traffic]) {
    for one in log {
        let request = RequestLine { method: one.method.as_bytes(), target: one.path.as_bytes().into() };
        let entry = Entry {
            client: one.client.as_bytes(),
            user: one.user.as_ref().map(|user| user.as_bytes().into()),
            time_us: one.time_us,
            request: Some(request),
            host: None,
            status: 200,
            bytes: 0,
            cost: one.cost,
            referer: None,
            user_agent: None,
            extra: Extras::default(),
        };
        replay.push(&entry).unwrap();
    }
}

fn json(outcome: &Outcome) -> serde_json::Value {
    let mut json = Vec::new();
    outcome.write_json(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn stats() -> slidegate_replay::LogStats {
    LogReader::from_reader(&b""[..]).unwrap().stats().clone()
}

fn options() -> Options {
    Options { max_keys: 100_000, top: 1000, ..Options::default() }
}

/// What a gate over the memory store says, of each policy: seen, denied, and denials by key; and
/// how many requests it denies.
type Counts = (Vec<(u64, u64, HashMap<String, u64>)>, u64);

fn by_memory_store(policies: &PolicySet, log: &[Traffic]) -> Counts {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let gate = Gate::with_memory(policies.clone(), store);
    let mut counts = vec![(0, 0, HashMap::new()); policies.iter().len()];
    let (mut now_us, mut denied) = (0, 0);
    for one in log {
        now_us = one.time_us.max(now_us);
        clock.set(Timestamp::from_micros(now_us));
        let mut request =
            Request::new().with("method", one.method).with("path", &one.path).with_cost(one.cost);
        let address = one.client.strip_suffix(":8080").unwrap_or(&one.client).parse::<IpAddr>();
        request = match address {
            Ok(ip) => request.with("ip", ip),
            Err(_) => request.with("ip", &one.client),
        };
        if let Some(user) = &one.user {
            request = request.with("user", user);
        }
        let decisions = gate.check(&request);
        denied += u64::from(decisions.is_denied());
        for decision in decisions.iter() {
            let (seen, denied, keys) = &mut counts[decision.position()];
            *seen += 1;
            *denied += u64::from(decision.decision().is_denied());
            if decision.decision().is_denied() {
                *keys.entry(decision.key().to_string()).or_default() += 1;
            }
        }
    }
    (counts, denied)
}

/// A replay must say what the service would have done.
#[test]
fn a_replay_decides_as_a_gate_over_a_memory_store() {
    for seed in 1..=36 {
        let mut random = Random(seed * 7919);
        let policies = random_policies(&mut random, seed % 3 > 0);
        let log = random_log(&mut random);
        let mut replay = Replay::new(Plan::of(policies.clone(), options()), &wording()).unwrap();
        push_all(&mut replay, &log);
        let outcome = replay.finish(&stats()).unwrap();
        let (expected, denied) = by_memory_store(&policies, &log);
        let scenario = &outcome.configured;
        assert_eq!(scenario.denied, denied, "seed {seed}");
        for (policy, (seen, denied, keys)) in scenario.policies.iter().zip(expected) {
            let found: HashMap<String, u64> =
                policy.most_denied.iter().map(|key| (key.key.clone(), key.denied)).collect();
            assert_eq!((policy.seen, policy.denied), (seen, denied), "seed {seed}, {}", policy.name);
            assert_eq!(found, keys, "seed {seed}, {}", policy.name);
        }
    }
}

/// Each point of a sweep must be a replay with that limit.
#[test]
fn each_point_of_a_sweep_is_a_replay_with_its_limit() {
    for seed in 1..=8 {
        let mut random = Random(seed * 104_729);
        let quota = Quota::per_minute(5).with_algorithm(Algorithm::ALL[(seed % 4) as usize]);
        let other = Policy::new("other", Quota::per_minute(4)).unwrap().with_scope(["user"]);
        let set = |limit| {
            let quota = Quota::per_minute(limit).with_algorithm(quota.algorithm());
            let swept = Policy::new("swept", quota).unwrap().with_scope(["ip", "path"]);
            PolicySet::new([swept, other.clone()]).unwrap()
        };
        let log = random_log(&mut random);
        let sweep = "swept.limit=1..9:4".parse::<Sweep>().unwrap();
        let plan = Plan { sweep: Some(sweep), ..Plan::of(set(5), options()) };
        let mut replay = Replay::new(plan, &wording()).unwrap();
        push_all(&mut replay, &log);
        let points = replay.finish(&stats()).unwrap().sweep.unwrap().points;
        assert_eq!(points.len(), 3);
        for (point, limit) in points.iter().zip([1, 5, 9]) {
            let (counts, denied) = by_memory_store(&set(limit), &log);
            let expected = (counts[0].1, counts[0].2.len() as u64, denied);
            assert_eq!((point.denied, point.denied_keys, point.requests_denied), expected, "limit {limit}");
        }
    }
}

/// A log with more keys at once than memory is distinguished from one that was decided in full. What the
/// dropped ones owe is kept, so none of them is admitted again.
#[test]
fn keys_dropped_for_want_of_memory_are_counted() {
    let mut log = String::new();
    for n in 0..500 {
        writeln!(
            log,
            "198.51.100.{} - - [20/Nov/2026:10:00:{:02} +0000] \"GET / HTTP/1.1\" 200 5",
            n % 100,
            n / 10
        )
        .unwrap();
    }
    let dropped = |max_keys, algorithm| {
        let quota = Quota::per_minute(1).with_algorithm(algorithm);
        let policies = PolicySet::new([Policy::new("per-ip", quota).unwrap().with_scope(["ip"])]).unwrap();
        let plan = Plan::of(policies, Options { max_keys, ..options() });
        let outcome = finished(Replay::new(plan, &wording()).unwrap(), reader(log.as_str()));
        let scenario = &outcome.configured;
        assert_eq!(scenario.policies[0].keys, 100);
        (scenario.dropped_keys > 0, scenario.denied >= 400)
    };
    for algorithm in Algorithm::ALL {
        assert_eq!(dropped(100, algorithm), (false, true), "{algorithm}");
        assert_eq!(dropped(60, algorithm), (true, true), "{algorithm}");
    }
}

/// The command takes a log in runs of entries, and other programs take it one by one: both see the
/// same requests in the same order, and decide alike.
#[test]
fn entries_in_runs_and_one_by_one_are_decided_alike() {
    let mut random = Random(77);
    for round in 0..12 {
        let logs = [random_log(&mut random), random_log(&mut random), random_log(&mut random)];
        let folder = TempDir::new("runs");
        for (at, log) in logs.iter().enumerate() {
            folder.file(&format!("{at}.log"), combined(log, &mut random));
        }
        let policies = random_policies(&mut random, round % 2 == 0);
        let open = |threads| {
            let slack = Duration::from_secs([0, 1, 120][round % 3]);
            let options = LogOptions { threads, slack, ..LogOptions::default() };
            LogReader::open_all(&[folder.path().to_owned()], options).unwrap()
        };
        let start = || Replay::new(Plan::of(policies.clone(), options()), &wording()).unwrap();

        let (mut reader, mut replay, mut entries) = (open(1), start(), Vec::new());
        while let Some(entry) = reader.next_entry().unwrap() {
            entries.push(format!("{entry:?}"));
            replay.push(&entry).unwrap();
        }
        let expected = json(&replay.finish(reader.stats()).unwrap());

        let (mut reader, mut replay, mut at) = (open(2), start(), 0);
        while let Some(entry) = reader.next_entry().unwrap() {
            assert_eq!(format!("{entry:?}"), entries[at], "entry {at} of round {round}");
            at += 1;
            replay.push(&entry).unwrap();
        }
        assert_eq!(at, entries.len());
        assert_eq!(json(&replay.finish(reader.stats()).unwrap()), expected, "round {round}");
    }
}

/// A log in the combined format, whose lines are late now and then; some are in forms that take the
/// thorough parser.
fn combined(log: &[Traffic], random: &mut Random) -> String {
    let mut text = String::new();
    for one in log {
        let late = if random.below(20) == 0 { random.below(4) } else { 0 };
        let second = (one.time_us / 1_000_000).saturating_sub(START + late);
        let user = one.user.as_deref().unwrap_or("-");
        let agent = pick(random, &["curl/8.5.0", "-", "", r#"a \"quoted\" agent"#, r"one \x41", "\u{e9}"]);
        let target = pick(random, &["?page=2", "", "/../x", "%41"]);
        writeln!(
            text,
            "{} - {user} [20/Nov/2026:{:02}:{:02}:{:02} +0000] \"{} {}{target} HTTP/1.1\" 200 5 \"-\" \"{agent}\"",
            one.client,
            second / 3600 % 24,
            second / 60 % 60,
            second % 60,
            one.method,
            one.path,
        )
        .unwrap();
    }
    text
}
