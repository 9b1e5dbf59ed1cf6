//! Holds and time: heartbeats that stop for a while, and a server whose clock is set back while
//! reservations are open.

use std::time::Duration;

use slidegate::reserve::{Extension, HoldStatus, Ticket};
use slidegate::{
    Counts, Gate, MemoryStore, OnStoreError, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};
use slidegate_redis::RedisGate;
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{options, redis_gate};
use crate::cluster::PATIENT;

const START_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3_600 * SECOND_US;

/// 100 tokens per minute, and two in flight with leases of ten seconds.
fn policies() -> PolicySet {
    let tokens = Policy::new("tokens", Quota::per_minute(100)).unwrap().with_scope(["user"]);
    let lease = Duration::from_secs(10);
    let streams = Policy::new("streams", Quota::in_flight(2, lease).unwrap()).unwrap().with_scope(["stream"]);
    PolicySet::new([tokens, streams.with_counts(Counts::Requests)]).unwrap()
}

/// Denials are cached for up to a tenth of a second of this machine's time, which goes on while the
/// server's clock is moved by minutes.
fn shared(server: &RedisServer) -> RedisGate {
    let options = options(&server.url_as_user()).with_deadline(PATIENT).without_denial_cache();
    redis_gate(policies(), options).unwrap()
}

fn tokens(cost: u64) -> Request<'static> {
    Request::new().with("user", "alice").with_cost(cost)
}

fn stream() -> Request<'static> {
    Request::new().with("stream", "alice")
}

/// What is used and held of alice's tokens, or of her streams.
async fn counted(gate: &RedisGate, request: &Request<'_>) -> (u64, u64) {
    let found = gate.peek(request).await;
    let decision = found.strictest().unwrap();
    (decision.decision().used(), decision.decision().held())
}

/// A process that is paused for nine of ten seconds must not lose what it works on.
#[tokio::test]
async fn a_permit_stays_if_heartbeats_stop_for_nine_of_ten_seconds_and_go_on() {
    let server = RedisServer::builder().with_clock().start();
    let clock = ManualClock::at(Timestamp::from_micros(START_US));
    let memory = Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build());
    let redis = shared(&server);
    let at = |us: u64| {
        server.clock().stand(START_US + us);
        clock.set(Timestamp::from_micros(START_US + us));
    };
    at(0);
    let request = stream();
    let (ours, theirs) = (memory.reserve(&request), redis.reserve(&request).await);
    let (mut ours, mut theirs) = (ours.into_ticket().unwrap(), theirs.into_ticket().unwrap());
    let mut now = 0;
    // Every third of the lease, then a pause of nine seconds, then as before, for an hour.
    for beat in 0..600 {
        now += if beat % 3 == 2 { 9 * SECOND_US } else { 10 * SECOND_US / 3 };
        at(now);
        let renewed = (
            memory.extend(&ours, Extension::new()).unwrap(),
            redis.extend(&theirs, Extension::new()).await.unwrap(),
        );
        assert_eq!((renewed.0.status(), renewed.1.status()), (HoldStatus::Changed, HoldStatus::Changed));
        if beat % 2 == 0 {
            // Older tickets work as well.
            (ours, theirs) = (renewed.0.into_ticket(), renewed.1.into_ticket());
        }
        assert_eq!(memory.peek(&request).strictest().unwrap().decision().held(), 1, "beat {beat}");
        assert_eq!(counted(&redis, &request).await, (0, 1), "beat {beat}");
    }
    // Without a further heartbeat it is back at exactly the end of its lease.
    for (us, held) in [(now + 10 * SECOND_US - 1, 1), (now + 10 * SECOND_US, 0)] {
        at(us);
        assert_eq!(memory.peek(&request).strictest().unwrap().decision().held(), held);
        assert_eq!(counted(&redis, &request).await, (0, held));
    }
    let late = (
        memory.extend(&ours, Extension::new()).unwrap().status(),
        redis.extend(&theirs, Extension::new()).await.unwrap().status(),
    );
    assert_eq!(late, (HoldStatus::Expired, HoldStatus::Expired));
}

/// Reserves 60 tokens for a minute and two streams, the second one five seconds later.
async fn reserved(server: &RedisServer, gate: &RedisGate, start: u64) -> (Ticket, [Ticket; 2]) {
    server.clock().stand(start);
    let (tokens, stream) = (tokens(60), stream());
    let held = gate.reserve(&tokens).await.into_ticket().unwrap();
    let first = gate.reserve(&stream).await.into_ticket().unwrap();
    server.clock().stand(start + 5 * SECOND_US);
    let second = gate.reserve(&stream).await.into_ticket().unwrap();
    (held, [first, second])
}

