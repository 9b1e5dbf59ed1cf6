//! Every figure of `docs/algorithms.md`, measured, and looked up on the page in the page's own
//! words.
//!
//! Each test formats what it measured into a sentence or a table row and asks that the page has it,
//! so neither the code nor the page can change without the other.

use std::time::Duration;

use slidegate::Algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use slidegate::{
    Algorithm, Decision, Limiter, MemoryStore, Quota,
    clock::{ManualClock, Timestamp},
};

use crate::counting::live_bytes;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// A border of minutes, hours and days: where every trial's own time begins.
const START: u64 = 11_574 * DAY;

/// A limiter with one key, and what it admitted. Times are in microseconds since [`START`].
struct Trial {
    clock: ManualClock,
    limiter: Limiter,
    now: u64,
    /// Time and cost of each admitted request.
    admitted: Vec<(u64, u64)>,
}

impl Trial {
    fn new(quota: Quota) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START));
        let store = MemoryStore::builder().max_keys(16).clock(clock.clone()).build();
        Self { clock, limiter: Limiter::with_store(quota, store), now: 0, admitted: Vec::new() }
    }

    fn at(&mut self, us: u64) -> &mut Self {
        self.now = us;
        self.clock.set(Timestamp::from_micros(START + us));
        self
    }

    fn ask(&mut self, cost: u64) -> Decision {
        let decision = self.limiter.check_cost("key", cost);
        if decision.is_allowed() {
            self.admitted.push((self.now, cost));
        }
        decision
    }

    /// Asks for one at a time, each as soon as it fits, until `until`.
    fn take_all(&mut self, from: u64, until: u64) {
        self.at(from);
        while self.now < until {
            let wait = self.ask(1).retry_after().unwrap();
            self.at(self.now + micros(wait));
        }
    }

    /// The wait for a cost of 1, which must be denied now, in seconds.
    fn wait_secs(&mut self) -> f64 {
        let denied = self.limiter.peek("key");
        assert!(denied.is_denied(), "{denied:?}");
        denied.retry_after().unwrap().as_secs_f64()
    }

    fn used(&self) -> u64 {
        self.limiter.peek("key").used()
    }

    fn admitted_cost(&self) -> u64 {
        self.admitted.iter().map(|(_, cost)| cost).sum()
    }

    /// The most admitted in any interval of one window's length, found by sweeping over the
    /// history.
    fn most_in_a_window(&self) -> u64 {
        let window = micros(self.limiter.quota().window());
        let (mut oldest, mut within, mut most) = (0, 0, 0);
        for &(at, cost) in &self.admitted {
            within += cost;
            while self.admitted[oldest].0 + window <= at {
                within -= self.admitted[oldest].1;
                oldest += 1;
            }
            most = most.max(within);
        }
        most
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// 100 per minute under this algorithm: the quota of the page.
fn hundred(algorithm: Algorithm) -> Quota {
    Quota::per_minute(100).with_algorithm(algorithm)
}

/// `SplitMix64` (Steele, Lea, Flood 2014): the same traffic on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    /// Bursts of `burst` requests, 50 ms apart within one, that begin at random: sorted, they are a
    /// Poisson process.
    fn arrivals(&mut self, per_minute: u64, burst: u64, minutes: u64) -> Vec<u64> {
        let begins: Vec<u64> =
            (0..per_minute * minutes / burst).map(|_| self.below(minutes * MINUTE)).collect();
        let spread = |begin: &u64| {
            let begin = *begin;
            (0..burst).map(move |n| begin + n * 50_000)
        };
        let mut arrivals: Vec<u64> = begins.iter().flat_map(spread).collect();
        arrivals.sort_unstable();
        arrivals
    }
}

/// Asserts that the page has these words, wherever its lines break.
#[track_caller]
fn page_says(words: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/algorithms.md");
    let page = std::fs::read_to_string(path).unwrap();
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(words), "docs/algorithms.md does not say `{words}`");
}

