//! Random histories: what Redis decides is what memory decides, number for number.
//!
//! The server's clock stands still and is moved by hand, so that both decide at the same
//! microsecond.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use slidegate::store::ServiceStore;
use slidegate::{
    Algorithm, Calendar, Decision, Excess, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{random_cases, redis_gate};

/// What the policies are called.
const NAMES: [&str; 4] = ["p0", "p1", "p2", "p3"];

const START_US: u64 = 1_700_000_000_000_000;

#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    /// To when the last decision's first wait ends, a microsecond before or after.
    Wait(u64),
    /// The clock is set back.
    Back(u64),
    Apply(Verb, u64),
    Limit(u64),
    /// Another window, in milliseconds.
    Window(u64),
    Slots(u16),
    /// Fixed windows by one of the [`calendars`].
    Calendar(usize),
}

/// Penalties, and a clock that is set back by less than a window and by more.
///
/// Redis writes nothing for a denial, not even that time has passed; so a step back may bring back
/// there what memory has forgotten. What is charged always, is the same in both.
fn steps_back() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..60_000).prop_map(Step::Advance),
        2 => (0u64..3).prop_map(Step::Wait),
        3 => prop_oneof![0u64..50_000, 0u64..200_000].prop_map(Step::Back),
        8 => (1u64..6).prop_map(|cost| Step::Apply(Verb::Penalize, cost)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Costs around the largest that scripts can count, and the largest there are.
fn huge() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![Just((1 << 53) - 1), (1u64 << 52)..(1 << 54), Just(u64::MAX), (1u64 << 32)..(1 << 41),]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let advance = prop_oneof![0u64..50, 0u64..5_000, 0u64..300_000, (1u64..6).prop_map(|n| n * 10_000)];
    let cost = prop_oneof![8 => Just(1u64), 4 => 0u64..6, 1 => 200u64..400, 1 => 60_000u64..70_000];
    let step = prop_oneof![
        5 => advance.prop_map(Step::Advance),
        4 => (0u64..3).prop_map(Step::Wait),
        12 => cost.clone().prop_map(|cost| Step::Apply(Verb::Check, cost)),
        2 => cost.clone().prop_map(|cost| Step::Apply(Verb::Peek, cost)),
        1 => huge().prop_map(|cost| Step::Apply(Verb::Peek, cost)),
        3 => prop_oneof![9 => 0u64..20, 1 => huge()].prop_map(|cost| Step::Apply(Verb::Refund, cost)),
        1 => prop_oneof![3 => cost, 1 => huge()].prop_map(|cost| Step::Apply(Verb::Penalize, cost)),
        1 => (0u64..40).prop_map(Step::Limit),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Steps so many times as long, and so many times as dear.
fn stretched(
    steps: impl Strategy<Value = Vec<Step>>,
    long: u64,
    dear: u64,
) -> impl Strategy<Value = Vec<Step>> {
    let stretch = move |step| match step {
        Step::Advance(us) => Step::Advance(us * long),
        Step::Back(us) => Step::Back(us * long),
        Step::Apply(verb, cost) => Step::Apply(verb, cost.saturating_mul(dear)),
        other => other,
    };
    steps.prop_map(move |steps| steps.into_iter().map(stretch).collect())
}

/// Steps among which quotas change: windows to usual ones and to some that have no compact form.
///
/// Memory changes what it has at once, Redis with the next charge: a penalty, for which a refund makes room. A
/// penalty before it writes what neither store would change by itself: what drained of a bucket by its former
/// limit or left a log by its former window, and how long Redis keeps a value.
fn steps_of_quotas() -> impl Strategy<Value = Vec<Step>> {
    let windows =
        proptest::sample::select(vec![1_000u64, 1_500, 2_000, 60_000, 60_001, 3_600_000, 86_400_000]);
    let step = prop_oneof![
        4 => (0u64..3_000_000).prop_map(Step::Advance),
        1 => (0u64..200_000_000).prop_map(Step::Advance),
        2 => (0u64..3).prop_map(Step::Wait),
        6 => (0u64..6).prop_map(|cost| Step::Apply(Verb::Check, cost)),
        1 => (0u64..6).prop_map(|cost| Step::Apply(Verb::Peek, cost)),
        1 => (0u64..6).prop_map(|cost| Step::Apply(Verb::Refund, cost)),
        3 => windows.prop_map(Step::Window),
        1 => (0u64..40).prop_map(Step::Limit),
        1 => (1u16..60).prop_map(Step::Slots),
        1 => (0usize..4).prop_map(Step::Calendar),
    ];
    let (room, penalty) = (Step::Apply(Verb::Refund, 1), Step::Apply(Verb::Penalize, 1));
    let with_charges = move |step: Step| match &step {
        // A bucket above a lowered limit is cut by the refund.
        Step::Limit(_) => vec![penalty.clone(), step, room.clone(), penalty.clone()],
        Step::Window(_) | Step::Slots(_) | Step::Calendar(_) => {
            vec![penalty.clone(), room.clone(), step, penalty.clone()]
        }
        _ => vec![step],
    };
    let steps = proptest::collection::vec(step, 1..60);
    steps.prop_map(move |steps| steps.into_iter().flat_map(with_charges.clone()).collect())
}

/// All that a decision says. Its `Debug` form leaves nothing out.
fn fields(decision: &Decision) -> String {
    format!("{decision:?}")
}

/// How limits are said, and what is done past them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// By the policies, once for all.
    Once,
    /// By the policies, which change.
    Configured,
    /// With each request: one for each policy, each at a cost of its own, the first of which
    /// charges excess and the second of which counts what is denied.
    Outcome { limits_change: bool },
    /// By the policies, all of which count what is denied.
    Counted,
}

/// Runs a history on both stores, under these quotas at once. The one in Redis is reached by this URL.
async fn run(
    (server, url): (&RedisServer, &str),
    key: &str,
    mut quotas: Vec<Quota>,
    said: Said,
    steps: &[Step],
) {
    let mut now = START_US;
    server.clock().stand(now);
    let clock = ManualClock::at(Timestamp::from_micros(now));
    let policies = |quotas: &[Quota]| {
        PolicySet::new(quotas.iter().enumerate().map(|(at, quota)| {
            let policy = Policy::new(NAMES[at], *quota).unwrap().with_scope(["user"]);
            let policy = policy.with_notify_closed(quota.keeps_totals_us().is_some());
            let excess = match (said, at) {
                (Said::Outcome { .. }, 0) => Excess::Charge,
                (Said::Outcome { .. }, 1) | (Said::Counted, _) => Excess::Count,
                _ => Excess::Refuse,
            };
            if at == 2 { policy.with_enforced(false) } else { policy }.with_excess(excess)
        }))
        .unwrap()
    };
    let options = crate::callers::options(url).without_denial_cache();
    let memory = Gate::with_memory(policies(&quotas), MemoryStore::builder().clock(clock.clone()).build());
    let redis = redis_gate(policies(&quotas), options).unwrap();
    let mut wait = Duration::ZERO;
    let mut conn = server.connect();
    let is_set_back = steps.iter().any(|step| matches!(step, Step::Back(_)));
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Advance(_) | Step::Wait(_) | Step::Back(_) => {
                now = match step {
                    Step::Wait(more) => {
                        now + (u64::try_from(wait.as_micros()).unwrap() + more).saturating_sub(1)
                    }
                    Step::Back(us) => now - us,
                    Step::Advance(us) => now + us,
                    _ => now,
                };
                server.clock().stand(now);
                clock.set(Timestamp::from_micros(now));
                if matches!(step, Step::Back(_)) {
                    // The store learns of the step with a reply; a call before that has the dates of before.
                    let _ = redis.peek(&Request::new().with("user", "nobody")).await;
                }
            }
            Step::Limit(_) | Step::Window(_) | Step::Slots(_) | Step::Calendar(_)
                if matches!(said, Said::Configured | Said::Outcome { limits_change: true }) =>
            {
                for quota in &mut quotas {
                    let (mut limit, mut window, mut slots) = (quota.limit(), quota.window(), quota.slots());
                    match step {
                        Step::Limit(changed) => limit = *changed,
                        Step::Window(ms) => window = Duration::from_millis(*ms),
                        Step::Slots(changed) => slots = *changed,
                        _ => {}
                    }
                    let changed = Quota::new(limit, window).unwrap().with_algorithm(quota.algorithm());
                    let calendar = match step {
                        Step::Calendar(at) => Some(calendars()[*at]),
                        Step::Window(_) => None,
                        _ => quota.calendar_window(),
                    };
                    let calendar = calendar.filter(|_| quota.algorithm() == Algorithm::FixedWindow);
                    let changed = calendar.map_or(changed, |calendar| Quota::calendar(limit, calendar));
                    *quota = changed.with_slots(slots);
                }
                if said == Said::Configured {
                    memory.configure(policies(&quotas)).unwrap();
                    redis.configure(policies(&quotas)).unwrap();
                }
            }
            Step::Limit(_) | Step::Window(_) | Step::Slots(_) | Step::Calendar(_) => {}
            Step::Apply(verb, cost) => {
                let one = || Request::new().with("user", key);
                let requests: Vec<_> = match said {
                    Said::Outcome { .. } => {
                        let each = NAMES.iter().zip(&quotas).zip(0..);
                        each.map(|((name, quota), more)| {
                            one().under(name).with_quota(*quota).with_cost(cost.saturating_add(more))
                        })
                        .collect()
                    }
                    _ => vec![one().with_cost(*cost)],
                };
                let ours = memory.apply_all(*verb, &requests);
                let waits = ours.iter().filter_map(|one| one.decision().frees_after());
                wait = waits.min().unwrap_or_default();
                let theirs = redis.apply_all(*verb, &requests).await;
                let ours: Vec<_> = ours.iter().map(|one| fields(one.decision())).collect();
                let theirs: Vec<_> = theirs.iter().map(|one| fields(one.decision())).collect();
                assert_eq!(
                    theirs,
                    ours,
                    "step {at} of {steps:?} under {quotas:?}: {:?}",
                    redis.store().stats()
                );
                for (name, quota) in NAMES.iter().zip(&quotas) {
                    let lives = conn.call(&["PTTL", &format!("sg1:{name}:{key}")]).unwrap();
                    let Reply::Integer(lives_ms) = lives else { panic!("{lives:?}") };
                    // A key that is gone says -2; one without a time to live says -1.
                    let most_ms = longest_life_ms(quota);
                    let bounded = lives_ms == -2 || lives_ms >= 0 && lives_ms.unsigned_abs() <= most_ms;
                    assert!(
                        bounded || is_set_back,
                        "step {at} of {steps:?}: {name} lives {lives_ms} of {most_ms} ms"
                    );
                }
            }
        }
    }
}

