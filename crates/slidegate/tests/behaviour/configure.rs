//! Changing a quota while keys are in use: what was used stays used, for as long as the quota in
//! force says.

use std::time::Duration;

use slidegate::{
    Limiter, MemoryStore, Quota,
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
