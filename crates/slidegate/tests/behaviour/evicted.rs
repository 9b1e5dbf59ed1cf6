//! Evicted keys: a full store may forget the details of what a key has used, and never that it has
//! used it.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Algorithm, Calendar, Gate, Limiter, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};

use crate::oracle::model::Model;

const HOUR: Duration = Duration::from_secs(3600);

fn limiter(quota: Quota, max_keys: usize) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
    (Limiter::with_store(quota, store), clock)
}

fn each(quota: Quota) -> impl Iterator<Item = Quota> {
    Algorithm::ALL.into_iter().map(move |algorithm| quota.with_algorithm(algorithm))
}

/// How a key comes to what it has used.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Use {
    /// Single requests.
    Each(u64),
    /// One request of this cost.
    AtOnce(u64),
}

impl Use {
    fn used(self) -> u64 {
        let (Self::Each(used) | Self::AtOnce(used)) = self;
        used
    }

    /// Returns the cost that was admitted.
    fn of(self, limiter: &Limiter, key: &str) -> u64 {
        match self {
            Self::Each(times) => (0..times).map(|_| limiter.check(key).cost()).sum(),
            Self::AtOnce(cost) => limiter.check_cost(key, cost).cost(),
        }
    }
}

/// Charges many new keys, each its limit, so that those before them are evicted.
fn push_out(limiter: &Limiter, clock: &ManualClock, name: &str) {
    clock.advance(Duration::from_secs(1));
    for n in 0..2 * limiter.stats().max_keys {
        let _ = limiter.check_cost(format!("{name}-{n}"), limiter.quota().limit());
    }
}

/// Takes all that a key still gets.
fn rest(limiter: &Limiter, key: &str) -> u64 {
    (0..10).map(|_| limiter.check(key).cost()).sum()
}

/// What a flood leaves behind.
#[derive(Debug)]
struct Aftermath {
    /// Of the users who had used something, those who got more than their limit.
    started_again: usize,
    /// Of them, those who got less.
    got_less: usize,
    /// Of the flood's keys, those that got more than their limit.
    flood_started_again: usize,
    /// Of 3000 users who come for the first time, those who do not get their limit.
    newcomers_denied: usize,
}

/// Fills a store, of which 3000 keys have used something, and floods it with new keys.
fn flood(quota: Quota, max_keys: usize, new_keys: usize, flood: Use) -> Aftermath {
    let (limiter, _clock) = limiter(quota, max_keys);
    let uses = [Use::Each(3), Use::Each(5), Use::AtOnce(5)];
    let victim = |n: usize| (format!("victim-{n}"), uses[n % 3]);
    for n in 0..3000 {
        let (key, used) = victim(n);
        assert_eq!(used.of(&limiter, &key), used.used());
    }
    for n in 3000..max_keys {
        let _ = limiter.check(format!("other-{n}"));
    }
    let mut admitted = Vec::new();
    for n in 0..new_keys {
        admitted.push(flood.of(&limiter, &format!("flood-{n}")));
    }
    let mut after = Aftermath { started_again: 0, got_less: 0, flood_started_again: 0, newcomers_denied: 0 };
    for n in 0..3000 {
        let (key, used) = victim(n);
        let left = rest(&limiter, &key);
        after.started_again += usize::from(left > 5 - used.used());
        after.got_less += usize::from(left < 5 - used.used());
    }
    for n in 0..3000 {
        after.newcomers_denied += usize::from(rest(&limiter, &format!("newcomer-{n}")) < 5);
    }
    for (n, admitted) in admitted.into_iter().enumerate() {
        after.flood_started_again += usize::from(admitted + rest(&limiter, &format!("flood-{n}")) > 5);
    }
    after
}

/// A login that is limited to five attempts an hour must be, whatever else is tried meanwhile.
#[test]
fn a_flood_lets_no_key_start_again_and_denies_few_that_are_new() {
    // New keys per key of the store, and most newcomers of 3000 that are denied.
    for (per_key, most_denied) in [(2, 30), (10, 30), (40, 300)] {
        for used in [Use::Each(5), Use::AtOnce(5)] {
            for quota in each(Quota::per_hour(5)) {
                let after = flood(quota, 10_000, 1000 * per_key, used);
                let what = format!("{quota:?}, {per_key} tenths of the store, {used:?}: {after:?}");
                assert_eq!((after.started_again, after.flood_started_again), (0, 0), "{what}");
                assert!(after.newcomers_denied <= most_denied && after.got_less <= most_denied, "{what}");
            }
        }
    }
}

