//! Cases of reservations, one by one, with every number.

use slidegate::{
    Algorithm, Block, Counts, Reason,
    reserve::{Extension, HoldStatus, Unsettled},
};

use super::*;

fn log() -> Bench {
    Bench::under(Quota::per_minute(100))
}

/// What is held counts in full, and what is settled counts from when it is settled.
#[test]
fn a_hold_counts_until_it_is_settled_and_then_counts_what_it_cost() {
    let bench = log();
    let ticket = bench.reserve(60, secs(60));
    assert_eq!(bench.usage(), (0, 60, 40));
    bench.at(secs(1));
    // The hold ends at 60 s and is charged then, so it counts to 120 s.
    assert_eq!(bench.try_reserve(50, secs(60)), Err(Some(secs(119))));
    bench.at(secs(10));
    let settled = bench.settle(&ticket, 20);
    assert_eq!((settled.status(), only(&settled).cost()), (HoldStatus::Changed, 20));
    assert_eq!(bench.usage(), (20, 0, 80));
    let _open = bench.reserve(50, secs(60));
    assert_eq!(bench.usage(), (20, 50, 30));
}

/// Clients repeat a call that was not answered; it must not charge twice.
#[test]
fn a_settlement_that_is_repeated_charges_nothing() {
    let bench = log();
    let ticket = bench.reserve(60, secs(60));
    bench.at(secs(10));
    bench.settle(&ticket, 20);
    bench.at(secs(11));
    for cost in [20, 90] {
        assert_eq!(bench.settle(&ticket, cost).status(), HoldStatus::AlreadySettled);
        assert_eq!(bench.usage(), (20, 0, 80));
    }
    bench.at(secs(70) - micros(1));
    assert_eq!(bench.usage().0, 20);
    bench.at(secs(70));
    assert_eq!(bench.usage(), (0, 0, 100));
}

/// A request that took more than was held has still taken it.
#[test]
fn a_cost_above_the_hold_is_charged_in_full() {
    for (cost, remaining) in [(90, 10), (150, 0)] {
        let bench = log();
        let ticket = bench.reserve(60, secs(60));
        bench.at(secs(5));
        bench.settle(&ticket, cost);
        assert_eq!(bench.usage(), (cost, 0, remaining));
        assert_eq!(bench.wait(11), Some(secs(60)));
    }
}

/// A client that never settles must not keep capacity, nor get it for nothing.
#[test]
fn a_hold_that_is_not_settled_is_charged_when_its_time_is_over() {
    for first_touch in [30, 80] {
        let bench = log();
        let ticket = bench.reserve(60, secs(30));
        if first_touch == 30 {
            bench.at(secs(30) - micros(1));
            assert_eq!(bench.usage(), (0, 60, 40));
        }
        bench.at(secs(first_touch));
        assert_eq!(bench.usage(), (60, 0, 40));
        assert_eq!(bench.wait(41), Some(secs(90 - first_touch)));
        bench.at(secs(90) - micros(1));
        assert!(bench.wait(41) > Some(Duration::ZERO));
        bench.at(secs(90));
        assert_eq!(bench.usage(), (0, 0, 100));
        drop(ticket);
    }
}

/// A late settlement charges what the hold's time did not, and gives nothing back: whose charge
/// would it be?
#[test]
fn a_late_settlement_charges_only_what_exceeds_the_hold() {
    for (cost, used) in [(70, 70), (20, 60)] {
        let bench = log();
        let ticket = bench.reserve(60, secs(30));
        bench.at(secs(40));
        let settled = bench.settle(&ticket, cost);
        assert_eq!(settled.status(), HoldStatus::Expired);
        assert_eq!(bench.usage().0, used, "settled {cost}");
        bench.at(secs(41));
        assert_eq!(bench.settle(&ticket, cost).status(), settled.status());
        assert_eq!(bench.usage().0, used, "settled {cost} twice");
        // What exceeds the hold was charged at 40 s.
        bench.at(secs(90));
        assert_eq!(bench.usage().0, used - 60, "settled {cost}");
    }
}

