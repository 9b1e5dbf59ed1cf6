//! Limiters that are right, or wrong in a known way: the tool is tested with them, and they show how a program that speaks
//! lines is written.

use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The admitted costs of each key, and when each was admitted.
type Logs = Mutex<HashMap<String, VecDeque<(Instant, u64)>>>;

struct Limiter {
    /// `ideal`, `fixed` (aligned windows), `charges` (denied calls, too), `races` (reads, then writes) or `hurries` (promises
    /// half of the wait).
    kind: String,
    limits: Vec<(u64, Duration)>,
    logs: Logs,
    counters: Mutex<HashMap<(String, u128), u64>>,
}

impl Limiter {
    /// The wait, if the call is denied.
    fn ask(&self, key: &str, cost: u64) -> Result<(), Duration> {
        let wait = match self.kind.as_str() {
            "fixed" => return self.fixed(key, cost),
            "races" => {
                let wait = self.wait(key, cost, false);
                thread::sleep(Duration::from_millis(1));
                if wait.is_none() {
                    self.add(key, cost);
                }
                wait
            }
            "charges" => {
                let wait = self.wait(key, cost, true);
                if wait.is_some() {
                    self.add(key, cost);
                }
                wait
            }
            "hurries" => self.wait(key, cost, true).map(|wait| wait / 2),
            _ => self.wait(key, cost, true),
        };
        wait.map_or(Ok(()), Err)
    }

    fn add(&self, key: &str, cost: u64) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.entry(key.to_owned()).or_default().push_back((Instant::now(), cost));
    }

    /// The sliding log: the longest of the waits of all limits. Adds what it admits if `is_added`.
    fn wait(&self, key: &str, cost: u64, is_added: bool) -> Option<Duration> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, now) = (logs.entry(key.to_owned()).or_default(), Instant::now());
        let longest = self.limits.iter().map(|(_, window)| *window).max().unwrap_or_default();
        while log.front().is_some_and(|(at, _)| now - *at >= longest) {
            log.pop_front();
        }
        let wait_for = |(limit, window): &(u64, Duration)| {
            let mut used = cost;
            let last = log.iter().rev().find(|(at, cost)| {
                used += if now - *at < *window { cost } else { &0 };
                used > *limit
            });
            last.map(|(at, _)| (*at + *window).saturating_duration_since(now))
        };
        let wait = self.limits.iter().filter_map(wait_for).max();
        if wait.is_none() && is_added {
            log.push_back((now, cost));
        }
        wait
    }

    fn fixed(&self, key: &str, cost: u64) -> Result<(), Duration> {
        let (limit, window) = self.limits[0];
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let used = counters.entry((key.to_owned(), now.as_nanos() / window.as_nanos())).or_default();
        if *used + cost > limit {
            let rest = window.as_nanos() - now.as_nanos() % window.as_nanos();
            return Err(Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX)));
        }
        *used += cost;
        Ok(())
    }
}

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn main() {
    let limit = |which| {
        Some((
            number(&format!("LIMIT{which}"))?,
            Duration::from_millis(number(&format!("WINDOW{which}_MS"))?),
        ))
    };
    let limiter = Arc::new(Limiter {
        kind: std::env::args().nth(1).unwrap_or_default(),
        limits: [limit(""), limit("2")].into_iter().flatten().collect(),
        logs: Logs::default(),
        counters: Mutex::default(),
    });
    println!(r#"{{"version":"1","can":["cost","wait","several"]}}"#);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let limiter = Arc::clone(&limiter);
        // A call at a time in each thread, so that calls race.
        thread::spawn(move || {
            let mut words = line.split(' ');
            let (Some(id), Some(key), Some(cost)) = (words.next(), words.next(), words.next()) else {
                return;
            };
            let answer = match limiter.ask(key, cost.parse().unwrap_or(1)) {
                Ok(()) => format!("{id} +\n"),
                Err(wait) => format!("{id} - {}\n", wait.as_secs_f64() * 1e3),
            };
            let _ = std::io::stdout().lock().write_all(answer.as_bytes());
        });
    }
}