/// The same at the size of a real store.
#[test]
fn a_flood_lets_no_key_of_a_large_store_start_again() {
    let after = flood(Quota::per_hour(5), 100_000, 20_000, Use::Each(5));
    assert_eq!((after.started_again, after.flood_started_again), (0, 0), "{after:?}");
    assert!(after.newcomers_denied <= 30 && after.got_less <= 30, "{after:?}");
}

/// Users who were pushed out must neither be locked out longer than without the flood, nor be told
/// to come back too early.
#[test]
fn an_evicted_key_is_admitted_when_its_decision_says() {
    // Of many limiters, in some the debt of the key is that of others, too, which were charged just now.
    for quota in each(Quota::per_hour(5)).flat_map(|quota| std::iter::repeat_n(quota, 500)) {
        let (limiter, clock) = limiter(quota, 10);
        clock.advance(Duration::from_micros(12_345));
        let _ = limiter.check_cost("alice", 5);
        push_out(&limiter, &clock, "flood");
        let denied = limiter.check("alice");
        let wait = denied.retry_after().expect("it fits one day");
        assert!(denied.is_denied() && wait <= 2 * HOUR, "{quota:?}: {wait:?}");
        let least = limiter.peek_cost("alice", 1);
        assert_eq!(least.retry_after(), Some(wait), "a peek sees it as well, and changes nothing");
        clock.advance(wait - Duration::from_micros(1));
        assert!(limiter.check("alice").is_denied(), "{quota:?}");
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("alice").is_allowed(), "{quota:?}");
    }
}

/// Questions about evicted keys must not push out others.
#[test]
fn what_is_denied_or_only_asked_stores_nothing_of_an_evicted_key() {
    for quota in each(Quota::per_hour(5)) {
        let (limiter, _clock) = limiter(quota, 1000);
        for n in 0..1100 {
            let _ = limiter.check_cost(format!("key-{n}"), 5);
        }
        let dropped = limiter.stats().dropped;
        for n in 0..1100 {
            let key = format!("key-{n}");
            assert!(limiter.check(&key).is_denied() && limiter.peek(&key).used() == 5, "{quota:?}");
            assert!(limiter.check_cost(&key, 0).is_allowed());
        }
        assert_eq!(limiter.stats().dropped, dropped, "{quota:?}");
    }
}

/// An operator who resets a key, or gives back what it used, must see that it stays so.
#[test]
fn a_reset_and_a_refund_hold_for_an_evicted_key() {
    for quota in each(Quota::per_hour(5)) {
        for by_refund in [false, true] {
            let (limiter, clock) = limiter(quota, 100);
            let _ = limiter.check_cost("alice", 5);
            push_out(&limiter, &clock, "flood");
            assert_eq!(limiter.peek("alice").used(), 5);
            if by_refund {
                assert_eq!(limiter.refund("alice", 3).used(), 2);
                assert_eq!(limiter.refund("alice", 3).used(), 0);
            } else {
                assert!(limiter.reset("alice"));
            }
            clock.advance(Duration::from_secs(1));
            for _ in 0..10 {
                limiter.sweep(1000);
            }
            assert!(limiter.check_cost("alice", 5).is_allowed(), "{quota:?}, by refund: {by_refund}");
        }
    }
}

