//! `slidegate serve`: the service, from its configuration to its end.

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::envoy_listeners::EnvoyListeners;
use super::failure::Failure;
use super::output;
use super::reload::{self, Causes};
use super::sources::{EnvoyArgs, PolicyArgs};
use super::values::address;
use crate::admin::{self, Admin};
use crate::app::App;
use crate::app::store::Seen;
use crate::config::{Arguments, Config, Fingerprint, Loaded, Sources, describe};
use crate::log_limit::LogLimit;
use crate::protocol::{Doors, rls};
use crate::resp;
use crate::shutdown::Signals;
use crate::{dashboard, listener, telemetry};
use clap::Args;
use slidegate_envoy::{ConfigWatcher, Debounced, EnvoyConfig, POLL_EVERY, Settings};

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    pub(super) envoy: EnvoyArgs,
    /// The address to listen to, before the configuration's.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// The address of Envoy's rate-limit service over gRPC, before the configuration's. Without either it is not served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    grpc: Option<SocketAddr>,
    /// The Redis whose limits all instances share, such as `redis://127.0.0.1:6379`, before the configuration's.
    ///
    /// Also `redis+cluster://A:6379,B:6379` and `redis+sentinel://A,B/MASTER`, and `rediss` for TLS. The variable
    /// `SLIDEGATE_REDIS` says the same without showing a password among the processes.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The address to serve clients of Redis on, such as `127.0.0.1:6380`, before the configuration's. Off unless given.
    ///
    /// Speaks RESP2 and RESP3: `RL.CHECK`, and the commands of redis-cell and throttlecrab. The variable
    /// `SLIDEGATE_RESP_PASSWORD` is the password that clients have to give.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    resp: Option<SocketAddr>,
}

/// Between two sweeps for expired keys.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at a shared store.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Between two examinations of a shared store, the first of which is at the start.
const EXAMINE_EVERY: Duration = Duration::from_secs(60);

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let envoy = args.envoy.settings()?;
    let arguments =
        Arguments { redis: args.redis.as_deref(), grpc: args.grpc, has_other_grpc: false, resp: args.resp };
    let sources = match &envoy {
        Some(settings) => args.policies.sources_beside(settings, arguments)?,
        None => args.policies.sources(arguments)?,
    };
    let listen = args.listen.or(envoy.as_ref().and_then(|settings| settings.http));
    let (grpc, theirs) = (args.grpc, envoy.as_ref().map(|settings| settings.grpc.clone()));
    let before = Arc::clone(&sources.complete);
    let complete = move |config| {
        let mut config: Config = before(config);
        config.listen = listen.unwrap_or(config.listen);
        if let Some(theirs) = &theirs {
            config.grpc = std::mem::take(&mut config.grpc).over(theirs);
        }
        if grpc.is_some() {
            config.grpc.listen = grpc;
        }
        config
    };
    let sources = Sources { complete: Arc::new(complete), ..sources };
    let watched = Debounced::new(sources.look());
    let loaded = sources.load().map_err(|errors| Failure(errors.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(loaded, sources, watched, envoy))
}