/// The most in one window over all clients that, in each of three windows, begin at some time and
/// then take what they can as soon as they can.
fn worst_window(quota: Quota) -> u64 {
    let begins = [0, 15 * SECOND, 30 * SECOND, 45 * SECOND, MINUTE - 1, MINUTE];
    let mut worst = 0;
    for first in begins {
        for second in begins {
            for third in begins {
                let mut trial = Trial::new(quota);
                for (window, begin) in (0..).zip([first, second, third]) {
                    trial.take_all(window * MINUTE + begin, (window + 1) * MINUTE);
                }
                worst = worst.max(trial.most_in_a_window());
            }
        }
    }
    worst
}

/// The first thing to know about an algorithm: how far above the limit a client can get that wants
/// to.
#[test]
fn the_worst_window_of_each_algorithm_is_what_the_table_says() {
    for (algorithm, exact, worst) in [
        (SlidingLog, "yes", 100),
        (SlidingWindow, "no", 199),
        (FixedWindow, "no", 200),
        (TokenBucket, "its own rule", 199),
    ] {
        let measured = worst_window(hundred(algorithm));
        assert_eq!(measured, worst, "{algorithm}");
        page_says(&format!("| [`{algorithm}`](#{algorithm}) | {exact} | {measured} |"));
    }
}

/// `burst` is the one knob that moves the token bucket's worst case; its user needs the rule, not
/// one number.
#[test]
fn a_bucket_admits_burst_and_limit_less_one_in_its_worst_window() {
    for (burst, worst) in [(1, 100), (20, 119), (100, 199), (300, 399)] {
        let measured = worst_window(hundred(TokenBucket).with_burst(burst));
        assert_eq!((measured, worst), (burst + 99, worst));
        page_says(&format!("| {burst} | {measured} |"));
    }
}

/// The classic defect of fixed windows, at the clock's resolution.
#[test]
fn a_fixed_window_admits_twice_the_limit_in_a_microsecond() {
    let mut trial = Trial::new(hundred(FixedWindow));
    trial.take_all(MINUTE - 1, MINUTE + 1);
    assert_eq!(
        (trial.admitted_cost(), trial.admitted[0].0, trial.admitted[199].0),
        (200, MINUTE - 1, MINUTE)
    );
    page_says("100 requests at 59.999999 s and 100 more at 60 s, which is 200 within a microsecond");
}

/// Both sides of the two counters' error, so that nobody takes it for a small one.
#[test]
fn two_counters_are_too_lenient_and_too_strict_as_drawn() {
    let mut late = Trial::new(hundred(SlidingWindow));
    late.take_all(MINUTE - 1, 2 * MINUTE - 1);
    assert_eq!((late.most_in_a_window(), late.admitted.last().unwrap().0), (199, 119_400_000));
    page_says("100 at 59.999999 s, then one every 0.6 s up to 119.4 s: 199 in 60 s");

    let (mut log, mut window) = (Trial::new(hundred(SlidingLog)), Trial::new(hundred(SlidingWindow)));
    let mut room = Vec::new();
    for at in [0, MINUTE, MINUTE + MINUTE / 2, 2 * MINUTE] {
        if at == 0 {
            log.at(at).ask(100);
            window.at(at).ask(100);
        }
        let remaining = |trial: &mut Trial| trial.at(at).limiter.peek("key").remaining();
        room.push((remaining(&mut log), remaining(&mut window)));
    }
    assert_eq!(room, [(0, 0), (100, 0), (100, 50), (100, 100)]);
    page_says("the log admits 100 again at 60 s; two counters admit 0 then, 50 at 90 s and 100 at 120 s");
    assert_eq!(window.at(0).used(), 0);
}