/// Gateways that lose many tickets choose to charge only what they know.
#[test]
fn a_forgotten_hold_is_free_until_it_is_settled_late() {
    let policy = Policy::new("tokens", Quota::per_minute(100)).unwrap().with_unsettled(Unsettled::Forget);
    let bench = Bench::new([policy]);
    let ticket = bench.reserve(60, secs(30));
    bench.at(secs(30));
    assert_eq!(bench.usage(), (0, 0, 100));
    bench.at(secs(40));
    bench.settle(&ticket, 20);
    assert_eq!(bench.usage(), (20, 0, 80));
    // Repeated within a minute, it charges what is more than before, and nothing else.
    for (second, cost, used) in [(41, 20, 20), (60, 10, 20), (99, 25, 25), (99, 25, 25)] {
        bench.at(secs(second));
        assert_eq!(bench.settle(&ticket, cost).status(), HoldStatus::Expired);
        assert_eq!(bench.usage(), (used, 0, 100 - used), "{cost} at {second} s");
    }
}

/// Streams settle as they flow, so that what flowed early also ends early.
#[test]
fn parts_are_charged_as_they_arrive_whatever_their_order() {
    let bench = log();
    let mut ticket = bench.reserve(50, secs(10));
    for second in 1..10 {
        bench.at(secs(second));
        ticket = bench.gate.settle_so_far(&ticket, second * 5).unwrap().into_ticket();
        assert_eq!(bench.usage(), (second * 5, 50 - second * 5, 50));
    }
    bench.at(secs(10));
    bench.settle(&ticket, 50);
    assert_eq!(bench.usage(), (50, 0, 50));
    for second in 61..=70 {
        bench.at(secs(second) - micros(1));
        assert_eq!(bench.usage().0, (70 - second + 1) * 5, "before {second} s");
        bench.at(secs(second));
        assert_eq!(bench.usage().0, (70 - second) * 5, "at {second} s");
    }

    let bench = log();
    let ticket = bench.reserve(50, secs(10));
    for cost in [15, 5, 15, 40, 10, 40, 50, 25] {
        bench.gate.settle_so_far(&ticket, cost).unwrap();
    }
    bench.settle(&ticket, 45);
    assert_eq!(bench.usage(), (50, 0, 50));
}

/// A request that needs more asks for more, and keeps what it has if that is denied.
#[test]
fn an_extension_is_decided_like_a_check_and_time_alone_is_never_denied() {
    let bench = log();
    let ticket = bench.reserve(60, secs(30));
    bench.at(secs(5));
    let extended = bench.gate.extend(&ticket, Extension::new().with_total(90)).unwrap();
    assert_eq!(extended.status(), HoldStatus::Changed);
    let ticket = extended.into_ticket();
    assert_eq!(bench.usage(), (0, 90, 10));
    let denied = bench.gate.extend(&ticket, Extension::new().with_total(120)).unwrap();
    assert_eq!(denied.status(), HoldStatus::Denied);
    assert_eq!(bench.usage(), (0, 90, 10));
    // Full, and yet it may go on.
    let _other = bench.reserve(10, secs(60));
    bench.at(secs(30));
    let extended = bench.gate.extend(&ticket, Extension::new()).unwrap();
    assert_eq!(extended.status(), HoldStatus::Changed);
    bench.at(secs(60) - micros(1));
    assert_eq!(bench.usage(), (0, 100, 0));
    bench.at(secs(60));
    assert_eq!(bench.usage(), (90, 10, 0));
    assert_eq!(bench.gate.extend(extended.ticket(), Extension::new()).unwrap().status(), HoldStatus::Expired);
}

