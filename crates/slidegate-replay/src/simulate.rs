//! Synthetic traffic: Poisson arrivals, bursts, attacks at the edges of windows, Zipf-distributed
//! keys and a daily pattern, from a seed.
//!
//! The same options and the same seed give the same requests on every machine: random numbers are
//! from `ChaCha`, and logarithms from a library that does not depend on the processor's.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

pub use log::{LogStyle, write_line};
use random::{below, exponential, unit};
use zipf::Zipf;

mod log;
mod random;
mod zipf;

/// Most requests of a simulation, expected on average: an hour of work, and 200 GB of log.
pub(crate) const MAX_REQUESTS: f64 = 1e9;
/// Most clients: there are so many networks of 56 bits in the addresses for documentation.
pub(crate) const MAX_KEYS: u64 = 10_000_000;
/// Bursts that may overlap on average: each is held in memory while it lasts.
const MAX_OVERLAPPING: f64 = 100_000.0;
/// How long a burst takes.
const BURST_US: u64 = 1_000_000;
/// The hour of the day with the most traffic, UTC.
const PEAK_HOUR: f64 = 14.0;
const DAY_US: f64 = 86_400e6;

/// Clients in the network for benchmarks (RFC 2544, 198.18.0.0/15). Further ones have IPv6
/// addresses for documentation (RFC 3849), each in a network of its own.
const FIRST_IPV4: u32 = 0xC612_0000;
const IPV4_CLIENTS: u64 = 1 << 17;
const FIRST_IPV6: u128 = 0x2001_0db8 << 96;
/// The attacker, in a network for documentation (RFC 5737).
const ATTACKER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

/// Paths and how often they are asked for, in per cent.
const PATHS: [(&str, u64); 5] =
    [("/", 40), ("/api/items", 30), ("/api/items/42", 15), ("/search", 10), (LOGIN, 5)];
/// The path that the attacker asks for.
const LOGIN: &str = "/login";

/// What to simulate. All parts are added together.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Another seed gives other requests of the same kind.
    pub seed: u64,
    /// When it begins, in microseconds since the epoch.
    pub start_us: u64,
    /// How long it takes.
    pub duration_us: u64,
    /// Requests per second of ordinary clients, on average.
    pub rate: f64,
    /// Whether ordinary requests come at equal intervals instead of at random.
    pub is_even: bool,
    /// Clients, from 1 to ten million.
    pub keys: u64,
    /// The exponent by which a few clients send most requests: 0 is uniform, 1 the usual one.
    pub zipf: f64,
    /// How much the rate swings around its average within a day, 0 to 1.
    pub daily: f64,
    /// Bursts of one client.
    pub bursts: Option<Bursts>,
    /// An attacker who knows the windows.
    pub boundary: Option<Boundary>,
    /// The least and the greatest cost of a request; all between are equally frequent.
    pub cost: (u64, u64),
}

/// Bursts: now and then a client sends many requests within a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bursts {
    /// Requests of one burst.
    pub size: u64,
    /// The average time from one burst to the next.
    pub every_us: u64,
}

/// An attacker who sends as much as a fixed window admits just before its end, and again just
/// after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// Requests before, and as many after.
    pub size: u64,
    /// The window, whose edges are multiples of it since the epoch. Every second one is attacked,
    /// so that the window before has no usage.
    pub window_us: u64,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedRequest {
    /// In microseconds since the epoch. Never less than that of the request before.
    pub time_us: u64,
    /// The address of the client, as a log has it.
    pub ip: String,
    /// Its name.
    pub user: String,
    /// What it asks for.
    pub path: &'static str,
    /// What that costs.
    pub cost: u64,
}

/// Who sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    Client(u64),
    Attacker,
}

