//! `slidegate serve`: wires the parts of the service together, runs it, and shuts it down.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::io::IsTerminal as _;
use std::iter::once;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use slidegate::store::COUNT_INTERVAL;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::demo_traffic::Demo;
use super::failure::{Failure, fail};
use super::notify::Notifier;
use super::reload::{self, Triggers};
use super::sources::{EnvoyArgs, PolicyArgs};
use super::{output, snapshots};
use crate::config::{Arguments, Config, Fingerprint, Outside, Sources, Traces, describe};
use crate::control::admin;
use crate::control::dashboard;
use crate::control::pages;
use crate::control::state::Admin;
use crate::debounce::{Debounced, POLL_EVERY};
use crate::engine::App;
use crate::engine::store::{HealthRecord, Shared};
use crate::envoy::{ConfigWatcher, EnvoyConfig, Settings};
use crate::listener::{self, BoundSocket, HttpListener, Workers};
use crate::log_limit::LogLimit;
use crate::service_manager::ServiceManager;
use crate::shutdown::{DRAIN_DELAY, Signals};
use crate::wire::grpc::{self, ConfigFiles, RateLimitHandler};
use crate::wire::ports::{self, Listener, Port, Shutdown};
use crate::wire::protocol::HttpService;
use crate::wire::protocols::{self, Services};
use crate::wire::routes::Routes;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    pub(super) envoy: EnvoyArgs,
    #[command(flatten)]
    settings: Arguments,
}