/// What random traffic makes of the error: near the limit it is no rare event, in volume it is
/// small.
#[test]
fn near_the_limit_two_counters_decide_otherwise_as_often_as_the_table_says() {
    let minutes = 1000;
    let (mut most_differ, mut most_volume) = (0.0_f64, 0.0_f64);
    for (traffic, burst) in [("steady", 1), ("bursts of 20", 20)] {
        for per_minute in [80, 100, 120, 200] {
            let mut window = Trial::new(hundred(SlidingWindow));
            let mut log = Trial::new(hundred(SlidingLog));
            // An exact log of what the two counters admitted: what they should have said, given
            // what they did say.
            let mut judge = Trial::new(hundred(SlidingLog));
            let (mut differ, mut wrong) = (0_u32, 0_u32);
            let arrivals = Random(1).arrivals(per_minute, burst, minutes);
            for &at in &arrivals {
                let decided = window.at(at).ask(1).verdict();
                differ += u32::from(log.at(at).ask(1).verdict() != decided);
                wrong += u32::from(judge.at(at).limiter.peek("key").verdict() != decided);
                if decided == slidegate::Verdict::Allow {
                    judge.limiter.penalize("key", 1);
                }
            }
            assert_eq!(log.most_in_a_window(), 100, "the log is exact");
            let share = |count: u32| 100.0 * f64::from(count) / arrivals.len() as f64;
            let volume = 100.0 * (window.admitted_cost() as f64 / log.admitted_cost() as f64 - 1.0);
            page_says(&format!(
                "| {traffic} | {per_minute} | {:.1} % | {:.1} % | {volume:+.1} % | {} |",
                share(differ),
                share(wrong),
                window.most_in_a_window()
            ));
            (most_differ, most_volume) = (most_differ.max(share(differ)), most_volume.max(volume.abs()));
        }
    }
    page_says(&format!("up to {most_differ:.0} % of the decisions differ"));
    page_says(&format!("the volume is within {most_volume:.1} %"));
}

/// The default's one promise, on traffic that tries it: bursts, larger costs, retries at the
/// promised time.
#[test]
fn no_interval_of_a_window_ever_holds_more_than_the_limit_under_the_log() {
    let mut random = Random(2);
    for quota in [hundred(SlidingLog), Quota::per_minute(100).with_slots(10)] {
        let mut trial = Trial::new(quota);
        for at in Random(3).arrivals(200, 20, 300) {
            trial.at(at.max(trial.now));
            let cost = 1 + random.below(3);
            let denied = trial.ask(cost);
            if denied.is_denied() && random.below(4) == 0 {
                trial.at(trial.now + micros(denied.retry_after().unwrap()));
                assert!(trial.ask(cost).is_allowed());
            }
        }
        assert_eq!(trial.most_in_a_window(), 100);
    }
    page_says("No interval of 60 s holds more than 100");
}

/// The price of bounded memory: who has a limit above 1024 must know how much of it is lost, and
/// how long a wait grows.
#[test]
fn a_coarse_log_admits_a_thousandth_less_and_waits_a_step_longer() {
    let quota = Quota::per_minute(10_000);
    let step = MINUTE.div_ceil(u64::from(quota.slots()));
    assert_eq!((quota.slots(), step), (1024, 58_594));
    page_says("at most `slots` entries, 1024 unless");
    page_says("60 s / 1024, rounded up to 58.594 ms");

    let (mut coarse, mut exact) = (Trial::new(quota), Trial::new(quota.with_slots(10_000)));
    for at in (0..50 * MINUTE).step_by(5_990) {
        coarse.at(at).ask(1);
        exact.at(at).ask(1);
    }
    assert_eq!((coarse.admitted_cost(), exact.admitted_cost()), (499_512, 500_000));
    assert_eq!((coarse.most_in_a_window(), exact.most_in_a_window()), (10_000, 10_000));
    page_says(
        "a request every 5.99 ms for 50 minutes, it admitted 499,512 where an exact log admits 500,000: 0.098 % less",
    );

    // A charge just after a step's border is stamped with the next one, nearly a step later.
    let border = (START / step + 1) * step - START;
    let mut late = Trial::new(quota);
    late.at(border + 1).ask(10_000);
    assert!((late.wait_secs() - 60.058_593).abs() < 1e-9);
    page_says("60.058593 s instead of 60 s");
}