/// A request that turns out to be long asks for a longer time, which later heartbeats keep.
#[test]
fn an_extension_may_change_the_time_of_a_hold() {
    let bench = log();
    let ticket = bench.reserve(60, secs(30));
    bench.at(secs(10));
    let longer = Extension::new().with_ttl(secs(300)).unwrap();
    let ticket = bench.gate.extend(&ticket, longer).unwrap().into_ticket();
    assert_eq!(ticket.until(), Some(START + secs(310)));
    bench.at(secs(309));
    let ticket = bench.gate.extend(&ticket, Extension::new()).unwrap().into_ticket();
    assert_eq!((bench.usage(), ticket.until()), ((0, 60, 40), Some(START + secs(609))));
    let shorter = Extension::new().with_total(80).with_ttl(secs(1)).unwrap();
    assert_eq!(bench.gate.extend(&ticket, shorter).unwrap().status(), HoldStatus::Changed);
    assert_eq!(bench.usage(), (0, 80, 20));
    bench.at(secs(310));
    assert_eq!(bench.usage(), (80, 0, 20));
    assert_eq!(
        Extension::new().with_ttl(secs(7200)).unwrap_err().to_string(),
        "invalid ttl `2h`: must be 1ms to 1h; extend the hold, or settle it in parts, if the request takes longer"
    );
}

/// Holding the most that a request allows wastes most of the limit: what requests cost is learned.
#[test]
fn a_learned_estimate_is_the_percentile_of_settled_costs_and_outlives_a_reload() {
    let policy = || {
        let policy = Policy::new("tokens", Quota::per_minute(1_000_000)).unwrap();
        policy.with_counts(Counts::Named("output".to_owned())).with_estimate(5000).with_learned_estimate()
    };
    let bench = Bench::new([policy()]);
    let held = || {
        let request = Request::new();
        let ticket = bench.gate.reserve(&request).into_ticket().unwrap();
        let (_, held, _) = bench.usage();
        (ticket, held)
    };
    for n in 0..1024 {
        let (ticket, held) = held();
        assert_eq!(held, 5000, "until enough are known");
        // Only what a request cost in the end counts.
        bench.gate.settle_so_far(&ticket, [("output", 1)]).unwrap();
        bench.gate.settle(&ticket, [("input", 9999), ("output", n % 100)]).unwrap();
        bench.settle(&ticket, 100_000);
        if n % 100 == 0 {
            bench.clock.advance(secs(60));
        }
    }
    let (ticket, learned) = held();
    // Of 1,024, 922 cost 89 or less.
    assert_eq!(learned, 89);
    bench.gate.cancel(&ticket).unwrap();
    bench.gate.configure(PolicySet::new([policy()]).unwrap()).unwrap();
    assert_eq!(held().1, 89);
    let other = policy().with_counts(Counts::Cost);
    bench.gate.configure(PolicySet::new([other]).unwrap()).unwrap();
    assert_eq!(bench.gate.policies().by_name("tokens").unwrap().estimate(), Some(5000.into()));
}

/// One denied key must not leave another one extended.
#[test]
fn an_extension_changes_all_keys_or_none() {
    let tokens = |name, limit| Policy::new(name, Quota::per_minute(limit)).unwrap();
    let bench = Bench::new([tokens("wide", 1000), tokens("narrow", 100)]);
    let ticket = bench.reserve(60, secs(30));
    assert_eq!(
        bench.gate.extend(&ticket, Extension::new().with_total(120)).unwrap().status(),
        HoldStatus::Denied
    );
    let request = Request::new();
    let held: Vec<u64> = bench.gate.peek(&request).iter().map(|one| one.held()).collect();
    assert_eq!(held, [60, 60]);
}