/// The longest that a key may live after a write: two windows and five seconds, and for a bucket
/// the time in which the most that it can hold drains.
fn longest_life_ms(quota: &Quota) -> u64 {
    let window_us = quota.window().as_micros();
    let counts_us = match quota.algorithm() {
        Algorithm::TokenBucket => {
            (u128::from(quota.max_used()) * window_us).div_ceil(u128::from(quota.limit().max(1)))
        }
        _ => 2 * window_us,
    };
    u64::try_from(counts_us.div_ceil(1000)).unwrap() + 5_000
}

/// Runs histories under what `quotas` makes of two numbers.
fn histories(cases: u32, quotas: impl Fn(u64, u64) -> Vec<Quota>, said: Said) {
    histories_of(steps(), cases, quotas, said);
}

fn histories_of(
    steps: impl Strategy<Value = Vec<Step>>,
    cases: u32,
    quotas: impl Fn(u64, u64) -> Vec<Quota>,
    said: Said,
) {
    let server = RedisServer::builder().with_clock().start();
    histories_on((&server, &server.url_as_user()), steps, cases, quotas, said);
}

fn histories_on(
    server: (&RedisServer, &str),
    steps: impl Strategy<Value = Vec<Step>>,
    cases: u32,
    quotas: impl Fn(u64, u64) -> Vec<Quota>,
    said: Said,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = random_cases(cases);
    let mut number = 0;
    let number = std::cell::RefCell::new(&mut number);
    runner
        .run(&(1u64..40, 1u64..100, steps), |(limit, window_ms, steps)| {
            **number.borrow_mut() += 1;
            let key = format!("key-{}", number.borrow());
            runtime.block_on(run(server, &key, quotas(limit, window_ms), said, &steps));
            Ok(())
        })
        .unwrap();
}

