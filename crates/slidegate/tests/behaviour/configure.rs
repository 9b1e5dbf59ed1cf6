//! Changing a quota while keys are in use: what was used stays used, for as long as the quota in
//! force says.

use std::time::Duration;

use slidegate::{
    Algorithm, Limiter, MemoryStore, Quota,
    clock::{ManualClock, Timestamp},
};

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

/// A limiter checks and never reserves: under a limit on what is in flight it would admit everything.
#[test]
fn a_limiter_takes_no_limit_on_what_is_in_flight() {
    let in_flight = Quota::in_flight(2, secs(5)).unwrap();
    let limiter = Limiter::new(Quota::per_minute(3));
    let refusals = [
        std::panic::catch_unwind(|| drop(Limiter::new(in_flight))),
        std::panic::catch_unwind(|| drop(Limiter::with_store(in_flight, MemoryStore::new()))),
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limiter.configure(in_flight))),
    ];
    for refused in refusals {
        let text = *refused.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(
            text,
            "invalid quota `2/5s` of a limiter: what is in flight must be reserved, and a limiter only \
             checks; use it in a policy of a `Gate`"
        );
    }
    assert_eq!(limiter.quota(), Quota::per_minute(3));
}

/// Who makes a window longer means those, too, who have used it up already.
#[test]
fn a_longer_window_holds_what_was_charged_before_it() {
    let (limiter, clock) = limiter(per(3, secs(2)));
    let _ = limiter.check_cost("key", 3);
    clock.advance(secs(1));
    limiter.configure(per(3, secs(3600)));
    assert_eq!(limiter.check("key").retry_after(), Some(secs(3599)));
}

/// The same, for the many keys that nobody asked about between the change and their former end.
#[test]
fn a_longer_window_holds_keys_that_a_sweep_meets_first() {
    for algorithm in Algorithm::ALL {
        let (limiter, clock) = limiter(per(3, secs(2)).with_algorithm(algorithm));
        let _ = limiter.check_cost("key", 3);
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
    let _ = limiter.check_cost("key", 2);
    clock.advance(secs(10));
    let _ = limiter.check("key");
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
        let _ = limiter.check("key");
        clock.advance(secs(1));
    }
    limiter.configure(Quota::per_day(4).with_slots(4));
    clock.advance(secs(7200));
    // The log is full: a penalty is counted with the newest run.
    limiter.penalize("key", 1);
    // Five are used: the first two have to leave before one more fits.
    assert_eq!(limiter.check("key").retry_after(), Some(secs(86_400 - 7200 - 4 + 1)));
}

/// Limits go up and down with the load; each change binds what is there, and none loses it, except for
/// what a bucket cannot hold.
#[test]
fn limits_that_go_up_and_down_keep_every_charge() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = limiter(Quota::per_minute(10).with_algorithm(algorithm));
        let _ = limiter.check_cost("key", 7);
        let mut used = 7;
        for limit in [8, 2000, 7, 5, 10, 1, 0, 2000] {
            let quota = Quota::per_minute(limit).with_algorithm(algorithm);
            limiter.configure(quota);
            used = used.min(quota.max_used());
            let seen = limiter.peek("key");
            assert_eq!((seen.limit(), seen.used()), (limit, used), "{algorithm}");
            assert_eq!(
                (seen.remaining(), seen.is_allowed()),
                (limit.saturating_sub(used), limit > used),
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
        let _ = limiter.check_cost("key", 50);
        clock.advance(secs(89) + Duration::from_micros(7));
        let _ = limiter.check_cost("key", 3);
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

/// Who replaces a limit per month by one per minute must not lock out the keys in use until the step
/// of the old window ends: 42 minutes.
#[test]
fn a_log_of_long_steps_is_fine_at_once_under_a_short_window() {
    for (before, after) in [
        (per(5000, secs(30 * 86_400)), Quota::per_minute(100)),
        (Quota::per_day(1_000_000), Quota::per_second(20)),
        (Quota::per_day(2000), Quota::per_minute(100)),
        // The same window and finer steps, and a coarse log that stays coarse.
        (Quota::per_day(2000), Quota::per_day(1000)),
        (Quota::per_day(2000), Quota::per_day(2000).with_slots(1200)),
        (Quota::per_day(2000), Quota::per_hour(2000)),
    ] {
        let (limiter, clock) = limiter(before);
        clock.set(Timestamp::from_secs(1_036_800_000) + Duration::from_micros(1));
        let _ = limiter.check("key");
        limiter.configure(after);
        let longest = after.window() + after.window().div_f64(1024.0) + secs(1);
        for second in 0..2600 {
            // One was charged before, and others each second.
            if second.min(after.window().as_secs() + 1) + 1 < after.limit() {
                assert!(limiter.check("key").is_allowed(), "{after:?} after {second} s");
            }
            let reset_after = limiter.peek("key").reset_after();
            assert!(reset_after <= longest, "{after:?} after {second} s: {reset_after:?}");
            clock.advance(secs(1));
        }
    }
}

/// Steps that differ by less than twice have as many bits in a log, and no clock has stepped back: charges
/// must not expire early.
#[test]
fn finer_steps_expire_no_charge_early() {
    let (coarse, fine) = (Quota::per_day(2000), Quota::per_day(2000).with_slots(1200));
    let (limiter, clock) = limiter(coarse);
    let midnight = Timestamp::from_secs(1_036_800_000);
    clock.set(midnight);
    let _ = limiter.check_cost("key", 1999);
    clock.set(midnight + Duration::from_micros(843_750_001));
    let _ = limiter.check("key");
    limiter.configure(fine);
    limiter.peek("key");
    clock.set(midnight + (secs(86_400) - Duration::from_micros(1)));
    assert_eq!(limiter.peek("key").used(), 2000);
}

/// Who lowers the limit of a bucket wants it to be open again when the new quota says, not after it
/// has drained what only the old one could hold.
#[test]
fn a_bucket_holds_no_more_than_its_new_quota_counts() {
    let bucket = |limit, window| per(limit, window).with_algorithm(Algorithm::TokenBucket);
    for (before, after) in [
        (bucket(1000, secs(60)), bucket(10, secs(60))),
        (bucket(1000, secs(60)), bucket(10, secs(3600))),
        (bucket(1000, secs(3600)), bucket(10, secs(60))),
    ] {
        let (limiter, _) = limiter(before);
        let _ = limiter.check_cost("key", 1000);
        limiter.configure(after);
        let seen = limiter.check("key");
        assert_eq!((seen.used(), after.max_used()), (20, 20));
        assert_eq!(seen.retry_after(), Some(after.window() * 11 / 10), "{after:?}");
    }
}

/// What has almost left the sliding window must not come back with another window.
#[test]
fn two_counters_keep_what_counts_under_another_window() {
    let quota = |window| per(100, window).with_algorithm(Algorithm::SlidingWindow);
    let (limiter, clock) = limiter(quota(secs(60)));
    let _ = limiter.check_cost("key", 100);
    clock.set(START + secs(119));
    let _ = limiter.check_cost("key", 3);
    assert_eq!(limiter.peek("key").used(), 5);
    for window in [secs(3600), secs(7), secs(60)] {
        limiter.configure(quota(window));
        assert_eq!(limiter.peek("key").used(), 5, "{window:?}");
        assert!(limiter.peek_cost("key", 95).is_allowed(), "{window:?}");
    }
}