/// People check a formula by doing one sum themselves.
#[test]
fn the_worked_examples_come_out_as_written() {
    let mut log = Trial::new(Quota::per_minute(3));
    for at in [0, 10, 40] {
        assert!(log.at(at * SECOND).ask(1).is_allowed());
    }
    assert_eq!(log.at(50 * SECOND).ask(1).retry_after(), Some(Duration::from_secs(10)));
    assert_eq!(log.ask(2).retry_after(), Some(Duration::from_secs(20)));
    assert!(log.at(MINUTE - 1).ask(1).is_denied());
    assert!(log.at(MINUTE).ask(1).is_allowed());
    page_says("A request at 50 s is denied and must wait 10 s; one of cost 2 must wait 20 s.");

    let mut window = Trial::new(hundred(SlidingWindow));
    window.at(0).ask(80);
    window.at(MINUTE + MINUTE / 2).ask(40);
    assert_eq!((window.used(), window.ask(30).retry_after()), (80, Some(Duration::from_millis(7500))));
    page_says("40 + 80 × 30 / 60 = 80 count and 20 remain");
    page_says("A cost of 30 waits 7.5 s");

    let mut fixed = Trial::new(hundred(FixedWindow));
    fixed.at(45 * SECOND).ask(100);
    assert!((fixed.wait_secs() - 15.0).abs() < 1e-9);
    page_says("at 45 s the wait is 15 s");
    let weekly = Trial::new(Quota::per_week(1).with_algorithm(FixedWindow));
    let thursday = Timestamp::from_secs(1_000_339_200); // 2001-09-13T00:00:00Z
    weekly.clock.set(Timestamp::from_secs(1_000_000_000));
    assert_eq!(weekly.limiter.check("key").reset_at(), thursday);
    page_says("weeks on Thursday");

    let mut bucket = Trial::new(hundred(TokenBucket).with_burst(20));
    bucket.ask(20);
    assert!((bucket.wait_secs() - 0.6).abs() < 1e-9);
    assert_eq!(bucket.ask(10).retry_after(), Some(Duration::from_secs(6)));
    page_says("20 pass at once, the next after 0.6 s, a cost of 10 after 6 s");
}

/// The four answer one overdraft so differently that it decides which to take for costs known
/// afterwards.
#[test]
fn a_penalty_of_250_is_waited_out_as_the_table_says() {
    for (algorithm, at_0, at_59) in [
        (SlidingLog, "60 s", "60 s"),
        (SlidingWindow, "96.24 s", "37.24 s"),
        (FixedWindow, "60 s", "1 s"),
        (TokenBucket, "60.6 s", "60.6 s"),
    ] {
        let wait = |at: u64| {
            let mut trial = Trial::new(hundred(algorithm));
            trial.at(at).limiter.penalize("key", 250);
            format!("{} s", trial.wait_secs())
        };
        assert_eq!((wait(0).as_str(), wait(59 * SECOND).as_str()), (at_0, at_59), "{algorithm}");
        page_says(&format!("| `{algorithm}` | {at_0} | {at_59} |"));
    }
}

/// A refund that took the newest charge away would let a window hold more than was agreed.
#[test]
fn a_refund_takes_the_oldest_of_a_log_and_no_more_than_counts() {
    let two = || {
        let mut log = Trial::new(Quota::per_minute(2));
        log.at(0).ask(1);
        log.at(50 * SECOND).ask(1);
        log
    };
    let mut log = two();
    let refunded = log.at(55 * SECOND).limiter.refund("key", 1);
    assert_eq!((refunded.cost(), refunded.used()), (1, 1));
    assert_eq!(refunded.reset_at(), Timestamp::from_micros(START + 110 * SECOND));
    page_says("what is left counts until 110 s");

    let mut log = two();
    assert_eq!(log.at(61 * SECOND).limiter.refund("key", 1).used(), 0);
    page_says("refunded at 61 s, the charge of 0 s removes that of 50 s");

    let mut fixed = Trial::new(hundred(FixedWindow));
    fixed.ask(7);
    assert_eq!(fixed.at(MINUTE).limiter.refund("key", 7).cost(), 0);
    page_says("7 charged before a boundary and refunded after it refund 0");

    let mut bucket = Trial::new(hundred(TokenBucket));
    bucket.ask(7);
    assert_eq!(bucket.at(3 * SECOND).limiter.refund("key", 7).cost(), 2);
    page_says("7 charged and refunded 3 s later refund 2");
}

/// Zero is where limiters differ most: some read it as unlimited, some divide by it.
#[test]
fn zero_limits_costs_and_bursts_mean_zero() {
    for algorithm in Algorithm::ALL {
        let none = Trial::new(Quota::per_minute(0).with_algorithm(algorithm).with_burst(9));
        let denied = none.limiter.check("key");
        assert!(denied.is_denied());
        assert_eq!(denied.retry_after(), None);
        assert!(none.limiter.check_cost("key", 0).is_allowed());

        let mut full = Trial::new(hundred(algorithm));
        full.ask(100);
        assert!(full.ask(0).is_allowed());
        assert_eq!(full.ask(101).retry_after(), None);
        assert_eq!(Trial::new(hundred(algorithm)).ask(0).reset_after(), Duration::ZERO);
    }
    let shut = Trial::new(hundred(TokenBucket).with_burst(0));
    assert_eq!(shut.limiter.check("key").retry_after(), None);
    assert_eq!(
        (Quota::MIN_WINDOW, Quota::MAX_WINDOW),
        (Duration::from_millis(1), Duration::from_micros(366 * DAY))
    );
    page_says("A window is 1 ms to 366 days long");
    page_says("A limit of 0 denies every cost but 0");
    page_says("A burst of 0 does the same");
}

