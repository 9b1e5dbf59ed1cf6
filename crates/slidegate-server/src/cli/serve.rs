//! `slidegate serve`: the service, from its configuration to its end.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

use super::reload::{self, Causes};
use super::{Failure, ServeArgs};
use crate::admin::{self, Admin};
use crate::config::{Config, Loaded, Sources, Watched, describe};
use crate::control;
use crate::front::Front;
use crate::shutdown::Signals;
use crate::store::Seen;
use crate::{listener, observe, protocol};

/// Between two sweeps for expired keys.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at a shared store.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Between two examinations of a shared store, the first of which is at the start.
const EXAMINE_EVERY: Duration = Duration::from_secs(60);
/// A full store is reported this often at most, in sweeps.
const REPORT_EVERY: u32 = 10;

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let sources = Sources { listen: args.listen, ..args.policies.sources(args.redis.as_deref())? };
    let watched = Watched::start(&sources);
    let loaded = sources.load().map_err(|errors| Failure(errors.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(loaded, sources, watched))
}

async fn serve(loaded: Loaded, sources: Sources, watched: Watched) -> Result<ExitCode, Failure> {
    let Loaded { config, hash } = loaded;
    let running = config.clone();
    let mut signals =
        Signals::listen().map_err(|error| Failure(format!("cannot listen to signals: {error}")))?;
    let causes =
        Causes::new(watched).map_err(|error| Failure(format!("cannot listen to signals: {error}")))?;
    let listen = config.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure(format!("cannot listen to {listen}: {error}; choose another address with --listen"))
    })?;
    let address = listener.local_addr().unwrap_or(listen);
    let grace = config.shutdown_grace;
    let mut greeting = Greeting::of(&config, address);
    let front = Arc::new(Front::new(config).map_err(|error| Failure(error.to_string()))?);
    if let Some(shared) = front.shared() {
        greeting.store = match shared.ping().await {
            Ok(()) => format!("{}, shared", shared.url()),
            Err(failure) => format!(
                "{}, shared; it does not answer yet, so each policy decides by its fallback: {failure}",
                shared.url()
            ),
        };
    }
    println!("{greeting}");

    let sweeper = tokio::spawn(sweep(Arc::clone(&front)));
    let watcher = tokio::spawn(watch(Arc::clone(&front)));
    let examiner = tokio::spawn(examine(Arc::clone(&front)));
    let observer = tokio::spawn(observe::tick(Arc::clone(&front)));
    let known =
        admin::Loaded { source: sources.name(), hash, at_ms: control::now_ms(), ..admin::Loaded::default() };
    let admin = Arc::new(Admin::new(Arc::clone(&front), address, running.admin.clone(), known));
    if !admin.is_open() {
        tracing::warn!(
            %address,
            "the admin routes are off: the address is reachable from elsewhere and no token is configured; make one with \
             `slidegate token new`"
        );
    }
    admin.control.look().await;
    let controller = tokio::spawn(follow(Arc::clone(&admin)));
    let reloader = tokio::spawn(reload::run(Arc::clone(&admin), sources, causes, running));
    let routes = protocol::http::routes(Arc::clone(&front), admin::routes(&admin), &admin::PATHS);
    let stop = async {
        let signal = signals.next().await;
        front.begin_shutdown();
        tracing::info!(signal, grace_s = grace.as_secs(), "shutting down: open requests finish");
    };
    let cut_off = listener::serve(listener, routes, stop, grace).await;
    sweeper.abort();
    watcher.abort();
    examiner.abort();
    controller.abort();
    reloader.abort();
    observer.abort();
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "cut off connections that did not finish in time");
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What the service listens to, what it enforces, and a line to try it with.
struct Greeting {
    listening: String,
    store: String,
    policies: Vec<String>,
    /// The query of a request that meets the first policy.
    query: String,
}

impl Greeting {
    fn of(config: &Config, address: SocketAddr) -> Self {
        let attributes: Vec<String> = config.policies.iter().next().map_or_else(Vec::new, |policy| {
            let value = |name: &String| if config.is_address(name) { "192.0.2.7" } else { "alice" };
            policy.scope_attributes().iter().map(|name| format!("{name}={}", value(name))).collect()
        });
        Self {
            listening: format!("http://{address}"),
            store: format!("memory, up to {} keys", config.max_keys),
            policies: config.policies.iter().map(|policy| describe(policy, config.counted())).collect(),
            query: if attributes.is_empty() { String::new() } else { format!("?{}", attributes.join("&")) },
        }
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listening, store, policies, query } = self;
        writeln!(f, "slidegate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "listening  {listening}")?;
        writeln!(f, "store      {store}")?;
        for (at, policy) in policies.iter().enumerate() {
            writeln!(f, "{:<10} {policy}", if at == 0 { "policies" } else { "" })?;
        }
        write!(f, "try        curl -i '{listening}/v1/check{query}'")
    }
}

/// Follows what is changed at run time, here and elsewhere.
async fn follow(admin: Arc<Admin>) {
    admin.control.run().await;
}

/// Tells the log, at most once a second, that a shared store is away, and once that it is there again.
async fn watch(front: Arc<Front>) {
    let Some(shared) = front.shared() else { return };
    let mut seen = Seen::default();
    let mut ticks = tokio::time::interval(WATCH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.look(&mut seen).await;
    }
}

/// Tells the log what silently breaks limits in a shared store.
async fn examine(front: Arc<Front>) {
    let Some(shared) = front.shared() else { return };
    let mut ticks = tokio::time::interval(EXAMINE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.examine().await;
    }
}

/// Removes expired keys while the service is idle, and is loud when a full store dropped keys that still counted.
async fn sweep(front: Arc<Front>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    let mut reported = 0;
    for tick in 0u32.. {
        ticks.tick().await;
        front.sweep();
        let stats = front.stats();
        if stats.dropped > reported && tick.is_multiple_of(REPORT_EVERY) {
            tracing::warn!(
                dropped = stats.dropped - reported,
                max_keys = stats.max_keys,
                "the memory store is full and dropped keys that still counted, so their limits were not enforced in \
                 full; raise store.memory.max_keys"
            );
            reported = stats.dropped;
        }
    }
}
