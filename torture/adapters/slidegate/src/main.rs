//! Answers the lines of `torture` with slidegate's library, as `README.md` of the tool describes them.
//!
//! Requests are decided while others are: on eight threads in memory, each in a task of its own over Redis.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{
    Algorithm, Decisions, Gate, LeaseLength, MemoryStore, Policy, PolicySet, Quota, Request, SharedGate,
};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};

type Failed = Box<dyn Error + Send + Sync>;

/// Where the usage of keys is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Redis,
    /// Redis, whose hot keys are admitted from leases.
    Leases,
    Cluster,
}

const ROWS: [(&str, Store, Algorithm); 10] = [
    ("slidegate", Store::Memory, Algorithm::SlidingLog),
    ("slidegate-sliding-window", Store::Memory, Algorithm::SlidingWindow),
    ("slidegate-fixed-window", Store::Memory, Algorithm::FixedWindow),
    ("slidegate-token-bucket", Store::Memory, Algorithm::TokenBucket),
    ("slidegate-redis", Store::Redis, Algorithm::SlidingLog),
    ("slidegate-redis-sliding-window", Store::Redis, Algorithm::SlidingWindow),
    ("slidegate-redis-fixed-window", Store::Redis, Algorithm::FixedWindow),
    ("slidegate-redis-token-bucket", Store::Redis, Algorithm::TokenBucket),
    ("slidegate-redis-leases", Store::Leases, Algorithm::SlidingLog),
    ("slidegate-cluster", Store::Cluster, Algorithm::SlidingLog),
];

/// Threads that decide in memory.
const THREADS: usize = 8;

fn main() {
    if let Err(error) = run() {
        println!("{{\"error\":{:?}}}", error.to_string());
    }
}

fn run() -> Result<(), Failed> {
    let name = env::args().nth(1).unwrap_or_default();
    let (_, store, algorithm) = ROWS.into_iter().find(|row| row.0 == name).ok_or("no such row")?;
    let policies = policies(store, algorithm)?;
    match store {
        Store::Memory => memory(policies),
        _ => redis(policies, store),
    }
}

/// A policy for each limit: a request is charged under all of them, or under none.
fn policies(store: Store, algorithm: Algorithm) -> Result<PolicySet, Failed> {
    let mut policies = Vec::new();
    for (name, limit, window) in [("first", "LIMIT", "WINDOW_MS"), ("second", "LIMIT2", "WINDOW2_MS")] {
        if let Some(limit) = variable(limit)? {
            let window = variable(window)?.ok_or("a limit without a window")?;
            let quota = Quota::new(limit, Duration::from_millis(window))?.with_algorithm(algorithm);
            let lease = (store == Store::Leases).then_some(LeaseLength::OfWindow);
            policies.push(Policy::new(name, quota)?.with_scope(["user"]).with_lease(lease));
        }
    }
    Ok(PolicySet::new(policies)?)
}

fn variable<T: FromStr<Err: Error + Send + Sync + 'static>>(name: &str) -> Result<Option<T>, Failed> {
    Ok(env::var(name).ok().map(|text| text.parse()).transpose()?)
}

fn memory(policies: PolicySet) -> Result<(), Failed> {
    let mut store = MemoryStore::builder();
    if let Some(keys) = variable("MAX_KEYS")? {
        store = store.max_keys(keys);
    }
    let gate = Gate::with_memory(policies, store.build());
    let (lines, waiting) = channel::<String>();
    let (waiting, (answers, written)) = (Mutex::new(waiting), channel());
    let (gate, waiting) = (&gate, &waiting);
    hello(&["cost", "wait", "several", "max_keys"]);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let answers = answers.clone();
            scope.spawn(move || {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(line) = next() {
                    let (id, request) = request(&line);
                    let _ = answers.send(answer(id, &gate.check(&request)));
                }
            });
        }
        drop(answers);
        scope.spawn(|| write(written));
        for line in stdin().lock().lines() {
            let _ = lines.send(line?);
        }
        drop(lines);
        Ok(())
    })
}

/// To connect.
const ATTEMPTS: u32 = 100;

fn redis(policies: PolicySet, store: Store) -> Result<(), Failed> {
    let url = env::var("REDIS")?;
    let options = match store {
        // All keys of a user are in one slot, so that two limits are decided in one step.
        Store::Cluster => {
            RedisOptions::new(&url.replacen("redis://", "redis+cluster://", 1))?.with_hash_tag("user")
        }
        _ => RedisOptions::new(&url)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let _context = runtime.enter();
    let gate: Arc<RedisGate> = Arc::new(SharedGate::new(policies, RedisStore::new(options)?)?);
    // It connects at its first call, which may take longer than its deadline where much is started at the same time.
    let request_of_none = Request::new().with("user", "none");
    for attempt in 1.. {
        match runtime.block_on(gate.peek(&request_of_none)).store_failure() {
            None => break,
            Some(failure) if attempt == ATTEMPTS => return Err(failure.to_string().into()),
            Some(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    hello(&["cost", "wait", "several"]);
    let (answers, written) = channel();
    let sources = Sources::default();
    let writer = thread::spawn(|| write(written));
    for line in stdin().lock().lines() {
        runtime.spawn(decide(gate.clone(), line?, answers.clone(), sources.clone()));
    }
    drop(answers);
    let _ = writer.join();
    runtime.block_on(gate.store().primary().return_leases());
    eprintln!("decisions by source: {:?}", sources.lock());
    Ok(())
}

/// How many requests each source decided: those of the store, of leases, of a fallback.
type Sources = Arc<Mutex<BTreeMap<&'static str, u64>>>;

async fn decide(gate: Arc<RedisGate>, line: String, answers: Sender<String>, sources: Sources) {
    let (id, request) = request(&line);
    let decisions = gate.check(&request).await;
    if let Some(one) = decisions.strictest() {
        let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
        *sources.entry(one.decision().source().name()).or_default() += 1;
    }
    let _ = answers.send(answer(id, &decisions));
}

fn hello(can: &[&str]) {
    println!("{{\"version\":{:?},\"can\":{can:?}}}", version());
}

/// Of the lock file that this program was built with.
fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let found = lock.split_once("name = \"slidegate\"\nversion = \"");
    found.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("unknown")
}

/// The number of a request, and the request.
fn request(line: &str) -> (&str, Request<'_>) {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (id, user, cost) = (word(), word(), word());
    (id, Request::new().with("user", user).with_cost(cost.parse::<u64>().unwrap_or(1)))
}

fn answer(id: &str, decisions: &Decisions<'_>) -> String {
    if decisions.is_allowed() {
        return format!("{id} +\n");
    }
    let wait = decisions.strictest().and_then(|one| one.decision().retry_after());
    let wait = wait.map(|wait| format!(" {}", wait.as_secs_f64() * 1e3)).unwrap_or_default();
    format!("{id} -{wait}\n")
}

/// Writes answers, those that are ready together at once.
fn write(answers: Receiver<String>) {
    let mut out = stdout().lock();
    while let Ok(mut text) = answers.recv() {
        text.extend(answers.try_iter());
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
