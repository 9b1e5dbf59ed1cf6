//! Weighted costs: sums of costs times weights, exact to a millionth of a unit.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use slidegate::reserve::{Extension, HoldStatus, Unsettled};
use slidegate::store::SnapshotFile;
use slidegate::{
    Algorithm, Amount, Amounts, Counts, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_testkit::TempDir;

const LIMIT: u64 = 5;
const MILLION: u64 = 1_000_000;
/// In millionths.
const WEIGHTS: [(&str, u64); 3] = [("input", 200_000), ("cached", 3), ("output", 1_000_000)];

fn weights() -> Counts {
    let weight = |(name, millionths): (&str, u64)| (name.to_owned(), Amount::from_millionths(millionths));
    Counts::Weighted(WEIGHTS.map(weight).into())
}

fn gate(policies: impl IntoIterator<Item = Policy>, clock: &ManualClock) -> Gate {
    let store = MemoryStore::builder().clock(clock.clone()).build();
    Gate::with_memory(PolicySet::new(policies).unwrap(), store)
}

fn spend(algorithm: Algorithm) -> Policy {
    let quota = Quota::per_minute(LIMIT).with_algorithm(algorithm);
    Policy::new("spend", quota).unwrap().with_scope(["user"]).with_counts(weights())
}

fn alice<'r>(costs: &[(&'r str, u64)]) -> Request<'r> {
    Request::new().with("user", "alice").with_cost(costs)
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Decide(Verb, [u64; 3]),
    /// Reserves the first, and settles to the second.
    Reserve([u64; 3], [u64; 3]),
}

fn step() -> impl Strategy<Value = Step> {
    let costs = || [0..12u64, 0..3_000_000, 0..4];
    let verb = prop_oneof![
        4 => Just(Verb::Check),
        1 => Just(Verb::Peek),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Penalize)
    ];
    prop_oneof![
        2 => (0..40_000_000u64).prop_map(Step::Wait),
        4 => (verb, costs()).prop_map(|(verb, costs)| Step::Decide(verb, costs)),
        1 => (costs(), costs()).prop_map(|(held, cost)| Step::Reserve(held, cost)),
    ]
}

fn named(costs: [u64; 3]) -> [(&'static str, u64); 3] {
    std::array::from_fn(|at| (WEIGHTS[at].0, costs[at]))
}

/// In millionths.
fn all_of(amounts: Amounts) -> [u128; 5] {
    let Amounts { limit, used, held, remaining, cost, .. } = amounts;
    [limit, used, held, remaining, cost].map(Amount::millionths)
}

fn sum(costs: [u64; 3]) -> u64 {
    costs.iter().zip(WEIGHTS).map(|(cost, (_, weight))| cost * weight).sum()
}

proptest! {
    /// A limit of 5 with weights is one of five million on sums that the client computed, and says so in units.
    #[test]
    fn weights_are_sums_of_millionths(steps in vec(step(), 1..40)) {
        for algorithm in Algorithm::ALL {
            let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
            let quota = Quota::per_minute(LIMIT * MILLION).with_algorithm(algorithm);
            let plain = Policy::new("spend", quota).unwrap().with_scope(["user"]);
            let (weighed, plain) = (gate([spend(algorithm)], &clock), gate([plain], &clock));
            for step in &steps {
                match *step {
                    Step::Wait(us) => clock.advance(Duration::from_micros(us)),
                    Step::Decide(verb, costs) => {
                        let (one, other) = (alice(&named(costs)), Request::new().with("user", "alice").with_cost(sum(costs)));
                        let requests = ([one], [other]);
                        let (one, other) = (weighed.apply_all(verb, &requests.0), plain.apply_all(verb, &requests.1));
                        let (one, other) = (one.strictest().unwrap(), other.strictest().unwrap());
                        let (amounts, counts) = (all_of(one.decision().amounts()), all_of(other.decision().amounts()));
                        prop_assert_eq!(amounts, counts.map(|units| units / u128::from(MILLION)));
                        prop_assert_eq!(one.decision().verdict(), other.decision().verdict());
                        prop_assert_eq!(one.decision().retry_after(), other.decision().retry_after());
                        prop_assert_eq!(one.decision().used(), other.decision().used().div_ceil(MILLION));
                        prop_assert_eq!(one.decision().remaining(), other.decision().remaining() / MILLION);
                    }
                    Step::Reserve(held, cost) => {
                        let requests = (alice(&named(held)), Request::new().with("user", "alice").with_cost(sum(held)));
                        let (one, other) = (weighed.reserve(&requests.0), plain.reserve(&requests.1));
                        prop_assert_eq!(one.decisions().is_allowed(), other.decisions().is_allowed());
                        let Some((one, other)) = one.into_ticket().zip(other.into_ticket()) else { continue };
                        let one = weighed.settle(&one, &named(cost)[..]).unwrap();
                        let other = plain.settle(&other, sum(cost)).unwrap();
                        let used = |settled: &slidegate::reserve::Settlement| settled.iter().next().map(|key| key.decision().amounts().used);
                        let other = used(&other).map(|used| Amount::from_millionths(used.ceil()));
                        prop_assert_eq!(used(&one), other);
                    }
                }
            }
        }
    }
}

/// A number without a name is in units, with decimals or without.
#[test]
fn a_bare_cost_is_in_units() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let gate = gate([spend(Algorithm::SlidingLog)], &clock);
    let request = Request::new().with("user", "alice");
    let used = |request: &Request<'_>| {
        gate.check(request).strictest().unwrap().decision().amounts().used.to_string()
    };
    assert_eq!(used(&request), "1", "a cost that is not said is 1");
    assert_eq!(used(&request.clone().with_cost(2)), "3");
    assert_eq!(used(&request.clone().with_cost("0.25".parse::<Amount>().unwrap())), "3.25");
    assert!(gate.check(&request.clone().with_cost(2)).is_denied(), "1.75 remain");
    assert!(gate.check(&request.with_cost("1.75".parse::<Amount>().unwrap())).is_allowed());
}