/// When a server's clock is corrected, nobody may be locked out for an hour by what was in flight.
#[tokio::test]
async fn after_the_servers_clock_is_set_back_an_hour_no_hold_is_longer_than_its_time() {
    let server = RedisServer::builder().with_clock().start();
    // What the first calls after the step are.
    for (number, touch) in ["denied", "check", "settle", "late check"].into_iter().enumerate() {
        let gate = shared(&server);
        let start = START_US + number as u64 * 10 * HOUR_US;
        let (held, streams) = reserved(&server, &gate, start).await;
        // Six seconds after the first reservations.
        let back = start + 6 * SECOND_US - HOUR_US;
        server.clock().stand(back);
        let (mut used, mut open) = (0, 60);
        match touch {
            "check" => {
                assert!(gate.check(&tokens(10)).await.is_allowed());
                used = 10;
            }
            "settle" => {
                let part = gate.settle_so_far(&held, 10).await.unwrap();
                assert_eq!(part.status(), HoldStatus::Changed);
                (used, open) = (10, 50);
            }
            _ => {}
        }
        if touch != "late check" {
            assert_eq!(counted(&gate, &tokens(1)).await, (used, open), "{touch}");
            assert_eq!(counted(&gate, &stream()).await, (0, 2), "{touch}");
            // What is open still counts against the limits.
            assert!(gate.reserve(&tokens(41)).await.decisions().is_denied());
            assert!(gate.reserve(&stream()).await.decisions().is_denied());
        }
        // From the first call after it, each lasts no longer than its whole time.
        let mut back = back;
        if touch == "late check" {
            back += 3 * SECOND_US;
            server.clock().stand(back);
            assert!(gate.reserve(&tokens(41)).await.decisions().is_denied());
            assert!(gate.reserve(&stream()).await.decisions().is_denied());
        }
        server.clock().stand(back + 10 * SECOND_US);
        assert_eq!(counted(&gate, &stream()).await, (0, 0), "{touch}: leases of ten seconds are over");
        server.clock().stand(back + 60 * SECOND_US);
        // What was charged a window ago counts no more.
        let then = counted(&gate, &tokens(1)).await;
        assert_eq!(then, (open, 0), "{touch}: charged at the end of its minute");
        // Nobody is locked out: a window later it counts no more.
        server.clock().stand(back + 120 * SECOND_US);
        assert_eq!(counted(&gate, &tokens(1)).await, (0, 0), "{touch}");
        // What ended is known as ended to a late settlement.
        for ticket in &streams {
            let status = gate.settle(ticket, 1).await.unwrap().status();
            assert!(matches!(status, HoldStatus::AlreadySettled | HoldStatus::Expired), "{status:?}");
        }
        assert!(gate.reserve(&tokens(100)).await.decisions().is_allowed(), "{touch}");
        assert!(gate.reset(&tokens(1)).await.unwrap());
    }
}

/// Steps below a second are those of time services; a hold must not end early by them.
#[tokio::test]
async fn a_small_step_back_of_the_servers_clock_ends_no_hold_early_and_keeps_it_no_longer() {
    let server = RedisServer::builder().with_clock().start();
    let gate = shared(&server);
    let _open = reserved(&server, &gate, START_US).await;
    server.clock().stand(START_US + 5 * SECOND_US - 400_000);
    assert_eq!(counted(&gate, &stream()).await, (0, 2));
    for (us, held) in [(10 * SECOND_US - 1, 2), (10 * SECOND_US, 1), (15 * SECOND_US, 0)] {
        server.clock().stand(START_US + us);
        assert_eq!(counted(&gate, &stream()).await, (0, held), "{us}");
    }
}

/// A jump ahead cannot be distinguished from time that passed: holds end early, and are charged.
#[tokio::test]
async fn after_a_jump_of_the_servers_clock_holds_end_early_and_are_charged_as_of_their_ends() {
    let server = RedisServer::builder().with_clock().start();
    let gate = shared(&server);
    let (held, streams) = reserved(&server, &gate, START_US).await;
    server.clock().stand(START_US + 75 * SECOND_US);
    assert_eq!(counted(&gate, &tokens(1)).await, (60, 0));
    assert_eq!(counted(&gate, &stream()).await, (0, 0));
    assert_eq!(gate.settle(&held, 60).await.unwrap().status(), HoldStatus::Expired);
    assert_eq!(gate.settle(&streams[0], 1).await.unwrap().status(), HoldStatus::Expired);
    assert_eq!(counted(&gate, &tokens(1)).await, (60, 0), "it was charged once");
    // Charged as of its end, at 60 s.
    for (us, used) in [(120 * SECOND_US - 1, 60), (120 * SECOND_US, 0)] {
        server.clock().stand(START_US + us);
        assert_eq!(counted(&gate, &tokens(1)).await, (used, 0), "{us}");
    }
}

/// A client that never learns its ticket cannot settle: what it holds must end by itself.
#[tokio::test]
async fn a_reservation_whose_reply_was_lost_ends_by_its_time() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(START_US);
    let deny = |name: &str, quota, scope: &str| {
        let policy = Policy::new(name, quota).unwrap().with_scope([scope]);
        policy.with_on_store_error(OnStoreError::Deny)
    };
    let streams = Quota::in_flight(2, Duration::from_secs(10)).unwrap();
    let set = || {
        let streams = deny("streams", streams, "stream").with_counts(Counts::Requests);
        PolicySet::new([deny("tokens", Quota::per_minute(100), "user"), streams]).unwrap()
    };
    let other = shared(&server);
    let mut start = START_US;
    for (request, ttl) in [(tokens(60), 60), (stream(), 10)] {
        start += HOUR_US;
        server.clock().stand(start);
        let proxy = Proxy::before(server.port());
        let cut = redis_gate(set(), options(&proxy.url())).unwrap();
        // Connected, and the script is loaded.
        let before = cut.reserve(&request).await.into_ticket().unwrap();
        cut.cancel(&before).await.unwrap();
        proxy.set(Mode::CutReplyAfter(0));
        assert!(cut.reserve(&request).await.decisions().is_denied());
        proxy.set(Mode::Pass);
        server.clock().stand(start + ttl * SECOND_US - 1);
        assert_eq!(counted(&other, &request).await, (0, request.cost()));
        server.clock().stand(start + ttl * SECOND_US);
        let (_, held) = counted(&other, &request).await;
        assert_eq!(held, 0);
    }
}