/// Time after the grace period to export the last spans and exit.
const EXIT_TIME: Duration = Duration::from_secs(10);
/// Maximum wait at shutdown for queued settlements.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(2);
/// Interval between sweeps for expired keys.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between health checks of a shared store.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between examinations of a shared store. The first runs at the start.
const EXAMINE_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the service. `is_json`: how the startup message is printed.
pub(super) fn run(args: &ServeArgs, is_json: bool) -> Result<(), Failure> {
    if let Err(warning) = listener::raise_limit() {
        tracing::warn!("{warning}");
    }
    let envoy = args.envoy.settings()?;
    let mut arguments = args.settings.clone();
    arguments.listen = arguments.listen.or(envoy.as_ref().and_then(|settings| settings.http));
    let sources = match &envoy {
        Some(settings) => args.policies.sources_with_envoy(settings, arguments)?,
        None => args.policies.sources(&arguments)?,
    };
    let (grpc, theirs) = (args.settings.grpc, envoy.as_ref().map(|settings| settings.grpc.clone()));
    let before = Arc::clone(&sources.complete);
    let complete = move |config| {
        let mut config: Config = before(config);
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
    let config = sources.load()?;
    config.log_warnings();
    let origin = args.policies.origin();
    runtime()?.block_on(serve(config, origin, sources, watched, (envoy, None), is_json))
}

/// Runs the service with synthetic traffic until that ends.
pub(super) fn run_demo(config: Config, demo: Demo, is_json: bool) -> Result<(), Failure> {
    let running = config.clone();
    let sources = Sources {
        file: None,
        texts: Vec::new(),
        outside: Outside::default(),
        has_others: false,
        complete: Arc::new(move |_| running.clone()),
    };
    let watched = Debounced::new(sources.look());
    runtime()?.block_on(serve(config, demo.origin(), sources, watched, (None, Some(demo)), is_json))
}

fn runtime() -> Result<Runtime, Failure> {
    let builder = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    builder.map_err(|error| Failure(format!("cannot start threads: {error}")))
}

/// Starts the parts of the service, waits for the end, and stops them.
async fn serve(
    config: Config,
    origin: String,
    sources: Sources,
    watched: Debounced<Fingerprint>,
    (envoy, demo): (Option<Settings>, Option<Demo>),
    is_json: bool,
) -> Result<(), Failure> {
    let running = config.clone();
    let no_signals = |error| Failure(format!("cannot handle signals: {error}"));
    let signals = Signals::listen().map_err(no_signals)?;
    let triggers = Triggers::new(watched).map_err(no_signals)?;
    let listener = protocols::bind_http(&config)?;
    let ports = protocols::bind(&config, envoy.as_ref())?;
    let (mut greeting, listeners) = Greeting::of(&config, origin, &listener, &ports);
    if demo.is_some() {
        greeting.last = ("open", format!("{}/", greeting.url()));
    }
    let files = envoy.as_ref().map(|settings| watch_files(settings, &config, &mut greeting));
    let (files, rules) = files.transpose()?.unzip();
    let is_local = listeners.iter().all(Listener::is_local);
    let drain_delay = config.drain_delay.unwrap_or(if is_local { Duration::ZERO } else { DRAIN_DELAY });
    // With the actual port, if the config asked for port 0.
    let listen = listener.sockets.first().and_then(BoundSocket::address).unwrap_or(config.listen);
    let admin = Arc::new(Admin::new(Config { listen, ..config }, listeners, sources.name())?);
    let app = Arc::clone(&admin.app);
    if let Some(watcher) = &files {
        admin.control.active.set_external(&watcher.policies()?)?;
    }
    if let (Some(shared), Some(settings)) = (app.shared(), &running.shared) {
        greeting.store = test_store(shared, settings.requires_sharing).await?;
    }
    warn(&app, listen);
    // A closed standard output does not stop the service.
    let _ = if is_json { output::print(greeting.as_json()) } else { output::print(greeting.for_people()) };
    app.observer().config_loaded(&running.file.hash, None);
    admin.control.poll().await;
    tokio::task::block_in_place(|| snapshots::restore(&admin));
    let handler = Arc::new(RateLimitHandler::new(Arc::clone(&app), &running.grpc, rules));
    let routes = operator_routes(&admin, &handler, files.is_some());
    let http = HttpService::new(Arc::clone(&app), running.auth.clone(), routes);
    let notifier = Notifier::new(ServiceManager::of_environment(), Arc::clone(&app), greeting.all_urls());
    let mut tasks = background(&admin, files, demo);
    let grace = running.shutdown_grace;
    tasks.spawn(reload::run(Arc::clone(&admin), sources, triggers, running, notifier.clone()));
    let workers = Workers::start().map_err(|error| Failure(format!("cannot start threads: {error}")))?;
    let metrics = pages::metrics_route(Arc::clone(&admin));
    let services = Services { app: Arc::clone(&app), workers: workers.clone(), handler, metrics };
    let ((drain, draining), (end, stopped)) = (watch::channel(false), watch::channel(false));
    let shutdown = Shutdown { draining, drain_delay, stopped, grace };
    let serve = |port: Port<Services>| tokio::spawn(port.serve(services.clone(), shutdown.clone()));
    let served: Vec<_> = ports.into_iter().map(serve).collect();
    notifier.ready();
    tasks.spawn(notifier.clone().follow_status());
    tasks.spawn(notifier.clone().feed_watchdog());
    let stop = stop(signals, demo, &notifier, &app, (drain, end), &shutdown);
    let mut unfinished =
        listener.serve(Arc::new(http), &workers, Arc::clone(&app.connections), stop, grace).await;
    for port in served {
        unfinished += port.await.unwrap_or_default();
    }
    finish(&admin, tasks, unfinished).await;
    Ok(())
}

/// Logs what limits the service.
fn warn(app: &App, address: SocketAddr) {
    if let Err(warning) = app.connections.fit() {
        tracing::warn!("{warning}");
    }
    if !app.access.is_open() {
        tracing::warn!(
            %address,
            "admin routes are disabled: the address is not loopback and no token is configured; create one with \
             `slidegate token new`"
        );
    }
}

/// Reads the envoyproxy/ratelimit files, and greets with them.
fn watch_files(
    settings: &Settings,
    config: &Config,
    greeting: &mut Greeting,
) -> Result<(ConfigWatcher, ConfigFiles), Failure> {
    let (watcher, live) = ConfigWatcher::start(settings, &config.policies)?;
    let current = live.current();
    greeting.envoy = Some(describe_files(settings, current.as_deref()));
    if greeting.policies.is_empty()
        && let Some(body) = current.as_deref().and_then(EnvoyConfig::example)
    {
        greeting.last.1 = format!("curl -i -d {} {}/json", output::shell_word(&body), greeting.url());
    }
    Ok((watcher, ConfigFiles { live, settings: settings.clone() }))
}

/// Tests whether limits are shared. Returns the store in words.
///
/// # Errors
/// They are not, and the config requires it.
async fn test_store(shared: Shared<'_>, requires_sharing: bool) -> Result<String, Failure> {
    match shared.test().await {
        Ok(()) => {
            shared.count_instances(None).await;
            Ok(match shared.store().restriction() {
                None => format!("{}, shared", shared.store().url()),
                Some(restriction) => format!("{}, shared; {restriction}", shared.store().url()),
            })
        }
        Err(failure) if requires_sharing => {
            let words = "store: limits are not shared, which `require: shared` demands";
            fail(format!("{words}: {failure}"))
        }
        Err(failure) => {
            Ok(format!("{}, NOT shared, so each policy uses its fallback: {failure}", shared.store().url()))
        }
    }
}

/// Starts the tasks that run until the service ends.
fn background(admin: &Arc<Admin>, files: Option<ConfigWatcher>, demo: Option<Demo>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let app = &admin.app;
    tasks.spawn(Arc::clone(&app.connections).run());
    tasks.spawn(sweep(Arc::clone(app)));
    tasks.spawn(watch_store(Arc::clone(admin)));
    tasks.spawn(pages::live::tick(Arc::clone(app)));
    let reserving = Arc::clone(app);
    tasks.spawn(async move { reserving.watch_reservations().await });
    let notifying = Arc::clone(app);
    tasks.spawn(async move { notifying.report_crossings().await });
    tasks.spawn(pages::closing::run(Arc::clone(app)));
    tasks.spawn(snapshots::run(Arc::clone(admin)));
    let changes = Arc::clone(admin);
    tasks.spawn(async move { changes.control.run().await });
    let escalating = Arc::clone(admin);
    tasks.spawn(async move { escalating.control.escalate().await });
    tasks.spawn(follow_folder(Arc::clone(admin), files));
    if let Some(demo) = demo {
        tasks.spawn(demo.traffic(Arc::clone(app)));
    }
    tasks
}

/// The routes of operators, and with files those of envoyproxy/ratelimit.
fn operator_routes(admin: &Arc<Admin>, handler: &Arc<RateLimitHandler>, has_files: bool) -> Routes {
    let routes = admin::routes(admin).and(dashboard::routes());
    if !has_files {
        return routes;
    }
    let config = admin::for_readers(&admin.app, Routes::over(Arc::clone(handler), grpc::config_routes()));
    routes.and(Routes::over(Arc::clone(handler), grpc::routes())).and(config)
}

/// Completes when listeners must close: after a signal or the end of the demo, and a delay in which clients find
/// other instances. A second signal ends the delay.
async fn stop(
    mut signals: Signals,
    demo: Option<Demo>,
    notifier: &Notifier,
    app: &App,
    (drain, end): (watch::Sender<bool>, watch::Sender<bool>),
    &Shutdown { drain_delay, grace, .. }: &Shutdown,
) {
    let signal = tokio::select! {
        signal = signals.next() => signal,
        () = end_of(demo) => "end of the demo",
    };
    notifier.stopping(drain_delay + grace + EXIT_TIME);
    app.readiness.begin_drain();
    drain.send_replace(true);
    if !drain_delay.is_zero() {
        let drain_ms = drain_delay.as_millis();
        tracing::info!(signal, drain_ms, "draining: no longer ready, but serving; a second signal ends this");
        tokio::select! {
            () = sleep(drain_delay) => {}
            _ = signals.next() => {}
        }
    }
    app.observer().end();
    end.send_replace(true);
    tracing::info!(signal, grace_s = grace.as_secs(), "shutting down: waiting for open requests");
}

/// Stops the tasks and keeps what must outlive the process.
async fn finish(admin: &Admin, mut tasks: JoinSet<()>, unfinished: usize) {
    let unsent = admin.app.store().send_pending(LAST_SETTLEMENTS).await;
    if unsent > 0 {
        tracing::warn!(settlements = unsent, "lost settlements: the store stayed unreachable");
    }
    if let Some(shared) = admin.app.store().shared() {
        // What is not settled by then is charged when its lease ends.
        let _ = timeout(LAST_SETTLEMENTS, shared.store().return_leases()).await;
    }
    tasks.abort_all();
    tokio::task::block_in_place(|| snapshots::save(admin));
    // Blocks while the last spans are exported.
    tokio::task::block_in_place(|| admin.app.observer().end_traces());
    if unfinished > 0 {
        tracing::warn!(
            connections = unfinished,
            "closed connections that did not finish within the grace period"
        );
    }
    tracing::info!("stopped");
}

/// Waits until the demo ends; forever without one.
async fn end_of(demo: Option<Demo>) {
    match demo {
        Some(demo) => demo.end().await,
        None => pending().await,
    }
}

/// The startup message: listeners, policies, and a command to try.
struct Greeting {
    /// The source of the configuration.
    origin: String,
    listening: String,
    /// Names and URLs of the ports other than HTTP.
    ports: Vec<(&'static str, String)>,
    store: String,
    /// Endpoint of the trace exporter.
    traces: Option<String>,
    policies: Vec<String>,
    /// The envoyproxy/ratelimit folder and a summary of its files.
    envoy: Option<String>,
    /// The last line: a command to try, or the page to open.
    last: (&'static str, String),
}

impl Greeting {
    /// The message, and what it lists as listening.
    fn of(
        config: &Config,
        origin: String,
        http: &HttpListener,
        ports: &[Port<Services>],
    ) -> (Self, Vec<Listener>) {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let (listening, mut listeners) = ports::listed("http", &http.sockets, scheme);
        listeners.extend(ports.iter().flat_map(|port| port.listeners.clone()));
        let attributes: Vec<String> = config.policies.iter().next().map_or_else(Vec::new, |policy| {
            let value = |name: &String| if config.is_address(name) { "192.0.2.7" } else { "alice" };
            policy.scope().iter().map(|name| format!("{name}={}", value(name))).collect()
        });
        let query = if attributes.is_empty() { String::new() } else { format!("?{}", attributes.join("&")) };
        let mut greeting = Self {
            origin,
            last: ("try", String::new()),
            listening,
            ports: ports.iter().map(|port| port.banner.clone()).collect(),
            store: config.memory.to_string(),
            traces: config.observe.traces.as_ref().map(Traces::shown),
            policies: config.policies.iter().map(|policy| describe(policy, config.storage())).collect(),
            envoy: None,
        };
        greeting.last.1 = format!("curl -i '{}/v1/check{query}'", greeting.url());
        (greeting, listeners)
    }

    /// The first URL of the HTTP API.
    fn url(&self) -> &str {
        self.listening.split(", ").next().unwrap_or_default()
    }

    /// The URLs of all ports.
    fn all_urls(&self) -> String {
        let urls = once(&self.listening).chain(self.ports.iter().map(|(_, urls)| urls));
        urls.map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The message, on a terminal in its width. The last line is copied, so it stays one.
    fn for_people(&self) -> String {
        const INDENT: usize = 13;
        let text = self.to_string();
        match text.rsplit_once('\n') {
            Some((lines, last)) if std::io::stdout().is_terminal() => {
                format!("{}\n{last}", output::wrap(lines, output::width(), INDENT))
            }
            _ => text,
        }
    }

    /// The message as a JSON log line, readable by log collectors of containers.
    fn as_json(&self) -> serde_json::Value {
        let Self { origin, listening, ports, store, traces, policies, envoy, last } = self;
        let urls = |urls: &str| urls.split(", ").map(str::to_owned).collect::<Vec<_>>();
        let ports: HashMap<_, _> = ports.iter().map(|(name, listed)| (*name, urls(listed))).collect();
        json!({
            "timestamp": jiff::Timestamp::now().to_string(),
            "level": "INFO",
            "fields": {
                "message": "started",
                "version": env!("CARGO_PKG_VERSION"),
                "config": origin,
                "listening": urls(listening),
                "ports": ports,
                "store": store,
                "traces": traces,
                "policies": policies,
                "envoy": envoy,
                (last.0): last.1,
            },
            "target": module_path!(),
        })
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, listening, ports, store, traces, policies, envoy, last } = self;
        writeln!(f, "slidegate {}", env!("CARGO_PKG_VERSION"))?;
        // With envoyproxy/ratelimit files no other config is needed.
        if envoy.is_none() || !policies.is_empty() {
            writeln!(f, "config     {origin}")?;
        }
        writeln!(f, "listening  {listening}")?;
        for (name, urls) in ports {
            writeln!(f, "{name:<10} {urls}")?;
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
        write!(f, "{:<10} {}", last.0, last.1)
    }
}

/// Summarizes the envoyproxy/ratelimit folder.
fn describe_files(settings: &Settings, envoy: Option<&EnvoyConfig>) -> String {
    let folder = settings.folder.path.display();
    match envoy {
        Some(envoy) => format!("{folder}: {}", envoy.summary()),
        None => format!("{folder}: no readable files yet"),
    }
}

/// Hot-reloads envoyproxy/ratelimit files.
async fn follow_folder(admin: Arc<Admin>, watcher: Option<ConfigWatcher>) {
    let Some(mut watcher) = watcher else { return };
    loop {
        let admin = Arc::clone(&admin);
        let looked = tokio::task::spawn_blocking(move || {
            watcher.poll(&|policies| admin.control.active.set_external(&policies));
            watcher
        });
        // An error means that the runtime is stopping, or that the task panicked, which was logged.
        let Ok(back) = looked.await else { return };
        watcher = back;
        sleep(POLL_EVERY).await;
    }
}

/// Watches a shared store: logs unavailability, at most once per second, and settings that silently
/// break limits. Counts the instances and publishes this one's record.
async fn watch_store(admin: Arc<Admin>) {
    let Some(shared) = admin.app.shared() else { return };
    let mut seen = HealthRecord::default();
    let watch = async {
        loop {
            shared.poll_health(&mut seen).await;
            sleep(WATCH_INTERVAL).await;
        }
    };
    let examine = async {
        loop {
            shared.examine().await;
            // Sooner, if the store was away.
            let _ = timeout(EXAMINE_INTERVAL, shared.returned()).await;
        }
    };
    let count = async {
        loop {
            sleep(COUNT_INTERVAL).await;
            admin.count_instances().await;
        }
    };
    tokio::join!(watch, examine, count);
}

/// Removes expired keys, and logs when the full memory store evicted keys with usage.
async fn sweep(app: Arc<App>) {
    let log_limit = LogLimit::default();
    let mut reported = 0;
    loop {
        sleep(SWEEP_INTERVAL).await;
        app.sweep();
        let stats = app.store().stats();
        if stats.dropped > reported && log_limit.admit(None).is_some() {
            tracing::warn!(
                dropped = stats.dropped - reported,
                max_keys = stats.max_keys,
                max_bytes = stats.max_bytes,
                "memory store full: evicted keys with usage, which may be denied too long now, and new keys with them; raise {}",
                if stats.keys < stats.max_keys { "store.memory.max_bytes" } else { "store.memory.max_keys" }
            );
            reported = stats.dropped;
        }
    }
}
