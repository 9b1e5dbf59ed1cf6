//! Reservations of many clients over three instances that are killed at random: judged by a checker
//! that knows only what clients sent and were answered, by Redis's clock.
//!
//! Seven seconds of kills and 24 clients, or as many as `SLIDEGATE_RESERVATION_SECONDS` and
//! `SLIDEGATE_RESERVATION_CLIENTS` say; see CONTRIBUTING.md.

mod checker;
mod client;
mod fleet;
mod history;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use slidegate_testkit::redis::{RedisCluster, RedisServer};
use slidegate_testkit::until_true;
use tokio::time::Instant;

use checker::Rules;
use client::{Client, Random, Record};
use fleet::{Clock, Fleet, INSTANCES};
use history::{Outcome, Policy, Reservation};

/// Without the variables.
const SECONDS: u64 = 7;
const CLIENTS: u64 = 24;
/// Fewest kills and settled reservations, however long they take.
const LEAST_KILLS: usize = 3;
const LEAST_SETTLED: u64 = 100;
const USERS: usize = 3;
/// Most in flight of each user.
const IN_FLIGHT: u64 = 5;
/// Most tokens of each user in a window.
const LIMIT: u64 = 600;
const WINDOW: Duration = Duration::from_secs(1);
/// How long Redis may take: far longer than it does, as whatever fails is unknown to the checker.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long after a denial an instance cancels what it held in other slots, at most: then it gives up.
const CANCELS: u64 = 2_000_000;
/// How long a settlement that came late is kept, so that it can be repeated.
const LATE_MS: u64 = 60_000;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

fn user_name(user: usize) -> String {
    format!("user-{user}")
}

