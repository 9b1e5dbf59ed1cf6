//! Penalties: they are bounded, and both stores bound them alike.

use std::time::Duration;

use slidegate::{
    Algorithm, Decision, Excess, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{Clock, ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_redis::{RedisGate, RedisOptions};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{LATER, gate, named, options, redis_gate, until_used};
use crate::harness;

/// The largest cost that a shared store counts.
const LARGEST: u64 = (1 << 53) - 1;
const LIMIT: u64 = 5;
const WINDOW: Duration = Duration::from_secs(60);
const START_US: u64 = 1_700_000_000_000_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// One user's key in both stores, at the same time.
struct Both {
    clock: ManualClock,
    memory: Gate,
    redis: RedisGate,
    server: RedisServer,
}

impl Both {
    fn of(quota: Quota) -> Self {
        let server = RedisServer::builder().with_clock().start();
        let policies = || PolicySet::new([Policy::new("p", quota).unwrap().with_scope(["user"])]).unwrap();
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        server.clock().stand(START_US);
        let options =
            RedisOptions::new(&server.url_as_user()).unwrap().with_deadline(LATER).without_denial_cache();
        Self {
            memory: Gate::with_memory(policies(), MemoryStore::builder().clock(clock.clone()).build()),
            redis: redis_gate(policies(), options).unwrap(),
            clock,
            server,
        }
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        self.server.clock().stand(self.clock.now().as_micros());
    }

    /// What both stores say, which is the same.
    async fn apply(&self, verb: Verb, cost: u64) -> Decision {
        let request = Request::new().with("user", "alice").with_cost(cost);
        let ours =
            *self.memory.apply_all(verb, std::slice::from_ref(&request)).strictest().unwrap().decision();
        let theirs =
            *self.redis.apply_all(verb, std::slice::from_ref(&request)).await.strictest().unwrap().decision();
        assert_eq!(
            format!("{theirs:?}"),
            format!("{ours:?}"),
            "{verb:?} {cost}: {:?}",
            self.redis.store().stats()
        );
        ours
    }

    fn lives_ms(&self) -> i64 {
        self.server.admin(&["PTTL", "sg1:p:alice"]).trim().parse().unwrap()
    }
}

/// A mistyped penalty must not close a user's key for years, nor leave a count that no store can
/// hold.
#[test]
fn penalties_of_any_size_close_a_key_for_two_windows_at_most_in_both_stores() {
    runtime().block_on(async {
        for algorithm in Algorithm::ALL {
            for cost in [LARGEST, u64::MAX] {
                let quota = Quota::new(LIMIT, WINDOW).unwrap().with_algorithm(algorithm);
                let both = Both::of(quota);
                let first = both.apply(Verb::Penalize, cost).await;
                assert_eq!((first.cost(), first.used()), (quota.max_used(), quota.max_used()), "{algorithm}");
                let second = both.apply(Verb::Penalize, cost).await;
                assert_eq!((second.cost(), second.used()), (0, quota.max_used()), "{algorithm}");
                assert!(second.used() <= LARGEST, "{algorithm}");
                let lives_ms = both.lives_ms();
                assert!((1..=125_000).contains(&lives_ms), "{algorithm} lives {lives_ms} ms");

                let denied = both.apply(Verb::Check, 1).await;
                let wait = denied.retry_after().expect("a cost of 1 fits again");
                assert!(denied.is_denied() && wait <= 2 * WINDOW, "{algorithm}: {wait:?}");
                both.advance(wait - Duration::from_micros(1));
                assert!(both.apply(Verb::Check, 1).await.is_denied(), "{algorithm}: a microsecond early");
                both.advance(Duration::from_micros(1));
                assert!(both.apply(Verb::Check, 1).await.is_allowed(), "{algorithm}: at the time promised");
            }
        }
    });
}

/// Support takes a penalty back: the key must be as it was, whatever of the penalty was charged.
#[test]
fn a_refund_of_a_bounded_penalty_gives_back_what_was_charged() {
    runtime().block_on(async {
        for algorithm in Algorithm::ALL {
            let both = Both::of(Quota::new(LIMIT, WINDOW).unwrap().with_algorithm(algorithm));
            assert!(both.apply(Verb::Check, 3).await.is_allowed());
            let charged = both.apply(Verb::Penalize, LARGEST).await.cost();
            assert!(charged > LIMIT, "{algorithm}");
            let refunded = both.apply(Verb::Refund, charged).await;
            assert_eq!((refunded.cost(), refunded.used()), (charged, 3), "{algorithm}");
            assert!(both.apply(Verb::Check, 2).await.is_allowed(), "{algorithm}");
            // More than was ever charged gives back all, and no more.
            both.apply(Verb::Penalize, LARGEST).await;
            let all = both.apply(Verb::Refund, u64::MAX).await;
            assert_eq!(all.used(), 0, "{algorithm}");
            assert!(both.apply(Verb::Check, LIMIT).await.is_allowed(), "{algorithm}");
            assert!(both.apply(Verb::Check, 1).await.is_denied(), "{algorithm}");
        }
    });
}

/// A bucket whose limit was lowered may hold what takes many windows to drain; the store must not
/// keep it as long.
#[test]
fn a_bucket_above_a_lowered_limit_is_cut_to_what_it_may_hold_when_it_is_written() {
    runtime().block_on(async {
        let bucket = |limit| Quota::new(limit, WINDOW).unwrap().with_algorithm(Algorithm::TokenBucket);
        let both = Both::of(bucket(1000));
        assert!(both.apply(Verb::Check, 1000).await.is_allowed());
        let lowered =
            PolicySet::new([Policy::new("p", bucket(LIMIT)).unwrap().with_scope(["user"])]).unwrap();
        both.memory.configure(lowered.clone()).unwrap();
        both.redis.configure(lowered).unwrap();
        assert_eq!(both.apply(Verb::Peek, 1).await.used(), 2 * LIMIT);
        assert_eq!(both.apply(Verb::Penalize, 1).await.cost(), 0);
        assert_eq!(both.apply(Verb::Refund, 1).await.used(), 2 * LIMIT - 1);
        let lives_ms = both.lives_ms();
        assert!((1..=125_000).contains(&lives_ms), "lives {lives_ms} ms");
    });
}

/// A key's life is bounded by its window also where steps are long: a log of few slots rounds its
/// stamps up by much.
#[test]
fn a_coarse_log_and_a_shortened_window_leave_no_key_that_lives_longer_than_two_windows() {
    runtime().block_on(async {
        for slots in [1, 2, 3] {
            let hour = Duration::from_secs(3600);
            let coarse = |window| Quota::new(70_000, window).unwrap().with_slots(slots);
            let both = Both::of(coarse(hour));
            both.advance(Duration::from_micros(1));
            for _ in 0..5 {
                assert!(both.apply(Verb::Check, 1).await.is_allowed());
                let lives_ms = both.lives_ms();
                assert!((1..=7_205_000).contains(&lives_ms), "{slots} slots: lives {lives_ms} ms");
                both.advance(hour / 7);
            }
        }
        let of = |window| Quota::new(10, window).unwrap();
        let both = Both::of(of(Duration::from_secs(86_400)));
        assert!(both.apply(Verb::Check, 1).await.is_allowed());
        let minute = PolicySet::new([Policy::new("p", of(WINDOW)).unwrap().with_scope(["user"])]).unwrap();
        both.memory.configure(minute.clone()).unwrap();
        both.redis.configure(minute).unwrap();
        assert!(both.apply(Verb::Check, 1).await.is_allowed());
        let lives_ms = both.lives_ms();
        assert!((1..=125_000).contains(&lives_ms), "lives {lives_ms} ms");
    });
}

/// A charge of excess that is given back because another policy denies must not free what others
/// have used.
#[test]
fn excess_past_what_a_key_holds_is_not_given_back() {
    let cluster = harness::cluster();
    runtime().block_on(async {
        let bucket = Quota::per_day(5).with_algorithm(Algorithm::TokenBucket);
        for number in 0..8 {
            let policies = || {
                let bucket =
                    Policy::new("bucket", bucket).unwrap().with_scope(["user"]).with_excess(Excess::Charge);
                [bucket, named("denies", 0)]
            };
            // A gate that has denied nothing yet asks the policies by their slots, so that the
            // bucket is first for some users.
            let gate = gate(policies(), options(&cluster.url()).with_deadline(LATER).without_denial_cache());
            let user = format!("excess-{number}");
            let only = Request::new().with("user", &user).under("bucket").with_cost(3);
            assert_eq!(gate.penalize(&only).await.strictest().unwrap().decision().used(), 3);
            let both = Request::new().with("user", &user).with_cost(100);
            assert!(gate.check(&both).await.is_denied());
            let mut used = 10;
            for _ in 0..500 {
                used = until_used(&gate, &user).await[0];
                if used != 10 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(used, 3, "{user}");
        }
        for node in cluster.nodes() {
            if node.admin(&["ROLE"]).starts_with("master") {
                node.admin(&["FLUSHALL"]);
            }
        }
    });
}
