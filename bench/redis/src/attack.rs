//! The latency of one client's checks while others fill the denial cache.
//!
//! An attacker is over its limit and names another page with each request, so every denial is a new
//! cache entry. Attackers do not wait for responses; the client checks once per millisecond. All
//! share one gate with the default deadline, in one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, DecisionSource, Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Failed;
use crate::figures::{float, median};
use crate::options::Options;
use crate::peers::WINDOW;
use crate::server::Server;

const ATTACKERS: u64 = 4;
/// Checks per attacker and second.
const RATE: u32 = 1800;
/// Maximum number of pending checks, so that a gate that is too slow does not exhaust the memory.
const MOST_WAITING: usize = 1024;
/// Denials before the measurement, a multiple of [`TASKS`]: more than the cache holds.
const FILL: u64 = 80_000;
/// Tasks that fill the cache.
const TASKS: u64 = 64;
/// How long the gate may take to subscribe to invalidations; before that it caches no denials.
const PATIENCE: Duration = Duration::from_secs(5);

/// The client's results in one round.
struct Round {
    /// Sorted, in milliseconds.
    latencies: Vec<f64>,
    fallbacks: u64,
    /// Completed checks of attackers per second.
    attacks: f64,
}

pub(crate) async fn run(server: &Server, options: &Options) -> Result<(), Failed> {
    let gate = Arc::new(gate(server)?);
    until_it_remembers(&gate).await?;
    let mut set = JoinSet::new();
    for task in 0..TASKS {
        let gate = Arc::clone(&gate);
        set.spawn(async move {
            for turn in 0..FILL / TASKS {
                let page = turn * TASKS + task;
                attack(&gate, page % ATTACKERS, page).await;
            }
        });
    }
    set.join_all().await;
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    for round in 0..options.rounds as u64 {
        quiet.push(Round::of(&gate, options.time, None).await?);
        attacked.push(Round::of(&gate, options.time, Some(FILL + (round << 32))).await?);
    }
    println!("\n## attack\n");
    println!(
        "| {:<24} | {:>12} | {:>8} | {:>8} | {:>8} | {:>15} |",
        "the cache is full, and", "attacks/s", "p50 ms", "p99 ms", "max ms", "from fallback %"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    report("nobody else asks", &quiet);
    report(&format!("{ATTACKERS} attackers ask"), &attacked);
    Ok(())
}

impl Round {
    /// Runs the client for this time, with attackers that name pages from this number on, if any.
    #[allow(clippy::disallowed_methods)] // the clock is what is read here
    async fn of(gate: &Arc<RedisGate>, time: Duration, pages: Option<u64>) -> Result<Self, Failed> {
        let mut attackers = JoinSet::new();
        for attacker in (0..ATTACKERS).filter(|_| pages.is_some()) {
            let (gate, first) = (Arc::clone(gate), pages.unwrap_or_default());
            attackers.spawn(attack_for(gate, time, attacker, first));
        }
        let client = {
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let mut ticks = interval(Duration::from_millis(1));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                let (mut latencies, mut fallbacks) = (Vec::new(), 0);
                let begun = Instant::now();
                while begun.elapsed() < time {
                    ticks.tick().await;
                    let start = Instant::now();
                    let request = Request::new().with("user", "client");
                    let decisions = gate.check(&request).await;
                    latencies.push(start.elapsed().as_secs_f64() * 1e3);
                    let source = decisions.strictest().map(|one| one.decision().source());
                    fallbacks += u64::from(source != Some(DecisionSource::Store));
                }
                (latencies, fallbacks)
            })
        };
        let (mut latencies, fallbacks) = client.await?;
        latencies.sort_by(f64::total_cmp);
        let attacks: u64 = attackers.join_all().await.into_iter().sum();
        Ok(Self { latencies, fallbacks, attacks: float(attacks) / time.as_secs_f64() })
    }

    fn at(&self, share: f64) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let place = ((self.latencies.len() - 1) as f64 * share).round() as usize;
        self.latencies[place]
    }

    fn fallback_percent(&self) -> f64 {
        100.0 * float(self.fallbacks) / float(self.latencies.len() as u64)
    }
}

/// Checks at the attackers' rate for this time; returns how many completed.
#[allow(clippy::disallowed_methods)] // the clock is what is read here
async fn attack_for(gate: Arc<RedisGate>, time: Duration, attacker: u64, first: u64) -> u64 {
    let room = Arc::new(Semaphore::new(MOST_WAITING));
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asked = JoinSet::new();
    let (begun, mut page, mut answered) = (Instant::now(), first + (attacker << 24), 0);
    while begun.elapsed() < time {
        ticks.tick().await;
        while asked.try_join_next().is_some() {
            answered += 1;
        }
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let gate = Arc::clone(&gate);
        page += 1;
        asked.spawn(async move {
            attack(&gate, attacker, page).await;
            drop(place);
        });
    }
    answered + asked.join_all().await.len() as u64
}

/// Two policies with scopes that an attacker chooses, and one for the client. Counters, because
/// logs would measure Redis.
fn gate(server: &Server) -> Result<RedisGate, Failed> {
    let quota = |limit| Quota::new(limit, WINDOW).map(|quota| quota.with_algorithm(Algorithm::FixedWindow));
    let policies = PolicySet::new([
        Policy::new("per-attacker", quota(1)?)?.with_scope(["attacker"]),
        Policy::new("per-page", quota(1_000_000)?)?.with_scope(["page"]),
        Policy::new("per-user", quota(1_000_000_000)?)?.with_scope(["user"]),
    ])?;
    Ok(SharedGate::new(policies, RedisStore::new(RedisOptions::new(&server.url())?)?)?)
}

/// A request that is denied and not yet cached.
async fn attack(gate: &RedisGate, attacker: u64, page: u64) {
    let (attacker, page) = (attacker.to_string(), page.to_string());
    let request = Request::new().with("attacker", attacker.as_str()).with("page", page.as_str());
    gate.check(&request).await;
}

/// Waits until a denial comes from the cache.
#[allow(clippy::disallowed_methods)] // the clock is what is read here
async fn until_it_remembers(gate: &RedisGate) -> Result<(), Failed> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for attacker in 0..ATTACKERS {
            attack(gate, attacker, 0).await;
        }
        if gate.store().primary().stats().cached_denials > 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("no denial was cached".into())
}

fn report(load: &str, rounds: &[Round]) {
    let middle = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
    println!(
        "| {load:<24} | {:>12.0} | {:>8.2} | {:>8.2} | {:>8.1} | {:>15.1} |",
        middle(&|round| round.attacks),
        middle(&|round| round.at(0.5)),
        middle(&|round| round.at(0.99)),
        middle(&|round| round.at(1.0)),
        middle(&Round::fallback_percent),
    );
}
