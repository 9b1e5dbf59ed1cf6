//! The statistics of simulated traffic, within what chance allows: five standard deviations of the
//! figure that is tested. The seeds are fixed, so that a test passes always or never.

use std::collections::HashMap;

use slidegate::{Algorithm, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Timestamp};

use super::*;

/// 2026-11-20T00:00:00Z.
const START_US: u64 = 1_795_132_800_000_000;

fn simulation(seed: u64) -> Simulation {
    Simulation::new(seed, START_US)
}

fn requests(options: Simulation) -> Vec<SimulatedRequest> {
    options.requests().unwrap().collect()
}

/// How many of these are in each second.
fn per_second(requests: &[SimulatedRequest], seconds: usize) -> Vec<f64> {
    let mut counts = vec![0.0; seconds];
    for request in requests {
        counts[usize::try_from((request.time_us - START_US) / 1_000_000).unwrap()] += 1.0;
    }
    counts
}

#[allow(clippy::cast_precision_loss)] // small numbers
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    self::mean(&values.iter().map(|value| (value - mean).powi(2)).collect::<Vec<_>>())
}

/// Limits that hold for even traffic fail for random traffic: it must be as random as it says.
#[test]
fn poisson_arrivals_have_the_mean_and_the_variance_of_their_rate() {
    let options = Simulation { rate: 50.0, duration_us: 2_000_000_000, ..simulation(1) };
    let counts = per_second(&requests(options), 2000);
    // Standard deviations: the square root of 50 / 2000, and of 2 / 2000 times 50.
    assert!((mean(&counts) - 50.0).abs() < 5.0 * 0.158, "{}", mean(&counts));
    assert!((variance(&counts) - 50.0).abs() < 5.0 * 1.58, "{}", variance(&counts));
    let even = Simulation { rate: 50.0, is_even: true, duration_us: 100_000_000, ..simulation(1) };
    assert!(variance(&per_second(&requests(even), 100)) < 1.0);
}

/// A few heavy clients are what limits are for: their shares must be those of the law.
#[test]
fn zipf_ranks_have_their_shares() {
    for exponent in [0.5, 1.0, 1.5] {
        let options = Simulation { rate: 1000.0, zipf: exponent, duration_us: 100_000_000, ..simulation(2) };
        let requests = requests(options);
        let mut counts: HashMap<&str, f64> = HashMap::new();
        requests.iter().for_each(|request| *counts.entry(&request.user).or_default() += 1.0);
        let whole: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum();
        #[allow(clippy::cast_precision_loss)]
        let total = requests.len() as f64;
        for rank in [1, 2, 3, 10, 100, 1000] {
            let share = f64::from(rank).powf(-exponent) / whole;
            let deviation = (total * share * (1.0 - share)).sqrt();
            let found = counts.get(format!("user-{rank}").as_str()).copied().unwrap_or_default();
            assert!((found - total * share).abs() < 5.0 * deviation, "{exponent} {rank}: {found}");
        }
    }
}

/// Without the law, all clients are alike, the first and the last included.
#[test]
fn uniform_keys_are_equally_frequent() {
    let options = Simulation { rate: 1000.0, keys: 50, duration_us: 100_000_000, ..simulation(3) };
    let mut counts: HashMap<IpAddr, f64> = HashMap::new();
    let requests = requests(options);
    requests.iter().for_each(|request| *counts.entry(request.ip).or_default() += 1.0);
    assert_eq!(counts.len(), 50);
    #[allow(clippy::cast_precision_loss)]
    let expected = requests.len() as f64 / 50.0;
    // Chi-squared with 49 degrees of freedom: mean 49, standard deviation 9.9.
    let chi: f64 = counts.values().map(|count| (count - expected).powi(2) / expected).sum();
    assert!((0.0..49.0 + 5.0 * 9.9).contains(&chi), "{chi}");
}

/// A limit per hour that is fit for the night is not fit for the afternoon.
#[test]
fn a_daily_pattern_has_its_peak_in_the_afternoon_and_the_same_average() {
    let options = Simulation { rate: 2.0, daily: 0.8, duration_us: 86_400_000_000, ..simulation(4) };
    let requests = requests(options);
    #[allow(clippy::cast_precision_loss)]
    let total = requests.len() as f64;
    assert!((total - 172_800.0).abs() < 5.0 * 416.0, "{total}");
    let in_hour = |hour: u64| {
        requests.iter().filter(|request| (request.time_us - START_US) / 3_600_000_000 == hour).count()
    };
    // 1.8 and 0.2 times the average of 7200 at the extremes, and about 0.99 of that over an hour.
    assert!((12_200..13_400).contains(&in_hour(14)), "{}", in_hour(14));
    assert!((1_250..1_750).contains(&in_hour(2)), "{}", in_hour(2));
}

/// Bursts are of one client, complete, and within a second.
#[test]
fn bursts_are_of_one_client_and_take_a_second() {
    let bursts = Some(Bursts { size: 40, every_us: 10_000_000 });
    let options = Simulation { rate: 0.0, bursts, duration_us: 1_000_000_000, ..simulation(5) };
    let requests = requests(options);
    let mut times: HashMap<IpAddr, Vec<u64>> = HashMap::new();
    requests.iter().for_each(|request| times.entry(request.ip).or_default().push(request.time_us));
    // A hundred are expected; the standard deviation is ten.
    let count = requests.len() / 40;
    assert!((50..=150).contains(&count), "{count}");
    for times in times.values() {
        assert!(times.len() % 40 == 0 || times.last().unwrap() + 1_000_000 > START_US + 999_000_000);
        assert!(times[39.min(times.len() - 1)] - times[0] < 1_000_000);
    }
    assert!(requests.is_sorted_by_key(|request| request.time_us));
}

