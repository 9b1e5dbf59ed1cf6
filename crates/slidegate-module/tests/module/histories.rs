//! Random histories: a key charged by the module, by the scripts, and by both in turn, must be
//! the same key.

use crate::calls::{Algorithm, Both, By, CALENDAR, HOUR, KEEPING_CALENDAR, NOW_US, Quota};

/// Numbers that look random, from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    pub(crate) fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

pub(crate) const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Log, Algorithm::Window, Algorithm::Fixed, Algorithm::Bucket];
pub(crate) const SECOND: u64 = 1_000_000;

pub(crate) fn quota(random: &mut Random, algorithm: Algorithm) -> Quota {
    let limit = random.one_of(&[0, 1, 3, 10, 40, 300, 5_000, (1 << 53) - 1]);
    let window = random.one_of(&[
        1_000,
        700_000,
        SECOND,
        10 * SECOND,
        60 * SECOND,
        7_201 * SECOND,
        30 * 86_400 * SECOND,
    ]);
    let window = match algorithm {
        Algorithm::Fixed => random.one_of(&[window, window, CALENDAR, KEEPING_CALENDAR, KEEPING_CALENDAR]),
        _ => window,
    };
    let burst = random.one_of(&[limit, limit, limit.min(1 << 40) * 2, 1]);
    let slots = random.one_of(&[1024, 1024, 1, 4, 20]);
    Quota { burst, slots, ..Quota::new(algorithm, limit, window) }
}

/// Costs as one call carries them: a cost, or costs with how many there are of each.
fn requests(random: &mut Random, limit: u64) -> Vec<u64> {
    let cost = |random: &mut Random| {
        let large = (limit / 3).max(1);
        random.one_of(&[1, 1, 1, 1, 0, 2, 3, 300.min(large), 70_000.min(large), large, limit])
    };
    match random.below(4) {
        0 => {
            let count = random.below(3) + 1;
            (0..count).flat_map(|_| [cost(random), random.below(5) + 1]).collect()
        }
        _ => vec![cost(random)],
    }
}

/// How far the clock steps.
pub(crate) fn step(random: &mut Random, window: u64) -> i64 {
    let window = if window >= CALENDAR { HOUR } else { window };
    let forward = [0, 1, 7, 1_000, window / 7, window / 2, window - 1, window, 2 * window];
    let back = [1, 900, 600_000, SECOND + 1, 5 * SECOND, window / 3, window + SECOND];
    match random.below(12) {
        0 => -random.one_of(&back).cast_signed(),
        _ => random.one_of(&forward).cast_signed(),
    }
}

fn run(both: &mut Both, seed: u64) {
    let mut random = Random(seed);
    let first = random.one_of(&ALGORITHMS);
    let mut quota_now = quota(&mut random, first);
    let mut now = NOW_US + random.below(100 * SECOND);
    both.at(now);
    let keys = ["script", "module", "both"].map(|name| format!("{name}:{seed}"));
    for at in 0..60 {
        if random.below(15) == 0 {
            // Another limit or window; rarely another algorithm, which starts afresh.
            let algorithm =
                if random.below(3) == 0 { random.one_of(&ALGORITHMS) } else { quota_now.algorithm };
            quota_now = quota(&mut random, algorithm);
        }
        now = now.saturating_add_signed(step(&mut random, quota_now.window_us));
        both.at(now);
        if random.below(6) == 0 {
            // The total of the window is acknowledged, as by `closed.lua`.
            for key in &keys {
                let value = both.stored(key).filter(|value| value.len() == 35);
                let told = value.map(|value| [&value[7..14], &[0; 7]].concat());
                told.map(|told| both.call(&[b"SETRANGE", key.as_bytes(), b"21", &told]));
            }
        }
        let costs = requests(&mut random, quota_now.limit);
        let turn = random.one_of(&[By::Script, By::Module]);
        let said = [By::Script, By::Module, turn]
            .iter()
            .zip(&keys)
            .map(|(by, key)| both.check(*by, key, &quota_now, &costs))
            .collect::<Vec<_>>();
        let what = || format!("seed {seed}, step {at} at {now}: {costs:?} under {quota_now:?}");
        assert_eq!(said[1], said[0], "the module's reply, {}", what());
        assert_eq!(said[2], said[0], "{turn:?}, which shares the key, {}", what());
        let [script, module, shared] = keys.each_ref().map(|key| both.stored(key));
        assert_eq!(module, script, "what the module stores, {}", what());
        assert_eq!(shared, script, "what both store in turn, {}", what());
        let [script, module, shared] = keys.each_ref().map(|key| both.lives_ms(key));
        // How long a bucket drains is a quotient, which scripts round in another digit.
        let rounding = i64::from(quota_now.algorithm == Algorithm::Bucket);
        for lives in [module, shared] {
            assert!((lives - script).abs() <= rounding, "{lives} and {script} ms to live, {}", what());
        }
    }
    for key in &keys {
        both.call(&[b"DEL", key.as_bytes()]);
    }
}

/// A fleet in which some servers have the module, and one that gets or loses it, counts every charge
/// once: by reply, by byte and by expiry.
#[test]
fn a_key_does_not_show_who_charged_it() {
    let mut both = Both::start();
    crate::each_seed(|seed| run(&mut both, seed));
}

/// A ring that is longer than one read of the scripts, and one that wraps around.
#[test]
fn a_long_log_is_charged_by_both_in_turn() {
    let mut both = Both::start();
    let quota = Quota::new(Algorithm::Log, 1000, 60 * SECOND);
    for at in 0..2500u64 {
        both.at(NOW_US + at * 50_000);
        let by = if at % 2 == 0 { By::Script } else { By::Module };
        let costs = [1 + at % 3];
        let said = both.check(by, "shared", &quota, &costs);
        assert_eq!(both.check(By::Script, "script", &quota, &costs), said, "charge {at}");
    }
    assert_eq!(both.stored("shared"), both.stored("script"));
    assert_eq!(both.lives_ms("shared"), both.lives_ms("script"));
}