/// Limits are changed in the middle of an incident; what happens to those who already used theirs
/// must be known before.
#[test]
fn a_changed_quota_applies_at_once_as_described() {
    let drained_at = |per_minute: u64| {
        let bucket = |limit| Quota::per_minute(limit).with_algorithm(TokenBucket).with_burst(60);
        let mut trial = Trial::new(bucket(60));
        trial.ask(60);
        trial.at(30 * SECOND).limiter.configure(bucket(per_minute));
        trial.at(31 * SECOND).used()
    };
    assert_eq!((drained_at(600), drained_at(60), drained_at(6)), (20, 29, 30));
    page_says(
        "holds 29 at 31 s if nothing changed, 20 if the limit became 600 at 30 s, and 30 if it became 6",
    );

    let log_at_70 = |window: u64, used_at_65: bool| {
        let mut trial = Trial::new(Quota::per_minute(10));
        trial.at(0).ask(1);
        trial.at(50 * SECOND).ask(1);
        if used_at_65 {
            trial.at(65 * SECOND).used();
        }
        trial.limiter.configure(Quota::new(10, Duration::from_secs(window)).unwrap());
        trial.at(70 * SECOND).used()
    };
    assert_eq!((log_at_70(60, true), log_at_70(20, true)), (1, 0));
    assert_eq!((log_at_70(120, true), log_at_70(120, false)), (1, 2));
    page_says("2 count at 70 s if it grew at 50 s, and 1 if it grew at 65 s");

    let mut fixed = Trial::new(Quota::per_hour(100).with_algorithm(FixedWindow));
    fixed.ask(100);
    fixed.limiter.configure(hundred(FixedWindow));
    assert!((fixed.wait_secs() - 60.0).abs() < 1e-9);
    page_says("from an hour to a minute, the hour's usage counts until the current minute ends");

    let mut window = Trial::new(hundred(SlidingWindow));
    window.at(0).ask(100);
    window.at(119 * SECOND).ask(3);
    window.limiter.configure(Quota::per_hour(100).with_algorithm(SlidingWindow));
    assert_eq!(window.used(), 5);
    page_says("after 100 in the minute before and 3 in this one, 5 count 1 s before it ends");

    let mut lowered = Trial::new(Quota::per_minute(1000).with_algorithm(TokenBucket));
    lowered.ask(1000);
    lowered.limiter.configure(Quota::per_minute(10).with_algorithm(TokenBucket));
    assert_eq!((lowered.used(), lowered.wait_secs()), (20, 66.0));
    page_says("Lowered from 1000 to 10 per minute, a full bucket holds 20, and 1 fits after 66 s");

    let mut switched = Trial::new(hundred(SlidingLog));
    switched.ask(100);
    switched.limiter.configure(hundred(TokenBucket));
    assert_eq!(switched.used(), 0);
    switched.limiter.configure(hundred(SlidingLog));
    assert_eq!(switched.used(), 0);
    page_says("Keys start with no usage, also when you switch back");
}