/// An hour that may last half an hour, a day of 23 to 25 hours, a month from its last day on, and an hour whose totals
/// are kept.
fn calendars() -> [Calendar; 4] {
    [
        Calendar::hour().with_time_zone("Australia/Lord_Howe").unwrap(),
        Calendar::day().with_time_zone("Europe/Berlin").unwrap(),
        Calendar::month().with_anchor(31).unwrap(),
        Calendar::hour().keeping_totals(true),
    ]
}

fn quota(limit: u64, window_ms: u64, algorithm: Algorithm) -> Quota {
    Quota::new(limit, Duration::from_millis(window_ms)).unwrap().with_algorithm(algorithm)
}

/// Runs histories of each algorithm alone, and of all together, on a server that this URL leads to.
pub(crate) fn decide_as_in_memory(server: &RedisServer, url: &str) {
    for algorithm in Algorithm::ALL {
        histories_on((server, url), steps(), 20, |limit, ms| vec![quota(limit, ms, algorithm)], Said::Once);
        server.admin(&["FLUSHALL"]);
    }
    let all = |limit: u64, ms: u64| Algorithm::ALL.map(|algorithm| quota(limit, ms, algorithm)).to_vec();
    histories_on((server, url), steps(), 20, all, Said::Once);
    server.admin(&["FLUSHALL"]);
}