/// The requests of a simulation, in order of time.
#[derive(Debug)]
pub struct Requests {
    options: Simulation,
    zipf: Zipf,
    /// Each part has random numbers of its own, so that adding one does not change the others.
    ordinary: ChaCha8Rng,
    bursting: ChaCha8Rng,
    details: ChaCha8Rng,
    /// The next ordinary request.
    next_us: Option<u64>,
    /// Time of ordinary requests so far, exact where microseconds are too coarse.
    elapsed_us: f64,
    next_burst_us: Option<u64>,
    /// Requests that are due, the earliest first: those of bursts, and the attacker's.
    pending: BinaryHeap<Reverse<(u64, Sender, Pending)>>,
    next_edge_us: Option<u64>,
}

/// What follows a pending request: so many more, this far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    more: u64,
    apart_us: u64,
}

impl Simulation {
    /// The requests.
    ///
    /// # Errors
    /// One line: an option is out of its range, or there would be too many requests.
    pub fn requests(self) -> Result<Requests, String> {
        self.check()?;
        let stream = |number| {
            let mut random = ChaCha8Rng::seed_from_u64(self.seed);
            random.set_stream(number);
            random
        };
        let mut requests = Requests {
            zipf: Zipf::new(self.keys, self.zipf),
            ordinary: stream(1),
            bursting: stream(2),
            details: stream(3),
            next_us: None,
            elapsed_us: 0.0,
            next_burst_us: None,
            pending: BinaryHeap::new(),
            next_edge_us: self.boundary.map(|boundary| {
                let pair_us = 2 * boundary.window_us;
                // The first edge before which all requests fit.
                (self.start_us + boundary.size).div_ceil(pair_us) * pair_us
            }),
            options: self,
        };
        requests.advance();
        requests.advance_burst(requests.options.start_us);
        Ok(requests)
    }

    /// Requests to expect, on average.
    #[must_use]
    pub fn expected(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // an average
        let per = |count: u64, us: u64| count as f64 * self.duration_us as f64 / us.max(1) as f64;
        let bursts = self.bursts.map_or(0.0, |bursts| per(bursts.size, bursts.every_us));
        let boundary = self.boundary.map_or(0.0, |boundary| per(boundary.size, boundary.window_us));
        per(1, 1_000_000) * self.rate + bursts + boundary
    }

    fn check(&self) -> Result<(), String> {
        let Self { keys, zipf, daily, cost, rate, .. } = *self;
        if !(1..=MAX_KEYS).contains(&keys) {
            return Err(format!("invalid number of keys `{keys}`: must be 1 to {MAX_KEYS}"));
        }
        if !(0.0..=10.0).contains(&zipf) {
            return Err(format!("invalid Zipf exponent `{zipf}`: must be 0 (uniform) to 10, for example 1"));
        }
        if !(0.0..=1.0).contains(&daily) {
            return Err(format!("invalid daily swing `{daily}`: must be 0 (none) to 1, for example 0.5"));
        }
        if cost.0 > cost.1 {
            return Err(format!(
                "invalid cost `{}..{}`: the first must not exceed the second",
                cost.0, cost.1
            ));
        }
        #[allow(clippy::cast_precision_loss)] // an average
        let overlapping = self.bursts.map_or(0.0, |bursts| BURST_US as f64 / bursts.every_us.max(1) as f64);
        if overlapping > MAX_OVERLAPPING {
            return Err(format!(
                "too many bursts: {overlapping:.0} at once, at most {MAX_OVERLAPPING:.0}; let them be rarer"
            ));
        }
        let expected = self.expected();
        if expected > MAX_REQUESTS || !rate.is_finite() {
            return Err(format!(
                "too many requests: {expected:.0} are expected, at most {MAX_REQUESTS:.0} are simulated; use a \
                 shorter duration or a lower rate"
            ));
        }
        Ok(())
    }

    fn end_us(&self) -> u64 {
        self.start_us.saturating_add(self.duration_us)
    }