/// Under a policy that counts whole units, decimals are not free.
#[test]
fn decimals_are_rounded_up_where_they_do_not_count() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let policy = |name, counts| Policy::new(name, Quota::per_minute(9)).unwrap().with_counts(counts);
    let gate = gate([policy("cost", Counts::Cost), policy("requests", Counts::Requests)], &clock);
    let decisions = |cost: &str| {
        let request = Request::new().with_cost(cost.parse::<Amount>().unwrap());
        gate.check(&request).iter().map(|one| one.decision().used()).collect::<Vec<_>>()
    };
    assert_eq!(decisions("0.01"), [1, 1]);
    assert_eq!(decisions("2.5"), [4, 2]);
    assert_eq!(decisions("0"), [4, 2]);
}

/// Overrides, tiers, estimates and what is learned are in units as well.
#[test]
fn all_limits_of_a_policy_are_in_units() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let policy = spend(Algorithm::TokenBucket)
        .with_override(["vip"], Quota::per_minute(40).with_algorithm(Algorithm::TokenBucket).with_burst(80))
        .with_tiers("plan", [("pro", Quota::per_minute(20).with_algorithm(Algorithm::TokenBucket))])
        .with_estimate("0.5".parse::<Amount>().unwrap());
    let gate = gate([policy], &clock);
    let limit = |request: Request<'_>| {
        let decisions = gate.peek(&request);
        let one = decisions.strictest().unwrap();
        (one.decision().limit(), one.quota().limit())
    };
    assert_eq!(limit(Request::new().with("user", "bob")), (5, 5));
    assert_eq!(limit(Request::new().with("user", "bob").with("plan", "pro")), (20, 20));
    assert_eq!(limit(Request::new().with("user", "vip")), (80, 40));
    let bob = Request::new().with("user", "bob");
    let held = gate.reserve(&bob);
    assert_eq!(held.decisions().strictest().unwrap().decision().amounts().held.to_string(), "0.5");
    let ticket = held.into_ticket().unwrap();
    let settled = gate.settle(&ticket, [("output", 2), ("cached", 1)]).unwrap();
    let settled = settled.iter().next().unwrap();
    assert_eq!(settled.last().unwrap().cost.to_string(), "2.000003");
    let found = gate.inspect(&bob).unwrap().remove(0);
    assert_eq!((found.quota.limit(), found.decision.amounts().used.to_string()), (5, "2.000003".to_owned()));
    assert_eq!(gate.policies().by_name("spend").unwrap().quota().limit(), 5);
}