fn gate(policies: impl IntoIterator<Item = Policy>, max_keys: usize) -> (Gate, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
    (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
}

/// After a bad deploy all keys of a policy are to start afresh, also those that were pushed out, and
/// none of another.
#[test]
fn a_policy_is_reset_with_its_evicted_keys() {
    let policy = |name| Policy::new(name, Quota::per_hour(5)).unwrap().with_scope(["user"]);
    let (gate, _clock) = gate([policy("a"), policy("b")], 1000);
    let ask = |user: usize, policy: &str| {
        gate.check(&Request::new().with("user", &user.to_string()).under(policy).with_cost(5)).is_allowed()
    };
    // Where keys meet depends on a random seed: of a thousand, one or two may meet a key of their own policy.
    let admitted = |policy| -> Vec<usize> { (0..900).filter(|user| ask(*user, policy)).collect() };
    let [a, b] = ["a", "b"].map(admitted);
    assert!(a.len() > 890 && b.len() > 890, "{} and {}", a.len(), b.len());
    assert!(gate.store().stats().dropped > 700);
    gate.reset_policy("a").unwrap();
    assert!(b.iter().all(|user| !ask(*user, "b")));
    let admitted = admitted("a").len();
    assert!(admitted > 890, "{admitted}");
}

/// A flood of one policy's keys must not deny the users of another one.
#[test]
fn a_flood_of_one_policy_leaves_newcomers_of_another_their_limit() {
    let policy = |name| Policy::new(name, Quota::per_hour(5)).unwrap().with_scope(["user"]);
    let (gate, _clock) = gate([policy("login"), policy("search")], 2000);
    let ask = |user: usize, policy: &str| {
        gate.check(&Request::new().with("user", &user.to_string()).under(policy).with_cost(5)).is_allowed()
    };
    let flood = (0..100_000).filter(|user| ask(*user, "login")).count();
    assert!(flood < 50_000, "the flood denies itself: {flood}");
    // Where keys meet depends on a random seed: of a thousand, one or two may meet a key of their own policy.
    let admitted = (0..1000).filter(|user| ask(*user, "search")).count();
    assert!(admitted > 990, "{admitted}");
}

/// Changed policies hold for evicted keys as for others.
#[test]
fn a_changed_quota_holds_for_evicted_keys() {
    let secs = |limit, secs| Quota::new(limit, Duration::from_secs(secs)).unwrap();
    for quota in each(secs(5, 60)) {
        let (limiter, clock) = limiter(quota, 100);
        let _ = limiter.check_cost("alice", 5);
        push_out(&limiter, &clock, "flood");
        limiter.configure(secs(8, 3600).with_algorithm(quota.algorithm()));
        assert_eq!(rest(&limiter, "alice"), 3, "{quota:?}: the higher limit");
        push_out(&limiter, &clock, "more");
        // Under the longer window; nobody is new in an empty store of another algorithm.
        clock.advance(Duration::from_secs(60));
        assert!(limiter.check_cost("alice", 2).is_denied(), "{quota:?}: the longer window");
        let other = Algorithm::ALL.into_iter().find(|other| *other != quota.algorithm()).unwrap();
        limiter.configure(secs(8, 3600).with_algorithm(other));
        assert!(limiter.check_cost("alice", 8).is_allowed(), "{quota:?}: starts afresh");
    }
}

/// Customers with a monthly allowance are quiet for weeks, and must not get it twice for that.
#[test]
fn an_evicted_key_owes_until_the_end_of_its_month() {
    let (limiter, clock) = limiter(Quota::calendar(5, Calendar::month()), 100);
    let decision = limiter.check_cost("alice", 5);
    push_out(&limiter, &clock, "flood");
    let border = decision.reset_at();
    for before_us in [20 * 86_400_000_000, 3_600_000_000, 200_000, 100_000, 1] {
        clock.set(Timestamp::from_micros(border.as_micros().max(before_us) - before_us));
        assert!(limiter.check("alice").is_denied(), "{before_us} us before the border");
    }
    clock.set(border);
    assert!(limiter.check_cost("alice", 5).is_allowed(), "not a moment longer");
}

/// What a request brings as its quota must not let it start again.
#[test]
fn an_evicted_key_owes_under_quotas_that_come_with_requests() {
    for algorithm in Algorithm::ALL {
        let policy = Policy::new("p", Quota::per_hour(5).with_algorithm(algorithm)).unwrap();
        let (gate, clock) = gate([policy.with_scope(["user"])], 100);
        let ask = |user: &str, secs, cost| {
            let quota = Quota::new(5, Duration::from_secs(secs)).unwrap().with_algorithm(algorithm);
            gate.check(&Request::new().with("user", user).with_cost(cost).with_quota(quota)).is_allowed()
        };
        assert!(ask("alice", 60, 4));
        clock.advance(Duration::from_secs(1));
        for n in 0..200 {
            ask(&n.to_string(), 60, 5);
        }
        // Used in the last hour are 4, whatever the quota was then.
        assert!(ask("alice", 3600, 1) && !ask("alice", 3600, 1), "{algorithm}");
        for n in 200..400 {
            ask(&n.to_string(), 3600, 5);
        }
        clock.advance(Duration::from_secs(30));
        assert!(!ask("alice", 3600, 2), "{algorithm}");
    }
}

/// Callers who settle late must not get more than the limit because others came meanwhile.
#[test]
fn what_is_settled_on_an_evicted_key_adds_to_what_it_owes() {
    for quota in each(Quota::per_hour(10)) {
        let (gate, clock) = gate([Policy::new("p", quota).unwrap().with_scope(["user"])], 100);
        fn request(user: &str, cost: u64) -> Request<'_> {
            Request::new().with("user", user).with_cost(cost)
        }
        let flood = |name: &str| {
            clock.advance(Duration::from_secs(1));
            for n in 0..200 {
                let _ = gate.check(&request(&format!("{name}-{n}"), 10));
            }
        };
        assert!(gate.check(&request("alice", 3)).is_allowed());
        let held = request("alice", 4);
        let reserved = gate.reserve(&held);
        let ticket = reserved.into_ticket().expect("it fits");
        flood("a");
        assert!(gate.check(&request("alice", 4)).is_denied(), "{quota:?}: 3 are used and 4 held");
        gate.settle(&ticket, 5).unwrap();
        flood("b");
        assert!(gate.check(&request("alice", 3)).is_denied(), "{quota:?}: 8 are used");
        assert!(gate.check(&request("alice", 2)).is_allowed(), "{quota:?}");
    }
}