    /// The rate at this time, in relation to the average.
    fn swing(&self, at_us: u64) -> f64 {
        if self.daily == 0.0 {
            return 1.0;
        }
        #[allow(clippy::cast_precision_loss)] // exact until 2255
        let day = (at_us as f64 % DAY_US) / DAY_US - PEAK_HOUR / 24.0;
        1.0 + self.daily * libm::cos(day * std::f64::consts::TAU)
    }
}

impl Requests {
    /// Finds the next ordinary request.
    ///
    /// A rate that varies is simulated by thinning (Lewis and Shedler, 1979): requests come at the
    /// highest rate, and are kept with the probability of the rate at their time.
    fn advance(&mut self) {
        let highest = self.options.rate * (1.0 + self.options.daily);
        self.next_us = None;
        if highest <= 0.0 {
            return;
        }
        loop {
            let wait = if self.options.is_even { 1.0 } else { exponential(&mut self.ordinary) };
            self.elapsed_us += wait * 1e6 / highest;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below the duration
            let at_us = self.options.start_us.saturating_add(self.elapsed_us as u64);
            if at_us >= self.options.end_us() {
                return;
            }
            let is_kept = self.options.daily == 0.0
                || unit(&mut self.ordinary) * (1.0 + self.options.daily) < self.options.swing(at_us);
            if is_kept {
                self.next_us = Some(at_us);
                return;
            }
        }
    }

    /// Finds the beginning of the next burst.
    fn advance_burst(&mut self, from_us: u64) {
        let Some(bursts) = self.options.bursts else { return };
        #[allow(clippy::cast_precision_loss)]
        let wait_us = exponential(&mut self.bursting) * bursts.every_us as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let at_us = from_us.saturating_add(wait_us as u64);
        self.next_burst_us = (at_us < self.options.end_us()).then_some(at_us);
    }

    /// Makes the requests of bursts and attacks pending that begin until this time.
    fn begin(&mut self, until_us: u64) {
        if let Some(boundary) = self.options.boundary {
            while let Some(edge_us) = self.next_edge_us.filter(|edge_us| edge_us - boundary.size <= until_us)
            {
                if boundary.size > 0 && edge_us - boundary.size < self.options.end_us() {
                    // A microsecond apart, half of them before the edge.
                    let pending = Pending { more: 2 * boundary.size - 1, apart_us: 1 };
                    self.pending.push(Reverse((edge_us - boundary.size, Sender::Attacker, pending)));
                }
                let next_us = edge_us.saturating_add(2 * boundary.window_us);
                self.next_edge_us = (next_us < self.options.end_us()).then_some(next_us);
            }
        }
        if let Some(bursts) = self.options.bursts {
            while let Some(at_us) = self.next_burst_us.filter(|at_us| *at_us <= until_us) {
                if bursts.size > 0 {
                    let client = self.zipf.sample(&mut self.bursting);
                    let pending = Pending { more: bursts.size - 1, apart_us: BURST_US / bursts.size };
                    self.pending.push(Reverse((at_us, Sender::Client(client), pending)));
                }
                self.advance_burst(at_us);
            }
        }
    }

    /// The time of the next thing that happens.
    fn horizon(&self) -> Option<u64> {
        let edge = self.options.boundary.zip(self.next_edge_us);
        let edge = edge.map(|(boundary, edge_us)| edge_us - boundary.size);
        let pending = self.pending.peek().map(|Reverse((at_us, ..))| *at_us);
        [self.next_us, self.next_burst_us, edge, pending].into_iter().flatten().min()
    }
}

impl Iterator for Requests {
    type Item = SimulatedRequest;