/// Who lowers a limit, or restarts, keeps what was spent.
#[test]
fn usage_is_kept_when_limits_change() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    for algorithm in Algorithm::ALL {
        let gate = gate([spend(algorithm)], &clock);
        assert!(gate.check(&alice(&[("input", 12), ("output", 1)])).is_allowed(), "3.4");
        let lowered = spend(algorithm).with_quota(Quota::per_minute(4).with_algorithm(algorithm));
        gate.configure(PolicySet::new([lowered]).unwrap()).unwrap();
        let decisions = [
            gate.peek(&alice(&[("output", 1)])).is_allowed(),
            gate.peek(&alice(&[("input", 3)])).is_allowed(),
        ];
        assert_eq!(decisions, [false, true], "{algorithm}");
    }
}

/// Five units would be five millionths, and four million millionths four million units: in a running gate, and after a
/// restart with other policies.
#[test]
fn usage_in_units_and_in_millionths_is_kept_apart() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let set = |policy| PolicySet::new([policy]).unwrap();
    let plain = || spend(Algorithm::SlidingLog).with_counts(Counts::Cost);
    let used = |gate: &Gate| gate.peek(&alice(&[("output", 1)])).strictest().unwrap().decision().used();
    let gate = gate([spend(Algorithm::SlidingLog)], &clock);
    assert!(gate.check(&alice(&[("output", 4)])).is_allowed());

    let folder = TempDir::new("weights-restart");
    let mut file = SnapshotFile::open(folder.path().join("usage")).unwrap();
    gate.save_to(&mut file, &[]).unwrap();
    for (policy, expected) in [(plain(), 0), (spend(Algorithm::SlidingLog), 4)] {
        assert!(file.read().unwrap());
        let store = MemoryStore::builder().clock(clock.clone()).for_snapshot(&file).build();
        let restarted = Gate::with_memory(set(policy), store);
        restarted.restore(&mut file).unwrap().unwrap();
        assert_eq!(used(&restarted), expected);
    }

    gate.configure(set(plain())).unwrap();
    assert_eq!(used(&gate), 0);
    assert!(gate.check(&alice(&[("output", 5)])).is_allowed());
    let heavier = Counts::Weighted(vec![("output".to_owned(), 2.into())]);
    gate.configure(set(spend(Algorithm::SlidingLog).with_counts(heavier))).unwrap();
    assert_eq!(used(&gate), 4, "other weights leave what was charged as it was charged");
    assert!(gate.check(&alice(&[("output", 1)])).is_denied(), "4 of 5 are used, and it weighs 2");
}

/// A typo must not lift a limit: neither may the other costs of the request hide it.
#[test]
fn an_unknown_name_beside_a_missing_one_is_an_error() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let gate = gate([spend(Algorithm::SlidingLog)], &clock);
    let mistyped = alice(&[("input", 1), ("cached", 1), ("outptu", 900)]);
    let decisions = gate.check(&mistyped);
    assert!(decisions.is_denied());
    assert_eq!(
        decisions.error().unwrap().to_string(),
        "unknown cost `outptu`: no policy counts it, and policy `spend` counts `output`, which is missing; correct \
         the name, or add `output`"
    );
    assert!(gate.check(&alice(&[("input", 1)])).is_allowed(), "what is left out costs nothing");
}

/// The unit of a quota in a request is not known.
#[test]
fn a_quota_of_the_request_is_refused() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let gate = gate([spend(Algorithm::SlidingLog)], &clock);
    let request = alice(&[("input", 1)]).under("spend").with_quota(Quota::per_minute(100));
    let decisions = gate.check(&request);
    assert!(decisions.is_denied());
    assert!(decisions.error().unwrap().to_string().contains("quota of its own"), "{decisions:?}");
}

