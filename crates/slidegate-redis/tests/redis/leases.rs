//! Leases: several instances that admit from slices of one limit.
//!
//! `exactness.rs` judges processes with leases by every window; the simulation and the model of the protocol are among
//! the library's tests.

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{LeaseStats, ServiceStore};
use slidegate::{Algorithm, Decision, DecisionSource, LeaseLength, Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};
use tokio::time::{Instant, sleep};

use crate::callers::{gate, hasty, options};
use crate::hold_histories::START_US;

/// Long enough for a busy machine to use a lease.
const LENGTH: Duration = Duration::from_secs(1);
/// Short enough to wait for the ends of many.
const SHORT: Duration = Duration::from_millis(200);
/// Callers of each gate that ask at once.
const CALLERS: usize = 16;
/// No test waits so long.
const HANGS: Duration = Duration::from_secs(60);
/// How often a test that a busy machine disturbs is tried.
const ATTEMPTS: u32 = 5;

/// A policy with leases of which nothing expires during a test.
fn leased(name: &str, limit: u64) -> Policy {
    let policy = Policy::new(name, Quota::per_day(limit)).unwrap().with_scope(["user"]);
    policy.with_lease(LeaseLength::Fixed(LENGTH))
}

fn of(cost: u64) -> Request<'static> {
    Request::new().with("user", "alice").with_cost(cost)
}

async fn check(gate: &RedisGate, cost: u64) -> Decision {
    *gate.check(&of(cost)).await.strictest().unwrap().decision()
}

async fn peek(gate: &RedisGate) -> Decision {
    *gate.peek(&of(1)).await.strictest().unwrap().decision()
}

/// Checks until one is admitted from a lease. Returns how many were admitted.
async fn until_leased(gate: &RedisGate) -> u64 {
    let begun = Instant::now();
    let mut admitted = 0;
    loop {
        let decision = check(gate, 1).await;
        admitted += u64::from(decision.is_allowed() && !decision.source().is_fallback());
        if decision.source() == DecisionSource::Leased {
            return admitted;
        }
        assert!(begun.elapsed() < HANGS, "{decision:?} {:?}", gate.store().primary().stats());
    }
}

fn stats(gate: &RedisGate, policy: &str) -> LeaseStats {
    gate.store().primary().stats().leases.get(policy).copied().unwrap_or_default()
}