/// A fleet that moves from memory to Redis must get the same decisions.
#[test]
fn the_log_in_redis_decides_as_the_one_in_memory() {
    histories(150, |limit, ms| vec![quota(limit, ms, Algorithm::SlidingLog)], Said::Configured);
}

/// Above its slots a log merges charges into steps, and writes them in place.
#[test]
fn the_coarse_log_in_redis_decides_as_the_one_in_memory() {
    histories(
        100,
        |limit, ms| vec![quota(limit + 70_000, ms, Algorithm::SlidingLog).with_slots(3)],
        Said::Once,
    );
}

#[test]
fn the_sliding_window_in_redis_decides_as_the_one_in_memory() {
    histories(100, |limit, ms| vec![quota(limit, ms, Algorithm::SlidingWindow)], Said::Configured);
}

#[test]
fn the_fixed_window_in_redis_decides_as_the_one_in_memory() {
    histories(100, |limit, ms| vec![quota(limit, ms, Algorithm::FixedWindow)], Said::Configured);
}

/// The server picks a window by its own clock, of the borders that a call carries.
#[test]
fn calendar_windows_in_redis_decide_as_those_in_memory() {
    for (calendar, times) in calendars().into_iter().zip([50_000, 500_000, 20_000_000]) {
        let quotas = move |limit: u64, _| vec![Quota::calendar(limit, calendar)];
        histories_of(stretched(steps(), times, 1), 40, quotas, Said::Configured);
        histories_of(stretched(steps_back(), times, 1), 40, quotas, Said::Once);
    }
}

/// Windows of whole seconds are kept in 12 bytes while the counts fit, and limits in the millions
/// do not.
#[test]
fn compact_and_wide_counters_in_redis_decide_as_those_in_memory() {
    for (algorithm, more, dear) in [
        (Algorithm::SlidingWindow, 0, 1),
        (Algorithm::SlidingWindow, 3_000_000, 131_072),
        (Algorithm::FixedWindow, 0, 1),
        (Algorithm::FixedWindow, 2_000_000_000_000, 1 << 32),
    ] {
        let seconds =
            move |limit: u64, ms: u64| vec![quota(limit + more, ms.div_ceil(25) * 1_000, algorithm)];
        histories_of(stretched(steps(), 20, dear), 60, seconds, Said::Configured);
        histories_of(stretched(steps_back(), 20, dear), 60, seconds, Said::Once);
    }
}

/// What was charged under one quota counts on under the next, in whichever form it is kept, also when
/// all checks are denied.
#[test]
fn quotas_that_change_are_met_in_redis_as_in_memory() {
    for algorithm in Algorithm::ALL {
        histories_of(
            steps_of_quotas(),
            150,
            |limit, _| vec![quota(limit, 60_000, algorithm)],
            Said::Configured,
        );
    }
}

#[test]
fn the_token_bucket_in_redis_decides_as_the_one_in_memory() {
    histories(
        100,
        |limit, ms| vec![quota(limit, ms, Algorithm::TokenBucket).with_burst(limit * 2)],
        Said::Once,
    );
}