/// How many of the attacker's requests a gate admits within any one window.
fn worst_window(algorithm: Algorithm, options: &Simulation) -> usize {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let quota = Quota::per_minute(100).with_algorithm(algorithm);
    let policies = PolicySet::new([Policy::new("p", quota).unwrap().scope(["ip"])]).unwrap();
    let gate = Gate::with_memory(policies, store);
    let mut admitted = Vec::new();
    for request in options.clone().requests().unwrap() {
        clock.set(Timestamp::from_micros(request.time_us));
        let is_allowed = gate.check(&Request::new().with("ip", request.ip)).is_allowed();
        if is_allowed && request.ip == ATTACKER {
            admitted.push(request.time_us);
        }
    }
    let within = |from: &u64| admitted.iter().filter(|at| (*from..from + 60_000_000).contains(at)).count();
    admitted.iter().map(within).max().unwrap_or_default()
}

/// The attack is what fixed windows are known for: twice the limit passes, and the limit passes the
/// exact log.
#[test]
fn the_boundary_attack_passes_twice_through_a_fixed_window_and_once_through_the_log() {
    let boundary = Some(Boundary { size: 100, window_us: 60_000_000 });
    let options = Simulation { boundary, rate: 5.0, ..simulation(6) };
    assert_eq!(worst_window(Algorithm::FixedWindow, &options), 200);
    assert_eq!(worst_window(Algorithm::SlidingLog, &options), 100);
    let attacks = requests(options).iter().filter(|request| request.ip == ATTACKER).count();
    assert_eq!(attacks, 4 * 200, "every second edge within ten minutes");
}

/// A result that somebody else cannot repeat proves nothing.
#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let everything = |seed| Simulation {
        rate: 20.0,
        zipf: 1.1,
        daily: 0.5,
        bursts: Some(Bursts { size: 30, every_us: 20_000_000 }),
        boundary: Some(Boundary { size: 10, window_us: 60_000_000 }),
        cost: (1, 9),
        duration_us: 300_000_000,
        ..simulation(seed)
    };
    let bytes = |seed, style| {
        let mut out = Vec::new();
        requests(everything(seed)).iter().for_each(|request| write_line(&mut out, request, style).unwrap());
        out
    };
    for style in [LogStyle::Combined, LogStyle::Recording] {
        assert_eq!(bytes(7, style), bytes(7, style));
        assert_ne!(bytes(7, style), bytes(8, style));
    }
    // The very bytes, on every machine: FNV-1a of the recording.
    let hash = bytes(7, LogStyle::Recording).iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    assert_eq!(hash, 15_976_898_645_005_676_824, "of the bytes that seed 7 gives");
    // A part that is added leaves the others as they are.
    let without = requests(Simulation { bursts: None, boundary: None, cost: (1, 1), ..everything(7) });
    let with: Vec<_> = requests(everything(7)).into_iter().map(|one| (one.time_us, one.ip)).collect();
    assert!(without.iter().all(|one| with.contains(&(one.time_us, one.ip))));
}

/// Every client is a key of its own, also where addresses are counted by network.
#[test]
fn clients_have_addresses_of_their_own() {
    use slidegate::client_addr::{Ipv6Prefix, group};
    let of = |number| group(address(number), Ipv6Prefix::default());
    let numbers = [1, 2, 131_071, 131_072, 131_073, 200_000, 9_999_999, MAX_KEYS];
    let addresses: std::collections::HashSet<_> = numbers.into_iter().map(of).collect();
    assert_eq!(addresses.len(), numbers.len());
    assert_eq!(address(1).to_string(), "198.18.0.1");
}

/// An option that makes a simulation endless is found before it fills a disk.
#[test]
fn options_out_of_their_range_are_errors() {
    let error = |options: Simulation| options.requests().err().unwrap();
    assert_eq!(
        error(Simulation { keys: 0, ..simulation(1) }),
        "invalid number of keys `0`: must be 1 to 10000000"
    );
    assert_eq!(
        error(Simulation { zipf: -1.0, ..simulation(1) }),
        "invalid Zipf exponent `-1`: must be 0 (uniform) to 10, for example 1"
    );
    assert_eq!(
        error(Simulation { daily: 1.5, ..simulation(1) }),
        "invalid daily swing `1.5`: must be 0 (none) to 1, for example 0.5"
    );
    assert_eq!(
        error(Simulation { cost: (5, 2), ..simulation(1) }),
        "invalid cost `5..2`: the first must not exceed the second"
    );
    assert_eq!(
        error(Simulation { rate: 1e7, ..simulation(1) }),
        "too many requests: 6000000000 are expected, at most 1000000000 are simulated; use a shorter duration or \
         a lower rate"
    );
    let bursts = Some(Bursts { size: 1, every_us: 1 });
    assert_eq!(
        error(Simulation { bursts, ..simulation(1) }),
        "too many bursts: 1000000 at once, at most 100000; let them be rarer"
    );
}