/// A store that was full once must not keep the memory of that.
#[test]
fn debts_take_memory_only_while_they_count() {
    let (limiter, clock) = limiter(Quota::per_minute(5), 1000);
    let estimate = MemoryStore::builder().max_keys(1000).estimate(0).bytes;
    let empty = limiter.stats().bytes;
    for n in 0..1000 {
        let _ = limiter.check(format!("key-{n}"));
    }
    let full = limiter.stats().bytes;
    let _ = limiter.check("one more");
    assert_eq!(limiter.stats().bytes - full, estimate - empty);
    clock.advance(Duration::from_secs(120));
    for _ in 0..20 {
        limiter.sweep(10_000);
    }
    assert!(limiter.stats().bytes <= full, "{:?}", limiter.stats());
    assert_eq!(limiter.stats().keys, 0);
}

/// One step of a history of many keys.
#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Check(usize, u64),
    Peek(usize),
    Refund(usize, u64),
    Penalize(usize, u64),
    Reset(usize),
    Limit(u64),
    Window(u64),
    Sweep,
}

const KEYS: usize = 12;

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let advance =
        prop_oneof![0u64..1_000, 0u64..400_000, 0u64..4_000_000, (0u64..40).prop_map(|n| n * 250_000)];
    prop_oneof![
        8 => advance.prop_map(Step::Advance),
        24 => (key.clone(), 0u64..5).prop_map(|(key, cost)| Step::Check(key, cost)),
        2 => key.clone().prop_map(Step::Peek),
        2 => (key.clone(), 0u64..8).prop_map(|(key, cost)| Step::Refund(key, cost)),
        1 => (key.clone(), 0u64..200).prop_map(|(key, cost)| Step::Penalize(key, cost)),
        1 => key.prop_map(Step::Reset),
        1 => (0u64..12).prop_map(Step::Limit),
        1 => (20u64..10_000).prop_map(Step::Window),
        1 => Just(Step::Sweep),
    ]
}