/// Large numbers do not fit a double on the way: that is where scripts begin to round.
#[test]
fn limits_of_quadrillions_decide_to_the_last_digit() {
    let large = |limit: u64, ms: u64| {
        [Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::SlidingLog, Algorithm::FixedWindow]
            .map(|algorithm| {
                let limit = 9_007_199_254_740_000 - limit * 7_919;
                Quota::new(limit, Duration::from_millis(ms * 86_400_000)).unwrap().with_algorithm(algorithm)
            })
            .to_vec()
    };
    histories(100, large, Said::Once);
}

/// Checks in a batch must be decided as if they were sent one by one, whatever the others cost.
#[test]
fn checks_that_go_together_decide_as_one_after_another_in_memory() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(START_US);
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let costs = [1, 1, 1, 4, 1, 1, 0, 0, 9, 9, 9, 2, 2, 3, 2, 1, 1, 1, 1, 0, 8, 8, 1, 1, 0, 0, 5, 1, 1];
    for (algorithm, limit) in
        Algorithm::ALL.into_iter().flat_map(|one| (0..50).map(move |limit| (one, limit)))
    {
        let policies = || {
            let quota = quota(limit, 60_000, algorithm);
            PolicySet::new([Policy::new("p", quota).unwrap().with_scope(["user"])]).unwrap()
        };
        let options = crate::callers::options(&server.url_as_user());
        let memory = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
        let redis = Arc::new(redis_gate(policies(), options.without_denial_cache()).unwrap());
        let key = format!("{algorithm}-{limit}");
        let tasks = costs.map(|cost| {
            let (redis, key) = (Arc::clone(&redis), key.clone());
            runtime.spawn(async move {
                let request = Request::new().with("user", key.as_str()).with_cost(cost);
                fields(redis.check(&request).await.iter().next().unwrap().decision())
            })
        });
        for (cost, task) in costs.into_iter().zip(tasks) {
            let request = Request::new().with("user", key.as_str()).with_cost(cost);
            let ours = fields(memory.check(&request).iter().next().unwrap().decision());
            assert_eq!(runtime.block_on(task).unwrap(), ours, "cost {cost} under {algorithm} of {limit}");
        }
        assert!(redis.store().primary().stats().batched > 20, "{:?}", redis.store().stats());
    }
}

/// All or none, over all algorithms at once, with a shadow policy among them.
#[test]
fn several_policies_in_redis_decide_as_in_memory() {
    let all = |limit: u64, ms: u64| {
        let of = |more, algorithm| quota(limit + more, ms + more, algorithm);
        vec![
            of(0, Algorithm::SlidingLog),
            of(3, Algorithm::SlidingWindow),
            of(1, Algorithm::FixedWindow),
            of(2, Algorithm::TokenBucket),
        ]
    };
    histories(150, all, Said::Once);
}

/// A limiter that counts denied requests must count the same ones, and promise the same waits, on
/// every store.
#[test]
fn denied_requests_that_count_are_counted_in_redis_as_in_memory() {
    for algorithm in Algorithm::ALL {
        histories(60, |limit, ms| vec![quota(limit, ms, algorithm)], Said::Counted);
    }
    let all = |limit: u64, ms: u64| {
        let of = |more, algorithm| quota(limit + more, ms + more, algorithm);
        vec![of(0, Algorithm::SlidingLog), of(3, Algorithm::FixedWindow), of(1, Algorithm::TokenBucket)]
    };
    histories(60, all, Said::Counted);
}

/// Protocols whose callers give the limit ask for several keys at once, each at a cost of its own,
/// and some past the limit.
#[test]
fn inline_quotas_own_costs_and_excess_in_redis_decide_as_in_memory() {
    for algorithm in Algorithm::ALL {
        let alike = |limit: u64, ms: u64| [0, 2, 5].map(|more| quota(limit + more, ms, algorithm)).to_vec();
        // What a bucket gains between two limits, memory counts by the former and Redis by the
        // latter.
        let limits_change = algorithm != Algorithm::TokenBucket;
        histories(60, alike, Said::Outcome { limits_change });
        histories(60, |limit, ms| vec![quota(limit, ms, algorithm)], Said::Outcome { limits_change });
    }
}

/// A server whose clock is set back must neither admit twice nor lock out, and do so as memory
/// does.
#[test]
fn a_clock_that_is_set_back_is_met_as_in_memory() {
    for algorithm in Algorithm::ALL {
        histories_of(steps_back(), 60, |limit, ms| vec![quota(limit, ms, algorithm)], Said::Once);
    }
}