async fn serve(
    loaded: Loaded,
    sources: Sources,
    watched: Debounced<Fingerprint>,
    envoy: Option<Settings>,
) -> Result<ExitCode, Failure> {
    let Loaded { config, hash } = loaded;
    let running = config.clone();
    let mut signals =
        Signals::listen().map_err(|error| Failure(format!("cannot listen to signals: {error}")))?;
    let causes =
        Causes::new(watched).map_err(|error| Failure(format!("cannot listen to signals: {error}")))?;
    let (listener, address) = bind(config.listen, "--listen").await?;
    let grace = config.shutdown_grace;
    let reference = EnvoyListeners::bind(envoy.as_ref()).await?;
    let door = rls::Door::bind(config.grpc.clone()).await.map_err(Failure)?;
    let mut listeners: Vec<_> = door.iter().flat_map(rls::Door::addresses).map(grpc_listener).collect();
    listeners.extend(reference.listeners());
    let mut greeting = Greeting::of(&config, address);
    let resp = match config.resp.clone() {
        Some(settings) => {
            let (listener, address) = bind(settings.listen, "--resp").await?;
            let tls = settings.tls.is_some();
            listeners.push(admin::Listener { door: "resp", address: address.to_string(), tls });
            greeting.resp = Some(format!("{}://{address}", if tls { "rediss" } else { "redis" }));
            let workers = resp::Workers::start();
            let workers = workers.map_err(|error| Failure(format!("cannot start threads: {error}")))?;
            Some((listener, settings, workers))
        }
        None => None,
    };
    greeting.grpc = door.as_ref().map(rls::Door::places);
    greeting.others = reference.places();
    let grpc_settings = config.grpc.clone();
    let (mut files, mut rules) = (None, None);
    if let Some(settings) = &envoy {
        let (watcher, live) =
            ConfigWatcher::start(settings, &config.policies).map_err(|error| Failure(error.to_string()))?;
        let current = live.current();
        greeting.envoy = Some(describe_files(settings, current.as_deref()));
        if let (true, Some(body)) =
            (greeting.policies.is_empty(), current.as_deref().and_then(EnvoyConfig::example))
        {
            greeting.try_with = format!("-d {} {}/json", quoted(&body), greeting.listening);
        }
        files = Some(watcher);
        rules = Some(rls::Files { live, settings: settings.clone() });
    }
    let auth = config.auth.clone();
    // With the port that it got, where that was left to the system.
    let config = Config { listen: address, ..config };
    let app = Arc::new(App::new(config).map_err(Failure)?);
    if let Some(watcher) = &files {
        let policies = watcher.policies().map_err(|error| Failure(error.to_string()))?;
        app.active.set_external(&policies).map_err(|error| Failure(error.to_string()))?;
    }
    if let Some(shared) = app.shared() {
        greeting.store = match shared.ping().await {
            Ok(()) => format!("{}, shared", shared.url()),
            Err(failure) => format!(
                "{}, shared; it does not answer yet, so each policy decides by its fallback: {failure}",
                shared.url()
            ),
        };
    }
    // The service runs on whether or not anybody reads what it prints.
    let _ = output::print(&greeting);

    let sweeper = tokio::spawn(sweep(Arc::clone(&app)));
    let watcher = tokio::spawn(watch_store(Arc::clone(&app)));
    let examiner = tokio::spawn(examine(Arc::clone(&app)));
    let observer = tokio::spawn(telemetry::tick(Arc::clone(&app)));
    let known = admin::Loaded {
        source: sources.name(),
        hash,
        at: SystemClock::new().now(),
        ..admin::Loaded::default()
    };
    let admin = Arc::new(Admin::new(Arc::clone(&app), address, listeners, known));
    if !app.access.is_open() {
        tracing::warn!(
            %address,
            "the admin routes are off: the address is reachable from elsewhere and no token is configured; make one with \
             `slidegate token new`"
        );
    }
    admin.control.poll().await;
    let controller = tokio::spawn(follow(Arc::clone(&admin)));
    let reloader = tokio::spawn(reload::run(Arc::clone(&admin), sources, causes, running));
    if let Some(rules) = &rules {
        app.observer().watch_files(rules.live.clone());
    }
    let folder = tokio::spawn(follow_folder(Arc::clone(&app), files));
    let has_rules = rules.is_some();
    let limits = Arc::new(rls::Limits::new(Arc::clone(&app), &grpc_settings, rules));
    let mut more = admin::routes(&admin).and(dashboard::routes());
    if has_rules {
        let config = admin::for_readers(&app, rls::config_routes(Arc::clone(&limits)));
        more = more.and(rls::routes(Arc::clone(&limits))).and(config);
    }
    let doors = Arc::new(Doors::new(Arc::clone(&app), auth, more));
    let (stopping, stopped) = watch::channel(false);
    let grpc = door.map(|door| {
        let mut stopped = stopped.clone();
        let stop = async move { stopped.wait_for(|stop| *stop).await.map(drop) };
        tokio::spawn(door.serve(Arc::clone(&limits), stop, grace))
    });
    let reference = reference.serve(&app, &limits, &stopped, grace);
    let resp = async {
        match resp {
            Some((listener, settings, workers)) => {
                resp::serve(listener, settings, workers, Arc::clone(&app), stopped.clone(), grace).await
            }
            None => 0,
        }
    };
    let stop = async {
        let signal = signals.next().await;
        app.begin_shutdown();
        stopping.send_replace(true);
        tracing::info!(signal, grace_s = grace.as_secs(), "shutting down: open requests finish");
    };
    let (http, resp) = tokio::join!(listener::serve(listener, doors, stop, grace), resp);
    let mut cut_off = http + resp;
    for door in grpc.into_iter().chain(reference) {
        cut_off += door.await.unwrap_or_default();
    }
    sweeper.abort();
    watcher.abort();
    examiner.abort();
    controller.abort();
    folder.abort();
    reloader.abort();
    observer.abort();
    // Waits for a collector.
    tokio::task::block_in_place(|| app.observer().end_traces());
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "cut off connections that did not finish in time");
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Listens to an address; `flag` chooses another one. Gives the address with the port that it got.
async fn bind(address: SocketAddr, flag: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed =
        |error| Failure(format!("cannot listen to {address}: {error}; choose another address with {flag}"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().unwrap_or(address);
    Ok((listener, address))
}

/// What the service listens to, what it enforces, and a line to try it with.
struct Greeting {
    listening: String,
    /// Where clients of Redis are served.
    resp: Option<String>,
    /// Where Envoy's rate-limit service listens, if it does.
    grpc: Option<String>,
    /// Where else it listens, each with what is there.
    others: Vec<(&'static str, String)>,
    store: String,
    /// Where spans of decisions go, if anywhere.
    traces: Option<String>,
    policies: Vec<String>,
    /// The folder of envoyproxy/ratelimit's files, and what is in it.
    envoy: Option<String>,
    /// Arguments of curl for a request that meets the first policy.
    try_with: String,
}

impl Greeting {
    fn of(config: &Config, address: SocketAddr) -> Self {
        let attributes: Vec<String> = config.policies.iter().next().map_or_else(Vec::new, |policy| {
            let value = |name: &String| if config.is_address(name) { "192.0.2.7" } else { "alice" };
            policy.scope_attributes().iter().map(|name| format!("{name}={}", value(name))).collect()
        });
        let query = if attributes.is_empty() { String::new() } else { format!("?{}", attributes.join("&")) };
        let listening = format!("http://{address}");
        Self {
            try_with: format!("'{listening}/v1/check{query}'"),
            listening,
            resp: None,
            grpc: None,
            others: Vec::new(),
            store: format!("memory, up to {} keys", config.max_keys),
            traces: config.observe.traces.as_ref().map(|traces| traces.endpoint.clone()),
            policies: config.policies.iter().map(|policy| describe(policy, config.counted())).collect(),
            envoy: None,
        }
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listening, resp, grpc, others, store, traces, policies, envoy, try_with } = self;
        writeln!(f, "slidegate {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "listening  {listening}")?;
        if let Some(resp) = resp {
            writeln!(f, "resp       {resp}")?;
        }
        if let Some(places) = grpc {
            writeln!(f, "grpc       {places}")?;
        }
        for (name, place) in others {
            writeln!(f, "{name:<10} {place}")?;
        }
        writeln!(f, "store      {store}")?;
        if let Some(traces) = traces {
            writeln!(f, "traces     {traces}")?;
        }
        for (at, policy) in policies.iter().enumerate() {
            writeln!(f, "{:<10} {policy}", if at == 0 { "policies" } else { "" })?;
        }
        if let Some(envoy) = envoy {
            writeln!(f, "envoy      {envoy}")?;
        }
        write!(f, "try        curl -i {try_with}")
    }
}

fn grpc_listener((address, tls): (String, bool)) -> admin::Listener {
    admin::Listener { door: "grpc", address, tls }
}

/// A text as one argument in a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Follows what is changed at run time, here and elsewhere.
async fn follow(admin: Arc<Admin>) {
    admin.control.run().await;
}

/// What there is in the folder of envoyproxy/ratelimit's files.
fn describe_files(settings: &Settings, envoy: Option<&EnvoyConfig>) -> String {
    let folder = settings.folder.path.display();
    match envoy {
        Some(envoy) => format!("{folder}: {}", envoy.summary()),
        None => format!("{folder}: nothing that can be read yet"),
    }
}

/// Takes changed files of envoyproxy/ratelimit in, if there are any.
async fn follow_folder(app: Arc<App>, watcher: Option<ConfigWatcher>) {
    let Some(mut watcher) = watcher else { return };
    let mut ticks = tokio::time::interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let app = Arc::clone(&app);
        let looked = tokio::task::spawn_blocking(move || {
            watcher.poll(&|policies| app.active.set_external(&policies));
            watcher
        });
        // Ends with the runtime, or with a bug that has been told.
        let Ok(back) = looked.await else { return };
        watcher = back;
    }
}

/// Tells the log, at most once a second, that a shared store is away, and once that it is there again.
async fn watch_store(app: Arc<App>) {
    let Some(shared) = app.shared() else { return };
    let mut seen = Seen::default();
    let mut ticks = tokio::time::interval(WATCH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.look(&mut seen).await;
    }
}

/// Tells the log what silently breaks limits in a shared store.
async fn examine(app: Arc<App>) {
    let Some(shared) = app.shared() else { return };
    let mut ticks = tokio::time::interval(EXAMINE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.examine().await;
    }
}

/// Removes expired keys while the service is idle, and is loud when a full store dropped keys that still counted.
async fn sweep(app: Arc<App>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    let log_limit = LogLimit::default();
    let mut reported = 0;
    loop {
        ticks.tick().await;
        app.sweep();
        let stats = app.store().stats();
        if stats.dropped > reported && log_limit.admit(None).is_some() {
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