/// A clock that steps back must neither admit again nor lock a key out for as long as it stepped.
#[test]
fn a_clock_that_steps_back_is_waited_out_or_followed() {
    for (algorithm, before, half_a_second, an_hour) in [
        (SlidingLog, 60.0, 60.5, 60.0),
        (SlidingWindow, 50.6, 51.1, 50.6),
        (FixedWindow, 50.0, 50.5, 60.0),
        (TokenBucket, 0.6, 1.1, 0.6),
    ] {
        let wait = |back: u64| {
            let mut trial = Trial::new(hundred(algorithm));
            trial.at(HOUR + 10 * SECOND).ask(100);
            trial.at(HOUR + 10 * SECOND - back).wait_secs()
        };
        let measured = [wait(0), wait(SECOND / 2), wait(HOUR)];
        assert_eq!(measured, [before, half_a_second, an_hour], "{algorithm}");
        page_says(&format!("| `{algorithm}` | {before} s | {half_a_second} s | {an_hour} s |"));
    }

    // Two counters that hold the most they can, and a step to the start of the window before.
    let mut window = Trial::new(hundred(SlidingWindow));
    window.take_all(MINUTE - 1, 2 * MINUTE - 1);
    let wait = window.at(0).wait_secs();
    assert!((wait - 60.6).abs() < 0.005, "{wait}");
    page_says("with both full, the wait for 1 is 60.6 s");
}

/// Memory is what decides between the log and the rest.
#[test]
fn a_key_takes_the_bytes_that_the_table_says() {
    for (algorithm, more) in [
        (SlidingLog, ", plus 4 for each entry above five"),
        (SlidingWindow, ""),
        (FixedWindow, ""),
        (TokenBucket, ""),
    ] {
        let (least, most) = bytes_per_key(algorithm);
        page_says(&format!("| {least:.0} to {most:.0}{more} |"));
    }

    let (minute, day) = (Quota::per_minute, Quota::per_day);
    assert_eq!((ring_bytes(minute(100), 1, 1), ring_bytes(minute(100), 5, 1)), (0, 0));
    assert_eq!((ring_bytes(minute(100), 6, 1), ring_bytes(minute(100), 10, 1)), (40, 40));
    assert_eq!(ring_bytes(minute(100), 100, 1), 400);
    page_says("nothing for up to five entries, 40 bytes for six to ten");
    page_says("100 entries are 400 bytes");
    let minutes = |limit, minutes: u64| Quota::new(limit, Duration::from_secs(minutes * 60)).unwrap();
    let of_128 = [(minutes(128, 71), 1), (minutes(256, 71), 2), (minutes(128, 72), 1)];
    assert_eq!(of_128.map(|(quota, cost)| ring_bytes(quota, 128, cost)), [512, 640, 768]);
    page_says("the window is at most 71 minutes: 128 entries are 512 bytes");
    page_says("A cost of 2 to 255 anywhere in the log makes that 640, a byte more for each entry");
    page_says("A window above 71 minutes makes the 512 bytes 768");
    assert_eq!(ring_bytes(minute(10_000), 1025, 9), 5125);
    page_says("10,000 per minute takes 5,125 bytes with costs of 2 to 255");
    assert_eq!(ring_bytes(day(u64::MAX), 1025, 1 << 33), 14_350);
    page_says("at 1024 slots no log takes above 14,350");
    page_says(
        "A million keys of single requests take at most 105 MB, with 100 entries of cost 1 each at most 505 MB",
    );
}

/// What a log of so many entries holds beside its slot.
fn ring_bytes(quota: Quota, entries: u64, cost: u64) -> i64 {
    let (limiter, clock) = memory_trial(quota);
    let step = micros(quota.window()).div_ceil(1024);
    // Each charge comes just after a step has begun: so one more entry than slots still counts.
    clock.set(Timestamp::from_micros(START.next_multiple_of(step) + 1));
    let _ = limiter.check_cost("key", cost);
    let lone = live_bytes();
    for _ in 1..entries {
        clock.advance(Duration::from_micros(step));
        assert!(limiter.check_cost("key", cost).is_allowed());
    }
    live_bytes() - lone
}

/// Least and most bytes a key in a shard from half full to full, rounded up.
fn bytes_per_key(algorithm: Algorithm) -> (f64, f64) {
    let (limiter, _clock) = memory_trial(hundred(algorithm));
    let empty = live_bytes();
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for keys in 1..1024_u32 {
        let _ = limiter.check(keys.to_le_bytes());
        if keys >= 512 {
            let each = (live_bytes() - empty) as f64 / f64::from(keys);
            (least, most) = (least.min(each), most.max(each));
        }
    }
    (least.ceil(), most.ceil())
}

/// A limiter of a single shard.
fn memory_trial(quota: Quota) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(START));
    (Limiter::with_store(quota, MemoryStore::builder().max_keys(1023).clock(clock.clone()).build()), clock)
}