/// A gateway limits requests, tokens per minute, tokens per day and what runs at once in one call.
#[test]
fn one_call_decides_rates_tokens_and_what_is_in_flight() {
    let policies = |in_flight: Option<u64>| {
        let policy = |name, quota| Policy::new(name, quota).unwrap();
        let mut all = vec![
            policy("rpm", Quota::per_minute(60)).with_counts(Counts::Requests),
            policy("tpm", Quota::per_minute(100_000)),
            policy("tpd", Quota::per_day(1_000_000)),
        ];
        all.extend(in_flight.map(|most| {
            policy("in-flight", Quota::in_flight(most, secs(30)).unwrap()).with_counts(Counts::Requests)
        }));
        all
    };
    for (in_flight, passing) in [(Some(4), 4), (None, 40)] {
        let bench = Bench::new(policies(in_flight));
        let request = Request::new().with_cost(2500);
        let tickets: Vec<_> = (0..50).filter_map(|_| bench.gate.reserve(&request).into_ticket()).collect();
        assert_eq!(tickets.len(), passing);
        let request = Request::new();
        let usage: Vec<_> = bench.gate.peek(&request).iter().map(|one| (one.used(), one.held())).collect();
        let passing = passing as u64;
        assert_eq!(usage[..3], [(passing, 0), (0, passing * 2500), (0, passing * 2500)]);
        assert!(in_flight.is_none() || usage[3] == (0, 4), "{usage:?}");
    }
}

/// A request that is refused for one reason must not use up another limit.
#[test]
fn a_denial_costs_no_rate_and_takes_no_permit() {
    for rpm in [2, 1] {
        let bench = Bench::new([
            Policy::new("rpm", Quota::per_minute(rpm)).unwrap().with_counts(Counts::Requests),
            Policy::new("in-flight", Quota::in_flight(1, secs(30)).unwrap()).unwrap(),
        ]);
        let request = Request::new();
        let ticket = bench.gate.reserve(&request).into_ticket().unwrap();
        let denied = bench.gate.reserve(&request);
        let denies: Vec<&str> =
            denied.iter().filter(|one| one.is_denied()).map(|one| one.policy().name()).collect();
        assert_eq!(denies.last(), Some(&"in-flight"));
        assert_eq!((denies.len() == 1, denied.ticket().is_none()), (rpm == 2, true));
        assert_eq!(bench.usage().0, 1);
        bench.at(secs(5));
        bench.settle(&ticket, 1);
        let third = bench.gate.reserve(&request);
        assert_eq!((third.is_allowed(), bench.usage().0), (rpm == 2, rpm));
        if rpm == 1 {
            assert_eq!(third.strictest().unwrap().retry_after(), Some(secs(55)));
        }
    }
}

/// A fresh key must always be usable, however large the estimate is; a cost that a caller states is
/// taken at its word.
#[test]
fn an_estimate_is_lowered_to_the_limit_and_a_stated_cost_is_not() {
    let bench = Bench::new([Policy::new("tokens", Quota::per_minute(100)).unwrap().with_estimate(1024)]);
    let request = Request::new();
    let ticket = bench.gate.reserve(&request).into_ticket().unwrap();
    assert_eq!(bench.usage(), (0, 100, 0));
    bench.settle(&ticket, 10);
    assert_eq!(bench.try_reserve(1024, secs(60)), Err(None));
    assert_eq!(bench.usage(), (10, 0, 90));
}

/// The other algorithms charge where they count: in the window, or in the bucket.
#[test]
fn windows_and_buckets_charge_what_is_settled_when_it_is_settled() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let bench = Bench::under(Quota::per_minute(100).with_algorithm(algorithm));
        bench.at(secs(59));
        let ticket = bench.reserve(60, secs(60));
        assert_eq!(bench.usage(), (0, 60, 40), "{algorithm}");
        bench.at(secs(61));
        assert_eq!(bench.usage(), (0, 60, 40), "{algorithm}");
        bench.settle(&ticket, 30);
        assert_eq!(bench.usage(), (30, 0, 70), "{algorithm}");
        bench.at(secs(120) - micros(1));
        assert_eq!(bench.usage(), (30, 0, 70), "{algorithm}");
    }
    let bench = Bench::under(Quota::per_minute(100).with_algorithm(Algorithm::TokenBucket).with_burst(100));
    let ticket = bench.reserve(60, secs(60));
    bench.at(secs(12));
    bench.settle(&ticket, 30);
    assert_eq!(bench.usage(), (30, 0, 70), "nothing drained while it was held");
    bench.at(secs(24));
    assert_eq!(bench.usage(), (10, 0, 90));
}

