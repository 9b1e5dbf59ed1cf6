//! Cases of reservations, one by one, with every number.

use slidegate::{
    Block, Counts, Reason,
    reserve::{Extension, HoldStatus},
};

use super::*;

fn log() -> Bench {
    Bench::under(Quota::per_minute(100))
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
    let held: Vec<u64> = bench.gate.peek(&request).iter().map(|one| one.decision().held()).collect();
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
        let usage: Vec<_> = bench
            .gate
            .peek(&request)
            .iter()
            .map(|one| (one.decision().used(), one.decision().held()))
            .collect();
        let passing = passing as u64;
        assert_eq!(usage[..3], [(passing, 0), (0, passing * 2500), (0, passing * 2500)]);
        assert!(in_flight.is_none() || usage[3] == (0, 4), "{usage:?}");
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
    let strictest = denied.decisions().strictest().unwrap();
    assert_eq!(strictest.decision().reason(), Some(Reason::TooManyHolds));
    assert_eq!(strictest.decision().retry_after(), Some(secs(10)));
    // Checks need no hold.
    assert!(bench.gate.check(&request).is_allowed());
    bench.settle(&tickets[0], 1);
    assert!(bench.gate.reserve(&request).decisions().is_allowed());
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
        let reason = reserved.decisions().strictest().unwrap().decision().reason();
        reserved.into_ticket().ok_or(reason)
    };
    let tickets: Vec<Ticket> = (0..50).map(|user| reserve(user).unwrap()).collect();
    assert_eq!(reserve(100), Err(Some(Reason::StoreFull)));
    gate.settle(&tickets[7], 1).unwrap();
    assert!(reserve(100).is_ok());
}

/// Overrides have other windows; a settlement must read a key as it was written.
#[test]
fn a_settlement_is_charged_under_the_override_of_its_key() {
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let bench = Bench::new([policy.with_override(["alice"], Quota::per_hour(500))]);
    let alice = Request::new().with("user", "alice").with_cost(400);
    let ticket = bench.gate.reserve(&alice).into_ticket().unwrap();
    let settled = bench.settle(&ticket, 300);
    assert_eq!((only(&settled).decision().limit(), only(&settled).decision().used()), (500, 300));
    bench.at(secs(61));
    assert_eq!(bench.gate.peek(&alice).strictest().unwrap().decision().used(), 300);
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
    assert_eq!(denied.decisions().strictest().unwrap().decision().reason(), Some(Reason::Blocked));
    assert!(denied.ticket().is_none());
    assert_eq!(only(&bench.settle(&ticket, 3)).decision().used(), 3);
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
    let used: Vec<u64> = bench.gate.peek(&request).iter().map(|one| one.decision().used()).collect();
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
        decisions.iter().map(|one| (one.decision().used(), one.decision().held())).collect::<Vec<_>>()
    };
    assert_eq!(usage(), [(0, 900), (0, 4096), (0, 4996)]);
    bench.gate.settle(&ticket, [("input", 900), ("output", 100)]).unwrap();
    assert_eq!(usage(), [(900, 0), (100, 0), (1000, 0)]);
}