/// Checks of one user, as fast as they go, until all gates deny for so long that no lease is open.
async fn exhaust(gates: &[Arc<RedisGate>]) -> u64 {
    let ask = |gate: Arc<RedisGate>| async move {
        let (mut admitted, mut since) = (0, Instant::now());
        while since.elapsed() < 3 * SHORT {
            if check(&gate, 1).await.is_allowed() {
                (admitted, since) = (admitted + 1, Instant::now());
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
        admitted
    };
    let callers = gates.iter().flat_map(|gate| std::iter::repeat_n(gate, CALLERS));
    let asked: Vec<_> = callers.map(|gate| tokio::spawn(ask(gate.clone()))).collect();
    let mut admitted = 0;
    for one in asked {
        admitted += one.await.unwrap();
    }
    admitted
}

/// Whether three instances admit all of a limit. They never admit more.
async fn admits_all(algorithm: Algorithm, server: &RedisServer, attempt: u32) -> bool {
    let policy = || {
        // A bucket drains meanwhile, 2 in ten minutes.
        let quota = Quota::per_day(3000).with_algorithm(algorithm);
        let policy = Policy::new(format!("p-{algorithm}-{attempt}"), quota).unwrap().with_scope(["user"]);
        policy.with_lease(LeaseLength::Fixed(SHORT))
    };
    let gates: Vec<_> = (0..3).map(|_| gate([policy()], options(&server.url_as_user()))).collect();
    let mut admitted = exhaust(&gates).await;
    let begun = Instant::now();
    while admitted < 3000 && begun.elapsed() < 3 * SHORT {
        // On a busy machine all callers may have given up early.
        admitted += u64::from(check(&gates[0], 1).await.is_allowed());
    }
    let by_leases: u64 = gates.iter().map(|gate| stats(gate, policy().name()).admitted).sum();
    let calls: u64 = gates.iter().map(|gate| gate.store().primary().stats().calls).sum();
    println!("{algorithm}: {admitted} admitted, {by_leases} from leases, {calls} calls");
    let drained = if algorithm == Algorithm::TokenBucket { 2 } else { 0 };
    assert!(admitted <= 3000 + drained, "{algorithm}: {admitted}");
    assert!(by_leases > 0 && by_leases < admitted, "{algorithm}: {by_leases} of {admitted}");
    let failures: u64 = gates.iter().map(|gate| gate.store().stats().fallbacks).sum();
    assert_eq!(failures, 0, "{algorithm}");
    admitted >= 3000
}

/// The one promise: whatever instances hold, together they admit the limit, and all of it.
#[tokio::test]
async fn instances_with_leases_admit_the_limit_and_no_more_under_any_algorithm() {
    let servers = [false, true].map(|has_module| RedisServer::builder().module(has_module).start());
    for (algorithm, server) in
        Algorithm::ALL.into_iter().flat_map(|one| servers.iter().map(move |server| (one, server)))
    {
        // A lease that is settled late, because the machine is busy, is charged in full.
        for attempt in 1.. {
            if admits_all(algorithm, server, attempt).await {
                break;
            }
            assert!(attempt < ATTEMPTS, "{algorithm}");
        }
    }
}

/// Operators and invoices see what was used, not what was held.
#[tokio::test]
async fn what_is_settled_is_what_was_admitted() {
    let server = RedisServer::start();
    let one = gate([leased("p", 1_000_000)], options(&server.url_as_user()));
    let other = gate([leased("p", 1_000_000)], options(&server.url_as_user()));
    let mut admitted = until_leased(&one).await;
    let decision = check(&one, 1).await;
    admitted += 1;
    assert_eq!((decision.source(), decision.used()), (DecisionSource::Leased, admitted));
    assert_eq!(decision.remaining(), 1_000_000 - admitted, "nobody else uses the key");
    let (seen, own) = (peek(&other).await, peek(&one).await);
    assert!(seen.held() > 0 && seen.used() + seen.held() + seen.remaining() == 1_000_000, "{seen:?}");
    assert!(own.remaining() > seen.remaining(), "{own:?}");
    one.store().primary().return_leases().await;
    let seen = peek(&other).await;
    assert_eq!((seen.used(), seen.held(), seen.remaining()), (admitted, 0, 1_000_000 - admitted));
    let counts = stats(&one, "p");
    assert_eq!((counts.open, counts.held), (0, 0));
    assert!(counts.granted >= 1 && counts.returned >= 1 && counts.admitted > 0, "{counts:?}");
    assert_eq!(check(&one, 1).await.source(), DecisionSource::Store, "no lease is taken any more");
}

/// A lease that is renewed while its instance stops is settled all the same, and so is the next one.
#[tokio::test]
async fn what_is_asked_for_at_the_end_is_settled() {
    let server = RedisServer::start();
    for attempt in 1.. {
        if settles_what_is_asked_for_at_the_end(&server, &format!("p-{attempt}")).await {
            break;
        }
        assert!(attempt < ATTEMPTS);
    }
}

/// False if the machine is so busy that a lease may have ended meanwhile, which charges all of it.
async fn settles_what_is_asked_for_at_the_end(server: &RedisServer, policy: &str) -> bool {
    let begun = Instant::now();
    let gate = || gate([leased(policy, 1_000_000)], options(&server.url()).with_deadline(HANGS));
    let (one, other) = (Arc::new(gate()), gate());
    let mut admitted = until_leased(&one).await;
    let calls = one.store().primary().stats().calls;
    server.pause();
    let mut asking = Vec::new();
    while one.store().primary().stats().calls == calls {
        // Until the lease is used up, which a call is to renew.
        let one = Arc::clone(&one);
        asking.push(tokio::spawn(async move { check(&one, 1).await }));
        sleep(Duration::from_millis(1)).await;
    }
    let returned = tokio::spawn({
        let one = Arc::clone(&one);
        async move { one.store().primary().return_leases().await }
    });
    sleep(Duration::from_millis(50)).await;
    assert!(!returned.is_finished(), "a call is in flight");
    server.resume();
    returned.await.unwrap();
    if begun.elapsed() >= LENGTH {
        return false;
    }
    for one in asking {
        let decision = one.await.unwrap();
        assert!(decision.is_allowed() && !decision.source().is_fallback(), "{decision:?}");
        admitted += 1;
    }
    let seen = peek(&other).await;
    assert_eq!((seen.used(), seen.held()), (admitted, 0));
    let counts = stats(&one, policy);
    assert!(counts.granted >= 2, "it has brought another one: {counts:?}");
    true
}

/// Whoever is killed gives nothing back: its slice counts as used, and is charged by the next one who looks.
#[tokio::test]
async fn the_slice_of_an_instance_that_is_gone_is_charged_at_its_end() {
    let server = RedisServer::start();
    let (one, other) = (
        gate([leased("p", 10_000)], options(&server.url())),
        gate([leased("p", 10_000)], options(&server.url())),
    );
    let admitted = until_leased(&one).await;
    let held = peek(&other).await.held();
    drop(one);
    sleep(LENGTH + Duration::from_millis(5)).await;
    let seen = peek(&other).await;
    assert_eq!(seen.held(), 0);
    assert!(seen.used() >= admitted && seen.used() >= held, "{seen:?}, {admitted} admitted");
}

/// A request that another policy denies charges nothing to the one that has room, however many are decided at once, and
/// wherever that lease is meanwhile. Where the other one has no leases, nothing is leased.
#[tokio::test]
async fn what_another_policy_denies_is_not_charged_to_a_lease() {
    let server = RedisServer::start();
    for (is_leased, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let named = |name| format!("{name}-{is_leased}-{is_first}");
        let (wide, narrow) = (named("wide"), named("narrow"));
        let narrow = match is_leased {
            false => Policy::new(narrow, Quota::per_day(1500)).unwrap().with_scope(["user"]),
            true => leased(&narrow, 1500),
        };
        let policies = || match is_first {
            true => [narrow.clone(), leased(&wide, 1_000_000)],
            false => [leased(&wide, 1_000_000), narrow.clone()],
        };
        let (one, witness) =
            (gate(policies(), options(&server.url())), gate(policies(), options(&server.url())));
        let one = Arc::new(one);
        let ask = |gate: Arc<RedisGate>| async move {
            let (mut admitted, mut denied) = (0, 0);
            while denied < 30 {
                let is_allowed = gate.check(&of(1)).await.is_allowed();
                (admitted, denied) = (admitted + u64::from(is_allowed), denied + u64::from(!is_allowed));
            }
            admitted
        };
        let callers: Vec<_> = (0..2 * CALLERS).map(|_| tokio::spawn(ask(Arc::clone(&one)))).collect();
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.unwrap();
        }
        assert!(if is_leased { admitted <= 1500 } else { admitted == 1500 }, "{admitted}");
        assert_eq!(stats(&one, &wide).admitted > 0, is_leased);
        one.store().primary().return_leases().await;
        let request = of(1);
        let peeked = witness.peek(&request).await;
        let used: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
        assert_eq!(used, [(admitted, 0); 2], "{is_leased} {is_first}");
    }
}

/// Whatever four instances hold, a request is charged under all policies that limit it or under none: what is used under
/// each is what its requests were admitted. On one thread: of several, one may take a unit from a lease, which another one
/// settles before it is given back.
#[tokio::test]
async fn what_is_used_under_each_policy_is_what_was_admitted_under_it() {
    const REQUESTS: usize = 300;
    let server = RedisServer::start();
    let scopes = ["user", "tenant", "model"];
    let policies = || {
        [3000, 5000, 100_000]
            .into_iter()
            .zip(scopes)
            .map(|(limit, scope)| leased(scope, limit).with_scope([scope]))
    };
    let gates = [(); 4].map(|()| gate(policies(), options(&server.url())));
    let ask = |gate: Arc<RedisGate>| async move {
        let mut admitted = [0; 3];
        for _ in 0..REQUESTS {
            let (which, cost) = (fastrand::usize(1..8), fastrand::u64(1..4));
            let is_limited = |at: usize| which >> at & 1 == 1;
            let attributes = (0..3).filter(|at| is_limited(*at)).map(|at| (scopes[at], "one"));
            let request = attributes
                .fold(Request::new().with_cost(cost), |request, (name, value)| request.with(name, value));
            if gate.check(&request).await.is_allowed() {
                (0..3).filter(|at| is_limited(*at)).for_each(|at| admitted[at] += cost);
            }
        }
        admitted
    };
    let callers: Vec<_> =
        gates.iter().flat_map(|gate| [gate; 8]).map(|gate| tokio::spawn(ask(Arc::clone(gate)))).collect();
    let mut admitted = [0; 3];
    for caller in callers {
        let by_one = caller.await.unwrap();
        (0..3).for_each(|at| admitted[at] += by_one[at]);
    }
    for gate in &gates {
        gate.store().primary().return_leases().await;
    }
    let all = scopes.iter().fold(Request::new(), |request, scope| request.with(scope, "one"));
    let peeked = gates[0].peek(&all).await;
    let used: Vec<_> = peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect();
    let of_all = |count: fn(&LeaseStats) -> u64| {
        gates.iter().flat_map(|gate| scopes.map(|scope| count(&stats(gate, scope)))).sum::<u64>()
    };
    assert!(of_all(|counts| counts.admitted) > 0);
    for (used, admitted) in used.into_iter().zip(admitted) {
        // A machine that is as slow as leases are long charges slices in full.
        let is_right = used.0 == admitted || of_all(|counts| counts.expired) > 0 && used.0 > admitted;
        assert!(is_right && used.1 == 0, "{used:?}, {admitted} admitted");
    }
}

/// A cost that a slice has not left is decided on the whole limit, by a call that gives back what is left.
#[tokio::test]
async fn a_cost_above_what_is_left_settles_the_lease_in_its_call() {
    let server = RedisServer::start();
    let one = gate([leased("p", 2000)], options(&server.url()));
    let admitted = until_leased(&one).await;
    let left = 2000 - admitted;
    let decision = check(&one, left).await;
    assert!(decision.is_allowed() && decision.source() == DecisionSource::Store, "{decision:?}");
    assert_eq!((decision.used(), decision.remaining(), decision.held()), (2000, 0, 0));
}

/// An operator resets a key: what instances hold of it must not be used on top of the whole limit.
#[tokio::test]
async fn a_reset_ends_the_leases_of_its_keys_in_all_instances() {
    let server = RedisServer::start();
    let policies = || [leased("p", 1_000_000), leased("q", 1_000_000)];
    let (one, other) = (gate(policies(), options(&server.url())), gate(policies(), options(&server.url())));
    let under = |policy| Request::new().with("user", "alice").under(policy);
    let source = async |policy| one.check(&under(policy)).await.strictest().unwrap().decision().source();
    let begun = Instant::now();
    while source("p").await != DecisionSource::Leased || source("q").await != DecisionSource::Leased {
        assert!(begun.elapsed() < HANGS);
    }
    let granted = stats(&one, "p").granted;
    other.reset(&under("p")).await.unwrap();
    // The news takes its way; then the key is decided by a call, and used from what was reset.
    while stats(&one, "p").granted == granted {
        source("p").await;
        assert!(begun.elapsed() < HANGS);
    }
    one.store().primary().return_leases().await;
    let counts = stats(&one, "p");
    let used = other.peek(&under("p")).await.strictest().unwrap().decision().used();
    assert!(used > 0 && used < counts.admitted + 1_000, "{used} {counts:?}");
}

/// A lower limit binds at once in the instance that learns of it, although its slice has more left.
#[tokio::test]
async fn other_limits_end_the_leases_under_the_former_ones() {
    let server = RedisServer::start();
    let one = gate([leased("p", 1_000_000)], options(&server.url()));
    until_leased(&one).await;
    one.configure(PolicySet::new([leased("p", 5)]).unwrap()).unwrap();
    let denied = check(&one, 1).await;
    assert!(denied.is_denied() && denied.source() == DecisionSource::Store, "{denied:?}");
    one.configure(PolicySet::new([leased("p", 1_000_000)]).unwrap()).unwrap();
    assert!(check(&one, 1).await.is_allowed());
}

/// While the store is away, a slice is used until it ends; then each policy's fallback decides.
#[tokio::test]
async fn leases_last_until_their_end_while_the_store_is_away() {
    let server = RedisServer::start();
    let one = gate([leased("p", 1_000_000)], hasty(&server.url()));
    let mut admitted = until_leased(&one).await;
    server.pause();
    let paused = Instant::now();
    let (mut leased_for, mut leased) = (Duration::ZERO, 0);
    loop {
        let asked = paused.elapsed();
        match check(&one, 1).await.source() {
            DecisionSource::Leased => (leased, leased_for) = (leased + 1, asked),
            source if source.is_fallback() => break,
            source => panic!("{source:?}"),
        }
    }
    server.resume();
    assert!(leased > 0 && leased_for < LENGTH, "{leased} admitted from leases for {leased_for:?}");
    admitted += leased;
    let begun = Instant::now();
    let seen = loop {
        let seen = peek(&one).await;
        if seen.source() == DecisionSource::Store && seen.held() == 0 {
            break seen;
        }
        assert!(begun.elapsed() < HANGS, "{seen:?}");
        sleep(Duration::from_millis(10)).await;
    };
    assert!(seen.used() >= admitted, "{seen:?}, {admitted} admitted");
}

/// A reset that an instance does not hear of leaves it the slice that it has, and no more. Until it hears again, it takes
/// none.
#[tokio::test]
async fn who_does_not_hear_of_a_reset_uses_its_slice_and_takes_no_other() {
    const LIMIT: u64 = 2000;
    let server = RedisServer::builder().start();
    let url = server.url_as_user();
    let (one, other) =
        (gate([leased("p", LIMIT)], options(&url)), gate([leased("p", LIMIT)], options(&server.url())));
    until_leased(&one).await;
    server.admin(&["ACL", "SETUSER", "slidegate", "resetchannels"]);
    server.admin(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let before = stats(&one, "p").admitted;
    assert!(other.reset(&of(1)).await.unwrap());
    let mut admitted = 0;
    loop {
        let [by_one, by_other] = [check(&one, 1).await, check(&other, 1).await];
        admitted += u64::from(by_one.is_allowed()) + u64::from(by_other.is_allowed());
        // What is held may be given back.
        if by_one.is_denied() && by_other.is_denied() && peek(&other).await.held() == 0 {
            break;
        }
    }
    let from_slices = stats(&one, "p").admitted - before;
    assert!(admitted <= LIMIT + from_slices, "{admitted}, {from_slices} from slices");
    assert!(other.reset(&of(1)).await.unwrap());
    for _ in 0..LIMIT / 2 {
        assert_eq!(check(&one, 1).await.source(), DecisionSource::Store);
    }
    server.admin(&["ACL", "SETUSER", "slidegate", "allchannels"]);
    let begun = Instant::now();
    while check(&one, 1).await.source() != DecisionSource::Leased {
        assert!(begun.elapsed() < HANGS);
        // It is subscribed within a second, in which it uses up the limit.
        other.reset(&of(1)).await.unwrap();
    }
}

/// Instances that do not hear of resets, and keys that are not hot, are decided as without leases: call by call.
#[tokio::test]
async fn whoever_hears_no_news_and_keys_that_are_not_hot_have_no_leases() {
    let server = RedisServer::start();
    server.admin(&["ACL", "SETUSER", "deaf", "on", ">p", "~*", "+@all", "resetchannels"]);
    let url = server.url().replace("redis://", "redis://deaf:p@");
    let (deaf, cold) =
        (gate([leased("p", 10_000)], options(&url)), gate([leased("p", 10_000)], options(&server.url())));
    for number in 0..2000 {
        assert_eq!(check(&deaf, 1).await.source(), DecisionSource::Store);
        let user = number.to_string();
        let request = Request::new().with("user", &user);
        let decisions = cold.check(&request).await;
        assert_eq!(decisions.strictest().unwrap().decision().source(), DecisionSource::Store);
    }
    for gate in [&deaf, &cold] {
        let stats = gate.store().primary().stats();
        assert_eq!((stats.calls, stats.leases.len()), (2000, 0));
    }
}

/// Cost that is charged in the next window would count in none in which it was used.
#[tokio::test]
async fn no_lease_crosses_the_end_of_a_fixed_window() {
    let server = RedisServer::builder().with_clock().start();
    let stop = START_US.next_multiple_of(1_000_000) + 1_000_000;
    server.clock().stand(stop - 20_000);
    let quota = Quota::per_second(100_000).with_algorithm(Algorithm::FixedWindow);
    let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
    let one = gate([policy.with_lease(LeaseLength::OfWindow)], options(&server.url()));
    let begun = Instant::now();
    let end = loop {
        check(&one, 1).await;
        // The table of holds, and the end of the first after its id: docs/redis-layout.md.
        let Reply::Bytes(stored) = server.ask(&["GETRANGE", "sg1:p:alice", "0", "46"]).unwrap() else {
            panic!()
        };
        if stored[0] == 0x15 {
            break stored[40..].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        }
        assert!(begun.elapsed() < HANGS);
    };
    assert_eq!(end, stop - 1);
}