/// A request that never went upstream costs nothing, not even its place among the requests.
#[test]
fn a_cancelled_reservation_gives_everything_back_while_it_counts() {
    let bench = Bench::new([
        Policy::new("rpm", Quota::per_minute(60)).unwrap().with_counts(Counts::Requests),
        Policy::new("tpm", Quota::per_minute(100)).unwrap(),
    ]);
    let usage = || {
        let request = Request::new();
        let decisions = bench.gate.peek(&request);
        decisions.iter().map(|one| (one.used(), one.held())).collect::<Vec<_>>()
    };
    let (first, second) = (bench.reserve(50, secs(60)), bench.reserve(50, secs(60)));
    assert_eq!(usage(), [(2, 0), (0, 100)]);
    for _ in 0..3 {
        bench.gate.cancel(&first).unwrap();
        assert_eq!(usage(), [(1, 0), (0, 50)]);
    }
    bench.at(secs(61));
    let request = Request::new().with_cost(1);
    assert!(bench.gate.check(&request).is_allowed());
    bench.gate.cancel(&second).unwrap();
    assert_eq!(usage()[0], (1, 0), "what another request charged since stays");
}

/// Support asks why a key is full: somebody holds it.
#[test]
fn an_inspection_lists_open_holds_with_their_ends() {
    let bench = log();
    let first = bench.reserve(30, secs(60));
    let _second = bench.reserve(20, secs(10));
    bench.gate.settle_so_far(&first, 12).unwrap();
    let request = Request::new();
    let found = &bench.gate.inspect(&request).unwrap()[0];
    let holds: Vec<_> = found.holds.iter().map(|hold| (hold.held, hold.settled, hold.until)).collect();
    assert_eq!(holds, [(20, 0, START + secs(10)), (18, 12, START + secs(60))]);
    assert_eq!((found.decision.used(), found.decision.held()), (12, 38));
}

/// An operator who resets a key expects it to be empty, and stays it.
#[test]
fn a_reset_forgets_holds_and_their_tickets_charge_nothing() {
    let bench = log();
    let ticket = bench.reserve(60, secs(60));
    let request = Request::new();
    assert!(bench.gate.reset(&request).unwrap());
    assert_eq!(bench.usage(), (0, 0, 100));
    assert_eq!(bench.settle(&ticket, 60).status(), HoldStatus::AlreadySettled);
    assert_eq!(bench.usage(), (0, 0, 100));
    let _again = bench.reserve(60, secs(60));
    assert_eq!(bench.gate.reset_policy("tokens").unwrap(), 1);
    assert_eq!(bench.usage(), (0, 0, 100));
}

/// One client must not fill the memory with reservations of nothing much.
#[test]
fn a_key_holds_at_most_1024_and_says_so() {
    let bench = Bench::under(Quota::per_minute(10_000));
    let tickets: Vec<Ticket> = (0..1024).map(|n| bench.reserve(1, secs(10 + n % 7))).collect();
    let request = Request::new();
    let denied = bench.gate.reserve(&request);
    let strictest = denied.strictest().unwrap();
    assert_eq!(strictest.reason(), Some(Reason::TooManyHolds));
    assert_eq!(strictest.retry_after(), Some(secs(10)));
    // Checks need no hold.
    assert!(bench.gate.check(&request).is_allowed());
    bench.settle(&tickets[0], 1);
    assert!(bench.gate.reserve(&request).is_allowed());
}

/// Every key holding something must not take more memory than every key does.
#[test]
fn a_policy_has_at_most_half_as_many_holds_as_the_store_has_keys() {
    let store = MemoryStore::builder().max_keys(100).build();
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let reserve = |user: u32| {
        let user = user.to_string();
        let request = Request::new().with("user", &user);
        let reserved = gate.reserve(&request);
        let reason = reserved.strictest().unwrap().reason();
        reserved.into_ticket().ok_or(reason)
    };
    let tickets: Vec<Ticket> = (0..50).map(|user| reserve(user).unwrap()).collect();
    assert_eq!(reserve(100), Err(Some(Reason::StoreFull)));
    gate.settle(&tickets[7], 1).unwrap();
    assert!(reserve(100).is_ok());
}

