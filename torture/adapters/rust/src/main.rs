//! The adapter of Rust limiters: `adapter NAME` answers the requests of torture's line protocol.
//!
//! Each request gets a thread of a pool or a task of its own, so that no answer waits behind
//! another.

mod limiters;

use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use limiters::LIMITERS;

/// Threads of the pool and of the runtime.
const THREADS: usize = 8;
/// Name and version of each package in the lock file.
const VERSIONS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/versions.rs"));

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A limit of each key.
#[derive(Clone, Copy)]
struct Limit {
    cost: u32,
    window: Duration,
}

/// The configuration, from the environment.
struct Setup {
    limit: Limit,
    second: Option<Limit>,
    max_keys: Option<usize>,
    redis: Option<String>,
    runtime: Handle,
}

impl Setup {
    fn from_env(runtime: &Runtime) -> Result<Self, Error> {
        let limit = |cost, window| -> Result<Option<Limit>, Error> {
            let (cost, window) = (variable(cost)?, variable(window)?.map(Duration::from_millis));
            Ok(cost.zip(window).map(|(cost, window)| Limit { cost, window }))
        };
        Ok(Self {
            limit: limit("LIMIT", "WINDOW_MS")?.ok_or("LIMIT and WINDOW_MS are not set")?,
            second: limit("LIMIT2", "WINDOW2_MS")?,
            max_keys: variable("MAX_KEYS")?,
            redis: variable("REDIS")?,
            runtime: runtime.handle().clone(),
        })
    }
}

/// A variable of the environment; `None` if it is not set or empty.
fn variable<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, Error> {
    let Some(text) = env::var(name).ok().filter(|text| !text.is_empty()) else { return Ok(None) };
    text.parse().map(Some).map_err(|error| format!("{name}: invalid value `{text}`: {error}").into())
}

/// The answer to a request.
enum Answer {
    Admitted,
    /// With the wait until the same request would be admitted, if the limiter says it.
    Denied(Option<Duration>),
    /// The limiter reported an error.
    Failed(String),
}

type Task = Pin<Box<dyn Future<Output = Answer> + Send>>;
type DecideInThread = dyn Fn(&str, u32) -> Answer + Send + Sync;
type DecideInTask = dyn Fn(String, u32) -> Task + Send + Sync;

/// How a limiter is called.
enum Limiter {
    /// From the threads of a pool.
    Threads(Box<DecideInThread>),
    /// In a task of the runtime.
    Tasks(Box<DecideInTask>),
}

/// A limiter that the adapter can run.
struct Entry {
    name: &'static str,
    /// The package and which of its versions in the lock file.
    package: (&'static str, Which),
    can: &'static [&'static str],
    build: fn(&Setup) -> Result<Limiter, Error>,
}

/// A version of those of a package.
#[derive(PartialEq)]
enum Which {
    Oldest,
    Newest,
}

impl Entry {
    fn version(&self) -> &'static str {
        let (package, which) = &self.package;
        let mut versions = VERSIONS.iter().filter(|(name, _)| name == package);
        let found = if *which == Which::Oldest { versions.next() } else { versions.next_back() };
        found.map_or("", |(_, version)| version)
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let started = runtime.map_err(Error::from).and_then(|runtime| Ok((start(&runtime)?, runtime)));
    let (limiter, runtime) = match started {
        Ok(started) => started,
        Err(error) => return println!("{{\"error\":{:?}}}", error.to_string()),
    };
    match limiter {
        Limiter::Threads(decide) => serve_with_threads(&*decide),
        Limiter::Tasks(decide) => serve_with_tasks(&runtime, &*decide),
    }
    runtime.shutdown_background();
}

/// Builds the limiter that the command line names, and writes the first line.
fn start(runtime: &Runtime) -> Result<Limiter, Error> {
    let name = env::args().nth(1).unwrap_or_default();
    let Some(entry) = LIMITERS.iter().find(|entry| entry.name == name) else {
        let names: Vec<_> = LIMITERS.iter().map(|entry| entry.name).collect();
        return Err(format!("unknown limiter `{name}`: must be one of {}", names.join(", ")).into());
    };
    let setup = Setup::from_env(runtime)?;
    if setup.second.is_some() && !entry.can.contains(&"several") {
        return Err(format!("{name} decides one limit at a time: unset LIMIT2").into());
    }
    // Some limiters start tasks of their own.
    let _guard = runtime.enter();
    let limiter = (entry.build)(&setup)?;
    println!("{{\"version\":{:?},\"can\":{:?}}}", entry.version(), entry.can);
    Ok(limiter)
}

/// A line of the input.
struct Request {
    id: u64,
    key: String,
    cost: u32,
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, key) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some(Self { id, key, cost: words.next()?.trim().parse().ok()? })
    }
}

/// The requests until the end of the input.
fn requests() -> impl Iterator<Item = Request> {
    let lines = io::stdin().lines().map_while(Result::ok);
    lines.filter(|line| !line.is_empty()).map(|line| {
        Request::parse(&line).unwrap_or_else(|| panic!("invalid request `{line}`: must be `ID KEY COST`"))
    })
}

/// Writes an answer. Standard output is flushed at each end of a line.
fn write(id: u64, answer: Answer) {
    let line = match answer {
        Answer::Admitted => format!("{id} +\n"),
        Answer::Denied(None) => format!("{id} -\n"),
        Answer::Denied(Some(wait)) => format!("{id} - {}\n", wait.as_secs_f64() * 1000.0),
        Answer::Failed(error) => format!("{id} ! {}\n", error.replace('\n', " ")),
    };
    // The reader may be gone.
    let _ = io::stdout().write_all(line.as_bytes());
}

fn serve_with_threads(decide: &DecideInThread) {
    let (sender, receiver) = mpsc::channel::<Request>();
    let receiver = Mutex::new(receiver);
    // Releases the lock before the decision.
    let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Ok(Request { id, key, cost }) = next() {
                    write(id, decide(&key, cost));
                }
            });
        }
        requests().for_each(|request| sender.send(request).expect("the threads receive"));
        drop(sender);
    });
}

fn serve_with_tasks(runtime: &Runtime, decide: &DecideInTask) {
    // Each task holds the sender until it has answered.
    let (open, mut closed) = tokio::sync::mpsc::channel::<()>(1);
    let open = Arc::new(open);
    for Request { id, key, cost } in requests() {
        let (task, open) = (decide(key, cost), Arc::clone(&open));
        runtime.spawn(async move {
            write(id, task.await);
            drop(open);
        });
    }
    drop(open);
    runtime.block_on(closed.recv());
}