fn number(variable: &str, default: impl FnOnce() -> u64) -> u64 {
    std::env::var(variable).map_or_else(
        |_| default(),
        |text| text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`; give a number")),
    )
}

/// Ends the clients, also when a kill panics: the scope would wait for them forever.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Lets clients and kills run, and returns what the clients recorded.
fn run(fleet: &Fleet<'_>, seed: u64) -> Record {
    let seconds = number("SLIDEGATE_RESERVATION_SECONDS", || SECONDS);
    let clients = number("SLIDEGATE_RESERVATION_CLIENTS", || CLIENTS);
    let (is_over, mut clock, mut random) = (AtomicBool::new(false), fleet.clock(), Random::new(seed));
    let begun = Instant::now();
    thread::scope(|scope| {
        let is_over = &is_over;
        let clients: Vec<_> =
            (1..=clients).map(|at| scope.spawn(move || Client::new(fleet, seed + at).run(is_over))).collect();
        let end = EndOnDrop(is_over);
        // Not by the date, which may be set meanwhile.
        while begun.elapsed() < Duration::from_secs(seconds)
            || fleet.kills.lock().unwrap().len() < LEAST_KILLS
            || fleet.settled.load(Relaxed) < LEAST_SETTLED
        {
            thread::sleep(Duration::from_millis(200 + random.below(500)));
            let at = usize::try_from(random.below(INSTANCES as u64)).unwrap();
            fleet.kill(at, &mut clock, Duration::from_millis(random.below(300)));
        }
        drop(end);
        let mut all = Record::default();
        for client in clients {
            let Record { history, denied, counts } = client.join().expect("a client got a strange reply");
            all.history.extend(history);
            all.denied.extend(denied);
            for (what, count) in counts {
                *all.counts.entry(what).or_default() += count;
            }
        }
        all
    })
}

/// Adds what a killed instance may have left held in another slot for a request that it denied.
fn add_uncertain(
    history: &mut Vec<Reservation>,
    record: Vec<(usize, Reservation)>,
    kills: &[(usize, RangeInclusive<u64>)],
) {
    for (at, denied) in record {
        let Reservation { made, policies, .. } = &denied;
        let until = made.replied + CANCELS;
        let is_lost = |(of, killed): &(usize, RangeInclusive<u64>)| {
            *of == at && made.sent <= *killed.end() && *killed.start() <= until
        };
        if policies.len() > 1 && kills.iter().any(is_lost) {
            history.push(denied);
        }
    }
}

/// Kills instances at random, and judges what clients were answered and what is left.
fn judge(url: &str, nodes: &[RedisServer], is_spread: bool) {
    let seed = number("SLIDEGATE_RESERVATION_SEED", || RandomState::new().hash_one(0) >> 32);
    let fleet = Fleet::start(url, &nodes[0]);
    let Record { mut history, denied, counts } = run(&fleet, seed);
    let kills = fleet.kills.lock().unwrap().clone();
    println!("SLIDEGATE_RESERVATION_SEED={seed}: {} kills, {counts:?}", kills.len());
    if is_spread {
        add_uncertain(&mut history, denied, &kills);
    }
    let rules = Rules {
        in_flight: IN_FLIGHT,
        limit: LIMIT,
        window: millis(WINDOW) * 1000,
        deadline: millis(DEADLINE) * 1000,
    };
    let faults = checker::faults(&history, USERS, &rules);
    assert!(faults.is_empty(), "seed {seed}: {} faults:\n{}", faults.len(), faults.join("\n"));
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    for (what, least) in
        [("reservations", LEAST_SETTLED), ("settle Changed", LEAST_SETTLED), ("reservations denied", 10)]
    {
        assert!(count(what) >= least, "there was a load: {counts:?}");
    }
    assert_ended(&fleet, &history, &rules, nodes);
}

/// After the last lease nothing is held, exactly what was settled is charged, all permits are free,
/// and Redis forgets the keys.
fn assert_ended(fleet: &Fleet<'_>, history: &[Reservation], rules: &Rules, nodes: &[RedisServer]) {
    let mut clock = fleet.clock();
    let ends = |one: &Reservation| {
        let spans = one.changes.iter().map(|change| change.span).chain([one.made]);
        spans.map(|span| span.replied.max(span.sent + rules.deadline) + one.ttl).max().unwrap()
    };
    let last = history.iter().map(ends).max().unwrap();
    until_true("the last lease is over", || clock.now() > last);
    let key = |policy: Policy, user| format!("/v1/keys/{}/{}", policy.name(), user_name(user));
    for user in 0..USERS {
        for (at, policy) in (0..INSTANCES).flat_map(|at| Policy::ALL.map(|policy| (at, policy))) {
            let shown = fleet.get(at, &key(policy, user));
            assert_eq!(shown["held"].as_u64().unwrap_or(0), 0, "{policy:?} {user} by instance {at}: {shown}");
            if policy == Policy::Ledger {
                let (least, most) = checker::charged(history, user, policy, rules);
                let used = shown["used"].as_u64().unwrap();
                if at == 0 {
                    println!("user {user}: {used} charged, which must be {least} to {most}");
                }
                assert!((least..=most).contains(&used), "user {user}: {used}, not {least} to {most}");
            }
        }
        assert_all_permits_are_free(fleet, user);
    }
    let mut changes = history.iter().flat_map(|one| &one.changes);
    let has_late =
        changes.any(|change| change.outcomes.iter().any(|(_, outcome)| *outcome == Outcome::Expired));
    assert_forgotten(&mut clock, nodes, has_late);
}

fn assert_all_permits_are_free(fleet: &Fleet<'_>, user: usize) {
    let name = user_name(user);
    let reserve = || fleet.command(0, &["RL.RESERVE", "streams", &name]).unwrap();
    let taken: Vec<_> = (0..IN_FLIGHT).map(|_| reserve()).collect();
    assert!(taken.iter().all(|reply| reply[0] == "1"), "{taken:?}");
    assert_eq!(reserve()[0], "0");
    for reply in taken {
        assert_eq!(fleet.command(1, &["RL.CANCEL", &reply[9]]).unwrap()[0], "changed");
    }
}

/// Keys last no longer than two windows and six seconds after their last hold, or after a late
/// settlement is forgotten.
fn assert_forgotten(clock: &mut Clock, nodes: &[RedisServer], has_late: bool) {
    let keys = || -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        for node in nodes.iter().filter(|node| node.admin(&["ROLE"]).starts_with("master")) {
            let names = node.admin(&["KEYS", "sg1:*"]);
            let of_test = |name: &&str| name.contains("tokens") || name.contains("streams");
            for name in names.lines().filter(of_test) {
                let ttl: i64 = node.admin(&["PTTL", name]).parse().unwrap();
                assert!(ttl != -1, "{name} never expires");
                found.insert(name.to_owned(), u64::try_from(ttl).unwrap_or(0));
            }
        }
        found
    };
    let longest = 2 * millis(WINDOW) + 6_000;
    let (left, late): (BTreeMap<_, _>, BTreeMap<_, _>) =
        keys().into_iter().partition(|(_, ttl)| *ttl <= longest);
    assert!(late.is_empty() || has_late, "{late:?}");
    assert!(late.values().all(|ttl_ms| *ttl_ms <= LATE_MS + longest), "{late:?}");
    let begun = clock.now();
    until_true("Redis forgets keys that count no more", || keys().keys().all(|name| late.contains_key(name)));
    let took = clock.now() - begun;
    assert!(took <= (longest + 2_000) * 1000, "{took} us until {left:?} were gone");
}

/// Operators of models pay for each token over a limit, and instances crash.
#[test]
fn three_instances_that_are_killed_at_random_keep_every_promise_of_reservations() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), std::slice::from_ref(&server), false);
}

/// The same where the keys of a reservation are in several slots.
#[test]
fn three_instances_on_a_cluster_that_are_killed_at_random_keep_every_promise_of_reservations() {
    let cluster = RedisCluster::of_three();
    judge(&cluster.url_as_user(), cluster.nodes(), true);
}