/// Limits change while requests run: their holds go on, and end as they would have.
#[test]
fn holds_outlive_a_change_of_the_limit_and_the_window() {
    let bench = log();
    let ticket = bench.reserve(60, secs(30));
    let lapsing = bench.reserve(10, secs(5));
    bench.at(secs(10));
    let changed = Policy::new("tokens", Quota::new(50, secs(120)).unwrap()).unwrap();
    bench.gate.configure(PolicySet::new([changed]).unwrap()).unwrap();
    assert_eq!(bench.usage(), (10, 60, 0));
    bench.settle(&ticket, 20);
    assert_eq!(bench.usage(), (30, 0, 20));
    bench.at(secs(125));
    assert_eq!(bench.usage(), (20, 0, 30), "the lapsed hold was charged at 5 s");
    drop(lapsing);
    let renamed = Policy::new("other", Quota::per_minute(5)).unwrap();
    bench.gate.configure(PolicySet::new([renamed]).unwrap()).unwrap();
    assert_eq!(bench.settle(&ticket, 20).iter().len(), 0, "its policy is gone");
}

/// Overrides have other windows; a settlement must read a key as it was written.
#[test]
fn a_settlement_is_charged_under_the_override_of_its_key() {
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let bench = Bench::new([policy.with_override(["alice"], Quota::per_hour(500))]);
    let alice = Request::new().with("user", "alice").with_cost(400);
    let ticket = bench.gate.reserve(&alice).into_ticket().unwrap();
    let settled = bench.settle(&ticket, 300);
    assert_eq!((only(&settled).limit(), only(&settled).used()), (500, 300));
    bench.at(secs(61));
    assert_eq!(bench.gate.peek(&alice).strictest().unwrap().used(), 300);
}

/// Inline quotas that are equal to the policy's own were stored as the inline quotas of all keys of a shard,
/// so that extensions of the others were decided by the limit of before an operator lowered it.
#[test]
fn an_extension_meets_a_lowered_limit_beside_inline_quotas_that_are_equal_to_it() {
    let per_user = |limit| Policy::new("per-user", Quota::per_minute(limit)).unwrap().with_scope(["user"]);
    let users: Vec<_> = (0..1000).map(|user| format!("user-{user}")).collect();
    for control in ["limit", "override"] {
        let lower = |policy: Policy, user: &str| match control {
            "limit" => policy.with_quota(Quota::per_minute(5)),
            _ => policy.with_override([user], Quota::per_minute(5)),
        };
        let bench = Bench::new([per_user(100)]);
        // The first key of most shards.
        for user in &users[..500] {
            let own = Request::new().with("user", user).with_quota(Quota::per_minute(100));
            assert!(bench.gate.check(&own).is_allowed());
        }
        let reserve = |user: &String| {
            let request = Request::new().with("user", user).with_cost(5);
            bench.gate.reserve(&request).into_ticket().unwrap()
        };
        let tickets: Vec<_> = users[500..].iter().map(|user| (user, reserve(user))).collect();
        let policy = tickets.iter().fold(per_user(100), |policy, (user, _)| lower(policy, user));
        bench.gate.configure(PolicySet::new([policy]).unwrap()).unwrap();
        for (user, ticket) in &tickets {
            let extended = bench.gate.extend(ticket, Extension::new().with_total(6)).unwrap();
            assert_eq!(extended.status(), HoldStatus::Denied, "{control}: {user}");
        }
    }
}

