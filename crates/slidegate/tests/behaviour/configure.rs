//! Changing a quota while keys are in use: what was used stays used, for as long as the quota in
//! force says.

use std::time::Duration;

use slidegate::{Algorithm, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// Windows of up to a minute, aligned to the epoch, all begin here.
const START: Timestamp = Timestamp::from_secs(1_000_000_020);

fn limiter(quota: Quota) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(START);
    let store = MemoryStore::builder().max_keys(1000).clock(clock.clone()).build();
    (Limiter::with_store(quota, store), clock)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn per(limit: u64, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap()
}

/// Who makes a window longer means those, too, who have used it up already.
#[test]
fn a_longer_window_holds_what_was_charged_before_it() {
    let (limiter, clock) = limiter(per(3, secs(2)));
    limiter.check_cost("key", 3);
    clock.advance(secs(1));
    limiter.configure(per(3, secs(3600)));
    assert_eq!(limiter.check("key").retry_after(), Some(secs(3599)));
}

/// The same, for the many keys that nobody asked about between the change and their former end.
#[test]
fn a_longer_window_holds_keys_that_a_sweep_meets_first() {
    for algorithm in Algorithm::ALL {
        let (limiter, clock) = limiter(per(3, secs(2)).with_algorithm(algorithm));
        limiter.check_cost("key", 3);
        limiter.configure(per(3, secs(3600)).with_algorithm(algorithm));
        clock.advance(secs(10));
        limiter.sweep(1000);
        assert!(limiter.check_cost("key", 3).is_denied(), "{algorithm}");
    }
}

/// A shorter window frees at once what it does not hold.
#[test]
fn a_shorter_window_frees_what_is_older() {
    let (limiter, clock) = limiter(Quota::per_hour(3));
    limiter.check_cost("key", 2);
    clock.advance(secs(10));
    limiter.check("key");
    limiter.configure(per(3, secs(5)));
    assert_eq!(limiter.peek("key").used(), 1);
    clock.advance(secs(5));
    assert_eq!(limiter.peek("key").used(), 0);
}

/// A limit above the slots rounds stamps up, ahead of the clock; below them again, that is no step
/// of the clock.
#[test]
fn a_log_that_was_coarse_for_a_while_is_never_over() {
    for (slots, window) in [(10, secs(60)), (1024, secs(86_400)), (100, secs(60))] {
        let exact = per(5, window).with_slots(slots);
        let coarse = per(100_000, window).with_slots(slots);
        let (limiter, clock) = limiter(exact);
        assert!(limiter.check_cost("key", 4).is_allowed());
        clock.advance(window / 2 + Duration::from_micros(1));
        limiter.configure(coarse);
        assert!(limiter.check("key").is_allowed());
        limiter.configure(exact);
        clock.advance(Duration::from_micros(1));
        // Five count in any window that ends before the first four are over.
        limiter.peek("key");
        clock.set(START + (window - Duration::from_micros(1)));
        assert!(limiter.check("key").is_denied(), "a sixth within {window:?} of {slots} slots");
        clock.set(START + window);
        assert!(limiter.check_cost("key", 4).is_allowed(), "{window:?} of {slots} slots");
    }
}

/// A log is as narrow as its window allows; a longer window needs wider stamps whichever way the
/// next charge goes in.
#[test]
fn a_full_log_that_outlives_a_longer_window_keeps_its_stamps() {
    let (limiter, clock) = limiter(Quota::per_minute(4).with_slots(4));
    for _ in 0..4 {
        limiter.check("key");
        clock.advance(secs(1));
    }
    limiter.configure(Quota::per_day(4).with_slots(4));
    clock.advance(secs(7200));
    // The log is full: a penalty is counted with the newest run.
    limiter.penalize("key", 1);
    // Five are used: the first two have to leave before one more fits.
    assert_eq!(limiter.check("key").retry_after(), Some(secs(86_400 - 7200 - 4 + 1)));
}

/// Limits go up and down with the load; each change binds what is there, and none loses it.
#[test]
fn limits_that_go_up_and_down_keep_every_charge() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = limiter(Quota::per_minute(10).with_algorithm(algorithm));
        limiter.check_cost("key", 7);
        for limit in [0, 1, 7, 8, 2000, 5, 10] {
            limiter.configure(Quota::per_minute(limit).with_algorithm(algorithm));
            let seen = limiter.peek("key");
            assert_eq!((seen.limit(), seen.used()), (limit, 7), "{algorithm}");
            assert_eq!(
                (seen.remaining(), seen.is_allowed()),
                (limit.saturating_sub(7), limit > 7),
                "{algorithm}"
            );
        }
    }
}

/// Another limit is no other window: what has half run out must not count whole again.
#[test]
fn another_limit_alone_leaves_the_weights_and_waits_of_what_was_charged() {
    for algorithm in Algorithm::ALL {
        let quota = |limit, burst| Quota::per_minute(limit).with_algorithm(algorithm).with_burst(burst);
        let (limiter, clock) = limiter(quota(60, 60));
        limiter.check_cost("key", 50);
        clock.advance(secs(89) + Duration::from_micros(7));
        limiter.check_cost("key", 3);
        let seen = || {
            let seen = limiter.peek("key");
            (seen.used(), seen.frees_after(), seen.reset_after())
        };
        let before = seen();
        // The rate at which a bucket drains is its limit: there only the burst changes.
        let limits = if algorithm == Algorithm::TokenBucket { [60, 60] } else { [200, 70] };
        for limit in limits {
            limiter.configure(quota(limit, limit + 100));
            assert_eq!(seen(), before, "{algorithm}");
        }
    }
}