#[test]
fn weights_and_limits_out_of_range_are_refused_by_name() {
    let error = |weights: Vec<(&str, &str)>, limit| {
        let weights = weights.into_iter().map(|(name, weight)| (name.to_owned(), weight.parse().unwrap()));
        let policy = Policy::new("p", Quota::per_minute(limit)).unwrap();
        let set = PolicySet::new([policy.with_counts(Counts::Weighted(weights.collect()))]);
        set.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(error(vec![("a", "0"), ("b", "1000000")], Counts::MAX_WEIGHTED_LIMIT), Ok(()));
    assert_eq!(error(vec![], 1).unwrap_err(), "policy `p`: invalid weights (0 of them): must be 1 to 16");
    assert_eq!(
        error(vec![("a", "1000000.000001")], 1).unwrap_err(),
        "policy `p`: invalid weight `1000000.000001` of `a`: must be 0 to 1000000, for example `0.25`"
    );
    assert_eq!(
        error(vec![("a", "1"), ("a", "2")], 1).unwrap_err(),
        "policy `p`: invalid weights: `a` has two; remove one"
    );
    assert_eq!(
        error(vec![("a", "1")], 8_000_000_001).unwrap_err(),
        "policy `p`: invalid limit `8000000001`: a policy that weighs costs counts millionths; must be at most 8000000000"
    );
}

/// However large a cost is, it is more than the limit, and not what remains after an overflow.
#[test]
fn a_huge_cost_is_denied() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    for algorithm in Algorithm::ALL {
        let gate = gate([spend(algorithm)], &clock);
        for costs in [vec![("output", u64::MAX)], vec![("input", u64::MAX), ("output", u64::MAX)]] {
            assert!(gate.check(&alice(&costs)).is_denied(), "{algorithm}");
        }
        assert!(gate.check(&Request::new().with("user", "alice").with_cost(u64::MAX)).is_denied());
        let _ = gate.penalize(&alice(&[("output", u64::MAX)]));
        assert!(gate.check(&alice(&[("cached", 1)])).is_denied(), "{algorithm}");
    }
}

/// Beside policies that count otherwise, each says what it counts, and the strictest is the one with the fewest units.
#[test]
fn policies_with_and_without_weights_decide_one_request() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let requests = Policy::new("requests", Quota::per_minute(3)).unwrap().with_counts(Counts::Requests);
    let output = Policy::new("output", Quota::per_minute(100)).unwrap().with_counts(Counts::named("output"));
    let gate = gate([spend(Algorithm::FixedWindow), requests, output], &clock);
    let request = alice(&[("input", 5), ("output", 2)]);
    let decisions = gate.check(&request);
    let used: Vec<_> = decisions.iter().map(|one| one.decision().amounts().used.to_string()).collect();
    assert_eq!(used, ["3", "1", "2"]);
    assert_eq!(
        decisions.strictest().unwrap().policy().name(),
        "spend",
        "2 remain of each, in the order of policies"
    );
    assert!(gate.check(&request).is_denied());
    let used: Vec<_> = gate.peek(&request).iter().map(|one| one.decision().used()).collect();
    assert_eq!(used, [3, 1, 2], "nothing was charged");
}

/// A hold of money that is never settled is charged in full, in millionths.
#[test]
fn a_hold_that_expires_is_charged_exactly() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let policy = spend(Algorithm::SlidingLog).with_unsettled(Unsettled::Charge);
    let gate = gate([policy], &clock);
    let request = alice(&[("cached", 1)]);
    let held = gate.reserve_for(&request, Duration::from_secs(1)).unwrap();
    assert!(held.decisions().is_allowed());
    clock.advance(Duration::from_secs(2));
    assert_eq!(gate.peek(&request).strictest().unwrap().decision().amounts().used.to_string(), "0.000003");
}

/// A request that runs while weights are added or removed was reserved in the unit of before: a settlement in the other
/// one would be a million times too much, or nothing.
#[test]
fn a_reservation_is_not_settled_in_another_unit() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let plain = || spend(Algorithm::SlidingLog).with_counts(Counts::Cost);
    for (before, after) in [(spend(Algorithm::SlidingLog), plain()), (plain(), spend(Algorithm::SlidingLog))]
    {
        let gate = gate([before.clone()], &clock);
        let configure = |policy: &Policy| gate.configure(PolicySet::new([policy.clone()]).unwrap()).unwrap();
        let request = alice(&[("output", 4)]);
        let ticket = gate.reserve(&request).into_ticket().unwrap();
        configure(&after);
        for settlement in [
            gate.settle(&ticket, &[("output", 1)][..]),
            gate.extend(&ticket, Extension::new()),
            gate.cancel(&ticket),
        ] {
            assert_eq!(settlement.unwrap().status(), HoldStatus::Unknown);
        }
        assert_eq!(gate.peek(&request).strictest().unwrap().decision().used(), 0);
        configure(&before);
        assert_eq!(gate.peek(&request).strictest().unwrap().decision().held(), 4);
        assert_eq!(gate.settle(&ticket, &[("output", 1)][..]).unwrap().status(), HoldStatus::Changed);
        assert_eq!(gate.peek(&request).strictest().unwrap().decision().used(), 1);
    }
}