/// A blocked client gets no reservation, and what it held before is settled as ever.
#[test]
fn a_blocked_key_reserves_nothing() {
    let per_user = || Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let bench = Bench::new([per_user()]);
    let alice = Request::new().with("user", "alice").with_cost(4);
    let ticket = bench.gate.reserve(&alice).into_ticket().unwrap();
    let blocked = per_user().with_block(["alice"], Block::forever());
    bench.gate.configure(PolicySet::new([blocked]).unwrap()).unwrap();
    let denied = bench.gate.reserve(&alice);
    assert_eq!(denied.strictest().unwrap().reason(), Some(Reason::Blocked));
    assert!(denied.ticket().is_none());
    assert_eq!(only(&bench.settle(&ticket, 3)).used(), 3);
}

/// A shadow policy that would deny holds nothing, and does not keep others from it.
#[test]
fn a_shadow_policy_that_denies_holds_nothing() {
    let policy = |name, limit| Policy::new(name, Quota::per_minute(limit)).unwrap();
    let bench = Bench::new([policy("shadow", 5).with_enforced(false), policy("tokens", 100)]);
    let ticket = bench.reserve(60, secs(30));
    assert_eq!(ticket.policies().collect::<Vec<_>>(), ["tokens"]);
    bench.settle(&ticket, 6);
    let request = Request::new();
    let used: Vec<u64> = bench.gate.peek(&request).iter().map(|one| one.used()).collect();
    assert_eq!(used, [0, 6]);
}

/// Clocks are set back; a hold must not last an hour longer for it.
#[test]
fn a_step_of_the_clock_makes_no_hold_longer() {
    let bench = log();
    bench.at(secs(7200));
    let _held = bench.reserve(60, secs(30));
    bench.at(secs(7205));
    assert_eq!(bench.usage(), (0, 60, 40));
    bench.at(secs(3605));
    assert_eq!(bench.usage(), (0, 60, 40));
    bench.at(secs(3605 + 25) - micros(1));
    assert_eq!(bench.usage(), (0, 60, 40));
    bench.at(secs(3605 + 25));
    assert_eq!(bench.usage(), (60, 0, 40));
    // Forward: it ends early, as charges do.
    let bench = log();
    let _held = bench.reserve(60, secs(30));
    bench.at(secs(70));
    assert_eq!(bench.usage(), (60, 0, 40));
}

/// Times are stated, and a mistake in them is not corrected in silence.
#[test]
fn a_time_out_of_range_is_an_error() {
    let bench = log();
    let request = Request::new();
    let error = |ttl| bench.gate.reserve_for(&request, ttl).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        error(secs(3601)),
        "invalid ttl `3601s`: must be 1ms to 1h; extend the hold, or settle it in parts, if the request takes longer"
    );
    assert!(bench.gate.reserve_for(&request, Duration::ZERO).is_err());
    assert_eq!(
        Quota::in_flight(1, Duration::from_millis(1)).unwrap_err().to_string(),
        "invalid lease `1ms`: must be 1s to 1h, for example `30s`"
    );
}

/// Input and output tokens have limits of their own, and one settlement names both.
#[test]
fn named_costs_are_held_and_settled_where_they_count() {
    let policy = |name: &str, limit| {
        let counts = Counts::Named(name.to_owned());
        Policy::new(name, Quota::per_minute(limit)).unwrap().with_counts(counts)
    };
    let bench = Bench::new([
        policy("input", 10_000),
        policy("output", 5000),
        Policy::new("all", Quota::per_minute(20_000)).unwrap(),
    ]);
    let request = Request::new().with_cost([("input", 900), ("output", 4096)]);
    let ticket = bench.gate.reserve(&request).into_ticket().unwrap();
    let usage = || {
        let request = Request::new();
        let decisions = bench.gate.peek(&request);
        decisions.iter().map(|one| (one.used(), one.held())).collect::<Vec<_>>()
    };
    assert_eq!(usage(), [(0, 900), (0, 4096), (0, 4996)]);
    bench.gate.settle(&ticket, [("input", 900), ("output", 100)]).unwrap();
    assert_eq!(usage(), [(900, 0), (100, 0), (1000, 0)]);
}