/// Takes the steps, and compares each key with the definition of its algorithm.
fn is_never_less_strict(mut quota: Quota, max_keys: usize, steps: Vec<Step>) {
    let mut now = 1_000_000_000;
    let clock = ManualClock::at(Timestamp::from_micros(now));
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
    let limiter = Limiter::with_store(quota, store);
    let mut models: Vec<Model> = (0..KEYS).map(|_| Model::new(&quota)).collect();
    let name = |key: usize| format!("key-{key}");
    for (number, step) in steps.into_iter().enumerate() {
        let what = format!("step {number}: {step:?} under {quota:?}");
        models.iter_mut().for_each(|model| model.settle(now));
        let mut limits = None;
        match step {
            Step::Advance(us) => {
                now += us;
                clock.advance(Duration::from_micros(us));
                models.iter_mut().for_each(|model| model.settle(now));
            }
            Step::Check(key, cost) => {
                if limiter.check_cost(name(key), cost).is_allowed() {
                    let used = models[key].used_at(now);
                    assert!(cost == 0 || used + cost <= quota.capacity(), "{what}: admitted after {used}");
                    models[key].charge(now, cost);
                }
            }
            Step::Peek(key) => assert_eq!(limiter.peek(name(key)).cost(), 0),
            Step::Refund(key, cost) => {
                models[key].refund(now, limiter.refund(name(key), cost).cost());
            }
            Step::Penalize(key, cost) => {
                models[key].penalize(now, limiter.penalize(name(key), cost).cost());
            }
            Step::Reset(key) => {
                limiter.reset(name(key));
                models[key] = Model::new(&quota);
            }
            Step::Limit(limit) => limits = Some((limit, quota.window())),
            Step::Window(ms) => limits = Some((quota.limit(), Duration::from_millis(ms))),
            Step::Sweep => {
                limiter.sweep(100);
            }
        }
        if let Some((limit, window)) = limits {
            quota = Quota::new(limit, window).unwrap().with_algorithm(quota.algorithm());
            models.iter_mut().for_each(|model| model.configure(&quota));
            limiter.configure(quota);
        }
        for (key, model) in models.iter().enumerate() {
            let (found, used) = (limiter.peek(name(key)).used(), model.used_at(now));
            assert!(found >= used, "{what}: `key-{key}` used {used}, and the store says {found}");
            assert!(found == used || limiter.stats().dropped > 0, "{what}: nothing was evicted");
        }
        assert!(limiter.stats().keys <= max_keys, "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is evicted when, a key may be denied too long and never too short.
    #[test]
    fn a_full_store_is_only_ever_stricter(
        limit in 0u64..12, ms in 20u64..10_000, max_keys in 1usize..14,
        steps in proptest::collection::vec(step(), 0..250)
    ) {
        for quota in each(Quota::new(limit, Duration::from_millis(ms)).unwrap()) {
            is_never_less_strict(quota, max_keys, steps.clone());
        }
    }

    /// The same for requests under two policies of different windows and algorithms, which share a store.
    #[test]
    fn a_full_store_is_only_ever_stricter_under_several_policies(
        max_keys in 1usize..14, first in 0usize..4, second in 0usize..4,
        steps in proptest::collection::vec((0u64..3_000_000, 0..KEYS, 0u64..4, 0usize..12), 0..250)
    ) {
        let quotas = [
            Quota::new(4, Duration::from_secs(1)).unwrap().with_algorithm(Algorithm::ALL[first]),
            Quota::new(9, Duration::from_secs(20)).unwrap().with_algorithm(Algorithm::ALL[second]),
        ];
        let policies = ["short", "long"].into_iter().zip(quotas);
        let policies = policies.map(|(name, quota)| Policy::new(name, quota).unwrap().with_scope(["user"]));
        let (gate, clock) = gate(policies, max_keys);
        let mut now = 1_800_000_000_000_000;
        let mut models = [(); KEYS].map(|()| quotas.map(|quota| Model::new(&quota)));
        for (us, key, cost, verb) in steps {
            now += us;
            clock.advance(Duration::from_micros(us));
            models.iter_mut().flatten().for_each(|model| model.settle(now));
            let user = key.to_string();
            let request = Request::new().with("user", &user).with_cost(cost);
            match verb {
                0 => {
                    gate.reset(&request).unwrap();
                    models[key] = quotas.map(|quota| Model::new(&quota));
                }
                1 => {
                    let given: Vec<_> = gate.refund(&request).iter().map(|one| one.decision().cost()).collect();
                    for (model, cost) in models[key].iter_mut().zip(given) {
                        model.refund(now, cost);
                    }
                }
                _ => if gate.check(&request).is_allowed() {
                    for (model, quota) in models[key].iter_mut().zip(quotas) {
                        let used = model.used_at(now);
                        prop_assert!(cost == 0 || used + cost <= quota.capacity(), "{quota:?}: {used}");
                        model.charge(now, cost);
                    }
                }
            }
        }
    }
}