    fn next(&mut self) -> Option<SimulatedRequest> {
        loop {
            let at_us = self.horizon()?;
            if at_us >= self.options.end_us() {
                return None;
            }
            self.begin(at_us);
            let sender = if self.pending.peek().is_some_and(|Reverse((due_us, ..))| *due_us == at_us) {
                let Reverse((_, sender, Pending { more, apart_us })) = self.pending.pop()?;
                if more > 0 {
                    let pending = Pending { more: more - 1, apart_us };
                    self.pending.push(Reverse((at_us + apart_us, sender, pending)));
                }
                sender
            } else if self.next_us == Some(at_us) {
                let sender = Sender::Client(self.zipf.sample(&mut self.ordinary));
                self.advance();
                sender
            } else {
                // A burst or an attack of no requests.
                continue;
            };
            return Some(self.request(at_us, sender));
        }
    }
}

impl Requests {
    fn request(&mut self, time_us: u64, sender: Sender) -> SimulatedRequest {
        let (least, greatest) = self.options.cost;
        let cost = least + below(&mut self.details, greatest - least + 1);
        let mut share = below(&mut self.details, 100);
        let path = PATHS.iter().find(|(_, percent)| match share.checked_sub(*percent) {
            Some(rest) => {
                share = rest;
                false
            }
            None => true,
        });
        match sender {
            Sender::Client(number) => SimulatedRequest {
                time_us,
                ip: address(number).to_string(),
                user: format!("user-{number}"),
                path: path.map_or("/", |(path, _)| path),
                cost,
            },
            Sender::Attacker => SimulatedRequest {
                time_us,
                ip: ATTACKER.to_string(),
                user: "attacker".to_owned(),
                path: LOGIN,
                cost,
            },
        }
    }
}

/// The address of a client, from 1.
fn address(number: u64) -> IpAddr {
    match u32::try_from(number) {
        Ok(small) if number < IPV4_CLIENTS => Ipv4Addr::from_bits(FIRST_IPV4 + small).into(),
        _ => Ipv6Addr::from_bits(FIRST_IPV6 | u128::from(number) << 72 | 1).into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use slidegate::{
        Algorithm, Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Timestamp,
    };

    use super::*;

    /// 2026-11-20T00:00:00Z.
    const START_US: u64 = 1_795_132_800_000_000;

    /// Ten minutes of 100 requests per second by 1,000 clients.
    fn simulation(seed: u64) -> Simulation {
        Simulation {
            seed,
            start_us: START_US,
            duration_us: 600_000_000,
            rate: 100.0,
            is_even: false,
            keys: 1000,
            zipf: 0.0,
            daily: 0.0,
            bursts: None,
            boundary: None,
            cost: (1, 1),
        }
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
            let options =
                Simulation { rate: 1000.0, zipf: exponent, duration_us: 100_000_000, ..simulation(2) };
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
        let mut counts: HashMap<&str, f64> = HashMap::new();
        let requests = requests(options);
        requests.iter().for_each(|request| *counts.entry(&request.ip).or_default() += 1.0);
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
        let mut times: HashMap<&str, Vec<u64>> = HashMap::new();
        requests.iter().for_each(|request| times.entry(&request.ip).or_default().push(request.time_us));
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
        let policies = PolicySet::new([Policy::new("p", quota).unwrap().with_scope(["ip"])]).unwrap();
        let gate = Gate::with_memory(policies, store);
        let mut admitted = Vec::new();
        for request in options.clone().requests().unwrap() {
            clock.set(Timestamp::from_micros(request.time_us));
            let is_allowed = gate.check(&Request::new().with("ip", request.ip.as_str())).is_allowed();
            if is_allowed && request.ip == ATTACKER.to_string() {
                admitted.push(request.time_us);
            }
        }
        let within =
            |from: &u64| admitted.iter().filter(|at| (*from..from + 60_000_000).contains(at)).count();
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
        let attacks = requests(options).iter().filter(|request| request.ip == ATTACKER.to_string()).count();
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
            requests(everything(seed))
                .iter()
                .for_each(|request| write_line(&mut out, request, style).unwrap());
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
        assert!(without.into_iter().all(|one| with.contains(&(one.time_us, one.ip))));
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
}
